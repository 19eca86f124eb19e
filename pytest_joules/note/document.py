"""The note of one run as parts, before it is Markdown or a page. Pure: a stored run, its verdicts, its samples; nothing else.

Whatever stands here comes from the run. What a run does not hold is left out or said to be unknown, never filled in.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_joules.metrics import graded
from pytest_joules.note import lines
from pytest_joules.note.findings import Finding, findings
from pytest_joules.note.lines import figure
from pytest_joules.note.plots import Figure
from pytest_joules.records import Run, Verdict, Window, model_text
from pytest_joules.sweep import Sweep, from_run
from pytest_joules.words import duration, one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One prediction as the note tells it.

    Attributes:
        word: `HELD`, `REFUTED`, `VOID`, `BROKEN` or `UNMEASURED`.
        sure: `clear`, `narrow` or empty.
        asserted: the text of the prediction; empty for verdicts of older versions.
        made: how it stands to the run, and in which commit it was said.
        because: numbers, reasons and remarks, a line each.
    """

    text: str
    word: str
    sure: str
    primary: bool
    asserted: str
    made: str
    because: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The note."""

    title: str
    question: str
    answer: str
    setup: tuple[str, ...]
    counted: str
    claims: tuple[Claim, ...]
    method: tuple[str, ...]
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    grades: tuple[str, ...]
    figures: tuple[Figure, ...]
    findings: tuple[Finding, ...]
    deviations: tuple[str, ...]
    limits: tuple[str, ...]
    attempts: tuple[str, ...]
    reproduce: tuple[str, ...]
    files: tuple[str, ...]


def document(
    run: Run,
    verdicts: Sequence[Verdict],
    drawn: Sequence[Figure],
    attempts: Sequence[str],
    files: Sequence[str],
    damaged: Sequence[str] = (),
) -> Document:
    """The parts of the note of a run.

    Args:
        damaged: what of the stored files cannot be read.
        verdicts: the one that stands, of each prediction.
        attempts: other attempts at these data, a line each.
        files: what is stored of the run, as paths below the results folder.
    """
    sweep = from_run(run)
    found = findings(run)
    headers, rows = lines.cells(sweep)
    brief = [replace(one, why_narrow=lines.briefly(one.why_narrow, run)) for one in verdicts]
    ranked = sorted(brief, key=lambda v: not v.primary)
    first, *setup = lines.heading(run)
    return Document(
        title=f"{run.suite_name} on {run.machine['chip']}, {_day(run)}",
        question=first,
        answer=_answer(ranked, found, run.meter.basis),
        setup=tuple(setup),
        counted=lines.counted(ranked),
        claims=tuple(_claim(v) for v in ranked),
        method=tuple(_method(run, sweep)),
        headers=tuple(headers),
        rows=tuple(tuple(row) for row in rows),
        grades=tuple(lines.grades(run, sweep)),
        figures=tuple(drawn),
        findings=tuple(replace(one, why=lines.briefly(one.why, run)) for one in found),
        deviations=tuple(run.deviations),
        limits=(*damaged, *_limits(run, sweep)),
        attempts=tuple(attempts),
        reproduce=tuple(_reproduce(run, verdicts)),
        files=tuple(files),
    )


def _day(run: Run) -> str:
    return run.started_utc.split("T")[0]


def _answer(verdicts: Sequence[Verdict], found: Sequence[Finding], basis: str) -> str:
    """One sentence: what the verdicts came to, and where the least energy is."""
    parts = []
    if primary := next((v for v in verdicts if v.primary), None):
        parts.append(f"the primary claim was {primary.told}: {primary.claim.rstrip('.')}")
    parts.append(_tally(verdicts))
    # A graded suite asks what a right answer costs, and not what a token does.
    wanted = ("energy_per_correct_j", "energy_per_token_mj")
    least = next((f for metric in wanted for f in found if f.shown and f.least == metric), None)
    if least is not None:
        sure = f" ({least.sure})" if least.sure == "narrow" else ""
        parts.append(f"{least.text[:1].lower()}{least.text[1:].rstrip('.')}{sure}")
    said = "; ".join(parts)
    return f"{said[:1].upper()}{said[1:]}."


def _tally(verdicts: Sequence[Verdict]) -> str:
    if not verdicts:
        return "no prediction was judged on this run"
    words = {
        word: [v for v in verdicts if v.word == word] for word in ("held", "refuted", "void", "broken", "unmeasured")
    }
    parts = [
        f"{len(of_word)} {'was' if len(of_word) == 1 else 'were'} {word}{_narrow(of_word)}"
        for word, of_word in words.items()
        if of_word and word != "held"
    ]
    held = f"{len(words['held'])} of {len(verdicts)} {'prediction' if len(verdicts) == 1 else 'predictions'} held{_narrow(words['held'])}"
    loose = [v for v in verdicts if v.registration not in ("registered", "registered, deviated", "as published")]
    # Said here, because whoever reads one sentence reads this one.
    unregistered = (
        f", {'none' if len(loose) == len(verdicts) else len(verdicts) - len(loose)} of them registered" if loose else ""
    )
    return ", ".join([held, *parts]) + unregistered


def _narrow(verdicts: Sequence[Verdict]) -> str:
    count = sum(v.robustness == "narrow" for v in verdicts)
    return f" ({count} narrowly)" if count else ""


def _claim(verdict: Verdict) -> Claim:
    # The numbers of a failed comparison are told with how far they stand apart.
    told = verdict.word == "held" or (verdict.word == "refuted" and verdict.compared)
    because = [] if told or not verdict.detail else [verdict.detail]
    because += [verdict.compared] if verdict.compared else []
    because += [f"narrow: {verdict.why_narrow}"] if verdict.why_narrow else []
    because += [verdict.remark] if verdict.remark else []
    because += [f"published: {verdict.published}"] if verdict.published else []
    because += [f"compared with run {verdict.against_run_id}"] if verdict.against_run_id else []
    because += [f"a replication; of record is {verdict.of_record}"] if verdict.of_record else []
    because += [f"what it rests on was changed after it was {verdict.changed} on this run"] if verdict.changed else []
    because += [] if verdict.selected else ["it was deselected when the suite was measured"]
    because += ["judged again on the stored run"] if verdict.replayed else []
    return Claim(
        text=lines.claim(verdict),
        word=verdict.word.upper(),
        sure=verdict.robustness,
        primary=verdict.primary,
        asserted=verdict.asserted,
        made=_made(verdict),
        because=tuple(because),
    )


def _made(verdict: Verdict) -> str:
    said = verdict.registration or "registration unknown"
    # A published claim was said where it was published; the commit is that of its transcription.
    if verdict.commit and verdict.registration != "as published":
        said += f", in commit {verdict.commit[:12]}"
        said += f" dated {verdict.committed}" if verdict.committed else ""
    where = verdict.prediction.split("::")[0]
    said += f" ({where})" if where else ""
    return said + (f": {verdict.registration_detail}" if verdict.registration_detail else "")


_ORDERS = {
    "as_given": "every pass in the suite's order",
    "reversed": "every second pass in reverse order",
    "abba": "the order there, back, back and there",
    "balanced": "orders drawn by chance, every second one turned round",
    "interleaved": "orders in which every condition comes to stand at every place and after every other",
}


def _method(run: Run, sweep: Sweep) -> Iterator[str]:
    """What was done, from the suite as it was asked and the windows as they ran."""
    suite = run.suite
    protocol, server = suite.get("protocol", {}), suite.get("server", {})
    measured = [w for w in run.windows if w.role == "measured" and w.outcome != "void"]
    if run.published:
        yield "Somebody else measured this and published a table. The method is told as the suite asks for it, and was not checked."
    varied = "; ".join(
        f"{lines.axis_name(axis)} {', '.join(str(v) for v in values)}" for axis, values in suite.get("vary", {}).items()
    )
    context = (
        f", with {server['context_per_slot']:,} tokens of context for each slot" if "context_per_slot" in server else ""
    )
    yield f"For each of {varied or 'one condition'}, in each pass, {_engine_words(run)} is started anew{context}."
    yield _warmup(protocol, measured)
    yield _questions(run, measured) if run.questions else _asked(run, measured)
    yield _read(run, measured)
    whence = "as published" if run.published else "the mean over the passes of each window's own"
    passes = f"{run.passes} {'pass' if run.passes == 1 else 'passes'}"
    yield f"{passes}{', ' + _ORDERS.get(run.order, run.order) if run.passes > 1 else ''}; every figure is {whence}."
    yield (
        "A window lasts from the first request sent to the last answer received. Energy per token is its energy over the tokens generated "
        "in it, so the prompts' share is inside; tok/s is those tokens over its length; W is its energy over its length."
    )
    if run.idle is not None:
        yield f"With the server loaded and silent the {run.meter.scope} took ({run.meter.basis}) {figure(run.idle.mean_w)} W (standard deviation {run.idle.sd_w:.2g} W over {run.idle.seconds:.0f} s)."
    if measured:
        yield f"The run took from {run.started_utc} to {run.finished_utc}, {duration(sum(w.window_s for w in measured))} of it in windows."


def _engine_words(run: Run) -> str:
    return " or ".join(dict.fromkeys(str(name) for name in run.engine)) or "the engine"


def _warmup(protocol: Mapping[str, Any], measured: Sequence[Window]) -> str:
    if protocol.get("warm") == "cold":
        return f"The window is the first work it does, after {protocol.get('rest_s', 0):g} s of rest."
    if protocol.get("warmup_tokens"):
        return f"It is warmed with one round of answers of {protocol['warmup_tokens']} tokens."
    took = [float(w.engine["warmup_s"]) for w in measured if isinstance(w.engine.get("warmup_s"), int | float)]
    if not took:
        return "How it was warmed is not in the run."
    return f"It is warmed at its own batch for {_span(took, ' s')}, on the same server."


def _asked(run: Run, measured: Sequence[Window]) -> str:
    request, protocol = run.suite.get("request", {}), run.suite.get("protocol", {})
    if not request:
        return "What was asked of it is not in the run."
    # Where the window holds no prompt there is none to be counted.
    sizes = sorted({r.prompt_n + r.cache_n for w in measured for r in w.requests} - {0})
    tokens = f", {_span(sizes)} tokens long" if sizes else ""
    kind = "identical prompts" if request.get("identical") else "distinct prompts of equal length"
    sent = "is kept busy with" if request.get("closed_loop") else "sends at once"
    length = (
        "as many tokens as the condition says" if "answer_tokens" in run.axes else f"{request['answer_tokens']} tokens"
    )
    greedy = f"temperature {request['temperature']:g}" if request.get("temperature") else "greedy"
    prompt = one_line(str(request.get("prompt_text") or request.get("prompt")), 80)
    text = f"Then every slot {sent} {kind} ({prompt}){tokens}, each to be answered with exactly {length}, {greedy}"
    if protocol.get("rounds"):
        text += f", {protocol['rounds']} {'round' if protocol['rounds'] == 1 else 'rounds'} a window"
    elif "min_window_s" in protocol:
        text += f", in rounds until {protocol['min_window_s']:g} s have passed"
    if measured:
        text += f": windows of {_span([w.window_s for w in measured], ' s')} with {_span(sorted({w.tokens for w in measured}))} tokens"
    lengths = ", ".join(str(n) for n in request.get("lengths", ()))
    return f"{text}{f'; answers of {lengths} tokens were measured beside them' if lengths else ''}."


def _questions(run: Run, measured: Sequence[Window]) -> str:
    """What was asked of a model whose answers were graded."""
    request, protocol = run.suite["request"], run.suite["protocol"]
    sets = "; ".join(f"{one['name']} ({one['questions']}, sha256 {str(one['sha256'])[:12]})" for one in run.questions)
    sizes = sorted({r.prompt_n + r.cache_n for w in measured for r in w.requests})
    asked = _span(sorted({len({g.question for g in graded(w)}) for w in measured}))
    often = f", {protocol['rounds']} times a window" if (protocol.get("rounds") or 1) > 1 else ""
    greedy = f"temperature {request['temperature']:g}" if request.get("temperature") else "greedy"
    return (
        f"Then {asked} questions of {sets} are asked{often} in the model's chat template, {_span(sizes)} tokens long, each slot sent the next "
        f"one when it has answered; the model ends an answer by itself or at {request['answer_tokens']} tokens, {greedy}: windows of "
        f"{_span([w.window_s for w in measured], ' s')} with {_span(sorted({w.tokens for w in measured}))} tokens. Energy per right answer is "
        "the window's energy over its right answers: wrong ones and the end, where slots fall idle, are in it."
    )


def _read(run: Run, measured: Sequence[Window]) -> str:
    meter = run.meter
    rails = "; ".join(f"{rail.name}: {rail.source}, {rail.kind.replace('_', ' ')}" for rail in meter.rails)
    updates = [energy.updates for w in measured for energy in w.rails]
    seen = f", {_span(updates)} distinct readings a window" if updates else ""
    lags = ", ".join(f"{rail} {lag:.2f} s" for rail, lag in meter.lags_s.items())
    late = f" Readings were moved back by the lag that was measured: {lags}." if lags else ""
    return f"Power is read by {meter.name} at {meter.rate_hz:g} Hz{seen} ({rails}).{late}"


def _span(values: Sequence[float], unit: str = "") -> str:
    """`5.0 to 6.6 s`, or the one value."""
    if not values:
        return "unknown"
    low, high = (f"{v:,.1f}" if isinstance(v, float) else f"{v:,}" for v in (min(values), max(values)))
    return f"{low}{unit}" if low == high else f"{low} to {high}{unit}"


def _limits(run: Run, sweep: Sweep) -> Iterator[str]:
    """What speaks against the figures, the deviations apart, and what they do not cover by their nature."""
    meter = run.meter
    yield (
        f"scope: energy of the {meter.scope} alone ({', '.join(meter.covers)}), not of the wall"
        if meter.scope != "wall"
        else "scope: the wall"
    )
    if absent := [
        part for part in ("cpu", "gpu", "dram") if part not in meter.covers and meter.scope in ("chip", "gpu+chip")
    ]:
        yield f"no rail covers {', '.join(absent)}"
    request = run.suite.get("request", {})
    if (
        "prompt" not in run.axes
        and not ({"answer_tokens", "prompt_text"} & set(run.axes))
        and not request.get("lengths")
        and not run.questions
    ):
        yield f"one prompt and one answer length ({request.get('answer_tokens')} tokens); longer contexts read more of the KV cache at each step"
    yield from lines.limits(run, sweep, deviations=False)


def _reproduce(run: Run, verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Commands, each ready to be pasted into a shell in the repository."""
    modules = sorted({v.prediction.split("::")[0] for v in verdicts if "::" in v.prediction})
    yield "# judged again, from what is stored"
    if run.published:
        yield f"joules transcribe {shlex.quote(f'results/{run.machine_slug}/published.yaml')}"
    yield f"joules replay {shlex.quote(run.run_id)}"
    yield f"joules note {shlex.quote(run.run_id)} -o note"
    yield "# measured anew, with what it was measured with"
    for model in run.models:
        digest = f", sha256 {model['sha256']}" if model.get("sha256") else ""
        yield f"# {model_text(model)}{digest}"
    yield from (f"# {lines.engine_text(facts)}" for facts in run.engine.values())
    if head := str(run.provenance.get("head", "")):
        yield f"git checkout {shlex.quote(head)}"
    meter = "" if run.meter.name == "estimate" else f" --joules-meter {shlex.quote(run.meter.name)}"
    yield f"pytest {shlex.join(modules or ['predictions'])}{meter}"


def stem(run: Run) -> str:
    """The name of the note's files: suite and run."""
    return re.sub(r"[^\w.-]", "_", f"{run.suite_name}-{run.run_id}")
