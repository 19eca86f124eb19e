"""What a prompt token costs at 512 to 8,192 tokens.

The published page has a prompt token cost a fortieth of a generated one, without a length. What grows with it is attention: at 8,192 tokens each one looks
back on 4,096 others on average, which adds some 12 % to the arithmetic of a 7B.
"""

import pytest

pytestmark = pytest.mark.joules("prefill")


@pytest.mark.joules(primary=True)
def test_a_long_prompt_is_a_little_dearer_by_the_token(sweep):
    """At 8,192 tokens a prompt token costs 5 to 50 % more than at 512."""
    energy = sweep.energy_per_prompt_token_mj
    assert 0.05 <= energy[8192] / energy[512] - 1 <= 0.50


def test_it_grows_with_every_doubling_from_2048_on(sweep):
    """From 2,048 on every doubling of the prompt makes its token dearer."""
    energy = sweep.energy_per_prompt_token_mj
    assert energy[2048] < energy[4096] < energy[8192]


def test_power_is_within_a_tenth(sweep):
    """Power is the same at every length, within 10 %: what a long prompt costs is time."""
    power = sweep.power_w
    assert power.max() <= 1.10 * power.min()
