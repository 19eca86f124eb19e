"""A server that runs already and speaks OpenAI's HTTP interface: vLLM, Ollama, LM Studio, MLX, a llama-server started elsewhere.

It is neither started nor stopped here, so little of how it runs can be checked; what cannot is told as a deviation, line by line. Power
is read on this machine, so the server must be on it too. Tokens are counted as the server counts them, in `usage`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import psutil

from pytest_joules.engines import ClosedLoop, Counters, Part, Round
from pytest_joules.engines._client import Arrival, Client, Streamed, count_of, parts, record_of, tells_of_cache, timed
from pytest_joules.errors import EngineError, Unmeasured, UsageError
from pytest_joules.models import ModelFile
from pytest_joules.models.catalogue import normal
from pytest_joules.records import RequestRecord
from pytest_joules.suite import Setting
from pytest_joules.words import nearest, one_line

NAME = "openai"

INCLUDES: tuple[Part, ...] = ("prefill", "decode", "sampling", "detokenise", "http")
"""What a window holds."""

KEY_VARIABLE = "JOULES_API_KEY"
"""Environment variable with the key of a server that wants one. It is neither kept nor shown."""

_EXAMPLE = "--joules-server http://127.0.0.1:8080/v1"
_OTHER_STEP = "see the server's own log"
_SHORT_S = 30.0
"""How long an answer may take that costs the server nothing."""
_TRIAL_TOKENS = 8
_FORWARDERS = frozenset({"ssh", "sshd", "autossh", "kubectl"})
"""Programs that listen here and work elsewhere."""
_NUMBER = "\ue000"
"""Stands in a prompt for the number by which it differs from all others; a character that no text has."""
_NUMBERS_FROM, _NUMBERS = 100_000, 900_000
"""Numbers of six digits, so that all prompts are of one length."""
_STOPS = {"length": "limit", "stop": "eos", "eos_token": "eos"}
"""`finish_reason` in the words of llama-server; any other stays what it is."""

_UNCHECKED = (
    "how many requests it computes at once could not be checked",
    "the context of a request could not be checked",
    "threads, GPU layers, batch sizes, cache types and flash attention are the server's own",
    "no server is started afresh for a condition: whatever it keeps is carried over",
)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is.

    Attributes:
        url: what the paths of requests follow, without a slash at its end.
    """

    url: str
    port: int
    path: str

    @property
    def better(self) -> str:
        """`; did you mean URL?` where the address is not the usual one of such servers, else an empty string."""
        usual = f"{self.url.removesuffix(self.path)}/v1"
        return "" if self.url == usual else f"; did you mean {usual}?"


def find(where: str | None = None) -> OpenAIEngine:
    """The engine: the server at the address given with --joules-server.

    Raises:
        Unmeasured: no address is given.
        UsageError: it is none, or is one of another machine.
    """
    if not where:
        raise Unmeasured(f"openai: no server is named; give the address of one on this machine, as in {_EXAMPLE}")
    return OpenAIEngine(address(where))


def address(where: str) -> Address:
    """An address, once it is known to be of this machine. Raises `UsageError` when it is not."""
    try:
        parts = urlsplit(where)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise UsageError(f"openai: {where}: {error}; write it as in {_EXAMPLE}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"openai: {where} is no address of a server; write it as in {_EXAMPLE}")
    if parts.username or parts.password:
        raise UsageError(f"openai: an address holds no name and no password; put the key into {KEY_VARIABLE}")
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)}
    except OSError as error:
        raise UsageError(f"openai: {parts.hostname} cannot be looked up ({error.strerror}); name 127.0.0.1") from None
    if not found <= own_addresses():
        raise UsageError(
            f"openai: {parts.hostname} is another machine: power is read on this one, and its energy is not the server's; run pytest "
            "where the server runs"
        )
    path = parts.path.rstrip("/")
    return Address(f"{parts.scheme}://{parts.netloc}{path}", port, path)


def own_addresses() -> frozenset[str]:
    """Addresses under which this machine reaches itself."""
    faces = itertools.chain.from_iterable(psutil.net_if_addrs().values())
    own = {face.address.partition("%")[0] for face in faces if face.family in (socket.AF_INET, socket.AF_INET6)}
    return frozenset(own | {"127.0.0.1", "::1"})


def listening(port: int) -> psutil.Process | None:
    """The process that listens on a port; `None` where it is another user's or there is none."""
    try:
        found = [c.pid for c in psutil.net_connections("tcp") if _listens(c, port) and c.pid]
    except psutil.AccessDenied:
        # macOS tells everybody of their own processes, and of all at once only the superuser.
        found = [process.pid for process in psutil.process_iter() if _process_listens(process, port)]
    with contextlib.suppress(psutil.Error, IndexError):
        return psutil.Process(found[0])
    return None


def _listens(connection: Any, port: int) -> bool:
    return bool(connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port)


def _process_listens(process: psutil.Process, port: int) -> bool:
    try:
        return any(_listens(connection, port) for connection in process.net_connections("tcp"))
    except psutil.Error:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class _UnseenModel(ModelFile):
    """A model of which the server has the file."""

    def record(self) -> dict[str, Any]:
        """What is known of it."""
        return {"path": self.path.name, "metadata": {}}


class OpenAIEngine:
    """A server at an address."""

    name = NAME

    def __init__(self, where: Address) -> None:
        self._address = where
        # No prompt of an earlier run is asked again: the server may still have it.
        self._numbers = itertools.count(secrets.randbelow(_NUMBERS))

    def facts(self) -> Mapping[str, Any]:
        """What is known of a server that somebody else started; the name of the machine is not."""
        process = listening(self._address.port)
        program = None
        if process is not None:
            with contextlib.suppress(psutil.Error):
                program = process.name()
        return {
            "name": NAME, "includes": list(INCLUDES), "port": self._address.port, "path": self._address.path, "program": program,
        }  # fmt: skip

    def cannot(self, setting: Setting) -> str:
        """Why it is not made for a setting; empty when it is."""
        if setting.draft.draft_model:
            return f"{NAME}: what a running server drafts with is its own affair; leave out draft"
        if setting.request.prompt_tokens is not None:
            return f"{NAME}: it asks with plain text, whose tokens it cannot count; leave out prompt_tokens, or take engine: llama-server"
        if setting.protocol.warm == "cold":
            return f"{NAME}: the server runs already, so no window of it is cold; leave out warm: cold"
        return ""

    def unseen_model(self, name: str, form: str | None) -> ModelFile:
        """The name, under which the server is asked for it."""
        return _UnseenModel(path=Path(name), size_bytes=0, sha256="")

    @contextlib.contextmanager
    def serve(
        self, setting: Setting, model: ModelFile, draft: ModelFile | None, log_dir: Path, ready_timeout_s: float,
        request_timeout_s: float,
    ) -> Iterator[OpenAIServer]:  # fmt: skip
        """The server as it runs, after it has shown that it answers and counts. It goes on afterwards."""
        if unfit := self.cannot(setting):
            raise EngineError(unfit)
        process = listening(self._address.port)
        path = "/completions" if setting.request.questions is None else "/chat/completions"
        api = _Api(self._address, path, process, request_timeout_s)
        try:
            server = OpenAIServer(setting, api, process, self._numbers)
            server.check()
            yield server
        finally:
            api.close()


class OpenAIServer:
    """A server that runs already."""

    in_tokens = False

    def __init__(self, setting: Setting, api: _Api, process: psutil.Process | None, numbers: Iterator[int]) -> None:
        self._setting, self._api, self._process, self._numbers = setting, api, process, numbers
        self._served = setting.model
        self._exactly = True
        self.slots = setting.server.parallel
        self.facts: dict[str, Any] = {}
        self.deviations: list[str] = []
        self.pids: frozenset[int] | None = None

    def check(self) -> None:
        """Find out what it can do, with a short answer.

        Raises:
            EngineError: it is not there, has no such model, refuses, or does not count.
        """
        if self._process is not None:
            with contextlib.suppress(psutil.Error):
                if (forwarder := self._process.name()) in _FORWARDERS:
                    raise EngineError(
                        f"{NAME}: what listens there is {forwarder}, which leads to another machine: power is read on this one; run "
                        "pytest where the server runs"
                    )
        said = [*_UNCHECKED]
        self._served = self._name_there(said)
        shown = _shown(self._served)
        said.append(f"the model is what the server calls {shown}; its file could not be checked")
        self._trial(said)
        self.pids = self._family()
        if self.pids is None:
            said.append("its process could not be found, so its CPU time cannot be told from that of other programs")
        self.facts = {"model": shown, "exact_length_asked": self._exactly}
        self.deviations = [f"{NAME}: {line}" for line in said]
        self._tell_of_answers()

    def _tell_of_answers(self) -> None:
        """Say once what answers show of the server, or do not show; vLLM leaves out what came from its cache wherever it is 0, or not asked for."""
        for other in sorted(self._api.answered_by - {self._served}):
            line = f"{NAME}: answers say that they are of model {_shown(other)}"
            if line not in self.deviations:
                self.deviations.append(line)
        line = f"{NAME}: it does not say how many prompt tokens came from its cache" + (
            ", and every window asks the same questions" if self._setting.request.questions else ""
        )
        if self._api.cache_untold and line not in self.deviations:
            self.deviations.append(line)

    def _name_there(self, said: list[str]) -> str:
        """The suite's model as the server calls it."""
        listed = self._api.models()
        if listed is None:
            said.append("it lists no models, so that the name could not be checked")
            return self._setting.model
        wanted, form = normal(self._setting.model), normal(self._setting.format or "")
        exact = next((one for one in listed if self._setting.model in (one, _shown(one))), None)
        if exact is not None:
            return exact
        near = [one for one in listed if wanted in normal(Path(one).name) and form in normal(Path(one).name)]
        if len(near) == 1:
            return near[0]
        names = [_shown(one) for one in near or listed]
        raise EngineError(
            f"{NAME}: the server has no model {self._setting.model!r}{nearest(self._setting.model, names)}; it lists "
            f"{', '.join(names) or 'none'}; write one of them as model: in the suite"
        )

    def _trial(self, said: list[str]) -> None:
        """A short answer, to see what it understands and how it counts."""
        prompts = self.prompts("Say it.", 1)
        tokens = min(_TRIAL_TOKENS, self._setting.request.answer_tokens)
        try:
            self._api.trial(self._payloads(prompts, tokens, stream=False)[0])
        except _Refused as refused:
            self._exactly = False
            try:
                self._api.trial(self._payloads(prompts, tokens, stream=False)[0])
            except EngineError:
                raise refused from None
            said.append(
                "it refuses ignore_eos, min_tokens and cache_prompt, so that the model may end an answer and a cache may serve a prompt"
            )
        if self._setting.request.stream:
            self._api.trial(self._payloads(prompts, tokens, stream=True)[0], stream=True)

    def _family(self) -> frozenset[int] | None:
        """The process that listens and all it started; taken after an answer, for which some start another process."""
        if self._process is None:
            return None
        with contextlib.suppress(psutil.Error):
            return frozenset({self._process.pid, *(child.pid for child in self._process.children(recursive=True))})
        return None

    def prompts(self, text: str, count: int, first: int = 0, *, identical: bool = False) -> list[list[int]]:
        """Prompts as code points of their text: only the server has the tokenizer. Each gets a number of its own when it is sent."""
        shown = text if identical else f"Question {_NUMBER}. {text}"
        return [[ord(character) for character in shown] for _ in range(count)]

    def chat(self, text: str) -> list[int]:
        """What a user says, as code points: the server applies the model's template."""
        return [ord(character) for character in text]

    def run_round(self, prompts: Sequence[Sequence[int]], answer_tokens: int, round_index: int = 0) -> Round:
        """Release all requests at one instant and wait for all the answers."""
        stream = self._setting.request.stream
        done = self._api.round(self._payloads(prompts, answer_tokens, stream=stream), round_index, stream=stream)
        self._tell_of_answers()
        return done

    def run_closed_loop(
        self, prompts: Sequence[Sequence[int]], answer_tokens: int, *, stream: bool | None = None, exact: bool = True
    ) -> ClosedLoop:
        """Keep a request in flight for each slot until all prompts are answered."""
        streamed = self._setting.request.stream if stream is None else stream
        payloads = self._payloads(prompts, answer_tokens, stream=streamed, exact=exact)
        done = self._api.closed_loop(payloads, self.slots, stream=streamed, exact=exact)
        self._tell_of_answers()
        return done

    def counters(self) -> Counters | None:
        """The interface has none."""
        return None

    def _payloads(
        self, prompts: Sequence[Sequence[int]], answer_tokens: int, *, stream: bool, exact: bool = True
    ) -> list[bytes]:  # fmt: skip
        request = self._setting.request
        body: dict[str, Any] = {
            "model": self._served, "max_tokens": answer_tokens, "temperature": request.temperature, "seed": request.seed,
            "stream": stream,
        }  # fmt: skip
        if stream:
            body["stream_options"] = {"include_usage": True}
        if self._exactly:
            # What OpenAI's own interface does not know: vLLM's and llama-server's words.
            body |= {"cache_prompt": request.cache_prompt}
            body |= {"ignore_eos": True, "min_tokens": answer_tokens} if exact else {}
        return [json.dumps(body | self._asked(self._text(prompt))).encode() for prompt in prompts]

    def _asked(self, text: str) -> dict[str, Any]:
        if self._setting.request.questions is None:
            return {"prompt": text}
        return {"messages": [{"role": "user", "content": text}]}

    def _text(self, prompt: Sequence[int]) -> str:
        text = "".join(map(chr, prompt))
        return text.replace(_NUMBER, str(_NUMBERS_FROM + next(self._numbers) % _NUMBERS)) if _NUMBER in text else text


class _Refused(EngineError):
    """The server does not take what it was asked: perhaps a key that it does not know."""


class _Stranger:
    """The process of a server that somebody else started."""

    def __init__(self, process: psutil.Process | None) -> None:
        self._process = process

    def running(self) -> bool:
        """Whether it is there, as far as that can be seen."""
        try:
            return self._process is None or (
                self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE
            )
        except psutil.Error:
            return False

    def how_it_ended(self) -> str:
        """Nobody told us."""
        return "its process is gone; start it again, and see its own log"

    def log_tail(self) -> str:
        """It keeps its own."""
        return "(it keeps its own)"


class _Api(Client):
    """Requests to a server with OpenAI's interface.

    Attributes:
        path: where answers are asked for.
        answered_by: the models that answers said they are of.
    """

    def __init__(self, where: Address, path: str, process: psutil.Process | None, timeout_s: float) -> None:
        self._key = os.environ.get(KEY_VARIABLE, "")
        super().__init__(NAME, where.url, self._key, _Stranger(process), timeout_s, _OTHER_STEP)
        self._address, self.path = where, path
        self._tells_why = False
        self.answered_by: set[str] = set()

    def models(self) -> list[str] | None:
        """What the server calls its models; `None` where it has no such list.

        Raises:
            EngineError: nothing answers there, or something else than such a server.
        """
        try:
            status, text = self._run(self._ask("GET", "/models", None, _SHORT_S))
        except aiohttp.ClientConnectorError as error:
            raise EngineError(
                f"{NAME}: nothing answers at {self._address.url} ({one_line(str(error.os_error), 80)}); start the server, or correct "
                "--joules-server"
            ) from None
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EngineError(
                f"{NAME}: {self._address.url} answers in no way that is understood ({type(error).__name__}); correct --joules-server"
            ) from None
        if status == 404:
            if not self._address.better:
                return None
            raise EngineError(f"{NAME}: there is no {self._address.url}/models (status 404){self._address.better}")
        data = self.body(status, text).get("data")
        if not isinstance(data, list):
            raise EngineError(f"{NAME}: {self._address.url}/models is no list of models; correct --joules-server")
        return [str(one["id"]) for one in data if isinstance(one, dict) and one.get("id")]

    def trial(self, payload: bytes, *, stream: bool = False) -> None:
        """One answer that nobody measures. Raises `EngineError`."""
        self._guarded(self._complete(payload, stream, time.monotonic(), 0, 0), self._timeout_s)

    async def _complete(
        self, payload: bytes, stream: bool, start: float, slot: int, round_index: int
    ) -> tuple[RequestRecord, str]:
        sent = time.monotonic()
        if stream:
            streamed = self._read(await self._events(self.path, payload))
            received = time.monotonic()
            answer = self._answer(streamed.final, slot, round_index, sent - start, received - start)
            return timed(answer, streamed, start), streamed.text
        status, text = await self._ask("POST", self.path, payload, self._timeout_s)
        received = time.monotonic()
        body = self.body(status, text)
        if not _choice(body):
            raise EngineError(f"{NAME}: an answer counts tokens and holds none (choices is empty); {_OTHER_STEP}")
        return self._answer(body, slot, round_index, sent - start, received - start), _text_of(body)

    def body(self, status: int, text: str) -> dict[str, Any]:
        """The JSON object of an answer.

        Raises:
            EngineError: the status is no success, the body is no JSON object, or it holds an `error`, whatever the status.
        """
        try:
            found = json.loads(text, parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            found = None
        if status == 200 and isinstance(found, dict) and found.get("error") in (None, False, ""):
            return found
        said = self._without_key(_message(found) or one_line(text, 120) or "(empty)")
        if 300 <= status < 400:
            raise EngineError(
                f"{NAME}: the server sends requests on (status {status}); give the address it sends them to"
            )
        if status in (401, 403):
            raise EngineError(f"{NAME}: the server wants a key (status {status}: {said}); put it into {KEY_VARIABLE}")
        if status == 404:
            raise EngineError(
                f"{NAME}: status 404: {said}; the server has no such model or no {self._address.url}{self.path}{self._address.better}"
            )
        if status in (429, 503):
            raise EngineError(f"{NAME}: the server turned a request away (status {status}: {said}); lower parallel")
        if status in (400, 422):
            raise _Refused(f"{NAME}: the server refused a request (status {status}): {said}; {_OTHER_STEP}")
        if isinstance(found, dict) and (_message(found) or status == 200):
            said = said if _message(found) else f"an error that says nothing, {json.dumps(found['error'])}"
            raise EngineError(f"{NAME}: the server failed (status {status}): {said}; {_OTHER_STEP}")
        raise EngineError(
            f"{NAME}: status {status} with a body that is no JSON object: {said}; correct --joules-server"
        )

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "(the key)") if self._key else text

    def _read(self, events: Iterable[tuple[float, bytes]]) -> Streamed:
        """A streamed answer from its events; the last that is not empty of `usage` has the counts.

        Raises:
            EngineError: an event is an error or no JSON object, the end is missing, or the counts are.
        """
        texts: list[str] = []
        arrivals: list[Arrival] = []
        final: dict[str, Any] = {}
        end = 0.0
        done = False
        for mono, part in parts(events, self.body):
            if part is None:
                done = True
                continue
            if (text := _text_of(part)) or _thought_of(part):
                texts.append(text)
                arrivals.append(Arrival(mono, _counted_so_far(part)))
            # The reason of the end and the counts may come in one event or in two.
            final |= {key: part[key] for key in ("usage", "timings", "truncated") if part.get(key)}
            if _finish_of(part):
                final["choices"] = part["choices"]
                end = mono
        # Some count in every piece: counts are no end.
        if not done and not _finish_of(final):
            raise EngineError(f"{NAME}: a stream was cut off after {len(texts)} pieces; run again, or {_OTHER_STEP}")
        if "usage" not in final:
            raise EngineError(
                f"{NAME}: a stream without usage: the server does not know stream_options.include_usage; leave out stream: true"
            )
        return Streamed(final, end, "".join(texts), tuple(arrivals))

    def _answer(
        self, body: Mapping[str, Any], slot: int, round_index: int, sent_s: float, received_s: float
    ) -> RequestRecord:  # fmt: skip
        """Counts of one answer as `usage` has them.

        Raises:
            EngineError: it has none, they contradict each other, or it does not say why it ended although others did.
        """
        usage = body.get("usage")
        if not isinstance(usage, dict) or None in (
            count_of(usage.get("prompt_tokens")), count_of(usage.get("completion_tokens")),
        ):  # fmt: skip
            raise EngineError(
                f"{NAME}: an answer does not count its tokens (usage.prompt_tokens, usage.completion_tokens)"
                f"{self._address.better or '; use a server that does'}"
            )
        finish = _finish_of(body)
        if not finish and self._tells_why:
            raise EngineError(
                f"{NAME}: an answer was cut off: it has no finish_reason, as others have; run again, or {_OTHER_STEP}"
            )
        answer = record_of(
            NAME, body, _STOPS.get(finish, finish) or None, slot=slot, round_index=round_index, sent_s=sent_s, received_s=received_s,
            first="usage",
        )  # fmt: skip
        self._tells_why |= bool(finish)
        if isinstance(by := body.get("model"), str):
            self.answered_by.add(by)
        self.cache_untold |= not tells_of_cache(body)
        return answer


def _shown(model: str) -> str:
    """A server's name of a model without the folder that some put before it."""
    return Path(model).name if Path(model).is_absolute() else model


def _choice(body: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = body.get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}


def _message_of(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is said in a chat, whole or a piece of it."""
    found = _choice(body).get("message") or _choice(body).get("delta")
    return found if isinstance(found, dict) else {}


def _text_of(body: Mapping[str, Any]) -> str:
    return str(_choice(body).get("text") or _message_of(body).get("content") or "")


def _thought_of(body: Mapping[str, Any]) -> str:
    """What a model says to itself before it answers: tokens, and no part of the answer."""
    return str(_message_of(body).get("reasoning_content") or _message_of(body).get("reasoning") or "")


def _counted_so_far(part: Mapping[str, Any]) -> int | None:
    """Tokens of an answer up to a piece of it, where the server tells them with each."""
    usage = part.get("usage")
    return count_of(usage.get("completion_tokens")) if isinstance(usage, dict) else None


def _finish_of(body: Mapping[str, Any]) -> str:
    return str(_choice(body).get("finish_reason") or "")


def _message(found: object) -> str:
    """What an error's body says: OpenAI's `error.message`, or FastAPI's `detail`."""
    if not isinstance(found, dict):
        return ""
    error = found.get("error") or found.get("detail") or found.get("message") or ""
    said = error.get("message", error) if isinstance(error, dict) else error
    return one_line(str(said), 200) if said else ""
