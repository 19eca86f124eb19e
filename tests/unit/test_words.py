import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_joules.words import duration, nearest, one_line


@pytest.mark.parametrize(
    ("word", "hint"),
    [("paralel", "; did you mean 'parallel'?"), ("parallel", "; did you mean 'parallel'?"), ("colour", ""), ("", "")],
)
def test_the_nearest_word_or_nothing(word: str, hint: str) -> None:
    assert nearest(word, ["parallel", "threads"]) == hint
    assert nearest(word, []) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (41.6, "42 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (3599.4, "59 min 59 s"),
        (3599.6, "1 h 00 min"), (4320, "1 h 12 min"), (90_000, "25 h 00 min"),
    ],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_one_line() -> None:
    assert one_line("  a\n\tb \r\n c ") == "a b c"
    assert one_line("abcdef", 6) == "abcdef"
    assert one_line("abcdefg", 6) == "abcde…"


@settings(max_examples=60, derandomize=True)
@given(st.text(), st.integers(1, 50))
def test_one_line_is_one_line_and_never_longer(text: str, limit: int) -> None:
    line = one_line(text, limit)
    assert len(line) <= limit
    assert len(line.splitlines()) <= 1
