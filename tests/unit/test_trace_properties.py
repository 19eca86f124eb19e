"""What must hold of the energy of any window, against powers whose integral is known in closed form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_joules import trace
from pytest_joules.records import Kind, Rail, RailEnergy

Floats = trace.Floats
RAIL = Rail(name="r", scope="gpu", covers=("gpu",), kind="instant", basis="measured", unit="W", source="simulated")
SPAN_S = 60.0
quick = settings(max_examples=40, deadline=None, derandomize=True, database=None)


@dataclass(frozen=True)
class Signal:
    """A power as its integral from 0 to t; the window of interest is where it is loaded."""

    name: str
    total_j: Callable[[Floats], Floats]
    start: float
    end: float

    def energy(self, start: float, end: float) -> float:
        return float(self.total_j(np.array([end]))[0] - self.total_j(np.array([start]))[0])


def step(idle_w: float, load_w: float, start: float, end: float, _: float) -> Signal:
    return Signal("step", lambda t: idle_w * t + (load_w - idle_w) * np.clip(t - start, 0, end - start), start, end)


def ramp(idle_w: float, load_w: float, start: float, end: float, _: float) -> Signal:
    def total(t: Floats) -> Floats:
        since = np.clip(t - start, 0, end - start)
        return idle_w * t + (load_w - idle_w) * (since / 2 + since**2 / (2 * (end - start)))

    return Signal("ramp", total, start, end)


def sine(idle_w: float, load_w: float, start: float, end: float, period_s: float) -> Signal:
    def total(t: Floats) -> Floats:
        since = np.clip(t - start, 0, end - start)
        turn = 2 * np.pi / period_s
        return idle_w * t + (load_w - idle_w) * (since + (1 - np.cos(turn * since)) / (2 * turn))

    return Signal("sine", total, start, end)


def burst(idle_w: float, load_w: float, start: float, end: float, period_s: float) -> Signal:
    """Loaded and idle by turns, each about half a period long but never twice the same."""
    rng = np.random.default_rng(round(1e6 * period_s))
    turns = np.cumsum(rng.uniform(0.25, 0.75, 200) * period_s) + start
    at = np.concatenate(([start], turns[turns < end], [end]))
    extra_j = np.concatenate(
        ([0.0], np.cumsum(np.diff(at) * np.where(np.arange(len(at) - 1) % 2, 0.0, load_w - idle_w)))
    )
    return Signal("burst", lambda t: idle_w * t + np.interp(t, at, extra_j), start, end)


def drawn_signal(seed: int, shapes: tuple[Callable[..., Signal], ...]) -> Signal:
    """A load with round numbers nowhere: a power in step with its sensor can deceive it without end."""
    rng = np.random.default_rng(seed)
    start = rng.uniform(8, 14)
    shape = shapes[int(rng.integers(len(shapes)))]
    return shape(rng.uniform(5, 40), rng.uniform(60, 300), start, start + rng.uniform(22, 36), rng.uniform(2.5, 6))


def signals(shapes: tuple[Callable[..., Signal], ...] = (step, ramp, sine, burst)) -> st.SearchStrategy[Signal]:
    return st.integers(0, 2**31).map(lambda seed: drawn_signal(seed, shapes))


@dataclass(frozen=True)
class Sensor:
    """How a power is shown: what a reading means, how often it refreshes and how it is read."""

    kind: Kind
    refresh_s: float
    poll_s: float
    seed: int
    averaging_s: float = 0.0
    told: bool = True

    @property
    def rail(self) -> Rail:
        averaging_s = self.averaging_s if self.kind == "moving_average" else None
        return replace(RAIL, kind=self.kind, averaging_s=averaging_s, refresh_s=self.refresh_s if self.told else None)

    def readings(self, signal: Signal) -> tuple[Floats, Floats]:
        rng = np.random.default_rng(self.seed)
        polls = np.arange(2.0, SPAN_S - 2.0, self.poll_s)
        polls = polls + rng.uniform(-0.2, 0.2, len(polls)) * self.poll_s
        phase_s = rng.uniform(0, self.refresh_s)
        updated = np.floor((polls - phase_s) / self.refresh_s) * self.refresh_s + phase_s
        if self.kind == "counter":
            return polls, signal.total_j(updated)
        # A hardly finite difference is the power of the moment.
        over_s = self.averaging_s or (self.refresh_s if self.kind == "interval_mean" else 1e-4)
        return polls, np.round((signal.total_j(updated) - signal.total_j(updated - over_s)) / over_s, 6)


def drawn_sensor(seed: int) -> Sensor:
    rng = np.random.default_rng(seed)
    kind: Kind = ("instant", "interval_mean", "moving_average", "counter")[int(rng.integers(4))]  # type: ignore[assignment]
    refresh_s = rng.uniform(0.1, 0.6)
    # An interval mean that is read less often than there are intervals is no longer one.
    poll_s = refresh_s * rng.uniform(0.1, 0.6 if kind == "interval_mean" else 1.0)
    averaging_s = (0.1, 1.0)[int(rng.integers(2))] if kind == "moving_average" else 0.0
    return Sensor(kind, refresh_s, poll_s, seed, averaging_s)


def sensors() -> st.SearchStrategy[Sensor]:
    return st.integers(0, 2**31).map(drawn_sensor)


def measure(sensor: Sensor, signal: Signal, start: float, end: float) -> RailEnergy:
    return trace.energy(sensor.rail, *sensor.readings(signal), start, end)


@quick
@given(signals(), sensors())
def test_the_truth_is_near_and_the_half_width_knows_how_near(signal: Signal, sensor: Sensor) -> None:
    found = measure(sensor, signal, signal.start, signal.end)
    truth_j = signal.energy(signal.start, signal.end)
    assert found.energy_j is not None, found.reason
    error_j = abs(found.energy_j - truth_j)
    # Half-widths are of 95 %: any one example may lie outside, but not far.
    assert error_j <= 3.5 * found.uncertainty_j + 1e-6 * truth_j
    assert error_j <= 0.15 * truth_j
    assert found.uncertainty_j <= 0.25 * truth_j


@quick
@given(signals(), sensors(), st.floats(-3, 3), st.floats(-3, 3))
def test_windows_that_are_not_cut_at_the_load_are_covered_too(
    signal: Signal, sensor: Sensor, earlier_s: float, later_s: float
) -> None:
    start, end = signal.start + earlier_s, signal.end + later_s
    found = measure(sensor, signal, start, end)
    assert found.energy_j is not None, found.reason
    assert abs(found.energy_j - signal.energy(start, end)) <= 3.5 * found.uncertainty_j + 1e-6 * signal.energy(
        start, end
    )


def test_the_interval_holds_the_truth_nineteen_times_in_twenty() -> None:
    rng = np.random.default_rng(11)
    held: dict[str, list[bool]] = {}
    for n in range(600):
        shape = (step, ramp, sine, burst)[n % 4]
        start = rng.uniform(8, 14)
        signal = shape(rng.uniform(5, 40), rng.uniform(60, 300), start, start + rng.uniform(15, 36), rng.uniform(2, 6))
        kind: Kind = ("instant", "interval_mean", "moving_average", "counter")[n // 4 % 4]
        refresh_s = rng.uniform(0.1, 0.6)
        averaging_s = (0.1, 1.0)[n // 16 % 2] if kind == "moving_average" else 0.0
        sensor = Sensor(kind, refresh_s, refresh_s * rng.uniform(0.1, 0.6), n, averaging_s)
        off_s = rng.uniform(-1.5, 1.5, 2) * (n % 3 == 0)
        found = measure(sensor, signal, signal.start + off_s[0], signal.end + off_s[1])
        truth_j = signal.energy(signal.start + off_s[0], signal.end + off_s[1])
        assert found.energy_j is not None
        held.setdefault(kind, []).append(abs(found.energy_j - truth_j) <= found.uncertainty_j + 1e-9)
    shares = {kind: float(np.mean(hits)) for kind, hits in held.items()}
    assert min(shares.values()) >= 0.92, shares
    assert np.mean(list(shares.values())) >= 0.95, shares


@quick
@given(st.floats(1, 300), sensors(), st.floats(6, 20), st.floats(10, 30))
def test_steady_power_is_exact_over_any_window(power_w: float, sensor: Sensor, start: float, length_s: float) -> None:
    steady = Signal("steady", lambda t: power_w * t, 0.0, SPAN_S)
    found = measure(sensor, steady, start, start + length_s)
    assert found.energy_j is not None
    # Each reading of a counter is as old as its last update, which is not told.
    off_s = 1.5 * sensor.poll_s if sensor.kind == "counter" else 1e-6 * length_s
    assert abs(found.energy_j - power_w * length_s) <= min(power_w * off_s, 3 * found.uncertainty_j)


@quick
@given(signals((ramp, sine)), st.integers(0, 2**31), st.floats(0.05, 0.3))
def test_smooth_power_is_near_exact_when_it_is_polled_densely(signal: Signal, seed: int, poll_s: float) -> None:
    sensor = Sensor("instant", 1e-3, poll_s, seed)
    start, end = signal.start + 3.0, signal.end - 3.0
    found = measure(sensor, signal, start, end)
    assert found.energy_j == pytest.approx(signal.energy(start, end), rel=0.01)


@quick
@given(signals(), sensors(), st.floats(0.3, 0.7))
def test_two_halves_make_the_whole(signal: Signal, sensor: Sensor, share: float) -> None:
    middle = signal.start + share * (signal.end - signal.start)
    whole = measure(sensor, signal, signal.start, signal.end)
    parts = [measure(sensor, signal, signal.start, middle), measure(sensor, signal, middle, signal.end)]
    total_j = sum(part.energy_j or 0.0 for part in parts)
    assert whole.energy_j is not None
    if sensor.kind in ("counter", "interval_mean"):
        assert total_j == pytest.approx(whole.energy_j, rel=1e-9)
    assert abs(total_j - whole.energy_j) <= 2 * sum(p.uncertainty_j for p in (whole, *parts))


@quick
@given(signals(), sensors(), st.floats(-1e6, 1e6))
def test_only_differences_of_time_matter(signal: Signal, sensor: Sensor, shift_s: float) -> None:
    t, v = sensor.readings(signal)
    here = trace.energy(sensor.rail, t, v, signal.start, signal.end)
    there = trace.energy(sensor.rail, t + shift_s, v, signal.start + shift_s, signal.end + shift_s)
    assert there.energy_j == pytest.approx(here.energy_j, rel=1e-3)


@quick
@given(signals(), sensors(), st.floats(0.2, 5))
def test_energy_grows_with_power(signal: Signal, sensor: Sensor, factor: float) -> None:
    t, v = sensor.readings(signal)
    once = trace.energy(sensor.rail, t, v, signal.start, signal.end)
    scaled = trace.energy(sensor.rail, t, factor * v, signal.start, signal.end)
    assert once.energy_j is not None
    assert scaled.energy_j == pytest.approx(factor * once.energy_j, rel=1e-6)


@quick
@given(signals(), sensors(), st.randoms(use_true_random=False))
def test_order_and_repetition_of_the_readings_do_not_matter(signal: Signal, sensor: Sensor, random: object) -> None:
    t, v = sensor.readings(signal)
    order = np.random.default_rng(random.randint(0, 99)).permutation(len(t))  # type: ignore[attr-defined]
    shuffled = np.concatenate((order, order[:5]))
    sorted_ = trace.energy(sensor.rail, t, v, signal.start, signal.end)
    mixed = trace.energy(sensor.rail, t[shuffled], v[shuffled], signal.start, signal.end)
    assert mixed.energy_j == sorted_.energy_j
    assert any("out of order" in flag for flag in mixed.flags)


@quick
@given(signals(), st.integers(0, 2**31), st.floats(0.0, 1.0), st.floats(2000, 1e5))
def test_a_counter_may_wrap_anywhere(signal: Signal, seed: int, origin: float, wrap_j: float) -> None:
    sensor = Sensor("counter", 1e-3, 0.2, seed)
    t, v = sensor.readings(signal)
    rail = replace(sensor.rail, limit_w=400.0)
    plain = trace.energy(rail, t, v, signal.start, signal.end)
    wrapped = trace.energy(replace(rail, wrap_j=wrap_j), t, (v + origin * wrap_j) % wrap_j, signal.start, signal.end)
    assert wrapped.energy_j == pytest.approx(plain.energy_j, rel=1e-6)
    assert wrapped.flags == ()


@quick
@given(signals(), sensors(), st.integers(0, 200), st.sampled_from([np.nan, np.inf, -5.0, 4294967.295]))
def test_one_bad_reading_is_bridged_and_told(signal: Signal, sensor: Sensor, which: int, bad: float) -> None:
    t, v = sensor.readings(signal)
    inside = np.flatnonzero((t > signal.start + 1) & (t < signal.end - 1))
    at = inside[which % len(inside)]
    good = trace.energy(sensor.rail, t, v, signal.start, signal.end)
    spoiled = v.copy()
    spoiled[at] = bad
    found = trace.energy(sensor.rail, t, spoiled, signal.start, signal.end)
    assert good.energy_j is not None
    assert found.energy_j is not None, found.reason
    assert abs(found.energy_j - good.energy_j) <= 300.0 * 2.5 * max(sensor.refresh_s, sensor.poll_s, sensor.averaging_s)
    assert sum("dropped" in flag for flag in found.flags) == 1


@quick
@given(
    st.lists(st.tuples(st.floats(allow_nan=True), st.floats(allow_nan=True)), max_size=12),
    st.sampled_from(["instant", "interval_mean", "moving_average", "counter"]),
    st.floats(-10, 10),
    st.floats(-10, 10),
)
def test_no_readings_whatever_make_it_fail(
    pairs: list[tuple[float, float]], kind: Kind, start: float, end: float
) -> None:
    t, v = (np.array([p[k] for p in pairs]) for k in (0, 1))
    rail = replace(RAIL, kind=kind, averaging_s=0.5 if kind == "moving_average" else None, wrap_j=100.0)
    with np.errstate(all="ignore"):
        found = trace.energy(rail, t, v, start, end)
    assert (found.energy_j is None) == bool(found.reason)
    assert found.energy_j is None or np.isfinite(found.energy_j)
