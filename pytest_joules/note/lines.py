"""The note of one run as lines of text: heading, table, verdicts, limits. Pure."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tabulate import tabulate

from pytest_joules import items
from pytest_joules.errors import Unmeasured, Void
from pytest_joules.metrics import METRICS, OF_DRAFTS, graded
from pytest_joules.records import OF_TABLE, Condition, Gate, Run, Verdict, Window, model_text
from pytest_joules.suite import GateLimits, Require
from pytest_joules.sweep import Cell, Sweep, from_run, label
from pytest_joules.words import duration, listed, printable

_AXIS_NAMES = {
    "parallel": "batch", "answer_tokens": "answer", "context_per_slot": "context", "prompt_tokens": "prompt",
    "shared_prefix_tokens": "prefix", "cache_prompt": "cached", "cache_type": "cache",
    "draft_threshold": "threshold", "draft_tokens_max": "max draft",
}  # fmt: skip
"""Axes whose common name is shorter than the suite's key."""


_BREAKS = re.compile(r" (?=request|tok|correct|spread|first|batch|prompt|decode|share|accepted|per step)")
"""Where a heading goes on in a second line."""

_TABLE_WIDTH = 80
"""Columns of a terminal. A table with more of them is drawn closer together."""

_LONGEST_REFERENCE = 12
"""A longer value in a heading would make its column wider than its figures."""


def axis_name(axis: str) -> str:
    """What an axis is called in a note: `batch` for `parallel`."""
    return _AXIS_NAMES.get(axis, axis)


def figure(value: float) -> str:
    """Three significant digits or more, with thousands apart: `1,171`, `40.3`, `9.62`."""
    size = abs(value)
    decimals = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:,.{decimals}f}"


def change(value: float, reference: float) -> str:
    """`74% less` or `3% more`."""
    if reference == 0:
        return ""
    share = value / reference - 1
    return f"{abs(share):.0%} {'less' if share < 0 else 'more'}"


def heading(run: Run) -> list[str]:
    """What was run, on what, with which meter: three or four lines."""
    machine, meter = run.machine, run.meter
    models = ", ".join(map(model_text, run.models))
    engines = ", ".join(engine_text(facts) for facts in run.engine.values())
    return [
        str(run.suite["question"]),
        f"{machine['chip']}, {machine['memory_gb']} GB, {machine['os']}. {engines}. {models}.",
        f"{meter.basis.capitalize()} energy of the {meter.scope} ({', '.join(meter.covers)}) by {meter.name} at {meter.rate_hz:g} Hz; "
        f"{run.passes} {'pass' if run.passes == 1 else 'passes'}, order {run.order.replace('_', ' ')}. Run {run.run_id}.",
        *([] if run.complete else ["This run was cut short: what it did not come to is void."]),
    ]


def engine_text(facts: object) -> str:
    """`llama-server build 11669 (c1d0e7a00)`, as far as it is known."""
    known = facts if isinstance(facts, dict) else {}
    build = f" build {known['build']}" if known.get("build") else f" {known['semver']}" if known.get("semver") else ""
    commit = f" ({known['commit']})" if known.get("commit") else ""
    return f"{known.get('name', 'engine')}{build}{commit}"


def table(sweep: Sweep, fmt: str = "simple") -> list[str]:
    """The results with the columns of a published note: batch, tok/s, tok/s per request, W, mJ per token, change, pass spread.

    Args:
        fmt: a table format of tabulate; in `simple` the headings take two lines, so that the table fits 80 columns.
    """
    headers, rows = cells(sweep)
    if fmt == "simple":
        headers = [_BREAKS.sub("\n", header) for header in headers]
    aligned = ["right"] * len(headers)
    text = tabulate(rows, headers=headers, tablefmt=fmt, disable_numparse=True, colalign=aligned if rows else None)
    drawn = text.splitlines()
    return _closer(drawn) if fmt == "simple" and len(drawn[-1]) > _TABLE_WIDTH else drawn


def _closer(drawn: Sequence[str]) -> list[str]:
    """A table whose columns stand to the right, without what is blank in all lines of a column."""
    rule = next(line for line in drawn if set(line) <= {"-", " "})
    spans = [found.span() for found in re.finditer("-+", rule)]
    told = [line for line in drawn if line != rule]
    blank = [min(len(part) - len(part.lstrip()) for line in told if (part := line[a:b].rstrip())) for a, b in spans]
    return ["  ".join(line[a + cut : b] for (a, b), cut in zip(spans, blank, strict=True)).rstrip() for line in drawn]


def cells(sweep: Sweep) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the table, as text. Of graded answers the change and the spread are those of joules per correct one."""
    headers = [axis_name(axis) for axis in sweep.axes]
    first = sweep.cells[0] if sweep.cells else None
    columns = _columns(sweep)
    # The widest of the tables has no room for more.
    reference = f"vs {_short(first, sweep, headers)}" if first and "prefill_share" not in columns else "vs first"
    headers += [*columns.values(), reference, "pass spread"]
    rows = [
        [
            *(str(cell.condition[axis]) for axis in sweep.axes),
            *_row(cell, first if cell is not first else None, tuple(columns)),
        ]
        for cell in sweep.cells
    ]
    return headers, rows


_COLUMNS = {
    "tokens_per_s": "tok/s",
    "tokens_per_s_per_request": "tok/s per request",
    "power_w": "W",
    "energy_per_token_mj": "mJ per token",
}
_GRADED_COLUMNS = {
    "tokens_per_s": "tok/s",
    "power_w": "W",
    "energy_per_token_mj": "mJ per token",
    "accuracy": "correct",
    "energy_per_correct_j": "J per correct",
}
_PROMPT_COLUMNS = {
    "prompt_tokens_per_s": "prompt tok/s",
    "energy_per_prompt_token_mj": "mJ per prompt token",
    "decode_energy_per_token_mj": "mJ per decode token",
    "prefill_share": "prefill share",
    "energy_per_token_mj": "mJ per token",
}
_DRAFT_COLUMNS = {
    "tokens_per_s": "tok/s",
    "power_w": "W",
    "draft_acceptance": "draft accepted",
    "tokens_per_step": "tokens per step",
    "energy_per_token_mj": "mJ per token",
}
_LENGTHS_COLUMNS = {
    "tokens_per_s": "tok/s",
    "power_w": "W",
    "decode_energy_per_token_mj": "mJ per decode token",
    "energy_per_token_mj": "mJ per token",
}
_PREFILL_COLUMNS = {
    "prompt_tokens_per_s": "prompt tok/s",
    "power_w": "W",
    "energy_per_prompt_token_mj": "mJ per prompt token",
}
"""Metrics of the table with their headings; the last one is the one that is compared. Where there is no room for the speed of one request,
it is that of all over the batch."""


def _columns(sweep: Sweep) -> Mapping[str, str]:
    """By what was measured: right answers, prompts beside whole requests or alone, answers of several lengths, drafts, or the usual."""
    if any(cell.items for cell in sweep.cells):
        return _GRADED_COLUMNS
    known = {metric for cell in sweep.cells for figures in cell.passes for metric in figures}
    if "prefill_share" in known:
        # Of a decoded token nothing is known without answers of several lengths.
        return {m: name for m, name in _PROMPT_COLUMNS.items() if m in known or m != "decode_energy_per_token_mj"}
    if "energy_per_prompt_token_mj" in known:
        return _PREFILL_COLUMNS
    if "decode_energy_per_token_mj" in known:
        return _LENGTHS_COLUMNS
    return _DRAFT_COLUMNS if any(cell.drafts for cell in sweep.cells) else _COLUMNS


def _short(cell: Cell, sweep: Sweep, names: Sequence[str]) -> str:
    if len(sweep.axes) == 1 and len(value := str(next(iter(cell.condition.values())))) <= _LONGEST_REFERENCE:
        return f"{names[0]} {value}"
    return "first"


def _row(cell: Cell, reference: Cell | None, metrics: Sequence[str]) -> list[str]:
    if cell.void:
        return ["void", *[""] * (len(metrics) + 1)]
    figures = ["" if _without_drafts(cell, metric) else figure_text(cell, metric) for metric in metrics]
    try:
        compared = change(cell.mean(metrics[-1]), reference.mean(metrics[-1])) if reference else ""
    except (Unmeasured, Void):
        compared = ""
    if reference and metrics[-1] == "energy_per_token_mj" and unlike(cell, reference):
        compared = _UNLIKE
    compared = cell.change or compared
    try:
        spread = f"{cell.spread(metrics[-1]):.1%}"
    except (Unmeasured, Void):
        spread = ""
    return [*figures, compared, spread]


_UNLIKE = "unlike"


def unlike(cell: Cell, other: Cell) -> bool:
    """Whether the windows of one hold the prompt and those of the other do not, so that a token is not the same work."""
    return bool(cell.includes and other.includes) and ("prefill" in cell.includes) != ("prefill" in other.includes)


def _without_drafts(cell: Cell, metric: str) -> bool:
    """Whether a figure of drafts is asked of a condition at which none were made, as `draft_threshold: off` has it."""
    return metric in OF_DRAFTS and not cell.drafts and not cell.means


def figure_text(cell: Cell, metric: str) -> str:
    """The mean of a cell with as many digits as it deserves, `void`, or `-` where it was not published."""
    try:
        # What was published is shown, also where it must not be judged by.
        value = cell.means[metric] if metric in cell.means else cell.mean(metric)
        if metric in ("accuracy", "prefill_share", "draft_acceptance"):
            return f"{value:.1%}"
    except Void:
        return "void"
    except Unmeasured:
        return "-"
    rounding = cell.roundings.get(metric, 0.0) * abs(value)
    return f"{value:,.{max(0, round(-math.log10(2 * rounding)))}f}" if rounding else figure(value)


def grades(run: Run, sweep: Sweep) -> Iterator[str]:
    """For each condition whose answers were graded: how many were right, what a right one took, and what became of the others;
    then each further one against the first.
    """
    for cell in sweep.cells:
        windows = [w for w in run.windows if w.role == "measured" and dict(w.condition) == dict(cell.condition)]
        given = [grade for window in windows for grade in graded(window)]
        if cell.void or not cell.items or not given:
            continue
        asked, right = len(cell.items), math.fsum(item.right for item in cell.items.values())
        low, high = items.wilson(right, asked)
        said = f"{_named(cell.condition)}: {right:g} of {asked} right, {right / asked:.1%} ({low:.0%} to {high:.0%})"
        with contextlib.suppress(Void):
            joules = cell.mean("energy_per_correct_j")
            if between := items.interval(cell.items):
                said += f"; {figure(joules)} J per right answer ({figure(between[0] * joules)} to {figure(between[1] * joules)})"
        counts = {
            "wrong": sum(not g.correct and g.extracted is not None for g in given),
            "unanswered": sum(g.extracted is None for g in given),
            "cut off": sum(g.cut_off for g in given),
        }
        each = "" if len(given) == asked else f" of {len(given)} answers in all passes"
        drains = [float(w.engine["drain_share"]) for w in windows if "drain_share" in w.engine]
        drain = f"; the drain took {math.fsum(drains) / len(drains):.1%} of the time" if any(drains) else ""
        yield f"{said}; {', '.join(f'{count} {what}' for what, count in counts.items())}{each}{drain}"

    yield from _paired(sweep)


def _paired(sweep: Sweep) -> Iterator[str]:
    """Each further graded condition against the first, question by question."""
    told = [cell for cell in sweep.cells if cell.items and not cell.void]
    for cell in told[1:]:
        first = told[0]
        against = items.paired(first.items, cell.items)
        said = []
        if against.energy is not None:
            with contextlib.suppress(Void):
                ratio = cell.mean("energy_per_correct_j") / first.mean("energy_per_correct_j")
                between = " to ".join(figure(end * ratio) for end in against.energy)
                said.append(f"{figure(ratio)} times the energy per right answer ({between})")
        points, low, high = (100 * share for share in against.accuracy)
        said.append(f"accuracy {points:+.1f} points ({low:+.1f} to {high:+.1f})")
        apart = [axis for axis in sweep.axes if cell.condition[axis] != first.condition[axis]]
        names = [_named({axis: one.condition[axis] for axis in apart}) for one in (cell, first)]
        yield f"{' against '.join(names)}, question by question: {'; '.join(said)}"


def _named(condition: Condition) -> str:
    return ", ".join(f"{axis_name(axis)} {value}" for axis, value in condition.items()) or "the only condition"


def rows(sweep: Sweep) -> Iterator[dict[str, object]]:
    """The table as plain values: axis values, then metrics; a figure that cannot be read is `None`, with the reason in `void`."""
    for cell in sweep.cells:
        row: dict[str, object] = {**cell.condition, "void": cell.void}
        for metric in METRICS:
            try:
                row[metric] = cell.mean(metric)
            except (Unmeasured, Void):
                row[metric] = None
        try:
            row["energy_per_token_spread"] = cell.spread("energy_per_token_mj")
        except (Unmeasured, Void):
            row["energy_per_token_spread"] = None
        yield row


def briefly(why: str, run: Run) -> str:
    """What speaks against a verdict or a finding, with the checks on the run by name: what they say stands once, among the limits."""
    for gate in run.gates:
        why = why.replace(str(gate), f"{gate.name} (see Limits)")
    return why


def verdicts(found: Sequence[Verdict], width: int = 0) -> Iterator[str]:
    """One line or two for each prediction: the verdict, how surely, the claim; and why, where it did not hold."""
    if len(found) > 1:
        yield counted(found)
    told: set[str] = set()
    for verdict in sorted(found, key=lambda v: not v.primary):
        sure = f" ({verdict.robustness})" if verdict.robustness else ""
        remarks = [verdict.registration] if verdict.registration not in ("registered", "") else []
        remarks += ["primary"] if verdict.primary else []
        remarks += [verdict.remark] if verdict.remark else []
        remarks += ["replayed"] if verdict.replayed else []
        remarks += [] if verdict.selected else ["deselected"]
        shown = f" [{', '.join(remarks)}]" if remarks else ""
        yield from wrapped(f"{verdict.word.upper()}{sure}{shown}: {claim(verdict)}", width, "  ")
        if verdict.published:
            yield from wrapped(f"    published: {verdict.published}", width, "    ")
        if verdict.changed:
            yield from wrapped(
                f"    what it rests on was changed after it was {verdict.changed} on this run", width, "    "
            )
        if verdict.of_record:
            yield from wrapped(f"    a replication; of record is {verdict.of_record}", width, "    ")
        # Why git shows nothing is alike for all; what was seen before and what differed is not.
        if verdict.registration_detail and ("after-data" in verdict.registration or "deviated" in verdict.registration):
            shown = "as above" if verdict.registration_detail in told else verdict.registration_detail
            yield from wrapped(f"    {verdict.registration}: {shown}", width, "    ")
            told.add(verdict.registration_detail)
        if verdict.word != "held" and verdict.detail:
            # One void cell spoils many claims, for one reason.
            yield from wrapped("    as above" if verdict.detail in told else f"    {verdict.detail}", width, "    ")
            told.add(verdict.detail)
        if verdict.compared and verdict.word == "held":
            yield from wrapped(f"    {verdict.compared}", width, "    ")
        if verdict.why_narrow:
            yield from wrapped(f"    narrow: {verdict.why_narrow}", width, "    ")


def verdict_word(line: str) -> tuple[str, str]:
    """A line of the note as the verdict's word that it begins with, and the rest; most lines begin with none."""
    found = re.match(r"(HELD|REFUTED|VOID|BROKEN|UNMEASURED)\b(?=[ :(])", line)
    return (found.group(), line[found.end() :]) if found else ("", line)


def counted(found: Sequence[Verdict]) -> str:
    """`5 of 6 held, 2 narrow`."""
    held, narrow = sum(v.word == "held" for v in found), sum(v.robustness == "narrow" for v in found)
    return f"{held} of {len(found)} held" + (f", {narrow} narrow" if narrow else "")


def claim(verdict: Verdict) -> str:
    """What was claimed; parametrised predictions share a claim, and pytest's id tells them apart."""
    parameters = verdict.prediction[verdict.prediction.index("[") :] if verdict.prediction.endswith("]") else ""
    return f"{verdict.claim} {parameters}".strip()


def looser(suite: Mapping[str, Any]) -> list[str]:
    """The limits of a suite that let more pass than those of a suite that states none, each with the usual one."""
    usual = {**dataclasses.asdict(GateLimits()), "min_samples": Require().min_samples}
    stated = {
        **suite.get("gates", {}),
        "min_samples": suite.get("require", {}).get("min_samples", usual["min_samples"]),
    }
    found = []
    for name, limit in usual.items():
        value = stated.get(name, limit)
        # A share below which something is flagged, and the least number of samples, are looser when they are lower.
        lower_is_looser = "_below" in name or name.endswith("samples")
        if value < limit if lower_is_looser else value > limit:
            found.append(f"{name} {value:g} instead of {limit:g}")
    if suite.get("require", {}).get("thin") == "flag":
        found.append("thin windows are flagged and not void")
    return found


def unlike_windows(run: Run) -> Iterator[str]:
    """What the windows of each engine hold, where several engines were compared and it is not the same."""
    parts = {name: run.includes(name) for name, facts in run.engine.items() if isinstance(facts, Mapping)}
    if len(set(parts.values())) > 1:
        said = "; ".join(f"{name}: {', '.join(held) or 'unknown'}" for name, held in parts.items())
        yield f"the engines' windows do not hold the same: {said}"


def limits(run: Run, sweep: Sweep, *, deviations: bool = True) -> Iterator[str]:
    """What speaks against the figures: scope, flags of windows and of the run, and unless they are told apart, deviations."""
    yield from run.meter.notes
    if loosened := looser(run.suite):
        yield f"limits looser than usual: {', '.join(loosened)}"
    yield from unlike_windows(run)
    for cell in sweep.cells:
        if cell.void:
            yield f"{label(cell.condition)} is void: {cell.void}"
    found = [
        (gate, _whose(window), window.pass_index + 1)
        for window in run.windows
        if window.role in (*OF_TABLE, "length") and window.outcome == "flagged"
        for gate in window.gates
    ]
    found += [(gate, label(published.condition), 0) for published in run.published for gate in published.gates]
    yield from _flags([one for one in found if one[0].outcome in ("flag", "not evaluable")])
    unchecked = [gate.name for gate in run.gates if gate.outcome == "not evaluable"]
    if unchecked:
        yield f"could not be checked: {', '.join(unchecked)}"
    for gate in run.gates:
        if gate.outcome in ("flag", "void"):
            yield str(gate)
    yield from (f"deviation: {deviation}" for deviation in run.deviations if deviations)
    yield from run.notes


def _flags(found: Sequence[tuple[Gate, str, int]]) -> Iterator[str]:
    """What checks on windows flagged, each check once for each value; of many values the first few, and how many more there are.

    Args:
        found: with each check the condition and the pass of its window; no pass is 0.
    """
    by_check: dict[tuple[str, str], dict[str, list[tuple[str, int]]]] = {}
    for gate, condition, number in found:
        shown = (
            "could not be checked"
            if gate.value is None
            else f"{gate.value:.3g}"
            if isinstance(gate.value, float)
            else str(gate.value)
        )
        by_check.setdefault((gate.name, gate.limit), {}).setdefault(shown, []).append((condition, number))
    for (name, limit), by_value in by_check.items():
        for shown, places in list(by_value.items())[:_VALUES_TOLD]:
            yield f"{name} {shown} (limit: {limit}): {', '.join(_places(places))}"
        if further := sum(len(places) for places in list(by_value.values())[_VALUES_TOLD:]):
            yield f"{name}, the same limit, in {further} more windows, with other values"


_VALUES_TOLD = 3


def _whose(window: Window) -> str:
    """The condition of a window, and what it is where it is not the measured one."""
    what = {"length": f"answers of {window.answer_tokens}", "prefill": "prompts alone"}.get(window.role)
    return ", ".join(filter(None, (label(window.condition), what)))


def _places(windows: Sequence[tuple[str, int]]) -> Iterator[str]:
    """Each condition with its passes."""
    of: dict[str, list[str]] = {}
    for condition, number in dict.fromkeys(windows):
        of.setdefault(condition, []).extend([str(number)] if number else [])
    for condition, passes in of.items():
        yield f"{condition} {'pass' if len(passes) == 1 else 'passes'} {listed(passes)}" if passes else condition


def note(run: Run, found: Sequence[Verdict], width: int = 0, attempts: Sequence[str] = ()) -> list[str]:
    """The whole note.

    Args:
        attempts: other attempts at these data, in words.
        width: columns to wrap at; 0 does not wrap.
    """
    sweep = from_run(run)
    lines = [line for text in heading(run) for line in wrapped(text, width, "")]
    lines += ["", *table(sweep), ""]
    if told := [line for text in grades(run, sweep) for line in wrapped(text, width, "  ")]:
        lines += [*told, ""]
    lines += verdicts([dataclasses.replace(one, why_narrow=briefly(one.why_narrow, run)) for one in found], width)
    if against := [line for text in limits(run, sweep) for line in wrapped(f"- {text}", width, "  ")]:
        lines += ["", "Limits", *against]
    if others := [line for text in attempts for line in wrapped(f"- {text}", width, "  ")]:
        lines += ["", "Other attempts at these data", *others]
    return [printable(line) for line in lines]


def took(run: Run) -> str:
    """How long the windows took in all."""
    return duration(sum(window.window_s for window in run.windows))


def wrapped(text: str, width: int, hanging: str) -> list[str]:
    """Lines of at most `width` columns, the further ones after `hanging`; 0 leaves the text as it is."""
    if width <= 0:
        return [text]
    lead = text[: len(text) - len(text.lstrip())]
    return textwrap.wrap(
        text.strip(),
        width,
        initial_indent=lead,
        subsequent_indent=hanging,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [""]
