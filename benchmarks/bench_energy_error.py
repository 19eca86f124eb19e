"""How far each way of turning samples into joules is from the truth, and whether our interval is honest.

Sensors and powers are simulated, so the true energy is known: a power on a fine grid, its integral, and sensors that
show what real ones show of it (a 1 s mean, 25 ms out of every 100, a counter that moves every 2 s, an unsteady 5 Hz
poll, whole watts). Every method gets the same readings of the same window.

    python benchmarks/bench_energy_error.py [--windows 300] [--seed 1]

The methods beside ours
    mean      mean of the readings inside the window, times its length
    trapezoid trapezoids over the readings as they come, interpolated at the edges
    zeus      as zeus 0.16 (`zeus.monitor.power`): a reading is kept when its value changes; trapezoids over those kept
              inside the window, nothing at the edges, 0 J with fewer than two
    codecarbon as codecarbon 3.3 (`BaseHardware.measure_power_and_energy`): the newest power times the time since the
              measurement before
Of a counter, zeus and codecarbon take the difference between its newest values at both edges. The mean and the
trapezoids are given the power between two readings.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from tabulate import tabulate

from pytest_joules import trace
from pytest_joules.records import Kind, Rail

Floats = NDArray[np.float64]
GRID_S = 0.001
LEAST_PERIODS, MOST_PERIODS = 20, 80
IDLE_W = 20.0
MISPLACED_SHARE = 0.3
"""Share of the windows that are not cut where the load changes but up to 1.5 refresh periods beside it."""


@dataclass(frozen=True)
class Truth:
    """A power on a fine grid that starts at 0, and its integral."""

    power_w: Floats
    total_j: Floats

    @classmethod
    def of(cls, power_w: Floats) -> Truth:
        return cls(power_w, np.concatenate(([0.0], np.cumsum(power_w) * GRID_S)))

    def energy(self, start: float | Floats, end: float | Floats) -> Floats:
        grid = np.arange(len(self.total_j)) * GRID_S
        return np.interp(end, grid, self.total_j) - np.interp(start, grid, self.total_j)


@dataclass(frozen=True)
class Sensor:
    """What a meter shows of a power.

    Attributes:
        refresh_s: how often it updates; its phase is drawn anew for each window.
        averaging_s: what an update is the mean of, ending at the update.
        poll_s, jitter_s: how it is read.
        told: whether the rail states the refresh period.
    """

    name: str
    kind: Kind
    refresh_s: float
    averaging_s: float
    poll_s: float
    jitter_s: float
    rounding_w: float = 0.001
    told: bool = True

    @property
    def rail(self) -> Rail:
        return Rail(
            name="simulated", scope="gpu", covers=("gpu",), kind=self.kind, basis="measured", unit="W", source="simulated",
            averaging_s=self.averaging_s if self.kind == "moving_average" else None,
            refresh_s=self.refresh_s if self.told else None, limit_w=400.0,
        )  # fmt: skip

    def readings(self, truth: Truth, length_s: float, rng: np.random.Generator) -> tuple[Floats, Floats]:
        polls = np.arange(0.3, length_s - 0.1, self.poll_s)
        polls = np.sort(polls + rng.uniform(0, self.poll_s) + rng.uniform(-self.jitter_s, self.jitter_s, len(polls)))
        polls = polls[(polls > 0.2) & (polls < length_s)]
        phase_s = rng.uniform(0, self.refresh_s)
        updated = np.floor((polls - phase_s) / self.refresh_s) * self.refresh_s + phase_s
        if self.kind == "counter":
            return polls, np.round(truth.energy(0.0, np.maximum(updated, 0.0)), 3)
        mean_w = truth.energy(updated - self.averaging_s, updated) / self.averaging_s
        return polls, np.round(mean_w / self.rounding_w) * self.rounding_w


SENSORS = (
    Sensor("1 s mean every 100 ms, read at 10 Hz", "moving_average", 0.1, 1.0, 0.1, 0.01),
    Sensor("1 s mean every 1 s, read at 5 Hz", "moving_average", 1.0, 1.0, 0.2, 0.02),
    Sensor("25 ms of every 100 ms, read at 10 Hz", "moving_average", 0.1, 0.025, 0.1, 0.01),
    Sensor("25 ms of every 100 ms, read at 50 Hz", "moving_average", 0.1, 0.025, 0.02, 0.004),
    Sensor("counter in 2 s batches, read at 5 Hz", "counter", 2.0, 2.0, 0.2, 0.02, told=False),
    Sensor("power polled at 5 Hz with jitter", "instant", 0.002, 0.002, 0.2, 0.05, told=False),
    Sensor("whole watts, 1 s mean, read at 2 Hz", "interval_mean", 1.0, 1.0, 0.5, 0.05, rounding_w=1.0),
)


def step(n: int, rng: np.random.Generator) -> Floats:
    return np.full(n, rng.uniform(60, 200))


def ramp(n: int, rng: np.random.Generator) -> Floats:
    return np.linspace(rng.uniform(60, 100), rng.uniform(120, 200), n)


def burst(n: int, rng: np.random.Generator) -> Floats:
    low_w, high_w = rng.uniform(30, 60), rng.uniform(120, 200)
    lengths = rng.uniform(0.1, 1.2, int(n * GRID_S / 0.1) + 2)
    levels = np.where(np.arange(len(lengths)) % 2 == 0, high_w, low_w)
    return np.repeat(levels, np.maximum(1, (lengths / GRID_S).astype(int)))[:n]


def decode(n: int, rng: np.random.Generator) -> Floats:
    """Prefill, then tokens: a ripple, fast and slow noise, and a drain at the end."""
    time_s = np.arange(n) * GRID_S
    level_w = rng.uniform(70, 120)
    power_w = level_w + 10 * np.sign(np.sin(2 * np.pi * rng.uniform(15, 60) * time_s))
    power_w += correlated(n, 0.02, rng) * 12 + correlated(n, 1.0, rng) * 4
    prefill = int(0.04 * n)
    power_w[:prefill] += 70
    power_w[int(0.95 * n) :] *= 0.8
    return np.maximum(power_w, 5.0)


def correlated(n: int, time_s: float, rng: np.random.Generator) -> Floats:
    """Noise of standard deviation 1 that forgets over `time_s`."""
    length = int(8 * time_s / GRID_S)
    kernel = np.exp(-np.arange(length) * GRID_S / time_s)
    size = 1 << int(np.ceil(np.log2(n + length)))
    noise = np.fft.irfft(np.fft.rfft(rng.standard_normal(size)) * np.fft.rfft(kernel, size), size)[length : length + n]
    return noise / np.sqrt(np.sum(kernel**2))


SIGNALS: dict[str, Callable[[int, np.random.Generator], Floats]] = {
    "step": step,
    "ramp": ramp,
    "burst": burst,
    "decode": decode,
}


def mean_times_seconds(t: Floats, power_w: Floats, start: float, end: float) -> float:
    inside = (t >= start) & (t <= end)
    return float(power_w[inside].mean() * (end - start)) if inside.any() else 0.0


def trapezoid(t: Floats, power_w: Floats, start: float, end: float) -> float:
    grid = np.concatenate(([start], t[(t > start) & (t < end)], [end]))
    return area(grid, np.interp(grid, t, power_w))


def zeus(t: Floats, power_w: Floats, start: float, end: float) -> float:
    changed = np.concatenate(([True], np.diff(power_w) != 0)) & (t >= start) & (t <= end)
    return area(t[changed], power_w[changed]) if changed.sum() >= 2 else 0.0


def codecarbon(t: Floats, power_w: Floats, start: float, end: float) -> float:
    inside = (t > start) & (t <= end)
    at = np.concatenate((t[inside], [end]))
    newest = power_w[np.searchsorted(t, at, side="right") - 1]
    return float(np.sum(newest * np.diff(at, prepend=start)))


def area(t: Floats, power_w: Floats) -> float:
    return float(np.sum(np.diff(t) * (power_w[1:] + power_w[:-1]) / 2))


def difference(t: Floats, total_j: Floats, start: float, end: float) -> float:
    from_, to = np.searchsorted(t, [start, end], side="right") - 1
    return float(total_j[to] - total_j[from_])


OTHERS = {"mean": mean_times_seconds, "trapezoid": trapezoid, "zeus": zeus, "codecarbon": codecarbon}


def others(sensor: Sensor, t: Floats, value: Floats, start: float, end: float) -> dict[str, float]:
    """What each other method makes of the same readings."""
    if sensor.kind != "counter":
        return {name: method(t, value, start, end) for name, method in OTHERS.items()}
    between_w = np.diff(value) / np.diff(t)
    powers = {name: OTHERS[name](t[1:], between_w, start, end) for name in ("mean", "trapezoid")}
    return powers | dict.fromkeys(("zeus", "codecarbon"), difference(t, value, start, end))


@dataclass
class Tally:
    """Relative errors of each method, and what came of our interval."""

    errors: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in ("ours", *OTHERS)})
    covered: list[bool] = field(default_factory=list)
    half_widths: list[float] = field(default_factory=list)
    refused: int = 0

    def __add__(self, other: Tally) -> Tally:
        errors = {name: found + other.errors[name] for name, found in self.errors.items()}
        refused = self.refused + other.refused
        return Tally(errors, self.covered + other.covered, self.half_widths + other.half_widths, refused)

    def row(self) -> list[str]:
        """Median and worst error of each method; how often our interval held the truth, and how wide it is; all in %."""
        cells = [f"{100 * np.median(e):.2f} / {100 * max(e):.1f}" if e else "-" for e in self.errors.values()]
        if not self.covered:
            return [*cells, "-", "-"]
        return [*cells, f"{100 * np.mean(self.covered):.1f}", f"{100 * np.median(self.half_widths):.2f}"]


def simulate(
    sensor: Sensor, signal: Callable[[int, np.random.Generator], Floats], windows: int, rng: np.random.Generator
) -> Tally:
    """Errors over many windows of one sensor and one kind of power."""
    tally = Tally()
    for _ in range(windows):
        window_s = rng.uniform(LEAST_PERIODS, MOST_PERIODS) * max(sensor.refresh_s, sensor.poll_s)
        margin_s = 1.0 + 2.5 * max(sensor.refresh_s, sensor.averaging_s, sensor.poll_s)
        start = margin_s + rng.uniform(0, GRID_S)
        end = start + window_s
        load = signal(round(window_s / GRID_S), rng)
        idle = np.full(round(margin_s / GRID_S), IDLE_W)
        truth = Truth.of(np.concatenate((idle, load, idle)) + correlated(len(load) + 2 * len(idle), 0.05, rng) * 0.5)
        t, value = sensor.readings(truth, margin_s + end, rng)
        if rng.random() < MISPLACED_SHARE:
            start, end = (edge + rng.uniform(-1.5, 1.5) * sensor.refresh_s for edge in (start, end))
        true_j = float(truth.energy(start, end))
        ours = trace.energy(sensor.rail, t, value, start, end)
        if ours.energy_j is None:
            tally.refused += 1
        else:
            tally.errors["ours"].append(abs(ours.energy_j / true_j - 1))
            tally.covered.append(abs(ours.energy_j - true_j) <= ours.uncertainty_j)
            tally.half_widths.append(ours.uncertainty_j / true_j)
        for name, other_j in others(sensor, t, value, start, end).items():
            tally.errors[name].append(abs(other_j / true_j - 1))
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description="Errors of ways to turn samples into joules, on simulated sensors.")
    parser.add_argument("--windows", type=int, default=300, help="windows per sensor and kind of power")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    tallies = {
        (s.name, power): simulate(s, draw, options.windows, rng) for s in SENSORS for power, draw in SIGNALS.items()
    }
    by_sensor = [(s.name, *sum((tallies[s.name, power] for power in SIGNALS), Tally()).row()) for s in SENSORS]
    by_power = [(*key, *tally.row()) for key, tally in tallies.items()]
    headers = ("ours", *OTHERS, "interval holds", "half-width")
    print(f"windows of {LEAST_PERIODS} to {MOST_PERIODS} refresh periods, {options.windows} of each kind")
    print(
        "error in % of the true energy, median / worst; how often our 95 % interval holds the truth, and its half-width, in %\n"
    )
    print(tabulate(by_sensor, headers=("sensor", *headers), disable_numparse=True))
    print()
    print(tabulate(by_power, headers=("sensor", "power", *headers), disable_numparse=True))
    print(f"\nwindows refused by ours: {sum(t.refused for t in tallies.values())}")


if __name__ == "__main__":
    main()
