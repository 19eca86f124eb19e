"""The recipe as a whole, but for the clock cap, against none of it: a third to a half of the cost per right answer, as published."""

import pytest

pytestmark = pytest.mark.joules("reference", against="reference-naive", threshold="chosen after the data")


@pytest.mark.joules(primary=True)
def test_the_recipe_costs_a_third_to_a_half(sweep, against):
    """A right answer costs between a third and a half of what it costs without the recipe."""
    assert 0.33 <= sweep.energy_per_correct_j[8] / against.energy_per_correct_j[1] <= 0.5


def test_as_many_answers_are_right(sweep, against):
    """As large a share of the answers is right as without it, within a point."""
    assert abs(sweep.accuracy[8] - against.accuracy[1]) <= 0.01
