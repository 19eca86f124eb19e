import typing
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_joules.errors import EngineError, UsageError
from pytest_joules.suite import Request, Suite, load
from pytest_joules.workload import prompts
from pytest_joules.workload.prompts import NAMED, numbered, text_of


def by_character(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def odd_numbers_longer(text: str) -> list[int]:
    """A tokenizer to which every odd number is one token longer."""
    number = int("".join(letter for letter in text.split(".")[0] if letter.isdigit()))
    return [number, len(text.split()[0]), *([0] if number % 2 else [])]


def as_text(tokens: list[int]) -> str:
    return "".join(map(chr, tokens))


def test_named_prompts_and_texts_of_ones_own() -> None:
    assert text_of("short") == NAMED["short"]
    assert text_of(Request()) == NAMED["short"]
    assert text_of(Request(prompt_text="Why is the sky blue?")) == "Why is the sky blue?"


def test_a_suite_can_name_every_prompt_and_no_other() -> None:
    assert set(typing.get_args(typing.get_type_hints(Request)["prompt"])) == set(NAMED)


@pytest.fixture
def asking(tmp_path: Path) -> Callable[[str], Suite]:
    """A suite with such requests."""

    def build(request: str) -> Suite:
        path = tmp_path / "asks.yaml"
        path.write_text(f"question: Which prompt?\nmodel: m\nrequest: {{{request}}}\n")
        return load(path)

    return build


def test_a_misspelt_prompt_is_no_text(asking) -> None:
    with pytest.raises(
        UsageError,
        match=r"asks\.yaml:3: request\.prompt: should be 'short' or 'code', not 'shortt'; did you mean 'short'\?",
    ):
        asking("prompt: shortt")
    with pytest.raises(UsageError, match=r"prompt: should be 'short' or 'code', not 'Why\?'"):
        asking("prompt: 'Why?'")


def test_a_text_of_ones_own_stands_under_its_own_key(asking) -> None:
    suite = asking("prompt_text: 'Why, indeed?', stream: true, closed_loop: true")
    asked = suite.setting({}).request
    assert text_of(asked) == "Why, indeed?"
    assert (asked.stream, asked.closed_loop) == (True, True)
    assert (Request().stream, Request().closed_loop) == (False, False)
    with pytest.raises(UsageError, match=r"prompt_text: .*at least 1 character"):
        asking("prompt_text: ''")


def test_prompts_are_distinct_and_equally_long() -> None:
    made = numbered(by_character, "Why?", 64, 0)
    assert len(made) == 64
    assert len({tuple(prompt) for prompt in made}) == 64
    assert len({len(prompt) for prompt in made}) == 1
    assert all(as_text(prompt).endswith(". Why?") for prompt in made)


def test_numbers_of_another_length_are_left_out() -> None:
    made = numbered(odd_numbers_longer, "Why?", 40, 0)
    assert len({len(prompt) for prompt in made}) == 1
    assert len({prompt[0] for prompt in made}) == 40


def test_the_usual_length_is_taken_and_no_more_is_tokenized_than_need_be() -> None:
    asked: list[str] = []

    def first_is_odd(text: str) -> list[int]:
        asked.append(text)
        return [0] * ("100" in text) + by_character(text)

    made = numbered(first_is_odd, "Why?", 4, 0)
    assert [as_text(prompt) for prompt in made] == [f"Question {n}. Why?" for n in (101, 102, 103, 104)]
    assert len(asked) == 5 + 5


@pytest.mark.parametrize("tokenize", [by_character, odd_numbers_longer])
def test_what_was_given_out_before_is_not_given_again(tokenize) -> None:
    first, second, third = (numbered(tokenize, "Why?", 30, first) for first in (0, 30, 60))
    assert len({tuple(prompt) for prompt in first + second + third}) == 90
    assert numbered(tokenize, "Why?", 90, 0) == first + second + third


def test_they_come_round_again_only_when_all_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "_NUMBERS", range(100, 105))
    # "Request", "Example" and "Problem" are shorter than "Question": five prompts in all.
    pool = numbered(by_character, "Why?", 5, 0)
    assert numbered(by_character, "Why?", 5, 5) == pool
    assert numbered(by_character, "Why?", 3, 4) == [pool[4], pool[0], pool[1]]
    with pytest.raises(EngineError, match="the tokenizer gives only 5 of 6 prompts of 18 tokens; set identical: true"):
        numbered(by_character, "Why?", 6, 0)


def test_a_tokenizer_that_makes_them_all_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "_NUMBERS", range(100, 110))
    with pytest.raises(EngineError, match="gives only 1 of 2 prompts of 3 tokens"):
        numbered(lambda _: [1, 2, 3], "Why?", 2, 0)
