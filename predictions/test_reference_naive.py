"""What the recipe is held against must be worth the name: a machine at work, on questions that its model can answer."""

import pytest

pytestmark = pytest.mark.joules("reference-naive")


def test_most_answers_are_right(sweep):
    """The model is right on at least 70 % of the questions."""
    assert sweep.accuracy[1] >= 0.70


def test_it_is_load_and_not_idling(sweep):
    """Idle power is at most half of the power while it answers."""
    assert sweep.idle_power_w[1] <= 0.5 * sweep.power_w[1]
