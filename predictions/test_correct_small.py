"""What serving several questions at once does to the price of a right answer, on a small CPU and with a small model."""

import pytest

pytestmark = pytest.mark.joules("correct-small")


def test_eight_slots_cost_less_for_each_right_answer(sweep):
    """A right answer costs less energy when eight questions are answered at once than when one is."""
    joules = sweep.energy_per_correct_j
    assert joules[8] < joules[1]


def test_eight_slots_save_a_tenth_or_more(sweep):
    """Eight at once save between 10 and 70 % of the energy per right answer."""
    assert 0.10 <= sweep.energy_per_correct_j.saving(1, 8) <= 0.70


def test_the_batch_does_not_change_what_is_right(sweep):
    """As large a share of the answers is right at eight slots as at one, within the 14 points that 96 questions resolve."""
    accuracy = sweep.accuracy
    assert abs(accuracy[8] - accuracy[1]) <= 0.14


def test_the_model_solves_a_part_of_the_questions(sweep):
    """Of these questions a model of this size answers between 20 and 60 % rightly."""
    assert sweep.accuracy.min() >= 0.20
    assert sweep.accuracy.max() <= 0.60


def test_nearly_every_answer_can_be_read(sweep):
    """From nine of ten answers something can be taken, right or wrong."""
    assert sweep.answered.min() >= 0.9 * 96
