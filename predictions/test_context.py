"""What a long context adds to a decoded token of a 7B model. That it adds, and that an 8-bit cache does not win it back, was published."""

import pytest

pytestmark = pytest.mark.joules("context", threshold="chosen after the data")


def test_a_long_context_raises_the_cost_of_a_token(sweep):
    """At 8,000 tokens a decoded token costs more than at 512, with either cache."""
    for cache in ("f16", "q8_0"):
        decoded = sweep.where(cache_type=cache).decode_energy_per_token_mj
        assert decoded[8000] > decoded[512]


@pytest.mark.joules(primary=True)
def test_an_8_bit_cache_does_not_win_it_back(sweep):
    """At 8,000 tokens a token with an 8-bit cache still costs more than one with a 16-bit cache at 512."""
    decoded = sweep.decode_energy_per_token_mj
    assert decoded[8000, "q8_0"] > decoded[512, "f16"]
