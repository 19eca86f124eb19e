"""A simulated machine whose energy per token depends on its temperature and on what else runs: what orders are judged on."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_joules import schedule

STEP_S = 0.5

REFERENCE_C = 25.0
"""Temperature at which a chip takes the watts that its work states."""


@dataclass(frozen=True)
class Work:
    """A condition: power at the reference temperature, and speed."""

    watts: float = 30.0
    tokens_per_s: float = 50.0


@dataclass(frozen=True)
class Machine:
    """A chip as one body of heat: dT/dt = (ambient + resistance x power - T) / tau.

    Attributes:
        ambient_c: by seconds from the run's start.
        resistance_k_per_w: how much warmer than the room it gets in the end, per watt.
        leak_per_k: share by which power rises with each kelvin (leakage).
        others_w: what another program takes, by seconds from the run's start; in the reading like the work's own.
        throttle_c: above it the chip runs at `throttled_speed`, which saves power only in proportion to the square root.
    """

    ambient_c: Callable[[float], float] = lambda _: REFERENCE_C
    tau_s: float = 1.0
    resistance_k_per_w: float = 0.0
    leak_per_k: float = 0.01
    others_w: Callable[[float], float] = lambda _: 0.0
    throttle_c: float = math.inf
    throttled_speed: float = 0.6
    start_c: float = REFERENCE_C


@dataclass(frozen=True)
class Measured:
    """One window as it was measured; `mono_s` is its middle."""

    pass_index: int
    condition: int
    role: str
    mono_s: float
    energy_per_token_mj: float
    rise_c: float


def measure(
    machine: Machine,
    works: Sequence[Work],
    passes: int,
    order: str,
    *,
    control: bool = False,
    seed: int = 1,
    rest_s: float = 5.0,
    warmup_s: float = 10.0,
    window_s: float = 15.0,
    idle_w: float = 5.0,
) -> list[Measured]:
    """A whole run, window by window: a rest in which the server loads, a warm-up at the condition's own work, the window."""
    steps = schedule.plan([{"place": i} for i in range(len(works))], passes, order, control=control, seed=seed)
    clock_s, chip_c = 0.0, machine.start_c
    found = []
    for step in steps:
        work = works[step.condition["place"]]
        joules = tokens = before_c = 0.0
        for seconds, watts in ((rest_s, idle_w), (warmup_s, work.watts), (window_s, work.watts)):
            # Counted anew in each stretch, so that the last one is what is left.
            joules = tokens = 0.0
            before_c = chip_c
            for _ in range(round(seconds / STEP_S)):
                slowed = machine.throttled_speed if chip_c > machine.throttle_c else 1.0
                power = watts * math.sqrt(slowed) * (1 + machine.leak_per_k * (chip_c - REFERENCE_C))
                power += machine.others_w(clock_s)
                joules += power * STEP_S
                tokens += work.tokens_per_s * slowed * STEP_S
                goal_c = machine.ambient_c(clock_s) + machine.resistance_k_per_w * power
                chip_c = goal_c + (chip_c - goal_c) * math.exp(-STEP_S / machine.tau_s)
                clock_s += STEP_S
        mj, middle_s = 1000 * joules / tokens, clock_s - window_s / 2
        found.append(Measured(step.pass_index, step.condition["place"], step.role, middle_s, mj, chip_c - before_c))
    return found


def by_pass(run: Sequence[Measured]) -> np.ndarray:
    """(P, C) energy per token of the measured windows."""
    passes, count = (max(getattr(m, name) for m in run) + 1 for name in ("pass_index", "condition"))
    figures = np.zeros((passes, count))
    for window in run:
        if window.role == "measured":
            figures[window.pass_index, window.condition] = window.energy_per_token_mj
    return figures


def bias(run: Sequence[Measured], truth: np.ndarray) -> float:
    """How wrong the ratio of two conditions is at most, in the mean over the passes; a share.

    Args:
        truth: (C,) energy per token up to a factor.
    """
    errors = np.log(by_pass(run).mean(axis=0) / truth)
    return float(np.expm1(errors.max() - errors.min()))


DRIFT = 0.10
"""Change of energy per token from the first window to the last in every drift below."""

WINDOW_S = 30.0
"""From one window to the next, rest and warm-up included."""


def warming(run_s: float) -> Machine:
    """Cold at the start, a quarter of the run to warm up; every condition takes the same power."""
    return Machine(tau_s=run_s / 4, resistance_k_per_w=DRIFT / 0.01 / 30.0)


def linear(run_s: float) -> Machine:
    """A room that warms up steadily."""
    return Machine(ambient_c=lambda s: REFERENCE_C + DRIFT / 0.01 * s / run_s)


def quadratic(run_s: float) -> Machine:
    """A room that warms up faster and faster."""
    return Machine(ambient_c=lambda s: REFERENCE_C + DRIFT / 0.01 * (s / run_s) ** 2)


def step_at(start_s: float) -> Machine:
    """Another program that starts and stays."""
    return Machine(others_w=lambda s: DRIFT * 30.0 if s >= start_s else 0.0)


SEEDS = range(1, 13)
"""Of the drawn orders of `balanced`, of which the worst is taken."""


def worst(machines: Sequence[Machine], works: Sequence[Work], passes: int, order: str, truth: np.ndarray) -> float:
    """The largest bias over machines and, where orders are drawn, over seeds."""
    seeds = SEEDS if order == "balanced" else (1,)
    return max(bias(measure(m, works, passes, order, seed=seed), truth) for m in machines for seed in seeds)


UNLIKE = tuple(Work(watts=w, tokens_per_s=w) for w in (60.0, 50.0, 40.0, 30.0, 20.0, 10.0))
"""Conditions in the order of their power, so that each leaves the chip at another temperature."""

REMEMBERS = Machine(tau_s=WINDOW_S, resistance_k_per_w=0.2, start_c=REFERENCE_C + 7.0)
"""A chip whose time constant is that of a window: it is about as warm as the window before has left it."""


def carried(order: str, passes: int, warmup_s: float) -> float:
    """How wrong the ratio of two conditions is at most because of what ran before them; the worst of the seeds.

    The truth is what each condition comes to when it is measured over and over with nothing else between.
    """
    alone = [measure(REMEMBERS, [work], 20, "as_given", warmup_s=warmup_s)[-1] for work in UNLIKE]
    truth = np.array([window.energy_per_token_mj for window in alone])
    seeds = SEEDS if order == "balanced" else (1,)
    runs = [measure(REMEMBERS, UNLIKE, passes, order, seed=seed, warmup_s=warmup_s) for seed in seeds]
    return max(bias(run, truth) for run in runs)


def table(count: int, passes: int) -> dict[str, dict[str, float]]:
    """Largest error of the ratio of two conditions of equal power, by order and drift."""
    run_s = count * passes * WINDOW_S
    drifts = {
        "warm-up": [warming(run_s)],
        "linear": [linear(run_s)],
        "quadratic": [quadratic(run_s)],
        "step half way": [step_at(run_s / 2)],
        "step anywhere": [step_at(WINDOW_S * place) for place in range(1, count * passes)],
    }
    works, truth = [Work()] * count, np.ones(count)
    return {
        order: {name: worst(machines, works, passes, order, truth) for name, machines in drifts.items()}
        for order in schedule.ORDERS
    }
