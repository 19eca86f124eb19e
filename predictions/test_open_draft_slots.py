"""An open question: joules per right answer with the draft on, at eight slots."""

import pytest

pytestmark = pytest.mark.joules("open-draft-slots")


@pytest.mark.joules(primary=True)
def test_at_eight_slots_the_draft_makes_no_right_answer_cheaper(sweep):
    """At eight slots a right answer costs at least 95 % of what it costs without the draft: the batch has taken what a draft could save."""
    joules = sweep.where(parallel=8).energy_per_correct_j
    assert joules[0.5] >= 0.95 * joules["off"]


def test_at_one_slot_it_still_does(sweep):
    """At one slot the draft saves at least 10 % of the energy per right answer."""
    assert sweep.where(parallel=1).energy_per_correct_j.saving("off", 0.5) >= 0.10


def test_the_draft_changes_no_answer(sweep):
    """At either number of slots as many answers are right with the draft as without, within a point."""
    accuracy = sweep.accuracy
    assert abs(accuracy[1, 0.5] - accuracy[1, "off"]) <= 0.01
    assert abs(accuracy[8, 0.5] - accuracy[8, "off"]) <= 0.01
