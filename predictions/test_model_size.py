"""Whether accuracy buys more than speed loses, as published for two machines."""

import pytest

pytestmark = pytest.mark.joules("model-size", threshold="chosen after the data")

SMALL, LARGE = "qwen2.5-1.5b-instruct", "qwen2.5-7b-instruct"


@pytest.mark.joules(primary=True)
def test_a_7b_at_eight_beats_a_1_5b_at_one(sweep):
    """A right answer costs less energy from the 7B at eight slots than from the 1.5B at one."""
    joules = sweep.energy_per_correct_j
    assert joules[LARGE, 8] < joules[SMALL, 1]


def test_the_7b_is_right_more_often(sweep):
    """At both numbers of slots the 7B is right more often."""
    accuracy = sweep.accuracy
    assert accuracy[LARGE, 1] > accuracy[SMALL, 1]
    assert accuracy[LARGE, 8] > accuracy[SMALL, 8]
