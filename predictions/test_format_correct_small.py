"""Whether a right answer of a small model costs less in four bits than in eight."""

import pytest

pytestmark = pytest.mark.joules("format-correct-small")


def test_four_bits_are_cheaper_by_the_right_answer(sweep):
    """A right answer costs less energy in Q4_0 than in Q8_0."""
    joules = sweep.where(model="smollm2-135m-instruct").energy_per_correct_j
    assert joules["q4_0"] < joules["q8_0"]


def test_four_bits_lose_no_more_than_five_points(sweep):
    """Q4_0 is right at most five points less often than Q8_0."""
    accuracy = sweep.where(model="smollm2-135m-instruct").accuracy
    assert accuracy["q4_0"] >= accuracy["q8_0"] - 0.05
