"""The simulation against what is known in closed form, against itself, and against the same model in simpy."""

import importlib.util
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from pytest_joules import queueing
from pytest_joules.queueing import Curve, Load, Plant, Policy, Prefill, Trace, simulate

SPEEDS = {1: 55.6, 2: 94.5, 4: 163.6, 8: 293.2, 16: 338.8}
POWERS = {1: 29.7, 2: 45.8, 4: 41.6, 8: 40.3, 16: 37.5}
MODULE = queueing.curve(SPEEDS, POWERS, 10.0, 16)
PREFILL = Prefill(modules=2, prompt_tokens_per_s=3000.0, busy_w=40.0, idle_w=12.0)
CELL = Plant(decode=(MODULE,) * 3, prefill=PREFILL, link_s_per_prompt_token=1e-5)
LOAD = Load(requests_per_s=5.0, answer_tokens=128.0, prompt_tokens=300.0, answer_lengths="exponential", requests=4000)
POLICIES = [
    Policy(),
    Policy(placing="fill-first"),
    Policy(placing="fill-first", cap=8),
    Policy(batching="static", cap=8),
]


def servers(count: int) -> Plant:
    """One module whose slots do not slow each other down: with exponential answers, the queue M/M/c."""
    return Plant(decode=(Curve(tokens_per_s=tuple(map(float, range(count + 1)))),))


def erlang_c_wait_s(count: int, load: float) -> float:
    """Mean wait in M/M/c with a service rate of 1: Erlang's C over the free rate."""
    offered = count * load
    top = offered**count / math.factorial(count) / (1 - load)
    waits = top / (sum(offered**k / math.factorial(k) for k in range(count)) + top)
    return waits / (count * (1 - load))


@pytest.mark.parametrize(("count", "load"), [(1, 0.5), (4, 0.8), (16, 0.9)])
def test_waits_are_those_of_erlang_within_their_own_interval(count: int, load: float) -> None:
    asked = Load(requests_per_s=count * load, answer_tokens=1.0, answer_lengths="exponential", requests=40_000)
    outcome = simulate(servers(count), asked)
    mean = outcome.waiting.mean
    assert mean.half_width is not None
    assert not outcome.growing
    assert mean.value == pytest.approx(erlang_c_wait_s(count, load), abs=mean.half_width)
    assert mean.half_width < 0.4 * mean.value


def test_nineteen_of_twenty_intervals_hold_erlangs_wait() -> None:
    truth = erlang_c_wait_s(4, 0.7)
    held = 0
    for seed in range(40):
        asked = Load(
            requests_per_s=2.8, answer_tokens=1.0, answer_lengths="exponential", requests=2000, seed=seed, warmup=0.2
        )
        mean = simulate(servers(4), asked).waiting.mean
        assert mean.half_width is not None
        held += abs(mean.value - truth) <= mean.half_width
    assert held >= 33  # fewer of 40 are less likely than 1 in 300 where 95 % hold


def test_stretches_that_are_alike_widen_their_interval() -> None:
    alike = np.repeat([1.0, 3.0, 2.0, 5.0, 4.0], 4)
    as_if_independent = 2.093 * float(alike.std(ddof=1)) / math.sqrt(20)
    assert queueing._half_width(alike) > 2 * as_if_independent


@pytest.mark.parametrize(("load", "too_small"), [(0.95, True), (0.7, False)])
def test_near_the_capacity_intervals_are_said_to_be_too_small(load: float, too_small: bool) -> None:
    asked = Load(requests_per_s=4 * load, answer_tokens=1.0, answer_lengths="exponential", requests=8000)
    assert [simulate(servers(4), replace(asked, seed=seed)).correlated for seed in (1, 2, 3)] == [too_small] * 3


def test_full_modules_do_no_more_than_full_modules_do() -> None:
    """The simulation of a load a little over the capacity comes to the same."""
    asked = replace(LOAD, requests_per_s=1.2 * 3 * 338.8 / 128, requests=8000)
    full = queueing.saturated(CELL, asked, Policy())
    outcome = simulate(CELL, asked)
    assert full is not None
    assert full.power_w is not None
    assert outcome.energy_j is not None
    assert outcome.energy_j / outcome.window_s == pytest.approx(full.power_w, rel=0.01)
    assert outcome.answered_in_window / outcome.window_s == pytest.approx(full.answers_per_s, rel=0.03)
    assert queueing.saturated(CELL, replace(asked, requests_per_s=1.0), Policy()) is None
    assert queueing.saturated(CELL, replace(asked, prompt_tokens=3000.0), Policy()) is None
    assert queueing.saturated(CELL, asked, Policy(batching="static")) is None


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_no_request_is_lost_or_served_twice(policy: Policy) -> None:
    outcome = simulate(CELL, LOAD, policy)
    assert outcome.arrived == outcome.answered + outcome.in_system
    assert outcome.counted == LOAD.requests


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_energy_of_the_modules_is_the_energy_of_the_cell(policy: Policy) -> None:
    outcome = simulate(CELL, LOAD, policy)
    assert outcome.energy_j == pytest.approx(math.fsum(outcome.energy_by_module_j), rel=1e-9)
    least = 3 * 10.0 + 2 * 12.0
    assert outcome.energy_j is not None
    assert least * outcome.window_s < outcome.energy_j < (3 * max(POWERS.values()) + 2 * 40.0) * outcome.window_s


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_littles_law_holds_for_the_cell_and_for_its_slots(policy: Policy) -> None:
    rate = 3.0 if policy.batching == "continuous" else 1.0
    outcome = simulate(CELL, replace(LOAD, requests=10_000, requests_per_s=rate), policy)
    rate = outcome.counted / outcome.window_s
    assert outcome.in_system_mean == pytest.approx(rate * outcome.total.mean.value, rel=0.01)
    if policy.batching == "continuous":
        assert outcome.slots_busy_mean == pytest.approx(rate * outcome.decode.mean.value, rel=0.01)
    by_module = len(CELL.decode) * sum(n * share for n, share in enumerate(outcome.occupancy))
    assert outcome.slots_busy_mean == pytest.approx(by_module)
    assert math.fsum(outcome.occupancy) == pytest.approx(1.0)


def test_the_same_seed_gives_the_same_outcome_and_another_one_does_not() -> None:
    assert simulate(CELL, LOAD) == simulate(CELL, LOAD)
    assert simulate(CELL, LOAD) != simulate(CELL, replace(LOAD, seed=2))


def test_policies_meet_the_same_requests() -> None:
    spread, filled = (simulate(CELL, LOAD, Policy(placing=placing)) for placing in ("spread", "fill-first"))
    assert spread.window_s == filled.window_s
    assert spread.energy_j is not None
    assert filled.energy_j is not None
    # Three modules at the speeds of a 7B: full ones are cheaper for each answer, and slower.
    assert filled.energy_j < spread.energy_j
    assert filled.total.mean.value > spread.total.mean.value


def test_requests_on_a_module_share_its_speed() -> None:
    """Two requests of 10 tokens, the second halfway through the first: by hand."""
    module = Curve(tokens_per_s=(0.0, 10.0, 12.0), power_w=(1.0, 5.0, 8.0))
    outcome = simulate(Plant(decode=(module,)), Trace(arrivals=((0.0, 0.0, 10.0), (0.5, 0.0, 10.0))))
    # 0 to 0.5 s alone: 5 tokens; then 6 tok/s each: the first ends at 0.5 + 5/6; the second has 5 left, alone at 10 tok/s.
    first, second = 0.5 + 5 / 6, 0.5 + 5 / 6 + 0.5
    assert outcome.total.mean.value == pytest.approx((first + second - 0.5) / 2)
    assert outcome.window_s == pytest.approx(second)
    assert outcome.energy_j == pytest.approx(0.5 * 5 + 5 / 6 * 8 + 0.5 * 5)
    assert outcome.tokens_in_window == 20.0


def test_a_static_batch_leaves_as_a_whole() -> None:
    module = Curve(tokens_per_s=(0.0, 10.0, 12.0), power_w=(1.0, 5.0, 8.0))
    arrivals = ((0.0, 0.0, 10.0), (0.5, 0.0, 12.0), (0.6, 0.0, 6.0))
    outcome = simulate(Plant(decode=(module,)), Trace(arrivals=arrivals), Policy(batching="static"))
    # The first alone to 1.0 s; then both others at 6 tok/s until the longer one is done at 3.0 s.
    assert outcome.total.mean.value == pytest.approx((1.0 + 2.5 + 2.4) / 3)
    assert outcome.energy_j == pytest.approx(1.0 * 5 + 2.0 * 8)


def test_a_prompt_waits_for_a_prefill_module_and_crosses_the_link() -> None:
    plant = Plant(
        decode=(Curve(tokens_per_s=(0.0, 10.0, 20.0)),),
        prefill=Prefill(modules=1, prompt_tokens_per_s=100.0),
        link_s_per_prompt_token=0.01,
    )
    outcome = simulate(plant, Trace(arrivals=((0.0, 100.0, 10.0), (0.0, 100.0, 10.0))))
    # Read at 1 s and 2 s, across at 2 s and 3 s, decoded in 1 s each; the second one waited 1 s.
    assert outcome.total.mean.value == pytest.approx(3.5)
    assert outcome.waiting.mean.value == pytest.approx(0.5)
    assert outcome.first_token.mean.value == pytest.approx(2.5 + 0.1)
    assert outcome.energy_j is None


def test_a_cap_leaves_slots_empty() -> None:
    outcome = simulate(CELL, LOAD, Policy(cap=8))
    assert max(n for n, share in enumerate(outcome.occupancy) if share) == 8
    assert outcome.slots == 24


@pytest.mark.parametrize("policy", [Policy(), Policy(cap=4)], ids=str)
def test_one_module_does_to_the_digit_what_it_does_in_simpy(bench: ModuleType, policy: Policy) -> None:
    plant = replace(CELL, decode=(MODULE,))
    arrivals = bench.drawn(1200, 1.0)
    took, decoded, decode_j = bench.in_simpy(plant, arrivals, policy)
    outcome = simulate(plant, Trace(arrivals=tuple(arrivals)), policy)
    assert outcome.total.mean.value == pytest.approx(float(np.mean(took)), rel=1e-9)
    assert outcome.total.p99.value == pytest.approx(float(np.percentile(took, 99)), rel=1e-9)
    assert outcome.decode.mean.value == pytest.approx(float(np.mean(decoded)), rel=1e-9)
    # In simpy the clock starts at 0, in a trace with the first arrival.
    before_j = 10.0 * arrivals[0][0]
    assert outcome.energy_by_module_j[0] + before_j == pytest.approx(decode_j, rel=1e-9)


@pytest.mark.parametrize("placing", ["spread", "fill-first"])
def test_several_modules_come_to_what_they_come_to_in_simpy(bench: ModuleType, placing: queueing.Placing) -> None:
    """Nearly: where two modules have equally many requests, the two take different ones."""
    arrivals = bench.drawn(3000, 5.0)
    took, decoded, decode_j = bench.in_simpy(CELL, arrivals, Policy(placing=placing))
    outcome = simulate(CELL, Trace(arrivals=tuple(arrivals)), Policy(placing=placing))
    assert outcome.total.mean.value == pytest.approx(float(np.mean(took)), rel=0.01)
    assert outcome.decode.mean.value == pytest.approx(float(np.mean(decoded)), rel=0.01)
    assert math.fsum(outcome.energy_by_module_j[:3]) == pytest.approx(decode_j, rel=0.01)


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    path = Path(__file__).parents[2] / "benchmarks" / "bench_queueing.py"
    spec = importlib.util.spec_from_file_location("bench_queueing", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)
        spec.loader.exec_module(module)
        yield module


def test_a_load_beyond_the_capacity_has_no_steady_state() -> None:
    capacity = queueing.capacity_requests_per_s(CELL, Policy(), 300.0, 128.0)
    assert capacity == pytest.approx(3 * 338.8 / 128)
    assert simulate(CELL, replace(LOAD, requests_per_s=1.05 * capacity)).growing
    assert simulate(CELL, replace(LOAD, requests_per_s=1e6)).growing
    assert not simulate(CELL, replace(LOAD, requests_per_s=0.9 * capacity)).growing


def test_prefill_can_be_what_limits() -> None:
    assert queueing.capacity_requests_per_s(CELL, Policy(), 3000.0, 128.0) == pytest.approx(2.0)
    assert simulate(CELL, replace(LOAD, prompt_tokens=3000.0, requests_per_s=2.1)).growing


def test_a_queue_that_static_batches_cannot_keep_up_with_is_seen() -> None:
    """Batches as long as their longest answer serve less than the curve says."""
    rate = 0.8 * queueing.capacity_requests_per_s(CELL, Policy(), 300.0, 128.0)
    assert not simulate(CELL, replace(LOAD, requests_per_s=rate)).growing
    assert simulate(CELL, replace(LOAD, requests_per_s=rate, requests=20_000), Policy(batching="static")).growing


def test_batches_that_are_alike_are_told_of() -> None:
    few = Load(requests_per_s=0.99, answer_tokens=1.0, answer_lengths="exponential", requests=4000, seed=3)
    assert simulate(servers(1), few).correlated
    assert not simulate(servers(1), replace(few, requests_per_s=0.3)).correlated


def test_nothing_is_extrapolated() -> None:
    with pytest.raises(ValueError, match="a curve up to 32 slots needs figures at 1 and at 32 or more"):
        queueing.curve(SPEEDS, POWERS, 10.0, 32)
    with pytest.raises(ValueError, match=r"it has \[2, 4\]"):
        queueing.curve({2: 94.5, 4: 163.6}, None, None, 4)


def test_a_trace_has_no_intervals_and_all_of_it_is_counted() -> None:
    outcome = simulate(CELL, Trace(arrivals=tuple((float(t), 100.0, 64.0) for t in range(40))))
    assert outcome.counted == outcome.answered == outcome.arrived == 40
    assert outcome.total.mean.half_width is None
