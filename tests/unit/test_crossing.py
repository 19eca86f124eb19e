import math

import pytest

from pytest_joules import crossover
from pytest_joules.registration import ALLOWED_IMPORTS
from pytest_joules.sweep import Cell, Sweep


@pytest.mark.parametrize("at", [1.5, 4.0, 11.0])
def test_power_laws_cross_where_they_do(at: float) -> None:
    axis = (1, 2, 8, 16)
    first, second = {x: 3.0 * x**-0.5 for x in axis}, {x: 3.0 * at**-1.3 * x**0.8 for x in axis}
    assert crossover(first, second) == pytest.approx(at)
    assert crossover(second, first) == pytest.approx(at)


def test_curves_that_do_not_cross_have_no_crossing() -> None:
    low, high = {1: 10.0, 8: 4.0, 16: 5.0}, {1: 11.0, 8: 4.4, 16: 5.5}
    assert crossover(low, high) is None
    assert crossover(low, low) is None


def test_curves_that_only_touch_do_not_cross() -> None:
    assert crossover({1: 1.0, 2: 2.0, 4: 1.0}, {1: 2.0, 2: 2.0, 4: 2.0}) is None


def test_a_common_point_between_two_sides_is_the_crossing() -> None:
    assert crossover({1: 1.0, 2: 2.0, 4: 4.0}, {1: 2.0, 2: 2.0, 4: 2.0}) == pytest.approx(2.0)


def test_of_several_crossings_the_lowest_is_taken_whatever_the_order_of_the_conditions() -> None:
    first, second = {4: 3.0, 1: 1.0, 2: 3.0, 8: 1.0}, dict.fromkeys((1, 2, 4, 8), 2.0)
    found = crossover(first, second)
    assert found is not None
    assert 1 < found < 2


def test_conditions_that_are_no_numbers_take_their_place_from_sizes() -> None:
    sizes = {"7b": 7.0, "32b": 32.0}
    found = crossover({"7b": 100.0, "32b": 400.0}, {"7b": 125.0, "32b": 320.0}, sizes)
    # Equal and opposite logarithms: half way between the sizes on a logarithmic axis.
    assert found == pytest.approx(math.sqrt(7.0 * 32.0))


def test_only_conditions_of_both_are_looked_at() -> None:
    assert crossover({1: 1.0, 2: 1.0, 99: 9.0}, {1: 2.0, 2: 2.0, 0: 0.1}) is None


@pytest.mark.parametrize(
    ("first", "second", "sizes", "said"),
    [
        ({1: 1.0}, {1: 2.0}, None, "two conditions that both have; there are 1"),
        ({1: 1.0}, {2: 2.0}, None, "there are none"),
        ({"7b": 1.0, "32b": 2.0}, {"7b": 2.0, "32b": 1.0}, None, "'7b' has no number on the axis above 0; give it in sizes"),
        ({"7b": 1.0, "32b": 2.0}, {"7b": 2.0, "32b": 1.0}, {"7b": 7.0}, "'32b' has no number on the axis"),
        ({0: 1.0, 2: 2.0}, {0: 2.0, 2: 1.0}, None, "0 has no number on the axis above 0"),
        ({1: 1.0, 2: math.nan}, {1: 2.0, 2: 1.0}, None, "2 has no figure above 0"),
    ],
)  # fmt: skip
def test_what_cannot_cross_is_told(first, second, sizes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        crossover(first, second, sizes)


def test_columns_of_a_table_can_be_compared_and_what_was_read_is_known() -> None:
    cells = [
        Cell(condition={"format": form, "parallel": slots}, passes=({"energy_per_token_mj": mj},))
        for form, slots, mj in (("a", 1, 10.0), ("a", 8, 10.0), ("b", 1, 5.0), ("b", 8, 20.0))
    ]
    sweep = Sweep(("format", "parallel"), cells)
    columns = [sweep.where(format=form).energy_per_token_mj for form in ("a", "b")]
    assert crossover(*columns) == pytest.approx(math.sqrt(8.0))
    assert sweep.reads.metrics == {"energy_per_token_mj"}


def test_a_prediction_may_import_it() -> None:
    assert crossover.__module__.split(".")[0] in ALLOWED_IMPORTS
