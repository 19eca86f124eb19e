"""What a campaign needs from outside: servers, the meter, the store, and somebody who watches."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from pytest_joules.engines import Engine, Server
from pytest_joules.meters.sampler import Power
from pytest_joules.models import ModelFile
from pytest_joules.records import Basis, Window
from pytest_joules.schedule import Step
from pytest_joules.store import Interrupted, Store
from pytest_joules.suite import Setting, Suite
from pytest_joules.vitals.watch import Watch
from pytest_joules.workload.prompts import text_of
from pytest_joules.workload.questions import QuestionSet


class ServerFactory(Protocol):
    """What starts a server for a setting."""

    def __call__(
        self, setting: Setting, *, ready_timeout_s: float = ..., request_timeout_s: float = ...
    ) -> AbstractContextManager[Server]:
        """A server that is stopped and reaped at the end of the block."""
        ...


class Warm(Protocol):
    """What runs a warm-up; `warm` is the one that comes with the package."""

    def __call__(
        self, server: Server, seconds: float = ..., *, tokens: int | None = ..., prompts: Sequence[Sequence[int]] | None = ...,
        answer_tokens: int = ...,
    ) -> float:  # fmt: skip
        """Warm up and return the seconds it took."""
        ...


class Progress(Protocol):
    """Who watches. Called from the measuring thread; must return at once."""

    def begin(self, suite: Suite, steps: Sequence[Step], done: int = 0) -> None:
        """The plan, before anything runs, and how many of its steps an earlier attempt has done."""
        ...

    def say(self, text: str) -> None:
        """Something a person should know now."""
        ...

    def doing(self, index: int, step: Step, what: str, power_w: float | None) -> None:
        """What is going on in the window of this index."""
        ...

    def done(self, index: int, window: Window) -> None:
        """A window has closed."""
        ...

    def end(self) -> None:
        """Nothing more will come."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Everything a campaign needs beside the suite.

    Attributes:
        model_server: starts a server for a setting.
        warm: runs the warm-up of a setting on its server.
        power: the meter, being sampled.
        models: model file by (name, format).
        engines: engine by name.
        provenance: what git showed of the predictions.
        deviations: what is already known to differ from what the suite asks.
        watch: what is looked at beside power; started and stopped by the campaign.
        resume: the interrupted run to go on with.
        notices: what the person should know before it begins.
        questions: question set by (name, format).
    """

    model_server: ServerFactory
    warm: Warm
    power: Power
    store: Store
    machine_slug: str
    models: Mapping[tuple[str, str | None], ModelFile]
    engines: Mapping[str, Engine]
    progress: Progress
    provenance: Mapping[str, Any] = field(default_factory=dict)
    deviations: tuple[str, ...] = ()
    watch: Watch = field(default_factory=Watch)
    resume: Interrupted | None = None
    notices: tuple[str, ...] = ()
    questions: Mapping[tuple[str, str], QuestionSet] = field(default_factory=dict)

    @property
    def basis(self) -> Basis:
        """Where the energy comes from: with random weights it is no model's that exists, whatever the meter."""
        return "synthetic" if any(model.synthetic for model in self.models.values()) else self.power.chosen.basis


def warm(
    server: Server,
    seconds: float = 30.0,
    *,
    tokens: int | None = None,
    prompts: Sequence[Sequence[int]] | None = None,
    answer_tokens: int = 64,
) -> float:
    """Work at the server's own batch until `seconds` have passed, or one round of `tokens`. Returns the seconds it took.

    It is fixed by the suite and never ends early because things look stable: two runs must warm up alike.
    """
    batch = prompts or server.prompts(text_of("short"), server.slots)
    start = time.monotonic()
    if tokens is not None:
        server.run_round(batch, tokens)
    else:
        while time.monotonic() - start < seconds:
            server.run_round(batch, answer_tokens)
    return time.monotonic() - start
