"""What the questions of a graded set, or the prompts that tokens were drafted for, being so few, leave open. Pure.

Passes are no samples of questions: a greedy model gives the same answers in each of them. How far a share of right answers, and an energy
per right answer, could have come out otherwise is a matter of which questions were asked. So the questions are weighted anew by
chance (a Bayesian bootstrap), with the same weights at every condition and in every run that asked them, so that pairs stay pairs.

It is so with drafts too: how many of them are accepted is a matter of which prompts were answered. Their windows are few prompts long, so
that weights alone would scatter too little: what they do is stretched as Student's t is, and to it comes what the count of tokens leaves open.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_joules.records import PROMPT_ROUNDS, Window

_PLAIN, _WARY = 1.0, 0.6
"""Shapes of the gamma distribution of a question's weight. At 1 the bootstrap is the usual one, as intervals have it. Verdicts rest on the
smaller one, which scatters shares a third wider: with it a claim that is false by a hair is called clear in under 4 of 100 cases, for 40 to
200 questions of which 5 to 95 % are answered rightly."""
_UNSEEN = 0.5
"""Of the gamma distribution of the weight of a right and a wrong answer that no question gave, for each condition by itself: where all
answers were right, or all alike at two conditions, nothing else would tell that they need not be."""
_TOGETHER = 3.0
"""Of so many drafted tokens one is counted as independent: those behind the first wrong one of a draft are not accepted, right or wrong.
With it, in simulations of 3 to 10 prompts, drafts of 3 and 16 tokens and acceptances of 10 to 90 %, a claim that is false by a hair is called
clear in up to 8 of 100 cases, mostly in under 4; if a token's chance to be accepted goes from a third to nine tenths from prompt to prompt, in up
to 16, all of them claims that few accepted tokens are more."""
_FARTHEST = 50.0
"""Of a logarithm: with two prompts Student's t has no bounds."""
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


@dataclass(frozen=True, slots=True)
class Drafts:
    """What became of the drafts for one prompt at one condition: means over the answers to it.

    Attributes:
        drafted, accepted: tokens.
        passes: over the weights, of which each gave one token beside the accepted ones.
    """

    drafted: float
    accepted: float
    passes: float


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


def drafts_of_windows(windows: Sequence[Window]) -> tuple[Drafts, ...]:
    """What became of the drafts for each prompt; empty where nothing was drafted."""
    found: dict[object, list[tuple[int, int, int]]] = {}
    for window in windows:
        for request in window.requests:
            # Answers to one prompt are no further evidence of other prompts.
            prompt = request.grade.question if request.grade else (request.slot, request.round % PROMPT_ROUNDS)
            accepted = min(request.draft_accepted_n, request.draft_n)
            found.setdefault(prompt, []).append((request.draft_n, accepted, max(1, request.predicted_n - accepted)))
    if not any(drafted for answers in found.values() for drafted, _, _ in answers):
        return ()
    return tuple(
        Drafts(*(math.fsum(counts) / len(counts) for counts in zip(*answers, strict=True)))
        for answers in found.values()
    )


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


def draft_factors(cells: Sequence[Sequence[Drafts]], rng: np.random.Generator, tables: int) -> dict[str, np.ndarray]:
    """What acceptance and tokens per step of each cell are multiplied by, together: (`tables`, cells) for each metric.

    Args:
        cells: for each what became of its drafts; none leaves its figures as they are.
    """
    found = {name: np.ones((tables, len(cells))) for name in ("draft_acceptance", "tokens_per_step")}
    for place, drafts in enumerate(cells):
        if not drafts:
            continue
        drafted, accepted, passes = np.array([[one.drafted, one.accepted, one.passes] for one in drafts]).T
        # Half a token each way, so that where all were accepted, or none, it is not thought that they must be.
        right, wrong = accepted.sum() + _UNSEEN, (drafted - accepted).sum() + _UNSEEN
        length = drafted.sum() / passes.sum()
        odds = np.log(rng.gamma(right / _TOGETHER, size=tables) / rng.gamma(wrong / _TOGETHER, size=tables))
        lengths = np.zeros(tables)
        if (dof := len(drafts) - 1) > 0:
            weights = rng.gamma(_WARY, size=(tables, len(drafts)))
            weights /= weights.mean(axis=1, keepdims=True)
            stretched = np.sqrt((dof + 1) / rng.chisquare(dof, size=tables))
            of_prompts = (weights @ accepted + _UNSEEN) / (weights @ (drafted - accepted) + _UNSEEN)
            odds += stretched * np.log(of_prompts * wrong / right)
            lengths = stretched * np.log((weights @ drafted) / (weights @ passes) / length)
        share = 1.0 / (1.0 + np.exp(-np.clip(odds, -_FARTHEST, _FARTHEST)))
        if accepted.sum() > 0:
            found["draft_acceptance"][:, place] = share / (accepted.sum() / drafted.sum())
        drawn = 1.0 + share * length * np.exp(np.clip(lengths, -_FARTHEST, _FARTHEST))
        found["tokens_per_step"][:, place] = drawn / (1.0 + accepted.sum() / passes.sum())
    return found


def interval(items: Mapping[str, Item]) -> tuple[float, float] | None:
    """Between which multiples of the measured one the energy per right answer lies in 95 % of the draws; `None` without a right one."""
    if not any(item.right for item in items.values()):
        return None
    drawn = factors([items], np.random.default_rng(0), _DRAWS, _PLAIN)["energy_per_correct_j"][:, 0]
    return _middle(drawn)


@dataclass(frozen=True, slots=True)
class Paired:
    """One condition against another, question by question, each figure with its 95 % interval behind it.

    Attributes:
        energy: what its energy per right answer is multiplied by against the measured ratio, as an interval; `None` without a right answer.
        accuracy: difference of the shares of right answers.
    """

    energy: tuple[float, float] | None
    accuracy: tuple[float, float, float]


def paired(first: Mapping[str, Item], other: Mapping[str, Item]) -> Paired:
    """How far the questions leave open what a condition is against the `first` one: in each draw they weigh the same at both."""
    drawn = factors([first, other], np.random.default_rng(0), _DRAWS, _PLAIN)
    shares = [math.fsum(one.right for one in items.values()) / len(items) for items in (first, other)]
    differences = drawn["accuracy"][:, 1] * shares[1] - drawn["accuracy"][:, 0] * shares[0]
    joules = drawn["energy_per_correct_j"]
    return Paired(
        _middle(joules[:, 1] / joules[:, 0]) if all(shares) else None, (shares[1] - shares[0], *_middle(differences))
    )


def _middle(drawn: np.ndarray) -> tuple[float, float]:
    """Between what 95 % of the draws lie."""
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float(low), float(high)


@functools.lru_cache(maxsize=4)
def _weights(questions: tuple[str, ...], tables: int, shape: float) -> np.ndarray:
    """(`tables`, questions): each question's draws follow from its id, wherever it was asked."""
    return np.stack(
        [np.random.default_rng(zlib.crc32(question.encode())).gamma(shape, size=tables) for question in questions],
        axis=1,
    )
