from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_joules.workload.grading import LETTERS, chosen, grade, last_number, named, normal, number

CITIES = ("Lyon", "Paris", "Nice", "Lille")


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        ("B. Paris", "B"),
        ("(B)", "B"),
        ("**B**", "B"),
        ("The answer is B.", "B"),
        ("Answer: B", "B"),
        ("Many would say A. The answer is B, because A is another.", "B"),
        ("My first answer was C. My final answer is B.", "B"),
        ("A. Lyon\n\nThe correct answer is B. Paris", "B"),
        ("I think that it is B", "B"),
        ("It is Paris, of course.", "B"),
        ("paris", "B"),
        ("A city in France is Paris.", "B"),
        ("A is right", "A"),
        ("The answer: A", "A"),
        ("A", "A"),
    ],
)
def test_a_choice_is_read_as_a_person_would_read_it(text: str, letter: str) -> None:
    assert chosen(text, CITIES) == letter


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I do not know.",
        "It is B or C.",
        "Lyon or Paris.",
        "b",
        "E",
        "A city in France.",
        "B2 and AB",
        "Paris's B-side, or C",
        "The answer?",
    ],
)
def test_a_text_that_chooses_nothing_or_several_is_no_answer(text: str) -> None:
    assert chosen(text, CITIES) is None
    assert grade("choice", text, "B", CITIES) == (None, False)


def test_letters_go_as_far_as_the_choices_do() -> None:
    assert chosen("D", ("yes", "no")) is None
    assert chosen("The answer is J", tuple("0123456789")) == "J"
    assert len(LETTERS) == 10


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42),
        ("The answer is 42.", 42),
        ("12 + 30 = 42", 42),
        ("5 apples, then 42 apples", 42),
        ("1,234,567", 1234567),
        ("$1,234.50 in all", Fraction("1234.5")),
        ("-7", -7),
        ("\u22127 degrees", -7),
        ("5 - 7", 7),
        ("-$7", -7),
        ("50-7", 7),
        ("0.25", Fraction(1, 4)),
        (".5", Fraction(1, 2)),
        ("3/4 of it", Fraction(3, 4)),
        ("1e3", 1000),
        ("2.5E-1", Fraction(1, 4)),
        ("50%", 50),
        ("1, 2, 3", 3),
        ("12,34", 34),
        ("so 72 #### 18 and not 19", 18),
        ("7 of 0", 0),
        ("7/0 is not 8/0, but 3", 3),
        ("007", 7),
    ],
)
def test_the_last_number_of_a_text_is_its_answer(text: str, value: Fraction) -> None:
    found = last_number(text)
    assert found is not None
    assert found[1] == value


@pytest.mark.parametrize("text", ["", "none", "forty-two", "B12", "7/0", "9" * 5000, "1" + "0" * 60])
def test_a_text_without_a_number_that_means_anything_is_no_answer(text: str) -> None:
    assert grade("numeric", text, "42") == (None, False)


def test_numbers_are_equal_whatever_they_are_written_like() -> None:
    for text in ("0.5", "1/2", ".50", "+0.5", "5e-1"):
        assert grade("numeric", text, "0.5")[1]
    assert not grade("numeric", "0.5000001", "0.5")[1]


@pytest.mark.parametrize("text", ["42 apples", "1,23", "4 2", "", "x", "1/0"])
def test_an_answer_that_is_more_than_a_number_is_none(text: str) -> None:
    assert number(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "Paris", "paris.", "  PARIS\n", '"Paris"', "**Paris**", "The capital of France is Paris.", "Answer: Paris",
        "Let me think.\n\nThe city is: Paris", "the Paris", "It is Paris\n\n", "Ｐａｒｉｓ",
    ],
)  # fmt: skip
def test_a_word_is_right_with_whatever_stands_around_it(text: str) -> None:
    assert grade("exact", text, "Paris") == ("paris", True)


@pytest.mark.parametrize(
    "text", ["Paris is the capital of France.", "Paris or Lyon", "Pari", "Is it Lyon?", "Paris\nNo, Lyon"]
)
def test_a_word_among_others_is_wrong(text: str) -> None:
    extracted, right = grade("exact", text, "Paris")
    assert extracted
    assert not right


def test_an_empty_answer_is_none_and_never_right() -> None:
    assert grade("exact", " \n.", "...") == (None, False)
    assert named('The first letter is "A".') == normal("a") == "a"


def test_what_was_extracted_is_kept_short() -> None:
    extracted, _ = grade("exact", "word " * 500, "word")
    assert extracted is not None
    assert len(extracted) <= 40


@given(st.text(max_size=200), st.sampled_from(["choice", "numeric", "exact"]))
def test_any_text_can_be_graded(text: str, kind: str) -> None:
    extracted, right = grade(kind, text, "B" if kind == "choice" else "42", CITIES)  # type: ignore[arg-type]
    assert extracted is not None or not right


@given(st.integers(-(10**9), 10**9), st.sampled_from(["{}", "It is {}.", "1 + 1, so {}", "{:,} euros"]))
def test_every_whole_number_is_found(value: int, frame: str) -> None:
    found = last_number(frame.format(value))
    assert found is not None
    assert found[1] == value
