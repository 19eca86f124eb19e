"""Whether eight slots make up for twice the weights on a small CPU, by the token."""

import pytest

pytestmark = pytest.mark.joules("model-size-small")

SMALL, LARGE = "synthetic-llama-6x576", "synthetic-smollm2-135m"


def test_eight_slots_do_not_make_up_for_twice_the_weights(sweep):
    """A token of the larger model at eight slots costs more than one of the smaller at one: two cores gain too little from a batch."""
    energy = sweep.energy_per_token_mj
    assert energy[LARGE, 8] > energy[SMALL, 1]


def test_at_equal_slots_the_larger_costs_twice_as_much_or_more(sweep):
    """At one slot and at eight a token of the larger model costs between two and five times as much."""
    energy = sweep.energy_per_token_mj
    for slots in (1, 8):
        assert 2 <= energy[LARGE, slots] / energy[SMALL, slots] <= 5
