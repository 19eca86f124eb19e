"""Where a calibrated two-bit format begins to pay by the right answer, at eight slots.

The claims are published ones. Which questions were asked is not, so that figures are held within 5 points and accuracies within one.
"""

import pytest

from pytest_joules import crossover

pytestmark = pytest.mark.joules("format-correct", threshold="chosen after the data")

PARAMETERS = {"qwen2.5-7b-instruct": 7.6e9, "qwen2.5-14b-instruct": 14.8e9, "qwen2.5-32b-instruct": 32.8e9}


@pytest.mark.joules(primary=True)
def test_the_crossover_lies_between_7b_and_32b(sweep):
    """The cost per right answer of two bits crosses that of four bits between 7B and 32B, and two bits are cheaper above."""
    four, two = (sweep.where(format=name).energy_per_correct_j for name in ("q4_0", "q2_k-imatrix"))
    crossing = crossover(four, two, PARAMETERS)
    assert crossing is not None
    assert 7.6e9 < crossing < 32.8e9
    assert two["qwen2.5-32b-instruct"] < four["qwen2.5-32b-instruct"]


def test_on_a_7b_four_bits_are_21_percent_cheaper(sweep):
    """On the 7B a right answer costs 21 % less in Q4_0 than in calibrated Q2_K, give or take 5 points."""
    assert (
        abs(sweep.where(model="qwen2.5-7b-instruct").energy_per_correct_j.saving("q2_k-imatrix", "q4_0") - 0.21) <= 0.05
    )


def test_on_a_32b_two_bits_are_16_percent_cheaper(sweep):
    """On the 32B a right answer costs 16 % less in calibrated Q2_K than in Q4_0, give or take 5 points."""
    assert (
        abs(sweep.where(model="qwen2.5-32b-instruct").energy_per_correct_j.saving("q4_0", "q2_k-imatrix") - 0.16)
        <= 0.05
    )


def test_on_a_32b_both_are_right_as_often(sweep):
    """On the 32B both formats are right as often, within a point."""
    accuracy = sweep.where(model="qwen2.5-32b-instruct").accuracy
    assert abs(accuracy["q4_0"] - accuracy["q2_k-imatrix"]) <= 0.01
