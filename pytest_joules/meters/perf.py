"""RAPL through the kernel's perf events, for machines where the powercap files are root's alone.

`perf stat -a -I MS -x,` prints for each interval the joules per event, summed over the packages; the kernel's `power` PMU
sees to the wraps of the counters (arch/x86/events/rapl.c). A line is `seconds,value,unit,event,...`, the seconds counted from
the start on the monotonic clock, per the man page of perf-stat; where an event gives nothing the value reads
`<not supported>` or `<not counted>`. Joules are printed to the hundredth; over the interval's own length they are its mean
power.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_joules.errors import MeterAbsent, MeterError
from pytest_joules.meters import Meter, rapl
from pytest_joules.meters._helper import Helper, ask
from pytest_joules.meters._sysfs import entries, no_argument
from pytest_joules.places import root
from pytest_joules.records import Rail, Sample, Scope

NAME = "perf"
SHORTEST_INTERVAL_MS = 100
"""perf warns of its own load below this."""

FIRST_LINE_S = 3.0
VERSION_S = 1.0
UNIT = "Joules"
PERMISSION = "allow it with 'sudo sysctl kernel.perf_event_paranoid=-1' or give perf the capability CAP_PERFMON"

_EVENTS: dict[str, tuple[Scope, str]] = {
    "energy-pkg": ("chip", "cpu"),
    "energy-ram": ("chip", "dram"),
    "energy-psys": ("board", "platform"),
}


@dataclass(frozen=True, slots=True)
class Interval:
    """One line: when the interval ended, of which event it is, and its joules, or `None` where it was not counted."""

    end_s: float
    event: str
    joules: float | None


def parse(line: bytes) -> Interval | None:
    """One line of `perf stat -I -x,`, or `None` when it is anything else."""
    fields = [part.strip() for part in line.decode("utf-8", errors="replace").split(",")]
    if len(fields) < 4:
        return None
    event = next((name for name in _EVENTS if name in fields[3].split("/")), None)
    end_s = _number(fields[0])
    if event is None or end_s is None:
        return None
    joules = _number(fields[1]) if fields[2] == UNIT else None
    return Interval(end_s, event, joules)


def _number(text: str) -> float | None:
    """A finite number that is not negative, or `None`."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


@dataclass(slots=True)
class Decoder:
    """Turns lines into the mean power of their intervals, dated by perf's own clock.

    Its zero is taken from the first line's arrival, so that a late wake-up of this process misdates nothing.
    """

    _zero_mono: float | None = None
    _ended_s: dict[str, float] = field(default_factory=dict)

    def feed(self, text: bytes, mono: float) -> list[Sample]:
        """The sample of a line; not a number where the interval was not counted."""
        interval = parse(text)
        if interval is None:
            return []
        if self._zero_mono is None:
            self._zero_mono = mono - interval.end_s
        length_s = interval.end_s - self._ended_s.get(interval.event, 0.0)
        self._ended_s[interval.event] = interval.end_s
        power_w = math.nan if interval.joules is None or length_s <= 0 else interval.joules / length_s
        return [Sample(f"{NAME}.{interval.event}", self._zero_mono + interval.end_s, power_w)]


class PerfReader:
    """A running `perf stat`."""

    def __init__(self, helper: Helper) -> None:
        self.interval_s: float | None = None
        self._helper = helper
        self._decoder = Decoder()

    def read(self) -> Sequence[Sample]:
        """Wait for the next interval. Raises `MeterError` when the program has ended."""
        return [sample for line in self._helper.lines() for sample in self._decoder.feed(line.text, line.mono)]

    def close(self) -> None:
        """End the program."""
        self._helper.close()


class PerfMeter:
    """The packages and their memory, and the platform where the kernel counts it."""

    def __init__(self, program: str, events: Sequence[str], notes: Sequence[str]) -> None:
        self.name = NAME
        self.rails = tuple(_rail(event) for event in events)
        self.notes = tuple(notes)
        self._program, self._events = program, tuple(events)

    def open(self, rate_hz: float) -> PerfReader:
        """Start the program at `rate_hz` intervals a second, ten at most."""
        return PerfReader(_start(self._program, self._events, max(SHORTEST_INTERVAL_MS, round(1000 / rate_hz))))


def find(argument: str | None = None) -> Sequence[Meter]:
    """The meter of this machine, where `rapl` cannot read the same counters with less machinery.

    Raises:
        MeterError: the kernel has no such events, there is no perf, or it may not count.
    """
    no_argument(NAME, argument)
    folder = root() / "bus" / "event_source" / "devices" / "power" / "events"
    known = {path.name for path in entries(folder, r"energy-\w+")}
    events = [event for event in _EVENTS if event in known]
    if "energy-pkg" not in events:
        raise MeterAbsent(f"meter {NAME}: the kernel has no event energy-pkg in {folder}")
    if _readable_directly():
        raise MeterAbsent(f"meter {NAME}: the same counters can be read as files", f"use --joules-meter {rapl.NAME}")
    program = shutil.which("perf")
    if program is None:
        raise MeterError(f"meter {NAME}: there is no program 'perf' on PATH", "install linux-tools or perf")
    try:
        with contextlib.closing(_start(program, events, SHORTEST_INTERVAL_MS)) as helper:
            counted = _probe(helper, events)
    except MeterError as error:
        raise MeterError(f"meter {NAME}: {error}", PERMISSION) from error
    notes = [ask([program, "--version"], VERSION_S) or "perf of unknown version"]
    notes += [f"{event} is listed by the kernel and not counted here" for event in events if event not in counted]
    if "energy-ram" not in counted:
        notes.append("no energy-ram: memory power is not in the chip figure")
    return [PerfMeter(program, counted, notes)]


def _readable_directly() -> bool:
    try:
        return bool(rapl.find())
    except MeterError:
        return False


def _start(program: str, events: Sequence[str], interval_ms: int) -> Helper:
    named = ",".join(f"power/{event}/" for event in events)
    return Helper([program, "stat", "-a", "-x,", "--log-fd", "1", "-I", str(interval_ms), "-e", named])


def _probe(helper: Helper, events: Sequence[str]) -> list[str]:
    """The events that count anything in the first interval.

    Raises:
        MeterError: the package is not among them, as in many virtual machines.
    """
    seen: dict[str, float | None] = {}
    deadline = time.monotonic() + FIRST_LINE_S
    while set(events) - set(seen):
        lines = helper.lines(deadline - time.monotonic())
        if not lines:
            break
        for line in lines:
            interval = parse(line.text)
            if interval is not None:
                seen[interval.event] = interval.joules
    counted = [event for event in events if seen.get(event)]
    if "energy-pkg" not in counted:
        raise MeterError("energy-pkg counts nothing here")
    return counted


def _rail(event: str) -> Rail:
    scope, part = _EVENTS[event]
    return Rail(
        name=f"{NAME}.{event}",
        scope=scope,
        covers=(part,),
        kind="interval_mean",
        basis="measured",
        unit="J per interval",
        source=f"perf stat -a -e power/{event}/",
    )
