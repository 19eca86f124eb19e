"""An open question: a 7B that serves eight requests against a 32B that serves one, by the right answer."""

import pytest

pytestmark = pytest.mark.joules("open-slots-or-size")

SMALL, LARGE = "qwen2.5-7b-instruct", "qwen2.5-32b-instruct"


@pytest.mark.joules(primary=True)
def test_a_7b_at_eight_beats_a_32b_at_one(sweep):
    """A right answer costs less than a quarter from the 7B at eight slots of what it costs from the 32B at one."""
    joules = sweep.energy_per_correct_j
    assert joules[SMALL, 8] < 0.25 * joules[LARGE, 1]


def test_slots_do_more_than_size(sweep):
    """From one slot to eight more is saved, at either size, than from 32B to 7B at one slot is."""
    joules = sweep.energy_per_correct_j
    by_size = joules.saving((LARGE, 1), (SMALL, 1))
    assert min(joules.saving((SMALL, 1), (SMALL, 8)), joules.saving((LARGE, 1), (LARGE, 8))) > by_size


def test_the_32b_is_right_more_often(sweep):
    """At one slot the 32B is right at least two points more often."""
    accuracy = sweep.accuracy
    assert accuracy[LARGE, 1] >= accuracy[SMALL, 1] + 0.02
