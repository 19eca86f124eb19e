"""Any program that prints samples: `--joules-meter "command:PROGRAM ARGS"`.

One JSON object a line, `power_w` in watts or `energy_j` in joules since some origin. Optional: `rail`, a name;
`mono`, seconds of this machine's monotonic clock (without it the time the line arrived is taken); and what is
known of the rail, on its first line: `scope`, `covers`, `kind`, `averaging_s`, `refresh_s`, `limit_w`, `wrap_j`,
`basis`. Until the first sample whatever else is printed is passed over. From then on a line that is none, but for a
blank one, counts as a reading that failed. A program that holds its lines back in a buffer gives them wrong times:
each has to be flushed.
"""

from __future__ import annotations

import contextlib
import json
import math
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pytest_joules.errors import MeterAbsent, MeterError
from pytest_joules.meters._helper import Helper, Line
from pytest_joules.records import Basis, Kind, Rail, Sample, Scope
from pytest_joules.words import decoded, nearest, one_line

NAME = "command"

LEARN_S, SETTLE_S = 10.0, 1.0
"""How long a program may take until its first sample; how long after that every rail must have spoken."""

CLOCK_BEHIND_S, CLOCK_AHEAD_S = 60.0, 0.5
"""A `mono` further from its arrival than this is of another clock."""


def parse(text: str | bytes) -> dict[str, Any]:
    """The sample of a line. A negative value is one, and judged where the others are.

    Raises:
        ValueError: the line holds none, with the reason.
    """
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("it is no JSON") from None
    if not isinstance(record, dict):
        raise ValueError("it is no JSON object")
    keys = [key for key in ("power_w", "energy_j") if key in record]
    if len(keys) != 1:
        raise ValueError("it has both power_w and energy_j" if keys else "it has neither power_w nor energy_j")
    value = record[keys[0]]
    if not _is_number(value):
        raise ValueError(f"{keys[0]} is {json.dumps(value)}, which is no number")
    return record


def rail_of(record: Mapping[str, Any], meter: str, printed_by: str) -> Rail:
    """The rail that a sample declares.

    Args:
        record: as `parse` gives it.
        meter: name of the meter, the first part of the rail's name.
        printed_by: what the sample comes from, for people.

    Raises:
        MeterError: what it says of the rail cannot be right.
    """
    key = "energy_j" if "energy_j" in record else "power_w"

    def one_of(name: str, known: Sequence[str], default: str) -> Any:
        value = record.get(name, default)
        if value not in known:
            raise MeterError(
                f"{printed_by}: {name} {value!r}{nearest(str(value), known)}", f"known are {', '.join(known)}"
            )
        return value

    def positive(name: str) -> float | None:
        value = record.get(name)
        if value is not None and not (_is_number(value) and value > 0):
            raise MeterError(f"{printed_by}: {name} must be a number over 0, not {value!r}")
        return None if value is None else float(value)

    scope = one_of("scope", get_args(Scope), "wall")
    covers = record.get("covers", [scope] if scope == "wall" else [])
    if not isinstance(covers, list) or not covers or not all(isinstance(part, str) for part in covers):
        raise MeterError(
            f"{printed_by}: scope {scope} without the parts it covers",
            'print them, for example "covers": ["cpu", "dram"]',
        )
    kinds = ["counter"] if key == "energy_j" else [kind for kind in get_args(Kind) if kind != "counter"]
    kind = one_of("kind", kinds, kinds[0])
    averaging_s = positive("averaging_s")
    if kind == "moving_average" and averaging_s is None:
        raise MeterError(f"{printed_by}: a moving average needs the seconds it is taken over", 'print "averaging_s"')
    return Rail(
        name=rail_name(record, meter),
        scope=scope,
        covers=tuple(covers),
        kind=kind,
        basis=one_of("basis", get_args(Basis), "measured"),
        unit="J" if key == "energy_j" else "W",
        source=f"{key} printed by {printed_by}",
        averaging_s=averaging_s,
        refresh_s=positive("refresh_s"),
        limit_w=positive("limit_w"),
        wrap_j=positive("wrap_j"),
    )


def rail_name(record: Mapping[str, Any], meter: str) -> str:
    """`meter.rail`, or `meter.power` for a program with a single unnamed rail."""
    return f"{meter}.{record.get('rail', 'power')}"


def sample_of(record: Mapping[str, Any], meter: str, arrived_mono: float) -> Sample:
    """The sample, at its own time when it has one.

    Raises:
        MeterError: its `mono` is not of this machine's monotonic clock.
    """
    mono = record.get("mono", arrived_mono)
    if not _is_number(mono) or not -CLOCK_BEHIND_S <= mono - arrived_mono <= CLOCK_AHEAD_S:
        raise MeterError(
            f"a sample with mono {mono!r} arrived at {arrived_mono:.1f} s of this machine's monotonic clock: another clock",
            "leave mono out, and the time of arrival is taken",
        )
    return Sample(rail_name(record, meter), float(mono), float(record.get("power_w", record.get("energy_j"))))


class CommandReader:
    """Reads what a program prints. `read` waits for its next line.

    After the first sample, a line that is none is a reading that failed: NaN for the rail it names, or for every rail where
    it names none.
    """

    interval_s: float | None = None

    def __init__(self, argv: Sequence[str], rails: frozenset[str]) -> None:
        self._rails = rails
        self._begun = False
        self._helper = Helper(argv)

    def read(self) -> Sequence[Sample]:
        """The samples of the lines that came.

        Raises:
            MeterError: the program ended, or prints a rail it did not print at first.
        """
        samples = []
        for line in self._helper.lines():
            if not line.text.strip():
                continue
            try:
                record = parse(line.text)
            except ValueError:
                # What stands above the first sample is a heading.
                samples += [Sample(rail, line.mono, math.nan) for rail in self._meant(line.text) if self._begun]
                continue
            self._begun = True
            sample = sample_of(record, NAME, line.mono)
            if sample.rail not in self._rails:
                raise MeterError(
                    f"meter {NAME}: the rail {sample.rail} appears only now", "print every rail from the start"
                )
            samples.append(sample)
        return samples

    def _meant(self, text: bytes) -> frozenset[str]:
        """The rails that a line which is no sample may have been about."""
        try:
            named = rail_name(json.loads(text), NAME)
        except (ValueError, RecursionError, AttributeError):
            return self._rails
        return frozenset({named}) & self._rails or self._rails

    def close(self) -> None:
        """End the program."""
        self._helper.close()


class CommandMeter:
    """A program of the user's own."""

    name = NAME

    def __init__(self, argv: Sequence[str], rails: Sequence[Rail]) -> None:
        self._argv = tuple(argv)
        self.rails = tuple(rails)
        self.notes = (
            f"read from a program of the user's own ({Path(argv[0]).name}), which is believed in all it says",
        )

    def open(self, rate_hz: float) -> CommandReader:
        """Start the program; it sets the pace."""
        return CommandReader(self._argv, frozenset(rail.name for rail in self.rails))


def find(argument: str | None = None) -> Sequence[CommandMeter]:
    """The meter of a program, whose first lines say which rails there are.

    Raises:
        MeterError: no program is named, it cannot be run, ends, or prints no sample within `LEARN_S`.
    """
    if argument is None:
        raise MeterAbsent(f"meter {NAME}: used only when asked for", "--joules-meter 'command:PROGRAM ARGS'")
    try:
        argv = shlex.split(argument)
    except ValueError as error:
        raise MeterError(f"meter {NAME}: {argument!r} cannot be split into words ({error})") from error
    if not argv:
        raise MeterError(f"meter {NAME}: no program is named", "--joules-meter 'command:PROGRAM ARGS'")
    try:
        return [CommandMeter(argv, _learn(argv))]
    except MeterError as error:
        raise MeterError(f"meter {NAME}: {error}") from error


def _learn(argv: Sequence[str]) -> list[Rail]:
    """Listen until a rail comes round again, and for a while, since rails may speak at different rates."""
    name = Path(argv[0]).name
    rails: dict[str, Rail] = {}
    said = ""
    first_mono = None
    with contextlib.closing(Helper(argv)) as helper:
        for line in _lines_for(helper, LEARN_S):
            if not line.text.strip():
                continue
            try:
                record = _first(line.text)
            except ValueError as error:
                said = f" (it said '{one_line(decoded(line.text), 80)}': {error})"
                continue
            sample = sample_of(record, NAME, line.mono)
            first_mono = line.mono if first_mono is None else first_mono
            if sample.rail in rails and line.mono >= first_mono + SETTLE_S:
                break
            rails.setdefault(sample.rail, rail_of(record, NAME, name))
    if not rails:
        raise MeterError(
            f"{name} printed no sample within {LEARN_S:g} s{said}",
            'a sample is a line such as {"power_w": 12.5}, flushed as soon as it is printed',
        )
    return list(rails.values())


def _first(text: bytes) -> dict[str, Any]:
    """A sample by which a rail is known: one that can be true."""
    record = parse(text)
    key = "energy_j" if "energy_j" in record else "power_w"
    if record[key] < 0:
        raise ValueError(f"{key} is negative")
    return record


def _lines_for(helper: Helper, seconds: float) -> Iterator[Line]:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        yield from helper.lines(left)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
