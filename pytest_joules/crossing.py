"""Where one curve crosses another, for predictions about the place of a crossover. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any


def crossover(
    first: Mapping[Any, float], second: Mapping[Any, float], sizes: Mapping[Any, float] | None = None
) -> float | None:
    """The point on the axis at which two columns are equal: below it one of them is lower, above it the other.

    Between two conditions the logarithm of their ratio is taken to be straight over the logarithm of the axis, so that curves which are
    power laws there cross where those do.

    Args:
        first, second: figures above 0 by condition, such as two columns of a table; only conditions of both are looked at.
        sizes: number above 0 on the axis of each condition, where the conditions are no numbers, such as the parameters of models.

    Returns:
        The lowest such point, in units of the axis; `None` where neither crosses the other between the lowest and the highest condition.
        Curves that only touch do not cross.

    Raises:
        ValueError: fewer than two conditions are common to both, or one has no number above 0, or no figure above 0.
    """
    common = [key for key in first if key in second]
    points = sorted(
        ((_above_0(key if sizes is None else sizes.get(key), key, "number on the axis"), key) for key in common),
        key=lambda point: point[0],
    )
    if len(points) < 2:
        raise ValueError(
            f"a crossover needs two conditions that both have; there are {', '.join(map(repr, common)) or 'none'}"
        )
    logs = [
        (math.log(at), math.log(_above_0(first[key], key, "figure") / _above_0(second[key], key, "figure")))
        for at, key in points
    ]
    apart = [(at, ratio) for at, ratio in logs if ratio != 0.0]
    for (left, before), (right, after) in itertools.pairwise(apart):
        if before * after < 0:
            touching = [at for at, ratio in logs if ratio == 0.0 and left < at < right]
            return math.exp(touching[0] if touching else left + (right - left) * before / (before - after))
    return None


def _above_0(value: object, key: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        hint = "; give it in sizes={...}" if what != "figure" else ""
        raise ValueError(f"condition {key!r} has no {what} above 0{hint}")
    return float(value)
