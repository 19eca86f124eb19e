"""Whether drafting still pays by the token when a batch shares each read of the weights already."""

import pytest

pytestmark = pytest.mark.joules("speculative-slots")


@pytest.mark.joules(primary=True)
def test_at_eight_slots_the_draft_saves_less(sweep):
    """A draft with a threshold of 0.5 saves a smaller share of the energy per token at eight slots than at one."""
    one, eight = (sweep.where(parallel=slots).energy_per_token_mj for slots in (1, 8))
    assert eight.saving("off", 0.5) < one.saving("off", 0.5)


def test_at_eight_slots_the_draft_no_longer_pays(sweep):
    """At eight slots it saves less than 5 % of the energy per token, if anything."""
    assert sweep.where(parallel=8).energy_per_token_mj.saving("off", 0.5) < 0.05


def test_unchecked_drafts_are_worse_at_eight(sweep):
    """Without a threshold drafts multiply the energy per token by more at eight slots than at one."""
    one, eight = (sweep.where(parallel=slots).energy_per_token_mj for slots in (1, 8))
    assert eight[0] / eight["off"] > one[0] / one["off"]
