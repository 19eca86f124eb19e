"""The verdict on one prediction and one run: the word, how surely, how it stands to the run, and what was said before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_joules import margin, verdict
from pytest_joules.prediction import Judgement, Prediction, judge
from pytest_joules.records import MeterRecord, Run, Verdict
from pytest_joules.registration import Registration
from pytest_joules.standing import Standing
from pytest_joules.store import Interrupted
from pytest_joules.suite import Suite
from pytest_joules.sweep import Sweep, beside, from_run


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Everything a verdict rests on.

    Attributes:
        against: the run it compares with; `None` when there is none on that machine.
        standing: how it stands to the run.
        registered: what git shows of it now.
        earlier: verdicts on it, as it is now, on earlier complete runs of the suite on the same machine, oldest first.
    """

    prediction: Prediction
    run: Run
    against: Run | None
    standing: Standing
    registered: Registration
    earlier: Sequence[Verdict] = ()
    selected: bool = True
    replayed: bool = False
    judged_utc: str = ""


def give(case: Case) -> Verdict:
    """Judge."""
    prediction, run = case.prediction, case.run
    of_record = next((v for v in case.earlier if v.word not in ("void", "unmeasured")), None)
    common: dict[str, Any] = {
        "prediction": prediction.name,
        "claim": prediction.claim,
        "registration": case.standing.word,
        "registration_detail": case.standing.detail,
        "run_id": run.run_id,
        "against_run_id": case.against.run_id if case.against else "",
        "judged_utc": case.judged_utc,
        "selected": case.selected,
        "remark": ", ".join(_remarks(case)),
        "published": str(run.provenance.get("outcomes", {}).get(prediction.function.__name__, "")),
        "of_record": f"{of_record.told} in {of_record.run_id}" if of_record else "",
        "replayed": case.replayed,
        "primary": prediction.primary,
        "blobs": case.registered.blobs,
        "asserted": prediction.body,
        "commit": case.registered.commit,
        "committed": case.registered.committed,
    }
    if prediction.against and case.against is None:
        return Verdict(word="unmeasured", detail=f"no run of suite {prediction.against} on this machine", **common)
    sweep = from_run(run)
    against = beside(case.against, run) if case.against else None
    judged = judge(prediction, sweep, against)
    robust = verdict.robustness(prediction, judged, sweep, against, verdict.effects(run, judged.reads.metrics))
    given = Verdict(
        word=judged.word, detail=judged.detail, robustness=robust.word, agreement=robust.agreement, why_narrow=robust.why_narrow, **common
    )  # fmt: skip
    if judged.word in ("held", "refuted"):
        nearest = margin.nearest(margin.margins(prediction, sweep, against))
        if nearest is not None:
            given = replace(given, margin=nearest.margin, compared=_told(nearest))
        given = replace(given, band=verdict.band(prediction, sweep, against))
    if prediction.decide == "clear" and given.robustness == "narrow":
        return replace(given, word="void", detail=_undecided(given, prediction, judged, sweep, against))
    return given


def _remarks(case: Case) -> list[str]:
    """What a reader must know of a claim before its verdict."""
    remarks = [f"threshold {case.prediction.threshold}"] if case.prediction.threshold else []
    if case.against is not None and case.against.machine_slug != case.run.machine_slug:
        remarks.append(f"compared with figures transferred from {case.against.machine_slug}")
    return remarks


def _told(nearest: margin.Compared) -> str:
    """The comparison that decides, with its numbers, and how far they stand from its threshold."""
    numbers = f"{nearest.left:.4g} against {nearest.right:.4g}"
    if nearest.margin is None:
        return numbers
    return f"{numbers}, {abs(nearest.margin):.1%} {'inside' if nearest.margin >= 0 else 'outside'}"


def unfinished(left: Interrupted, suite: Suite, machine_slug: str) -> Run:
    """What an interrupted run measured, as a run: one pass is enough for a cell, and what was not measured is void."""
    meter = left.header["meter"]
    return Run(
        run_id=left.run_id, started_utc=str(left.header["started_utc"]), finished_utc="", complete=False,
        suite=left.header["suite"], suite_name=suite.name, axes=suite.axes, conditions=suite.conditions, passes=1,
        order=suite.protocol.order, machine=left.header["machine"], machine_slug=machine_slug,
        models=tuple(left.header["models"]), engine=left.header["engines"], windows=left.windows,
        provenance=left.header.get("provenance", {}),
        meter=MeterRecord(
            name=meter["name"], basis=meter["basis"], scope=meter["scope"], covers=tuple(meter["covers"]), rate_hz=0.0, rails=(),
            chosen_because="",
        ),
    )  # fmt: skip


def _undecided(given: Verdict, prediction: Prediction, judged: Judgement, sweep: Sweep, against: Sweep | None) -> str:
    """Why a narrow outcome decides nothing, and what would."""
    needed = verdict.passes_to_decide(prediction, judged, sweep, against)
    passes = verdict.passes_of(sweep)
    # At or under its own number it is a single pass or a gate that keeps it narrow, which more passes may or may not mend.
    more = f"about {needed} passes would decide it" if needed and needed > passes else "more passes need not decide it"
    return f"narrow, and only a clear outcome was to decide: {given.word}, {given.why_narrow}; {more}"
