from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_joules.schedule import ORDERS, Step, plan, rows

BATCHES = [{"parallel": n} for n in (1, 2, 4, 8)]


def orders(steps: list[Step]) -> list[list[int]]:
    passes = max(step.pass_index for step in steps) + 1
    return [
        [s.condition["parallel"] for s in steps if s.pass_index == p and s.role == "measured"] for p in range(passes)
    ]


def test_the_published_order_is_turned_round_every_second_pass() -> None:
    steps = plan(BATCHES, 3, "reversed", control=False, seed=1)
    assert orders(steps) == [[1, 2, 4, 8], [8, 4, 2, 1], [1, 2, 4, 8]]
    assert {step.role for step in steps} == {"measured"}


def test_as_given_repeats_the_suites_order() -> None:
    assert orders(plan(BATCHES, 2, "as_given", control=False, seed=1)) == [[1, 2, 4, 8]] * 2


def test_balanced_draws_by_seed_and_turns_each_pair_round() -> None:
    first, second, third, fourth = orders(plan(BATCHES, 4, "balanced", control=True, seed=1))
    assert second == first[::-1]
    assert fourth == third[::-1]
    assert orders(plan(BATCHES, 4, "balanced", control=True, seed=1)) == [first, second, third, fourth]
    drawn = {tuple(orders(plan(BATCHES, 2, "balanced", control=False, seed=seed))[0]) for seed in range(20)}
    assert len(drawn) > 5


def test_the_first_condition_of_the_suite_is_the_control() -> None:
    steps = plan(BATCHES, 2, "balanced", control=True, seed=3)
    assert [steps[i] for i in (4, 9)] == [Step(0, BATCHES[0], "control"), Step(1, BATCHES[0], "control")]


@settings(max_examples=60, derandomize=True)
@given(
    st.integers(1, 7),
    st.integers(1, 6),
    st.sampled_from(ORDERS),
    st.booleans(),
    st.integers(0, 99),
)
def test_every_condition_stands_once_in_every_pass(
    count: int, passes: int, order: str, control: bool, seed: int
) -> None:
    conditions = [{"parallel": n} for n in range(count)]
    steps = plan(conditions, passes, order, control=control, seed=seed)
    assert len(steps) == passes * (count + control)
    assert [step.pass_index for step in steps] == sorted(step.pass_index for step in steps)
    seen = Counter((s.pass_index, s.condition["parallel"]) for s in steps if s.role == "measured")
    assert seen == {(p, n): 1 for p in range(passes) for n in range(count)}


@settings(max_examples=40, derandomize=True)
@given(st.integers(2, 7), st.sampled_from([order for order in ORDERS if order != "as_given"]), st.integers(0, 99))
def test_over_a_pair_of_passes_each_condition_stands_early_as_often_as_late(count: int, order: str, seed: int) -> None:
    steps = plan([{"parallel": n} for n in range(count)], 2, order, control=False, seed=seed)
    places = [sum(place for place, step in enumerate(steps) if step.condition["parallel"] == n) for n in range(count)]
    assert set(places) == {2 * count - 1}


def test_abba_turns_the_two_inner_passes_of_four_round() -> None:
    steps = plan(BATCHES, 6, "abba", control=False, seed=1)
    given = [1, 2, 4, 8]
    assert orders(steps) == [given, given[::-1], given[::-1], given, given, given[::-1]]


def test_a_seed_goes_on_to_mean_the_same_drawn_orders() -> None:
    assert rows(6, 4, "balanced", 1) == [[2, 3, 5, 0, 4, 1], [1, 4, 0, 5, 3, 2], [0, 1, 2, 4, 5, 3], [3, 5, 4, 2, 1, 0]]


def test_interleaved_begins_each_pair_one_condition_further_round() -> None:
    assert rows(4, 5, "interleaved", 1) == [[0, 1, 3, 2], [2, 3, 1, 0], [1, 2, 0, 3], [3, 0, 2, 1], [2, 3, 1, 0]]
    assert rows(1, 3, "interleaved", 1) == [[0]] * 3


@pytest.mark.parametrize("count", range(2, 10))
def test_interleaved_is_balanced_for_place_and_for_what_ran_before(count: int) -> None:
    # One Williams square for an even number of conditions, two for an odd one.
    times = 1 + count % 2
    square = rows(count, times * count, "interleaved", 1)
    places = Counter((place, condition) for row in square for place, condition in enumerate(row))
    assert set(places.values()) == {times}
    assert len(places) == count**2
    follows = Counter(pair for row in square for pair in pairwise(row))
    assert set(follows.values()) == {times}
    assert len(follows) == count * (count - 1)


@settings(max_examples=40, derandomize=True)
@given(st.integers(2, 8), st.integers(1, 3), st.booleans())
def test_four_passes_of_abba_leave_of_a_quadratic_drift_only_what_bends_within_a_pass(
    count: int, fours: int, control: bool
) -> None:
    steps = plan([{"parallel": n} for n in range(count)], 4 * fours, "abba", control=control, seed=1)
    squares = [
        sum(i**2 for i, s in enumerate(steps) if s.condition["parallel"] == n and s.role == "measured")
        for n in range(count)
    ]
    middle = (count - 1) / 2
    left = {round(squares[n] - 4 * fours * (n - middle) ** 2, 6) for n in range(count)}
    assert len(left) == 1


def test_an_order_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="no order 'random'; there are balanced, reversed"):
        plan(BATCHES, 2, "random", control=False, seed=1)
