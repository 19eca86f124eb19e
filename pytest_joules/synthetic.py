"""Made-up tables on which a rule must be able to fail. Pure.

A prediction that holds on every table that could have come out predicts nothing. It is judged on a family of tables of the
suite's own conditions: flat, falling, rising, with a knee at each condition, and noisy, each over a wide grid of scales.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_joules.prediction import Prediction, judge
from pytest_joules.records import Condition
from pytest_joules.sweep import About, Cell, Sweep

TABLES = 400
"""How many tables the search draws; a rule that never fails in so many cannot fail in practice."""

_ENERGY_MJ = (0.1, 100_000.0)
_TOKENS_PER_S = (0.1, 100_000.0)
_SPREADS = (0.002, 0.01, 0.03, 0.08, 0.25, 0.8)
_SLOPES = (-1.5, -1.0, -0.7, -0.3, -0.05, 0.0, 0.05, 0.3, 1.0)
_KNEE_PENALTIES = (0.0, 0.05, 0.2, 0.8)
_NOISES = (0.0, 0.0, 0.02, 0.1, 0.5)


@dataclass(frozen=True, slots=True)
class Search:
    """What the search found.

    Attributes:
        share_held: share of the tables on which the prediction held.
        broken: the first error other than a failed assertion; empty when there was none.
    """

    share_held: float
    broken: str = ""

    @property
    def cannot_fail(self) -> bool:
        """It held on every table."""
        return not self.broken and self.share_held == 1.0

    @property
    def never_holds(self) -> bool:
        """It failed on every table."""
        return not self.broken and self.share_held == 0.0


def search(
    prediction: Prediction,
    axes: Sequence[str],
    conditions: Sequence[Condition],
    against: tuple[Sequence[str], Sequence[Condition]] | None = None,
    passes: int = 2,
    undefined: Mapping[str, str] | None = None,
) -> Search:
    """Judge a prediction on synthetic tables of its suite's conditions (and of the suite it compares with).

    Args:
        undefined: metrics that the suite does not measure, with the reason; reading one is an error.
    """
    held = 0
    others = tables(*against, passes=2, seed=1) if against else None
    for table in tables(axes, conditions, passes):
        known = _without(table, undefined or {})
        judgement = judge(prediction, known, next(others) if others else None)
        if judgement.word in ("broken", "void"):
            return Search(0.0, judgement.detail)
        held += judgement.word == "held"
    return Search(held / TABLES)


def _without(table: Sweep, undefined: Mapping[str, str]) -> Sweep:
    """The table less the metrics that nothing will be measured for."""
    if not undefined:
        return table
    return table.fresh(
        [
            replace(
                cell,
                passes=tuple({k: v for k, v in figures.items() if k not in undefined} for figures in cell.passes),
                undefined=undefined,
            )
            for cell in table.cells
        ]
    )


def tables(axes: Sequence[str], conditions: Sequence[Condition], passes: int = 2, seed: int = 0) -> Iterator[Sweep]:
    """`TABLES` synthetic tables, the same ones every time."""
    draw = random.Random(seed)
    ranks = _log_ranks(axes, conditions)
    for number in range(TABLES):
        energy = _shape(draw, ranks, number, _ENERGY_MJ, (-1.0, -0.05))
        speed = _shape(draw, ranks, number // 3, _TOKENS_PER_S, (0.05, 1.0))
        spread = draw.choice(_SPREADS)
        cells = [
            _cell(condition, mj, per_s, spread * draw.uniform(0.5, 1.0), passes, draw)
            for condition, mj, per_s in zip(conditions, energy, speed, strict=True)
        ]
        yield Sweep(axes, cells, About(suite="synthetic", basis="synthetic"))


def _log_ranks(axes: Sequence[str], conditions: Sequence[Condition]) -> list[dict[str, float]]:
    """Where each condition stands on each axis: the logarithm of a positive number, else its rank."""
    ranks: list[dict[str, float]] = [{} for _ in conditions]
    for axis in axes:
        values = [condition[axis] for condition in conditions]
        distinct = list(dict.fromkeys(values))
        numeric = all(isinstance(v, int | float) and not isinstance(v, bool) and v > 0 for v in values)
        for rank, value in zip(ranks, values, strict=True):
            rank[axis] = math.log(value) - math.log(min(values)) if numeric else float(distinct.index(value))
    return ranks


def _shape(
    draw: random.Random,
    ranks: Sequence[Mapping[str, float]],
    number: int,
    scale: tuple[float, float],
    usual_slopes: tuple[float, float],
) -> list[float]:
    """Figures over the conditions: a power law per axis, perhaps a knee, perhaps noise, at a random scale."""
    axes = list(ranks[0])
    # Every other table has the shape real machines show, so that rules about usual machines find tables to hold on.
    usual = number % 2 == 0
    slope = {axis: draw.uniform(*usual_slopes) if usual else draw.choice(_SLOPES) for axis in axes}
    knee = ranks[number % len(ranks)] if number % 4 < 2 else None
    penalty = draw.choice(_KNEE_PENALTIES)
    noise = draw.choice(_NOISES)
    level = math.exp(draw.uniform(math.log(scale[0]), math.log(scale[1])))
    figures = []
    for rank in ranks:
        exponent = 0.0
        for axis in axes:
            at = min(rank[axis], knee[axis]) if knee else rank[axis]
            past = rank[axis] - at
            exponent += slope[axis] * at - math.copysign(penalty, slope[axis]) * past
        figures.append(level * math.exp(exponent + draw.gauss(0.0, noise)))
    return figures


def _cell(condition: Condition, mj: float, per_s: float, spread: float, passes: int, draw: random.Random) -> Cell:
    slots = condition.get("parallel", 1)
    slots = slots if isinstance(slots, int) and slots > 0 else 1
    # What is left of the energy above idle, or without the prompt: anything, lest a rule about it could not fail.
    shares = draw.uniform(0.2, 1.0), draw.uniform(0.4, 1.1)
    figures = []
    for index in range(passes):
        # The passes stand symmetrically about the mean, so that the spread is what was drawn.
        off = spread * (index / (passes - 1) - 0.5) if passes > 1 else 0.0
        figures.append(_consistent(mj * (1 + off), per_s * (1 + off * draw.choice((-1, 1))), slots, *shares))
    return Cell(condition=condition, passes=tuple(figures))


def _consistent(mj: float, per_s: float, slots: int, net: float, decode: float) -> dict[str, float]:
    """All metrics of a window that gave `per_s` tokens a second at `mj` each."""
    tokens = 128.0 * slots
    return {
        "energy_per_token_mj": mj,
        "net_energy_per_token_mj": net * mj,
        "decode_energy_per_token_mj": decode * mj,
        "tokens_per_s": per_s,
        "tokens_per_s_per_request": per_s / slots,
        "power_w": mj * per_s / 1000.0,
        "energy_j": mj * tokens / 1000.0,
        "window_s": tokens / per_s,
        "tokens": tokens,
        "prompt_tokens": 16.0 * slots,
        "time_to_first_token_s": 10.0 * slots / per_s,
        "inter_token_s": slots / per_s,
    }
