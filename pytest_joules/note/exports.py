"""A stored run as records for other tools: rows of a table, and the file that pytest-benchmark compares. Pure."""

from __future__ import annotations

import csv
import io
import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_joules.errors import UsageError, Void
from pytest_joules.metrics import METRICS
from pytest_joules.note import lines
from pytest_joules.records import Condition, Gate, Run, model_text
from pytest_joules.sweep import Cell, from_run, label
from pytest_joules.words import printable

Record = dict[str, object]
"""One row: `None` where something is not known."""

TIME_PER_TOKEN = "time_per_token_s"  # noqa: S105 -- tokens of text
"""Seconds of window per generated token, all requests together: 1 / tokens_per_s."""

BENCHMARK_METRICS = (TIME_PER_TOKEN, *(name for name, metric in METRICS.items() if metric.cost))
"""What pytest-benchmark can be given: it takes less for better."""

BENCHMARK_FORMAT = "5.1.0"
"""The version of pytest-benchmark whose file is written."""

_ALWAYS = ("engine", "model", "format")
"""Axes with a column of their own, whether or not they vary."""

_OF_ANSWERS = ("tokens", "prompt_tokens", "tokens_per_s", "tokens_per_s_per_request")
"""Metrics that nothing is known of where no answer was counted."""

_OF_SEVERAL_WINDOWS = ("decode_energy_per_token_mj", "prefill_share")

_FORMULA = ("=", "+", "-", "@", "\n", "＝", "＋", "－", "＠")
"""What a spreadsheet may take for the beginning of a formula."""


def axes_of(runs: Iterable[Run]) -> tuple[str, ...]:
    """What varies in any of the runs, apart from what has a column always."""
    return tuple(dict.fromkeys(axis for run in runs for axis in run.axes if axis not in _ALWAYS))


def conditions(run: Run, axes: Sequence[str]) -> Iterator[Record]:
    """A row for each condition of a run: the figures of its table, each the mean over the passes.

    Args:
        axes: the columns of what varies, as `axes_of` gives them for all runs of one table.

    Raises:
        UsageError: a figure is not finite.
    """
    sweep = from_run(run)
    for cell, figures in zip(sweep.cells, lines.rows(sweep), strict=True):
        reasons = [*_reasons(_gates(cell, run)), *_missing(cell, run)]
        yield {
            **_whence(run, cell.condition, axes),
            "passes": run.passes,
            **_meter(run),
            "outcome": "void" if cell.void else "flagged" if reasons else "measured",
            **{name: _finite(figures[name], name, run, cell.condition) for name in METRICS},
            "energy_per_token_spread": figures["energy_per_token_spread"],
            "reasons": cell.void or " | ".join(reasons),
            **_against(run),
        }


def windows(run: Run, axes: Sequence[str]) -> Iterator[Record]:
    """A row for each window of a run, in the order they were measured; a void one has no figures but its length.

    Raises:
        UsageError: a figure is not finite.
    """
    for window in run.windows:
        counted = bool(window.requests)
        figures: Record = dict.fromkeys((name for name in METRICS if name not in _OF_SEVERAL_WINDOWS), None)
        if window.outcome != "void":
            figures |= {
                name: METRICS[name].of_window(window, run.idle)
                for name in figures
                if counted or name not in _OF_ANSWERS
            }
        figures["window_s"] = window.window_s
        figures["uncertainty_j"] = None if figures["energy_j"] is None else window.uncertainty_j
        yield {
            **_whence(run, window.condition, axes),
            "role": window.role,
            # An idle window or a load step belongs to the run and to no pass.
            "pass": window.pass_index + 1 if window.condition else None,
            "sequence": window.sequence,
            "window_started_utc": window.started_utc,
            "requests": len(window.requests) if counted else None,
            "slots": window.slots if counted else None,
            "rounds": window.rounds if counted else None,
            "answer_tokens_asked": window.answer_tokens or None,
            **_meter(run),
            "outcome": window.outcome,
            **{name: _finite(figure, name, run, window.condition) for name, figure in figures.items()},
            "reasons": " | ".join([window.failure] * bool(window.failure) + _reasons(window.gates)),
            **_against(run),
        }


def csv_text(rows: Sequence[Record]) -> str:
    """Rows of the same keys as CSV with a heading; what is not known is an empty field.

    Text that a spreadsheet could take for a formula gets an apostrophe in front, and what a terminal would obey is written
    out; numbers are left as they are.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n", strict=True)
    writer.writerow([_field(name) for name in rows[0]])
    writer.writerows([_field(value) for value in row.values()] for row in rows)
    return out.getvalue()


@dataclass(frozen=True, slots=True)
class Benchmarks:
    """What pytest-benchmark reads of a run.

    Attributes:
        file: the content of the file.
        left_out: conditions that have no benchmark, and why.
    """

    file: Mapping[str, Any]
    left_out: tuple[str, ...]


def benchmarks(run: Run, metric: str = TIME_PER_TOKEN) -> Benchmarks:
    """A run as pytest-benchmark saves one: a benchmark for each condition, a round for each pass.

    That tool prints every figure as seconds. A metric of another unit is given in J or W, and the group and the name of each
    benchmark say so.

    Args:
        metric: one of `BENCHMARK_METRICS`.

    Raises:
        UsageError: a figure is not finite.
        Void: no condition has figures of its passes.
    """
    factor, unit = _scale(metric)
    meter = run.meter
    # Energies of unlike parts or bases must not be ranked in one table; pytest-benchmark makes one for each group.
    about = "" if unit == "s" else f", {meter.scope} ({', '.join(meter.covers)}), {meter.basis}; read s as {unit}"
    made: list[dict[str, Any]] = []
    without: dict[str, str] = {}
    for cell, row in zip(from_run(run).cells, conditions(run, axes_of([run])), strict=True):
        try:
            figures = _of_passes(cell, metric)
        except Void as why:
            without[label(cell.condition) or run.suite_name] = str(why)
            continue
        called = label(cell.condition)
        name = f"{run.suite_name}[{called}]" if called else run.suite_name
        name += "" if unit == "s" else f" (read s as {unit})"
        data = [factor * _finite(figure, metric, run, cell.condition) for figure in figures]
        made.append(
            {
                "group": f"{run.suite_name}: {metric}{about}",
                "name": name,
                "fullname": name,
                "params": dict(cell.condition) or None,
                "param": called or None,
                "extra_info": {key: value for key, value in row.items() if value is not None},
                "options": dict(run.suite.get("protocol", {})),
                "stats": {**stats(data), "data": data, "iterations": 1},
            }
        )
    left_out = tuple(f"{', '.join(names)}: {why}" for why, names in _by_reason(without).items())
    if not made:
        raise Void(f"run {run.run_id}: no condition has {metric} for each pass: {'; '.join(left_out)}")
    file = {
        "machine_info": {**run.machine, "machine_slug": run.machine_slug},
        "commit_info": {"id": run.provenance.get("head") or "unversioned"},
        "benchmarks": made,
        "datetime": run.started_utc,
        "version": BENCHMARK_FORMAT,
    }
    return Benchmarks(file, left_out)


def stats(data: Sequence[float]) -> dict[str, float | int | str]:
    """The statistics of pytest-benchmark, by its own definitions (`pytest_benchmark/stats.py`).

    Args:
        data: one figure or more.
    """
    ordered = sorted(data)
    mean = statistics.mean(data)
    stddev = statistics.stdev(data) if len(data) > 1 else 0.0
    q1, q3 = _quartiles(ordered)
    iqr = q3 - q1
    low, high = q1 - 1.5 * iqr, q3 + 1.5 * iqr
    off_mean = sum(not mean - stddev <= value <= mean + stddev for value in data)
    off_quartiles = sum(not low <= value <= high for value in data)
    total = sum(data)
    return {
        "min": ordered[0],
        "max": ordered[-1],
        "mean": mean,
        "stddev": stddev,
        "rounds": len(data),
        "median": statistics.median(data),
        "iqr": iqr,
        "q1": q1,
        "q3": q3,
        "iqr_outliers": off_quartiles,
        "stddev_outliers": off_mean,
        "outliers": f"{off_mean};{off_quartiles}",
        "ld15iqr": ordered[bisect_left(ordered, low)],
        "hd15iqr": ordered[bisect_right(ordered, high) - 1],
        "ops": len(data) / total if total else 0.0,
        "total": total,
    }


def _quartiles(ordered: Sequence[float]) -> tuple[float, float]:
    """The median of each half; of an odd number, the neighbours of the quarter weighed 3 to 1."""
    count = len(ordered)
    if count == 1:
        return ordered[0], ordered[0]
    if count % 2 == 0:
        return statistics.median(ordered[: count // 2]), statistics.median(ordered[count // 2 :])

    def between(place: int, share: float) -> float:
        return share * ordered[place] + (1 - share) * ordered[place + 1]

    n = count // 4
    if count % 4 == 1:
        return between(n - 1, 0.25), between(3 * n, 0.75)
    return between(n, 0.75), between(3 * n + 1, 0.25)


def _scale(metric: str) -> tuple[float, str]:
    """What a metric's figure is multiplied by, and the unit it is then in."""
    scales = {"s": (1.0, "s"), "mj": (0.001, "J"), "j": (1.0, "J"), "w": (1.0, "W")}
    return scales[metric.rpartition("_")[2]]


def _of_passes(cell: Cell, metric: str) -> list[float]:
    """The figure of each pass.

    Raises:
        Void: with the reason why there is none.
    """
    if cell.void:
        raise Void(cell.void)
    if not cell.passes:
        raise Void("the passes' own figures were not published; --format csv has their mean")
    read = "tokens_per_s" if metric == TIME_PER_TOKEN else metric
    if any(not figures.get(read) for figures in cell.passes):
        raise Void(f"{metric} is undefined: {cell.undefined.get(metric, 'no figure')}")
    figures = [figures[read] for figures in cell.passes]
    return [1.0 / figure for figure in figures] if metric == TIME_PER_TOKEN else figures


def _whence(run: Run, condition: Condition, axes: Sequence[str]) -> Record:
    """Run, machine, model and condition."""
    model = run.models[0] if len(run.models) == 1 else {}
    always = {
        "engine": next(iter(run.engine)) if len(run.engine) == 1 else None,
        "model": model_text(model) if model.get("substitute") else model.get("name"),
        "format": model.get("format"),
    }
    return {
        "run_id": run.run_id,
        "started_utc": run.started_utc,
        "suite": run.suite_name,
        "machine": run.machine_slug,
        "chip": run.machine.get("chip"),
        **{name: condition.get(name, value) for name, value in always.items()},
        **{axis: condition[axis] if axis in condition else _fixed(run, axis) for axis in axes},
    }


def _fixed(run: Run, axis: str) -> object:
    """The one value that a suite gives to what varies in another; `None` where it varies here too, or is not stated."""
    if axis in run.axes:
        return None
    sections = (section for section in run.suite.values() if isinstance(section, Mapping))
    return next((section[axis] for section in sections if axis in section), None)


def _meter(run: Run) -> Record:
    meter = run.meter
    return {"meter": meter.name, "basis": meter.basis, "scope": meter.scope, "covers": "+".join(meter.covers)}


def _against(run: Run) -> Record:
    """What speaks against the run as a whole."""
    return {
        "run_flags": " | ".join(str(gate) for gate in run.gates if gate.outcome in ("flag", "void")),
        "deviations": " | ".join(run.deviations),
    }


def _gates(cell: Cell, run: Run) -> Iterator[Gate]:
    """Every check on the windows, or on the published figures, of one condition."""
    for window in run.windows:
        if window.role == "measured" and window.condition == cell.condition:
            yield from window.gates
    for published in run.published:
        if published.condition == cell.condition:
            yield from published.gates


def _reasons(found: Iterable[Gate]) -> list[str]:
    """What checks say against what they checked, each once."""
    said = (
        f"{gate.name}: could not be checked" if gate.outcome == "not evaluable" else str(gate)
        for gate in found
        if gate.outcome != "pass"
    )
    return list(dict.fromkeys(said))


def _missing(cell: Cell, run: Run) -> Iterator[str]:
    """Why figures of a published table are not there, or must not be read, as far as the table says so."""
    for published in run.published:
        if published.condition == cell.condition:
            for why, names in _by_reason(published.missing).items():
                yield why if len(names) == len(METRICS) else f"{', '.join(names)}: {why}"


def _by_reason(reasons: Mapping[str, str]) -> dict[str, list[str]]:
    """What has the same reason, together."""
    together: dict[str, list[str]] = {}
    for name, why in reasons.items():
        together.setdefault(why, []).append(name)
    return together


def _finite(value: object, name: str, run: Run, condition: Condition) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        where = f" at {label(condition)}" if condition else ""
        raise UsageError(
            f"run {run.run_id}: {name}{where} is {value}, which is no figure; the file was changed by hand"
        )
    return value


def _field(value: object) -> object:
    """A value as a field of CSV."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = printable(value)
        return f"'{text}" if text.startswith(_FORMULA) else text
    return value
