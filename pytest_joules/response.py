"""Whether a rail moves when the chip is loaded, and how far it lags behind. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_joules import trace
from pytest_joules.records import Rail

LEAST_RESPONSE = 0.05
"""A rail that rises by less than this share under load is frozen, or reads something else than the chip."""

MOST_LAG_S = 3.0
"""An apparent lag beyond this is the load's own slow rise, not the sensor's."""


@dataclass(frozen=True, slots=True)
class Response:
    """What a step from idle to load did to one rail.

    Attributes:
        idle_w, load_w: power before the step and in the second half of the load; `None` where it could not be read.
        lag_s: delay of the reading behind the step; 0 where it is below half a refresh and so within the samples' own grain.
    """

    rail: str
    idle_w: float | None
    load_w: float | None
    lag_s: float

    @property
    def share(self) -> float | None:
        """Rise over the idle power."""
        if self.idle_w is None or self.load_w is None:
            return None
        return self.load_w / self.idle_w - 1 if self.idle_w > 0 else float(self.load_w > 0)


def step_response(
    rail: Rail, mono: trace.Floats, value: trace.Floats, idle: tuple[float, float], load: tuple[float, float]
) -> Response:
    """Judge a step.

    Args:
        mono: (n,) seconds.
        value: (n,) watts or joules, over both stretches.
        idle: start and end of a silent stretch.
        load: start and end of a steady load; the step is its start.

    The lag follows from what is missing: a reading that is late by t loses t times the height of the step. The energies
    come from the same integration as a window's, so kinds of rails need no case of their own.
    """

    def mean_w(start: float, end: float) -> float | None:
        joules = trace.energy(rail, mono, value, start, end).energy_j
        return None if joules is None else joules / (end - start)

    start, end = load
    idle_w, load_w, whole_w = mean_w(*idle), mean_w((start + end) / 2, end), mean_w(start, end)
    lag_s = 0.0
    if idle_w is not None and load_w is not None and whole_w is not None and load_w > (1 + LEAST_RESPONSE) * idle_w:
        apparent_s = (load_w - whole_w) * (end - start) / (load_w - idle_w)
        grain_s = (trace.energy(rail, mono, value, start, end).refresh_s or 0.0) / 2
        lag_s = apparent_s if grain_s < apparent_s <= MOST_LAG_S else 0.0
    return Response(rail.name, idle_w, load_w, lag_s)
