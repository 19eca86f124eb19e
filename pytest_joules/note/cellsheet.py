"""The sheet of a cell, and of what it does under load: for a terminal, as Markdown and as a page. Pure, but for the drawing."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from pytest_joules.cell import SHARE, Quantity, Row, Served, Sheet, unlike, worst
from pytest_joules.note.markdown import escaped
from pytest_joules.queueing import Estimate, Load, Outcome, Policy, Trace
from pytest_joules.records import Basis

if TYPE_CHECKING:
    from pytest_joules.note.plots import Figure

HEADS = ("quantity", "value", "unit", "basis", "from")
MARK = "?"
"""Stands before every figure with a placeholder in it, and in place of one that is not known."""

GROWS = "grows"
_TIMES = tuple((name, share) for name in ("waiting", "first_token", "total") for share in ("p50", "p99"))
_TIME_HEADS = (
    "\nreq/s", "wait, s\np50", "wait, s\np99", "to first, s\np50", "to first, s\np99", "to all, s\np50", "to all, s\np99",
)  # fmt: skip
_POWER_HEADS = (
    "\nreq/s", "of\ncapacity", "slots\nbusy", "modules\nW", "wall\nW", "modules\nJ/answer", "wall\nJ/answer",
)  # fmt: skip
_POWERS = ("modules_w", "wall_w", "modules_per_answer_j", "wall_per_answer_j")
_NOTHING = 0.005
"""What rounds to nothing has no say in how many decimals a column has."""

_LEAST_WIDTH, _PLACES_WIDTH = 18, 8


def value_text(row: Row) -> str:
    """`? 294 to 532`: the figure or the range, marked where a placeholder is in it."""
    one = row.value
    if one is None:
        return "-"
    shown = _range(one, row.unit)
    return f"{MARK} {shown}".rstrip() if _doubtful(one) else shown


def _doubtful(one: Quantity) -> bool:
    return one.basis == "placeholder"


def _range(one: Quantity, unit: str) -> str:
    if not one.known:
        return ""
    low, high = (_number(end, unit) for end in one.ends)
    percent = "%" if unit == SHARE else ""
    return f"{low}{percent}" if low == high else f"{low} to {high}{percent}"


def _number(value: float, unit: str) -> str:
    if unit == SHARE:
        return f"{100 * value:.0f}" if value >= 0.1 else f"{100 * value:.2g}"
    if unit.startswith("J"):
        return f"{value:.4g}" if value < 1000 else f"{value:,.0f}"
    return f"{value:,.0f}" if not unit or value >= 100 else f"{value:.3g}"


def numbers(sources: Sequence[str], every: Sequence[str]) -> str:
    """`[1, 3-5]`: places of sources in the list of all of them."""
    places = sorted(every.index(source) + 1 for source in sources)
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][-1] + 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    return f"[{', '.join(f'{r[0]}-{r[-1]}' if len(r) > 1 else str(r[0]) for r in runs)}]" if runs else ""


def _name(row: Row) -> str:
    return f"{row.quantity} ({row.remark})" if row.remark else row.quantity


def _cells(row: Row, every: Sequence[str]) -> list[str]:
    if row.value is None:
        return [_name(row), "", "", "", ""]
    return [_name(row), value_text(row), row.unit, row.value.basis, numbers(row.value.sources, every)]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderLoad:
    """What was simulated under one policy: the same requests at several rates, or a trace.

    Attributes:
        drawn: at rates that nobody asked for, so that plots have a shape.
        prompts_known: somebody said how long prompts are; else they are 0 in `load`, and nobody reads them.
        share_of: the capacity, in requests per s, that rates were given as shares of.
    """

    load: Load | Trace
    policy: Policy
    points: tuple[Served, ...]
    drawn: tuple[Served, ...] = ()
    prompts_known: bool = True
    share_of: float | None = None


def _parted(row: Row, every: Sequence[str]) -> list[str]:
    """The cells of a row where a table keeps no indents."""
    name, *cells = _cells(row, every)
    return [f"– {name.strip()}" if name.startswith(" ") else name, *cells]


def _behind(sheet: Sheet, under: UnderLoad | None) -> tuple[list[str], list[str]]:
    """Every source and every need, those of the simulation last."""
    more = [one for point in (under.points if under else ()) for one in (point.times, point.wall_w)]
    sources = [*sheet.sources, *(source for one in more for source in one.sources)]
    needs = [*sheet.needs, *(need for one in more for need in one.needs)]
    return list(dict.fromkeys(sources)), list(dict.fromkeys(needs))


def about(sheet: Sheet) -> list[str]:
    """What a reader must know before the figures."""
    return [
        "Composed from figures of modules at full load; no cell was measured. A total has the worst basis of all that is in it. "
        f"{MARK} marks a figure with a placeholder in it: something that nobody has measured yet. "
        "A range is what is known of a figure, and no 95 % interval: no figure here has one."
    ]


def lines(sheet: Sheet, under: UnderLoad | None, width: int) -> Iterator[str]:
    """The sheet for a terminal."""
    yield from textwrap.wrap(sheet.cell.name, width)
    for line in about(sheet):
        yield from textwrap.wrap(line, width)
    yield ""
    yield from _table(sheet, under, width)
    if sheet.remarks:
        yield ""
    for remark in sheet.remarks:
        yield from textwrap.wrap(f"- {remark}", width, subsequent_indent="  ")
    if under:
        yield from ("", *textwrap.wrap(told(under), width))
        for title, heads, rows in load_tables(under):
            # What stands over two columns is said once.
            over = [head.split("\n")[0] for head in heads]
            once = [
                head if one != before else head[len(one) :]
                for head, one, before in zip(heads, over, ["", *over], strict=False)
            ]
            yield from ("", title, *_fitting(rows, once, width))
        yield ""
        for remark in load_remarks(sheet, under):
            yield from textwrap.wrap(f"- {remark}", width, subsequent_indent="  ")
    sources, needs = _behind(sheet, under)
    yield from ("", "From")
    for number, source in enumerate(sources, 1):
        yield from textwrap.wrap(f"[{number}] {source}", width, subsequent_indent="    ")
    if needs:
        yield from ("", "To be measured")
        for need in needs:
            yield from textwrap.wrap(f"- {need}", width, subsequent_indent="  ")


def _table(sheet: Sheet, under: UnderLoad | None, width: int) -> Iterator[str]:
    every, _ = _behind(sheet, under)
    rows = [_cells(row, every) for part in sheet.parts for row in part.rows]
    # tabulate makes a column at least two wider than its heading.
    widths = [max(len(HEADS[i]) + 2, *(len(row[i]) for row in rows)) for i in range(len(HEADS))]
    widths[4] = min(_PLACES_WIDTH, widths[4])
    room = max(_LEAST_WIDTH, width - sum(one + 2 for one in widths[1:]))
    shown: list[list[str]] = []
    for number, part in enumerate(sheet.parts):
        if number:
            shown.append([""] * len(HEADS))
        shown.append([textwrap.fill(part.title, room), "", "", "", ""])
        for row in part.rows:
            name, *cells, places = _cells(row, every)
            indent = " " * (2 + len(name) - len(name.lstrip()))
            wrapped = textwrap.fill(name.strip(), room, initial_indent=indent, subsequent_indent=f"{indent}  ")
            shown.append([wrapped, *cells, textwrap.fill(places, widths[4])])
    text = tabulate(
        shown, headers=HEADS, tablefmt="simple", disable_numparse=True, colalign=("left", "right", "left", "left", "left"),
        preserve_whitespace=True,
    )  # fmt: skip
    yield from (line.rstrip() for line in text.splitlines())


def _tabulated(rows: Sequence[Sequence[str]], heads: Sequence[str], fmt: str) -> list[str]:
    return tabulate(
        rows, headers=heads, tablefmt=fmt, disable_numparse=True, colalign=["right"] * len(heads)
    ).splitlines()


def _fitting(rows: Sequence[Sequence[str]], heads: Sequence[str], width: int) -> list[str]:
    """The table, with its ranges on two lines where it would else be too wide."""
    shown = _tabulated(rows, heads, "simple")
    if max(map(len, shown)) <= width:
        return shown
    return _tabulated([[cell.replace("-", "-\n") for cell in row] for row in rows], heads, "simple")


def told(under: UnderLoad) -> str:
    """What was simulated, in a sentence."""
    load, policy = under.load, under.policy
    cap = f", at most {policy.cap} on a module" if policy.cap else ""
    served = f"{policy.placing}{cap}, {policy.batching} batching"
    basis = worst(one.times.basis for one in under.points)
    prompts = f"{load.prompt_tokens:.3g}" if under.prompts_known else "a length that nobody stated"
    if isinstance(load, Trace):
        return (
            f"One cell under a trace, simulated ({basis} times): {len(load.arrivals):,} requests, in the mean "
            f"{load.requests_per_s:.3g} in a second, with prompts of {prompts} and answers of {load.answer_tokens:.3g} "
            f"tokens; {served}; power and energy are of the time from the first arrival to the last answer."
        )
    lengths = "tokens, exponentially distributed" if load.answer_lengths == "exponential" else "tokens"
    return (
        f"One cell under load, simulated ({basis} times): Poisson arrivals, answers of {load.answer_tokens:g} {lengths}, prompts of "
        f"{prompts}; {served}; {load.requests:,} requests at each rate, after "
        f"{round(load.requests * load.warmup):,} that are left out; seed {load.seed}."
    )


def load_tables(under: UnderLoad) -> list[tuple[str, tuple[str, ...], list[list[str]]]]:
    """Times in seconds, and power with energy per answer: a title, headings and one row for each rate."""
    points = under.points
    rates = [f"{one.requests_per_s:.4g}" for one in points]
    times = [
        _column(
            [(_time(one.fast, name, share), _time(one.slow, name, share)) for one in points],
            2,
            [one.times for one in points],
        )
        for name, share in _TIMES
    ]
    busy = [
        _column(
            [tuple(100 * o.slots_busy_mean / o.slots for o in (one.fast, one.slow)) for one in points], 0,
            [one.times for one in points], "%",
        ),
    ]  # fmt: skip
    capacity = [_marked(_range(one.of_capacity, SHARE).replace(" to ", "-"), one.of_capacity) for one in points]
    power = [
        _column([_known(getattr(one, key), one) for one in points], 3, [getattr(one, key) for one in points])
        for key in _POWERS
    ]
    return [
        ("Times", _TIME_HEADS, [list(row) for row in zip(rates, *times, strict=True)]),
        ("Power and energy", _POWER_HEADS, [list(row) for row in zip(rates, capacity, *busy, *power, strict=True)]),
    ]


def _column(ends: Sequence[tuple[float, ...]], decimals: int, behind: Sequence[Quantity], unit: str = "") -> list[str]:
    """`2.34-2.47`: all of a column with as many decimals as give its least figure three digits, or two where there are ranges.

    Args:
        ends: of each figure; infinite where it grows, empty where it is not known.
        decimals: no more than so many.
        behind: what each stands on; a figure with a placeholder in it is marked.
    """
    finite = [value for pair in ends for value in pair if math.isfinite(value)]
    least = min((value for value in finite if value >= _NOTHING), default=1.0)
    digits = 2 if any(len(set(pair)) > 1 for pair in ends) else 3
    places = min(decimals, max(0, digits - 1 - math.floor(math.log10(least))))
    shown = []
    for pair, one in zip(ends, behind, strict=True):
        texts = [GROWS if math.isinf(value) else f"{value:,.{places}f}" for value in sorted(pair)]
        text = "-".join(dict.fromkeys(texts))
        shown.append(text if set(texts) == {GROWS} else _marked(f"{text}{unit}" if text else "", one))
    return shown


def _known(one: Quantity, of: Served) -> tuple[float, ...]:
    if one.known:
        return one.ends
    return (math.inf,) if of.fast.growing or of.slow.growing else ()


def _time(outcome: Outcome, name: str, share: str) -> float:
    """Seconds; infinite where a queue grows."""
    seconds: float = getattr(getattr(outcome, name), share).value
    return math.inf if outcome.growing else seconds


def _marked(shown: str, one: Quantity) -> str:
    return f"{MARK}{shown}" if _doubtful(one) else shown


def load_remarks(sheet: Sheet, under: UnderLoad) -> Iterator[str]:
    """What is to be known of the simulated figures."""
    yield (
        "seconds: wait, in which nothing is done for a request; first, to the first token; all, to the whole answer. "
        "p50 and p99: half and 99 of 100 requests take no longer"
    )
    if any(one.fast is not one.slow for one in under.points):
        yield "a range is what the ranges of the cell's figures leave: all at the fast and frugal end, all at the other one"
    if under.share_of is not None:
        one = under.points[0].of_capacity
        end = " at the slow end of its range" if one.known and one.ends[0] != one.ends[1] else ""
        yield f"a load in % is a share of the capacity{end}, {under.share_of:.3g} requests per s"
    if under.points[0].fast.prefill_busy is None:
        within = sorted({one.prompt_tokens for one in sheet.cell.decode if one.prompt_tokens})
        lengths = f" of about {' and '.join(f'{length:.0f}' for length in within)} tokens" if within else ""
        yield f"there are no prefill modules: beside the prompts{lengths} in the measured windows, prompts take no time and no energy here"
    yield from unlike(sheet.cell, under.load.answer_tokens, under.load.prompt_tokens)
    steady = [o for one in under.points for o in (one.fast, one.slow) if not o.growing]
    if halves := _halves(steady):
        yield (
            f"95 % half-widths of the simulation itself: {halves}; how far the figures of the modules are right is not in them"
        )
    if len(steady) < 2 * len(under.points):
        yield (
            f"{GROWS}: more than the cell can serve, so the queue grows for as long as one looks and no time is that of a steady state; "
            "power and energy, where they are told, are those of full modules"
        )
    near = [f"{one.requests_per_s:.4g}" for one in under.points if any(_too_small(o) for o in (one.fast, one.slow))]
    if near:
        yield (
            f"at {', '.join(near)} requests per s queues last so long that half-widths are too small, and the times are less sure than "
            "they say; let more requests be counted"
        )


def _too_small(outcome: Outcome) -> bool:
    return outcome.correlated and not outcome.growing


def _halves(steady: Sequence[Outcome]) -> str:
    """`up to 3.1% of the mean time of an answer, 8.2% of its p99`: the widest of all loads, of what the tables show."""
    shown: list[tuple[str, list[Estimate | None]]] = [
        ("mean time of an answer", [o.total.mean for o in steady]),
        ("p50 of that time", [o.total.p50 for o in steady]),
        ("p99 of that time", [o.total.p99 for o in steady]),
        ("p99 of the wait", [o.waiting.p99 for o in steady]),
        ("modules' energy for an answer", [o.energy_per_answer_j for o in steady]),
    ]
    said = []
    for what, estimates in shown:
        shares = [
            one.half_width / one.value
            for one in estimates
            if one is not None and one.half_width is not None and one.value >= _NOTHING
        ]
        if shares:
            said.append(f"{max(shares):.1%} of the {what}" if max(shares) <= 1 else f"more than the {what} itself")
    if not said:
        return ""
    few = any(o.total.p99.half_width is None for o in steady)
    return f"up to {', '.join(said)}{'; of a p99 it is not known with so few requests' if few else ''}"


def markdown(sheet: Sheet, under: UnderLoad | None, drawn: Sequence[Figure], images: str) -> str:
    """The sheet as Markdown, its plots as files in a folder beside it."""
    return "\n".join(_markdown(sheet, under, drawn, images)).rstrip() + "\n"


def _markdown(sheet: Sheet, under: UnderLoad | None, drawn: Sequence[Figure], images: str) -> Iterator[str]:
    sources, needs = _behind(sheet, under)
    yield from (f"# {escaped(sheet.cell.name)}", "")
    for line in about(sheet):
        yield from (escaped(line), "")
    for part in sheet.parts:
        rows = [[escaped(cell) for cell in _parted(row, sources)] for row in part.rows]
        text = tabulate(
            [[*row[:3], f"**{row[3]}**" if row[3] == "placeholder" else row[3], row[4]] for row in rows], headers=HEADS,
            tablefmt="pipe", disable_numparse=True, colalign=("left", "right", "left", "left", "left"),
        )  # fmt: skip
        yield from (f"## {escaped(_capital(part.title))}", "", text, "")
    if sheet.remarks:
        yield from (*(f"- {escaped(remark)}" for remark in sheet.remarks), "")
    if under:
        yield from ("## Under load", "", escaped(told(under)), "")
        for title, heads, rows in load_tables(under):
            yield from (f"### {title}", "", *_tabulated(rows, [" ".join(head.split()) for head in heads], "pipe"), "")
        yield from (*(f"- {escaped(remark)}" for remark in load_remarks(sheet, under)), "")
        for one in drawn:
            yield from (f"![{escaped(one.told)}]({images}/{one.name}.svg)", "", escaped(one.caption), "")
    yield from ("## From", "", *(f"{number}. {escaped(text)}" for number, text in enumerate(sources, 1)), "")
    if needs:
        yield from ("## To be measured", "", *(f"- {escaped(need)}" for need in needs))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def page(sheet: Sheet, under: UnderLoad | None, drawn: Sequence[Figure]) -> str:
    """The sheet as one HTML page that fetches nothing.

    Raises:
        UsageError: jinja2 is not installed.
    """
    from pytest_joules.note.page import placed, rendered

    sources, needs = _behind(sheet, under)
    # A narrow screen shows a unit beside its figure, and with that the basis.
    parts = [
        (_capital(part.title), [
            (name, f"{value} {unit}".rstrip(), basis, places)
            for name, value, unit, basis, places in (_parted(row, sources) for row in part.rows)
        ])
        for part in sheet.parts
    ]  # fmt: skip
    return rendered(
        "cell.html.j2",
        title=sheet.cell.name,
        about=about(sheet),
        heads=[head for head in HEADS if head != "unit"],
        parts=parts,
        remarks=sheet.remarks,
        told=told(under) if under else "",
        tables=load_tables(under) if under else [],
        load_remarks=list(load_remarks(sheet, under)) if under else [],
        plots=placed(drawn),
        sources=sources,
        needs=needs,
    )


def figures(under: UnderLoad) -> list[Figure]:
    """Times over load, and power and energy per answer over load, without loads that the cell cannot serve; nothing of a trace.

    Raises:
        UsageError: matplotlib is not installed.
    """
    from pytest_joules.note.plots import Series, lines_over

    if isinstance(under.load, Trace):
        return []
    axis = "requests per s"
    every = sorted((*under.points, *under.drawn), key=lambda one: one.requests_per_s)
    ends: list[tuple[str, Callable[[Served], Outcome]]] = [("", lambda one: one.slow)]
    near = all(_near(one) for one in every)
    if not near:
        ends = [(", fast end", lambda one: one.fast), (", slow end", lambda one: one.slow)]
    times = [
        Series(
            name=f"{words}{which}",
            points=[(_rate(one), getattr(end(one).total, share).value) for one in every if not end(one).growing],
        )
        for share, words in (("p50", "half"), ("p99", "99 of 100"))
        for which, end in ends
    ]
    # One line would lie on the other.
    merged = (
        "; the slow end, which the fast one differs from by under a tenth"
        if near and any(one.fast.total != one.slow.total for one in every)
        else ""
    )
    drawn = f"; {len(under.drawn)} rates more than asked for" if under.drawn else ""
    found = []
    if any(series.points for series in times):
        found.append(
            lines_over(
                "latency",
                f"Seconds from the arrival of a request to its whole answer (simulated, {_basis(under, 'times')}{merged}{drawn}).",
                axis, "s to the whole answer", [series for series in times if series.points], linear=True,
            )
        )  # fmt: skip
    for name, words, keys in (
        ("power", "Mean power", (("modules_w", "modules"), ("wall_w", "wall"))),
        ("energy", "Energy per answer", (("modules_per_answer_j", "modules"), ("wall_per_answer_j", "wall"))),
    ):
        series = [
            Series(name=f"{what}{which}", points=points)
            for key, what in keys
            for end, which in _which(every, key)
            if (points := [
                (_rate(one), getattr(one, key).ends[end]) for one in every
                if getattr(one, key).known
            ])
        ]  # fmt: skip
        if series:
            bases = ", ".join(f"{what} {_basis(under, key)}" for key, what in keys)
            unit = "W" if name == "power" else "J per answer"
            found.append(lines_over(name, f"{words} (simulated; {bases}{drawn}).", axis, unit, series, linear=True))
    return found


def _near(one: Served) -> bool:
    """Whether the times at its two ends are too alike for two lines of a plot."""
    return one.fast.growing == one.slow.growing and all(
        math.isclose(getattr(one.fast.total, share).value, getattr(one.slow.total, share).value, rel_tol=0.1)
        for share in ("p50", "p99")
    )


def _rate(one: Served) -> float:
    """As it is to stand at an axis: 2 and not 2.0."""
    return int(one.requests_per_s) if one.requests_per_s.is_integer() else one.requests_per_s


def _which(every: Sequence[Served], key: str) -> list[tuple[int, str]]:
    ranged = any(q.known and q.ends[0] != q.ends[1] for one in every for q in [getattr(one, key)])
    return [(0, ", least"), (1, ", most")] if ranged else [(0, "")]


def _basis(under: UnderLoad, key: str) -> Basis:
    return worst(getattr(one, key).basis for one in under.points)


def record(sheet: Sheet, under: UnderLoad | None) -> dict[str, Any]:
    """Everything as plain values."""
    return {
        "name": sheet.cell.name,
        "parts": [
            {"title": part.title, "rows": [_row_record(row) for row in part.rows if row.value is not None]} for part in sheet.parts
        ],
        "remarks": list(sheet.remarks),
        "load": None if under is None else {
            **_load_record(under), "placing": under.policy.placing, "cap": under.policy.cap, "batching": under.policy.batching,
            "points": [_point(one) for one in under.points],
        },
    }  # fmt: skip


def _load_record(under: UnderLoad) -> dict[str, Any]:
    load = under.load
    known: dict[str, Any] = {
        "arrivals": "trace" if isinstance(load, Trace) else "poisson",
        "answer_tokens": load.answer_tokens,
    }
    known["prompt_tokens"] = load.prompt_tokens if under.prompts_known else None
    if isinstance(load, Trace):
        return {**known, "answer_lengths": None, "requests": len(load.arrivals), "warmup": 0.0, "seed": None}
    return {
        **known, "answer_lengths": load.answer_lengths, "requests": load.requests, "warmup": load.warmup, "seed": load.seed
    }  # fmt: skip


def _row_record(row: Row) -> dict[str, Any]:
    return {"key": row.key, "quantity": _name(row).strip(), "unit": row.unit, **_plain(row.value)}


def _plain(one: Quantity | None) -> dict[str, Any]:
    return dataclasses.asdict(one or Quantity())


def _point(one: Served) -> dict[str, Any]:
    return {
        "requests_per_s": one.requests_per_s,
        "basis": one.times.basis,
        **{name: _plain(getattr(one, name)) for name in ("of_capacity", *_POWERS, "wall_per_token_mj")},
        "fast": dataclasses.asdict(one.fast),
        "slow": dataclasses.asdict(one.slow),
    }
