"""What orders cancel and what gates find, on simulated machines; the figures of docs/protocol.md come from here."""

import functools
import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import thermal
from scipy import stats  # type: ignore[import-untyped]
from thermal import Machine, Work, bias, by_pass, measure

from pytest_joules import gates
from pytest_joules.records import Gate
from pytest_joules.schedule import ORDERS

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")

TRIALS = 6000


def noise(*shape: int, seed: int = 1) -> np.ndarray:
    # The old generator, because its numbers are promised to stay the same in every version of numpy.
    return np.random.RandomState(seed).standard_normal(shape)


def drift_gate(run: Sequence[thermal.Measured], figures: Sequence[float] | None = None) -> Gate:
    values = [w.energy_per_token_mj for w in run] if figures is None else figures
    return gates.drift([(str(w.condition), w.mono_s, float(v)) for w, v in zip(run, values, strict=True)], 0.02)


def in_page(*cells: object) -> bool:
    return f"| {' | '.join(str(cell) for cell in cells)} |" in PAGE


@functools.cache
def table(count: int, passes: int) -> dict[str, dict[str, float]]:
    return thermal.table(count, passes)


@pytest.mark.parametrize("passes", [4, 2])
def test_the_page_tells_what_each_order_leaves(passes: int) -> None:
    for order, left in table(6, passes).items():
        assert in_page(f"`{order}`", *(f"{100 * share:.1f}" for share in left.values()))


@pytest.mark.parametrize("order", ORDERS)
def test_which_drift_cancels(order: str) -> None:
    left = table(6, 4)[order]
    # A step between two passes leaves every condition as many windows before it as after.
    assert left["step half way"] == pytest.approx(0, abs=1e-9)
    # And anywhere else one window of four is on the wrong side, whatever the order.
    assert left["step anywhere"] == pytest.approx(thermal.DRIFT / 4, rel=0.02)
    if order == "as_given":
        assert left["linear"] > 0.015
    else:
        assert left["linear"] == pytest.approx(0, abs=1e-4)
        assert left["quadratic"] < left["warm-up"] < 0.01
    assert left["warm-up"] < table(6, 4)["as_given"]["warm-up"] + 1e-12


def test_abba_cancels_a_bent_drift_best() -> None:
    left = {order: figures["quadratic"] for order, figures in table(6, 4).items()}
    assert min(left, key=lambda order: left[order]) == "abba"
    assert left["abba"] < left["reversed"] / 4


def test_the_page_tells_what_no_order_removes() -> None:
    for order in ORDERS:
        left = [thermal.carried(order, 4, warmup_s) for warmup_s in (10, 30, 90)]
        assert in_page(f"`{order}`", *(f"{100 * share:.1f}" for share in left))
        assert left[0] > 0.02
        assert left[2] < left[0] / 8


def test_a_machine_that_stays_as_it_is_has_no_bias() -> None:
    works = [Work(10.0, 20.0), Work(20.0, 80.0), Work(40.0, 300.0)]
    run = measure(Machine(), works, 4, "balanced", control=True)
    assert bias(run, np.array([500.0, 250.0, 400.0 / 3])) == pytest.approx(0, abs=1e-12)
    assert by_pass(run) == pytest.approx(np.tile([500.0, 250.0, 400.0 / 3], (4, 1)))
    assert all(window.rise_c == 0 for window in run)
    assert drift_gate(run).outcome == "pass"


def test_heat_follows_the_law_of_one_body() -> None:
    # Without leakage the approach to the final temperature is an exponential with the stated time constant.
    hot = Machine(tau_s=15.0, resistance_k_per_w=0.5, leak_per_k=0.0)
    run = measure(hot, [Work(watts=20.0)], 1, "as_given", rest_s=0, warmup_s=0, window_s=15)
    assert run[0].rise_c == pytest.approx(10.0 * (1 - math.exp(-1)))


def test_a_machine_that_warms_up_is_found_by_every_gate_of_the_run() -> None:
    count, passes = 6, 2
    run_s = (count + 1) * passes * thermal.WINDOW_S
    run = measure(thermal.warming(run_s), [Work()] * count, passes, "reversed", control=True)
    first, second = by_pass(run)
    assert gates.run_order(first, second).outcome == "flag"
    assert str(gates.run_order(first, second).value).startswith("second pass higher by ")
    assert drift_gate(run).outcome == "flag"
    own = {w.pass_index: w.energy_per_token_mj for w in run if w.condition == 0 and w.role == "measured"}
    again = {w.pass_index: w.energy_per_token_mj for w in run if w.role == "control"}
    found = gates.control_repeat([(own[p], again[p]) for p in range(passes)], 0.05)
    assert (found.outcome, str(found.value)[-9:]) == ("flag", "in pass 1")


def test_throttling_shows_in_the_order_of_the_passes() -> None:
    hot = Machine(tau_s=150.0, resistance_k_per_w=2.0, leak_per_k=0.002, throttle_c=60.0)
    first, second = by_pass(measure(hot, [Work(watts=30.0)] * 5, 2, "reversed"))
    assert second.mean() > 1.1 * first.mean()
    assert gates.run_order(first, second).outcome == "flag"


def test_a_program_that_starts_half_way_is_found_although_it_cancels() -> None:
    run = measure(thermal.step_at(4 * 6 * thermal.WINDOW_S / 2), [Work()] * 6, 4, "balanced")
    noisy = [w.energy_per_token_mj * math.exp(0.01 * n) for w, n in zip(run, noise(len(run)), strict=True)]
    assert drift_gate(run, noisy).outcome == "flag"
    assert gates.run_order(*by_pass(run)).outcome == "flag"


@pytest.mark.parametrize("kind", ["normal", "laplace"])
def test_noise_alone_is_called_drift_in_one_run_of_twenty_at_most(kind: str) -> None:
    alarms, trials = {}, 300
    source = np.random.RandomState(7)
    for passes in range(2, 9):
        for count in range(2, 9):
            control = (passes + count) % 2 == 0
            run = measure(Machine(), [Work()] * count, passes, "balanced", control=control, window_s=5)
            # So much noise that the limit of 2 % hardly ever decides.
            draw = source.standard_normal if kind == "normal" else source.laplace
            figures = np.exp(0.05 * draw(size=(trials, len(run))))
            alarms[passes, count] = np.mean([drift_gate(run, row).outcome == "flag" for row in figures])
    rates = np.array(list(alarms.values()))
    # The rate is 5 % or less; the margins are three standard deviations of counting over all runs, and four over each kind.
    assert rates.mean() <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / (trials * rates.size))
    assert rates.max() <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / trials)


@pytest.mark.parametrize(("passes", "count", "control"), [(2, 2, False), (2, 4, True), (3, 5, False), (4, 6, True)])
def test_the_chance_is_that_of_a_fit_with_a_level_for_each_condition(passes: int, count: int, control: bool) -> None:
    run = measure(Machine(), [Work()] * count, passes, "interleaved", control=control)
    figures = 100 * np.exp(0.03 * noise(len(run)) + 1e-5 * np.array([w.mono_s for w in run]))
    levels = np.array([[w.condition == i for i in range(count)] for w in run], dtype=float)
    design = np.column_stack((levels, [w.mono_s for w in run]))
    solved, squares, *_ = np.linalg.lstsq(design, np.log(figures), rcond=None)
    freedom = len(run) - count - 1
    error = math.sqrt(squares[0] / freedom * np.linalg.inv(design.T @ design)[-1, -1])
    chance = 2 * stats.t.sf(abs(solved[-1]) / error, freedom)
    change = math.expm1(solved[-1] * (run[-1].mono_s - run[0].mono_s))
    way = "falls" if change < 0 else "rises"
    shown = f"{chance:.0%}" if chance >= 0.01 else "under 1%"
    told = f"{way} by {abs(change):.1%} over the run (by chance in {shown} of runs)"
    assert drift_gate(run, list(figures)).value == told


@pytest.mark.parametrize("freedom", range(1, 40))
def test_students_t_is_the_one_of_the_handbook(freedom: int) -> None:
    for t in (-40.0, -2.0, 0.0, 0.3, 1.0, 2.0, 3.5, 12.0):
        assert gates._chance_of(t, freedom) == pytest.approx(2 * stats.t.sf(abs(t), freedom), abs=1e-13)


def found_drift(passes: int, count: int, control: bool, change: float, sd: float) -> float:
    """How often a steady change over the run is flagged in noise of `sd` a window."""
    run = measure(Machine(), [Work()] * count, passes, "balanced", control=control)
    moments = np.array([w.mono_s for w in run])
    trend = np.log1p(change) * (moments - moments[0]) / (moments[-1] - moments[0])
    rows = np.exp(trend + sd * noise(2000, len(run)))
    return float(np.mean([drift_gate(run, row).outcome == "flag" for row in rows]))


@pytest.mark.parametrize(
    ("passes", "count", "control"), [(2, 2, False), (2, 4, False), (2, 6, False), (4, 4, True), (4, 6, True)]
)
def test_the_page_tells_how_often_a_drift_is_found(passes: int, count: int, control: bool) -> None:
    rates = [found_drift(passes, count, control, c, sd) for sd in (0.01, 0.03) for c in (0.0, 0.03, 0.05, 0.10)]
    windows = passes * (count + control)
    assert in_page(f"{passes} x {count}{' and controls' if control else ''}", windows, *(f"{r:.0%}" for r in rates))
    assert rates[0] <= 0.05
    assert rates == sorted(rates[:4]) + sorted(rates[4:])


@functools.cache
def alarms(passes: int, count: int, sd: float) -> float:
    """How often noise of `sd` a window, and nothing else, is called a run-order effect."""
    runs = 100 * np.exp(sd * noise(TRIALS, passes, count))
    return float(np.mean([gates.run_order(*run.tolist()).outcome == "flag" for run in runs]))


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 8])
def test_the_page_tells_how_often_noise_is_called_a_run_order_effect(count: int) -> None:
    rates = [alarms(passes, count, sd) for passes in (2, 4) for sd in (0.01, 0.03, 0.10)]
    assert in_page(count, *(f"{rate:.0%}" for rate in rates))
    # In much noise only Student's t decides, at 5 %; from 5 conditions on, all the same way as well.
    if count < 5:
        assert rates[2] == pytest.approx(gates.CHANCE, abs=4 * math.sqrt(gates.CHANCE / TRIALS))


def test_the_page_tells_what_chance_does_to_the_rule_of_the_run_order() -> None:
    text = " ".join(PAGE.split())
    beyond = {count: 2 * stats.t.sf(2, count - 1) for count in (2, 4, 6)}
    assert (
        f"{100 * beyond[2]:.0f} % of runs at 2 conditions, {100 * beyond[4]:.0f} % at 4 and {100 * beyond[6]:.0f} % at 6"
        in text
    )
    one_way = {count: 2 * 0.5**count for count in (5, 6)}
    assert f"in {100 * one_way[5]:.0f} % of runs at 5 conditions and in {100 * one_way[6]:.0f} % at 6" in text


@pytest.mark.parametrize(
    ("name", "outcome"), [("repeats_ok", "pass"), ("repeats_drift", "flag"), ("repeats_step", "flag")]
)
def test_repeats_that_drift_decide_nothing_although_their_mean_looks_well(name: str, outcome: str) -> None:
    """Case S06: the mean lies inside the predicted band in all three."""
    [folder] = (Path(__file__).parents[1] / "cases").glob("S06-*")
    repeats = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    figures = [row["energy_j"] / row["tokens"] for row in repeats]
    assert 0.44 <= sum(figures) / len(figures) <= 0.56
    found = gates.drift(
        [("only", float(row["repeat"]), figure) for row, figure in zip(repeats, figures, strict=True)], 0.02
    )
    assert found.outcome == outcome
    assert found.name in gates.NARROWING
    spread = (max(figures) - min(figures)) / (sum(figures) / len(figures))
    assert gates.pass_spread([("only", spread)], 0.05).outcome == outcome
