"""What an answer to a question says, and whether that is right. Pure.

The rules are fixed and stated (docs/questions.md): whoever compares two figures must know that both were graded alike.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

Kind = Literal["choice", "numeric", "exact"]

LETTERS = "ABCDEFGHIJ"
"""What choices are called; so many there can be at most."""

_LONGEST = 40
"""Characters of what was extracted, as far as it is kept, and digits of a number that is still looked at."""

_MINUS = str.maketrans({"\u2212": "-", "\u2013": "-"})
_NUMBER = re.compile(
    r"(?<![\w.])(?P<sign>[-+]?)(?:[$€£]\s?)?"
    r"(?P<whole>\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?P<part>\.\d+)?"
    r"(?P<exponent>[eE][-+]?\d{1,2}(?!\w))?(?:\s?/\s?(?P<below>\d+))?"
)
_GSM8K_MARK = "####"
_ARTICLES = ("a", "an", "the")


def grade(kind: Kind, text: str, answer: str, choices: Sequence[str] = ()) -> tuple[str | None, bool]:
    """What a text answers, and whether that is right.

    Args:
        text: all that the model said.
        answer: the right answer: of a choice its letter.
        choices: of a choice what there is to choose from.

    Returns:
        (what was taken for the answer, cut at 40 characters, or `None` where nothing can be; whether it is right).
    """
    if kind == "choice":
        letter = chosen(text, choices)
        return letter, letter == answer
    if kind == "numeric":
        found = last_number(text)
        return (None, False) if found is None else (found[0], found[1] == number(answer))
    said = named(text)
    return said[:_LONGEST] or None, said == normal(answer) != ""


def chosen(text: str, choices: Sequence[str]) -> str | None:
    """The letter that a text chooses; `None` where it chooses none, or several.

    In this order: the first letter that stands alone behind the last "answer"; the letter with which the text begins; the only letter
    that stands alone anywhere; the only choice whose words are in the text.
    """
    letters = LETTERS[: len(choices)]
    # The words A and I begin sentences that choose nothing.
    alone = re.compile(
        rf"(?<![\w'])(?:(?![AI]\s+[a-z])|(?=[AI]\s+(?:is|because|since|as|and)\b))([{letters}])(?![\w'])"
    )
    _, answer, behind = text.rpartition(_last_word(text, "answer"))
    if answer and (found := alone.search(behind)):
        return found[1]
    begins = re.match(rf"[\s(\[*\"']*(?:{alone.pattern})", text)
    if begins:
        return begins[1]
    every = set(alone.findall(text))
    if len(every) == 1:
        return str(every.pop())
    said = f" {normal(text)} "
    told = [letter for letter, choice in zip(letters, choices, strict=True) if f" {normal(choice) or choice} " in said]
    return told[0] if not every and len(told) == 1 else None


def _last_word(text: str, word: str) -> str:
    """A word as it stands in a text where it does last; where it does not, something that is not in it either."""
    found = list(re.finditer(rf"\b{word}\b", text, re.IGNORECASE))
    return found[-1].group() if found else f"\0{word}"


def last_number(text: str) -> tuple[str, Fraction] | None:
    """The last number of a text as it stands there and what it is; behind `####`, where there is such a mark, the first one.

    A number may have a sign, thousands set apart by commas, a decimal point, an exponent, or be a fraction of two whole ones.
    """
    text = text.translate(_MINUS)
    _, mark, behind = text.rpartition(_GSM8K_MARK)
    found = [match for match in _NUMBER.finditer(behind if mark else text) if match["whole"] or match["part"]]
    for match in found if mark else reversed(found):
        if (value := _value(match)) is not None:
            return match.group().strip()[:_LONGEST], value
    return None


def number(text: str) -> Fraction | None:
    """What a text that is one number and nothing else is; `None` for any other."""
    match = _NUMBER.fullmatch(text.strip().translate(_MINUS))
    return _value(match) if match else None


def _value(match: re.Match[str]) -> Fraction | None:
    """The number of a match; `None` for a division by zero and for one that is too long to mean anything."""
    whole, part, below = match["whole"] or "", match["part"] or "", match["below"]
    if not (whole or part) or len(whole + part) > _LONGEST or len(below or "") > _LONGEST or (below and not int(below)):
        return None
    value = Fraction(f"{match['sign']}{whole.replace(',', '') or '0'}{part}{match['exponent'] or ''}")
    return value / int(below) if below else value


def named(text: str) -> str:
    """The word or words that a text gives, as `normal` has them: in its last line, behind the last "is", "are" or colon there."""
    last = next((line for line in reversed(text.splitlines()) if normal(line)), "")
    told = re.split(r"\b(?:is|are)\b|:", last, flags=re.IGNORECASE)
    return next((normal(part) for part in reversed(told) if normal(part)), "")


def normal(text: str) -> str:
    """A text in small letters without punctuation, further spaces, and articles unless there is nothing else."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    words = re.sub(r"[^\w\s]|_", " ", plain).split()
    return " ".join([word for word in words if word not in _ARTICLES] or words)
