"""The log of an external meter while it is being written: `--joules-meter file:PATH` or `file:PATH@ZONE`.

Any trace that `joules window` reads, JSON lines or CSV. The log is followed from its present end. Its times are kept:
calendar times are brought to the monotonic clock by what the system's clock says when the log is opened. A log that
no longer grows is no meter but a recording, and for `joules window`.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pytest_joules import tracefile
from pytest_joules.errors import MeterAbsent, MeterError, UsageError
from pytest_joules.records import Rail, Sample

NAME = "file"

GROWING_S = 30.0
"""A log that was not written to for this long is finished."""
BEHIND_S, AHEAD_S = 60.0, 2.0
"""How far the last sample of a log may lie behind or ahead of the time at which it appears."""
LOOK_BACK_BYTES = 1 << 16
FASTEST_S = 0.1
UNREADABLE_TO_GIVE_UP = 5
"""A line that is no sample may happen; this many in a row are another format."""


@dataclasses.dataclass(frozen=True, slots=True)
class Log:
    """A log and how its lines are read. `header` is the first line of a CSV, which says what the others mean."""

    path: Path
    zone: str | None
    header: bytes

    def parse(self, lines: bytes) -> tracefile.Trace:
        """The samples of some lines.

        Raises:
            UsageError: there are none, or their times cannot be told.
        """
        with tempfile.TemporaryDirectory() as folder:
            part = Path(folder) / self.path.name
            part.write_bytes(self.header + lines)
            try:
                return tracefile.read(part, zone=self.zone)
            except UsageError as error:
                raise UsageError(str(error).replace(f"{folder}{os.sep}", "")) from error


class FileReader:
    """Follows a log."""

    def __init__(self, log: Log, rails: frozenset[str], interval_s: float) -> None:
        self.interval_s: float | None = interval_s
        self._log, self._rails = log, rails
        self._position = log.path.stat().st_size
        self._rest = b""
        self._unreadable = 0
        self._wall_ahead_s = wall_ahead_s()

    def read(self) -> Sequence[Sample]:
        """The samples written since the last read.

        Raises:
            MeterError: the log is gone, was cut short, has another format by now, or another clock.
        """
        lines = self._new_lines()
        if not lines.strip():
            return []
        try:
            trace = self._log.parse(lines)
            self._unreadable = 0
        except UsageError as error:
            self._unreadable += 1
            if self._unreadable >= UNREADABLE_TO_GIVE_UP:
                raise MeterError(f"meter {NAME}: {error}") from error
            return []
        ahead_s = self._wall_ahead_s if trace.calendar else 0.0
        samples = [
            Sample(rail_name(series.rail), float(mono) - ahead_s, float(value))
            for series in trace.series
            for mono, value in zip(series.mono, series.value, strict=True)
        ]
        unknown = {sample.rail for sample in samples} - self._rails
        if unknown:
            raise MeterError(
                f"meter {NAME}: {', '.join(sorted(unknown))} appears only now", "log every rail from the start"
            )
        check_clock(self._log.path, max(sample.mono for sample in samples))
        return sorted(samples, key=lambda sample: sample.mono)

    def close(self) -> None:
        """Nothing is held between reads."""

    def _new_lines(self) -> bytes:
        """What was appended, up to the last whole line."""
        try:
            with self._log.path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._position:
                    raise MeterError(f"meter {NAME}: {self._log.path.name} was cut short or replaced", "start again")
                file.seek(self._position)
                fresh = file.read()
        except OSError as error:
            raise MeterError(f"meter {NAME}: {self._log.path.name} cannot be read ({error.strerror})") from error
        self._position += len(fresh)
        whole, newline, self._rest = (self._rest + fresh).rpartition(b"\n")
        return whole + newline


class FileMeter:
    """A log that another program writes."""

    name = NAME

    def __init__(self, log: Log, rails: Sequence[Rail]) -> None:
        self._log = log
        self.rails = tuple(rails)
        self.notes = ("read from the log of an external meter, which is taken to be at the wall",)

    def open(self, rate_hz: float) -> FileReader:
        """Look for new lines `rate_hz` times a second."""
        return FileReader(self._log, frozenset(rail.name for rail in self.rails), max(1.0 / rate_hz, FASTEST_S))


def find(argument: str | None = None) -> Sequence[FileMeter]:
    """The meter of a log that is growing.

    Raises:
        MeterError: no log is named, it is not there, holds no samples, no longer grows, or is on another clock.
    """
    if argument is None:
        raise MeterAbsent(f"meter {NAME}: used only when asked for", f"--joules-meter {NAME}:PATH or {NAME}:PATH@ZONE")
    path, zone = Path(argument).expanduser(), None
    if not path.exists() and "@" in argument:
        text, _, zone = argument.rpartition("@")
        path = Path(text).expanduser()
    try:
        quiet_s = time.time() - path.stat().st_mtime
        log, trace = _look(path, zone)
    except OSError as error:
        raise MeterError(f"meter {NAME}: {path.name} cannot be read ({error.strerror})") from error
    except UsageError as error:
        raise MeterError(
            f"meter {NAME}: {error}", f"state a zone as in {NAME}:PATH@Europe/Berlin" if zone is None else ""
        ) from error
    if quiet_s > GROWING_S:
        raise MeterError(
            f"meter {NAME}: {path.name} was last written to {quiet_s:.0f} s ago: it is a finished recording",
            "joules window TRACE --start S --end E",
        )
    counted = [series.rail.name for series in trace.series if series.rail.role == "counted"]
    if len(counted) > 1:
        raise MeterError(
            f"meter {NAME}: {path.name} has the rails {', '.join(counted)}, which may overlap",
            "log one of them by itself",
        )
    newest = max(float(series.mono.max()) for series in trace.series)
    check_clock(path, newest - (wall_ahead_s() if trace.calendar else 0.0))
    return [FileMeter(log, [_rail(series.rail) for series in trace.series])]


def check_clock(path: Path, newest_mono: float) -> None:
    """Raise `MeterError` when the last sample of a log that has just been written lies far from now."""
    age_s = time.monotonic() - newest_mono
    if not -AHEAD_S <= age_s <= BEHIND_S:
        raise MeterError(
            f"meter {NAME}: the last sample of {path.name} is of {age_s:.0f} s ago: its clock is not this machine's",
            f"set the clock of the logger, or state its zone as in {NAME}:PATH@Europe/Berlin",
        )


def wall_ahead_s() -> float:
    """How far the system's calendar clock, in seconds since 1970, is ahead of the monotonic one."""
    return time.time() - time.monotonic()


def rail_name(rail: Rail) -> str:
    """The name of a rail of a trace as one of this meter."""
    return f"{NAME}.{rail.name}"


def _look(path: Path, zone: str | None) -> tuple[Log, tracefile.Trace]:
    """The log and its last samples."""
    with path.open("rb") as file:
        first = file.readline()
        size = file.seek(0, os.SEEK_END)
        file.seek(max(len(first), size - LOOK_BACK_BYTES))
        tail = file.read()
    whole, newline, _ = tail.rpartition(b"\n")
    if size - LOOK_BACK_BYTES > len(first):
        whole = whole.partition(b"\n")[2]
    is_json = first.lstrip().startswith(b"{")
    log = Log(path, zone, b"" if is_json else first)
    return log, log.parse((first if is_json else b"") + whole + newline)


def _rail(rail: Rail) -> Rail:
    return dataclasses.replace(rail, name=rail_name(rail), scope="wall", covers=("wall",))
