"""Plots of stored results as SVG text, for a page that is light or dark and for a file that stands alone.

matplotlib draws in stand-in colours; `themed` puts the page's own in their place, so one drawing serves both themes. Plots are drawn
as wide as a phone is, because text in a picture that is shrunk cannot be read; a wide page sets them side by side.
"""

from __future__ import annotations

import html
import io
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_joules.errors import Unmeasured, UsageError, Void
from pytest_joules.note.findings import main_axis, slices, telling
from pytest_joules.note.lines import axis_name, figure
from pytest_joules.records import Rail, Run, Sample, Verdict, Window
from pytest_joules.sweep import Cell, Sweep, label
from pytest_joules.words import one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK, _QUIET, _GRID, _BAND, _GROUND = "#010101", "#020202", "#030303", "#040404", "#050505"
_SERIES = tuple(f"#0a0a{index:02x}" for index in range(1, 9))
_THEME: Mapping[str, tuple[str, str]] = {
    _INK: ("--ink", "#1b1f24"),
    _QUIET: ("--quiet", "#57606a"),
    _GRID: ("--rule", "#d8dee4"),
    _BAND: ("--band", "#bf8700"),
    _GROUND: ("--ground", "#ffffff"),
    **dict(
        zip(
            _SERIES,
            [
                ("--series-1", "#0a58ca"),
                ("--series-2", "#b3470f"),
                ("--series-3", "#1a7f5a"),
                ("--series-4", "#8250df"),
                ("--series-5", "#9a6700"),
                ("--series-6", "#bf3989"),
                ("--series-7", "#0e7490"),
                ("--series-8", "#57606a"),
            ],
            strict=True,
        )
    ),
}
"""Stand-in colour to the page's variable and to the colour in a file of its own."""

_WIDTH_IN, _POINTS_PER_TRACE = 5.0, 600
_TICK_CHARACTERS, _LONGEST_TICK = 36, 22
"""So many characters stand side by side under an axis."""
_HEIGHT_IN, _LEGEND_LINE_IN = 3.2, 0.2
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One plot.

    Attributes:
        name: unique within a note, fit for a file name.
        caption: what is shown, for everybody.
        told: what it comes to, in words, for who cannot see it.
        drawn: the SVG in stand-in colours.
    """

    name: str
    caption: str
    told: str
    drawn: str

    @property
    def inline(self) -> str:
        """The SVG for a page that defines the colours as variables."""
        return _coloured(self.drawn, lambda variable, _: f"var({variable})")

    @property
    def standalone(self) -> str:
        """The SVG for a file of its own, on white."""
        return _coloured(self.drawn, lambda _, colour: colour)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line of a plot.

    Attributes:
        points: (x, y) for each condition.
        passes: (x, y) of each pass alone.
    """

    name: str
    points: Sequence[tuple[Any, float]]
    passes: Sequence[tuple[Any, float]] = ()


def figures(run: Run, verdicts: Sequence[Verdict], samples: Sequence[Sample]) -> list[Figure]:
    """The plots of a run: energy per token and per right answer, throughput beside power, and the power trace of every window.

    Raises:
        UsageError: matplotlib is not installed.
    """
    sweep = telling(run)
    axis = main_axis(sweep)
    found: list[Figure | None] = []
    if axis is not None:
        found.append(_energy(sweep, axis, verdicts, run.meter.basis))
        found.append(_right_answers(sweep, axis, run.meter.basis))
        found.append(_speed_and_power(sweep, axis, run.meter.basis))
    found += _traces(run, samples)
    return [one for one in found if one is not None]


def lines_over(
    name: str, caption: str, axis: str, y: str, series: Sequence[Series], bands: Sequence[tuple[Any, float, float, str]] = (),
    *, linear: bool = False,
) -> Figure:  # fmt: skip
    """One plot of several lines over one axis.

    Args:
        axis: the suite's name of what varies; numbers that double are set at equal distances.
        y: what is drawn, with its unit.
        bands: (x, low, high, words) of figures that were predicted.
        linear: numbers stand at their own distances even so.
    """

    def draw(panels: Sequence[Axes]) -> None:
        _lines(panels[0], axis, series, bands, linear=linear)
        panels[0].set_ylabel(y)

    told = "; ".join(
        f"{one.name + ': ' if one.name else ''}{', '.join(f'{figure(value)} at {x}' for x, value in one.points)}"
        for one in series
    )
    return Figure(
        name=name,
        caption=caption,
        told=f"{y} over {axis_name(axis)}: {told}",
        drawn=_svg(name, draw, height_in=_HEIGHT_IN + _legend_in(series)),
    )


def series_of(sweep: Sweep, axis: str, metric: str, prefix: str = "") -> list[Series]:
    """The lines of a metric along an axis, one for each combination of the other axes; cells without a figure are left out."""
    found = []
    for fixed, table in slices(sweep, axis):
        points = [(cell.condition[axis], value) for cell in table.cells if (value := _value(cell, metric)) is not None]
        passes = [
            (cell.condition[axis], figures[metric])
            for cell in table.cells
            if not cell.void
            for figures in cell.passes
            if metric in figures
        ]
        if points:
            name = ", ".join(part for part in (prefix, fixed) if part)
            found.append(Series(name=name, points=points, passes=passes))
    return found


def _value(cell: Cell, metric: str) -> float | None:
    try:
        value = cell.mean(metric)
    except (Unmeasured, Void):
        return None
    return value if math.isfinite(value) else None


def _energy(sweep: Sweep, axis: str, verdicts: Sequence[Verdict], basis: str) -> Figure | None:
    metric = "energy_per_token_mj"
    series = series_of(sweep, axis, metric)
    if not series:
        return None
    # On a grid a band belongs to one of several lines, and would seem to belong to all.
    bands = [
        (v.band.condition[axis], v.band.low, v.band.high, one_line(v.claim, 80))
        for v in verdicts
        if v.band is not None
        and v.band.metric == metric
        and len(sweep.axes) == 1
        and v.band.condition.get(axis) in {x for x, _ in series[0].points}
    ]
    shown = "each pass as a small mark, their mean on the line" if any(s.passes for s in series) else "as published"
    caption = f"Energy per token ({basis}) over {axis_name(axis)}: {shown}."
    if bands:
        at = "; ".join(
            f"at {x}: {figure(low)} to {figure(high)} mJ ({words.rstrip('.')})" for x, low, high, words in bands
        )
        caption += f" Shaded, where a prediction holds if all else is as measured: {at}."
    return lines_over("energy", caption, axis, "mJ per token", series, bands)


def _right_answers(sweep: Sweep, axis: str, basis: str) -> Figure | None:
    series = series_of(sweep, axis, "energy_per_correct_j")
    if not series:
        return None
    caption = (
        f"Energy per right answer ({basis}) over {axis_name(axis)}: each pass as a small mark, their mean on the line. What the choice of "
        "questions leaves open is not drawn."
    )
    return lines_over("right-answers", caption, axis, "J per right answer", series)


def _speed_and_power(sweep: Sweep, axis: str, basis: str) -> Figure | None:
    speed, power = series_of(sweep, axis, "tokens_per_s"), series_of(sweep, axis, "power_w")
    if not speed:
        return None

    def draw(panels: Sequence[Axes]) -> None:
        _lines(panels[0], axis, speed)
        panels[0].set_ylabel("tokens per s")
        if power:
            panels[0].set_xlabel("")
            _lines(panels[1], axis, power, legend=False)
            panels[1].set_ylabel("power, W")

    told = "; ".join(
        f"{one.name + ': ' if one.name else ''}{', '.join(f'{figure(value)} {unit} at {x}' for x, value in one.points)}"
        for unit, many in (("tok/s", speed), ("W", power))
        for one in many
    )
    caption = f"Throughput of all requests together{f', and mean power ({basis})' if power else ''}."
    return Figure(
        name="speed-and-power",
        caption=caption,
        told=told,
        drawn=_svg("speed", draw, 2 if power else 1, _HEIGHT_IN + _legend_in(speed)),
    )


def _legend_columns(series: Sequence[Series]) -> int:
    return 1 if max(len(one.name) for one in series) > _LONGEST_TICK else 2


def _legend_in(series: Sequence[Series]) -> float:
    """Height of the legend, which the drawing must grow by: it would else grow at the cost of the plot."""
    return _LEGEND_LINE_IN * math.ceil(len(series) / _legend_columns(series)) if len(series) > 1 else 0.0


def _lines(
    panel: Axes,
    axis: str,
    series: Sequence[Series],
    bands: Sequence[tuple[Any, float, float, str]] = (),
    legend: bool = True,
    linear: bool = False,
) -> None:
    values = list(dict.fromkeys(x for one in series for x, _ in one.points))
    place = _places(values, linear=linear)
    for index, one in enumerate(series):
        colour, marker = _SERIES[index % len(_SERIES)], _MARKERS[index % len(_MARKERS)]
        joined = _DASHES[index // len(_SERIES) % len(_DASHES)] if place.ordered else ""
        panel.scatter(
            [place(x) for x, _ in one.passes], [y for _, y in one.passes], s=14, marker=marker, color=colour, alpha=0.55, linewidths=0
        )  # fmt: skip
        panel.plot(
            [place(x) for x, _ in one.points], [y for _, y in one.points], linestyle=joined, marker=marker, markersize=6,
            color=colour, linewidth=1.6, label=one.name,
        )  # fmt: skip
    for x, low, high, _ in bands:
        if x in values:
            panel.fill_between([place(x) - 0.28, place(x) + 0.28], low, high, color=_BAND, alpha=0.3, linewidth=0)
            for edge in (low, high):
                panel.plot([place(x) - 0.28, place(x) + 0.28], [edge, edge], color=_BAND, linewidth=1.4)
    names = [_tick(x) for x in values]
    crowded = place.ordered and not linear and sum(map(len, names)) > _TICK_CHARACTERS
    every = math.ceil(sum(map(len, names)) / _TICK_CHARACTERS) if crowded else 1
    shown = list(zip([place(x) for x in values[::every]], names[::every], strict=True))
    if linear:
        shown = _apart(shown, place(values[-1]) + 1.0)
    panel.set_xticks([at for at, _ in shown], [name for _, name in shown])
    if not place.ordered and sum(map(len, names)) > _TICK_CHARACTERS:
        panel.tick_params("x", rotation=30)
        for tick in panel.get_xticklabels():
            tick.set_horizontalalignment("right")
    panel.set_xlim(-0.5, place(values[-1]) + 0.5 if place.ordered else len(values) - 0.5)
    panel.set_xlabel(axis_name(axis))
    panel.set_ylim(0, 1.08 * max((y for one in series for _, y in (*one.points, *one.passes)), default=1.0))
    if legend and len(series) > 1:
        panel.legend(
            loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=_legend_columns(series), frameon=False, fontsize=9, labelcolor=_INK
        )  # fmt: skip


def _apart(ticks: Sequence[tuple[float, str]], width: float) -> list[tuple[float, str]]:
    """The ticks, from the last one back, whose names leave room for each other on an axis so wide."""
    kept: list[tuple[float, str]] = []
    for at, name in sorted(ticks, reverse=True):
        if not kept or kept[-1][0] - at >= width * (len(name) + len(kept[-1][1]) + 2) / 2 / _TICK_CHARACTERS:
            kept.append((at, name))
    return kept[::-1]


def _tick(value: Any) -> str:
    """A value beside the axis; of a long name its two ends, since names of one family differ at either."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _LONGEST_TICK else f"{text[:9]}…{text[-11:]}"


class _places:  # noqa: N801  (called like a function)
    """Where a value stands on the axis: in order and one apart, unless they are numbers at other distances than doublings."""

    def __init__(self, values: Sequence[Any], *, linear: bool = False) -> None:
        self.ordered = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
        positive = self.ordered and all(v > 0 for v in values)
        self._log = positive and not linear and len(values) > 1 and max(values) / min(values) > 4
        ranked = sorted(values) if self.ordered else list(values)
        self._least = ranked[0] if ranked else 0
        gaps = [self._raw(b) - self._raw(a) for a, b in itertools.pairwise(ranked)] if self.ordered else []
        self._step = min((gap for gap in gaps if gap > 0), default=1.0)
        self._rank = {value: index for index, value in enumerate(values)}

    def _raw(self, value: Any) -> float:
        return math.log2(value) if self._log else float(value)

    def __call__(self, value: Any) -> float:
        if not self.ordered:
            return float(self._rank[value])
        return (self._raw(value) - self._raw(self._least)) / self._step


def _traces(run: Run, samples: Sequence[Sample]) -> list[Figure]:
    """One plot for each condition: the power of its windows, laid over each other from their starts."""
    counted = [rail for rail in run.meter.rails if rail.role == "counted"]
    by_rail = {rail.name: [s for s in samples if s.rail == rail.name] for rail in counted}
    if not any(by_rail.values()):
        return []
    windows = [w for w in run.windows if w.role in ("measured", "control")]
    top = 1.05 * max((p for w in windows for r in counted for _, p in _trace(r, by_rail[r.name], w)), default=1.0)
    found = []
    for number, condition in enumerate(run.conditions):
        own = [w for w in windows if w.condition == condition]
        if own:
            found.append(
                _trace_of(
                    f"trace-{number + 1}",
                    label(condition) or "the only condition",
                    own,
                    counted,
                    by_rail,
                    top,
                    run.meter.basis,
                )
            )
    return found


def _trace_of(
    name: str, where: str, windows: Sequence[Window], rails: Sequence[Rail], by_rail: Mapping[str, Sequence[Sample]], top: float, basis: str
) -> Figure:  # fmt: skip
    thinned = False

    def draw(panels: Sequence[Axes]) -> None:
        nonlocal thinned
        panel = panels[0]
        for index, window in enumerate(windows):
            colour = _SERIES[index % len(_SERIES)]
            panel.axvline(window.window_s, color=colour, linewidth=1.0, linestyle=(0, (4, 2)))
            for place, rail in enumerate(rails):
                trace = _trace(rail, by_rail[rail.name], window)
                kept = _thinned(trace)
                thinned |= len(kept) < len(trace)
                name = f"pass {window.pass_index + 1}{', control' if window.role == 'control' else ''}"
                name += ", void" if window.outcome == "void" else ""
                panel.plot(
                    [at for at, _ in kept], [power for _, power in kept], color=colour, linewidth=1.1, marker="o", markersize=2.6,
                    linestyle=_DASHES[place % len(_DASHES)], drawstyle="default" if rail.kind == "instant" else "steps-pre",
                    label=f"{name}, {rail.name}" if len(rails) > 1 else name,
                )  # fmt: skip
        panel.axvline(0.0, color=_INK, linewidth=1.0)
        panel.set_ylim(0, top)
        panel.set_xlabel("s from the start of the window")
        panel.set_ylabel("power, W")
        panel.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False, fontsize=8, labelcolor=_INK)

    drawn = _svg(name, draw, height_in=2.7)
    means = ", ".join(f"pass {w.pass_index + 1} {_mean_power(w)}" for w in windows)
    note = " Long traces are thinned to their lowest and highest samples." if thinned else ""
    return Figure(
        name=name,
        caption=f"{where} ({basis}): a dot is a sample, the solid upright the start of the window, the dashed ones its ends.{note}",
        told=f"Mean power in the windows: {means}",
        drawn=drawn,
    )


def _mean_power(window: Window) -> str:
    if window.outcome == "void":
        return "void"
    if window.energy_j is None:
        return "without an energy"
    return f"{figure(window.energy_j / window.window_s)} W over {window.window_s:.1f} s"


def _trace(rail: Rail, samples: Sequence[Sample], window: Window) -> list[tuple[float, float]]:
    """(seconds from the window's start, W) in the window and a little around it; of a counter, the power between two readings."""
    margin = 0.08 * window.window_s
    near = [s for s in samples if window.start_mono - margin <= s.mono <= window.end_mono + margin]
    if rail.kind != "counter":
        return [(s.mono - window.start_mono, s.value) for s in near]
    return [
        (b.mono - window.start_mono, (b.value - a.value) / (b.mono - a.mono))
        for a, b in itertools.pairwise(near)
        if b.mono > a.mono and b.value >= a.value
    ]


def _thinned(trace: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most so many points, the lowest and the highest of every stretch, so that no peak is lost."""
    if len(trace) <= _POINTS_PER_TRACE:
        return list(trace)
    length = math.ceil(2 * len(trace) / _POINTS_PER_TRACE)
    stretches = (trace[start : start + length] for start in range(0, len(trace), length))
    return [
        point
        for stretch in stretches
        for point in sorted({min(stretch, key=lambda p: p[1]), max(stretch, key=lambda p: p[1])})
    ]


def _svg(name: str, draw: Callable[[Sequence[Axes]], None], panels: int = 1, height_in: float = _HEIGHT_IN) -> str:
    """An SVG element in stand-in colours, with text as text.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure as Drawing
    except ImportError:
        raise UsageError(
            "plots need matplotlib, which is not installed: pip install 'pytest-joules[note]', or print the note without -o"
        ) from None
    style: dict[Any, Any] = {
        "svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif", "font.size": 10, "text.color": _INK,
        "axes.edgecolor": _QUIET, "axes.labelcolor": _INK, "axes.facecolor": "none", "figure.facecolor": "none",
        "xtick.color": _QUIET, "ytick.color": _QUIET, "xtick.labelcolor": _INK, "ytick.labelcolor": _INK, "axes.grid": True,
        "axes.grid.axis": "y", "grid.color": _GRID, "grid.linewidth": 0.8, "axes.spines.top": False, "axes.spines.right": False,
        "axes.axisbelow": True, "text.parse_math": False,
    }  # fmt: skip
    with mpl.rc_context(style):
        drawing = Drawing(figsize=(_WIDTH_IN, height_in + 1.5 * (panels - 1)), layout="constrained")
        FigureCanvasSVG(drawing)
        axes = drawing.subplots(panels, 1, squeeze=False)[:, 0]
        draw(list(axes))
        out = io.StringIO()
        drawing.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = out.getvalue()
    return _own_ids(text[text.index("<svg") :].strip(), name)


def _own_ids(svg: str, name: str) -> str:
    """Ids made unique to one drawing: several stand in one page, and a page knows each id once."""
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    return re.sub(r'(href="#|url\(#)', rf"\1{name}-", svg)


def _coloured(svg: str, of: Callable[[str, str], str]) -> str:
    for stand_in, (variable, colour) in _THEME.items():
        svg = svg.replace(stand_in, of(variable, colour))
    return svg


def titled(svg: str, title: str) -> str:
    """The SVG as a picture with a name, for who has it read aloud."""
    head, rest = svg.split(">", 1)
    return f'{head} role="img"><title>{html.escape(title)}</title>{rest}'
