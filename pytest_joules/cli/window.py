"""`joules window`: the energy of a stretch of a recorded trace, with the gates that say whether to believe it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

import numpy as np
import typer

from pytest_joules import gates, reading, trace, tracefile
from pytest_joules.cli import EXIT_FAILED, app, print_json
from pytest_joules.errors import UsageError
from pytest_joules.reading import Reading
from pytest_joules.records import Gate
from pytest_joules.tracefile import Series
from pytest_joules.words import nearest

LEAST_SAMPLES = 5
"""Distinct sensor updates without which a window is void."""

OF_A_TRACE = gates.Remedies(
    longer="take a longer window", meter="take a window that the trace covers", readings="see the trace"
)


@app.command()
def window(
    path: Annotated[Path, typer.Argument(metavar="TRACE", help="JSON lines or CSV, gzipped or not.")],
    start: Annotated[str, typer.Option(help="Start of the window: seconds of the trace's clock, or a calendar time.")],
    end: Annotated[str, typer.Option(help="End of the window, likewise.")],
    zone: Annotated[
        str | None, typer.Option(help="Zone of calendar times without an offset, such as Europe/Berlin.")
    ] = None,
    fold: Annotated[str | None, typer.Option(help="first or second: which pass of an hour that occurs twice.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Tokens generated in the window, for the energy of one.")] = None,
    rail: Annotated[str | None, typer.Option(help="Rails to add up, by comma, where the trace has several.")] = None,
    kind: Annotated[
        str | None, typer.Option(help="What a power reading is: instant, interval_mean or moving_average.")
    ] = None,
    averaging_s: Annotated[float | None, typer.Option(help="Seconds that a moving average covers.")] = None,
    limit_w: Annotated[
        float | None, typer.Option(help="Highest plausible power; readings far above it are dropped.")
    ] = None,
    wrap_j: Annotated[float | None, typer.Option(help="Joules at which a counter returns to zero.")] = None,
    min_samples: Annotated[
        int, typer.Option(help="Distinct sensor updates without which a window is void.")
    ] = LEAST_SAMPLES,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Energy of a window in a recorded trace.

    A sample of the trace has a time (mono, time or wall) and power_w or energy_j, as JSON lines or columns of a CSV.

    Example:
        joules window power.jsonl --start 25 --end 45 --tokens 400
        joules window plug.csv --zone Europe/Berlin --start "2026-03-02 10:00:10" --end "2026-03-02 10:00:50"

    Keys of --json: energy_j and power_w (null when void), outcome (measured, flagged or void), reasons,
    samples (distinct sensor updates in the window), refresh_s (time between two of them), and beside these
    uncertainty_j (95 % half-width), window_s, method (counter or integrated), rails, and with --tokens
    tokens and energy_per_token_mj.

    Exit code: 0 with an energy, 1 when the window is void, 2 for what cannot be used as it is written.
    """
    if tokens is not None and tokens < 1:
        raise UsageError(f"--tokens {tokens}: a window needs at least one token to share its energy")
    if min_samples < 1:
        raise UsageError(f"--min-samples {min_samples}: a window without samples has no energy")
    recorded = tracefile.read(
        path,
        zone=zone,
        fold=_fold(fold),
        kind=kind,
        averaging_s=_positive("--averaging-s", averaging_s),
        limit_w=_positive("--limit-w", limit_w),
        wrap_j=_positive("--wrap-j", wrap_j),
    )
    from_s, to_s = (recorded.moment(text, zone, _fold(fold)) for text in (start, end))
    if not to_s > from_s:
        raise UsageError(f"--end {end} is not after --start {start}")
    recorded.require_overlap(from_s, to_s)
    counted, checks = _chosen(recorded, rail)
    notes = recorded.notes(from_s, to_s)
    _refuse_idle(
        {"--kind": kind, "--averaging-s": averaging_s, "--wrap-j": wrap_j},
        [*counted, *(power for _, power in checks)],
    )
    used = recorded.used.union(*(tracefile.used_by(text, zone, _fold(fold)) for text in (start, end)))
    for option, value in (("zone", zone), ("fold", fold)):
        if value is not None and option not in used:
            lacks = "lacks an offset" if option == "zone" else "occurs twice"
            raise UsageError(f"--{option} {value}: no time of the trace or the window {lacks}; leave it out")
    found = judge(
        counted,
        checks,
        from_s,
        to_s,
        notes=notes,
        failure=_uncovered(recorded, counted, from_s, to_s),
        min_samples=min_samples,
        remedies=OF_A_TRACE,
    )
    record = found.record(tokens)
    if as_json:
        print_json(record)
    else:
        typer.echo("\n".join(_lines(record)))
    if found.outcome == "void":
        raise typer.Exit(EXIT_FAILED)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The energy of a window and what the gates say about it.

    Attributes:
        reading: the energy, and that of each rail.
        method: what it was computed from.
    """

    reading: Reading
    method: Literal["counter", "integrated"]
    gates: tuple[Gate, ...]

    @property
    def outcome(self) -> Literal["measured", "flagged", "void"]:
        """The worst of the gates."""
        return gates.outcome(self.gates)

    @property
    def energy_j(self) -> float | None:
        """The sum over the rails that count, `None` when the window is void."""
        return None if self.outcome == "void" else self.reading.energy_j

    def record(self, tokens: int | None) -> dict[str, Any]:
        """What `--json` prints."""
        reading, energy_j = self.reading, self.energy_j
        periods = [r.refresh_s for r in reading.parts if r.refresh_s is not None]
        record: dict[str, Any] = {
            "energy_j": energy_j,
            "power_w": None if energy_j is None else energy_j / reading.window_s,
            "outcome": self.outcome,
            "reasons": [str(gate) for gate in self.gates if gate.outcome in ("void", "flag")],
            "samples": min(r.updates for r in reading.parts),
            "refresh_s": max(periods, default=None),
            "uncertainty_j": None if energy_j is None else reading.uncertainty_j,
            "window_s": reading.window_s,
            "method": self.method,
            "rails": [dataclasses.asdict(r) for r in reading.rails],
        }
        if tokens is not None:
            record["tokens"] = tokens
            record["energy_per_token_mj"] = None if energy_j is None else 1000.0 * energy_j / tokens
        return record


def judge(
    counted: Sequence[Series],
    checks: Sequence[tuple[Series, Series]],
    start: float,
    end: float,
    *,
    notes: Sequence[str] = (),
    failure: str = "",
    min_samples: int = LEAST_SAMPLES,
    remedies: gates.Remedies = gates.OF_A_SUITE,
) -> Judged:
    """Energy of a window over the series that count, and the gates on it.

    Args:
        counted: those that make up the energy.
        checks: counters among them, each with the power of the same thing.
        notes: what is known against the readings.
        failure: why readings are missing, when it is known.
        min_samples: distinct sensor updates without which the window is void.
        remedies: what to do, in the words of the place where it is shown.
    """
    from pytest_joules.suite import GateLimits  # brings pydantic, which the other commands need not wait for

    # A trace is judged by the limits of a suite that states none of its own.
    limits = GateLimits()
    every = {s.rail.name: s for s in (*counted, *(power for _, power in checks))}
    rails = [trace.energy(s.rail, s.mono, s.value, start, end) for s in every.values()]
    pairs = [(counter.rail.name, power.rail.name) for counter, power in checks]
    found = reading.total(rails, [s.rail.name for s in counted], start, end, failure, pairs)
    averaging_s = {name: s.rail.averaging_s for name, s in every.items()}
    used = [every[name] for name in found.counted]
    judged = reading.checks(
        found, limits, averaging_s, min_samples=min_samples, thin_voids=True, notes=notes, remedies=remedies
    )
    return Judged(
        reading=found,
        method="counter" if all(s.rail.kind == "counter" for s in used) else "integrated",
        gates=(*judged, _alive(used)),
    )


def _alive(counted: Sequence[Series]) -> Gate:
    """Whether the sensors showed any sign of life over the whole trace."""
    still = [s.rail.name for s in counted if s.rail.kind != "counter" and trace.frozen(s.mono, s.value)]
    dead = all((s.value == 0).all() for s in counted)
    value = f"no digit of {', '.join(still)} ever changed" if still else "every reading is 0" if dead else "moves"
    return Gate(
        name="sensor alive",
        outcome="void" if still or dead else "pass",
        value=value,
        limit="readings that move",
        remedy="the sensor is frozen or reads nothing; use another source" if still or dead else "",
    )


def _chosen(recorded: tracefile.Trace, wanted: str | None) -> tuple[list[Series], list[tuple[Series, Series]]]:
    """The series that count, and the counters among them with the power beside each: of the only rail, or of those named."""
    known = list(dict.fromkeys(s.rail.covers[0] for s in recorded.series))
    if wanted is None:
        if len(known) > 1:
            raise UsageError(
                f"{recorded.path} has the rails {', '.join(known)}, which may overlap: state --rail, one or several by comma"
            )
        names = known
    else:
        names = [name.strip() for name in wanted.split(",")]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--rail {wanted}: {name} is named twice")
        if name not in known:
            raise UsageError(
                f"--rail {name}: the trace has no such rail{nearest(name, known)}; it has {', '.join(known)}"
            )
    chosen = [s for s in recorded.series if s.rail.covers[0] in names]
    counted = {s.rail.covers[0]: s for s in chosen if s.rail.role == "counted"}
    return list(counted.values()), [(counted[s.rail.covers[0]], s) for s in chosen if s.rail.role == "check"]


def _uncovered(recorded: tracefile.Trace, counted: Sequence[Series], start: float, end: float) -> str:
    """That the window reaches past the samples, by more than one could wait for the next of them; else nothing."""
    for series in counted:
        mono = np.sort(series.mono)
        usual_s = float(np.median(np.diff(mono))) if len(mono) > 1 else 0.0
        beyond_s = max(float(mono[0]) - start, end - float(mono[-1]))
        if beyond_s > trace.GAP_PERIODS * usual_s:
            return f"the trace covers {recorded.covers([series])}, the window reaches {beyond_s:.4g} s past it"
    return ""


def _refuse_idle(given: Mapping[str, object], used: Sequence[Series]) -> None:
    """Refuse options about readings that the window does not use.

    Raises:
        UsageError: with the reading that is missing.
    """
    power = [s.rail for s in used if s.rail.kind != "counter"]
    no_power = "" if power else "there is no power_w in the window's rails"
    # An interval mean is one of its own interval, whatever is said of it.
    tiled = all(rail.kind == "interval_mean" for rail in power)
    without_effect = {
        "--kind": no_power,
        "--averaging-s": no_power or ("an interval_mean averages over its own interval" if tiled else ""),
        "--wrap-j": "" if len(power) < len(used) else "there is no energy_j in the window's rails",
    }
    for option, value in given.items():
        if value is not None and without_effect[option]:
            raise UsageError(f"{option} {value}: {without_effect[option]}; leave it out")


def _fold(text: str | None) -> tracefile.Fold | None:
    if text not in (None, *get_args(tracefile.Fold)):
        raise UsageError(f"--fold {text}: it is first or second")
    return cast(tracefile.Fold | None, text)


def _positive(option: str, value: float | None) -> float | None:
    if value is not None and not 0 < value < math.inf:
        raise UsageError(f"{option} {value:g}: it must be a positive number")
    return value


def _lines(record: dict[str, Any]) -> list[str]:
    """The answer for a person."""
    if record["energy_j"] is None:
        lines = [f"void: no energy for this window of {record['window_s']:.4g} s"]
    else:
        # A trace does not say whether a sensor or an estimate wrote it, so the good outcome is not called "measured" here.
        flagged = ": flagged" if record["outcome"] == "flagged" else ""
        lines = [
            f"{record['energy_j']:.4g} ± {record['uncertainty_j']:.2g} J over {record['window_s']:.4g} s, "
            f"{record['power_w']:.4g} W{flagged}"
        ]
        if "energy_per_token_mj" in record:
            lines.append(f"{record['energy_per_token_mj']:.4g} mJ per token over {record['tokens']} tokens")
    every = "" if record["refresh_s"] is None else f", one every {record['refresh_s']:.3g} s"
    lines.append(f"{record['samples']} sensor updates{every}, {record['method']}")
    return lines + [f"  {reason}" for reason in record["reasons"]]
