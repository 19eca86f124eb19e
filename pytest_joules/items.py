"""What the questions of a graded set, being so few, leave open. Pure.

Passes are no samples of questions: a greedy model gives the same answers in each of them. How far a share of right answers, and an energy
per right answer, could have come out otherwise is a matter of which questions were asked. So the questions are weighted anew by
chance (a Bayesian bootstrap), with the same weights at every condition and in every run that asked them, so that pairs stay pairs.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_joules.records import Window

_PLAIN, _WARY = 1.0, 0.6
"""Shapes of the gamma distribution of a question's weight. At 1 the bootstrap is the usual one, as intervals have it. Verdicts rest on the
smaller one, which scatters shares a third wider: with it a claim that is false by a hair is called clear in under 4 of 100 cases, for 40 to
200 questions of which 5 to 95 % are answered rightly."""
_UNSEEN = 0.5
"""Of the gamma distribution of the weight of a right and a wrong answer that no question gave, for each condition by itself: where all
answers were right, or all alike at two conditions, nothing else would tell that they need not be."""
_DRAWS = 4000
_Z = 1.96
"""Standard deviations of a normal distribution on either side that hold 95 % of it."""


@dataclass(frozen=True, slots=True)
class Item:
    """What became of one question at one condition: means over the windows in which it was asked.

    Attributes:
        right, answered: shares of its answers that were right, and from which an answer could be taken.
        tokens: generated.
    """

    right: float
    answered: float
    tokens: float


def of_windows(windows: Sequence[Window]) -> dict[str, Item]:
    """What became of each question, by its id; empty where nothing was graded."""
    found: dict[str, list[tuple[bool, bool, int]]] = {}
    for window in windows:
        for request in window.requests:
            if (grade := request.grade) is not None:
                found.setdefault(grade.question, []).append(
                    (grade.correct, grade.extracted is not None, request.predicted_n)
                )
    return {
        question: Item(*(math.fsum(values) / len(values) for values in zip(*answers, strict=True)))
        for question, answers in found.items()
    }


def wilson(right: float, asked: int) -> tuple[float, float]:
    """The 95 % interval of a share (E. B. Wilson, 1927): of `right` out of `asked`."""
    share, z2 = right / asked, _Z**2
    middle = (share + z2 / (2 * asked)) / (1 + z2 / asked)
    half = _Z * math.sqrt(share * (1 - share) / asked + z2 / (4 * asked**2)) / (1 + z2 / asked)
    return max(0.0, middle - half), min(1.0, middle + half)


def resolved(asked: int, share: float = 0.5) -> tuple[float, float]:
    """The differences between two conditions that chance gives in 5 % of cases, if their questions had nothing in common.

    Returns:
        (of the shares of right answers; of energy per right answer, as a share of it, energy itself taken as known).
    """
    return _Z * math.sqrt(2 * share * (1 - share) / asked), _Z * math.sqrt(2 * (1 - share) / (share * asked))


def factors(
    cells: Sequence[Mapping[str, Item]], rng: np.random.Generator, tables: int, shape: float = _WARY
) -> dict[str, np.ndarray]:
    """What the graded figures of each cell are multiplied by: (`tables`, cells) for each metric.

    Args:
        cells: for each what became of its questions; none leaves its figures as they are.
        rng: of the answers that no question gave; the questions' weights follow from their ids.
    """
    found = {
        name: np.ones((tables, len(cells))) for name in ("accuracy", "correct", "answered", "energy_per_correct_j")
    }
    for place, items in enumerate(cells):
        if not items:
            continue
        weights = _weights(tuple(sorted(items)), tables, shape)
        right, answered, tokens = np.array(
            [[items[i].right, items[i].answered, items[i].tokens] for i in sorted(items)]
        ).T
        unseen = rng.gamma(_UNSEEN, size=(2, tables))
        whole = weights.sum(axis=1) + unseen.sum(axis=0)
        for names, told in ((("accuracy", "correct"), right), (("answered",), answered)):
            if told.sum() > 0:
                for name in names:
                    found[name][:, place] = (weights @ told + unseen[0]) / whole / told.mean()
        if right.sum() > 0 and tokens.sum() > 0:
            # An answer took as much of the energy as it has of the tokens.
            spent = (weights @ (tokens / tokens.mean()) + unseen.sum(axis=0)) / whole
            found["energy_per_correct_j"][:, place] = spent / found["accuracy"][:, place]
    return found


def interval(items: Mapping[str, Item]) -> tuple[float, float] | None:
    """Between which multiples of the measured one the energy per right answer lies in 95 % of the draws; `None` without a right one."""
    if not any(item.right for item in items.values()):
        return None
    drawn = factors([items], np.random.default_rng(0), _DRAWS, _PLAIN)["energy_per_correct_j"][:, 0]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float(low), float(high)


@functools.lru_cache(maxsize=4)
def _weights(questions: tuple[str, ...], tables: int, shape: float) -> np.ndarray:
    """(`tables`, questions): each question's draws follow from its id, wherever it was asked."""
    return np.stack(
        [np.random.default_rng(zlib.crc32(question.encode())).gamma(shape, size=tables) for question in questions],
        axis=1,
    )
