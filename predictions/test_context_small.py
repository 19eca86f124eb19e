"""What a deep context adds to a decoded token on a small CPU with a small model."""

import pytest

pytestmark = pytest.mark.joules("context-small")


@pytest.mark.joules(primary=True)
def test_depth_makes_a_token_dearer(sweep):
    """With 1,024 tokens before it a decoded token costs at least 15 % more than with 64."""
    decoded = sweep.where(cache_type="f16").decode_energy_per_token_mj
    assert decoded[1024] >= 1.15 * decoded[64]


def test_an_8_bit_cache_does_not_win_it_back(sweep):
    """With an 8-bit cache a token at 1,024 still costs more than one with a 16-bit cache at 64."""
    decoded = sweep.decode_energy_per_token_mj
    assert decoded[1024, "q8_0"] > decoded[64, "f16"]


def test_a_shallow_context_does_not_care_for_the_cache_s_format(sweep):
    """With 64 tokens before it a token costs the same with either cache, within 10 %."""
    decoded = sweep.where(prompt_tokens=64).decode_energy_per_token_mj
    assert abs(decoded["q8_0"] / decoded["f16"] - 1) <= 0.10
