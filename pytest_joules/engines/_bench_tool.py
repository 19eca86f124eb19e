"""Benchmarks of llama.cpp as engines: programs that work through their rounds by themselves and tell when each one is over.

Such a program loads the model, then goes from round to round without being asked. Here it is held (SIGSTOP) at the end of a round
until the next one is wanted and let go on (SIGCONT) then, so that it can stand ready like a server: loaded, silent and warm. A round
runs from letting it go on to the arrival of its line for the end of the round. In the moment between that line and the hold the program has
begun its next round: every round loses as much at its start as it gains at its end.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_joules import machine
from pytest_joules.engines import ClosedLoop, Counters, Part, Round
from pytest_joules.engines._client import count_of
from pytest_joules.engines._in_force import in_force
from pytest_joules.engines._process import GuardedProcess, environment, said_by
from pytest_joules.engines.llama_server import (
    locate,
    next_step,
    padded,
    parse_flags,
    program_facts,
    public,
)
from pytest_joules.errors import EngineError, Unmeasured
from pytest_joules.models import ModelFile
from pytest_joules.records import RequestRecord
from pytest_joules.suite import Server as ServerSpec
from pytest_joules.suite import Setting
from pytest_joules.words import one_line
from pytest_joules.workload.prompts import text_of, usual_length

_PIECE = 1 << 16
_TOKENIZE_S = 60.0
"""How long counting the tokens of a prompt may take, for which the vocabulary is read."""
_APART_S, _APART_SHARE = 0.5, 0.5
"""How far a round's own times may be from its length, in seconds and as a share of it: more than a busy machine puts between them."""
_CHARACTERS_A_TOKEN = 4
"""Of English text, roughly; only where the tokens cannot be counted."""


def program(name: str, where: str | None) -> Path:
    """The program of that name: beside the llama-server that is used, so that both are of one build.

    Args:
        where: value of --joules-server: a llama-server, the program itself, or the address of a server, which has no meaning here.

    Raises:
        Unmeasured: there is none; says how to get one.
    """
    if where and "://" in where:
        where = None
    if where and Path(where).name == name:
        return locate(where)
    try:
        server = locate(where)
    except Unmeasured:
        if where or os.environ.get("JOULES_LLAMA_SERVER"):
            raise
        if alone := shutil.which(name):
            return Path(alone)
        raise Unmeasured(
            f"{name} is not on this machine: install it (brew install llama.cpp), or give the path of a llama-server that it lies "
            "beside with --joules-server"
        ) from None
    for folder in dict.fromkeys((server.parent, server.resolve().parent)):
        if os.access(folder / name, os.X_OK):
            return folder / name
    raise Unmeasured(
        f"{name} does not lie beside {server.name}: build llama.cpp with its tools (-DLLAMA_BUILD_TOOLS=ON), or name a llama-server "
        "that has it beside it with --joules-server"
    )


@dataclass(frozen=True, slots=True)
class Shape:
    """What every round of a started program is: tokens of each prompt, of each answer, and how many at once."""

    prompt_tokens: int
    answer_tokens: int
    parallel: int


@dataclass(frozen=True, slots=True)
class Heard:
    """What a line of a program's output means.

    Attributes:
        ends: a round is over.
        holds: the next one begins here, and the program is to be held.
        prompt_s, decode_s: what the program says the round took.
        fault: why the line cannot be relied on; empty when it can.
        says: what the program says it runs with, by its own names.
    """

    ends: bool = False
    holds: bool = False
    prompt_s: float | None = None
    decode_s: float | None = None
    fault: str = ""
    says: Mapping[str, Any] | None = None


FLASH_ROW = {"on": 1, "1": 1, "off": 0, "0": 0}
"""What a row says of flash attention by what its program was told; `true` and `false` of some builds are equal to these."""


def read_row(line: str, wanted: Mapping[str, Any], needed: Sequence[str]) -> tuple[dict[str, Any], str]:
    """A row of JSON and what is wrong with it, if anything is.

    Args:
        wanted: what the row must say, where it says it at all.
        needed: what of that it must say.
    """
    try:
        row = json.loads(line, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return {}, f"a row that is no JSON: {one_line(line, 80)}"
    if not isinstance(row, dict):
        return {}, f"a row that is no JSON object: {one_line(line, 80)}"
    if missing := [key for key in needed if key not in row]:
        return row, f"a row without {', '.join(missing)}: {one_line(line, 80)}"
    unlike = [
        f"{key} is {row[key]!r} instead of {value!r}" for key, value in wanted.items() if row.get(key, value) != value
    ]
    return row, f"it does not run as asked: {', '.join(unlike)}" if unlike else ""


class BenchTool(ABC):
    """A benchmark program as an engine.

    Attributes:
        name: of the engine and its program.
        includes: what its windows hold.
        remark: what the reader of a note must know of its figures.
    """

    name: str
    includes: tuple[Part, ...]
    remark: str

    def __init__(self, found: Path) -> None:
        self.program = found
        self._lengths: dict[tuple[str, str, bool], tuple[int, bool]] = {}

    @functools.cached_property
    def flags(self) -> frozenset[str]:
        """What this build can be told."""
        return parse_flags("\n".join(line.strip() for line in self.help.splitlines()))

    @functools.cached_property
    def help(self) -> str:
        """What `--help` says."""
        return said_by(self.name, self.program, "--help")

    @functools.cached_property
    def version_text(self) -> str:
        """What `--version` says; a build that does not know it says something else."""
        return said_by(self.name, self.program, "--version")

    def facts(self) -> Mapping[str, Any]:
        """Build, commit and digest of the program."""
        return program_facts(self.name, self.program, self.version_text, self.includes)

    def cannot(self, setting: Setting) -> str:
        """Why it is not made for a setting; empty when it is."""
        request = setting.request
        unfit = {
            "it sends nothing, so nothing can be streamed; leave out stream": request.stream,
            "it has no questions to send, so there is no closed loop; leave out closed_loop": request.closed_loop,
            "it reads no text, so it answers no questions; leave out questions": request.questions is not None,
            "it has no prompt cache; leave out cache_prompt": request.cache_prompt,
            "its prompts are random and share nothing; leave out shared_prefix_tokens": request.shared_prefix_tokens
            > 0,
            "it decodes even an answer of one token; leave out prefill_windows": request.prefill_windows,
            "it has no draft models; leave out draft": setting.draft.draft_model is not None,
            "its first round is its warm-up, so no window is cold; leave out warm: cold": setting.protocol.warm
            == "cold",
        }
        return "; ".join(f"{self.name}: {why}" for why, asked in unfit.items() if asked)

    @abstractmethod
    def arguments(self, setting: Setting, model: ModelFile, shape: Shape) -> list[tuple[str, ...]]:
        """Flags with their values that make every round of that shape, those first that it cannot do without."""

    @property
    @abstractmethod
    def needed(self) -> frozenset[str]:
        """Flags without which a build is of no use here."""

    @abstractmethod
    def heard(self, line: str, server: ServerSpec, shape: Shape) -> Heard | None:
        """What a line means; `None` when it is for the log."""

    def inquire(self, setting: Setting, model: ModelFile, timeout_s: float) -> tuple[dict[str, Any], list[str]]:
        """What it says of itself when it is asked apart from the rounds, and deviations; nothing unless a program has more to tell."""
        return {}, []

    def in_force(self, server: ServerSpec, log: str) -> tuple[dict[str, Any], list[str]]:
        """What the log of its rounds says it runs with, and what could not be checked. Raises `EngineError` where that is not as asked."""
        return in_force(self.name, server, log)

    def command(self, setting: Setting, model: ModelFile, shape: Shape) -> tuple[list[str], list[str]]:
        """Command line, and what this build cannot be told.

        Raises:
            EngineError: this build lacks what it takes.
        """
        arguments: list[str] = []
        deviations: list[str] = []
        for flag, *values in self.arguments(setting, model, shape):
            if flag in self.flags:
                arguments += [flag, *values]
            elif flag in self.needed:
                raise EngineError(f"{self.name}: this build has no {flag}; use a newer build of llama.cpp")
            else:
                deviations.append(f"this {self.name} has no {' '.join([flag, *values])}, which could not be pinned")
        return arguments, deviations

    @contextlib.contextmanager
    def serve(
        self, setting: Setting, model: ModelFile, draft: ModelFile | None, log_dir: Path, ready_timeout_s: float,
        request_timeout_s: float,
    ) -> Iterator[ToolServer]:  # fmt: skip
        """Start it with rounds of the suite's own shape; held until one is wanted."""
        if unfit := self.cannot(setting):
            raise EngineError(unfit)
        server = ToolServer(self, setting, model, log_dir, ready_timeout_s, request_timeout_s)
        try:
            server.start()
            yield server
        finally:
            server.close()

    def prompt_tokens(self, model: ModelFile, text: str, *, identical: bool) -> tuple[int, bool]:
        """Tokens of a prompt, as long as other engines make it of the same text, and whether they were counted or only guessed."""
        key = (str(model.path), text, identical)
        if key not in self._lengths:
            tokenize = self.program.with_name("llama-tokenize")
            count = functools.partial(_tokens, tokenize, model.path) if os.access(tokenize, os.X_OK) else _guess
            length = len(count(text)) if identical else usual_length(count, text)
            self._lengths[key] = (length, count is not _guess)
        return self._lengths[key]


def _tokens(tokenize: Path, model: Path, text: str) -> Sequence[int]:
    """Token ids as llama-tokenize gives them, the model's opening token among them."""
    command = [str(tokenize), "-m", str(model), "--ids", "--no-escape", "--log-disable", "-p", text]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TOKENIZE_S, stdin=subprocess.DEVNULL,
            env=environment(), check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"llama-tokenize cannot count the prompt's tokens: {one_line(str(error), 120)}") from None
    said = (done.stdout.strip().splitlines() or [""])[-1]
    try:
        found = json.loads(said) if done.returncode == 0 else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or any(count_of(token) is None for token in found):
        why = one_line(said or (done.stderr.strip().splitlines() or ["it said nothing"])[-1], 120)
        raise EngineError(
            f"llama-tokenize cannot count the prompt's tokens (exit code {done.returncode}): {why}; use another build of llama.cpp"
        )
    return found


def _guess(text: str) -> Sequence[int]:
    return range(-(-len(text) // _CHARACTERS_A_TOKEN))


class ToolServer:
    """A benchmark program that stands ready."""

    def __init__(
        self, tool: BenchTool, setting: Setting, model: ModelFile, log_dir: Path, ready_timeout_s: float, timeout_s: float
    ) -> None:  # fmt: skip
        self._tool, self._setting, self._model, self._log_dir = tool, setting, model, log_dir
        self._ready_timeout_s, self._timeout_s = ready_timeout_s, timeout_s
        self._held: Held | None = None
        self._shape: Shape | None = None
        self._steps = self._busy = 0
        self.slots = setting.server.parallel
        self.facts: dict[str, Any] = {}
        self.deviations: list[str] = []

    @property
    def pids(self) -> frozenset[int]:
        """The program that runs now and its guard."""
        return self._held.process.pids if self._held else frozenset()

    def start(self) -> None:
        """Start with rounds as the suite asks for them. Raises `EngineError` when it does not come up as asked."""
        request = self._setting.request
        if request.prompt_tokens is None:
            length, counted = self._tool.prompt_tokens(self._model, text_of(request), identical=request.identical)
        else:
            length, counted = request.prompt_tokens, True
        if not counted:
            self.deviations.append(
                f"{self._tool.name}: no llama-tokenize lies beside it: a prompt of {length} tokens is a guess"
            )
        ineffective = {
            f"temperature {request.temperature:g} has no effect: it samples nothing": request.temperature > 0,
            "prompt_text has no effect but by its length: it reads no text": request.prompt_text is not None,
            "identical has no effect: its prompts are random tokens": request.identical,
        }
        self.deviations += [f"{self._tool.name}: {what}" for what, asked in ineffective.items() if asked]
        says, deviations = self._tool.inquire(self._setting, self._model, self._ready_timeout_s)
        self.deviations += deviations
        self._get_ready(Shape(length, request.answer_tokens, self.slots))
        remarks = [self._tool.remark, *(str(r) for r in (self.facts.pop("remark", ""), says.pop("remark", "")) if r)]
        self.facts |= says | {"remark": "; ".join(remarks)}

    def prompts(self, text: str, count: int, first: int = 0, *, identical: bool = False) -> list[list[int]]:
        """Lists as long as such prompts are; the tokens themselves the program draws."""
        length, _ = self._tool.prompt_tokens(self._model, text, identical=identical)
        return [[0] * length for _ in range(count)]

    def prompts_of(self, length: int, count: int, *, shared: int = 0, identical: bool = False) -> list[list[int]]:
        """Lists so long; the tokens themselves the program draws."""
        return [[0] * length for _ in range(count)]

    def prepare(self, prompts: Sequence[Sequence[int]], answer_tokens: int) -> None:
        """Start it anew if its rounds are of another shape than these."""
        shape = Shape(len(prompts[0]), answer_tokens, self.slots)
        if shape != self._shape:
            self._get_ready(shape)

    def run_round(self, prompts: Sequence[Sequence[int]], answer_tokens: int, round_index: int = 0) -> Round:
        """Let it do one round."""
        if len(prompts) != self.slots or len({len(prompt) for prompt in prompts}) != 1:
            raise EngineError(
                f"{self._tool.name}: {len(prompts)} prompts; its rounds are of {self.slots} of one length: give as many"
            )
        self.prepare(prompts, answer_tokens)
        held, shape = self._started()
        start, end, heard = held.run_on(self._timeout_s)
        length_s, idle_s = end - start, start - held.since_mono
        prompt_s, decode_s = heard.prompt_s, length_s if heard.decode_s is None else heard.decode_s
        if prompt_s is not None:
            # The program's own clock went on while it was held, unless it was held before it began the prompt.
            begun_before = max(0.0, prompt_s - idle_s)
            prompt_s = min((begun_before, prompt_s), key=lambda s: abs(s + decode_s - length_s))
            apart_s = abs(prompt_s + decode_s - length_s)
            if apart_s > _APART_S + _APART_SHARE * length_s:
                raise EngineError(
                    f"{self._tool.name} says that its round took {prompt_s + decode_s:.2f} s, and it took {length_s:.2f} s: its times are "
                    "not to be relied on; use another build of llama.cpp"
                )
            self.facts["apart_ms"] = max(self.facts.get("apart_ms", 0.0), round(1000 * apart_s, 3))
        held.wait(self._timeout_s)
        prefills = prompt_s is not None
        self._steps += shape.answer_tokens + prefills
        self._busy += self.slots * (shape.answer_tokens + prefills)
        answer = RequestRecord(
            slot=0, round=round_index, sent_s=0.0, received_s=round(length_s, 6), prompt_n=shape.prompt_tokens if prefills else 0,
            cache_n=0, predicted_n=shape.answer_tokens, prompt_ms=None if prompt_s is None else round(1000 * prompt_s, 3),
            predicted_ms=round(1000 * decode_s, 3), stop_type="limit", counted_from=self._tool.name,
        )  # fmt: skip
        return Round(start, end, tuple(replace(answer, slot=slot) for slot in range(self.slots)))

    def run_closed_loop(
        self, prompts: Sequence[Sequence[int]], answer_tokens: int, *, stream: bool | None = None, exact: bool = True
    ) -> ClosedLoop:
        """There is none."""
        raise EngineError(f"{self._tool.name}: it answers no questions; use engine: llama-server or in-process")

    def counters(self) -> Counters | None:
        """Steps of the rounds so far, each of all sequences: so the program makes them."""
        return Counters(self._steps, self._busy)

    def _started(self) -> tuple[Held, Shape]:
        if self._held is None or self._shape is None:
            raise EngineError(f"{self._tool.name}: it does not run")
        return self._held, self._shape

    def _get_ready(self, shape: Shape) -> None:
        """Load, do one round of this shape that nobody measures, and hold."""
        self.close()
        tool, asked = self._tool, self._setting.server
        if shape.prompt_tokens + shape.answer_tokens > padded(asked.context_per_slot):
            raise EngineError(
                f"{tool.name}: a prompt of {shape.prompt_tokens} tokens and {shape.answer_tokens} of its answer do not fit "
                f"context_per_slot {asked.context_per_slot}; raise it to {padded(shape.prompt_tokens + shape.answer_tokens)}"
            )
        arguments, deviations = tool.command(self._setting, self._model, shape)
        self._held = Held(
            tool.name, [str(tool.program), *arguments], self._log_dir / f"{tool.name}-{time.monotonic_ns()}.log",
            lambda line: tool.heard(line, asked, shape),
        )  # fmt: skip
        first = self._held.wait(self._ready_timeout_s, while_loading=True)
        if not first.ends:
            self._held.run_on(self._timeout_s)
            self._held.wait(self._timeout_s)
        self._shape = shape
        self.deviations += [deviation for deviation in deviations if deviation not in self.deviations]
        in_use, unchecked = tool.in_force(asked, self._held.process.log_text())
        self.deviations += [deviation for deviation in unchecked if deviation not in self.deviations]
        remark = self.facts.pop("remark", None)
        self.facts |= {
            "arguments": _shortened(public(arguments, self._model, None)), "slots": self.slots,
            "context_per_slot": padded(asked.context_per_slot), **(first.says or {}),
            **in_use,
        }  # fmt: skip
        if remark:
            self.facts["remark"] = remark

    def close(self) -> None:
        """End the program and reap it. May be called twice."""
        if self._held is not None:
            self._held.close()
        self._held = self._shape = None


def _shortened(arguments: Sequence[str]) -> list[str]:
    """Arguments with lists that say one value over and over as that value and how often."""
    found = []
    for argument in arguments:
        values = argument.split(",")
        same = len(values) > 1 and len(set(values)) == 1
        found.append(f"{values[0]} ({len(values)} times)" if same else argument)
    return found


class Held:
    """A program that is held wherever a line says so, and goes on when it is told to.

    Attributes:
        since_mono: when the line had come at which it was held before it last went on.
    """

    def __init__(self, name: str, command: Sequence[str], log_path: Path, heard: Callable[[str], Heard | None]) -> None:
        self._name, self._heard = name, heard
        self._lines: queue.SimpleQueue[tuple[float, Heard] | None] = queue.SimpleQueue()
        self.since_mono = 0.0
        self._held_at: float | None = None
        reading, writing = os.pipe()
        try:
            self.process = GuardedProcess(command, log_path, environment(), output=writing)
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self._reader = threading.Thread(target=self._read, args=(reading, log_path), name="joules-lines", daemon=True)
        self._reader.start()

    def run_on(self, timeout_s: float) -> tuple[float, float, Heard]:
        """Let it go on until a round is over: when it was let go, when that line came, and what the line says.

        Raises:
            EngineError: it ended, said something that cannot be relied on, or said nothing in time.
        """
        if self._held_at is None:
            raise EngineError(f"{self._name}: it was not held")
        self.since_mono, self._held_at = self._held_at, None
        deadline = time.monotonic() + timeout_s
        start = time.monotonic()
        self._signal(signal.SIGCONT)
        while True:
            mono, heard = self._next(deadline, timeout_s, "in mid-round")
            if mono < start:
                # A round so short that it was over before the hold took effect is nobody's; and it was held once more at its end.
                self.since_mono = mono
                self._signal(signal.SIGCONT)
                continue
            if heard.holds:
                self._held_at = mono
            if heard.ends:
                return start, mono, heard

    def wait(self, timeout_s: float, *, while_loading: bool = False) -> Heard:
        """Until it is held. Raises like `run_on`."""
        deadline = time.monotonic() + timeout_s
        heard = Heard()
        while self._held_at is None:
            mono, heard = self._next(deadline, timeout_s, "while loading" if while_loading else "between two rounds")
            if heard.holds:
                self._held_at = mono
        return heard

    def _next(self, deadline: float, timeout_s: float, when: str) -> tuple[float, Heard]:
        try:
            found = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            limit = "ready_timeout_s" if when == "while loading" else "request_timeout_s"
            raise EngineError(
                f"{self._name} said nothing within {timeout_s:g} s {when}; ask for shorter answers, or raise {limit}; "
                f"its log ends: {self.process.log_tail() or '(empty)'}"
            ) from None
        if found is None:
            # Whoever asks again must hear it too.
            self._lines.put(None)
            how = self.process.how_it_ended()
            raise EngineError(f"{self._name} ended {when}: {how}; {next_step(how)}")
        if found[1].fault:
            raise EngineError(f"{self._name} gave {found[1].fault}; use another build of llama.cpp")
        return found

    def _read(self, reading: int, log_path: Path) -> None:
        """Hold it at the lines that say so, and keep the others as its log. A thread of its own: a hold must not wait."""
        pending = b""
        with open(reading, "rb", buffering=0) as source, log_path.open("ab", buffering=0) as log:
            while piece := source.read(_PIECE):
                mono = time.monotonic()
                *lines, pending = (pending + piece).split(b"\n")
                for line in lines:
                    heard = self._heard(line.decode("utf-8", errors="replace"))
                    if heard is None:
                        log.write(line + b"\n")
                        continue
                    if heard.holds:
                        self._signal(signal.SIGSTOP)
                    self._lines.put((mono, heard))
            log.write(pending)
        self._lines.put(None)

    def _signal(self, number: signal.Signals) -> None:
        # It may end, and be reaped by `close`, while it is asked whether it is there.
        with contextlib.suppress(ProcessLookupError, ValueError):
            if self.process.running():
                os.kill(self.process.pid, number)

    def close(self) -> None:
        """End the program and reap it. May be called twice."""
        # A program that is held does not see its end coming before it goes on.
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        self.process.stop()
        self._reader.join(timeout=5.0)


def threads_of(server: ServerSpec) -> str:
    """CPU threads as a flag's value."""
    return str(server.threads or machine.describe().threads)


_VALUES = re.compile(r"<([^>]+)>")


def takes(help_text: str, flag: str) -> frozenset[str]:
    """The values that the help offers for a flag: `-fa, --flash-attn <on|off|auto>`."""
    line = next((line for line in help_text.splitlines() if re.search(rf"(?:^|\s){re.escape(flag)}(?:,|\s)", line)), "")
    match = _VALUES.search(line)
    return frozenset(match[1].split("|")) if match else frozenset()
