"""In which order conditions are measured. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_joules.records import Condition


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
        order: `as_given`; `reversed` turns every second pass round, so that a steady drift cancels in the mean;
            `balanced` draws an order for each pair of passes and turns the second of the pair round.
        control: repeat the suite's first condition at the end of each pass.
    """
    draw = random.Random(seed)
    steps: list[Step] = []
    current = list(conditions)
    for index in range(passes):
        if index % 2 == 0:
            current = list(conditions)
            if order == "balanced":
                draw.shuffle(current)
        elif order in ("reversed", "balanced"):
            current = current[::-1]
        steps += [Step(index, condition) for condition in current]
        if control:
            steps.append(Step(index, conditions[0], "control"))
    return steps
