"""What the length of a draft costs."""

import pytest

pytestmark = pytest.mark.joules("speculative-length")


@pytest.mark.joules(primary=True)
def test_unchecked_drafts_get_dearer_with_their_length(sweep):
    """Without a threshold energy per token rises with every doubling of the draft from 4 tokens on."""
    energy = sweep.where(draft_threshold=0).energy_per_token_mj
    assert energy[4] < energy[8] < energy[16]


def test_with_a_threshold_the_length_hardly_matters(sweep):
    """With a threshold of 0.5 drafts of 16 tokens cost within 10 % of drafts of 4."""
    energy = sweep.where(draft_threshold=0.5).energy_per_token_mj
    assert abs(energy[16] / energy[4] - 1) <= 0.10


def test_a_threshold_is_worth_more_than_a_short_draft(sweep):
    """Drafts of 16 tokens with the threshold cost less than the best length without it."""
    assert (
        sweep.at(draft_threshold=0.5, draft_tokens_max=16).energy_per_token_mj
        < sweep.where(draft_threshold=0).energy_per_token_mj.min()
    )
