"""The measured table a prediction is a function of: conditions x metrics. Pure.

A cell is valid, void or missing. Reading a void cell raises `Void` with the reason, reading a condition that
was never asked for raises `KeyError`; so a claim about batch 8 is untouched by what went wrong at batch 32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tabulate import tabulate

from pytest_joules import items
from pytest_joules.errors import Unmeasured, UsageError, Void
from pytest_joules.items import Drafts
from pytest_joules.metrics import (
    GRADED,
    METRICS,
    OF_DRAFTS,
    OF_PREFILL,
    Decode,
    decode,
    graded,
    impossible,
    is_prefill,
    prefill,
    prefill_share,
)
from pytest_joules.records import Condition, IdleBaseline, PublishedCell, Run, Window
from pytest_joules.words import nearest

Key = Any
"""A condition as a key: the axis value where one axis is left, else the tuple of values in axis order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Everything known of one condition.

    Attributes:
        condition: axis values.
        passes: for each pass, metric name to figure; a figure that is undefined is left out.
        void: why the cell cannot be read; empty when it can.
        missing: metric name to the reason why a published table does not have it.
        undefined: metric name to the reason why it has no figure although the cell is valid.
        half_width: relative half-width of the energy from edges, refresh and lag, the largest of the passes.
        calibration: relative half-width of the meter's gain, the same for every cell of a run.
        roundings: relative half-width of each printed figure from its last digit.
        means: figures that stand in place of the mean over `passes`, when only those are known.
        spreads: likewise for the spread.
        factors: multiplies the mean of each metric; how a perturbed table is made.
        flags: what is known against the cell.
        change: against the first condition, as a published table printed it.
        items: what became of each question, by its id; empty where nothing was graded.
        drafts: what became of the drafts for each prompt; empty where nothing was drafted.
        includes: what its windows hold, where the engine says so.
    """

    condition: Condition
    passes: tuple[Mapping[str, float], ...] = ()
    void: str = ""
    missing: Mapping[str, str] = field(default_factory=dict)
    undefined: Mapping[str, str] = field(default_factory=dict)
    half_width: float = 0.0
    calibration: float = 0.0
    roundings: Mapping[str, float] = field(default_factory=dict)
    means: Mapping[str, float] = field(default_factory=dict)
    spreads: Mapping[str, float] = field(default_factory=dict)
    factors: Mapping[str, float] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    change: str = ""
    items: Mapping[str, items.Item] = field(default_factory=dict)
    drafts: tuple[Drafts, ...] = ()
    includes: tuple[str, ...] = ()

    def mean(self, metric: str) -> float:
        """Mean over the passes of each window's own figure.

        Raises:
            Void: the cell is void or the metric has no figure.
            Unmeasured: the metric was not published.
        """
        if self.void:
            raise Void(f"{label(self.condition)}: {self.void}")
        if metric in self.missing:
            raise Unmeasured(f"{label(self.condition)}: {self.missing[metric]}")
        factor = self.factors.get(metric, 1.0)
        if metric in self.means:
            return self.means[metric] * factor
        figures = [figures[metric] for figures in self.passes if metric in figures]
        if not figures or len(figures) < len(self.passes):
            reason = self.undefined.get(metric, "no figure")
            raise Void(f"{label(self.condition)}: {metric} is undefined: {reason}")
        return math.fsum(figures) / len(figures) * factor

    def spread(self, metric: str) -> float:
        """(max - min) / mean over the passes.

        Raises:
            Void: as `mean`, or there is one pass only.
            Unmeasured: it was not published.
        """
        if metric in self.means and metric not in self.spreads and not self.void:
            raise Unmeasured(f"{label(self.condition)}: no spread over the passes was published")
        mean = self.mean(metric) / self.factors.get(metric, 1.0)
        if metric in self.spreads:
            return self.spreads[metric]
        if len(self.passes) < 2:
            raise Void(f"{label(self.condition)}: the spread of one pass is undefined; measure at least two")
        figures = [figures[metric] for figures in self.passes]
        return (max(figures) - min(figures)) / mean


def label(condition: Condition) -> str:
    """`parallel=8, format=q4_0`."""
    return ", ".join(f"{axis}={value}" for axis, value in condition.items())


@dataclass(slots=True)
class Reads:
    """What a prediction looked at, for the record: spreads are facts about a run and are not perturbed."""

    metrics: set[str] = field(default_factory=set)
    spread: bool = False
    void: list[str] = field(default_factory=list)


class Column(Mapping[Key, float]):
    """One metric over the conditions: a mapping from condition to figure."""

    __slots__ = ("_cells", "_metric", "_of_spread", "_reads")

    def __init__(self, metric: str, cells: Mapping[Key, Cell], reads: Reads, *, of_spread: bool = False) -> None:
        self._metric, self._cells, self._reads, self._of_spread = metric, cells, reads, of_spread

    def __getitem__(self, key: Key) -> float:
        cell = self._cells.get(key)
        if cell is None:
            raise KeyError(f"the suite has no condition {key!r}; it has {', '.join(map(repr, self._cells))}")
        self._reads.metrics.add(self._metric)
        self._reads.spread |= self._of_spread
        try:
            figure = cell.spread(self._metric) if self._of_spread else cell.mean(self._metric)
        except Void as void:
            self._reads.void.append(str(void))
            raise
        if not math.isfinite(figure):
            # Every comparison with NaN is false, which would look like a refutation.
            raise ValueError(f"{self._metric} at {label(cell.condition)} is {figure}, which is no figure")
        return figure

    def __contains__(self, key: object) -> bool:
        # The inherited one reads the figure, so that a void cell would spoil a claim that only asks for it.
        return key in self._cells

    def __iter__(self) -> Iterator[Key]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)

    def argmin(self) -> Key:
        """The condition with the lowest figure."""
        figures = self._every()
        return min(figures, key=figures.__getitem__)

    def argmax(self) -> Key:
        """The condition with the highest figure."""
        figures = self._every()
        return max(figures, key=figures.__getitem__)

    def min(self) -> float:
        """The lowest figure."""
        return min(self._every().values())

    def max(self) -> float:
        """The highest figure."""
        return max(self._every().values())

    def _every(self) -> dict[Key, float]:
        """All figures.

        Raises:
            Unmeasured: with every reason why some were not published, the last of the conditions first.
        """
        figures: dict[Key, float] = {}
        missing: dict[str, list[str]] = {}
        for key, cell in self._cells.items():
            try:
                figures[key] = self[key]
            except Unmeasured as error:
                missing.setdefault(str(error).removeprefix(f"{label(cell.condition)}: "), []).append(
                    label(cell.condition)
                )
        if missing:
            raise Unmeasured("; ".join(f"{', '.join(where)}: {why}" for why, where in reversed(missing.items())))
        return figures

    def saving(self, a: Key, b: Key) -> float:
        """The share of the cost at `a` that `b` saves: 1 - b/a. For costs only.

        Raises:
            TypeError: the metric is no cost, so less of it is no saving.
        """
        if not METRICS[self._metric].cost or self._of_spread:
            raise TypeError(f"{self._metric} is no cost: a saving is undefined; compare the two figures instead")
        return 1.0 - self[b] / self[a]

    @property
    def spread(self) -> Column:
        """(max - min) / mean over the passes, by condition."""
        return Column(self._metric, self._cells, self._reads, of_spread=True)

    def __repr__(self) -> str:
        parts = []
        for key, cell in self._cells.items():
            try:
                figure = cell.spread(self._metric) if self._of_spread else cell.mean(self._metric)
                parts.append(f"{key!r}: {figure:.4g}")
            except Void:
                parts.append(f"{key!r}: void")
            except Unmeasured:
                parts.append(f"{key!r}: -")
        name = f"{self._metric}.spread" if self._of_spread else self._metric
        return f"{name}{{{', '.join(parts)}}}"


class _Metrics:
    """Shared by the table and its rows: an unknown metric is named, with the nearest one that exists."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(f"there is no metric {name!r}{nearest(name, METRICS)}; known: {', '.join(METRICS)}")


class _Figure:
    """A metric of a row: read as a float."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._metric = name

    def __get__(self, row: Row, owner: type | None = None) -> float:
        return row._sweep._column(self._metric)[row._key]


class _ColumnOf:
    """A metric of a table: read as a `Column`."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._metric = name

    def __get__(self, sweep: Sweep, owner: type | None = None) -> Column:
        return sweep._column(self._metric)


class Row(_Metrics):
    """The figures of one condition."""

    __slots__ = ("_key", "_sweep", "condition")

    def __init__(self, sweep: Sweep, key: Key, condition: Condition) -> None:
        self._sweep, self._key, self.condition = sweep, key, condition

    energy_per_token_mj = _Figure()
    net_energy_per_token_mj = _Figure()
    decode_energy_per_token_mj = _Figure()
    energy_per_prompt_token_mj = _Figure()
    prefill_share = _Figure()
    energy_per_correct_j = _Figure()
    accuracy = _Figure()
    correct = _Figure()
    answered = _Figure()
    tokens_per_s = _Figure()
    tokens_per_s_per_request = _Figure()
    prompt_tokens_per_s = _Figure()
    draft_acceptance = _Figure()
    tokens_per_step = _Figure()
    power_w = _Figure()
    idle_power_w = _Figure()
    energy_j = _Figure()
    window_s = _Figure()
    tokens = _Figure()
    prompt_tokens = _Figure()
    time_to_first_token_s = _Figure()
    inter_token_s = _Figure()

    def __repr__(self) -> str:
        return f"<row {label(self.condition)}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Where a table comes from; what a reader must know beside its figures."""

    suite: str = ""
    run_id: str = ""
    machine: str = ""
    basis: str = ""
    scope: str = ""
    covers: tuple[str, ...] = ()
    meter: str = ""
    flags: tuple[str, ...] = ()


class Sweep(_Metrics):
    """The table of a suite: for each condition the mean of its passes, each pass kept.

    Metrics are properties that give a `Column`: `sweep.energy_per_token_mj[8]`. `sweep[8]` is one row while a single
    axis is left; `sweep.where(format="q4_0")` fixes axes; `sweep.at(parallel=8, format="q4_0")` is one row.
    """

    __slots__ = ("_cells", "_reads", "about", "axes")

    def __init__(
        self, axes: Sequence[str], cells: Sequence[Cell], about: About | None = None, reads: Reads | None = None
    ) -> None:
        self.axes = tuple(axes)
        self.about = about or About()
        self._reads = reads or Reads()
        self._cells = {self._key(cell.condition): cell for cell in cells}

    def _key(self, condition: Condition) -> Key:
        values = tuple(condition[axis] for axis in self.axes)
        return values[0] if len(values) == 1 else values

    def _column(self, metric: str) -> Column:
        return Column(metric, self._cells, self._reads)

    energy_per_token_mj = _ColumnOf()
    net_energy_per_token_mj = _ColumnOf()
    decode_energy_per_token_mj = _ColumnOf()
    energy_per_prompt_token_mj = _ColumnOf()
    prefill_share = _ColumnOf()
    energy_per_correct_j = _ColumnOf()
    accuracy = _ColumnOf()
    correct = _ColumnOf()
    answered = _ColumnOf()
    tokens_per_s = _ColumnOf()
    tokens_per_s_per_request = _ColumnOf()
    prompt_tokens_per_s = _ColumnOf()
    draft_acceptance = _ColumnOf()
    tokens_per_step = _ColumnOf()
    power_w = _ColumnOf()
    idle_power_w = _ColumnOf()
    energy_j = _ColumnOf()
    window_s = _ColumnOf()
    tokens = _ColumnOf()
    prompt_tokens = _ColumnOf()
    time_to_first_token_s = _ColumnOf()
    inter_token_s = _ColumnOf()

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Every condition asked for, in the suite's order."""
        return tuple(cell.condition for cell in self._cells.values())

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells in the suite's order."""
        return tuple(self._cells.values())

    @property
    def reads(self) -> Reads:
        """What has been read from this table so far."""
        return self._reads

    def __getitem__(self, key: Key) -> Row:
        if key not in self._cells:
            if len(self.axes) > 1 and not isinstance(key, tuple):
                raise KeyError(f"{len(self.axes)} axes are left ({', '.join(self.axes)}): use .at(...) or .where(...)")
            raise KeyError(f"the suite has no condition {key!r}; it has {', '.join(map(repr, self._cells))}")
        return Row(self, key, self._cells[key].condition)

    def at(self, **values: Any) -> Row:
        """The row of one condition, all axes named."""
        self._check_axes(values)
        if missing := [axis for axis in self.axes if axis not in values]:
            raise KeyError(f"at() names one condition; also give {', '.join(missing)}")
        return self[self._key(values)]

    def where(self, **fixed: Any) -> Sweep:
        """The table of the conditions with these axis values; the named axes are gone from it."""
        self._check_axes(fixed)
        kept = [cell for cell in self.cells if all(cell.condition[axis] == value for axis, value in fixed.items())]
        if not kept:
            raise KeyError(f"no condition has {label(fixed)}; there are {'; '.join(label(c) for c in self.conditions)}")
        left = [axis for axis in self.axes if axis not in fixed]
        narrowed = [replace(cell, condition={axis: cell.condition[axis] for axis in left}) for cell in kept]
        return Sweep(left, narrowed, self.about, self._reads)

    def _check_axes(self, named: Mapping[str, Any]) -> None:
        for axis in named:
            if axis not in self.axes:
                raise KeyError(
                    f"the table has no axis {axis!r}{nearest(axis, self.axes)}; it has {', '.join(self.axes)}"
                )

    def single_pass(self, index: int) -> Sweep:
        """The table of one pass alone."""
        cells = [replace(cell, passes=cell.passes[index : index + 1]) for cell in self.cells]
        return Sweep(self.axes, cells, self.about)

    def fresh(self, cells: Sequence[Cell] | None = None) -> Sweep:
        """The same table, or one of other cells, with nothing read from it yet."""
        return Sweep(self.axes, self.cells if cells is None else cells, self.about)

    def __len__(self) -> int:
        return len(self._cells)

    def __repr__(self) -> str:
        # Short: pytest asks for it at every failed assertion, and a rule is judged on thousands of tables.
        about = (self.about.suite, self.about.basis, self.about.scope, self.about.run_id)
        return f"<sweep {' '.join(part for part in (*about, f'of {len(self)} conditions') if part)}>"

    def __str__(self) -> str:
        shown = ("tokens_per_s", "tokens_per_s_per_request", "power_w", "energy_per_token_mj")
        rows = []
        for cell in self.cells:
            figures: list[Any] = []
            for metric in shown:
                try:
                    figures.append(f"{cell.mean(metric):.4g}")
                except Void:
                    figures.append("void")
                except Unmeasured:
                    figures.append("-")
            rows.append([*(cell.condition[axis] for axis in self.axes), *figures])
        table = tabulate(rows, headers=[*self.axes, *shown], tablefmt="simple", disable_numparse=True)
        return f"{self!r}\n{table}"


def from_run(run: Run) -> Sweep:
    """The table of a run: a cell for every condition asked for, void where any of its passes is.

    Raises:
        UsageError: a window of it is at another condition.
    """
    by_condition = {_hashable(condition): [] for condition in run.conditions}  # type: dict[Any, list[Window]]
    for window in run.windows:
        if window.role in ("measured", "length", "prefill"):
            of_condition = by_condition.get(_hashable(window.condition))
            if of_condition is None:
                raise UsageError(
                    f"run {run.run_id}: a window at {label(window.condition)} is not at one of its conditions; the file was changed by hand"
                )
            of_condition.append(window)
    spoiled = "; ".join(str(gate) for gate in run.gates if gate.outcome == "void")
    cells = [
        Cell(condition=condition, void=spoiled)
        if spoiled
        else _cell(condition, by_condition[_hashable(condition)], run)
        for condition in run.conditions
    ]
    if run.published:
        cells = [_as_published(cell) for cell in run.published]
    about = About(
        suite=run.suite_name,
        run_id=run.run_id,
        machine=run.machine_slug,
        basis=run.meter.basis,
        scope=run.meter.scope,
        covers=run.meter.covers,
        meter=run.meter.name,
        flags=tuple(str(gate) for gate in run.gates if gate.outcome == "flag"),
    )
    return Sweep(run.axes, cells, about)


def beside(other: Run, run: Run) -> Sweep:
    """The table of another run to compare one with. Of random weights and real ones the speeds are comparable, and no energies."""
    table = from_run(other)
    if (other.meter.basis == "synthetic") == (run.meter.basis == "synthetic"):
        return table
    why = f"one of {run.suite_name} and {other.suite_name} has random weights, whose energy is not compared with real weights'"
    apart = {name: why for name, metric in METRICS.items() if metric.energy_power}
    return table.fresh([replace(cell, missing={**cell.missing, **apart}) for cell in table.cells])


def _as_published(cell: PublishedCell) -> Cell:
    spoiled = [str(gate) for gate in cell.gates if gate.outcome == "void"]
    spoiled += [f"{name} is printed as {value:g}" for name, value in cell.figures.items() if value < 0]
    return Cell(
        condition=cell.condition,
        void="; ".join(spoiled),
        means=cell.figures,
        spreads=cell.spreads,
        missing={n: "it was not published" for n in METRICS if n not in cell.figures} | dict(cell.missing),
        change=cell.change,
        roundings={name: cell.roundings.get(name, 0.0) / abs(value) for name, value in cell.figures.items() if value},
        flags=tuple(str(gate) for gate in cell.gates if gate.outcome == "flag"),
    )


def _hashable(condition: Condition) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((axis, repr(value)) for axis, value in condition.items()))


def _cell(condition: Condition, every: list[Window], run: Run) -> Cell:
    windows = [window for window in every if window.role == "measured"]
    spoiled = [f"pass {w.pass_index + 1}: {why}" for w in windows if (why := _why_void(w))]
    if spoiled:
        # What keeps every pass from being measured is told once.
        reasons = {_why_void(w) for w in windows}
        every_pass = next(iter(reasons)) if len(windows) > 1 and len(reasons) == 1 else ""
        return Cell(condition=condition, void=every_pass or " | ".join(spoiled))
    if len(windows) < run.passes:
        return Cell(condition=condition, void=f"{len(windows)} of {run.passes} passes were measured")
    figures = tuple(_figures(window, run.idle) | _decode(window, every) | _prefill(window, every) for window in windows)
    # Windows of prompts alone are shorter, so that their edges weigh more.
    weighed = [*windows, *(w for w in every if w.role == "prefill" and not _why_void(w))]
    shares = [(w.uncertainty_j / w.energy_j, w.calibration_j / w.energy_j) for w in weighed if w.energy_j]
    half_width = max((math.sqrt(max(0.0, whole**2 - gain**2)) for whole, gain in shares), default=0.0)
    calibration = max((gain for _, gain in shares), default=0.0)
    flags = tuple(dict.fromkeys(reason for w in windows for reason in w.reasons))
    undefined = {
        **_why_no_energy(windows),
        "net_energy_per_token_mj": _why_no_net(run.idle),
        "decode_energy_per_token_mj": _why_no_decode(every),
        "idle_power_w": _NO_IDLE,
        **dict.fromkeys(OF_DRAFTS, _why_no_drafts(windows)),
        **_why_no_prefill(windows, every),
        **_why_no_times(windows),
        **_why_no_grades(windows),
    }
    return Cell(
        condition=condition,
        passes=figures,
        half_width=half_width,
        calibration=calibration,
        flags=flags,
        undefined=undefined,
        items=items.of_windows(windows),
        drafts=items.drafts_of_windows(windows),
        includes=run.includes(condition.get("engine", next(iter(run.engine), ""))),
    )


def _why_void(window: Window) -> str:
    """Why a window cannot be read; empty where it can."""
    if window.outcome == "void":
        return "; ".join(window.reasons) or "void"
    return impossible(window)


def _figures(window: Window, idle: IdleBaseline | None) -> dict[str, float]:
    figures = ((name, metric.of_window(window, idle)) for name, metric in METRICS.items())
    return {name: figure for name, figure in figures if figure is not None}


def _decode(window: Window, every: Sequence[Window]) -> dict[str, float]:
    """The figure that comes from all answer lengths of one pass together."""
    line = _line(window.pass_index, every)
    return {} if line is None or line.slope_mj <= 0 else {"decode_energy_per_token_mj": line.slope_mj}


def _line(pass_index: int, every: Sequence[Window]) -> Decode | None:
    of_pass = [w for w in every if w.pass_index == pass_index and w.role != "prefill"]
    return None if any(map(_why_void, of_pass)) else decode(of_pass)


def _why_no_decode(every: Sequence[Window]) -> str:
    spoiled = [w for w in every if w.role == "length" and _why_void(w)]
    if spoiled:
        return (
            f"pass {spoiled[0].pass_index + 1}, answers of {spoiled[0].answer_tokens} tokens: {_why_void(spoiled[0])}"
        )
    for index in dict.fromkeys(w.pass_index for w in every):
        line = _line(index, every)
        if line is not None and line.slope_mj <= 0:
            return f"pass {index + 1}: longer answers took no more energy than shorter ones; measure longer windows, on a quieter machine"
    return "answers of one length alone were measured; state request.lengths"


def _why_no_energy(windows: Sequence[Window]) -> dict[str, str]:
    without = [str(window.pass_index + 1) for window in windows if window.energy_j is None]
    why = f"no energy was measured in pass {', '.join(without)}" if without else "no token was generated"
    return dict.fromkeys(("energy_per_token_mj", "energy_j", "power_w"), why)


_NO_IDLE = "no idle baseline was measured"


def _why_no_drafts(windows: Sequence[Window]) -> str:
    if any(answer.draft_n for window in windows for answer in window.requests):
        return "not every pass drafted"
    return "nothing was drafted; name a draft_model"


def _prefill(window: Window, every: Sequence[Window]) -> dict[str, float]:
    """The figures that come from the window of prompts alone of the same pass."""
    alone = [w for w in every if w.pass_index == window.pass_index and w.role == "prefill" and not _why_void(w)]
    return prefill(window, alone[0]) if alone else {}


def _why_no_prefill(windows: Sequence[Window], every: Sequence[Window]) -> dict[str, str]:
    alone = [w for w in every if w.role == "prefill"]
    spoiled = [w for w in alone if _why_void(w)]
    if spoiled:
        return dict.fromkeys(OF_PREFILL, f"pass {spoiled[0].pass_index + 1}, prompts alone: {_why_void(spoiled[0])}")
    if not alone and not all(map(is_prefill, windows)):
        return dict.fromkeys(OF_PREFILL, "prompts alone were not measured; state request.prefill_windows: true")
    nothing = "no energy was measured, or no prompt token computed"
    whole = (
        nothing
        if alone
        else "whole requests were not measured; raise answer_tokens and state request.prefill_windows: true"
    )
    for window in windows:
        share = next((prefill_share(window, w) for w in alone if w.pass_index == window.pass_index), None)
        if share is not None and share > 1:
            whole = (
                f"pass {window.pass_index + 1}: prompts alone took {share:.3g} times the energy of whole requests; measure longer windows, "
                "on a quieter machine"
            )
    return {**dict.fromkeys(OF_PREFILL, nothing), "prefill_share": whole}


def _why_no_net(idle: IdleBaseline | None) -> str:
    if idle is None:
        return _NO_IDLE
    return f"the idle baseline ({idle.mean_w:.3g} W, standard deviation {idle.sd_w:.2g} W) cannot be subtracted"


def _why_no_grades(windows: Sequence[Window]) -> dict[str, str]:
    whole = "no questions were asked; state request.questions"
    none_right = next(
        (
            f"none of {len(graded(w))} answers was right in pass {w.pass_index + 1}; ask more or easier questions, or a better model"
            for w in windows
            if graded(w) and not any(grade.correct for grade in graded(w))
        ),
        "no energy was measured" if any(map(graded, windows)) else whole,
    )
    return {**dict.fromkeys(GRADED, whole), "energy_per_correct_j": none_right}


def _why_no_times(windows: Sequence[Window]) -> dict[str, str]:
    whole = "the answers were not streamed; ask for it with request: {stream: true}"
    streamed = all(answer.first_token_s is not None for window in windows for answer in window.requests)
    untimed = [a for window in windows for a in window.requests if a.inter_token_median_s is None]
    between = (
        "the pieces of the stream are no single tokens, and the server does not count them, so that nobody knows when each token came"
        if any(answer.predicted_n > 1 for answer in untimed)
        else "answers of one token have no time between tokens; raise answer_tokens"
    )
    return {"time_to_first_token_s": whole, "inter_token_s": between if streamed else whole}
