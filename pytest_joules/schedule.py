"""In which order conditions are measured, so that what drifts meanwhile falls on all of them alike. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from pytest_joules.records import Condition

Order = Literal["balanced", "reversed", "abba", "interleaved", "as_given"]
"""How the passes of a run follow each other; `rows` says what each of them is."""

ORDERS: tuple[Order, ...] = get_args(Order)
"""Every order, the default first."""


@dataclass(frozen=True, slots=True)
class Step:
    """One window to be measured.

    Attributes:
        pass_index: from 0.
        role: `control` is the first condition of the suite measured once more.
    """

    pass_index: int
    condition: Condition
    role: Literal["measured", "control"] = "measured"


def plan(conditions: Sequence[Condition], passes: int, order: str, *, control: bool, seed: int) -> list[Step]:
    """Every window of a run, in the order in which it is measured.

    Args:
        order: one of `ORDERS`.
        control: repeat the suite's first condition at the end of each pass.
        seed: of the drawn orders of `balanced`.
    """
    steps: list[Step] = []
    for index, row in enumerate(rows(len(conditions), passes, order, seed)):
        steps += [Step(index, conditions[place]) for place in row]
        if control:
            steps.append(Step(index, conditions[0], "control"))
    return steps


def rows(count: int, passes: int, order: str, seed: int) -> list[list[int]]:
    """Which condition stands where: (passes, count) indices, every row a permutation.

    With F for the suite's own order and R for the same turned round:

    - `as_given`: F F F F.
    - `reversed`: F R F R.
    - `abba`: F R R F F R R F, after the weighing scheme A B B A.
    - `balanced`: drawn anew for every pair of passes, the second of the pair turned round.
    - `interleaved`: the rows of a Williams square, each followed by itself turned round.

    Raises:
        ValueError: there is no such order.
    """
    if order not in ORDERS:
        raise ValueError(f"there is no order {order!r}; there are {', '.join(ORDERS)}")
    given = list(range(count))
    draw = random.Random(seed)
    found: list[list[int]] = []
    for index in range(passes):
        pair, second = divmod(index, 2)
        if order == "as_given":
            found.append(given)
        elif order == "reversed":
            found.append(given[::-1] if second else given)
        elif order == "abba":
            found.append(given[::-1] if index % 4 in (1, 2) else given)
        elif second:
            found.append(found[-1][::-1])
        elif order == "balanced":
            # Shuffled and not sampled: a seed that a suite has registered goes on to mean the same orders.
            drawn = list(given)
            draw.shuffle(drawn)
            found.append(drawn)
        else:
            found.append(_williams_row(count, pair))
    return found


def _williams_row(count: int, shift: int) -> list[int]:
    """Row `shift` of a Williams square: 0 1 n-1 2 n-2 ... with `shift` added to each, modulo n.

    E. J. Williams, Experimental designs balanced for the estimation of residual effects of treatments, Australian
    Journal of Scientific Research A 2 (1949), 149-168. For an even number n of conditions its n rows put each
    condition once at every place and once right after each other one; for an odd n the 2 n rows do so twice that also
    hold every row turned round. A row turned round is another row of an even square, so that rows followed by
    themselves turned round run through the same designs and cancel a steady drift after every second pass already.
    """
    return [((place + 1) // 2 * (1 if place % 2 else -1) + shift) % count for place in range(count)]
