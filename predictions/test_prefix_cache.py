"""What a long prompt costs and what a cached prefix saves on a 7B model, as it was published."""

import pytest

pytestmark = pytest.mark.joules("prefix-cache", threshold="chosen after the data")


@pytest.mark.joules(primary=True)
def test_a_prompt_token_costs_a_fortieth(sweep):
    """A prompt token costs about a fortieth of a generated one: between a fiftieth and a thirtieth."""
    ratio = sweep.energy_per_prompt_token_mj[False] / sweep.decode_energy_per_token_mj[False]
    assert 1 / 50 <= ratio <= 1 / 30


def test_eight_thousand_tokens_are_40_percent(sweep):
    """At a prompt of 8,000 tokens prefill is 40 % of a request's energy, give or take 5 points."""
    assert abs(sweep.prefill_share[False] - 0.40) <= 0.05


def test_a_cached_prefix_saves_what_its_prefill_cost(sweep):
    """With 7,680 of 8,000 tokens in the cache a request saves that part of its prefill, within 5 points."""
    saved = sweep.energy_per_token_mj.saving(False, True)
    assert abs(saved - sweep.prefill_share[False] * 7680 / 8000) <= 0.05
