"""What a suite may ask of a draft model, and what is held against the answers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_joules import gates, items, verdict
from pytest_joules.errors import UsageError
from pytest_joules.items import Drafts
from pytest_joules.metrics import METRICS, draft_acceptance, tokens_per_step
from pytest_joules.note import lines
from pytest_joules.prediction import judge
from pytest_joules.records import RequestRecord, Window
from pytest_joules.suite import Draft, Suite, load
from pytest_joules.sweep import Sweep, from_run

PLAIN = RequestRecord(
    slot=0, round=0, sent_s=0.0, received_s=1.0, prompt_n=20, cache_n=0, predicted_n=96, prompt_ms=None, predicted_ms=None,
    stop_type="limit",
)  # fmt: skip
DRAFTED = replace(PLAIN, draft_n=417, draft_accepted_n=67)


@pytest.fixture
def drafting(tmp_path: Path) -> Any:
    """A suite with such lines after its model."""

    def build(*lines: str) -> Suite:
        path = tmp_path / "drafts.yaml"
        path.write_text("\n".join(("question: Does it pay?", "model: m", *lines)) + "\n")
        return load(path)

    return build


def test_off_is_a_condition_that_loads_no_draft(drafting) -> None:
    suite = drafting("vary: {draft_threshold: [off, 0, 0.5]}", "draft: {draft_model: d, draft_tokens_max: 16}")
    assert [c["draft_threshold"] for c in suite.conditions] == ["off", 0, 0.5]
    off, *on = (suite.setting(condition).draft for condition in suite.conditions)
    assert off == Draft()
    assert [(d.draft_model, d.draft_tokens_max, d.draft_threshold) for d in on] == [("d", 16, 0), ("d", 16, 0.5)]


def test_a_suite_may_put_the_draft_of_the_one_it_extends_off(drafting, tmp_path: Path) -> None:
    drafting("draft: {draft_model: d, draft_threshold: 0.5}")
    (tmp_path / "plain.yaml").write_text("extends: drafts\ndraft: {draft_threshold: off}\n")
    assert load(tmp_path / "plain.yaml").setting({}).draft == Draft()


@pytest.mark.parametrize("threshold", ["on", "1.5", "-0.1"])
def test_a_threshold_is_a_probability_or_off(drafting, threshold: str) -> None:
    with pytest.raises(UsageError, match=rf"drafts\.yaml:3: draft\.draft_threshold: .*'off', not '?{threshold}"):
        drafting(f"draft: {{draft_model: d, draft_threshold: {threshold}}}")


@pytest.mark.parametrize(
    "line",
    [
        "draft: {draft_model: d, draft_synthetic_tokens: 2}",
        "vary: {draft_synthetic_tokens: [1, 2]}\ndraft: {draft_model: d}",
    ],
)
def test_answers_that_mean_nothing_are_not_graded(drafting, line: str) -> None:
    drafting(line)
    with pytest.raises(UsageError, match=r"draft_synthetic_tokens: the answers then mean nothing and cannot be graded"):
        drafting(line, "request: {questions: basics}")


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["draft: {draft_model: d, draft_tokens_min: 5, draft_tokens_max: 2}"], r":3: draft\.draft_tokens_min: 5 is over draft_tokens_max, 2"),
        (["vary: {draft_tokens_max: [4, 8]}", "draft: {draft_model: d, draft_tokens_min: 5}"],
         r":4: draft\.draft_tokens_min: 5 is over draft_tokens_max, 4; .*at draft_tokens_max=4"),
        (["draft: {draft_model: d, draft_synthetic_tokens: 4.5}"], r":3: draft\.draft_synthetic_tokens: a pass yields 4 tokens at most"),
    ],
)  # fmt: skip
def test_drafts_that_cannot_be_are_refused(drafting, lines: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=rf"drafts\.yaml{told}"):
        drafting(*lines)


def test_all_drafts_and_the_models_own_token_are_the_most_of_a_pass(drafting) -> None:
    draft = drafting("draft: {draft_model: d, draft_synthetic_tokens: 4, draft_tokens_min: 3}").setting({}).draft
    assert draft.draft_synthetic_tokens == draft.draft_tokens_max + 1


def test_what_needs_a_draft_is_undefined_without_one(drafting) -> None:
    figures = {"draft_acceptance", "tokens_per_step"}
    assert figures <= set(drafting().undefined)
    assert not figures & set(drafting("draft: {draft_model: d}").undefined)
    assert not figures & set(drafting("vary: {draft_model: [d, e]}").undefined)


@pytest.mark.parametrize(
    ("answers", "wanted", "outcome", "value"),
    [
        ([PLAIN, DRAFTED], True, "pass", "417 tokens drafted, 67 accepted"),
        ([PLAIN, PLAIN], True, "void", "0 tokens drafted"),
        ([PLAIN, PLAIN], False, "pass", "0 tokens drafted"),
        ([PLAIN, DRAFTED], False, "void", "417 tokens drafted, 67 accepted"),
    ],
)
def test_drafts_that_are_missing_or_unasked_void(
    answers: list[RequestRecord], wanted: bool, outcome: str, value: str
) -> None:
    found = gates.drafted(answers, wanted=wanted)
    assert (found.outcome, found.value) == (outcome, value)
    assert bool(found.remedy) == (outcome == "void")


def test_acceptance_and_yield_are_of_all_requests_together(make_window) -> None:
    window: Window = make_window(2, requests=(DRAFTED, replace(PLAIN, draft_n=83, draft_accepted_n=58)))
    assert draft_acceptance(window) == pytest.approx((67 + 58) / 500)
    assert tokens_per_step(window) == pytest.approx(192 / (29 + 38))


def test_without_drafts_there_is_no_acceptance_and_never_zero(make_window) -> None:
    window: Window = make_window(requests=(PLAIN,))
    assert draft_acceptance(window) is tokens_per_step(window) is None


def test_nothing_accepted_is_a_share_of_zero_and_a_token_a_pass(make_window) -> None:
    window: Window = make_window(requests=(replace(PLAIN, draft_n=40),))
    assert draft_acceptance(window) == 0.0
    assert tokens_per_step(window) == 1.0


def test_idle_power_is_that_of_the_baseline_or_missing(make_window) -> None:
    assert METRICS["idle_power_w"].of_window(make_window(), None) is None


def drafts(rng: np.random.Generator, prompts: int, chance: float, most: int = 8, tokens: int = 48) -> list[Drafts]:
    """Answers of so many tokens or a few more, whose drafts are accepted up to their first wrong token."""
    found = []
    for own in 1 / (1 + np.exp(-np.log(chance / (1 - chance)) - 0.5 * rng.standard_normal(prompts))):
        taken: list[int] = []
        while sum(taken) + len(taken) < tokens:
            taken.append(min(most, int(rng.geometric(1 - own)) - 1))
        found.append(Drafts(float(most * len(taken)), float(sum(taken)), float(len(taken))))
    return found


def measured(found: list[Drafts]) -> tuple[float, float]:
    drafted, accepted, passes = (sum(getattr(one, name) for one in found) for name in ("drafted", "accepted", "passes"))
    return accepted / drafted, 1 + accepted / passes


@pytest.mark.parametrize("prompts", [4, 16])
@pytest.mark.parametrize("chance", [0.4, 0.7])
def test_a_claim_on_drafts_that_is_false_by_a_hair_is_hardly_ever_clearly_held(prompts: int, chance: float) -> None:
    rng = np.random.default_rng(3)
    truth = measured(drafts(rng, 3000, chance))
    campaigns, wrong = 400, np.zeros(5)
    for _ in range(campaigns):
        pair = [drafts(rng, prompts, chance) for _ in range(2)]
        shares, steps = np.array([measured(one) for one in pair]).T
        drawn = items.draft_factors(pair, rng, 300)
        share, step = drawn["draft_acceptance"] * shares, drawn["tokens_per_step"] * steps
        claims = (
            (shares[0] > truth[0], share[:, 0] > truth[0]), (shares[0] < truth[0], share[:, 0] < truth[0]),
            (steps[0] > truth[1], step[:, 0] > truth[1]), (steps[0] < truth[1], step[:, 0] < truth[1]),
            (shares[1] > shares[0], share[:, 1] > share[:, 0]),
        )  # fmt: skip
        wrong += [held and agree.mean() >= verdict.AGREE_FOR_CLEAR for held, agree in claims]
    # 400 campaigns know a share of 5 % to one point.
    assert wrong.max() / campaigns <= 0.06, wrong


def test_both_figures_of_drafts_move_together_and_stay_possible() -> None:
    found = [Drafts(60.0, 28.0, 20.0), Drafts(62.0, 28.0, 20.0), Drafts(49.0, 29.0, 19.0)]
    drawn = items.draft_factors([found, []], np.random.default_rng(0), 500)
    share, step = measured(found)
    shares, steps = drawn["draft_acceptance"][:, 0] * share, drawn["tokens_per_step"][:, 0] * step
    assert 0 < shares.min() < shares.max() < 1 < steps.min()
    assert np.corrcoef(shares, steps)[0, 1] > 0.6
    assert (drawn["draft_acceptance"][:, 1] == 1).all()


def table_of(make_run, make_window, *counts: list[tuple[int, int]], passes: int = 2) -> Any:
    """Batches of one slot with so many drafted and accepted tokens for each prompt, alike in every pass."""
    return from_run(
        make_run(
            *(
                make_window(
                    batch, index,
                    requests=tuple(
                        replace(PLAIN, round=n, predicted_n=48, draft_n=d, draft_accepted_n=a) for n, (d, a) in enumerate(of_batch)
                    ),
                )
                for batch, of_batch in enumerate(counts, 1) for index in range(passes)
            )
        )
    )  # fmt: skip


def robust(predicts, sweep: Any, claim: Any) -> verdict.Robustness:
    prediction = predicts(claim)
    return verdict.robustness(prediction, judge(prediction, sweep), sweep)


def test_a_lead_that_three_prompts_leave_open_is_narrow_though_passes_agree(make_run, make_window, predicts) -> None:
    sweep = table_of(make_run, make_window, [(19, 17), (18, 16), (19, 17)], [(42, 39), (43, 40), (42, 40)])

    def worse(sweep: Any) -> None:
        assert sweep.draft_acceptance[1] > sweep.draft_acceptance[2]

    def deep(sweep: Any) -> None:
        assert sweep.draft_acceptance[2] > 0.5
        assert sweep.tokens_per_step[2] > 2 * sweep.tokens_per_step[1]

    found = robust(predicts, sweep, worse)
    assert found.word == "narrow"
    assert found.agreement is not None
    assert 0.6 < found.agreement < 0.95
    assert robust(predicts, sweep, deep).word == "clear"


def test_answers_to_prompts_that_came_round_again_are_no_further_evidence(make_run, make_window) -> None:
    four = [(60, 28), (62, 28), (49, 29), (58, 30)]
    once, again = (table_of(make_run, make_window, four * times).cells[0].drafts for times in (1, 5))
    assert once == again
    assert len(once) == 4


@pytest.mark.parametrize(
    ("counts", "why"),
    [
        ([(60, 28)] * 2, "2 prompts at parallel=1: too few"),
        ([(60, 0)] * 4, "no drafted token was accepted at parallel=1"),
        ([(60, 60)] * 4, "every drafted token was accepted at parallel=1"),
    ],
)
def test_claims_on_drafts_are_narrow_where_their_noise_is_unknown(
    make_run, make_window, predicts, counts: list[tuple[int, int]], why: str
) -> None:
    def claim(sweep: Any) -> None:
        assert sweep.draft_acceptance[1] >= 0

    sweep = table_of(make_run, make_window, [(d, min(a, 40)) if a < d else (40, 40) for d, a in counts])
    assert why in robust(predicts, sweep, claim).why_narrow


def test_a_table_with_drafts_shows_them_within_a_terminal(make_run, make_window) -> None:
    plain, drafted = [(0, 0)] * 4, [(60, 28)] * 4
    sweep = table_of(make_run, make_window, plain, drafted)
    headers, rows = lines.cells(sweep)
    assert headers[1:6] == ["tok/s", "W", "draft accepted", "tokens per step", "mJ per token"]
    assert [row[3:5] for row in rows] == [["", ""], ["46.7%", "2.40"]]
    two = [
        replace(cell, condition={"draft_threshold": 0.5, "draft_tokens_max": place})
        for place, cell in enumerate(sweep.cells)
    ]
    shown = lines.table(Sweep(("draft_threshold", "draft_tokens_max"), two))
    assert max(map(len, shown)) <= 80
    assert [shown[0].split()[:2], shown[-1].split()[-3:]] == [["threshold", "max"], ["50%", "less", "0.0%"]]
    assert "draft accepted" not in lines.cells(table_of(make_run, make_window, plain))[0]
