"""llama.cpp through llama-cpp-python, without a server: one context, and a step that computes one token of every sequence.

The library is loaded into a child process and never into this one. What the child is told and tells goes through two named pipes:
between the first word of a round and its last there is nothing but the model's work and one short message each way.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import json
import math
import os
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_joules import machine
from pytest_joules.engines import ClosedLoop, Counters, Part, Round, _in_process_child
from pytest_joules.engines._in_force import in_force, layers_of
from pytest_joules.engines._process import GuardedProcess
from pytest_joules.engines.llama_server import padded
from pytest_joules.errors import EngineError, Unmeasured
from pytest_joules.models import ModelFile
from pytest_joules.records import RequestRecord
from pytest_joules.suite import Setting
from pytest_joules.words import one_line
from pytest_joules.workload.prompts import numbered, of_length

NAME = "in-process"

INCLUDES: tuple[Part, ...] = ("prefill", "decode", "sampling")
"""What a window holds."""

COUNTED_FROM = "engine"
"""Where the counts of an answer come from: tokens that this engine handed over and got, which llama.cpp's own counters confirm."""

_CHILD = Path(_in_process_child.__file__)
_SHORT_S = 30.0
"""How long an answer may take that costs the library nothing."""
_DYING_S = 2.0
"""How long a process that closed its pipes may take to end."""
_POLL_S = 0.02
_PIECE = 1 << 16

_MEMORY_STEP = "lower parallel or context_per_slot, take a smaller model, or free memory"
_CONTEXT_STEP = (
    "raise context_per_slot, or lower parallel: the context is too small for so many sequences of this length"
)
_DECODE = re.compile(r"llama_decode returned (-?\d+)")
_DECODE_CAUSES = {
    1: ("no room in the KV cache for the slots' tokens", _CONTEXT_STEP),
    2: ("it was aborted", "run again, with nothing else that ends programs"),
    -1: ("the batch was not valid", "raise batch_tokens, or use another version of llama-cpp-python"),
}
_DECODE_FAILED = ("the computation failed", f"see the log above; {_MEMORY_STEP}")
_NEXT_STEPS = (
    (re.compile(r"\(SIGILL\)"), "it was likely built for another processor: build llama-cpp-python here"),
    (re.compile(r"out of (?:device )?memory|failed to allocate|unable to allocate|bad_alloc|MemoryError", re.IGNORECASE), _MEMORY_STEP),
    (re.compile(r"\(SIGKILL\)"), f"likely killed because memory ran out: {_MEMORY_STEP}"),
    (re.compile(r"failed to load model|error loading model|invalid magic|cannot load the model"), "check the model file, or use a version of llama-cpp-python that knows it"),
    (re.compile(r"cannot make a context"), _MEMORY_STEP),
    (re.compile(r"ImportError|ModuleNotFoundError|OSError|RuntimeError: Failed to load"), "install it anew: pip install --force-reinstall --no-cache-dir llama-cpp-python"),
)  # fmt: skip
_OTHER_STEP = "use another version of llama-cpp-python, or engine: llama-server"


def find(where: str | None = None) -> InProcessEngine:
    """The engine; `where` names a server's program and has no meaning here.

    Raises:
        Unmeasured: llama-cpp-python is not installed.
    """
    if importlib.util.find_spec("llama_cpp") is None:
        raise Unmeasured("in-process: llama-cpp-python is not installed: pip install 'pytest-joules[embedded]'")
    return InProcessEngine()


def prompt_counts(length: int, computed: int) -> tuple[int, int]:
    """Tokens of a prompt that were computed and that came from a cache (`prompt_n`, `cache_n`).

    Args:
        length: tokens of the prompt. It says nothing about work: `usage` of the high-level `Llama` gives it in full where all
            tokens but one were still there from the call before.
        computed: tokens that the model was really run on for it.
    """
    done = min(computed, length)
    return done, length - done


def decode_fault(said: str) -> tuple[str, str] | None:
    """Cause and next step, where what is said speaks of a return code of `llama_decode` (llama.h)."""
    match = _DECODE.search(said)
    return None if match is None else _DECODE_CAUSES.get(int(match[1]), _DECODE_FAILED)


def translated(about: Mapping[str, str | None]) -> str:
    """Why the figures are of another machine than this one: x86 code that Rosetta translates; empty where it is not so.

    Args:
        about: values of `platform.machine()`, `sysctl.proc_translated` and `hw.optional.arm64`, by these names.
    """
    is_x86 = about.get("platform.machine()") == "x86_64"
    if is_x86 and "1" in (about.get("sysctl.proc_translated"), about.get("hw.optional.arm64")):
        return (
            "this is a Python for x86_64 that Rosetta translates on Apple silicon: it is many times slower and cannot use the GPU; "
            "install a Python for arm64"
        )
    return ""


def check_gpu(gpu_layers: int | str, facts: Mapping[str, Any]) -> None:
    """That layers can be put on a GPU where a number of them is asked for.

    Raises:
        EngineError: this build cannot.
    """
    if gpu_layers not in (0, "all") and not facts.get("gpu_offload"):
        raise EngineError(
            f"in-process engine: {gpu_layers} layers were asked for on the GPU, and this llama-cpp-python is built without GPU support "
            f"({one_line(str(facts.get('system_info')), 80)}); build it with support for this GPU, or set gpu_layers: 0"
        )


class InProcessEngine:
    """llama-cpp-python as it is installed beside us."""

    name = NAME

    @functools.cached_property
    def _facts(self) -> dict[str, Any]:
        command = [sys.executable, "-P", str(_CHILD), "facts"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=60, stdin=subprocess.DEVNULL,
                env=_environment(), check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EngineError(f"in-process engine: llama-cpp-python cannot be asked: {error}; {_OTHER_STEP}") from None
        if done.returncode < 0:
            raise EngineError(
                f"in-process engine: llama-cpp-python died of signal {-done.returncode} while it was loaded: it was likely built for "
                "another processor; build it here"
            )
        if done.returncode != 0:
            said = one_line((done.stderr.strip().splitlines() or ["it said nothing"])[-1])
            raise EngineError(f"in-process engine: llama-cpp-python cannot be loaded: {said}; {_next_step(said)}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def facts(self) -> Mapping[str, Any]:
        """Version, build and digests of the library."""
        remark = translated(self._facts["platform"])
        return {"name": NAME, "includes": list(INCLUDES), **self._facts, **({"remark": remark} if remark else {})}

    def cannot(self, setting: Setting) -> str:
        """Why it is not made for a setting; empty when it is."""
        if setting.draft.draft_model:
            return f"{NAME}: it has no draft models; leave out draft, or take engine: llama-server"
        return ""

    @contextlib.contextmanager
    def serve(
        self, setting: Setting, model: ModelFile, draft: ModelFile | None, log_dir: Path, ready_timeout_s: float,
        request_timeout_s: float,
    ) -> Iterator[InProcessServer]:  # fmt: skip
        """Start the child, load the model, check that it runs as asked; end and reap it at the end."""
        if unfit := self.cannot(setting):
            raise EngineError(unfit)
        facts = self._facts
        check_gpu(setting.server.gpu_layers, facts)
        child = _Child(log_dir, ready_timeout_s)
        try:
            server = InProcessServer(setting, child, facts, request_timeout_s)
            server.load(model, ready_timeout_s)
            yield server
        finally:
            child.close()


class InProcessServer:
    """A loaded model in a child process."""

    in_tokens = True

    def __init__(self, setting: Setting, child: _Child, library: Mapping[str, Any], timeout_s: float) -> None:
        self._setting, self._child, self._library, self._timeout_s = setting, child, library, timeout_s
        self._context = 0
        self.slots = setting.server.parallel
        self.facts: dict[str, Any] = {}
        self.deviations: list[str] = []
        self.pids = child.process.pids

    def load(self, model: ModelFile, timeout_s: float) -> None:
        """Load a model and compare what llama.cpp runs with what was asked.

        Raises:
            EngineError: it cannot be loaded, or runs otherwise.
        """
        asked = self._setting.server
        per_slot = padded(asked.context_per_slot)
        parameters = {
            "gpu_layers": layers_of(asked),
            "context": per_slot * asked.parallel, "slots": asked.parallel, "batch": asked.batch_tokens, "ubatch": asked.ubatch_tokens,
            "threads": asked.threads or machine.describe().threads, "flash": asked.flash_attention,
            "type_k": asked.cache_type_k, "type_v": asked.cache_type_v,
        }  # fmt: skip
        found = self._child.ask(
            {"op": "open", "model": str(model.path), **parameters}, timeout_s,
            f"was not ready within {timeout_s:g} s; raise ready_timeout_s",
        )  # fmt: skip
        self._child.doing = "in mid-work"
        self._context = found["context_per_slot"]
        if per_slot != asked.context_per_slot:
            self.deviations.append(f"context_per_slot {asked.context_per_slot} is padded to {per_slot} by llama.cpp")
        self.deviations += [
            f"this llama-cpp-python has no {name}, which could not be pinned" for name in found["unpinned"]
        ]
        if found["slots"] != asked.parallel:
            raise EngineError(
                f"in-process engine: llama.cpp runs {found['slots']} sequences, {asked.parallel} were asked for; {_OTHER_STEP}"
            )
        if self._context < asked.context_per_slot:
            raise EngineError(
                f"in-process engine: {self._context} tokens of context per slot, {asked.context_per_slot} were asked for; "
                "ask for what the model was made for, or for fewer slots"
            )
        has_gpu = self._library["gpu_offload"]
        facts, unchecked = in_force("in-process engine", asked, self._child.process.log_text(), has_gpu=has_gpu)
        self.facts = {"model": model.path.name, "parameters": parameters, **found, **facts}
        self.deviations += unchecked
        if remark := translated(self._library["platform"]):
            self.deviations.append(remark)

    def prompts(self, text: str, count: int, first: int = 0, *, identical: bool = False) -> list[list[int]]:
        """Prompts as token ids, equally long, distinct unless `identical`."""
        if identical:
            return [self._tokenize(text)] * count
        return numbered(self._tokenize, text, count, first)

    def prompts_of(self, length: int, count: int, *, shared: int = 0, identical: bool = False) -> list[list[int]]:
        """Prompts of exactly `length` tokens, which have the first `shared` in common."""
        return of_length(self._tokenize, length, count, shared=shared, identical=identical)

    def chat(self, text: str) -> list[int]:
        """A prompt by the chat template in the model's file."""
        tokens: list[int] = self._child.ask({"op": "chat", "text": text}, _SHORT_S)["tokens"]
        return tokens

    def _tokenize(self, text: str) -> list[int]:
        tokens: list[int] = self._child.ask({"op": "tokenize", "text": text}, _SHORT_S)["tokens"]
        if not tokens:
            raise EngineError(f"in-process engine: llama_tokenize gave no tokens; {_OTHER_STEP}")
        return tokens

    def run_round(self, prompts: Sequence[Sequence[int]], answer_tokens: int, round_index: int = 0) -> Round:
        """Compute all prompts, then one token of every sequence in each step, until all answers are there."""
        if len(prompts) > self.slots:
            raise EngineError(
                f"in-process engine: {len(prompts)} requests at once, and {self.slots} slots; raise parallel"
            )
        start, end, told = self._run(prompts, answer_tokens)
        records = [
            _record(answer, len(prompt), start, round_index)
            for answer, prompt in zip(told["answers"], prompts, strict=True)
        ]
        return Round(start, end, tuple(records))

    def run_closed_loop(
        self, prompts: Sequence[Sequence[int]], answer_tokens: int, *, stream: bool | None = None, exact: bool = True
    ) -> ClosedLoop:
        """Keep a sequence in every slot until all prompts are answered: one that ends is replaced by the next.

        `stream` makes no difference: the times of the tokens are known in any case.
        """
        start, end, told = self._run(prompts, answer_tokens, exact=exact, texts=True)
        answers = told["answers"]
        records = [
            _record(answer, len(prompt), start, answer["position"])
            for answer, prompt in zip(answers, prompts, strict=True)
        ]
        last = {answer["slot"]: answer["times"][-1] for answer in sorted(answers, key=lambda a: a["times"][-1])}
        # A slot that was never used stood idle all the time.
        idle = min(last.values()) if len(last) == self.slots else start
        return ClosedLoop(
            start, end, tuple(records), drain_s=end - idle, exact=exact, texts=tuple(a["text"] for a in answers)
        )

    def generate(self, prompts: Sequence[Sequence[int]], answer_tokens: int) -> list[list[int]]:
        """The token ids of the answers, of exactly `answer_tokens` tokens each."""
        return [answer["tokens"] for answer in self._run(prompts, answer_tokens)[2]["answers"]]

    def counters(self) -> Counters | None:
        """Decode calls and busy slots so far."""
        found = self._child.ask({"op": "counters"}, _SHORT_S)
        return Counters(found["steps"], found["busy"])

    def _run(
        self, prompts: Sequence[Sequence[int]], answer_tokens: int, *, exact: bool = True, texts: bool = False
    ) -> tuple[float, float, dict[str, Any]]:
        """Start, end, and what became of the prompts."""
        longest = max((len(prompt) for prompt in prompts), default=0)
        if not longest or not all(prompts):
            raise EngineError("in-process engine: a prompt has no tokens; give it some text")
        if longest + answer_tokens > self._context:
            raise EngineError(
                f"in-process engine: a prompt of {longest} tokens and {answer_tokens} of its answer do not fit the {self._context} tokens "
                f"of context of a slot; raise context_per_slot to {padded(longest + answer_tokens)}, or ask for shorter answers"
            )
        request = self._setting.request
        asked = {
            "op": "take", "prompts": [list(prompt) for prompt in prompts], "answer_tokens": answer_tokens, "exact": exact,
            "texts": texts, "keep": request.cache_prompt, "temperature": request.temperature, "seed": request.seed,
        }  # fmt: skip
        self._child.ask(asked, _SHORT_S)
        # As long as that many requests one after the other, N at a time, may take.
        timeout_s = self._timeout_s * math.ceil(len(prompts) / self.slots)
        start = time.monotonic()
        self._child.ask(
            {"op": "go"}, timeout_s,
            f"gave no answer within {timeout_s:g} s; ask for shorter answers, or raise request_timeout_s",
        )  # fmt: skip
        end = time.monotonic()
        told = self._child.hear(_SHORT_S)
        check_counts(told["fed"], told["computed"])
        return start, end, told


def check_counts(fed: int, computed: int) -> None:
    """Hold the tokens that were handed to llama.cpp against those that its own counters say it computed.

    Raises:
        EngineError: they differ, so that neither can be relied on.
    """
    if fed != computed:
        raise EngineError(
            f"in-process engine: {fed} tokens were handed over, and llama.cpp's counters (llama_perf_context) say {computed} were computed; "
            f"{_OTHER_STEP}"
        )


def _record(answer: Mapping[str, Any], length: int, start: float, round_index: int) -> RequestRecord:
    """One answer as the child counted it, with times since `start`."""
    times: list[float] = answer["times"]
    prompt_n, cache_n = prompt_counts(length, answer["computed"])
    gaps = sorted(later - earlier for earlier, later in itertools.pairwise(times))
    return RequestRecord(
        slot=answer["slot"],
        round=round_index,
        sent_s=round(answer["begun"] - start, 6),
        received_s=round(times[-1] - start, 6),
        prompt_n=prompt_n,
        cache_n=cache_n,
        predicted_n=len(answer["tokens"]),
        prompt_ms=round(1000 * (answer["prefilled"] - answer["begun"]), 3),
        predicted_ms=round(1000 * (times[-1] - answer["prefilled"]), 3),
        stop_type=answer["stop"],
        counted_from=COUNTED_FROM,
        first_token_s=round(times[0] - start, 6),
        inter_token_median_s=_not_exceeded(gaps, 0.5),
        inter_token_p99_s=_not_exceeded(gaps, 0.99),
    )


def _not_exceeded(ordered: Sequence[float], share: float) -> float | None:
    """The value that a share of them does not exceed; `None` where there are none."""
    return round(ordered[math.ceil(share * len(ordered)) - 1], 6) if ordered else None


class _Child:
    """The process with the library, and the two pipes to it.

    Attributes:
        doing: when it would die if it died now, in words.
    """

    def __init__(self, log_dir: Path, timeout_s: float) -> None:
        self._heard = b""
        self._asks = self._hears = -1
        self._out_of_step = ""
        self.doing = "while loading the model"
        deadline = time.monotonic() + timeout_s
        with tempfile.TemporaryDirectory(prefix="joules-") as folder:
            requests, answers = (Path(folder) / name for name in ("requests", "answers"))
            os.mkfifo(requests)
            os.mkfifo(answers)
            # Opened before the other side: no pipe on disk makes anyone wait who could wait for ever.
            self._hears = os.open(answers, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                self.process = GuardedProcess(
                    [sys.executable, "-P", str(_CHILD), str(requests), str(answers)],
                    log_dir / f"in-process-{time.monotonic_ns()}.log",
                    _environment(),
                )
            except BaseException:
                os.close(self._hears)
                raise
            try:
                self._asks = self._opened(requests, deadline)
                self._first_word(deadline)
            except BaseException:
                self.close()
                raise

    def _opened(self, requests: Path, deadline: float) -> int:
        """The pipe to the child, once the child has opened its end."""
        while True:
            with contextlib.suppress(OSError):
                return os.open(requests, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self._wait(deadline)

    def _first_word(self, deadline: float) -> None:
        """Until it has come, a pipe without anyone at the other end is one that is not opened yet."""
        while True:
            self._more()
            if self._message() is not None:
                return
            self._wait(deadline)

    def _wait(self, deadline: float) -> None:
        if not self.process.running():
            raise EngineError(f"in-process engine ended while loading: {self._end()}")
        if time.monotonic() > deadline:
            raise EngineError(
                f"in-process engine did not start in time; raise ready_timeout_s, or see its log: {self.process.log_tail()}"
            )
        time.sleep(_POLL_S)

    def ask(self, message: Mapping[str, Any], timeout_s: float, too_late: str = "") -> dict[str, Any]:
        """The answer to a message.

        Args:
            too_late: what to say, and what to do, when none comes in time.

        Raises:
            EngineError: it could not be done, the process died, or no answer came in time.
        """
        if self._out_of_step:
            raise EngineError(f"in-process engine cannot go on: it {self._out_of_step}")
        deadline = time.monotonic() + timeout_s
        left = memoryview(_in_process_child.packed(message))
        try:
            while left:
                _, ready, _ = select.select([], [self._asks], [], max(0.0, deadline - time.monotonic()))
                if not ready:
                    self._too_late(timeout_s, too_late)
                with contextlib.suppress(BlockingIOError):
                    left = left[os.write(self._asks, left[:_PIECE]) :]
        except BrokenPipeError:
            self._died()
        return self.hear(deadline - time.monotonic(), too_late)

    def hear(self, timeout_s: float, too_late: str = "") -> dict[str, Any]:
        """The next message from the child. Raises like `ask`."""
        deadline = time.monotonic() + timeout_s
        while (message := self._message()) is None:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._hears], [], [], left)[0]:
                self._too_late(timeout_s, too_late)
            if not self._more():
                self._died()
        if (error := message.get("error")) is not None:
            raise EngineError(f"in-process engine: {self._explained(str(error))}")
        return message

    def _message(self) -> dict[str, Any] | None:
        message, self._heard = _in_process_child.unpacked(self._heard)
        return message

    def _more(self) -> bool:
        """Read what has come; false at the end of the pipe."""
        try:
            piece = os.read(self._hears, _PIECE)
        except BlockingIOError:
            return True
        self._heard += piece
        return bool(piece)

    def _explained(self, said: str) -> str:
        """What the child said, with cause and next step."""
        if fault := decode_fault(said):
            return f"{said}: {fault[0]}; {fault[1]}"
        tail = self.process.log_tail()
        return f"{one_line(said)}; {_next_step(f'{tail} {said}')}; its log ends: {tail or '(empty)'}"

    def _too_late(self, timeout_s: float, too_late: str) -> None:
        # Whatever it answers later would be taken for the answer to something else.
        self._out_of_step = too_late or f"gave no answer within {timeout_s:g} s; {_OTHER_STEP}"
        raise EngineError(
            f"in-process engine {self._out_of_step}; its log ends: {self.process.log_tail() or '(empty)'}"
        )

    def _died(self) -> None:
        deadline = time.monotonic() + _DYING_S
        while self.process.running() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        self._out_of_step = "died before"
        if self.process.running():
            raise EngineError(
                f"in-process engine closed its pipes {self.doing}; {_OTHER_STEP}; its log ends: {self.process.log_tail()}"
            )
        raise EngineError(f"in-process engine died {self.doing}: {self._end()}")

    def _end(self) -> str:
        how = self.process.how_it_ended()
        return f"{how}; {_next_step(how)}"

    def close(self) -> None:
        """End the process and reap it. May be called twice."""
        self.process.stop()
        for end in (self._asks, self._hears):
            if end >= 0:
                os.close(end)
        self._asks = self._hears = -1


def _environment() -> dict[str, str]:
    """Ours, with numbers as the C locale writes them."""
    return {**os.environ, "LC_ALL": "C"}


def _next_step(text: str) -> str:
    """What to do about a fault that tells itself in these words."""
    return next((step for cause, step in _NEXT_STEPS if cause.search(text)), _OTHER_STEP)
