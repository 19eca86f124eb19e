"""Settings of the machine in a window: held in one phase alone where a suite asks for it, and looked at in every window."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pytest_joules import gates, knobs
from pytest_joules.engines import InPhases, Round, Server
from pytest_joules.errors import UsageError
from pytest_joules.reading import Reading
from pytest_joules.records import Gate
from pytest_joules.suite import Setting
from pytest_joules.vitals.watch import Watch

SETTLE_S = 0.5
"""So long after a change of phase a clock may still read as it was: chips tell the mean over some time."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """One time during which settings of the decode phase were held, on the monotonic clock.

    Attributes:
        asked: when the first token of every request had arrived.
        held: when the settings were made.
        lifted: when the last answer had arrived, and they began to be put back.
        free: when they were.
        amiss: what read otherwise than it was set, at its end.
        caps: what is not to be exceeded between `held` and `lifted`.
    """

    asked: float
    held: float
    lifted: float
    free: float
    amiss: tuple[str, ...]
    caps: tuple[knobs.Cap, ...]

    def times(self, start_mono: float) -> dict[str, float]:
        """The instants in seconds from a moment, for the record."""
        named = {"first_tokens_s": self.asked, "held_s": self.held, "lifting_s": self.lifted, "lifted_s": self.free}
        return {name: round(mono - start_mono, 6) for name, mono in named.items()}


class PhasedServer:
    """A server whose rounds have settings held from the last first token to the last answer. Everything else is the server's own."""

    def __init__(self, server: Server, wanted: Mapping[str, Any]) -> None:
        if not isinstance(server, InPhases):
            raise UsageError(
                f"{', '.join(wanted)}: held in decode alone, and this engine does not tell when decode begins; take llama-server"
            )
        self._server: InPhases = server
        self._wanted = dict(wanted)
        self.stretches: list[Stretch] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def run_round(self, prompts: Sequence[Sequence[int]], answer_tokens: int, round_index: int = 0) -> Round:
        """As the server's own."""
        switch = _Switch(self._wanted)
        try:
            found = self._server.run_round_in_phases(prompts, answer_tokens, round_index, switch.decode)
        finally:
            switch.end()
        self.stretches += switch.done()
        return found


def phased(server: Server, wanted: Mapping[str, Any]) -> Server:
    """The server with these settings held in the decode phase of its rounds alone.

    Raises:
        UsageError: it does not tell when that begins.
    """
    return cast("Server", PhasedServer(server, wanted))


class _Switch:
    """Makes settings when told that decode has begun, on a thread of its own, so that nobody who reads answers waits for it."""

    def __init__(self, wanted: Mapping[str, Any]) -> None:
        self._stack = contextlib.ExitStack()
        self._told = threading.Event()
        self._asked: float | None = None
        self._held: float | None = None
        self._stretches: list[Stretch] = []
        self._error: Exception | None = None
        # Asked before the round, so that only writing is left to do in it.
        known = knobs.knobs()
        self._blocks = [known[name].held(value) for name, value in wanted.items()]
        self._names = frozenset(wanted)
        self._thread = threading.Thread(target=self._run, name="joules-settings", daemon=True)
        self._thread.start()

    def decode(self) -> None:
        """Every request has its first token."""
        self._asked = time.monotonic()
        self._told.set()

    def end(self) -> None:
        """The round is over, or has failed: put back what was made."""
        self._told.set()
        self._thread.join()
        lifted = time.monotonic()
        mine = [one for one in knobs.active() if one.knob in self._names]
        amiss = tuple(text for one in mine for text in one.amiss())
        self._stack.close()
        if self._asked is not None and self._held is not None:
            caps = tuple(cap for one in mine for cap in one.caps)
            self._stretches.append(Stretch(self._asked, self._held, lifted, time.monotonic(), amiss, caps))

    def done(self) -> list[Stretch]:
        """What was held. Raises what went wrong on the way."""
        if self._error is not None:
            raise self._error
        return self._stretches

    def _run(self) -> None:
        self._told.wait()
        if self._asked is None:
            return
        try:
            for block in self._blocks:
                self._stack.enter_context(block)
            self._held = time.monotonic()
        except Exception as error:  # told by `done`, on the thread that measures
            self._error = error


def check(settings: Sequence[Setting]) -> None:
    """Ask the machine about everything that a suite wants set, before anything is measured.

    Raises:
        UsageError: a value is out of range, or held in decode alone where no stream tells when that begins.
        Unmeasured: this machine does not have a setting, or this user may not change it.
    """
    for setting in settings:
        if (named := ", ".join(knobs.in_decode(setting.knobs))) and (
            not setting.request.stream or setting.request.closed_loop
        ):
            raise UsageError(
                f"knob {named}: held in decode alone; only streamed rounds tell when it begins: set request.stream: true, "
                "without closed_loop, in which some requests decode while others are read"
            )
    knobs.check([setting.knobs for setting in settings])


def setting_gates(setting: Setting, server: Server, watch: Watch, reading: Reading, basis: str) -> list[Gate]:
    """Whether settings still read as they were set, whether the machine kept to them, and whether the meter can see them.

    Args:
        basis: of the meter.
    """
    if not setting.knobs:
        return []
    held = {one.knob: one for one in knobs.active()}
    start, end = reading.start_mono, reading.end_mono
    amiss: list[str] = []
    caps: list[tuple[str, float | None, float | None, str]] = []
    for name in knobs.throughout(setting.knobs):
        if name not in held:
            caps.append((f"knob {name}", None, None, ""))
            continue
        amiss += held[name].amiss()
        highest = {vital.name: vital.highest for vital in watch.between(start, end)}
        caps += [(cap.of, _most(cap, highest, reading), cap.at_most, cap.unit) for cap in held[name].caps]
    if knobs.in_decode(setting.knobs):
        stretches = stretches_of(server, start, end)
        amiss += [text for stretch in stretches for text in stretch.amiss]
        for cap in dict.fromkeys(cap for stretch in stretches for cap in stretch.caps):
            seen = [
                clock
                for one in stretches
                for clock in watch.readings(cap.of, one.held + SETTLE_S, one.lifted)
                if cap.kind == "vital"
            ]
            caps.append((cap.of, max(seen, default=None), cap.at_most, cap.unit))
        if not stretches:
            caps.append(("the decode phase", None, None, ""))
    made = knobs.in_decode(setting.knobs) or any(one.changes for one in held.values())
    return [
        gates.settings_in_force(amiss),
        *([gates.cap_held(caps)] if caps else []),
        *([gates.setting_seen(basis)] if made else []),
    ]


def stretches_of(server: Server, start_mono: float, end_mono: float) -> list[Stretch]:
    """When settings were held in decode alone, within a window."""
    every = server.stretches if isinstance(server, PhasedServer) else []
    return [stretch for stretch in every if start_mono <= stretch.asked <= end_mono]


def switches(server: Server, start_mono: float, end_mono: float) -> dict[str, Any]:
    """The instants of switching, in seconds from the window's start; nothing where nothing was switched."""
    times = [stretch.times(start_mono) for stretch in stretches_of(server, start_mono, end_mono)]
    return {"switches": times} if times else {}


def _most(cap: knobs.Cap, highest: Mapping[str, float], reading: Reading) -> float | None:
    if cap.kind == "vital":
        return highest.get(cap.of)
    powers = [part.energy_j for part in reading.parts if part.rail.startswith(f"{cap.of}.")]
    return powers[0] / reading.window_s if len(powers) == 1 and powers[0] is not None else None
