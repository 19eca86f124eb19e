"""Recorded traces: files of power or energy samples that any tool may have written.

JSON lines or CSV, optionally gzipped. A sample is a time and a reading:

    {"mono": 12.5, "power_w": 48.0}            watts, at seconds of a monotonic clock
    {"mono": 12.5, "energy_j": 73144.2}        joules of a counter
    {"time": "2026-03-02T10:00:00+01:00", ...} the same by the calendar: with an offset, or in a stated zone

CSV has a header with the same names. Optional: `rail`, `kind`, `averaging_s`, and `wall` (as `time`, or in seconds since
1970); beside `mono` it is only a label that shows where the clock was set. A reading may carry its unit (`23.47 W`).
A number with a comma is refused and not guessed at: 23,47 may be 23.47 or 2347.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import itertools
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any, Literal, cast, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import numpy as np

from pytest_joules.errors import UsageError
from pytest_joules.records import Kind, Rail
from pytest_joules.trace import Floats
from pytest_joules.words import nearest, one_line

Fold = Literal["first", "second"]
Record = Mapping[str, Any]

CLOCKS = ("mono", "time", "wall")
READINGS = ("energy_j", "power_w")
UNNAMED = "trace"
"""The rail of samples that name none."""

EXCESS_SHARE = 0.2
"""A file with a larger share of lines that are no samples is not taken for a trace."""
WALL_STEP_S = 0.5
"""A wall clock that moves by more than this against the monotonic one was set."""
BACK_STEPS = 5.0
"""A calendar that falls back by more than this many usual steps has entered an hour for the second time."""
QUARTER_S, DAY_S = 900, 86400

_WATTS = {"uW": 1e-6, "µW": 1e-6, "mW": 1e-3, "W": 1.0, "kW": 1e3}
_JOULES = {"uJ": 1e-6, "µJ": 1e-6, "mJ": 1e-3, "J": 1.0, "kJ": 1e3, "Wh": 3600.0, "kWh": 3.6e6}
_UNITS = {"power_w": _WATTS, "energy_j": _JOULES}
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_UNIX_S = (1e8, 1e11)
"""Seconds since 1970 from 1973 on; anything larger counts milliseconds."""
_FINER = {"milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}


@dataclass(frozen=True, slots=True)
class Series:
    """The samples of one rail: (n,) seconds, and (n,) watts or the joules of a counter."""

    rail: Rail
    mono: Floats
    value: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What a file holds.

    Attributes:
        series: one for each rail, in order of appearance. Beside a counter, power of the same rail has the role `check`.
        calendar: times are seconds since 1970; else they are of a monotonic clock.
        wall: (n, 2) monotonic times and the wall clock at each, where the file has both.
        skipped: what is wrong with each line that is no sample.
        lines: how many lines there are, blank ones apart.
        used: which of `zone` and `fold` its times could not do without.
    """

    path: Path
    series: tuple[Series, ...]
    calendar: bool
    wall: Floats
    skipped: tuple[str, ...]
    lines: int
    used: frozenset[str] = frozenset()

    def moment(self, text: str, zone: str | None = None, fold: Fold | None = None) -> float:
        """A moment on the clock of this trace.

        Args:
            text: seconds, or a calendar time.
            zone: of a calendar time without an offset.
            fold: which pass of a time that occurs twice.

        Raises:
            UsageError: it is neither, or this trace's clock cannot be compared with it.
        """
        try:
            seconds = number(text)
        except ValueError:
            [seconds] = _resolved([_calendar(text)], ["the window"], zone, fold)
            return seconds if self.calendar else seconds - self._wall_ahead_s()
        if self.calendar:
            _unix(seconds, f"{self.path} has calendar times, and {text} is neither one nor seconds since 1970")
        return seconds

    def covers(self, series: Sequence[Series]) -> str:
        """From when to when these series run, for people."""
        mono = np.concatenate([one.mono for one in series])
        first, last = float(mono.min()), float(mono.max())
        return f"{_iso(first)} to {_iso(last)}" if self.calendar else f"{first:g} to {last:g} s"

    def notes(self, start: float, end: float) -> tuple[str, ...]:
        """What a reader of a window must know about the file: lines skipped, and where the wall clock was set."""
        notes = []
        if self.skipped:
            notes.append(f"{len(self.skipped)} of {self.lines} lines are no samples (first: {self.skipped[0]})")
        at, by = _wall_steps(self.wall)
        inside = (at > start) & (at <= end)
        notes += [
            f"the wall clock was set by {b:+.1f} s at {a:g} s" for a, b in zip(at[inside], by[inside], strict=True)
        ]
        return tuple(notes)

    def require_overlap(self, start: float, end: float) -> None:
        """Refuse a window that lies wholly before or after the samples: the clocks are not the same.

        Raises:
            UsageError: with the number of samples and, where it can be told, by how much the clocks differ.
        """
        mono = np.concatenate([series.mono for series in self.series])
        first, last = float(mono.min()), float(mono.max())
        if start > last or end < first:
            apart = self._apart(start, end, first, last)
            raise UsageError(f"{self.path}: 0 of {len(mono)} samples fall in the window; {apart}")

    def _apart(self, start: float, end: float, first: float, last: float) -> str:
        if not self.calendar:
            return f"the trace covers {self.covers(self.series)} of its clock"
        # Zones differ by quarters of an hour; by more than a day, it is the trace of another day.
        apart_s = round(((start + end) - (first + last)) / 2 / QUARTER_S) * QUARTER_S
        if 0 < abs(apart_s) <= DAY_S and start - apart_s <= last and end - apart_s >= first:
            return (
                f"clocks differ by about {abs(apart_s) / 3600:g} h: state the zone of the trace, and that of the window"
            )
        return f"the trace covers {self.covers(self.series)}"

    def _wall_ahead_s(self) -> float:
        """How far the wall clock is ahead of the monotonic one."""
        if len(self.wall) == 0:
            raise UsageError(f"{self.path} has no calendar times: state start and end in seconds of its clock")
        ahead_s = self.wall[:, 1] - self.wall[:, 0]
        if np.ptp(ahead_s) > WALL_STEP_S:
            raise UsageError(
                f"{self.path}: the wall clock was set during the trace: state start and end in seconds of mono"
            )
        return float(np.median(ahead_s))


@dataclass(frozen=True, slots=True)
class _Sample:
    """One reading as it was written; a calendar time without an offset is not yet resolved."""

    where: str
    rail: str
    reading: str
    value: float
    when: float | datetime
    wall: float | None
    kind: str | None
    averaging_s: float | None


def read(
    path: Path,
    *,
    zone: str | None = None,
    fold: Fold | None = None,
    kind: str | None = None,
    averaging_s: float | None = None,
    limit_w: float | None = None,
    wrap_j: float | None = None,
) -> Trace:
    """Read a trace.

    Args:
        path: JSON lines or CSV, gzipped or not.
        zone: of calendar times without an offset, for example `Europe/Berlin` or `+01:00`.
        fold: which of two passes a time belongs to that occurs twice in the zone. Where the file itself falls back, its
            order says so, and stating `fold` only allows it.
        kind: how a power reading relates to time, over what the file says; `instant` when nobody says.
        averaging_s: what a power reading is the mean over, likewise; stating it alone means `moving_average`.
        limit_w: highest plausible power.
        wrap_j: energy at which a counter returns to zero.

    Raises:
        UsageError: the file cannot be read or is no trace, or a calendar time has no zone, does not exist or occurs twice.
    """
    samples: list[_Sample] = []
    skipped: list[str] = []
    clock = ""
    lines = 0
    for where, record in _records(path):
        lines += 1
        try:
            if isinstance(record, str):
                raise ValueError(record)
            clock = clock or _clock(record)
            samples += _samples(where, record, clock)
        except ValueError as error:
            skipped.append(one_line(f"{where}: {error}", 120))
    if not samples:
        raise UsageError(f"{path}: there is no sample in it ({skipped[0] if skipped else 'it is empty'})")
    if len(skipped) > EXCESS_SHARE * lines:
        raise UsageError(f"{path}: {len(skipped)} of {lines} lines are no samples ({skipped[0]})")
    written, places = [s.when for s in samples], [f"{path}: {s.where}" for s in samples]
    times = _resolved(written, places, zone, fold)
    labels = [(t, s.wall) for t, s in zip(times, samples, strict=True) if s.wall is not None]
    rails = dict.fromkeys((s.rail, s.reading) for s in samples)
    return Trace(
        path=path,
        series=tuple(
            _series(
                path,
                [(t, s) for t, s in zip(times, samples, strict=True) if (s.rail, s.reading) == key],
                role="check" if key[1] == "power_w" and (key[0], "energy_j") in rails else "counted",
                kind=kind,
                averaging_s=averaging_s,
                limit_w=limit_w,
                wrap_j=wrap_j,
            )
            for key in rails
        ),
        calendar=clock != "mono",
        wall=np.array(labels, dtype=float).reshape(-1, 2),
        skipped=tuple(skipped),
        lines=lines,
        used=_used(written, places, zone, fold),
    )


def used_by(moment: str, zone: str | None, fold: Fold | None) -> frozenset[str]:
    """Which of `zone` and `fold` a moment that `Trace.moment` has read could not do without."""
    try:
        number(moment)
    except ValueError:
        return _used([_calendar(moment)], [""], zone, fold)
    return frozenset()


def _used(
    times: Sequence[float | datetime], where: Sequence[str], zone: str | None, fold: Fold | None
) -> frozenset[str]:
    if not any(isinstance(t, datetime) for t in times):
        return frozenset()
    if fold is not None:
        try:
            _resolved(times, where, zone, None)
        except UsageError:
            return frozenset({"zone", "fold"})
    return frozenset({"zone"})


def number(text: str) -> float:
    """A plain decimal number with a point.

    Raises:
        ValueError: it is anything else: a comma, NaN or infinity, an underscore, or nothing.
    """
    stripped = text.strip()
    if not _NUMBER.fullmatch(stripped):
        why = "a comma in it; write a decimal point and no thousands separator" if "," in stripped else "no number"
        raise ValueError(f"{text.strip()!r} has {why}")
    found = float(stripped)
    if not math.isfinite(found):
        raise ValueError(f"{stripped!r} is too large")
    return found


def watts(text: str) -> float:
    """Watts of a reading with or without its unit: `23.47 W`, `12.00 mW`, `45.00`.

    Raises:
        ValueError: it is no number (`number` says what is), has an unknown unit, or is negative.
    """
    return _quantity(text, _WATTS)


def _quantity(text: str, units: Mapping[str, float]) -> float:
    bare, _, unit = text.strip().rpartition(" ")
    if not bare:
        bare, unit = unit, next(name for name, factor in units.items() if factor == 1.0)
    if unit not in units:
        number(text)
        raise ValueError(f"{text.strip()!r} has an unknown unit")
    found = number(bare) * units[unit]
    if found < 0:
        raise ValueError(f"{text.strip()!r} is negative")
    return found


# Lines --------------------------------------------------------------------------------------------------------------


def _records(path: Path) -> Iterator[tuple[str, Record | str]]:
    """Each line that is not blank: where it is, and its fields or what is wrong with it."""
    text = _text(path)
    lines = text.splitlines()
    suffixes = {suffix.lower() for suffix in path.suffixes}
    if suffixes & {".csv", ".tsv"} or not any(line.lstrip().startswith("{") for line in lines[:20]):
        yield from _csv_records(path, lines)
        return
    for at, line in enumerate(lines, 1):
        if line.strip():
            yield f"line {at}", _json_record(line)


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes()
        if raw.startswith(b"\x1f\x8b"):
            raw = gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"{path}: the trace cannot be read: {reason}") from error
    # PowerShell writes UTF-16 when its output is redirected.
    wide = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return raw.decode("utf-16" if wide else "utf-8", errors="replace").removeprefix("\ufeff")


def _json_record(line: str) -> Record | str:
    try:
        record = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return str(error) if "is no number" in str(error) else "is not JSON"
    return record if isinstance(record, dict) else "is not a JSON object"


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _csv_records(path: Path, lines: Sequence[str]) -> Iterator[tuple[str, Record | str]]:
    header_at = next((at for at, line in enumerate(lines) if line.strip()), None)
    if header_at is None:
        return
    delimiter = max(",;\t", key=lines[header_at].count)
    rows = csv.reader(lines[header_at:], delimiter=delimiter, skipinitialspace=True)
    try:
        names = [name.strip().lower() for name in next(rows)]
        if not (set(names) & set(CLOCKS) and set(names) & set(READINGS)):
            raise UsageError(
                f"{path}: the columns are {one_line(', '.join(names), 80)}; a trace has one of {', '.join(CLOCKS)} "
                f"and one of {', '.join(READINGS)}"
            )
        for row in rows:
            if not any(cell.strip() for cell in row):
                continue
            where = f"line {header_at + rows.line_num}"
            if len(row) != len(names):
                yield where, f"has {len(row)} fields instead of {len(names)}; a number with a comma counts as two"
            else:
                yield where, {name: cell.strip() for name, cell in zip(names, row, strict=True) if cell.strip()}
    except csv.Error as error:
        raise UsageError(f"{path}: line {header_at + rows.line_num} is not CSV: {error}") from error


# Samples ------------------------------------------------------------------------------------------------------------


def _clock(record: Record) -> str:
    """By which of its times a file is read."""
    found = next((name for name in CLOCKS if record.get(name) is not None), None)
    if found is None:
        raise ValueError(f"has no {', '.join(CLOCKS[:-1])} or {CLOCKS[-1]}")
    return found


def _samples(where: str, record: Record, clock: str) -> list[_Sample]:
    """The one or two readings of a line.

    Raises:
        ValueError: something in it cannot be used.
    """
    if record.get(clock) is None:
        raise ValueError(f"has no {clock}")
    when: float | datetime = _plain(record, "mono") if clock == "mono" else _when(record[clock], clock)
    readings = [name for name in READINGS if name in record]
    if not readings:
        raise ValueError(f"has neither {' nor '.join(READINGS)}")
    averaging_s = _plain(record, "averaging_s") if record.get("averaging_s") is not None else None
    wall = record.get("wall") if clock == "mono" else None
    return [
        _Sample(
            where=where,
            rail=str(record.get("rail") or UNNAMED),
            reading=name,
            value=_quantity(record[name], _UNITS[name]) if isinstance(record[name], str) else _plain(record, name),
            when=when,
            wall=None if wall is None else _label(wall),
            kind=record.get("kind"),
            averaging_s=averaging_s,
        )
        for name in readings
    ]


def _plain(record: Record, name: str) -> float:
    """A number that was written as one, or as text."""
    value = record[name]
    if isinstance(value, str):
        return number(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        raise ValueError(f"{name} is {value!r}, which is no number")
    return float(value)


def _when(value: Any, name: str) -> float | datetime:
    """Seconds since 1970, or a calendar time that still lacks its zone."""
    try:
        seconds = _plain({name: value}, name)
    except ValueError:
        if not isinstance(value, str):
            raise
        try:
            return _calendar(value)
        except UsageError as error:
            raise ValueError(str(error)) from None
    try:
        return _unix(
            seconds,
            f"{name} {value!r} is neither a calendar time nor seconds since 1970; "
            "name it mono when it counts seconds from any other start",
        )
    except UsageError as error:
        raise ValueError(str(error)) from None


def _label(value: Any) -> float | None:
    """A wall clock beside a monotonic one; a label that cannot be read is none."""
    try:
        when = _when(value, "wall")
    except ValueError:
        return None
    return None if isinstance(when, datetime) else when


def _series(
    path: Path,
    samples: Sequence[tuple[float, _Sample]],
    *,
    role: Literal["counted", "check"],
    kind: str | None,
    averaging_s: float | None,
    limit_w: float | None,
    wrap_j: float | None,
) -> Series:
    first = samples[0][1]
    counter = first.reading == "energy_j"
    said = {(s.kind, s.averaging_s) for _, s in samples if s.kind is not None or s.averaging_s is not None}
    if len(said) > 1:
        raise UsageError(f"{path}: rail {first.rail} states more than one kind or averaging_s")
    kind_said, averaging_said = next(iter(said), (None, None))
    rail = Rail(
        name=first.rail if role == "counted" else f"{first.rail} (power)",
        scope="board",
        covers=(first.rail,),
        kind="counter" if counter else _kind(path, kind or kind_said, averaging_s or averaging_said),
        basis="measured",
        unit="J" if counter else "W",
        source=f"{path.name}: {first.reading}",
        averaging_s=None if counter else averaging_s or averaging_said,
        limit_w=limit_w,
        wrap_j=wrap_j if counter else None,
        role=role,
    )
    return Series(rail, np.array([t for t, _ in samples]), np.array([s.value for _, s in samples]))


def _kind(path: Path, stated: str | None, averaging_s: float | None) -> Kind:
    """The kind of a power reading."""
    if averaging_s is not None and not averaging_s > 0:
        raise UsageError(f"{path}: averaging_s is {averaging_s:g}; it is a length of time in seconds")
    if stated is None:
        return "instant" if averaging_s is None else "moving_average"
    if stated not in get_args(Kind):
        raise UsageError(
            f"{path}: there is no kind {stated!r}{nearest(stated, get_args(Kind))}; known: {', '.join(get_args(Kind))}"
        )
    if stated == "counter":
        raise UsageError(f"{path}: power_w is no counter; joules of a counter are energy_j")
    if stated == "moving_average" and averaging_s is None:
        raise UsageError(f"{path}: a moving average needs its length: state averaging_s")
    return cast(Kind, stated)


# Clocks -------------------------------------------------------------------------------------------------------------


def _calendar(text: str) -> float | datetime:
    """Seconds since 1970 where the time has an offset, else the time as it stands.

    Raises:
        UsageError: it is no calendar time.
    """
    try:
        when = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(f"{text!r} is neither seconds nor a calendar time like 2026-03-02T10:00:00+01:00") from None
    if len(text.strip()) <= len("2026-03-02"):
        raise UsageError(f"{text!r} has no time of day")
    return when if when.tzinfo is None else when.timestamp()


def _unix(seconds: float, otherwise: str) -> float:
    if _UNIX_S[0] <= seconds < _UNIX_S[1]:
        return seconds
    for unit, factor in _FINER.items():
        # From 2001 on, so that none is taken for another.
        if 1e9 <= seconds / factor < 1e10:
            raise UsageError(f"{seconds:.0f} looks like {unit} since 1970: divide it by {factor:.0f}")
    raise UsageError(otherwise)


def _resolved(
    times: Sequence[float | datetime], where: Sequence[str], zone: str | None, fold: Fold | None
) -> list[float]:
    """Seconds for each time; calendar times without an offset are taken to be of the zone.

    Raises:
        UsageError: there is no zone for one, it does not exist there, or it occurs twice and nothing says which is meant.
    """
    naive = [(k, t) for k, t in enumerate(times) if isinstance(t, datetime)]
    resolved = [0.0 if isinstance(t, datetime) else t for t in times]
    if not naive:
        return resolved
    at, when = naive[0]
    if zone is None:
        raise UsageError(
            f"{where[at]}: {when} has no offset: state --zone (for example Europe/Berlin), or write an offset"
        )
    place = _zone(zone)
    back = _falls_back([t for _, t in naive])
    for n, (k, t) in enumerate(naive):
        # In a file that falls back, what stands before is the first pass, whichever pass is asked for.
        passes: Fold | None = fold if fold is None or back is None else "first" if n < back else "second"
        resolved[k] = _in_zone(t, place, zone, passes, where[k])
    return resolved


def _in_zone(when: datetime, place: tzinfo, zone: str, fold: Fold | None, where: str) -> float:
    first, second = (when.replace(tzinfo=place, fold=pass_) for pass_ in (0, 1))
    ahead, behind = first.utcoffset(), second.utcoffset()
    if ahead is None or behind is None or ahead == behind:
        return first.timestamp()
    if ahead < behind:
        raise UsageError(f"{where}: {when} does not exist in {zone}: the clock was put forward over it")
    if fold is None:
        raise UsageError(
            f"{where}: {when} is ambiguous, it occurs twice in {zone}: state --fold first or second, or write offsets"
        )
    return (first if fold == "first" else second).timestamp()


def _falls_back(times: Sequence[datetime]) -> int | None:
    """Where calendar times in order of arrival go back by more than samples out of order would."""
    steps_s = np.array([(b - a).total_seconds() for a, b in itertools.pairwise(times)])
    if len(steps_s) == 0 or steps_s.min() >= 0:
        return None
    at = int(steps_s.argmin())
    return at + 1 if -steps_s[at] > BACK_STEPS * np.median(np.abs(steps_s)) else None


def _zone(name: str) -> tzinfo:
    """A zone by name or offset."""
    try:
        if re.fullmatch(r"[+-]\d\d:?\d\d|Z", name):
            return datetime.strptime(name, "%z").tzinfo or UTC
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        known = available_timezones()
        hint = nearest(name, known) if known else "; this system has no zone data: pip install tzdata"
        raise UsageError(f"--zone {name}: there is no such time zone{hint}") from None


def _wall_steps(wall: Floats) -> tuple[Floats, Floats]:
    """When the wall clock was set, and by how much: two (n,) arrays."""
    if len(wall) < 2:
        return np.empty(0), np.empty(0)
    ordered = wall[np.argsort(wall[:, 0], kind="stable")]
    by_s = np.diff(ordered[:, 1] - ordered[:, 0])
    # Labels in whole seconds wander by up to one.
    whole = bool(np.all(ordered[:, 1] == np.round(ordered[:, 1])))
    stepped = np.abs(by_s) > WALL_STEP_S + whole
    return ordered[1:, 0][stepped], by_s[stepped]


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
