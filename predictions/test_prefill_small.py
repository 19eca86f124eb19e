"""The same with a small model: its attention is a larger share of its arithmetic, so that length shows more.

A token of this model takes 0.27 GFLOP in its weights; at 4,096 tokens it looks back on 2,048 others on average, which is 0.14 more.
"""

import pytest

pytestmark = pytest.mark.joules("prefill-small")


@pytest.mark.joules(primary=True)
def test_a_long_prompt_is_dearer_by_the_token(sweep):
    """At 4,096 tokens a prompt token costs 20 to 150 % more than at 256."""
    energy = sweep.energy_per_prompt_token_mj
    assert 0.20 <= energy[4096] / energy[256] - 1 <= 1.50


def test_it_grows_with_length_from_256_on(sweep):
    """From 256 on a prompt token gets dearer with every step in length."""
    energy = sweep.energy_per_prompt_token_mj
    assert energy[256] < energy[1024] < energy[4096]
