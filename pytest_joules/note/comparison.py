"""Runs side by side: what may be held against what, by how much they differ and how surely. Pure.

A difference is the ratio of two means over passes with a 95 % interval: that of the ratio over perturbed tables of both runs,
which are perturbed as for verdicts, but for what cancels within a run and not between two (`verdict.figure_perturbations`).
"""

from __future__ import annotations

import itertools
import math
import textwrap
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from tabulate import tabulate

from pytest_joules.errors import Unmeasured, Void
from pytest_joules.metrics import METRICS
from pytest_joules.note.lines import axis_name, claim, engine_text, figure, figure_text, wrapped
from pytest_joules.records import Basis, Condition, Run, Verdict, model_text
from pytest_joules.sweep import Cell, Sweep, from_run, label
from pytest_joules.verdict import effects, figure_perturbations, pooled_noise
from pytest_joules.words import listed, one_line, printable

if TYPE_CHECKING:
    from pytest_joules.note import plots

TABLES = 4000
"""So many perturbed tables of each run; the ends of an interval are then known to a few percent of its width."""

_NAMES_SHOWN = 6
_MANY = 2.0
"""From this ratio on a difference is told as times and not as percent."""

_COMPARABLE: Mapping[Basis, str] = {"measured": "measured", "transcribed": "measured", "estimated": "estimated"}
"""What may be held against what; the energy of any other basis stands alone."""

UNKNOWN_METER = "transcribed: what its meter and the edges of its windows may be off is not known, and in no interval"

CUT_SHORT = "cut short before its last window"

MOST_LINES = 16
"""More in one plot cannot be told apart."""

_CLAIM_WIDTHS = (24, 44)
"""Least and most characters of a claim in a table of verdicts."""

_ASKED = ("engine", "server", "request", "draft", "knobs", "protocol")
_LIMITS = ("require", "gates")

Key = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One run as a column. Its windows are gone, so that a thousand of them fit into memory.

    Attributes:
        name: letter of the column.
        effects: what says that the machine changed while it was measured.
        verdicts: the last one of each prediction.
    """

    name: str
    run: Run
    sweep: Sweep
    effects: tuple[str, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    cells: Mapping[Key, Cell] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How a figure stands to the reference's at the same condition.

    Attributes:
        ratio: of the two means.
        low, high: 95 % interval of it.
    """

    ratio: float
    low: float
    high: float

    @property
    def shown(self) -> bool:
        """Whether the interval leaves out 1, so that a difference is shown."""
        return not self.low <= 1.0 <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What one run has at one condition.

    Attributes:
        value: mean over the passes; `None` where it has none.
        text: as it is shown: the figure, `void`, `-`, or nothing where the run does not have the condition.
        why_none: why there is no value.
        difference: from the reference; `None` of the reference itself, and where there is none.
        no_interval: why a figure that stands beside a reference has no difference with an interval.
    """

    value: float | None = None
    text: str = ""
    why_none: str = ""
    difference: Difference | None = None
    no_interval: str = ""

    @property
    def unread(self) -> bool:
        """Whether a figure is shown that must not be judged by, as a published one may be."""
        return self.value is None and self.shown

    @property
    def shown(self) -> bool:
        """Whether there is a figure to be seen."""
        return self.text not in ("", "-", "void")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Runs whose figures may be held against each other.

    Attributes:
        heading: what the figures are.
        apart: why they stand apart from the first group; empty of the first.
        alone: why none of them is held against another; empty where they are.
        entries: the first is the reference.
        rows: for each condition the figure of each entry.
    """

    heading: str
    apart: str
    alone: str
    entries: tuple[Entry, ...]
    rows: tuple[tuple[Condition, tuple[Figure, ...]], ...]

    @property
    def about(self) -> str:
        """What must be said before the table; often nothing."""
        return "; ".join(filter(None, (self.apart and f"Stands apart: {self.apart}", self.alone)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Runs side by side by one metric, with everything that must be known beside the figures."""

    metric: str
    entries: tuple[Entry, ...]
    groups: tuple[Group, ...]
    remarks: tuple[str, ...]

    @property
    def explained(self) -> str:
        """What stands under the figures; nothing where no difference does."""
        if not any(one.difference for group in self.groups for _, figures in group.rows for one in figures):
            return ""
        return (
            "Under a figure: its difference from the reference, with the 95 % interval of the ratio on perturbed tables of both runs. "
            "It holds the noise within the runs and not what changes from one day to another."
        )


def letters() -> Iterator[str]:
    """A, B, ... Z, AA, AB, ...: names of columns."""
    for length in itertools.count(1):
        yield from map("".join, itertools.product("ABCDEFGHIJKLMNOPQRSTUVWXYZ", repeat=length))


def entry(name: str, run: Run, verdicts: Iterable[Verdict] = ()) -> Entry:
    """A column from a stored run and every verdict on it, oldest first."""
    sweep = from_run(run)
    # A prediction judged again has several verdicts on one run; the last is the one that stands.
    last = {verdict.prediction: verdict for verdict in verdicts}
    return Entry(
        name=name,
        run=replace(run, windows=()),
        sweep=sweep,
        effects=tuple(effects(run)),
        verdicts=tuple(last.values()),
        cells={_key(cell.condition): cell for cell in sweep.cells},
    )


def compare(entries: Sequence[Entry], metric: str) -> Comparison:
    """Put runs side by side, in the order given; the first of each group is its reference."""
    of_energy = METRICS[metric].energy_power != 0
    sets: dict[tuple[object, ...], list[Entry]] = {}
    for one in entries:
        sets.setdefault(_likeness(one.run) if of_energy else (), []).append(one)
    first = next(iter(sets.values()), [])
    groups = tuple(_group(group, metric, of_energy, first[0]) for group in sets.values())
    return Comparison(
        metric=metric, entries=tuple(entries), groups=groups, remarks=tuple(_remarks(entries, groups, metric))
    )


def _likeness(run: Run) -> tuple[object, ...]:
    meter = run.meter
    return (_COMPARABLE.get(meter.basis, meter.basis), meter.scope, frozenset(meter.covers))


def _key(condition: Condition) -> Key:
    return tuple(sorted((axis, repr(value)) for axis, value in condition.items()))


def _group(entries: Sequence[Entry], metric: str, of_energy: bool, first: Entry) -> Group:
    reference = entries[0]
    alone = _alone(reference.run) if of_energy else ""
    conditions = _conditions(entries)
    base = [_figure(reference, condition, metric) for condition in conditions]
    drawn = {gain: _logs(reference, metric, "reference", gain=gain) for gain in (False, True)}
    columns = [base]
    for one in entries[1:]:
        own = [_figure(one, condition, metric) for condition in conditions]
        if not alone:
            gain = not _same_meter(one.run, reference.run)
            why_not = _no_interval(one, reference, metric)
            logs = {} if why_not else _logs(one, metric, "other", gain=gain)
            for place, condition in enumerate(conditions):
                key, a, b = _key(condition), own[place], base[place]
                if a.value and b.value:
                    own[place] = _differing(a, b, why_not, None if why_not else logs[key] - drawn[gain][key])
                elif a.shown and (a.unread or b.unread):
                    own[place] = replace(a, no_interval="not to be read")
        columns.append(own)
    return Group(
        heading=_heading(entries) if of_energy else "",
        apart=_apart(reference.run, first.run) if of_energy and reference is not first else "",
        alone=alone,
        entries=tuple(entries),
        rows=tuple(zip(conditions, zip(*columns, strict=True), strict=True)),
    )


def _differing(own: Figure, base: Figure, why_not: str, logs: np.ndarray | None) -> Figure:
    """A figure with its difference from the reference's, from the logarithms of what their ratio could as well have been times."""
    if own.value is None or base.value is None or logs is None:
        return replace(own, no_interval=why_not)
    ratio = own.value / base.value
    low, high = np.quantile(logs, (0.025, 0.975))
    return replace(own, difference=Difference(ratio=ratio, low=ratio * math.exp(low), high=ratio * math.exp(high)))


def _alone(run: Run) -> str:
    """Why energies of such runs are not held against each other."""
    if run.meter.basis == "synthetic":
        return "the energy of random weights is never compared; the speed is (--metric tokens_per_s)"
    if run.meter.basis not in _COMPARABLE:
        return f"{run.meter.basis} figures are not compared"
    return ""


def _heading(entries: Sequence[Entry]) -> str:
    meter = entries[0].run.meter
    by_basis: dict[str, list[str]] = {}
    for one in entries:
        by_basis.setdefault(one.run.meter.basis, []).append(one.name)
    bases = [f"{basis} ({who(names)})" if len(by_basis) > 1 else basis for basis, names in by_basis.items()]
    text = f"{' and '.join(bases)} energy of the {meter.scope} ({', '.join(sorted(meter.covers))})"
    return text[0].upper() + text[1:] + (": no power measurement" if meter.basis == "estimated" else "")


def _apart(run: Run, first: Run) -> str:
    """What is unlike the first group."""
    mine, other = run.meter, first.meter
    reasons = []
    if _COMPARABLE.get(mine.basis, mine.basis) != _COMPARABLE.get(other.basis, other.basis):
        reasons.append(f"{mine.basis} is not held against {other.basis}")
    if mine.scope != other.scope:
        reasons.append(f"it is the energy of the {mine.scope}, not of the {other.scope}")
    if frozenset(mine.covers) != frozenset(other.covers):
        reasons.append(f"it covers ({', '.join(sorted(mine.covers))}), not ({', '.join(sorted(other.covers))})")
    return "; ".join(reasons)


def _conditions(entries: Sequence[Entry]) -> list[Condition]:
    """Every condition that any of them has, in the order of the first that has it; numbers of one axis by size."""
    found: dict[Key, Condition] = {}
    for one in entries:
        for key, cell in one.cells.items():
            found.setdefault(key, cell.condition)
    conditions = list(found.values())
    values = [next(iter(c.values())) for c in conditions if len(c) == 1]
    if len(values) == len(conditions) and all(isinstance(v, int | float) for v in values):
        conditions.sort(key=lambda c: next(iter(c.values())))
    return conditions


def _figure(one: Entry, condition: Condition, metric: str) -> Figure:
    cell = one.cells.get(_key(condition))
    if cell is None:
        return Figure(why_none="the run does not have this condition")
    try:
        return Figure(value=cell.mean(metric), text=figure_text(cell, metric))
    except (Unmeasured, Void) as error:
        return Figure(text=figure_text(cell, metric), why_none=str(error).removeprefix(f"{label(condition)}: "))


def intervals(one: Entry, metric: str) -> tuple[dict[Key, tuple[float, float]], str]:
    """The 95 % intervals of a run's figures by themselves, as factors of each figure, and why there are none.

    Of the meter they hold the calibration error where one is stated, and nothing where none is.
    """
    why_not = _no_interval(one, one, metric)
    logs = {} if why_not else _logs(one, metric, "alone", gain=True)
    ends = {key: np.exp(np.quantile(drawn, (0.025, 0.975))).tolist() for key, drawn in logs.items()}
    return {key: (low, high) for key, (low, high) in ends.items()}, why_not


def _no_interval(one: Entry, reference: Entry, metric: str) -> str:
    """Why no interval can be given; empty where it can."""
    kind = METRICS[metric]
    if not kind.energy_power and not kind.speed_power:
        return "counted"
    for each in (one, reference):
        if each.run.published:
            if not any(metric in cell.spreads for cell in each.sweep.cells):
                return "no spread printed"
        elif pooled_noise(each.sweep, metric) is None:
            return "one pass"
    return ""


def _logs(one: Entry, metric: str, role: str, *, gain: bool) -> dict[Key, np.ndarray]:
    """What the figures of a run could as well have been multiplied by, in logarithms: `TABLES` for each condition."""
    cells = [
        replace(
            cell,
            half_width=cell.half_width * _leverage(cell, metric, one.run),
            calibration=cell.calibration if gain else 0.0,
        )
        for cell in one.sweep.cells
    ]
    # The seed follows from the run, so that comparing again gives the same interval; from its role too, because a copied run keeps
    # its id, and draws that are alike would cancel.
    rng = np.random.default_rng(zlib.crc32(f"{role} {one.run.run_id}".encode()))
    logs = figure_perturbations(one.sweep.fresh(cells), metric, rng, TABLES, alone=role == "alone")
    return {} if logs is None else {_key(cell.condition): logs[:, place] for place, cell in enumerate(cells)}


def _leverage(cell: Cell, metric: str, run: Run) -> float:
    """By how much an error of the energy is larger as a share of a figure that is a difference of energies."""
    if cell.void:
        return 1.0
    if metric == "net_energy_per_token_mj":
        shares = [f["energy_per_token_mj"] / f[metric] for f in cell.passes if metric in f]
        return max(shares, default=1.0)
    if metric == "decode_energy_per_token_mj":
        request = run.suite.get("request", {})
        asked = cell.condition.get("answer_tokens", request.get("answer_tokens"))
        return _slope_leverage([*request.get("lengths", ()), *([asked] if asked else [])])
    return 1.0


def _slope_leverage(lengths: Sequence[int]) -> float:
    """By how much errors of energies that grow with the length of the answer may add up in the slope of the line through them."""
    mean = math.fsum(lengths) / len(lengths) if lengths else 0.0
    varied = math.fsum((n - mean) ** 2 for n in lengths)
    return math.fsum(abs(n - mean) * n for n in lengths) / varied if varied else 1.0


def _same_meter(mine: Run, other: Run) -> bool:
    """Whether one and the same instrument was read, whose gain then cancels in a ratio."""
    rails = [{(rail.name, rail.source) for rail in run.meter.rails} for run in (mine, other)]
    return mine.machine_slug == other.machine_slug and mine.meter.name == other.meter.name and rails[0] == rails[1]


def _remarks(entries: Sequence[Entry], groups: Sequence[Group], metric: str) -> Iterator[str]:
    """What speaks against taking the figures for like against like."""
    if len(entries) == 1:
        yield "there is one run alone, and nothing to hold it against"
    if len({one.run.suite_name for one in entries}) > 1:
        yield "these are runs of different suites, held against each other where their conditions are equal"
    if len(groups) > 1:
        yield "unlike energies stand apart; the speed can be compared across them: --metric tokens_per_s"
    yield from _unlike(entries, _ASKED, "these runs were not asked the same")
    yield from _unlike(entries, _LIMITS, "these runs were not held to the same limits")
    if METRICS[metric].energy_power:
        yield from _of_meters(groups)
    said = [
        *((one.name, CUT_SHORT) for one in entries if not one.run.complete),
        *((one.name, UNKNOWN_METER) for one in entries if one.run.published),
        *_unstated(entries),
        *((one.name, f"{effect}. The mean is not of one machine, and no interval makes up for it") for one in entries for effect in one.effects),
        *((one.name, f"the windows of {name} hold no prompt: its tokens are decoded ones alone") for one in entries for name in _promptless(one)),
        *((one.name, f"deviation: {deviation}") for one in entries for deviation in one.run.deviations),
        *((one.name, f"{label(cell.condition)} is void: {one_line(cell.void, 160)}")
          for one in entries for cell in one.sweep.cells if cell.void),
    ]  # fmt: skip
    for group in groups:
        for _, figures in group.rows:
            said += [
                (one.name, f"not to be read: {f.why_none}")
                for one, f in zip(group.entries, figures, strict=True)
                if f.unread
            ]
    by_text: dict[str, list[str]] = {}
    for name, text in dict.fromkeys(said):
        by_text.setdefault(text, []).append(name)
    yield from (f"{who(names)}: {text}" for text, names in by_text.items())


def _promptless(one: Entry) -> list[str]:
    """The engines of a run whose windows are known to hold no prompt."""
    return [name for name in one.run.engine if (held := one.run.includes(name)) and "prefill" not in held]


def _of_meters(groups: Sequence[Group]) -> Iterator[str]:
    """Gains that no interval holds, because the meter does not state them."""
    for group in groups:
        unlike = [one for one in group.entries[1:] if not _same_meter(one.run, group.entries[0].run)]
        if group.alone or not unlike:
            continue
        silent = [
            one
            for one in (group.entries[0], *unlike)
            if not one.run.published
            and any(rail.calibration is None and rail.role == "counted" for rail in one.run.meter.rails)
        ]
        if silent:
            meters = ", ".join(sorted({one.run.meter.name for one in silent}))
            yield (
                f"{who([one.name for one in silent])}: the meter ({meters}) states no calibration error; the intervals "
                "hold the noise of the runs, and nothing of what its gain may be off"
            )


def _unlike(entries: Sequence[Entry], sections: Sequence[str], heading: str) -> Iterator[str]:
    """The settings in which the runs differ, each with its values and who has them."""
    settings = [_settings(one.run, sections) for one in entries]
    names = dict.fromkeys(name for setting in settings for name in setting)
    differing = []
    for name in names:
        by_value: dict[str, list[str]] = {}
        for one, setting in zip(entries, settings, strict=True):
            if name in setting:
                by_value.setdefault(setting[name], []).append(one.name)
        if len(by_value) > 1:
            differing.append(
                f"{name} " + " against ".join(f"{value} ({who(which)})" for value, which in by_value.items())
            )
    if differing:
        yield f"{heading}: {'; '.join(differing)}"


def _unstated(entries: Sequence[Entry]) -> Iterator[tuple[str, str]]:
    """Settings that other versions did not know, so that it cannot be said whether they differ: (column, what)."""
    settings = [_settings(one.run, (*_ASKED, *_LIMITS)) for one in entries]
    # What varies in one run has no one value there, and is no setting of another version.
    varied = {axis for one in entries for axis in one.run.axes}
    names = [n for n in dict.fromkeys(n for s in settings for n in s) if n.rpartition(".")[2] not in varied]
    for one, setting in zip(entries, settings, strict=True):
        if lacking := [name for name in names if name not in setting]:
            more = f" and {len(lacking) - 2} more" if len(lacking) > 2 else ""
            yield one.name, f"made by a version that does not state {', '.join(lacking[:2])}{more}, as others do"


def _settings(run: Run, sections: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for section in sections:
        values = run.suite.get(section, {})
        if isinstance(values, Mapping):
            # What varies has its own column, and what is not stated takes the engine's own way.
            found |= {
                f"{section}.{key}": one_line("none" if value is None else str(value), 40)
                for key, value in values.items()
                if key not in run.axes
            }
    if "engine" in sections and "engine" not in run.axes:
        found["engine"] = ", ".join(engine_text(facts) for facts in run.engine.values())
    return found


def who(names: Sequence[str]) -> str:
    """`A`, `A and B`, `A, B, C and 47 more`."""
    if len(names) > _NAMES_SHOWN:
        return f"{', '.join(names[:3])} and {len(names) - 3} more"
    return listed(names)


def models_text(run: Run) -> str:
    """`qwen2.5-7b-instruct q4_k_m`, or several of them."""
    return ", ".join(map(model_text, run.models))


def legend(entries: Sequence[Entry]) -> list[tuple[str, str]]:
    """What each column is: machine, and where they differ model and suite; the meter; the run."""
    several_models = len({_files(one.run) for one in entries}) > 1
    same_name = Counter(models_text(one.run) for one in entries)
    several_suites = len({one.run.suite_name for one in entries}) > 1
    found = []
    for one in entries:
        run = one.run
        parts = [f"{run.machine_slug} ({run.machine.get('chip', 'unknown chip')})"]
        if several_suites:
            parts.append(run.suite_name)
        if several_models:
            # Files of one name may differ, and only the hash tells them apart.
            hashes = [str(model.get("sha256", ""))[:8] for model in run.models]
            shown = f" [{', '.join(filter(None, hashes))}]" if same_name[models_text(run)] > 1 and any(hashes) else ""
            parts.append(models_text(run) + shown)
        parts.append(
            run.meter.name if run.meter.basis.startswith(run.meter.name) else f"{run.meter.name}, {run.meter.basis}"
        )
        found.append((one.name, "; ".join(parts) + f"; {run.run_id}"))
    return found


def _files(run: Run) -> tuple[tuple[str, str, str], ...]:
    return tuple((str(m.get("name")), str(m.get("format")), str(m.get("sha256", ""))) for m in run.models)


def cell_lines(one: Figure) -> list[str]:
    """The figure and, under it, how it stands to the reference."""
    if one.no_interval:
        return [one.text, f"no interval: {one.no_interval}"]
    if one.difference is None:
        return [one.text]
    found = one.difference
    if found.shown:
        middle, ends = _relative(found)
        return [one.text, f"{middle} ({ends})"]
    return [one.text, "no difference shown", f"({_relative(found)[1]})"]


def _relative(found: Difference) -> tuple[str, str]:
    """`-33%` and `-41 to -28%`; over twice, `7.2x` and `6.9 to 7.5x`."""
    if found.ratio > _MANY or found.high > 50 * _MANY:
        low, high = (figure(end) for end in (found.low, min(found.high, 1000.0)))
        return f"{figure(found.ratio)}x", f"{low} to {'over ' if found.high > 1000.0 else ''}{high}x"
    decimals = 1 if found.high - found.low < 0.1 else 0
    middle, low, high = (
        f"{round(100 * (end - 1), decimals) or 0:+.{decimals}f}" for end in (found.ratio, found.low, found.high)
    )
    return f"{middle}%", f"{low} to {high}%"


def lines(found: Comparison, width: int) -> Iterator[str]:
    """The comparison as text that fits `width` columns; 0 makes it Markdown, a line a paragraph."""
    mark = width <= 0

    def said(text: str, lead: str = "") -> list[str]:
        return [lead + plain_markdown(text)] if mark else wrapped(lead + printable(text), width, " " * len(lead))

    def headed(text: str) -> list[str]:
        return [f"## {plain_markdown(text)}", ""] if mark else said(text)

    for number, text in enumerate(title(found)):
        yield from [f"# {plain_markdown(text)}", ""] if mark and not number else said(text)
    yield ""
    for name, text in legend(found.entries):
        yield from said(text, f"- {name}: " if mark else f"{name:<3}")
    for group in found.groups:
        yield ""
        if group.heading:
            yield from headed(group.heading)
        if group.about:
            yield from [*said(group.about), *([""] if mark else [])]
        yield from table(group, width)
    if found.explained:
        yield ""
        yield from said(found.explained)
    if found.remarks:
        yield ""
        yield from headed("Remarks")
        for remark in found.remarks:
            yield from said(remark, "- ")
    verdicts = matrix((one.name, one.run.meter.basis, one.verdicts) for one in found.entries)
    if verdicts.rows:
        yield ""
        yield from [*headed("Verdicts"), *([] if mark else [""])]
        yield from matrix_lines(verdicts, width)


def title(found: Comparison) -> Iterator[str]:
    """What is compared: suites and figure, then the question and the model where they are alike in all runs."""
    runs = [one.run for one in found.entries]
    suites = dict.fromkeys(run.suite_name for run in runs)
    metric = METRICS[found.metric]
    yield f"{', '.join(suites)}: {metric.meaning}, in {metric.unit}"
    alike = [
        texts.pop()
        for texts in ({str(run.suite.get("question", "")) for run in runs}, {f"{models_text(run)}." for run in runs})
        if len(texts) == 1
    ]
    if alike and len({_files(run) for run in runs}) == 1:
        yield " ".join(alike)


def blocks(columns: Sequence[int], fixed: int, width: int, gap: int = 2) -> Iterator[range]:
    """Runs of columns that fit beside `fixed` characters; at least one each."""
    start = 0
    while start < len(columns):
        end, used = start, fixed
        while end < len(columns) and (end == start or used + gap + columns[end] <= width):
            used += gap + columns[end]
            end += 1
        yield range(start, end)
        start = end


def table(group: Group, width: int) -> Iterator[str]:
    """A group as text tables that fit `width` columns, the reference in each; 0 makes one Markdown table."""
    heads, leads, names, cells = _table_parts(group)
    yield from _tables(heads, leads, names, cells, width, fixed=1)


def _table_parts(group: Group) -> tuple[list[str], list[list[str]], list[str], list[list[list[str]]]]:
    """Names of the axes, their values, names of the columns, lines of each cell."""
    axes = list(dict.fromkeys(axis for condition, _ in group.rows for axis in condition))
    heads = [axis_name(axis) for axis in axes]
    leads = [[printable(one_line(str(condition.get(axis, "")), 24)) for axis in axes] for condition, _ in group.rows]
    names = [one.name for one in group.entries]
    if len(names) > 1 and not group.alone:
        names[0] += " (reference)"
    return heads, leads, names, [[cell_lines(one) for one in figures] for _, figures in group.rows]


def _tables(
    heads: Sequence[str],
    leads: Sequence[Sequence[str]],
    names: Sequence[str],
    cells: Sequence[Sequence[Sequence[str]]],
    width: int,
    *,
    fixed: int,
    align: str = "right",
) -> Iterator[str]:
    """Tables of leading columns and then the named ones, the first `fixed` of them in every table."""
    if width <= 0:
        rows = [
            [*map(plain_markdown, lead), *("<br>".join(map(plain_markdown, c)) for c in row)]
            for lead, row in zip(leads, cells, strict=True)
        ]
        headers = [plain_markdown(name) for name in (*heads, *names)]
        yield from _tabulated(rows, headers, "pipe", align)
        return

    lead_width = sum(_widest([head, *(lead[i] for lead in leads)]) + 2 for i, head in enumerate(heads))
    widths = [_widest([name, *(line for row in cells for line in row[i])]) for i, name in enumerate(names)]
    lead_width += sum(w + 2 for w in widths[:fixed]) - 2
    spans = list(blocks(widths[fixed:], lead_width, width)) or [range(0)]
    for number, span in enumerate(spans):
        if number:
            yield ""
        places = [*range(fixed), *(fixed + i for i in span)]
        rows = [
            [*lead, *("\n".join(row[i]) for i in places)]
            for lead, row in zip(leads, cells, strict=True)
            if any("".join(row[i]) for i in places)
        ]
        headers = [*heads, *(printable(names[i]) for i in places)]
        yield from _tabulated(rows, headers, "simple", align)


def _tabulated(rows: list[list[str]], headers: list[str], fmt: str, align: str) -> list[str]:
    aligned = [align] * len(headers) if rows else None
    return tabulate(rows, headers=headers, tablefmt=fmt, disable_numparse=True, colalign=aligned).splitlines()


def _widest(texts: Iterable[str]) -> int:
    return max((len(line) for text in texts for line in text.split("\n")), default=0)


def plain_markdown(text: str) -> str:
    """Text in one line of which Markdown makes nothing but text."""
    # The terminal has no need of it, nor of the pages and plots that come with it.
    from pytest_joules.note.markdown import escaped

    return escaped(printable(text))


@dataclass(frozen=True, slots=True)
class Matrix:
    """Predictions by columns.

    Attributes:
        columns: their names, in order of appearance.
        rows: claim and test of each prediction, and in every column that has one its verdict, with the basis of the run.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, Mapping[str, tuple[Verdict, Basis]]], ...]


def matrix(found: Iterable[tuple[str, Basis, Iterable[Verdict]]], least: int = 1) -> Matrix:
    """The same predictions in several columns; of a column that comes again the later verdict stands.

    Args:
        found: name of a column, and the basis and the verdicts of a run.
        least: in how many columns a prediction must have been judged to be shown.
    """
    by_test: dict[tuple[str, str], dict[str, tuple[Verdict, Basis]]] = {}
    for name, basis, verdicts in found:
        for verdict in verdicts:
            # Not by the module, which may stand elsewhere in another repository, nor by the claim alone, which may be reworded.
            test = verdict.prediction.partition("::")[2] or verdict.prediction
            by_test.setdefault((claim(verdict), test), {})[name] = verdict, basis
    rows = tuple((text, by_name) for (text, _), by_name in by_test.items() if len(by_name) >= least)
    return Matrix(tuple(dict.fromkeys(name for _, by_name in rows for name in by_name)), rows)


def matrix_lines(found: Matrix, width: int) -> Iterator[str]:
    """Verdicts as text that fits `width` columns, then what stands beside some of them; 0 makes one Markdown table.

    A table too wide for that is told by verdicts instead.
    """
    cells, marks = _verdict_cells(found)
    taken = sum(
        2 + _widest([name, *(line for row in cells for line in row[i])]) for i, name in enumerate(found.columns)
    )
    claim_width = min(width - taken, _CLAIM_WIDTHS[1])
    if width > 0 and claim_width < _CLAIM_WIDTHS[0]:
        yield from _by_verdict(found, cells, width)
    else:
        claims = [
            [printable(text) if width <= 0 else textwrap.fill(printable(text), claim_width)] for text, _ in found.rows
        ]
        yield from _tables([""], claims, found.columns, cells, width, fixed=0, align="left")
    if marks:
        yield ""
    for text, number in marks.items():
        yield from wrapped(f"[{number}] {text}", width, "    ")


def _verdict_cells(found: Matrix) -> tuple[list[list[list[str]]], dict[str, int]]:
    """Lines of each cell, and the number of each remark that stands beside some verdict."""
    marks: dict[str, int] = {}
    return [[_told(by_name.get(name), marks) for name in found.columns] for _, by_name in found.rows], marks


def _by_verdict(found: Matrix, cells: Sequence[Sequence[Sequence[str]]], width: int) -> Iterator[str]:
    for (text, _), row in zip(found.rows, cells, strict=True):
        yield from wrapped(printable(text), width, "")
        by_verdict: dict[str, list[str]] = {}
        for name, told in zip(found.columns, row, strict=True):
            if told:
                by_verdict.setdefault(" ".join(told), []).append(name)
        for told, names in by_verdict.items():
            yield from wrapped(f"  {len(names)} {told}: {' '.join(names)}", width, "    ")


def _told(judged: tuple[Verdict, Basis] | None, marks: dict[str, int]) -> list[str]:
    if judged is None:
        return []
    verdict, basis = judged
    remarks = [] if basis == "measured" else [f"the energy of the run is {basis}"]
    remarks += [] if verdict.registration in ("registered", "") else [verdict.registration]
    remarks += [verdict.remark] if verdict.remark else []
    remarks += [] if verdict.selected else ["deselected"]
    numbers = [str(marks.setdefault(printable(remark), len(marks) + 1)) for remark in remarks]
    return [verdict.told, *([f"[{', '.join(numbers)}]"] if numbers else [])]


def overlay(found: Comparison, group: Group) -> list[plots.Figure]:
    """The group's runs as lines over what varies, each pass a point; nothing where there is no axis, or nothing to draw.

    Raises:
        UsageError: matplotlib is not installed.
    """
    from pytest_joules.note import plots
    from pytest_joules.note.findings import main_axis

    axis = main_axis(group.entries[0].sweep)
    if axis is None:
        return []
    series = [
        line
        for one in group.entries
        if axis in one.sweep.axes
        for line in plots.series_of(one.sweep, axis, found.metric, f"{one.name} {printable(one.run.machine_slug)}")
    ]
    if not 0 < len(series) <= MOST_LINES:
        return []
    passes = ": each pass as a small mark, their mean on the line" if any(line.passes for line in series) else ""
    name = f"group-{found.groups.index(group) + 1}"
    caption = f"{group.heading or METRICS[found.metric].meaning}, over {axis_name(axis)}{passes}."
    return [plots.lines_over(name, caption, axis, METRICS[found.metric].unit, series)]


def page(found: Comparison) -> str:
    """The comparison as one HTML page that fetches nothing.

    Raises:
        UsageError: jinja2 or matplotlib is not installed.
    """
    from pytest_joules.note.page import placed, rendered

    groups = []
    for group in found.groups:
        heads, leads, names, cells = _table_parts(group)
        plotted = overlay(found, group)
        groups.append(
            {
                "heading": group.heading or METRICS[found.metric].meaning,
                "about": group.about,
                "heads": [*heads, *names],
                "rows": list(zip(leads, cells, strict=True)),
                "plots": placed(plotted),
                "no_plot": ""
                if plotted
                else f"No plot: nothing to draw over an axis, or more than {MOST_LINES} lines.",
            }
        )
    verdicts = matrix((one.name, one.run.meter.basis, one.verdicts) for one in found.entries)
    told, marks = _verdict_cells(verdicts)
    heading, *about = title(found)
    return rendered(
        "compare.html.j2",
        title=heading,
        about=about,
        legend=legend(found.entries),
        groups=groups,
        explained=found.explained,
        remarks=found.remarks,
        columns=verdicts.columns,
        verdicts=[(text, cells) for (text, _), cells in zip(verdicts.rows, told, strict=True)],
        marks=marks,
    )
