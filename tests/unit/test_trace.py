"""From readings to joules: what each kind of rail gives, what is mended, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_joules import trace
from pytest_joules.records import Rail, RailEnergy

CASES = Path(__file__).parents[1] / "cases"

POWER = Rail(
    name="r",
    scope="chip",
    covers=("cpu",),
    kind="instant",
    basis="measured",
    unit="W",
    source="simulated",
    refresh_s=None,
)
COUNTER = replace(POWER, kind="counter", unit="J")
MEAN = replace(POWER, kind="interval_mean")


def case(name: str) -> dict[str, Any]:
    return json.loads((CASES / name / "case.json").read_text())


def samples(path: str, reading: str = "power_w") -> tuple[np.ndarray, np.ndarray]:
    records = [json.loads(line) for line in (CASES / path).read_text().splitlines()]
    return np.array([r["mono"] for r in records]), np.array([r[reading] for r in records])


def steps(folder: str) -> tuple[np.ndarray, np.ndarray]:
    """The one file that a fake /sys changes, in units of a million of what it holds."""
    records = [json.loads(line) for line in (CASES / folder / "steps.jsonl").read_text().splitlines()]
    return np.array([float(r["t"]) for r in records]), np.array([int(*r["set"].values()) / 1e6 for r in records])


def played(script: str, quantity: str, times: np.ndarray) -> np.ndarray:
    """What an NVML script says at each time, in W or J."""
    [device] = json.loads((CASES / script).read_text())["devices"]
    said = device[quantity] if isinstance(device[quantity], list) else [[0.0, device[quantity]]]
    at = np.searchsorted([t for t, _ in said], times + 1e-9, side="right") - 1
    return np.array([said[k][1] for k in at]) / 1000.0


def grid(start: float, end: float, step: float) -> np.ndarray:
    return start + step * np.arange(round((end - start) / step) + 1)


def covers(found: RailEnergy, truth_j: float) -> bool:
    return found.energy_j is not None and abs(found.energy_j - truth_j) <= found.uncertainty_j


# The cases of users -------------------------------------------------------------------------------------------------


def test_duplicates_and_swapped_readings_do_not_change_the_energy() -> None:
    found = trace.energy(POWER, *samples("S01-samples-clock-steps/samples.jsonl"), 2.0, 18.0)
    assert found.energy_j == pytest.approx(480.0, abs=0.5)
    assert any("duplicate" in flag for flag in found.flags)
    assert any("out of order" in flag for flag in found.flags)


def test_a_hole_in_the_readings_is_refused() -> None:
    found = trace.energy(POWER, *samples("S02-sample-gaps-and-thin-windows/suspend.jsonl"), 2.0, 62.0)
    assert found.energy_j is None
    assert "no reading for 48 s" in found.reason


def test_dense_and_sparse_stretches_are_weighted_by_time() -> None:
    found = trace.energy(POWER, *samples("S02-sample-gaps-and-thin-windows/uneven.jsonl"), 0.0, 10.0)
    assert found.energy_j == pytest.approx(350.0, abs=1.0)
    assert covers(found, 300.0)
    assert covers(found, 400.0)


@pytest.mark.parametrize(("window", "updates"), [((3.2, 3.8), 0), ((3.6, 4.4), 1), ((1.0, 9.0), 9)])
def test_updates_in_the_window_are_counted(window: tuple[float, float], updates: int) -> None:
    found = trace.energy(POWER, *samples("S02-sample-gaps-and-thin-windows/thin.jsonl"), *window)
    assert found.updates == updates
    assert (found.energy_j is None) == (updates == 0)
    if updates == 9:
        assert found.energy_j == pytest.approx(200.0)


def test_load_before_and_tail_after_the_window_stay_out() -> None:
    found = trace.energy(POWER, *samples("S05-window-and-baseline/trace.jsonl"), 25.0, 45.0)
    assert found.energy_j == pytest.approx(955.5, abs=10.0)
    assert found.uncertainty_j < 20.0


def test_nvml_power_is_integrated_where_there_is_no_counter() -> None:
    t = grid(0.0, 12.0, 0.2)
    rail = replace(POWER, kind="moving_average", refresh_s=0.02, averaging_s=0.01, limit_w=250.0)
    found = trace.energy(rail, t, played("N01-nvml-energy-counter/nvml_pascal.json", "power_mw", t), 2.0, 10.0)
    assert found.energy_j == pytest.approx(1175.8, abs=18.0)
    assert found.flags == ()


def test_a_counter_that_falls_is_a_reset() -> None:
    t = grid(0.0, 10.0, 0.2)
    value = played("N01-nvml-energy-counter/nvml_reset.json", "energy_mj", t)
    rail = replace(COUNTER, refresh_s=0.1, limit_w=300.0)
    assert "reset" in trace.energy(rail, t, value, 4.0, 8.0).reason
    # On either side of it the counter is good.
    assert trace.energy(rail, t, value, 1.0, 5.5).energy_j == pytest.approx(540.0, rel=0.01)
    assert trace.energy(rail, t, value, 6.5, 9.5).energy_j == pytest.approx(360.0, rel=0.01)


@pytest.mark.parametrize("rate_hz", [5.0, 20.0, 100.0])
def test_a_coarse_counter_is_measured_over_its_steps_and_refused_between_them(rate_hz: float) -> None:
    t = grid(0.0, 4.0, 1 / rate_hz)
    value = played("N01-nvml-energy-counter/nvml_coarse.json", "energy_mj", t)
    rail = replace(COUNTER, refresh_s=0.1, limit_w=300.0)
    short = trace.energy(rail, t, value, 1.02, 1.07)
    assert short.energy_j is None
    assert "too short" in short.reason
    long = trace.energy(rail, t, value, 1.0, 3.0)
    assert long.energy_j == pytest.approx(420.0, abs=21.1)
    assert covers(long, 420.0)


def test_a_counter_beats_the_one_second_average() -> None:
    truth = json.loads((CASES / "N03-nvml-one-second-average/truth.json").read_text())
    t = grid(0.0, 6.0, 0.05)
    counter = played("N03-nvml-one-second-average/nvml_counter.json", "energy_mj", t)
    found = trace.energy(replace(COUNTER, refresh_s=0.05, limit_w=320.0), t, counter, *truth["window"])
    assert found.energy_j == pytest.approx(truth["true_energy_j"], abs=15.0)
    assert covers(found, truth["true_energy_j"])


@pytest.mark.parametrize("kind", ["moving_average", "instant"])
def test_a_window_shorter_than_the_averaging_time_is_refused(kind: Any) -> None:
    t = grid(0.0, 6.0, 0.05)
    power = played("N03-nvml-one-second-average/nvml_nocounter.json", "power_mw", t)
    rail = replace(POWER, kind=kind, averaging_s=1.0, limit_w=320.0)
    found = trace.energy(rail, t, power, 2.0, 2.8)
    assert found.energy_j is None
    assert "averaging time" in found.reason


def test_one_wrap_is_added_once() -> None:
    rail = replace(COUNTER, refresh_s=0.001, wrap_j=262143.328850)
    found = trace.energy(rail, *steps("R02-rapl-wrap/single"), 0.0, 10.0)
    assert found.energy_j == pytest.approx(420.0)
    assert found.flags == ()
    assert found.uncertainty_j < 0.05 * 420.0


def test_a_gap_that_may_hold_several_wraps_is_refused() -> None:
    rail = replace(COUNTER, refresh_s=0.001, wrap_j=65712.999613)
    assert trace.energy(rail, *steps("R02-rapl-wrap/gap"), 0.0, 904.0).energy_j is None


def test_readings_far_apart_are_refused_once_the_limit_could_fill_the_range() -> None:
    t = grid(0.0, 6000.0, 300.0)
    rail = replace(COUNTER, refresh_s=0.001, wrap_j=65712.999613)
    for limit_w, found_j in ((150.0, 40.0 * 3000.0), (250.0, None)):
        found = trace.energy(replace(rail, limit_w=limit_w), t, (40.0 * t) % rail.wrap_j, 1500.0, 4500.0)
        assert found.energy_j == (None if found_j is None else pytest.approx(found_j))
        assert (found_j is not None) or "more than once" in found.reason


def test_a_fall_without_a_known_range_is_refused() -> None:
    found = trace.energy(replace(COUNTER, refresh_s=0.001), *steps("R04-rapl-wrap-range-unreadable/norange"), 0.0, 10.0)
    assert found.energy_j is None
    assert "range is not known" in found.reason


@pytest.mark.parametrize("wrap_j", [262143.328850, None])
def test_a_dip_of_one_reading_is_dropped_and_its_way_back_not_booked(wrap_j: float | None) -> None:
    rail = replace(COUNTER, refresh_s=0.001, wrap_j=wrap_j)
    found = trace.energy(rail, *steps("R04-rapl-wrap-range-unreadable/dip"), 0.0, 10.0)
    assert found.energy_j == pytest.approx(500.0)
    assert any("dip" in flag for flag in found.flags)


@pytest.mark.parametrize("limit_w", [120.0, None])
def test_a_sentinel_and_a_lone_zero_are_dropped_and_bridged(limit_w: float | None) -> None:
    found = trace.energy(replace(POWER, limit_w=limit_w), *steps("A04-hwmon-spike-and-sentinel"), 0.0, 10.0)
    assert found.energy_j == pytest.approx(600.2, abs=1.5)
    assert sum("dropped" in flag for flag in found.flags) == 2


# Readings that can be true ------------------------------------------------------------------------------------------


def test_what_is_no_number_is_dropped_counted_and_bridged() -> None:
    t = grid(0.0, 10.0, 0.5)
    power = 50.0 + np.sin(t)
    power[7] = np.nan
    found = trace.energy(POWER, t, power, 1.0, 9.0)
    assert found.energy_j == pytest.approx(400.0 + np.cos(1.0) - np.cos(9.0), rel=0.01)
    assert found.flags == ("1 x reading that is no number dropped",)


def test_bad_readings_elsewhere_do_not_flag_the_window() -> None:
    t = grid(0.0, 20.0, 0.5)
    power = 50.0 + np.sin(t)
    power[2] = -1.0
    assert trace.energy(POWER, t, power, 10.0, 18.0).flags == ()
    assert trace.energy(POWER, t, power, 0.5, 8.0).flags == ("1 x negative reading dropped",)


def test_too_many_bad_readings_in_a_row_are_a_hole() -> None:
    t = grid(0.0, 10.0, 0.5)
    power = 50.0 + np.sin(t)
    power[7:9] = np.inf
    assert trace.energy(POWER, t, power, 1.0, 9.0).energy_j is not None
    power[9] = np.inf
    assert trace.energy(POWER, t, power, 1.0, 9.0).energy_j is None


def test_a_reading_that_contradicts_another_of_its_time_is_flagged() -> None:
    t, power = np.array([0.0, 1.0, 1.0, 2.0, 3.0, 4.0]), np.array([10.0, 11.0, 99.0, 12.0, 11.0, 10.0])
    found = trace.energy(POWER, t, power, 0.0, 4.0)
    assert found.flags == ("1 x reading dropped that contradicts another of the same time",)
    assert found.energy_j is not None
    assert found.energy_j < 48.0


def test_two_rails_without_names_are_refused() -> None:
    t = np.repeat(grid(0.0, 60.0, 0.5), 2)
    found = trace.energy(POWER, t, np.tile([10.0, 30.0], len(t) // 2), 10.0, 20.0)
    assert found.energy_j is None
    assert found.reason == "21 of 42 readings contradict another of the same time: two rails without names?"
    assert found.remedy == "name the rail of each reading"


@pytest.mark.parametrize(("every", "told"), [(5, True), (20, False)])
@pytest.mark.parametrize("bad", [np.nan, -10.0, 1e6])
def test_many_dropped_readings_are_told_as_a_share(every: int, told: bool, bad: float) -> None:
    t = grid(0.0, 60.0, 0.5)
    power = 10.0 + np.sin(t)
    power[::every] = bad
    found = trace.energy(POWER, t, power, 10.0, 50.0)
    assert found.energy_j == pytest.approx(400.0, rel=0.02)
    assert len(found.flags) == 1 + told
    if told:
        assert found.flags[0] == "17 of 81 readings in the window were dropped, over 10%"


def test_readings_that_are_all_over_the_limit_are_said_to_be_so() -> None:
    t = grid(0.0, 60.0, 0.5)
    found = trace.energy(replace(POWER, limit_w=5.0), t, 10.0 + np.sin(t), 10.0, 20.0)
    assert found.energy_j is None
    assert found.reason == (
        "all 21 readings in the window were dropped (21 x reading above the limit of 5 W (x1.2) dropped)"
    )
    assert "limit_w" in found.remedy


def test_duplicates_outside_the_window_are_not_counted() -> None:
    t = np.repeat(grid(0.0, 60.0, 0.5), 2)
    assert trace.energy(POWER, t, 10.0 + np.sin(t), 10.0, 20.0).flags == ("21 x duplicate reading dropped",)


@pytest.mark.parametrize(("window", "said"), [((50.0, 70.0), "the readings end 10 s before"), ((-4.0, 20.0), "the readings begin 4 s after")])  # fmt: skip
def test_a_window_past_the_readings(window: tuple[float, float], said: str) -> None:
    t = grid(0.0, 60.0, 0.5)
    found = trace.energy(POWER, t, 10.0 + np.sin(t), *window)
    assert found.energy_j is None
    assert found.reason.startswith(said)


def test_a_counter_of_a_small_range_is_judged_by_what_it_typically_does() -> None:
    t = grid(0.0, 60.0, 0.5)
    rail = replace(COUNTER, refresh_s=None, wrap_j=1000.0)
    found = trace.energy(rail, t, (950.0 + 10.0 * t) % 1000.0, 10.0, 20.0)
    assert found.energy_j == pytest.approx(100.0)
    assert found.flags == ("the counter is taken to stay below 2000 W, or it wrapped unseen; a limit_w would tell",)
    sure = trace.energy(replace(rail, limit_w=100.0), t, (950.0 + 10.0 * t) % 1000.0, 10.0, 20.0)
    assert (sure.energy_j, sure.flags) == (pytest.approx(100.0), ())
    # With so few steps, and with as few readings a second, nobody knows.
    few = trace.energy(rail, t[:15], (950.0 + 10.0 * t[:15]) % 1000.0, 1.0, 6.0)
    sparse = trace.energy(rail, 10 * t, (950.0 + 100.0 * t) % 1000.0, 100.0, 200.0)
    # Every step is more than once round, and looks like 10 W.
    fast = trace.energy(rail, t, (2010.0 * t) % 1000.0, 10.0, 20.0)
    for found in (few, sparse):
        assert found.energy_j is None
        assert "more than once (at" in found.reason
        assert "--limit-w" in found.remedy
    # 10 W, or 2010 W: no reading can tell, which is what the limit is for.
    assert fast.energy_j == pytest.approx(100.0)
    assert trace.energy(replace(rail, limit_w=2500.0), t, (2010.0 * t) % 1000.0, 10.0, 20.0).energy_j is None


def test_zeros_of_a_resting_rail_are_readings() -> None:
    t = grid(0.0, 10.0, 0.25)
    power = np.where(np.arange(len(t)) % 4 == 0, 8.0, 0.0)
    found = trace.energy(POWER, t, power, 0.0, 10.0)
    assert found.flags == ()
    assert found.energy_j == pytest.approx(20.0, rel=0.15)
    assert trace.energy(POWER, t, np.zeros(len(t)), 0.0, 10.0).energy_j == 0.0


def test_a_zero_that_the_next_interval_makes_up_for_is_kept() -> None:
    t = grid(0.0, 20.0, 0.5)
    power = np.full(len(t), 30.0) + 0.1 * np.cos(7 * t)
    power[20], power[21] = 0.0, 60.0
    found = trace.energy(MEAN, t, power, 2.0, 18.0)
    assert found.energy_j == pytest.approx(480.0, rel=0.005)
    assert found.flags == ()


def test_power_over_the_limit_for_long_is_refused() -> None:
    t = grid(0.0, 10.0, 0.1)
    rail = replace(POWER, limit_w=100.0)
    assert trace.energy(rail, t, np.where(t > 5, 130.0, 90.0), 1.0, 9.0).energy_j is None
    assert trace.energy(rail, t, np.where(t > 5, 115.0, 90.0), 1.0, 9.0).energy_j is not None
    counted = trace.energy(replace(COUNTER, limit_w=100.0, refresh_s=0.01), t, 130.0 * t, 1.0, 9.0)
    assert counted.energy_j is None


def test_a_spike_of_a_counter_is_dropped() -> None:
    t = grid(0.0, 10.0, 0.5)
    value = 1000.0 + 60.0 * t
    value[9] = 2**32 / 1e3
    found = trace.energy(replace(COUNTER, refresh_s=0.01, limit_w=100.0), t, value, 1.0, 9.0)
    assert found.energy_j == pytest.approx(480.0, rel=0.01)
    assert len(found.flags) == 1


def test_a_counter_that_starts_again_in_the_middle_of_its_range_is_a_reset_and_no_wrap() -> None:
    t = grid(0.0, 10.0, 0.5)
    value = np.where(t < 5.0, 120e3 + 60.0 * t, 60.0 * (t - 5.0))
    rail = replace(COUNTER, refresh_s=0.001, wrap_j=262143.0)
    for limit_w in (250.0, None):
        found = trace.energy(replace(rail, limit_w=limit_w), t, value, 1.0, 9.0)
        assert found.energy_j is None
        assert "reset" in found.reason


def test_a_counter_that_jumps_ahead_is_refused() -> None:
    t = grid(0.0, 10.0, 0.5)
    value = 60.0 * t + np.where(t < 5.0, 0.0, 5e4)
    found = trace.energy(replace(COUNTER, refresh_s=0.001, limit_w=250.0), t, value, 1.0, 9.0)
    assert found.energy_j is None
    assert "jumped" in found.reason


def test_a_counter_that_never_moves_is_refused_and_not_nothing() -> None:
    t = grid(0.0, 10.0, 0.5)
    found = trace.energy(COUNTER, t, np.full(len(t), 777.0), 1.0, 9.0)
    assert found.energy_j is None
    assert "too short" in found.reason


def test_a_counter_with_small_steps_back_is_mended() -> None:
    t = grid(0.0, 20.0, 0.5)
    value = 500.0 + 40.0 * t
    value[[10, 25]] -= 25.0
    found = trace.energy(replace(COUNTER, refresh_s=0.01, limit_w=100.0), t, value, 2.0, 18.0)
    assert found.energy_j == pytest.approx(640.0, rel=0.01)
    assert found.flags == ("2 x dip or spike of the counter dropped",)


# Holes and windows --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("missing", "carried"), [(2, True), (3, False)])
def test_a_hole_of_more_than_three_periods_is_refused(missing: int, carried: bool) -> None:
    t = grid(0.0, 20.0, 0.25)
    power = 50.0 + np.sin(5 * t)
    kept = np.ones(len(t), dtype=bool)
    kept[40 : 40 + missing] = False
    assert (trace.energy(POWER, t[kept], power[kept], 5.0, 15.0).energy_j is not None) == carried
    assert trace.energy(POWER, t[kept], power[kept], 12.0, 18.0).energy_j is not None


def test_a_hole_is_measured_in_periods_of_the_sensor_not_of_the_polls() -> None:
    t = grid(0.0, 40.0, 0.2)
    kept = ~((t > 20.0) & (t < 22.0))
    power = (50.0 + np.sin(np.floor(t)))[kept]
    assert trace.energy(replace(POWER, refresh_s=1.0), t[kept], power, 10.0, 30.0).energy_j is not None
    assert trace.energy(replace(POWER, refresh_s=0.1), t[kept], power, 10.0, 30.0).energy_j is None


def test_several_holes_do_not_become_the_usual_spacing() -> None:
    t = grid(0.0, 60.0, 0.5)
    kept = ~(((t > 10) & (t < 14)) | ((t > 30) & (t < 34)) | ((t > 50) & (t < 54)))
    found = trace.energy(POWER, t[kept], 50.0 + np.sin(5 * t[kept]), 5.0, 58.0)
    assert found.energy_j is None
    assert found.longest_gap_s == pytest.approx(4.0)


@pytest.mark.parametrize("window", [(-3.0, 5.0), (5.0, 13.0)])
def test_readings_that_do_not_reach_over_the_window_are_refused(window: tuple[float, float]) -> None:
    t = grid(0.0, 10.0, 0.5)
    assert trace.energy(POWER, t, 50.0 + np.sin(t), *window).energy_j is None


@pytest.mark.parametrize("rail", [POWER, COUNTER, MEAN, replace(POWER, kind="moving_average", averaging_s=1.0)])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_next_to_no_readings_are_refused_without_failing(rail: Rail, count: int) -> None:
    t = np.array([1.0, 1.5])[:count]
    found = trace.energy(rail, t, np.array([10.0, 20.0])[:count], 0.9, 1.6)
    assert found.updates <= count
    assert found.energy_j is None or 0 < found.energy_j < np.inf
    assert trace.energy(rail, t, np.array([10.0, 20.0])[:count], 3.0, 3.0).energy_j is None


# What the sensor itself does ----------------------------------------------------------------------------------------


def stairs(
    refresh_s: float, poll_s: float, length_s: float, noise_w: float = 3.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Polls, what they read, and the times of the sensor's updates."""
    rng = np.random.default_rng(4)
    updates = np.arange(-refresh_s * 0.37, length_s + refresh_s, refresh_s)
    level = 60.0 + noise_w * rng.standard_normal(len(updates))
    polls = np.arange(0.0, length_s, poll_s) + rng.uniform(0, 0.1 * poll_s, round(length_s / poll_s))
    return polls, level[np.searchsorted(updates, polls, side="right") - 1], updates


@pytest.mark.parametrize(("refresh_s", "poll_s"), [(1.0, 0.2), (0.1, 0.02), (2.0, 0.5), (0.5, 0.2)])
def test_the_true_refresh_period_is_found_under_faster_polls(refresh_s: float, poll_s: float) -> None:
    t, v, _ = stairs(refresh_s, poll_s, 60 * refresh_s)
    assert trace.refresh_period(t, v) == pytest.approx(refresh_s, rel=0.05)
    found = trace.energy(POWER, t, v, 20.2 * refresh_s, 40.2 * refresh_s)
    assert found.refresh_s == pytest.approx(refresh_s, rel=0.15)
    assert found.updates in (19, 20, 21)


def test_a_sensor_read_slower_than_it_refreshes_has_no_stairs() -> None:
    t, v, _ = stairs(0.1, 0.2, 20.0)
    assert trace.refresh_period(t, v) is None


def test_readings_that_are_equal_by_rounding_are_no_stairs() -> None:
    t = grid(0.0, 60.0, 0.2)
    v = np.round(60.0 + 0.4 * np.sin(t) + 0.2 * np.sin(3.1 * t))
    assert trace.refresh_period(t, v) is None
    assert trace.energy(POWER, t, v, 10.0, 20.0).updates == 51
    assert trace.refresh_period(t, np.floor(60.0 + t)) is None


def test_plateaus_of_the_power_are_no_stairs() -> None:
    t = grid(0.0, 60.0, 0.1)
    v = np.where((t // 5) % 2 == 0, 20.0, 80.0)
    assert trace.refresh_period(t, v) is None


@pytest.mark.parametrize(("stated_s", "found_s"), [(0.9, 0.9), (0.2, 1.0), (None, 1.0)])
def test_a_seen_period_near_the_stated_one_confirms_it_and_another_overrules_it(
    stated_s: float | None, found_s: float
) -> None:
    t, v, _ = stairs(1.0, 0.2, 60.0)
    updates = trace.find_updates(replace(POWER, refresh_s=stated_s), trace.clean(t, np.where(t < 30.0, v, v[-1])))
    # Where nothing moves any more, updates are counted by the period that is gone by.
    assert np.diff(updates.mono)[-1] == pytest.approx(found_s, rel=0.03)


def test_an_update_seen_at_one_reading_happened_before_it() -> None:
    t, v, truth = stairs(1.0, 0.19, 40.0)
    updates = trace.find_updates(POWER, trace.clean(t, v))
    inner = updates.mono[(updates.mono > 2) & (updates.mono < 38)]
    off_s = inner - truth[np.argmin(np.abs(truth[None, :] - inner[:, None]), axis=1)]
    assert np.abs(off_s).max() <= 0.12
    assert abs(off_s.mean()) < 0.05
    assert updates.blur_s == pytest.approx(0.095, rel=0.1)


def test_a_stated_refresh_period_counts_updates_of_a_steady_sensor() -> None:
    t = grid(0.0, 40.0, 0.2)
    found = trace.energy(replace(POWER, refresh_s=2.0), t, np.full(len(t), 40.0), 10.0, 30.0)
    assert found.updates in (10, 11)
    assert found.energy_j == pytest.approx(800.0)


def test_old_readings_are_moved_back_by_half_a_refresh_period() -> None:
    """Read every 0.5 s, a sensor that refreshes every 0.5 s shows a ramp late by a quarter of a second on average."""
    rail = replace(POWER, refresh_s=0.5)
    t = grid(0.0, 40.0, 0.5)
    shown = 100.0 + 2.0 * (t - 0.25)
    found = trace.energy(rail, t, shown, 10.0, 30.0)
    assert found.energy_j == pytest.approx(20 * (100.0 + 2.0 * 20.0), rel=1e-3)


@pytest.mark.parametrize("kind", ["instant", "interval_mean", "counter"])
def test_a_measured_lag_is_taken_back(kind: Any) -> None:
    t = grid(0.0, 40.0, 0.05)
    lag_s = 0.8
    loaded = np.clip(t - lag_s - 10.0, 0.0, 20.0)
    value = 20.0 * t + 60.0 * loaded if kind == "counter" else np.where((t > 10.8) & (t <= 30.8), 80.0, 20.0)
    rail = replace(POWER, kind=kind, refresh_s=0.05)
    found = trace.energy(rail, t, value, 10.0, 30.0, lag_s)
    assert found.energy_j == pytest.approx(1600.0, rel=0.005)
    late = trace.energy(rail, t, value, 10.0, 30.0)
    assert late.energy_j == pytest.approx(1600.0 - 60.0 * lag_s, rel=0.005)
    # Not knowing the lag to within its own size has to hold the truth all the same.
    assert covers(trace.energy(rail, t, value, 10.0, 30.0, lag_uncertainty_s=lag_s), 1600.0)


def test_a_moving_average_is_exact_over_whole_averaging_times_whatever_the_power_did() -> None:
    rng = np.random.default_rng(2)
    step_s = 0.001
    power = np.repeat(rng.uniform(20, 200, 600), 50)
    total = np.concatenate(([0.0], np.cumsum(power) * step_s))
    t = grid(1.0, 29.0, 0.01)

    def until(when: np.ndarray | float) -> np.ndarray:
        return np.interp(when, np.arange(len(total)) * step_s, total)

    rail = replace(POWER, kind="moving_average", averaging_s=1.0, refresh_s=1e-6)
    found = trace.energy(rail, t, until(t) - until(t - 1.0), 8.0, 20.0)
    assert found.energy_j == pytest.approx(float(until(20.0) - until(8.0)), rel=1e-3)
    assert found.flags == ()


def test_few_averaging_times_are_flagged() -> None:
    t = grid(0.0, 20.0, 0.1)
    rail = replace(POWER, kind="moving_average", averaging_s=1.0, refresh_s=0.1)
    power = 50.0 + np.sin(t)
    assert "averaging times" in trace.energy(rail, t, power, 5.0, 9.0).flags[0]
    assert trace.energy(rail, t, power, 5.0, 11.0).flags == ()


def test_a_short_average_is_half_its_length_old() -> None:
    """Read as fast as it refreshes, every 0.5 s, a mean over 0.2 s is 0.25 s and another 0.1 s late."""
    rail = replace(POWER, kind="moving_average", averaging_s=0.2, refresh_s=0.5)
    t = grid(0.0, 40.0, 0.5)
    found = trace.energy(rail, t, 100.0 + 2.0 * (t - 0.35), 10.0, 30.0)
    assert found.energy_j == pytest.approx(20 * (100.0 + 2.0 * 20.0), rel=1e-4)


def test_tiles_are_laid_from_both_edges() -> None:
    """A load that falls shortly before the end is seen whole, though the window is no multiple of the averaging time."""

    def total_j(when: np.ndarray | float) -> np.ndarray:
        return np.interp(when, [0.0, 10.0, 20.1, 20.4, 40.0], np.cumsum([0.0, 200.0, 1010.0, 18.0, 392.0]))

    rail = replace(POWER, kind="moving_average", averaging_s=1.0, refresh_s=1e-6)
    t = grid(1.0, 39.0, 0.01)
    found = trace.energy(rail, t, total_j(t) - total_j(t - 1.0), 10.0, 20.4)
    assert found.energy_j == pytest.approx(1028.0, rel=1e-3)


def test_readings_at_the_edges_that_are_like_those_outside_are_taken_for_them() -> None:
    t = grid(0.0, 40.0, 0.5)
    power = np.where((t > 10.0) & (t < 30.0), 80.0, 20.0)
    assert trace.energy(POWER, t, power, 10.0, 30.0).energy_j == pytest.approx(1600.0)


def test_averaging_longer_than_stated_is_covered() -> None:
    t = grid(0.0, 40.0, 0.01)

    def total_j(when: np.ndarray) -> np.ndarray:
        return 20.0 * when + 80.0 * np.clip(when - 10.0, 0.0, 20.0)

    rail = replace(POWER, kind="moving_average", averaging_s=1.0, refresh_s=1e-6)
    found = trace.energy(rail, t, (total_j(t) - total_j(t - 1.04)) / 1.04, 10.0, 30.0)
    assert found.energy_j is not None
    assert abs(found.energy_j - 2000.0) > 1.0
    assert covers(found, 2000.0)


def test_what_the_record_does_not_reach_widens_the_interval() -> None:
    rail = replace(POWER, kind="moving_average", averaging_s=1.0, refresh_s=0.1)
    t = grid(0.0, 40.0, 0.1)
    power = 60.0 + np.sin(t)
    halves = [
        trace.energy(rail, t[t < until], power[t < until], 10.0, 30.0).uncertainty_j for until in (40.0, 30.3, 29.85)
    ]
    assert halves[0] < halves[1] < halves[2]
    # The last two tenths of a second may have held anything up to their power once more.
    assert halves[2] > 60.0 * 0.19


def test_more_than_a_step_in_an_interval_is_split_as_a_step_would_be() -> None:
    """A burst at the start lifts the interval's mean above what follows: most of it belongs to the window."""
    t = grid(0.0, 40.0, 1.0)
    total = 20.0 * t + 80.0 * np.clip(t - 10.2, 0, 20.0) + 60.0 * np.clip(t - 10.2, 0, 0.8)
    found = trace.energy(MEAN, t, np.diff(total, prepend=-20.0), 10.2, 30.2)
    assert found.energy_j == pytest.approx(100.0 * 20.0 + 60.0 * 0.8, abs=5.0)


def test_a_step_inside_an_interval_mean_is_placed_by_its_size() -> None:
    t = grid(0.0, 40.0, 1.0)
    load = np.clip(t - 10.3, 0, 20.4)
    total = 20.0 * t + 80.0 * load
    power = np.diff(total, prepend=total[0] - 20.0)
    found = trace.energy(MEAN, t, power, 10.3, 30.7)
    assert found.energy_j == pytest.approx(100.0 * 20.4, rel=1e-6)
    assert covers(found, 100.0 * 20.4)


# Uncertainty --------------------------------------------------------------------------------------------------------


def test_calibration_is_part_of_the_half_width_and_told_apart() -> None:
    t = grid(0.0, 40.0, 0.1)
    power = 50.0 + np.sin(7 * t)
    plain = trace.energy(POWER, t, power, 5.0, 35.0)
    stated = trace.energy(replace(POWER, calibration=0.04), t, power, 5.0, 35.0)
    assert plain.calibration_j == 0.0
    assert stated.calibration_j == pytest.approx(0.04 * 1500.0, rel=0.01)
    assert stated.uncertainty_j == pytest.approx(np.hypot(plain.uncertainty_j, stated.calibration_j))


@pytest.mark.parametrize("kind", ["instant", "interval_mean", "counter"])
def test_the_half_width_shrinks_as_the_window_grows(kind: Any) -> None:
    rng = np.random.default_rng(3)
    t = grid(0.0, 200.0, 0.5)
    power = 60.0 + rng.standard_normal(len(t)) * 5.0
    value = np.cumsum(power) * 0.5 if kind == "counter" else power
    shares = [
        found.uncertainty_j / found.energy_j
        for window in (5.0, 20.0, 100.0)
        if (found := trace.energy(replace(POWER, kind=kind), t, value, 20.1, 20.1 + window)).energy_j
    ]
    assert shares[0] > shares[1] > shares[2]


def held(rail: Rail, refresh_s: float, poll_s: float, window_s: float, power: Any, windows: int = 200) -> float:
    """How often the interval of a window holds the truth, over sensors of any phase read with jitter.

    Args:
        power: from a random generator and times to the power at each.
    """
    hits = []
    for seed in range(windows):
        rng = np.random.default_rng(seed)
        fine = np.arange(0.0, window_s + 10.0, 0.002)
        total = np.concatenate(([0.0], np.cumsum(power(rng, fine)) * 0.002))[:-1]
        polls = grid(2.0, window_s + 8.0, poll_s)
        polls = polls + rng.uniform(-0.3, 0.3, len(polls)) * poll_s
        phase_s = rng.uniform(0.0, refresh_s)
        updated = np.floor((polls - phase_s) / refresh_s) * refresh_s + phase_s
        over_s = rail.averaging_s or 0.002
        shown = np.interp(updated, fine, total)
        if rail.kind != "counter":
            shown = (shown - np.interp(updated - over_s, fine, total)) / over_s
        found = trace.energy(rail, polls, np.round(shown, 4), 4.0, 4.0 + window_s)
        hits.append(covers(found, float(np.interp(4.0 + window_s, fine, total) - np.interp(4.0, fine, total))))
    return float(np.mean(hits))


def restless(rng: np.random.Generator, t: np.ndarray) -> np.ndarray:
    return rng.normal(60.0, 20.0, round(t[-1] / 0.25) + 2)[np.floor(t / 0.25).astype(int)]


def bursts(rng: np.random.Generator, t: np.ndarray) -> np.ndarray:
    turns = np.cumsum(rng.uniform(0.5, 1.5, 100))
    return np.where(np.searchsorted(turns, t) % 2, 140.0, 30.0)


@pytest.mark.parametrize(
    ("rail", "refresh_s", "poll_s", "power"),
    [
        (replace(COUNTER, refresh_s=0.5), 0.5, 0.5, lambda rng, t: np.full(len(t), 60.0)),
        (replace(COUNTER, refresh_s=0.5), 0.5, 0.1, bursts),
        (replace(COUNTER, refresh_s=1.0), 1.0, 0.1, restless),
        (replace(POWER, kind="moving_average", averaging_s=1.0, refresh_s=0.36), 0.36, 0.25, bursts),
        (replace(POWER, refresh_s=0.004), 0.004, 0.25, lambda rng, t: rng.normal(60.0, 12.0, len(t))),
        (replace(POWER, refresh_s=0.2), 0.2, 0.05, bursts),
        (replace(MEAN, refresh_s=0.5), 0.5, 0.3, bursts),
    ],
)
def test_the_interval_holds_the_truth(rail: Rail, refresh_s: float, poll_s: float, power: Any) -> None:
    rail = replace(rail, averaging_s=0.5) if rail.kind == "interval_mean" else rail
    assert held(rail, refresh_s, poll_s, 10.0, power) >= 0.92


def test_the_interval_of_noisy_power_is_as_wide_as_its_noise() -> None:
    rng = np.random.default_rng(9)
    t = grid(0.0, 120.0, 0.25)
    found = trace.energy(replace(POWER, refresh_s=0.001), t, rng.normal(60.0, 6.0, len(t)), 10.0, 110.0)
    assert found.uncertainty_j == pytest.approx(2 * 6.0 * 100.0 / 400**0.5, rel=0.4)


def test_whole_watts_widen_the_interval() -> None:
    rng = np.random.default_rng(5)
    t = grid(0.0, 40.0, 0.5)
    fine = 6.0 + 0.05 * rng.standard_normal(len(t)).round(3)
    coarse = trace.energy(POWER, t, np.full(len(t), 6.0), 5.0, 35.0)
    assert coarse.uncertainty_j > 3 * trace.energy(POWER, t, fine, 5.0, 35.0).uncertainty_j > 0.0


@pytest.mark.parametrize(("level", "is_frozen"), [(43.218, True), (50.0, False), (148.0, False), (0.0, False)])
def test_a_frozen_reading_is_one_whose_last_digit_would_flicker(level: float, is_frozen: bool) -> None:
    t = grid(0.0, 30.0, 0.5)
    assert trace.frozen(t, np.full(len(t), level)) is is_frozen
    assert (
        any("frozen" in flag for flag in trace.energy(POWER, t, np.full(len(t), level), 5.0, 25.0).flags) is is_frozen
    )
    assert not trace.frozen(t[:10], np.full(10, level))


def test_a_reading_that_stops_moving_in_mid_run_is_flagged() -> None:
    rng = np.random.default_rng(6)
    t = grid(0.0, 30.0, 0.1)
    power = 60.0 + 3.0 * rng.standard_normal(len(t))
    assert trace.energy(POWER, t, power, 2.0, 28.0).flags == ()
    power[150:200] = power[150]
    assert "stood still" in trace.energy(POWER, t, power, 2.0, 28.0).flags[0]


def test_counter_and_integrated_power_are_compared_over_long_windows_only() -> None:
    assert trace.disagreement(200.0, 150.0, 10.0, 1.0) == pytest.approx(0.25)
    assert trace.disagreement(200.0, 150.0, 4.0, 1.0) is None
    assert trace.disagreement(200.0, 210.0, 4.0, None) == pytest.approx(0.05)
    assert trace.disagreement(0.0, 150.0, 10.0, 1.0) is None
