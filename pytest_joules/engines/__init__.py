"""What runs the model: the interface, and how engines are found.

An engine is one module of this package (or an entry point in the group `pytest_joules.engines`) with

    NAME: str                                    what `engine:` in a suite calls it
    def find(where: str | None) -> Engine        `where` is the value of --joules-server, when given
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from pytest_joules import discovery
from pytest_joules.errors import UsageError
from pytest_joules.models import ModelFile
from pytest_joules.records import RequestRecord
from pytest_joules.suite import Setting
from pytest_joules.words import nearest

ENTRY_POINTS = "pytest_joules.engines"

Part = Literal["load", "prefill", "decode", "sampling", "detokenise", "http"]
"""What a window of an engine can hold: reading the model, computing prompts, computing answers, choosing tokens, spelling them,
and what it takes to ask and to be answered."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Running totals of a server.

    Attributes:
        decode_steps: decode calls so far.
        busy_slots: slots busy, summed over those calls.
    """

    decode_steps: float
    busy_slots: float


@dataclass(frozen=True, slots=True)
class Round:
    """N requests released together and all their answers.

    Attributes:
        start_mono: just before the first request was sent.
        end_mono: when the last answer had been received.
        answers: one for each request, times relative to `start_mono`.
    """

    start_mono: float
    end_mono: float
    answers: tuple[RequestRecord, ...]

    @property
    def release_spread_s(self) -> float:
        """Seconds from the first request sent to the last of those that were to be sent together: the first one of each slot."""
        first: dict[int, float] = {}
        for answer in self.answers:
            first[answer.slot] = min(answer.sent_s, first.get(answer.slot, answer.sent_s))
        return max(first.values()) - min(first.values()) if first else 0.0


@dataclass(frozen=True, slots=True)
class ClosedLoop(Round):
    """Requests of which N were in flight at any time, the next one sent the moment one was answered, until all were answered.

    `answers` are in the order of the prompts.

    Attributes:
        drain_s: how long before `end_mono` the first of the N stood idle with nothing left to send. The batch is no longer
            full from there on.
        exact: every answer was to be exactly as long as asked; otherwise that was the most, and the model could end earlier.
        texts: what was answered, in the order of the prompts.
    """

    drain_s: float
    exact: bool
    texts: tuple[str, ...]


class Server(Protocol):
    """A model ready to answer, started for one condition."""

    @property
    def slots(self) -> int:
        """Requests served at once."""
        ...

    @property
    def facts(self) -> Mapping[str, Any]:
        """What is in force: flags, offloaded layers, context; for the record. `remark` is for the note's reader."""
        ...

    @property
    def deviations(self) -> Sequence[str]:
        """What was asked for and could not be had or pinned."""
        ...

    @property
    def pids(self) -> frozenset[int] | None:
        """Processes that belong to it; `None` where they are not known, and nothing can be said of other programs' load."""
        ...

    def prompts(self, text: str, count: int, first: int = 0, *, identical: bool = False) -> list[list[int]]:
        """`count` prompts as token ids, equally long; `first` numbers them, so that later ones are new."""
        ...

    def run_round(self, prompts: Sequence[Sequence[int]], answer_tokens: int, round_index: int = 0) -> Round:
        """Release the requests at one instant and wait for all answers. Raises `EngineError` when any of them fails."""
        ...

    def run_closed_loop(
        self, prompts: Sequence[Sequence[int]], answer_tokens: int, *, stream: bool | None = None, exact: bool = True
    ) -> ClosedLoop:
        """Keep `slots` requests in flight until all prompts are answered. Raises `EngineError` when any of them fails.

        Args:
            answer_tokens: length of each answer; the most it may have unless `exact`.
            stream: have the tokens sent one by one; `None` does as the setting says.
            exact: the model cannot end an answer by itself.
        """
        ...

    def counters(self) -> Counters | None:
        """Running totals, or `None` when the engine does not say."""
        ...


@runtime_checkable
class InPhases(Protocol):
    """A server that tells during a round when all its prompts have been read."""

    def run_round_in_phases(
        self, prompts: Sequence[Sequence[int]], answer_tokens: int, round_index: int, decoding: Callable[[], None]
    ) -> Round:
        """As `run_round`, with streamed answers; `decoding` is called once, when the first token of every request has arrived.

        It is called on the thread that reads the answers, and must return at once.
        """
        ...


@runtime_checkable
class Prepared(Protocol):
    """A server that must know what a round will be before it is asked for one, since it can only get ready outside a window."""

    def prepare(self, prompts: Sequence[Sequence[int]], answer_tokens: int) -> None:
        """Get ready for rounds of such prompts and answers. Raises `EngineError` when it cannot."""
        ...


@runtime_checkable
class ToLength(Protocol):
    """A server that can be given prompts of a stated length in tokens."""

    def prompts_of(self, length: int, count: int, *, shared: int = 0, identical: bool = False) -> list[list[int]]:
        """`count` prompts of exactly `length` tokens, of which the first `shared` are the same in all, and no others unless `identical`."""
        ...


@runtime_checkable
class Templated(Protocol):
    """A server that knows how its model was taught to be asked."""

    @property
    def in_tokens(self) -> bool:
        """Whether `chat` gives token ids; else characters, of which only the server knows how many tokens they are."""
        ...

    def chat(self, text: str) -> list[int]:
        """A prompt in which a user says `text` and the model is to answer, by the model's own chat template.

        Raises `EngineError` when the model has none that can be applied.
        """
        ...


class Engine(Protocol):
    """A program or library that can serve a model on this machine."""

    name: str

    def facts(self) -> Mapping[str, Any]:
        """Build, commit and digest of the program, for the record; no paths. `includes` lists each `Part` that its windows hold."""
        ...

    def serve(self, setting: Setting, model: ModelFile, draft: ModelFile | None, log_dir: Path, ready_timeout_s: float,
              request_timeout_s: float) -> AbstractContextManager[Server]:  # fmt: skip
        """Start it for one condition. Raises `EngineError` when it does not come up as asked."""
        ...


@runtime_checkable
class Limited(Protocol):
    """An engine that cannot run every setting."""

    def cannot(self, setting: Setting) -> str:
        """Why it is not made for a setting, and what to do; empty when it is. Nothing is started to find out."""
        ...


@runtime_checkable
class Remote(Protocol):
    """An engine whose server has the models, so that no file of them need be on this machine."""

    def unseen_model(self, name: str, form: str | None) -> ModelFile:
        """What is known of a model of that name without its file."""
        ...


def cannot(engine: Engine, setting: Setting) -> str:
    """Why an engine is not made for a setting; empty when it is."""
    return engine.cannot(setting) if isinstance(engine, Limited) else ""


def unseen_model(engine: Engine, name: str, form: str | None) -> ModelFile | None:
    """What is known of a model of which the engine has the file; `None` where it must be given one."""
    return engine.unseen_model(name, form) if isinstance(engine, Remote) else None


def engines() -> dict[str, Any]:
    """Every known engine by name: the modules of this package, then the installed entry points."""
    return discovery.members(__name__, __path__, ENTRY_POINTS, offers="find")


def where(name: str, given: Sequence[str]) -> str | None:
    """The program or address that an engine is to use: the last one given for it by name, else the last one given for all.

    Args:
        given: `WHERE` or `ENGINE=WHERE`. What stands before the sign and is no engine belongs to the path.
    """
    known = engines()
    of: dict[str, str] = {}
    for one in given:
        engine, sign, rest = one.partition("=")
        named = bool(sign) and engine in known
        of[engine if named else ""] = rest if named else one
    return of.get(name, of.get(""))


def find(name: str, where: str | None = None) -> Engine:
    """The engine of a suite.

    Raises:
        UsageError: there is no engine of that name.
        Unmeasured: it is not on this machine.
    """
    known = engines()
    if name not in known:
        raise UsageError(f"there is no engine {name!r}{nearest(name, known)}; known: {', '.join(sorted(known))}")
    if isinstance(known[name], discovery.Broken):
        raise UsageError(f"engine {name}: it cannot be loaded: {known[name].cause}")
    engine: Engine = known[name].find(where)
    return engine
