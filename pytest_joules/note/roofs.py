"""What is said of a roofline: parts of text and tables, once for the terminal, Markdown and the page. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from pytest_joules.errors import Unmeasured, UsageError, Void
from pytest_joules.note import markdown
from pytest_joules.note.lines import figure, wrapped
from pytest_joules.records import PREFILL_TOKENS, Condition, Run
from pytest_joules.roofline import CONVENTIONS, FIGURES, Point, Roofline, Row, Sheet
from pytest_joules.suite import keys_of
from pytest_joules.sweep import Cell, from_run, label
from pytest_joules.words import printable

if TYPE_CHECKING:
    from pytest_joules.note import plots


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of what is said: a heading, then lines, then a table, then lines about it; each may be empty.

    Attributes:
        left: how many of the table's columns hold words.
    """

    heading: str = ""
    lines: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    left: int = 0
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A roofline and what it is of.

    Attributes:
        title: model and machine.
        about: the run it is held against; empty where there is none.
    """

    title: str
    about: tuple[str, ...]
    found: Roofline


Model = tuple[str, str | None]
"""A model by the name and format of a suite."""


def model_of(run: Run, condition: Condition) -> Model:
    """The model that a run used at a condition: what was measured, where the suite asked for another format."""
    asked = (str(_setting(run, condition, "", "model")), _setting(run, condition, "", "format"))
    measured = [(str(model["name"]), model.get("format")) for model in run.models]
    return measured[0] if len(measured) == 1 else asked


def points_of(run: Run, model: Model, depth_tokens: float | None) -> list[Point]:
    """What a run measured of a model, batch by batch.

    Args:
        depth_tokens: that each slot holds; `None` for its prompt and half of its answer.

    Raises:
        UsageError: its keys and values are of different number types.
    """
    found = []
    for cell in from_run(run).cells:
        condition = cell.condition
        if model_of(run, condition) != model:
            continue
        caches = {_setting(run, condition, "server", f"cache_type_{part}") or "f16" for part in "kv"}
        if len(caches) > 1:
            raise UsageError(
                f"run {run.run_id} keeps keys and values as {' and '.join(sorted(caches))}; one type is read here"
            )
        others = {axis: value for axis, value in condition.items() if axis not in ("parallel", "model", "format")}
        speed, why = _speed(cell)
        if _setting(run, condition, "request", "answer_tokens") == PREFILL_TOKENS:
            speed, why = None, "its answers are of one token: nothing was decoded"
        if _setting(run, condition, "draft", "draft_model"):
            speed, why = (
                None,
                "it drafts: a pass over the weights makes more than one token a slot, and this roof does not bound it",
            )
        found.append(
            Point(
                batch=int(_setting(run, condition, "server", "parallel") or 1),
                depth_tokens=_depth(run, condition) if depth_tokens is None else depth_tokens,
                cache_type=caches.pop(),
                fixed=label(others),
                tokens_per_s=speed,
                why_none=why,
                passes=tuple(p["tokens_per_s"] for p in cell.passes if "tokens_per_s" in p) if speed else (),
            )
        )
    return found


def _setting(run: Run, condition: Condition, section: str, key: str) -> Any:
    """What was asked for at a condition: of the condition itself, else of the suite."""
    asked = run.suite.get(section, {}) if section else run.suite
    axis = next((axis for axis in condition if key in keys_of(axis)), key)
    return condition.get(axis, asked.get(key))


def _speed(cell: Cell) -> tuple[float | None, str]:
    try:
        return cell.mean("tokens_per_s"), ""
    except (Unmeasured, Void) as error:
        return None, str(error).removeprefix(f"{label(cell.condition)}: ")


def _depth(run: Run, condition: Condition) -> float:
    """Tokens that a slot holds on average while it decodes: its prompt and half of its answer."""
    held = []
    for window in run.windows:
        if window.role == "measured" and window.condition == condition:
            # A bench tool tells of its prompts together, not one by one.
            asked = len(window.requests) or window.slots * max(1, window.rounds)
            prompts = sum(request.prompt_n + request.cache_n for request in window.requests) or window.prompt_tokens
            held.append((prompts + window.tokens / 2) / asked)
    return sum(held) / len(held) if held else float(_setting(run, condition, "request", "answer_tokens") or 0) / 2


def parts(told: Told) -> Iterator[Part]:
    """Everything there is to say, in order."""
    found = told.found
    yield Part(
        heading="What the roofs rest on",
        headers=("figure", "value", "basis: source"),
        rows=tuple((name, value, f"{basis}: {source}") for name, value, basis, source in _basis(found)),
        left=3,
        after=(_worst(found),),
    )
    yield from _roofs(found)
    yield _counted(found)
    yield Part(heading="What follows", lines=tuple(_follows(found)))
    if found.missing:
        yield Part(heading="Missing", lines=found.missing)
    if found.remarks:
        yield Part(heading="Remarks", lines=found.remarks)


def _worst(found: Roofline) -> str:
    words = {"idle_w": "idle power", "limit_w": "the power limit"}
    worse = [f"of an energy at {words[name]}: {of}" for name, of in found.energy_bases.items() if of != found.basis]
    return f"Worst basis of what the roofs rest on: {'; '.join([found.basis, *worse])}."


def sheet_rows(sheet: Sheet, kinds: Sequence[str] = ()) -> Iterator[tuple[str, str, str, str]]:
    """Name, value, basis and source of every figure of a sheet; an absent one with `-` and the reason.

    Args:
        kinds: number types of the peaks that are wanted; all of them where it is empty.
    """
    for key, name in FIGURES.items():
        if key == "peak_tflop_s":
            peaks = {kind: peak for kind, peak in sheet.peak_tflop_s.items() if not kinds or kind in kinds}
            yield from ((f"{name}, {kind}", f"{p.value:,g}", p.basis, p.source) for kind, p in peaks.items())
            if not sheet.peak_tflop_s:
                yield name, "-", "absent", sheet.why_absent(key)
            continue
        quantity = getattr(sheet, key)
        if quantity is not None:
            yield name, f"{quantity.value:,g}", quantity.basis, quantity.source
        elif key != "cache_mb":  # nothing rests on it but a remark
            yield name, "-", "absent", sheet.why_absent(key)


def _basis(found: Roofline) -> Iterator[tuple[str, str, str, str]]:
    load = found.load
    taken = found.peak[:1] if found.peak else ()
    others = [kind for kind in found.sheet.peak_tflop_s if kind not in taken]
    for name, value, basis, source in sheet_rows(found.sheet, taken):
        also = f"; --peak takes {', '.join(others)} too" if others and name.startswith(FIGURES["peak_tflop_s"]) else ""
        yield name, value, basis, source + also
    yield "weights, GB", f"{load.weight_bytes / 1e9:.3g}", load.basis, load.source
    if load.step_bytes != load.weight_bytes:
        yield (
            "read in a step, GB",
            f"{load.step_bytes / 1e9:.3g}",
            load.basis,
            "all weights but the embedding table, of which a step looks up a row for each slot",
        )
    for kind in dict.fromkeys(row.point.cache_type for row in found.rows):
        yield (
            f"KV cache at {kind}, kB a token",
            figure(load.kv_bytes_per_token[kind] / 1e3),
            load.basis,
            "keys and values of every layer, for each slot",
        )


def _roofs(found: Roofline) -> Iterator[Part]:
    """A table for each combination of the other axes, then the energy that follows from it."""
    for fixed in dict.fromkeys(row.point.fixed for row in found.rows):
        rows = [row for row in found.rows if row.point.fixed == fixed]
        where = f", {fixed}" if fixed else ""
        columns = {"batch": [f"{row.point.batch}{_TOO_MANY if row.fits is False else ''}" for row in rows]}
        measured = any(row.point.tokens_per_s or row.point.why_none for row in rows)
        if measured:
            columns["measured tok/s"] = [_shown(row.point.tokens_per_s) for row in rows]
        columns["memory roof tok/s"] = [_shown(row.memory_tokens_per_s) for row in rows]
        if found.peak:
            columns[f"{found.peak[0]} roof tok/s"] = [_shown(row.compute_tokens_per_s) for row in rows]
        if measured:
            columns |= {
                f"share of roof{', at least' if found.least_shares else ''}": [_share(row) for row in rows],
                "useful GB/s": [_shown(row.useful_gb_s) for row in rows],
                "useful TFLOP/s": [_shown(row.useful_tflop_s) for row in rows],
            }
        why: dict[str, list[str]] = {}
        for row in rows:
            if row.point.why_none:
                why.setdefault(row.point.why_none, []).append(str(row.point.batch))
        yield _columns(
            f"Roofs{where}",
            columns,
            *_beyond(found, rows),
            _held(rows),
            *_least(found, rows),
            *(f"Batch {', '.join(at)}: {said}" for said, at in why.items()),
        )
        columns, said = {"batch": columns["batch"]}, []
        if found.sheet.idle_w:
            columns[f"mJ at idle power{_based(found, 'idle_w')}"] = [_shown(row.idle_mj) for row in rows]
            said.append(
                "At idle power: no token can cost less, for that power is drawn throughout and no speed is over the roof."
            )
        if found.sheet.limit_w:
            columns[f"mJ at power limit{_based(found, 'limit_w')}"] = [_shown(row.limit_mj) for row in rows]
            said.append("At the power limit: with all of it drawn; less power at that speed costs less.")
        if said:
            said.append("Each is of those parts of the machine whose power the sheet states.")
            yield _columns(f"Energy of a token at the roof{where}", columns, *_beyond(found, rows), *said)


_TOO_MANY = "*"


def _beyond(found: Roofline, rows: Sequence[Row]) -> Iterator[str]:
    if any(row.fits is False for row in rows):
        yield f"{_TOO_MANY} So many slots of {found.context_tokens:,} tokens do not fit into memory beside the weights."


def _least(found: Roofline, rows: Sequence[Row]) -> Iterator[str]:
    if found.least_shares and any(row.share is not None for row in rows):
        yield f"No {'memory' if found.peak else 'compute'} roof is known, and it may be the lower one: then the share is larger."


def _based(found: Roofline, figure: str) -> str:
    """What the energies at a power rest on, where it is less than a measurement."""
    basis = found.energy_bases[figure]
    return "" if basis == "measured" else f" ({basis})"


def _columns(heading: str, columns: Mapping[str, Sequence[str]], *after: str) -> Part:
    rows = tuple(zip(*columns.values(), strict=True))
    return Part(heading=heading, headers=tuple(columns), rows=rows, after=after)


def _held(rows: Sequence[Row]) -> str:
    depths = sorted({row.point.depth_tokens for row in rows})
    shown = f"{depths[0]:,.0f}" if len(depths) == 1 else f"{depths[0]:,.0f} to {depths[-1]:,.0f}"
    text = f"Each slot holds {shown} tokens of context." if depths[-1] else "Slots hold nothing: no KV cache is read."
    if any(row.useful_gb_s is not None for row in rows):
        text += (
            " Useful GB/s and TFLOP/s are what the measured speed needs at least: the weights read once a step, each slot's KV cache, two "
            "FLOP a weight and slot, and the attention."
        )
    return text


def _share(row: Row) -> str:
    if row.over is not None:
        return "over"
    return "-" if row.share is None else f"{row.share:.0%}"


def _shown(value: float | None) -> str:
    return "-" if value is None else figure(value)


def _counted(found: Roofline) -> Part:
    top = found.counted[0]
    measured = top.useful_tflop_s is not None
    rows = tuple(
        (
            one.convention,
            "-" if one.weight_bytes is None else f"{one.weight_bytes / 1e9:.2f}",
            f"{one.parameters / 1e9:.3f}",
            "-" if one.passes_per_s is None else f"{one.passes_per_s:,.1f}",
            _shown(one.tokens_per_s),
            *(() if one.useful_tflop_s is None else (figure(one.useful_tflop_s),)),
        )
        for one in found.counted
    )
    return Part(
        heading="By what is counted as weights, without any KV cache",
        headers=(
            "counted", "GB", "10^9 parameters", "passes per s", f"tok/s at {top.batch}",
            *(("useful TFLOP/s",) if measured else ()),
        ),
        rows=rows,
        left=1,
        after=(f"{'; '.join(f'{name}: {what}' for name, what in CONVENTIONS.items())}. The roofs above count 'read'.",),
    )  # fmt: skip


def _follows(found: Roofline) -> Iterator[str]:
    point = found.rows[0].point
    if found.kv_batch is not None:
        yield (
            f"From batch {figure(found.kv_batch)} on the slots' KV caches are more bytes of a step than the weights "
            f"({point.depth_tokens:,.0f} tokens a slot)."
        )
    for floor in found.floors:
        with_kv = f"with {floor.depth_tokens:,.0f} tokens a slot" if floor.depth_tokens else "weights alone"
        kind = found.peak[0] if found.peak else ""
        yield (
            f"Batch floor, {with_kv}: none; a slot's KV cache takes longer to read than its token to compute."
            if floor.batch is None
            else f"Batch floor, {with_kv}: {figure(floor.batch)}; from there on a step computes in {kind} for longer than it reads."
        )
    if found.slots is not None:
        yield (
            f"At most {found.slots:,} {'slot' if found.slots == 1 else 'slots'} of {found.context_tokens:,} tokens "
            f"{'fits' if found.slots == 1 else 'fit'} into memory beside the weights."
            if found.slots
            else f"The weights and one slot of {found.context_tokens:,} tokens do not fit into memory."
        )


def lines(told: Told, width: int) -> Iterator[str]:
    """As text of at most `width` columns."""
    yield from wrapped(printable(told.title), width, "")
    for text in told.about:
        yield from wrapped(printable(text), width, "")
    for part in parts(told):
        yield ""
        yield part.heading
        for text in part.lines:
            yield from wrapped(f"- {printable(text)}", width, "  ")
        yield from _table(part, width)
        for text in part.after:
            yield from wrapped(printable(text), width, "")


def _table(part: Part, width: int) -> Iterator[str]:
    if part.left == len(part.headers):
        # Words that would be too wide for columns: the last one goes below.
        longest = max((len(row[0]) for row in part.rows), default=0)
        for name, value, text in part.rows:
            yield from wrapped(printable(f"  {name:<{longest}}  {value:>7}  {text}"), width, " " * 8)
        return
    headers = [re.sub(r" (?=roof|tok/s|GB/s|TFLOP/s|at|of|parameters|per s|\()", "\n", name) for name in part.headers]
    rows = [[printable(cell) for cell in row] for row in part.rows]
    if rows:
        text = tabulate(rows, headers=headers, tablefmt="simple", disable_numparse=True, colalign=_aligned(part))
        yield from text.splitlines()


def _aligned(part: Part) -> list[str]:
    return ["left"] * part.left + ["right"] * (len(part.headers) - part.left)


def as_markdown(told: Told, image: str = "") -> str:
    """As Markdown.

    Args:
        image: path of the plot beside it; empty for none.
    """
    said = [f"# {markdown.escaped(told.title)}", "", *(f"{markdown.escaped(text)}\n" for text in told.about)]
    if image:
        said += [f"![Measured speed under the roofs]({image})", ""]
    for part in parts(told):
        said += [f"## {markdown.escaped(part.heading)}", ""]
        said += [f"- {markdown.escaped(text)}" for text in part.lines]
        if part.rows:
            said += tabulate(
                [[markdown.escaped(cell) for cell in row] for row in part.rows],
                headers=[markdown.escaped(name) for name in part.headers],
                tablefmt="pipe", disable_numparse=True, colalign=_aligned(part),
            ).splitlines()  # fmt: skip
        said += ["", *(f"{markdown.escaped(text)}\n" for text in part.after)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(said).rstrip() + "\n")


def plot(told: Told) -> plots.Figure | None:
    """Measured speed under the roofs over batch; `None` where the sheet gives no roof.

    Raises:
        UsageError: matplotlib is not installed.
    """
    from pytest_joules.note import plots

    found = told.found
    series: list[plots.Series] = []
    for fixed in dict.fromkeys(row.point.fixed for row in found.rows):
        rows = [row for row in found.rows if row.point.fixed == fixed]
        for name, values in (
            ("measured", [row.point.tokens_per_s for row in rows]),
            ("memory roof", [row.memory_tokens_per_s for row in rows]),
            (f"{found.peak[0] if found.peak else ''} roof", [row.compute_tokens_per_s for row in rows]),
        ):
            points = [(row.point.batch, value) for row, value in zip(rows, values, strict=True) if value is not None]
            passes = [(row.point.batch, value) for row in rows for value in row.point.passes]
            if points:
                series.append(
                    plots.Series(
                        name=", ".join(filter(None, (fixed, name))), points=points,
                        passes=passes if name == "measured" else (),
                    )
                )  # fmt: skip
    if not any(one.name.endswith("roof") for one in series):
        return None
    caption = f"Tokens per second of all slots together; the roofs are {found.basis}. A roof bounds and is not reached."
    return plots.lines_over("roofline", caption, "parallel", "tokens per s", series)


def page(told: Told, drawn: plots.Figure | None) -> str:
    """As one HTML page that fetches nothing.

    Raises:
        UsageError: jinja2 is not installed.
    """
    from pytest_joules.note.page import placed, rendered

    return rendered(
        "roofline.html.j2", title=told.title, about=told.about, parts=list(parts(told)),
        plots=placed([drawn] if drawn else []),
    )  # fmt: skip


def record(told: Told) -> dict[str, Any]:
    """Plain JSON values: the same figures, none rounded."""
    found = told.found
    return {
        "model": dataclasses.asdict(found.load),
        "hardware": dataclasses.asdict(found.sheet),
        "basis": found.basis,
        "energy_bases": dict(found.energy_bases),
        "least_shares": found.least_shares,
        "peak": found.peak and found.peak[0],
        "context_tokens": found.context_tokens,
        "rows": [
            {**dataclasses.asdict(row.point), **{k: v for k, v in dataclasses.asdict(row).items() if k != "point"}}
            for row in found.rows
        ],
        "counted": [dataclasses.asdict(one) for one in found.counted],
        "kv_batch": found.kv_batch,
        "batch_floors": [dataclasses.asdict(one) for one in found.floors],
        "slots": found.slots,
        "missing": list(found.missing),
        "remarks": list(found.remarks),
    }
