"""Sets of questions: reading, drawing, and what the set that comes with the package says."""

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

import pytest_joules
from pytest_joules import session
from pytest_joules import suite as suites
from pytest_joules.errors import UsageError
from pytest_joules.suite import Suite
from pytest_joules.workload import questions
from pytest_joules.workload.grading import grade, normal, number
from pytest_joules.workload.questions import Question, QuestionSet

GOOD = {"id": "a", "kind": "numeric", "question": "What is 1 + 1?", "answer": 2}
BASICS = Path(pytest_joules.__file__).parents[1] / "suites" / "questions" / "basics.jsonl"


@pytest.fixture
def asking(tmp_path: Path) -> Callable[..., Suite]:
    """A suite of one slot with these keys in its request, beside a set `own` of as many questions."""

    def build(keys: str, count: int = 8, rest: str = "vary: {parallel: [1]}") -> Suite:
        folder = tmp_path / "suites"
        (folder / "questions").mkdir(parents=True, exist_ok=True)
        lines = [
            json.dumps({**GOOD, "id": f"q{n}", "question": f"What is {n} + 1?", "answer": n + 1}) for n in range(count)
        ]
        (folder / "questions" / "own.jsonl").write_text("\n".join(lines))
        (folder / "graded.yaml").write_text(f"question: How dear?\nmodel: m\n{rest}\nrequest: {{{keys}}}\n")
        return suites.load(folder / "graded.yaml")

    return build


def read(asking: Callable[..., Suite], name: str, text: str, form: str = "jsonl") -> QuestionSet:
    suite = asking(f"questions: ../{name}, questions_format: {form}")
    (suite.files[0].parents[1] / name).write_text(text)
    return questions.load(suite.request, suite)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "set.jsonl:2: this is no JSON"),
        ("[]", "set.jsonl:2: expected an object"),
        (json.dumps({**GOOD, "id": "b", "anser": 2}), "set.jsonl:2: there is no key 'anser'; did you mean 'answer'?"),
        (json.dumps({**GOOD, "id": 7}), "set.jsonl:2: id is 7; give a text"),
        (json.dumps({**GOOD, "id": "b", "question": " "}), "set.jsonl:2: question is ' '; give a text"),
        (json.dumps({**GOOD, "id": "b", "kind": "number"}), "set.jsonl:2: kind 'number'"),
        (json.dumps({**GOOD, "id": "b", "answer": None}), "set.jsonl:2: answer is missing; give a number"),
        (json.dumps({**GOOD, "id": "b", "answer": True}), "set.jsonl:2: answer is True; give a number"),
        (json.dumps({**GOOD, "id": "b", "kind": "exact", "answer": None}), "set.jsonl:2: answer is missing; give a text"),
        (json.dumps({**GOOD, "id": "b", "kind": "exact", "answer": "what is up"}), "set.jsonl:2: answer 'what is up' would be wrong itself: 'up' is taken from it"),
        (json.dumps({**GOOD, "id": "b", "kind": "exact", "answer": "New\nYork"}), "set.jsonl:2: answer 'New York' would be wrong itself: 'york' is taken"),
        (json.dumps({**GOOD, "id": "b", "kind": "exact", "answer": "!!!"}), "set.jsonl:2: answer '!!!' would be wrong itself: nothing can be taken"),
        (json.dumps({**GOOD, "id": "b", "answer": "1 000"}), "set.jsonl:2: answer '1 000' is no number"),
        (json.dumps({**GOOD, "id": "b", "answer": 3}), "set.jsonl:2: the question is that of line 1, where its answer is '2' and not '3'; remove one"),
        (json.dumps({**GOOD, "id": "b", "answer": "two"}), "set.jsonl:2: answer 'two' is no number"),
        (json.dumps({**GOOD, "id": "b", "choices": ["x", "y"]}), "set.jsonl:2: choices stand at a question of the kind numeric"),
        (json.dumps({**GOOD, "id": "b", "kind": "choice"}), "set.jsonl:2: choices of the kind choice: expected a list of 2 to 10"),
        (json.dumps({**GOOD, "id": "b", "kind": "choice", "choices": ["x", "x"], "answer": "A"}), "set.jsonl:2: a choice stands there twice"),
        (json.dumps({**GOOD, "id": "b", "kind": "choice", "choices": ["x", "y"], "answer": "C"}), "set.jsonl:2: answer 'C' is none of the letters A, B"),
        (json.dumps({**GOOD, "id": "b", "category": 3}), "set.jsonl:2: category is 3"),
        ('{"id": "b", "id": "c"}', "set.jsonl:2: this is no JSON: the key 'id' stands twice"),
        (json.dumps(GOOD), "set.jsonl:2: id 'a' is also that of line 1; give each question one of its own"),
    ],
)  # fmt: skip
def test_a_line_that_is_no_question_is_told_with_its_place(asking, line: str, told: str) -> None:
    with pytest.raises(UsageError) as error:
        read(asking, "set.jsonl", f"{json.dumps(GOOD)}\n{line}\n")
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_a_question_may_stand_twice_with_one_answer_and_again_with_other_choices(asking) -> None:
    choice = {"kind": "choice", "question": "Which flies?", "choices": ["a fish", "an eagle"], "answer": "B"}
    lines = [
        GOOD, {**GOOD, "id": "b", "answer": "2.0"}, {**choice, "id": "c"},
        {**choice, "id": "d", "choices": ["a gull", "a hen"], "answer": "A"},
    ]  # fmt: skip
    assert len(read(asking, "set.jsonl", "\n".join(map(json.dumps, lines))).questions) == 4


def test_an_empty_set_and_a_missing_one_are_told(asking) -> None:
    with pytest.raises(UsageError, match=r"set\.jsonl: holds no questions"):
        read(asking, "set.jsonl", "\n\n")
    with pytest.raises(UsageError, match="there is no question set 'basic'; did you mean 'basics'"):
        questions.sets(asking("questions: basic"))
    with pytest.raises(UsageError, match=r"there is no file \./none\.jsonl, as seen from suites/"):
        questions.sets(asking("questions: ./none.jsonl"))
    with pytest.raises(UsageError, match="gsm8k do not come with the package"):
        questions.sets(asking("questions: test, questions_format: gsm8k"))
    bad = asking("questions: ./bad.jsonl")
    (bad.files[0].parent / "bad.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"bad\.jsonl: cannot be read as questions"):
        questions.sets(bad)


def test_gsm8k_is_read_as_it_is_published(asking) -> None:
    lines = [
        {"question": "Many eggs?", "answer": "9 * 2 = <<9*2=18>>18\n#### 18"},
        {"question": "Money?", "answer": "So\n#### 70,000"},
    ]
    found = read(asking, "test.jsonl", "\n".join(map(json.dumps, lines)), "gsm8k").questions
    assert [(q.id, q.kind, q.answer) for q in found] == [("1", "numeric", "18"), ("2", "numeric", "70,000")]
    assert grade("numeric", "That makes $70000.", found[1].answer)[1]
    with pytest.raises(UsageError, match=r"test\.jsonl:1: answer has no result behind '####'"):
        read(asking, "test.jsonl", json.dumps({"question": "q", "answer": "18"}), "gsm8k")


def test_mmlu_is_read_as_it_is_published(asking) -> None:
    text = '"Which, of\nthese?",one,"two ""quoted""",three,four,B\nPlain?,1,2,3,4,D\n'
    found = read(asking, "anatomy_test.csv", text, "mmlu").questions
    assert [(q.id, q.choices[1], q.answer, q.category) for q in found] == [
        ("anatomy_test-1", 'two "quoted"', "B", "anatomy_test"), ("anatomy_test-3", "2", "D", "anatomy_test"),
    ]  # fmt: skip
    with pytest.raises(UsageError, match=r"anatomy_test\.csv:2: 3 columns where MMLU has 6"):
        read(asking, "anatomy_test.csv", "Plain?,1,2,3,4,D\na,b,c\n", "mmlu")
    with pytest.raises(UsageError, match=r"anatomy_test\.csv:1: answer 'E' is none of the letters A, B, C, D"):
        read(asking, "anatomy_test.csv", "Plain?,1,2,3,4,E\n", "mmlu")


def test_a_choice_is_asked_with_its_letters() -> None:
    asked = Question(id="a", kind="choice", question="Which?", choices=("x", "y"), answer="B").text
    assert asked.splitlines()[:3] == ["Which?", "A. x", "B. y"]


def test_the_first_so_many_after_a_shuffle_are_asked_at_every_condition(asking) -> None:
    def ids(seed: int, count: int) -> list[str]:
        suite = asking(
            f"questions: own, questions_count: {count}", 40, f"vary: {{parallel: [1, 2]}}\nprotocol: {{seed: {seed}}}"
        )
        known = questions.sets(suite)
        drawn = [[q.id for q in questions.of(suite.setting(c), known)] for c in suite.conditions]
        assert drawn[0] == drawn[1]
        return drawn[0]

    assert len(set(ids(1, 20))) == 20
    assert ids(1, 20) == ids(1, 30)[:20]
    assert ids(1, 20) != ids(2, 20)


@pytest.mark.parametrize(
    ("keys", "count", "told"),
    [
        ("questions: own", 40, "parallel=8 needs 64 questions for 8 slots, 8 each so that the end of the loop weighs little; the set own has 40"),
        ("questions: own, questions_count: 63", 80, "parallel=8 needs 64 questions for 8 slots, 8 each .* questions_count asks 63: raise it"),
        ("questions: own, questions_count: 81", 80, "81 questions are asked for, own has 80"),
    ],
)  # fmt: skip
def test_too_few_questions_for_the_slots_are_refused_before_anything_runs(
    asking, keys: str, count: int, told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        questions.sets(asking(keys, count, "vary: {parallel: [1, 8]}"))


def test_just_enough_questions_will_do(asking) -> None:
    assert questions.sets(asking("questions: own", 64, "vary: {parallel: [1, 8]}"))
    assert questions.sets(asking("prompt: short")) == {}


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("questions: own, lengths: [8]", r"graded\.yaml:4: request\.lengths: it has no meaning beside questions"),
        ("questions: own, prompt_text: Why", r"request\.prompt_text: it has no meaning beside questions"),
        ("questions: own, identical: true", r"request\.identical: it has no meaning beside questions"),
        ("questions_count: 8", r"graded\.yaml:4: request\.questions_count: it has no effect without questions"),
        ("questions_format: mmlu", r"request\.questions_format: it has no effect without questions"),
    ],
)
def test_keys_without_a_meaning_are_refused(asking, keys: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        asking(keys)


def test_graded_figures_are_told_of_as_unmeasured_without_questions(asking) -> None:
    names = {"energy_per_correct_j", "accuracy", "correct", "answered"}
    assert not names & set(asking("questions: own").undefined)
    assert "state request.questions" in asking("prompt: short").undefined["accuracy"]
    assert names < set(asking("prompt: short").undefined)


def test_the_files_of_a_projects_own_questions_belong_to_what_is_registered(asking, tmp_path: Path) -> None:
    suite = asking("questions: own")
    assert [path.name for path in questions.own_files(suite, tmp_path)] == ["own.jsonl"]
    assert questions.own_files(suite, tmp_path / "elsewhere") == []
    assert questions.own_files(asking("questions: none"), tmp_path) == []


# The set that comes with the package


@pytest.fixture(scope="module")
def basics() -> tuple[Question, ...]:
    suite = session.load_suite(BASICS.parents[1] / "correct-small.yaml")
    return next(iter(questions.sets(suite).values())).questions


def test_the_set_has_200_different_questions_of_every_kind(basics) -> None:
    assert len(basics) == len({q.question for q in basics}) == 200
    assert set(Counter(q.kind for q in basics)) == {"choice", "numeric", "exact"}
    assert all(q.category for q in basics)


def test_letters_of_right_choices_are_spread(basics) -> None:
    counts = Counter(q.answer for q in basics if q.kind == "choice")
    assert max(counts.values()) - min(counts.values()) <= 1


OPERATIONS: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "times": lambda a, b: a * b,
}  # fmt: skip


def computed(question: Question) -> str | None:
    """The answer worked out from the words of the question; `None` where it is a matter of knowledge."""
    text = question.question
    numbers = [Fraction(n) for n in re.findall(r"-?\d+", text.replace(" - ", " minus "))]
    if match := re.fullmatch(r"What is \d+ (\+|-|times) \d+\?", text):
        return str(OPERATIONS[match[1]](*numbers))
    if match := re.fullmatch(r"Which number is (larger|smaller): .*", text):
        return str(max(numbers) if match[1] == "larger" else min(numbers))
    if text.startswith("Which number comes next"):
        steps = {b - a for a, b in itertools.pairwise(numbers)}
        assert len(steps) == 1
        return str(numbers[-1] + steps.pop())
    if match := re.fullmatch(r"How many letters are in the word (\w+)\?", text):
        return str(len(match[1]))
    if match := re.fullmatch(r"What is the first letter of the word (\w+)\?", text):
        return match[1][0]
    return None


def test_every_answer_that_can_be_worked_out_is_right(basics) -> None:
    checked = [(q, answer) for q in basics if (answer := computed(q)) is not None]
    assert len(checked) == 125
    assert [q.id for q, answer in checked if q.answer != answer] == []


def test_every_right_answer_is_graded_as_right_and_no_other(basics) -> None:
    for q in basics:
        assert grade(q.kind, q.answer, q.answer, q.choices)[1], q.id
        wrong = {
            "numeric": str(Fraction(number(q.answer) or 0) + 1),
            "choice": "A" if q.answer != "A" else "B",
            "exact": "nothing",
        }[q.kind]
        assert not grade(q.kind, wrong, q.answer, q.choices)[1], q.id
        if q.kind == "exact":
            assert normal(q.answer) == q.answer.lower()
    assert not any(math.isnan(float(number(q.answer) or 0)) for q in basics if q.kind == "numeric")
