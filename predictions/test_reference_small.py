"""As much of the recipe as a small CPU can follow: eight slots and the prompt cache."""

import pytest

pytestmark = pytest.mark.joules("reference-small", against="reference-naive-small")


@pytest.mark.joules(primary=True)
def test_eight_slots_and_the_cache_save_a_quarter_or_more(sweep, against):
    """A right answer costs between 40 and 75 % of what it costs one at a time."""
    assert 0.40 <= sweep.energy_per_correct_j[8] / against.energy_per_correct_j[1] <= 0.75


def test_as_many_answers_are_right(sweep, against):
    """As large a share of the answers is right, within five points."""
    assert abs(sweep.accuracy[8] - against.accuracy[1]) <= 0.05
