"""What the small recipe is held against."""

import pytest

pytestmark = pytest.mark.joules("reference-naive-small")


def test_a_quarter_to_a_half_of_the_answers_is_right(sweep):
    """Of these questions a model of this size answers between 25 and 50 % rightly."""
    assert 0.25 <= sweep.accuracy[1] <= 0.50


def test_it_is_load_and_not_idling(sweep):
    """Idle power is at most half of the power while it answers."""
    assert sweep.idle_power_w[1] <= 0.5 * sweep.power_w[1]
