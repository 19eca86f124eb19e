"""`joules meters`: what can be read on this machine, how often it really changes, and how much it flickers."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pytest_joules.cli import EXIT_FAILED, app, print_json, usable_time
from pytest_joules.errors import MeterError, UsageError
from pytest_joules.meters import Chosen, Found, Meter, look, several, sources
from pytest_joules.records import Rail
from pytest_joules.words import nearest, one_line

if TYPE_CHECKING:
    from rich.table import Table

    from pytest_joules.trace import Floats

LISTEN_S, LISTEN_HZ = 2.0, 20.0
LIVE_HZ, LIVE_EVERY_S, LIVE_RECENT_S = 5.0, 1.0, 2.5
ROUNDING = 1e-9
"""A spread below this share of the power is that of arithmetic."""
NEARLY_EVERY = 0.8
"""When more than this share of the readings is new, a source changes at least as often as it was read."""

WIDTH, HANGING = 80, 4
"""Columns of a line for people, and how much further in it goes on below."""

_WHOLE = re.compile(r"[A-Z_]+='[^']*' .*|(?:(?<!\w)'[^']*'(?!\w)|\S)+")
"""What is not broken over lines, since it is meant to be copied: text in quotes, a command with a variable before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What one rail was heard to do.

    Attributes:
        readings: how many numbers came.
        sampled_s: median time between them.
        refresh_s: the source's true refresh period; `None` when it was not seen.
        every_reading_new: the source changes at least as often as it was read.
        power_w: mean power.
        noise_w: standard deviation of the power.
    """

    rail: Rail
    readings: int
    sampled_s: float | None
    refresh_s: float | None
    every_reading_new: bool
    power_w: float | None
    noise_w: float | None

    @property
    def refresh_text(self) -> str:
        """The refresh period as a person would say it."""
        if self.refresh_s is not None:
            return f"{self.refresh_s:.2g} s"
        if self.sampled_s is None:
            return "no reading"
        return f"{self.sampled_s:.2g} s or less" if self.every_reading_new else "not seen"

    def record(self) -> dict[str, Any]:
        """Plain JSON values."""
        rail = self.rail
        return {
            "rail": rail.name,
            "scope": rail.scope,
            "covers": list(rail.covers),
            "kind": rail.kind,
            "averaging_s": rail.averaging_s,
            "basis": rail.basis,
            "role": rail.role,
            "unit": rail.unit,
            "source": rail.source,
            "limit_w": rail.limit_w,
            "calibration": rail.calibration,
            "readings": self.readings,
            "sampled_s": self.sampled_s,
            "refresh_s": self.refresh_s,
            "power_w": self.power_w,
            "noise_w": self.noise_w,
        }


class Ear:
    """A meter that is being read, whatever becomes of it."""

    def __init__(self, meter: Meter, rate_hz: float) -> None:
        from pytest_joules.meters.sampler import Sampler

        self.meter = meter
        self._sampler = Sampler(Chosen(meter, meter.rails[0].scope, (), "listened to"), rate_hz)
        self._not_opened = ""

    @property
    def failure(self) -> str:
        """Why there are no more readings; empty while there are."""
        return self._not_opened or self._sampler.failure

    def start(self) -> None:
        """Open the meter; a failure is kept, not raised."""
        try:
            self._sampler.start()
        except MeterError as error:
            self._not_opened = str(error)
        except Exception as error:  # a source of a third party must not take the others with it
            self._not_opened = f"meter {self.meter.name}: {type(error).__name__}: {error}"

    def stop(self) -> None:
        """Close the meter."""
        self._sampler.stop()

    def rails(self, last_s: float) -> list[Heard]:
        """What each rail did in the last seconds."""
        import numpy as np

        from pytest_joules.reading import group

        now = time.monotonic()
        by_rail = group(self._sampler.samples(now - last_s, now))
        return [hear(rail, *by_rail.get(rail.name, (np.empty(0), np.empty(0)))) for rail in self.meter.rails]


def hear(rail: Rail, mono: Floats, value: Floats) -> Heard:
    """What a rail's readings show.

    Args:
        rail: what the readings are.
        mono: (n,) seconds.
        value: (n,) watts, or joules of a counter.
    """
    import numpy as np

    from pytest_joules import trace

    numbers = np.isfinite(value)
    mono, value = mono[numbers], value[numbers]
    spacing, steps = np.diff(mono), np.diff(value)
    counter = rail.kind == "counter"
    power = value
    if counter:
        news = np.flatnonzero(steps != 0) + 1
        rising = np.diff(value[news]) > 0
        power = np.diff(value[news])[rising] / np.diff(mono[news])[rising]
    sampled_s = float(np.median(spacing)) if len(spacing) else None
    noise_w = float(np.std(power)) if len(power) > 1 else None
    if noise_w is not None and noise_w <= ROUNDING * abs(float(np.mean(power))):
        noise_w = 0.0
    return Heard(
        rail=rail,
        readings=len(mono),
        sampled_s=sampled_s,
        # Each mean over an interval is published once, so its period is that of its arrivals.
        refresh_s=sampled_s if rail.kind == "interval_mean" else trace.refresh_period(mono, value, counter=counter),
        every_reading_new=bool(len(steps)) and float(np.mean(steps != 0)) > NEARLY_EVERY,
        power_w=float(np.mean(power)) if len(power) else None,
        noise_w=noise_w,
    )


@app.command("meters")
def meters(
    live: Annotated[bool, typer.Option("--live", help="Show the power of each rail until Ctrl-C.")] = False,
    meter: Annotated[
        list[str] | None, typer.Option(help="Only this source, NAME or NAME:ARGUMENT; repeatable.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="How long: 2 s, or with --live until Ctrl-C.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Rails, scope, kind, true refresh period, and noise: leave the machine alone meanwhile.

    Example: joules meters --live --meter nvml

    Exit code: 0, 1 when none of the sources that were named can be read, 2 for what cannot be used as it is written.
    """
    if seconds is not None:
        usable_time("--seconds", seconds)
    if live and json:
        raise UsageError("--live is for people and --json for programs; leave one out")
    found = named(meter)
    usable = [each for one in found for each in one.meters]
    if meter and not usable and not json:
        raise MeterError("; ".join(dict.fromkeys(one.reason for one in found)))
    if live:
        _live(usable, seconds)
        return
    with listening(usable, LISTEN_HZ) as ears:
        time.sleep(seconds or LISTEN_S)
        heard = {ear: ear.rails(seconds or LISTEN_S) for ear in ears}
    if json:
        print_json({"sources": records(found, heard)})
        if meter and not usable:
            raise typer.Exit(EXIT_FAILED)
    else:
        typer.echo(table(heard))
        for line in remarks(found, heard):
            typer.echo(folded(line))


def named(wanted: Sequence[str] | None) -> list[Found]:
    """What looking for the named sources gave; for all of them when none is named.

    Raises:
        UsageError: there is no source of that name.
    """
    if not wanted:
        return look()
    known = sources()
    found = []
    for text in wanted:
        name, _, argument = text.partition(":")
        if name == "auto" or several(text):
            raise UsageError(
                f"--meter {text}: 'joules meters' takes one source per --meter, which may be repeated; without it, all of them"
            )
        if not name:
            raise UsageError(f"--meter {text!r}: a source without a name; known: {', '.join(sorted(known))}")
        if name not in known:
            raise UsageError(f"there is no meter {name!r}{nearest(name, known)}; known: {', '.join(sorted(known))}")
        found += look([name], argument or None)
    return found


@contextlib.contextmanager
def listening(usable: Sequence[Meter], rate_hz: float) -> Iterator[list[Ear]]:
    """All these meters, being read at once."""
    ears = [Ear(meter, rate_hz) for meter in usable]
    try:
        for ear in ears:
            ear.start()
        yield ears
    finally:
        for ear in ears:
            ear.stop()


Heards = dict[Ear, list[Heard]]
"""What was heard of each meter."""


def records(found: Sequence[Found], heard: Heards) -> list[dict[str, Any]]:
    """One JSON object per source: usable or not, why, what to do, and its rails."""
    return [
        {
            "source": one.source,
            "usable": any(not ear.failure for ear in ears),
            "reason": "; ".join([_cause(one), *(ear.failure for ear in ears)]).strip("; "),
            "next_step": one.next_step,
            "notes": [note for ear in ears for note in ear.meter.notes],
            "rails": [rail.record() for ear in ears for rail in heard[ear]],
        }
        for one, ears in ((one, [ear for ear in heard if ear.meter in one.meters]) for one in found)
    ]


def remarks(found: Sequence[Found], heard: Heards) -> Iterator[str]:
    """Notes on the meters that are there, failures, and the sources that are not there, with the next step."""
    for ear in heard:
        for note in (*ear.meter.notes, *([f"stopped: {ear.failure}"] if ear.failure else [])):
            yield f"  {ear.meter.name}: {note}"
    absent = [one for one in found if not one.meters]
    if absent:
        yield "not usable here:"
    for one in absent:
        cause = _cause(one).removeprefix(f"meter {one.source}: ")
        # A next step that ends in the middle is none, however long it is.
        yield f"  {one.source}: {cause}" + (f" -> {' '.join(one.next_step.split())}" if one.next_step else "")


def folded(line: str) -> str:
    """A line of words for a terminal: what goes over `WIDTH` columns stands below it, further in."""
    start = line[: len(line) - len(line.lstrip())]
    rows: list[str] = []
    row = start
    for piece in _WHOLE.findall(line):
        if row.strip() and len(row) + 1 + len(piece) > WIDTH:
            rows.append(row)
            row = start + " " * HANGING
        row += f" {piece}" if row.strip() else piece
    return "\n".join([*rows, row])


def _cause(found: Found) -> str:
    """The reason without the next step that ends it."""
    return one_line(found.reason.removesuffix(f"; {found.next_step}"))


def table(heard: Heards) -> str:
    """The rails that were heard, one a line."""
    from tabulate import tabulate

    rows = [
        (
            rail.rail.name,
            rail.rail.scope + (" (check)" if rail.rail.role == "check" else ""),
            ", ".join(rail.rail.covers),
            _kind(rail.rail),
            rail.rail.basis,
            rail.refresh_text,
            _watts(rail.power_w),
            _watts(rail.noise_w),
        )
        for rails in heard.values()
        for rail in rails
    ]
    return tabulate(
        rows,
        headers=("rail", "scope", "covers", "kind", "basis", "refresh", "idle W", "noise W"),
        disable_numparse=True,
    )


def _kind(rail: Rail) -> str:
    averaged = f" over {rail.averaging_s:g} s" if rail.averaging_s else ""
    return rail.kind.replace("_", " ") + averaged


def _watts(power_w: float | None) -> str:
    return "-" if power_w is None else f"{power_w:.3g}"


def _live(usable: Sequence[Meter], seconds: float | None) -> None:
    """Show the power of each rail until the time is up or Ctrl-C, which ends it like any other end."""
    from rich.live import Live

    end = time.monotonic() + seconds if seconds else float("inf")
    with contextlib.suppress(KeyboardInterrupt), listening(usable, LIVE_HZ) as ears:
        start = time.monotonic()
        if sys.stdout.isatty():
            with Live(auto_refresh=False) as screen:
                while _pause(end):
                    screen.update(_picture(ears), refresh=True)
        else:
            while _pause(end):
                for ear in ears:
                    for rail in ear.rails(LIVE_RECENT_S):
                        print(
                            f"{time.monotonic() - start:.1f} s\t{rail.rail.name}\t{_watts(rail.power_w)} W", flush=True
                        )


def _pause(end_mono: float) -> bool:
    """Wait for the next picture; False when the time is up."""
    left = end_mono - time.monotonic()
    time.sleep(max(0.0, min(LIVE_EVERY_S, left)))
    return left > 0


def _picture(ears: Sequence[Ear]) -> Table:
    from rich.table import Table

    table = Table("rail", "scope", "kind", "refresh", "W", "±", title="power now, Ctrl-C to stop")
    for ear in ears:
        for heard in ear.rails(LIVE_RECENT_S):
            shown = (heard.refresh_text, _watts(heard.power_w), _watts(heard.noise_w))
            table.add_row(
                heard.rail.name,
                heard.rail.scope,
                _kind(heard.rail),
                *((one_line(ear.failure), "", "") if ear.failure else shown),
            )
    return table
