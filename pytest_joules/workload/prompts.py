"""Prompts, and sets of distinct prompts of equal length."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence

from pytest_joules.errors import EngineError
from pytest_joules.suite import Request

NAMED = {
    "short": "Explain in a few plain sentences why the sky looks blue at noon and red in the evening.",
}
"""Prompts a suite can ask for by name; `Request.prompt` lists the names."""

_NUMBERS = range(100, 1000)


def text_of(asked: Request | str) -> str:
    """The text that a suite's requests ask, or the text of a named prompt."""
    if isinstance(asked, str):
        return NAMED[asked]
    return NAMED[asked.prompt] if asked.prompt_text is None else asked.prompt_text


def numbered(tokenize: Callable[[str], Sequence[int]], text: str, count: int, first: int) -> list[list[int]]:
    """Distinct prompts that differ in a number before the text and have the same number of tokens.

    Args:
        tokenize: the model's own tokenizer.
        count: how many.
        first: how many such prompts were given out before; those are not given again before all have been used.

    Raises:
        EngineError: the tokenizer gives too few prompts of one length.
    """
    sample = {
        number: len(tokenize(f"Question {number}. {text}")) for number in (_NUMBERS[0], _NUMBERS[-1], 457, 613, 888)
    }
    length = Counter(sample.values()).most_common(1)[0][0]
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
