"""What a cached prefix saves on a small CPU with a small model. There a prompt token is not nearly as cheap as on a GPU."""

import pytest

pytestmark = pytest.mark.joules("prefix-cache-small")


@pytest.mark.joules(primary=True)
def test_a_cached_prefix_saves_over_half(sweep):
    """With seven eighths of its prompt in the cache a request takes less than half the energy."""
    assert sweep.energy_per_token_mj.saving(False, True) > 0.5


def test_the_prompt_is_most_of_an_uncached_request(sweep):
    """Without the cache the prompt is over 60 % of a request's energy."""
    assert sweep.prefill_share[False] > 0.6


def test_a_prompt_token_is_cheaper_than_a_generated_one(sweep):
    """A prompt token costs between a tenth and three quarters of a generated one."""
    prompt, decoded = sweep.energy_per_prompt_token_mj[False], sweep.decode_energy_per_token_mj[False]
    assert 0.1 * decoded < prompt < 0.75 * decoded


def test_a_cached_prefix_saves_what_its_prefill_cost(sweep):
    """The cache saves the part of the prefill that it holds, within 15 points."""
    saved = sweep.energy_per_token_mj.saving(False, True)
    assert abs(saved - sweep.prefill_share[False] * 224 / 256) <= 0.15
