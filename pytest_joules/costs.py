"""What a token costs by machine, model and batch: curves with their best batch, for planners and for people. Pure.

A curve is what one run found along the batch, everything else alike. Only a run gives figures; what is taken over for a machine
that has none of its own says so in its basis, and has no interval.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml
from tabulate import tabulate

from pytest_joules.errors import Unmeasured, Void
from pytest_joules.metrics import METRICS
from pytest_joules.note import comparison, findings, lines, markdown
from pytest_joules.records import Basis, Condition, Run
from pytest_joules.suite import DEFAULT_ENGINE, Draft, Protocol, Request, Server
from pytest_joules.sweep import Cell, Sweep, label
from pytest_joules.words import nearest, one_line, printable

VERSION = 1
"""Of the record's keys; it rises when one of them changes its meaning or goes."""

BATCH = "parallel"
ENERGY = "energy_per_token_mj"
PER_TOKEN = tuple(name for name in METRICS if name.endswith("_token_mj") and not name.startswith("net_"))
SPEEDS = ("tokens_per_s", "tokens_per_s_per_request")

_PLANNED_WITH: tuple[Basis, ...] = ("measured", "transcribed", "estimated")
_TAKEN_OVER: tuple[Basis, ...] = ("measured", "transcribed")
_NAMED = ("model", "format", "engine", "answer_tokens", BATCH)
"""Axes that have a key of their own."""
_DIGITS = 5
_REASON = 200
_NAME_WIDTH = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure.

    Attributes:
        value: as it was printed where it was, else to five digits.
        text: as a note shows it.
        interval: 95 %, in the figure's unit.
    """

    value: float | int
    text: str
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a token costs at one batch.

    Attributes:
        figures: by metric.
        pass_spread: (max - min) / mean of the energy per token over the passes; `None` where it is not known.
        flags: names of the gates that speak against them.
    """

    batch: int
    figures: Mapping[str, Figure]
    pass_spread: float | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """A batch without an energy per token: it is void, or has no figure that may be read.

    Attributes:
        printed: the figure that was published and may not be read.
    """

    batch: int
    void: bool
    why: str
    printed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The batch at which a token costs least.

    Attributes:
        sure: `clear` or `narrow`, as the note of the run says it.
        why: what speaks against it, where it is narrow.
        largest_measured: no larger one has a figure, so that more may be cheaper still.
        energy_saved: share of a lone request's energy per token; `None` where no request was measured alone.
        speed_kept: a request's speed as a share of that of a lone one; `None` likewise.
    """

    batch: int
    sure: str
    why: str
    largest_measured: bool
    energy_saved: float | None
    speed_kept: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The machine and the basis from which a curve was taken over."""

    machine: str
    chip: str
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One run along the batch.

    Attributes:
        sha256: of the model file, where it is known.
        includes: what a window of the engine holds, such as `prefill` and `decode`; empty where the run does not state it.
        settings: what was neither usual nor is told elsewhere, such as a cap of the clock, and what else varied in the run.
        varied: which of the settings varied.
        no_interval: why the energies have no interval; empty where they have.
        rows, without: every batch that was asked for, in one of the two.
        transferred_from: `None` of a machine's own run.
    """

    machine: str
    chip: str
    model: str
    format: str | None
    sha256: str | None
    engine: str
    suite: str
    run_id: str
    basis: Basis
    scope: str
    covers: tuple[str, ...]
    meter: str
    passes: int
    answer_tokens: int | None
    includes: tuple[str, ...]
    settings: Mapping[str, Any]
    varied: tuple[str, ...]
    rows: tuple[Row, ...]
    without: tuple[Absent, ...]
    no_interval: str
    best: Best | None
    remarks: tuple[str, ...]
    transferred_from: Source | None = None

    @property
    def of_model(self) -> str:
        """`qwen2.5-7b-instruct q4_0`."""
        return f"{self.model} {self.format or ''}".strip()

    @property
    def told_briefly(self) -> str:
        """What it is of: model, engine where it is not the usual one, and what varied."""
        engine = [self.engine] if self.engine != DEFAULT_ENGINE else []
        return ", ".join([self.of_model, *engine, *self._set(self.varied)])

    @property
    def told(self) -> str:
        """What tells it from the other curves of its machine."""
        return f"{self.told_briefly}, suite {self.suite}"

    @property
    def setup(self) -> str:
        """How it was measured, in one sentence."""
        basis = self.basis if self.transferred_from is None else self.transferred_from.basis
        parts = [f"{basis} energy of the {self.scope} ({', '.join(self.covers)}) by {self.meter}"]
        parts += [f"answers of {self.answer_tokens} tokens"] if self.answer_tokens else []
        parts += self._set([name for name in self.settings if name not in self.varied])
        parts += [f"{self.passes} {'pass' if self.passes == 1 else 'passes'}", f"run {self.run_id}"]
        return "; ".join(parts) + "."

    def _set(self, names: Iterable[str]) -> list[str]:
        return [f"{name} {json.dumps(self.settings[name], ensure_ascii=False)}" for name in names]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Every curve, in an order that follows from what they are of.

    Attributes:
        planned_for: the machine that was asked for; empty when all were.
        left_out: runs whose figures are no costs, with the reason.
    """

    curves: tuple[Curve, ...]
    left_out: tuple[str, ...] = ()
    planned_for: str = ""
    remarks: tuple[str, ...] = ()


def table(curves: Iterable[Curve], left_out: Iterable[str] = ()) -> Table:
    """The curves of all machines."""
    return Table(curves=tuple(sorted(curves, key=_order)), left_out=tuple(sorted(left_out)))


def planned(found: Table, machine: str, chip: str = "") -> Table:
    """The table of one machine: its own curves, and for models it has no figure of those of every other machine as transferred.

    Args:
        chip: of the machine, where it is known.
    """
    own = [curve for curve in found.curves if curve.machine == machine]
    have = {(curve.model, curve.format) for curve in own if curve.rows}
    others = [c for c in found.curves if c.machine != machine and c.rows and (c.model, c.format) not in have]
    taken = [_transferred(curve, machine, chip) for curve in others if curve.basis in _TAKEN_OVER]
    remarks = []
    if not own:
        known = dict.fromkeys(curve.machine for curve in found.curves)
        remarks.append(f"there is no run of {machine} itself{nearest(machine, known)}")
    estimated = dict.fromkeys(f"{c.of_model} of {c.machine}" for c in others if c.basis not in _TAKEN_OVER)
    if estimated:
        remarks.append(f"not taken over, because it is estimated: {', '.join(estimated)}")
    curves = tuple(sorted([*own, *taken], key=_order))
    return Table(curves=curves, planned_for=machine, remarks=tuple(remarks))


def _order(curve: Curve) -> tuple[str, ...]:
    source = curve.transferred_from.machine if curve.transferred_from else ""
    facts = (curve.machine, source, curve.model, curve.format or "", curve.engine, curve.suite)
    return (*facts, repr(sorted(curve.settings.items())), str(curve.answer_tokens), curve.sha256 or "", curve.run_id)


def _transferred(curve: Curve, machine: str, chip: str) -> Curve:
    rows = [
        replace(row, figures={name: replace(figure, interval=None) for name, figure in row.figures.items()})
        for row in curve.rows
    ]
    return replace(
        curve, machine=machine, chip=chip, basis="transferred", rows=tuple(rows),
        no_interval="how far they are off on this machine is not known",
        transferred_from=Source(machine=curve.machine, chip=curve.chip, basis=curve.basis),
    )  # fmt: skip


def why_left_out(run: Run) -> str:
    """Why the energies of a run are no costs; empty where they are."""
    if run.meter.basis in _PLANNED_WITH:
        return ""
    what = "random weights" if run.meter.basis == "synthetic" else f"{run.meter.basis} figures"
    return left_out(run.machine_slug, run.suite_name, run.run_id, f"{what} have no cost to plan with")


def left_out(machine: str, suite: str, run_id: str, why: str) -> str:
    """A run that gives no curve, and the reason."""
    return f"{machine}, suite {suite}, run {run_id}: {why}"


def has_figures(curves: Iterable[Curve]) -> bool:
    """Whether any batch has an energy per token."""
    return any(curve.rows for curve in curves)


def older(curve: Curve, newer: Sequence[Curve]) -> Curve:
    """A curve that stands in for those of a newer run, which has no figure."""
    said = [f"an older run: {one.run_id} has no figure ({one.without[0].why})" for one in newer[:1] if one.without]
    return replace(curve, remarks=(*curve.remarks, *said))


def curves(run: Run) -> list[Curve]:
    """The curves of a run: one for each combination of what varied beside the batch."""
    one = comparison.entry("", run)
    others = [axis for axis in one.sweep.axes if axis != BATCH]
    intervals = {metric: comparison.intervals(one, metric) for metric in PER_TOKEN}
    combinations = {repr(fixed): fixed for fixed in ({axis: c[axis] for axis in others} for c in run.conditions)}
    return [_curve(one, fixed, intervals) for fixed in combinations.values()]


_Intervals = Mapping[str, tuple[Mapping[comparison.Key, tuple[float, float]], str]]


def _curve(one: comparison.Entry, fixed: Condition, intervals: _Intervals) -> Curve:
    run = one.run
    rows: list[Row] = []
    without: list[Absent] = []
    no_interval = _no_interval(run) or intervals[ENERGY][1]
    for key, cell in one.cells.items():
        if any(cell.condition[axis] != value for axis, value in fixed.items()):
            continue
        batch = int(cell.condition.get(BATCH, _asked(run, "server", BATCH, Server().parallel)))
        found = {
            metric: _figure(cell, metric, None if no_interval else intervals[metric][0].get(key))
            for metric in PER_TOKEN if _why_none(cell, metric) is None
        }  # fmt: skip
        why = _why_none(cell, ENERGY)
        if why is None:
            speeds = {metric: _figure(cell, metric) for metric in SPEEDS if _why_none(cell, metric) is None}
            flags = dict.fromkeys(flag.partition(":")[0] for flag in cell.flags)
            rows.append(Row(batch=batch, figures=found | speeds, pass_spread=_pass_spread(cell), flags=tuple(flags)))
        else:
            printed = lines.figure_text(cell, ENERGY) if ENERGY in cell.means and not cell.void else ""
            without.append(Absent(batch=batch, void=bool(cell.void), why=why, printed=printed))
    model = _model(run, fixed)
    engine = str(fixed.get("engine", run.suite.get("engine") or next(iter(run.engine), DEFAULT_ENGINE)))
    settings = dict(_settings(run, fixed))
    varied = {axis: value for axis, value in fixed.items() if axis not in _NAMED}
    answer_tokens = fixed.get("answer_tokens", _asked(run, "request", "answer_tokens", None))
    return Curve(
        machine=run.machine_slug,
        chip=str(run.machine.get("chip", "")),
        model=str(model.get("name")),
        format=None if model.get("format") is None else str(model["format"]),
        sha256=None if model.get("sha256") is None else str(model["sha256"]),
        engine=engine,
        suite=run.suite_name,
        run_id=run.run_id,
        basis=run.meter.basis,
        scope=run.meter.scope,
        covers=tuple(sorted(run.meter.covers)),
        meter=run.meter.name,
        passes=run.passes,
        answer_tokens=answer_tokens,
        includes=run.includes(engine),
        settings=settings | varied,
        varied=tuple(varied),
        rows=tuple(sorted(rows, key=lambda row: row.batch)),
        without=tuple(sorted(without, key=lambda absent: absent.batch)),
        no_interval=no_interval,
        best=_best(one, fixed, rows),
        remarks=tuple(_remarks(one, run.includes(engine))),
    )


def _asked(run: Run, section: str, key: str, usual: Any) -> Any:
    values = run.suite.get(section)
    return values.get(key, usual) if isinstance(values, Mapping) else usual


def _why_none(cell: Cell, metric: str) -> str | None:
    """Why a figure may not be read; `None` where it may."""
    try:
        cell.mean(metric)
    except (Unmeasured, Void) as error:
        return one_line(str(error).removeprefix(f"{label(cell.condition)}: "), _REASON)
    return None


def _no_interval(run: Run) -> str:
    """Why a figure of such a run has no interval by itself, though the noise may be known; empty where it may have one."""
    if run.meter.basis == "estimated":
        return "how far an estimate is off is not known"
    # Two passes may both be off the same way, and their spread does not show it.
    return "only the spread of the passes was printed" if run.published else ""


def _pass_spread(cell: Cell) -> float | None:
    try:
        return round(cell.spread(ENERGY), 4)
    except (Unmeasured, Void):
        return None


def _figure(cell: Cell, metric: str, ends: tuple[float, float] | None = None) -> Figure:
    value, text = cell.mean(metric), lines.figure_text(cell, metric)
    kept: float | int = float(f"{value:.{_DIGITS}g}")
    if cell.roundings.get(metric):
        # What was printed keeps its digits.
        plain = text.replace(",", "")
        kept = float(plain) if "." in plain else int(plain)
    if ends is None:
        return Figure(value=kept, text=text)
    low, high = (float(f"{value * end:.3g}") for end in ends)
    return Figure(value=kept, text=text, interval=(low, high))


def _model(run: Run, fixed: Condition) -> Mapping[str, Any]:
    """The model of a curve: where it varies by name and format, else as it was found, which may be another than was asked for."""
    asked = {"name": fixed.get("model", run.suite.get("model")), "format": fixed.get("format", run.suite.get("format"))}
    stated = {key: asked[key] for key, axis in (("name", "model"), ("format", "format")) if axis in fixed}
    candidates = [model for model in run.models if all(model.get(key) == value for key, value in stated.items())]
    # A draft model stands beside the model.
    candidates.sort(key=lambda model: model.get("name") != asked["name"])
    if candidates and candidates[0].get("substitute"):
        # A figure of another file is none of the model that was asked for.
        return {"name": candidates[0].get("path"), "format": None}
    return candidates[0] if candidates else asked


def _settings(run: Run, fixed: Condition) -> Iterator[tuple[str, Any]]:
    """What was set otherwise than usual and did not vary; which further windows were measured does not bear on a figure."""
    for section, usual in (("server", Server()), ("request", Request()), ("draft", Draft()), ("protocol", Protocol())):
        names = ["warm"] if section == "protocol" else [field.name for field in dataclasses.fields(usual)]
        for name in names:
            value = _asked(run, section, name, getattr(usual, name))
            if name not in (*_NAMED, *fixed, "lengths", "prefill_windows") and value != getattr(usual, name):
                yield name, one_line(value, _REASON) if isinstance(value, str) else value
    knobs = run.suite.get("knobs")
    if isinstance(knobs, Mapping):
        yield from ((name, value) for name, value in knobs.items() if name not in fixed)


def _best(one: comparison.Entry, fixed: Condition, rows: Sequence[Row]) -> Best | None:
    if BATCH not in one.sweep.axes:
        return None
    along = one.sweep.where(**fixed) if fixed else one.sweep
    found = findings.cheapest(along, BATCH, label(fixed), one.effects, one.run.meter.basis)
    if found is None:
        return None
    batch, finding = found
    by_batch = {row.batch: row.figures for row in rows}
    alone = by_batch.get(1, {})

    def against_alone(metric: str) -> float | None:
        pair = [figures.get(metric) for figures in (by_batch[batch], alone)]
        values = [figure.value for figure in pair if figure is not None]
        return values[0] / values[1] if len(values) == 2 and batch != 1 else None

    energy, speed = (against_alone(metric) for metric in (ENERGY, "tokens_per_s_per_request"))
    saved = None if energy is None else round(1.0 - energy, 3)
    # Who published it knew more digits than were printed.
    printed = re.fullmatch(r"(\d+)% (less|more)", _cell_at(along, batch).change)
    if printed and along.cells[0].condition[BATCH] == 1:
        saved = int(printed[1]) / (100 if printed[2] == "less" else -100)
    return Best(
        batch=batch,
        sure=finding.sure,
        why=finding.why,
        largest_measured=batch == max(by_batch),
        energy_saved=saved,
        speed_kept=None if speed is None else round(speed, 3),
    )


def _cell_at(along: Sweep, batch: int) -> Cell:
    return next(cell for cell in along.cells if cell.condition[BATCH] == batch)


def _remarks(one: comparison.Entry, includes: Sequence[str]) -> Iterator[str]:
    """What speaks against the figures beside their gates."""
    run = one.run
    if run.published:
        yield comparison.UNKNOWN_METER
    elif run.meter.basis == "measured" and any(r.calibration is None for r in run.meter.rails if r.role == "counted"):
        yield f"the meter ({run.meter.name}) states no calibration error: the intervals hold the noise of the run alone"
    elif run.meter.basis == "estimated":
        yield "estimated from how busy the processors were: no power measurement"
    if includes and "prefill" not in includes:
        yield "reading the prompt is not inside: the engine's windows hold " + ", ".join(includes)
    if loosened := lines.looser(run.suite):
        yield f"limits looser than usual: {', '.join(loosened)}"
    yield from (f"deviation: {deviation}" for deviation in run.deviations)
    yield from dict.fromkeys(one_line(text, _REASON) for text in (*one.sweep.about.flags, *one.effects))


def record(found: Table) -> dict[str, Any]:
    """The table as plain values, the same in YAML and JSON; docs/costs.md tells every key."""
    return {
        "version": VERSION,
        **({"planned_for": found.planned_for} if found.planned_for else {}),
        "curves": [_curve_record(curve) for curve in found.curves],
        "left_out": list(found.left_out),
        "remarks": list(found.remarks),
    }


def _curve_record(curve: Curve) -> dict[str, Any]:
    facts = {field.name: getattr(curve, field.name) for field in dataclasses.fields(Curve)}
    best, source = curve.best, curve.transferred_from
    return facts | {
        "covers": _Line(curve.covers),
        "includes": _Line(curve.includes),
        "varied": _Line(curve.varied),
        "settings": _Entry(curve.settings),
        "rows": [_row_record(row) for row in curve.rows],
        "without": [_Entry(dataclasses.asdict(absent)) for absent in curve.without],
        "best": None if best is None else dataclasses.asdict(best),
        "remarks": list(curve.remarks),
        "transferred_from": None if source is None else _Entry(dataclasses.asdict(source)),
    }


def _row_record(row: Row) -> dict[str, Any]:
    kept: dict[str, Any] = {"batch": row.batch}
    for metric in PER_TOKEN:
        figure = row.figures.get(metric)
        if figure is not None:
            kept[metric] = figure.value
            kept[f"{metric.removesuffix('_mj')}_interval_mj"] = figure.interval and list(figure.interval)
    for metric in SPEEDS:
        kept[metric] = row.figures[metric].value if metric in row.figures else None
    return _Entry(kept | {"pass_spread": row.pass_spread, "flags": list(row.flags)})


class _Entry(dict[str, Any]):
    """A mapping that takes one line of YAML, so that a change of one row is a change of one line."""


class _Line(list[Any]):
    """A list that takes one line of YAML."""


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


_Dumper.add_representer(
    _Entry, lambda dumper, data: dumper.represent_mapping("tag:yaml.org,2002:map", data.items(), True)
)
_Dumper.add_representer(_Line, lambda dumper, data: dumper.represent_sequence("tag:yaml.org,2002:seq", data, True))


def as_yaml(found: Table) -> str:
    """The record as YAML whose lines move only where something has changed."""
    text = yaml.dump(record(found), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**9)
    return f"# Made by 'joules costs -o .' from stored runs; docs/costs.md of pytest-joules tells every key.\n{text}"


def changes(old: Any, new: Table) -> list[str]:
    """What a record that was read back says otherwise than the table does now, in a line each."""
    before, now = _by_curve(old), _by_curve(record(new))
    found = []
    for name, curve in now.items():
        was = before.get(name)
        if was is None:
            found.append(f"{name}: new")
        elif was.get("run_id") != curve["run_id"]:
            found.append(f"{name}: run {was.get('run_id')} is now {curve['run_id']}")
        else:
            found += [f"{name}: {change}" for change in _differences(was, curve)]
    found += [f"{name}: gone" for name in before if name not in now]
    return found


def _by_curve(read: Any) -> dict[str, Mapping[str, Any]]:
    listed = read.get("curves") if isinstance(read, Mapping) else None
    kept = [curve for curve in listed if isinstance(curve, Mapping)] if isinstance(listed, list) else []
    named: dict[str, Mapping[str, Any]] = {}
    for curve in kept:
        about = (curve.get(key) for key in ("machine", "model", "format", "engine", "suite"))
        settings = curve.get("settings")
        unusual = [f"{k}={v}" for k, v in settings.items()] if isinstance(settings, Mapping) else []
        facts = [*(str(fact) for fact in about if fact is not None), *unusual, f"answers {curve.get('answer_tokens')}"]
        name = " ".join(facts)
        named[name if name not in named else f"{name} {curve.get('sha256')} {curve.get('run_id')}"] = curve
    return named


def _differences(was: Mapping[str, Any], curve: Mapping[str, Any]) -> Iterator[str]:
    old_rows, new_rows = _by_batch(was.get("rows")), _by_batch(curve["rows"])
    for batch in sorted({*old_rows, *new_rows}, key=str):
        old, new = old_rows.get(batch, {}), new_rows.get(batch, {})
        for key in dict.fromkeys([*new, *old]):
            if old.get(key) != new.get(key):
                yield f"batch {batch}: {key} {old.get(key)} is now {new.get(key)}"
    for key in dict.fromkeys([*curve, *was]):
        if key != "rows" and was.get(key) != curve.get(key):
            yield f"{key} {one_line(str(was.get(key)), 80)} is now {one_line(str(curve.get(key)), 80)}"


def _by_batch(rows: Any) -> dict[Any, Mapping[str, Any]]:
    listed = rows if isinstance(rows, list) else []
    return {str(row.get("batch")): row for row in listed if isinstance(row, Mapping)}


_HEADS = {
    ENERGY: "mJ per token",
    "decode_energy_per_token_mj": "mJ per decode token",
    "energy_per_prompt_token_mj": "mJ per prompt token",
    "tokens_per_s": "tok/s",
    "tokens_per_s_per_request": "tok/s per request",
}


def text(found: Table, width: int) -> Iterator[str]:
    """The table as text that fits `width` columns; 0 makes it Markdown, a line a paragraph."""
    yield from _headed(
        f"What a token costs on {found.planned_for}" if found.planned_for else "What a token costs, by machine",
        1,
        width,
    )
    yield from _said(
        "Millijoules per generated token. The reading of its request's prompt is inside, so a figure holds for prompts and answers "
        "of about the length that was measured. Only energies of one scope that cover the same parts can be held against each other."
        + ("" if width > 0 else " Made by 'joules costs -o .' from stored runs."),
        width,
    )
    if found.remarks:
        yield ""
    for remark in found.remarks:
        yield from _said(remark, width, "- ")
    if best := [(curve, curve.best) for curve in found.curves if curve.best is not None]:
        yield ""
        yield from _headed("Cheapest batch", 2, width)
        yield from _tabulated(*_best_table(best, together=width > 0), width)
    for machine, of_machine in itertools.groupby(found.curves, key=lambda curve: (curve.machine, curve.chip)):
        yield ""
        yield from _headed(_titled(*machine), 2, width)
        for number, curve in enumerate(of_machine):
            if number:
                yield ""
            yield from _curve_text(curve, width)
    if found.left_out:
        yield ""
        yield from _headed("Left out", 2, width)
        for reason in found.left_out:
            yield from _said(reason, width, "- ")


def _titled(machine: str, chip: str) -> str:
    return f"{machine} ({chip})" if chip else machine


def _said(text: str, width: int, lead: str = "") -> list[str]:
    if width <= 0:
        return [lead + comparison.plain_markdown(text)]
    return lines.wrapped(lead + printable(text), width, " " * len(lead))


def _headed(text: str, level: int, width: int) -> list[str]:
    if width <= 0:
        return [f"{'#' * level} {comparison.plain_markdown(text)}", ""]
    told = lines.wrapped(printable(text), width, "  ")
    return [*told, "=" * max(map(len, told))] if level == 2 else told


def _tabulated(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    aligned = ["left" if head in _WORDS else "right" for head in heads]
    if width <= 0:
        return markdown.table(heads, [[printable(cell) for cell in row] for row in rows], aligned)
    broken = [re.sub(r" (?=token|interval|decode|request|spread)", "\n", head) for head in heads]
    cells = [[_folded(cell) for cell in row] for row in rows]
    return tabulate(cells, headers=broken, tablefmt="simple", disable_numparse=True, colalign=aligned).splitlines()


def _folded(cell: str) -> str:
    """Names may be long: they are broken between words, and within one, at its hyphens, only where it is too long by itself."""
    parts = printable(cell).split("\n")
    return "\n".join(
        textwrap.fill(part, _NAME_WIDTH, break_on_hyphens=any(len(word) > _NAME_WIDTH for word in part.split()))
        for part in parts
    )


_TOGETHER, _APART = ("machine and model", "energy"), ("machine", "model", "basis", "scope")
_WORDS = (*_TOGETHER, *_APART)


def _best_table(best: Sequence[tuple[Curve, Best]], *, together: bool) -> tuple[list[str], list[list[str]]]:
    """Headings and rows; `together` puts names over each other, so that the table is narrow."""
    heads = [
        *(_TOGETHER if together else _APART),
        "batch",
        _HEADS[ENERGY],
        _HEADS[SPEEDS[1]],
    ]
    rows = []
    alike = Counter((curve.machine, curve.transferred_from, curve.told_briefly) for curve, _ in best)
    for curve, found in best:
        alone = alike[curve.machine, curve.transferred_from, curve.told_briefly] == 1
        machine = f"from {curve.transferred_from.machine}" if curve.transferred_from else curve.machine
        told = curve.told_briefly if together and alone else curve.told
        names = [machine, told, curve.basis, curve.scope]
        names = ["\n".join(names[:2]), "\n".join(names[2:])] if together else names
        figures = next(row.figures for row in curve.rows if row.batch == found.batch)
        shown = [figures[metric].text if metric in figures else "-" for metric in (ENERGY, SPEEDS[1])]
        rows.append([*names, f"{found.batch} ({found.sure})", *shown])
    return heads, rows


def _curve_text(curve: Curve, width: int) -> Iterator[str]:
    yield from _headed(curve.told, 3, width)
    source = curve.transferred_from
    told = f"Transferred from {_titled(source.machine, source.chip)}: {curve.setup}" if source else curve.setup
    yield from _said(told[:1].upper() + told[1:], width)
    yield ""
    if curve.rows:
        yield from _tabulated(*_figures_table(curve), width)
        yield ""
    for sentence in _told_of(curve):
        yield from _said(sentence, width, "- ")


def _figures_table(curve: Curve) -> tuple[list[str], list[list[str]]]:
    """Headings and rows, the batches without an energy among them."""
    energies = [metric for metric in PER_TOKEN if any(metric in row.figures for row in curve.rows)]
    shown = {metric: any(f.interval for row in curve.rows if (f := row.figures.get(metric))) for metric in energies}
    heads = ["batch"]
    for metric in energies:
        heads += [_HEADS.get(metric, metric.replace("_", " ")), *(["95 % interval"] if shown[metric] else [])]
    heads += [_HEADS[metric] for metric in SPEEDS]
    # An interval says more.
    spread = not any(shown.values()) and any(row.pass_spread is not None for row in curve.rows)
    heads += ["pass spread"] * spread
    by_batch: dict[int, list[str]] = {}
    for row in curve.rows:
        cells = by_batch[row.batch] = [str(row.batch)]
        for metric in energies:
            figure = row.figures.get(metric)
            cells += [figure.text if figure else "-", *([_ends(figure)] if shown[metric] else [])]
        cells += [row.figures[metric].text if metric in row.figures else "-" for metric in SPEEDS]
        cells += ["-" if row.pass_spread is None else f"{row.pass_spread:.1%}"] * spread
    for absent in curve.without:
        by_batch[absent.batch] = [str(absent.batch), "void" if absent.void else "-", *[""] * (len(heads) - 2)]
    return heads, [by_batch[batch] for batch in sorted(by_batch)]


def _ends(figure: Figure | None) -> str:
    if figure is None or figure.interval is None:
        return ""
    return " to ".join(lines.figure(end) for end in figure.interval)


def _told_of(curve: Curve) -> Iterator[str]:
    """The best batch in words, then what stands against the figures."""
    if curve.best is not None:
        yield _best_told(curve, curve.best)
    if curve.no_interval and curve.rows:
        yield f"no interval: {curve.no_interval}"
    for void, why in dict.fromkeys((absent.void, absent.why) for absent in curve.without):
        which = [absent for absent in curve.without if (absent.void, absent.why) == (void, why)]
        named = ", ".join(f"{a.batch} (printed as {a.printed})" if a.printed else str(a.batch) for a in which)
        yield f"{'void' if void else 'no figure'} at batch {named}: {why}"
    by_flag: dict[str, list[str]] = {}
    for row in curve.rows:
        for flag in row.flags:
            by_flag.setdefault(flag, []).append(str(row.batch))
    yield from (f"flagged at batch {', '.join(batches)}: {flag}" for flag, batches in by_flag.items())
    yield from curve.remarks


def _best_told(curve: Curve, best: Best) -> str:
    narrow = f": {best.why}" if best.why else ""
    where = "there " if curve.transferred_from else ""
    among = f" of the {len(curve.rows)} with a figure" if curve.without else ""
    parts = [f"{where}cheapest at batch {best.batch}{among} ({best.sure}{narrow})"]
    if best.energy_saved is not None:
        parts.append(f"{lines.change(1.0 - best.energy_saved, 1.0)} per token than a request alone")
    if best.speed_kept is not None:
        parts.append(f"a request runs at {best.speed_kept:.0%} of the speed it has alone")
    if best.largest_measured:
        parts.append("the largest batch with a figure, so a larger one may be cheaper still")
    told = "; ".join(parts)
    return told[:1].upper() + told[1:]
