"""How the machine fares while it is measured: temperature, clocks, throttling, power limit, neighbours, swap, battery.

A platform is one module of this package with

    NAME: str
    def find() -> Sequence[Vital]

`find` returns what can be read on this machine, and nothing where the platform is missing; it wakes no sleeping card.
Names begin as those of the rails do, so that `nvml.gpu0` stands for the same card here and among the meters.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Protocol

from pytest_joules import discovery
from pytest_joules.records import VitalSummary

ENTRY_POINTS = "pytest_joules.vitals"

What = Literal["temperature", "clock", "throttle", "power_limit", "programs", "swap", "memory", "charging"]
Kind = Literal["gauge", "counter", "words", "programs"]

Value = float | frozenset[str] | Mapping[int, str]
"""What one reading gives: a number, the words that are true just now, or program names by process id."""

POWER_LIMIT = "power limit"
"""How every word begins that means: slowed down by a limit on power, and not by heat."""

BOUNDS: Mapping[What, tuple[float, float]] = {
    "temperature": (-40.0, 150.0),
    "clock": (0.0, 20_000.0),
    "power_limit": (0.1, 100_000.0),
    "charging": (0.0, 1.0),
}
"""Lowest and highest believable number, in the unit of the vital; anything outside is no reading."""

STEADY_READINGS = 6
"""From this many readings on, a rise is taken between thirds of the stretch, so that single readings do not decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vital:
    """One thing that is looked at beside power.

    Attributes:
        name: unique, for example `nvml.gpu0.temperature`.
        what: what it tells of.
        kind: `gauge` is a number as of now, `counter` one that only rises, `words` the words that are true now,
            `programs` the programs at work by process id.
        unit: of the numbers; empty for words and programs.
        source: the exact file, call or field that is read.
        read: the reading just now, or `None` when there is none and nothing is wrong, as with a sleeping card. It
            may raise anything. Missing where the readings are handed to `Watch.feed` by somebody else.
        word: what it means that a counter rose, for one that tells of throttling.
        every: read in one round of this many only, for what costs more than a file.
        close: lets go of what the reads hold. May be called twice.
    """

    name: str
    what: What
    kind: Kind
    unit: str
    source: str
    read: Callable[[], Value | None] | None = None
    word: str = ""
    every: int = 1
    close: Callable[[], None] | None = None


class Platform(Protocol):
    """What a module of this package offers."""

    def find(self) -> Sequence[Vital]:
        """What can be read on this machine."""
        ...


def platforms() -> dict[str, Platform | discovery.Broken]:
    """Every known platform by name: the modules of this package, then the installed entry points."""
    return discovery.members(__name__, __path__, ENTRY_POINTS, offers="find")


def believable(vital: Vital, value: Value) -> bool:
    """Whether a reading can be true of such a vital."""
    if not isinstance(value, int | float):
        return True
    low, high = BOUNDS.get(vital.what, (0.0, math.inf))
    return math.isfinite(value) and low <= value <= high


def summary(vital: Vital, values: Sequence[Value]) -> VitalSummary:
    """What the readings of a stretch, one or more in the order of time, come to."""
    numbers = [float(value) if isinstance(value, int | float) else float(bool(value)) for value in values]
    return VitalSummary(
        name=vital.name,
        what=vital.what,
        kind=vital.kind,
        unit=vital.unit,
        source=vital.source,
        readings=len(numbers),
        first=numbers[0],
        last=numbers[-1],
        lowest=min(numbers),
        highest=max(numbers),
        mean=statistics.fmean(numbers),
        increase=increase(numbers) if vital.kind == "counter" else None,
        seen=tuple(dict.fromkeys(word for value in values for word in sorted(words_of(value)))),
    )


def words_of(value: Value) -> Iterable[str]:
    """The words or program names of a reading; a number has none."""
    if isinstance(value, Mapping):
        return value.values()
    return () if isinstance(value, int | float) else value


def increase(numbers: Sequence[float]) -> float | None:
    """By how much a counter rose from the first reading to the last; `None` with less than two."""
    if len(numbers) < 2:
        return None
    return sum(max(0.0, later - sooner) for sooner, later in pairwise(numbers))


def rise(numbers: Sequence[float]) -> float | None:
    """By how much a number is higher at the end of a stretch than at its start; `None` with less than two.

    With `STEADY_READINGS` or more it is the difference between the medians of the last and the first third, times 3/2: on
    a straight line those lie two thirds of the stretch apart. A chip jumps by several kelvin within the second in which
    work begins or ends, and such a jump says nothing of whether it was warm through.
    """
    if len(numbers) < 2:
        return None
    if len(numbers) < STEADY_READINGS:
        return numbers[-1] - numbers[0]
    third = len(numbers) // 3
    return 1.5 * (statistics.median(numbers[-third:]) - statistics.median(numbers[:third]))
