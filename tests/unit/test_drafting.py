"""What a suite may ask of a draft model, and what is held against the answers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_joules import gates
from pytest_joules.errors import UsageError
from pytest_joules.metrics import METRICS, draft_acceptance, tokens_per_step
from pytest_joules.records import RequestRecord, Window
from pytest_joules.suite import Draft, Suite, load

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
