"""Graded answers from the window to the verdict: figures, intervals, noise of the questions, lines of the note, what is kept."""

import dataclasses
import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pytest_joules import gates, items, verdict
from pytest_joules.errors import Void
from pytest_joules.items import Item
from pytest_joules.metrics import METRICS
from pytest_joules.note import lines
from pytest_joules.note.document import document
from pytest_joules.note.findings import findings
from pytest_joules.note.markdown import markdown
from pytest_joules.note.plots import figures
from pytest_joules.prediction import judge
from pytest_joules.protocol.forecast import resolution
from pytest_joules.records import Grade, RequestRecord, Run, Sample, Window
from pytest_joules.store import Store, load
from pytest_joules.sweep import Cell, Sweep, from_run


def answer(question: str, right: bool, tokens: int = 16, said: str | None = "42", **grade: bool) -> RequestRecord:
    return RequestRecord(
        slot=0, round=0, sent_s=0.0, received_s=1.0, prompt_n=40, cache_n=0, predicted_n=tokens, prompt_ms=1.0, predicted_ms=1.0,
        stop_type="limit" if grade.get("cut_off") else "eos",
        grade=Grade(question=question, correct=right, extracted=said, text=f"It is {said}.", **grade),
    )  # fmt: skip


@pytest.fixture
def graded(make_window) -> Callable[..., Window]:
    """A window in which so many of its questions were answered rightly, the first ones."""

    def build(parallel: int, right: int, asked: int = 64, pass_index: int = 0, **changes: object) -> Window:
        answers = tuple(answer(f"q{n}", n < right) for n in range(asked))
        return make_window(parallel, pass_index, requests=answers, tokens=16 * asked, **changes)

    return build


def table(right: Mapping[int, np.ndarray], joules: Mapping[int, float], tokens: float = 16.0) -> Sweep:
    """A table of two passes that agree, from which question was answered rightly at each batch, and its energy per question."""
    cells = []
    for batch, own in right.items():
        energy_j, count = joules[batch] * own.size, float(own.sum())
        figures = {
            "energy_per_correct_j": energy_j / count, "accuracy": count / own.size, "correct": count, "answered": float(own.size),
            "energy_per_token_mj": 1000 * joules[batch] / tokens, "tokens_per_s": 50.0 * batch,
        }  # fmt: skip
        asked = {f"q{n}": Item(float(one), 1.0, tokens) for n, one in enumerate(own)}
        cells.append(Cell(condition={"parallel": batch}, passes=(figures, figures), items=asked))
    return Sweep(("parallel",), cells)


def test_figures_count_right_answers_and_the_energy_of_all(graded, make_run) -> None:
    sweep = from_run(make_run(graded(1, 16, energy_j=320.0), graded(8, 32, energy_j=160.0)))
    assert (sweep[1].accuracy, sweep[8].accuracy) == (0.25, 0.5)
    assert (sweep[1].correct, sweep[8].answered) == (16, 64)
    assert (sweep[1].energy_per_correct_j, sweep[8].energy_per_correct_j) == (20.0, 5.0)
    assert sweep.energy_per_correct_j.saving(1, 8) == 0.75


def test_the_note_leads_with_the_right_answer_and_not_with_the_token(graded, make_run) -> None:
    """The format with the cheaper token has the dearer right answer; the model is the same throughout."""
    conditions = [{"model": "made-up-7b", "format": form} for form in ("q4_0", "q8_0")]
    windows = [
        replace(graded(1, right, energy_j=energy_j + index, pass_index=index), condition=condition)
        for condition, right, energy_j in zip(conditions, (8, 32), (100.0, 200.0), strict=True)
        for index in (0, 1)
    ]
    run = replace(make_run(), passes=2, windows=tuple(windows), axes=("model", "format"), conditions=tuple(conditions))
    told = [one.text for one in findings(run)]
    assert "Energy per token is lowest at format q4_0, 98.1 mJ." in told
    assert "Energy per right answer is lowest at format q8_0, 6.27 J, 50% less than at q4_0." in told
    drawn = figures(run, [], [])
    assert [one.name for one in drawn][:2] == ["energy", "right-answers"]
    assert drawn[1].told == "J per right answer over format: 12.6 at q4_0, 6.27 at q8_0"
    note = document(run, [], drawn, [], [])
    assert "; energy per right answer is lowest at format q8_0, 6.27 J" in note.answer


def test_what_cannot_be_read_is_wrong_and_unanswered(make_window, make_run) -> None:
    window = make_window(requests=(answer("a", True), answer("b", False, said=None)), tokens=32)
    sweep = from_run(make_run(window))
    assert (sweep[1].answered, sweep[1].correct, sweep[1].accuracy) == (1, 1, 0.5)


def test_a_set_asked_twice_counts_like_its_energy(make_window, make_run) -> None:
    requests = tuple(answer(f"q{n % 4}", n % 2 == 0) for n in range(8))
    sweep = from_run(make_run(make_window(requests=requests, tokens=128, rounds=2)))
    assert (sweep[1].correct, sweep[1].accuracy, sweep[1].energy_per_correct_j) == (4, 0.5, 50.0)
    assert sweep.cells[0].items["q0"] == Item(1.0, 1.0, 16.0)


def test_without_a_right_answer_its_energy_is_undefined_and_the_share_is_0(graded, make_run) -> None:
    sweep = from_run(make_run(graded(1, 0), graded(1, 0, pass_index=1)))
    assert sweep[1].accuracy == 0.0
    with pytest.raises(Void, match="none of 64 answers was right in pass 1; ask more or easier questions"):
        _ = sweep[1].energy_per_correct_j


def test_without_questions_there_is_nothing_to_read(make_window, make_run) -> None:
    for metric in ("energy_per_correct_j", "accuracy", "correct", "answered"):
        with pytest.raises(Void, match=r"no questions were asked; state request\.questions"):
            getattr(from_run(make_run(make_window())), metric)[1]


def test_wilsons_interval_is_the_textbooks() -> None:
    # R. G. Newcombe, Statistics in Medicine 17 (1998), table I, method 3.
    assert items.wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert items.wilson(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert items.wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert items.wilson(1, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)
    assert items.wilson(20, 20)[1] == 1.0


def test_the_interval_of_energy_per_right_answer_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(300):
        right = rng.random(96) < 0.35
        tokens = rng.integers(4, 30, 96) + 15.0 * ~right
        truth, own = (16.5 + 15 * 0.65) / 0.35, tokens.mean() / right.mean()
        low, high = items.interval(
            {f"q{n}": Item(float(r), 1.0, t) for n, (r, t) in enumerate(zip(right, tokens, strict=True))}
        ) or (0, 0)
        held += low * own <= truth <= high * own
    assert 0.91 <= held / 300 <= 0.985


def test_a_pair_of_conditions_is_held_apart_by_the_questions_that_tell_them_apart() -> None:
    """Of conditions that get the same ones right the difference is known better than either, and a truth is held as often as said."""
    first = {f"q{n}": Item(float(n % 2), 1.0, 16.0) for n in range(96)}
    alike = items.paired(first, first)
    low, high = items.wilson(48, 96)
    assert alike.accuracy[0] == 0
    assert alike.accuracy[2] - alike.accuracy[1] < 0.3 * (high - low)
    assert alike.energy is not None
    assert 0.9 < alike.energy[0] < 1 < alike.energy[1] < 1.1
    assert items.paired(first, {f"q{n}": Item(0.0, 1.0, 16.0) for n in range(96)}).energy is None
    rng = np.random.default_rng(4)
    held = 0
    for _ in range(150):
        chance = rng.random(96)
        right = [chance < 0.4, np.where(rng.random(96) < 0.7, chance, rng.random(96)) < 0.5]
        pair = ({f"q{n}": Item(float(one), 1.0, 16.0) for n, one in enumerate(own)} for own in right)
        _, low, high = items.paired(*pair).accuracy
        held += low <= 0.1 <= high
    assert 0.9 <= held / 150 <= 0.99


def test_the_same_question_weighs_the_same_in_every_table() -> None:
    """Conditions that answer alike come out alike in every draw, but for what no question has shown."""
    asked = {f"q{n}": Item(float(n % 3 == 0), 1.0, 16.0) for n in range(200)}
    drawn = items.factors([asked, asked], np.random.default_rng(0), 400)["accuracy"]
    other = items.factors([asked], np.random.default_rng(1), 400)["accuracy"]
    for left, right in ((drawn[:, 0], drawn[:, 1]), (drawn[:, 0], other[:, 0])):
        assert np.std(left / right) < 0.2 * np.std(left)
        assert np.std(left / right) > 0


CLAIMS: Mapping[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "a share, from below": lambda share, joules: share[..., 1] > 0.4,
    "a share, from above": lambda share, joules: share[..., 1] < 0.4,
    "a gain": lambda share, joules: share[..., 1] > share[..., 0],
    "a saving": lambda share, joules: joules[..., 1] < 0.5 * joules[..., 0],
    "a saving at most": lambda share, joules: joules[..., 1] > 0.5 * joules[..., 0],
    "energy per right answer": lambda share, joules: joules[..., 1] < 2.5,
}
"""Each is false by a hair where right answers are two in five at both conditions, and a question takes 2 and 1 J."""


@pytest.mark.parametrize("asked", [40, 128])
def test_a_claim_that_is_false_by_a_hair_is_hardly_ever_clearly_held(asked: int) -> None:
    rng = np.random.default_rng(11)
    campaigns, tables = 500, 1000
    wrong = dict.fromkeys(CLAIMS, 0)
    for _ in range(campaigns):
        chance = rng.random(asked)
        right = np.stack([chance < 0.4, np.where(rng.random(asked) < 0.8, chance, rng.random(asked)) < 0.4])
        cells = [{f"q{n}": Item(float(one), 1.0, 16.0) for n, one in enumerate(own)} for own in right]
        drawn = items.factors(cells, rng, tables)
        share = right.mean(axis=1)
        joules = np.array([2.0, 1.0]) / share
        for name, claim in CLAIMS.items():
            held = claim(share, joules)
            agree = claim(drawn["accuracy"] * share, drawn["energy_per_correct_j"] * joules).mean()
            wrong[name] += bool(held) and agree >= verdict.AGREE_FOR_CLEAR
    # 500 campaigns know a share of 5 % to one point.
    assert max(wrong.values()) / campaigns <= 0.05, wrong


def test_a_lead_of_two_questions_is_no_clear_one(predicts) -> None:
    first = np.arange(96) < 40
    sweep = table({1: first, 8: np.roll(first, 2) | (np.arange(96) < 2)}, {1: 2.0, 8: 1.99})

    def predicted(sweep: Sweep) -> None:
        assert sweep.accuracy[8] > sweep.accuracy[1]

    prediction = predicts(predicted)
    found = verdict.robustness(prediction, judge(prediction, sweep), sweep)
    assert found.word == "narrow"
    assert found.agreement is not None
    # As many draws say so as the questions alone leave open.
    drawn = items.factors([cell.items for cell in sweep.cells], np.random.default_rng(5), 2000)["accuracy"]
    assert found.agreement == pytest.approx((drawn[:, 1] * 42 > drawn[:, 0] * 40).mean(), abs=0.03)


def test_claims_far_from_their_threshold_are_clear(predicts) -> None:
    right = np.arange(96) < 48
    sweep = table({1: right, 8: right}, {1: 2.0, 8: 1.0})

    def predicted(sweep: Sweep) -> None:
        assert sweep.energy_per_correct_j[8] < 0.8 * sweep.energy_per_correct_j[1]
        assert sweep.accuracy[8] > 0.2
        assert abs(sweep.accuracy[8] - sweep.accuracy[1]) < 0.1

    prediction = predicts(predicted)
    found = verdict.robustness(prediction, judge(prediction, sweep), sweep)
    assert found.word == "clear", found.why_narrow


def test_what_the_questions_leave_open_does_not_touch_other_figures(predicts) -> None:
    right = np.arange(40) < 3
    sweep = table({1: right, 8: right}, {1: 2.0, 8: 1.0})

    def predicted(sweep: Sweep) -> None:
        assert sweep.energy_per_token_mj[8] < 0.6 * sweep.energy_per_token_mj[1]

    prediction = predicts(predicted)
    bare = sweep.fresh([dataclasses.replace(cell, items={}) for cell in sweep.cells])
    judged = judge(prediction, sweep)
    assert verdict.robustness(prediction, judged, sweep) == verdict.robustness(prediction, judged, bare)


def test_graded_claims_are_narrow_where_their_noise_is_unknown(predicts) -> None:
    right = np.arange(64) < 32
    whole = table({1: right, 8: right}, {1: 2.0, 8: 0.5})

    def predicted(sweep: Sweep) -> None:
        assert sweep.accuracy[8] < 0.9

    prediction = predicts(predicted)
    bare = whole.fresh([dataclasses.replace(cell, items={}) for cell in whole.cells])
    assert "their noise is unknown" in verdict.robustness(prediction, judge(prediction, bare), bare).why_narrow
    none = {name: dataclasses.replace(item, right=0.0) for name, item in whole.cells[1].items.items()}
    unlucky = whole.fresh([whole.cells[0], dataclasses.replace(whole.cells[1], items=none)])
    why = verdict.robustness(prediction, judge(prediction, unlucky), unlucky).why_narrow
    assert "no answer was right at parallel=8" in why


def test_more_questions_decide_more(predicts) -> None:
    def predicted(sweep: Sweep) -> None:
        assert sweep.accuracy[8] > sweep.accuracy[1]

    axes, conditions = ("parallel",), ({"parallel": 1}, {"parallel": 8})
    few, many, ungraded = (
        verdict.resolution(predicts(predicted), axes, conditions, 2, questions=count) for count in (16, 2000, 0)
    )
    assert few is not None
    assert many is not None
    assert few + 0.3 < many
    assert ungraded == 1.0


def test_what_a_set_can_resolve_is_told_beforehand() -> None:
    assert resolution([200, 200]).startswith(
        "200 questions resolve a difference in accuracy of about 10 points at 50 %, and in energy per right answer of about 20%"
    )
    assert resolution([0, 0]) == ""
    assert resolution([0, 64]).startswith("64 questions resolve a difference in accuracy of about 17 points")


def test_answers_of_which_too_many_were_cut_off_are_flagged() -> None:
    assert gates.answers_cut_off(5, 100).outcome == "pass"
    cut = gates.answers_cut_off(6, 100)
    assert (cut.outcome, cut.remedy) == ("flag", "raise answer_tokens")


def test_an_answer_that_the_model_may_end_is_complete_at_any_length_up_to_the_most() -> None:
    given = [answer("a", True, 1), answer("b", False, 32, cut_off=True)]
    assert gates.requests_complete(given, 2, 32, exact=False).outcome == "pass"
    assert gates.requests_complete(given, 2, 31, exact=False).outcome == "void"
    assert gates.requests_complete([answer("a", True, 0)], 1, 32, exact=False).outcome == "void"
    assert gates.requests_complete(given, 2, 32).outcome == "void"


def test_the_note_shows_counts_and_intervals(graded, make_run) -> None:
    windows = [graded(b, r, pass_index=p, engine={"drain_share": 0.03}) for b, r in ((1, 16), (8, 32)) for p in (0, 1)]
    run: Run = make_run(
        *windows, questions=({"name": "own", "file": "own.jsonl", "sha256": "f" * 64, "questions": 64},)
    )
    run = dataclasses.replace(
        run, suite={**run.suite, "request": {"answer_tokens": 32, "temperature": 0}, "protocol": {"rounds": 1}}
    )
    text = "\n".join(lines.note(run, ()))
    assert "J per\n" not in text
    headers, rows = lines.cells(from_run(run))
    assert headers == ["batch", "tok/s", "W", "mJ per token", "correct", "J per correct", "vs batch 1", "pass spread"]
    assert rows[1][4:7] == ["50.0%", "6.25", "50% less"]
    assert max(map(len, lines.table(from_run(run)))) <= 80
    [one, eight, paired] = lines.grades(run, from_run(run))
    assert paired.startswith(
        "batch 8 against batch 1, question by question: 0.500 times the energy per right answer (0.3"
    )
    assert one.startswith("batch 1: 16 of 64 right, 25.0% (16% to 37%); 12.5 J per right answer (8.")
    assert eight.endswith(
        "64 wrong, 0 unanswered, 0 cut off of 128 answers in all passes; the drain took 3.0% of the time"
    )
    assert "batch 8 against batch 1, question by question" in " ".join(text.split())
    page = markdown(document(run, (), (), (), ()))
    assert "; accuracy +25.0 points (+1" in page
    assert "batch 8: 32 of 64 right" in page
    assert "64 questions of own (64, sha256 ffffffffffff) are asked" in page


def test_made_up_tables_have_every_graded_figure() -> None:
    from pytest_joules import synthetic

    shares = set()
    for sweep in synthetic.tables(("parallel",), ({"parallel": 1}, {"parallel": 8})):
        assert all(set(figures) == set(METRICS) for cell in sweep.cells for figures in cell.passes)
        row = sweep[8]
        assert 0 < row.accuracy < 1
        assert row.correct <= row.answered
        shares.add(sweep.accuracy[1] == sweep.accuracy[8])
    assert shares == {True, False}


def test_answers_are_kept_whole_beside_their_run(tmp_path: Path, graded, make_run) -> None:
    run = make_run(graded(1, 16), samples_file="", answers_file="20261025T101530Z-3fa9c1.answers.jsonl.gz")
    stored = Store(tmp_path).write(run, list[Sample]())
    kept = load(stored.path).run.windows[0].requests
    assert {request.grade.text for request in kept if request.grade} == {""}
    assert kept[0].grade == Grade(question="q0", correct=True, extracted="42")
    with gzip.open(stored.path.with_name(run.answers_file), "rt") as file:
        records = [json.loads(line) for line in file]
    assert len(records) == 64
    assert records[63] == {
        "sequence": 0, "role": "measured", "pass_index": 0, "condition": {"parallel": 1}, "question": "q63", "correct": False,
        "extracted": "42", "cut_off": False, "text": "It is 42.",
    }  # fmt: skip
