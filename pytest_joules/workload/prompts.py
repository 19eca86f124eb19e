"""Prompts, and sets of distinct prompts of equal length."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence

from pytest_joules.errors import EngineError
from pytest_joules.suite import Request

NAMED = {
    "short": "Explain in a few plain sentences why the sky looks blue at noon and red in the evening.",
    "code": "Write a Python class that keeps a sorted list of appointments, with methods to add, remove and find one, and tests.",
}
"""Prompts a suite can ask for by name; `Request.prompt` lists the names."""

_NUMBERS = range(100, 1000)

_SENTENCES = (
    "The harbour wakes before the town does, and gulls follow every boat that comes home with nets full of herring.",
    "A clock maker once explained that brass wears slower than steel when both are kept clean and lightly oiled.",
    "Snow lay on the northern slopes until June, while the southern meadows were already yellow with buttercups.",
    "Her grandmother measured flour by the handful, yet each loaf rose to precisely the same height as the last.",
    "Engineers strung the bridge in spring, because cold cables shrink and would have pulled the towers inward.",
    "Most letters in that archive concern money, though a few describe comets, storms and unusually large fish.",
    "To sharpen a chisel, hold it flat against the stone, draw it toward you, then turn it and repeat patiently.",
    "Children on our street invented a game with chalk, two buckets and rules nobody could remember overnight.",
    "Copper conducts heat so well that an empty kettle left over flame glows red within only several minutes.",
    "When rivers flood, silt settles where water slows, which is why old valleys have such deep and fertile soil.",
    "The orchestra tuned twice that evening: first in the warm rehearsal room, again beneath the draughty dome.",
    "Beekeepers watch the weather closely; a wet August leaves hives hungry, however rich the clover looked.",
    "Under the desk stood seven boxes of maps, sorted by coast, by scale, and finally by how often anyone asked.",
    "Glass is neither quite solid nor liquid, a question that physicists have argued about for two centuries.",
    "He planted apples for his grandchildren, walnuts for theirs, and radishes because he was hungry right now.",
    "Night trains cross three borders here, so passports, tickets and sandwiches are checked in every language.",
)
"""The text of prompts of a stated length. It has many different words, so that as many prompts can begin differently."""

_PREFIX = "What follows was written down in one place and is given in full, with every sentence numbered."
"""How a shared prefix begins."""

_STRIDE = 37
"""By so many tokens the text of each prompt begins later than that of the one before."""


def text_of(asked: Request | str) -> str:
    """The text that a suite's requests ask, or the text of a named prompt."""
    if isinstance(asked, str):
        return NAMED[asked]
    return NAMED[asked.prompt] if asked.prompt_text is None else asked.prompt_text


def usual_length(tokenize: Callable[[str], Sequence[int]], text: str) -> int:
    """Tokens that most of the numbered prompts of a text have."""
    sample = (len(tokenize(f"Question {number}. {text}")) for number in (_NUMBERS[0], _NUMBERS[-1], 457, 613, 888))
    return Counter(sample).most_common(1)[0][0]


def numbered(tokenize: Callable[[str], Sequence[int]], text: str, count: int, first: int) -> list[list[int]]:
    """Distinct prompts that differ in a number before the text and have the same number of tokens.

    Args:
        tokenize: the model's own tokenizer.
        count: how many.
        first: how many such prompts were given out before; those are not given again before all have been used.

    Raises:
        EngineError: the tokenizer gives too few prompts of one length.
    """
    length = usual_length(tokenize, text)
    prompts: list[list[int]] = []
    # After all numbers are used up the text is asked with another opening word.
    for opening, number in itertools.product(("Question", "Request", "Example", "Problem"), _NUMBERS):
        tokens = list(tokenize(f"{opening} {number}. {text}"))
        if len(tokens) == length and tokens not in prompts:
            prompts.append(tokens)
        if len(prompts) == first + count:
            return prompts[first:]
    if len(prompts) < count:
        raise EngineError(
            f"the tokenizer gives only {len(prompts)} of {count} prompts of {length} tokens; set identical: true"
        )
    return [prompts[(first + index) % len(prompts)] for index in range(count)]


def of_length(
    tokenize: Callable[[str], Sequence[int]], length: int, count: int, *, shared: int = 0, identical: bool = False
) -> list[list[int]]:
    """Prompts of exactly so many tokens: numbered sentences, after a prefix that all have in common where one is asked for.

    After the prefix no two of them begin with the same token, as long as they are fewer than the text has different tokens, which are
    over a hundred. A token that the model wants at the start of every text is part of the prefix, and shared in any case.

    Args:
        tokenize: the model's own tokenizer.
        length: tokens of each prompt.
        count: how many.
        shared: tokens at the start that are the same in all, the opening one of the model among them; less than `length`.
        identical: all are the same prompt.

    Returns:
        `count` lists of `length` token ids.
    """
    start = _opening(tokenize)
    body = _numbered_sentences(tokenize, max(length, _STRIDE) + 1, len(start))
    # Without the numbers of its sentences, whose digits would be few different tokens.
    openers = list(dict.fromkeys(tokenize(" ".join(_SENTENCES))[len(start) :]))
    prefix = [*start, *tokenize(_PREFIX)[len(start) :], *body][:shared] or list(start)
    prompts = []
    for number in [0] * count if identical else range(count):
        turned = number * _STRIDE % len(body)
        own = [openers[number % len(openers)], *body[turned:], *body[:turned]]
        prompts.append([*prefix, *own][:length])
    return prompts


def _opening(tokenize: Callable[[str], Sequence[int]]) -> list[int]:
    """The tokens that a model wants at the start of every text; most want one or none."""
    texts = [list(tokenize(sentence)) for sentence in _SENTENCES]
    # Sentences begin with different words, so that what they all begin with is none.
    return texts[0][: shared_tokens(texts)]


def _numbered_sentences(tokenize: Callable[[str], Sequence[int]], least: int, opening: int) -> list[int]:
    """Tokens of the text, its sentences numbered and repeated until there are at least so many of them."""
    sentences = len(_SENTENCES)
    while True:
        text = " ".join(f"{number + 1}. {_SENTENCES[number % len(_SENTENCES)]}" for number in range(sentences))
        tokens = list(tokenize(text)[opening:])
        if len(tokens) >= least:
            return tokens
        sentences *= 2


def shared_tokens(prompts: Sequence[Sequence[int]]) -> int:
    """How many tokens at their start all prompts have in common."""
    alike = itertools.takewhile(lambda tokens: len(set(tokens)) == 1, zip(*prompts, strict=False))
    return sum(1 for _ in alike)
