"""Whether a model of a fifth of the size, with more memory bandwidth for each token, moves the knee later."""

import pytest

pytestmark = pytest.mark.joules("decode-batch-1.5b")


def test_the_minimum_sits_at_16_or_32(sweep):
    """Energy per token is lowest at 16 or at 32."""
    assert sweep.energy_per_token_mj.argmin() in (16, 32)


def test_32_within_10_percent_of_the_minimum(sweep):
    """At 32 a token costs at most 10 % more than at the minimum."""
    energy = sweep.energy_per_token_mj
    assert energy[32] <= 1.10 * energy.min()


@pytest.mark.joules(threshold="chosen after the data")
def test_throughput_tops_out_near_1800(sweep):
    """Total speed tops out near 1,800 tokens per second: within a tenth of it."""
    assert 1620 <= sweep.tokens_per_s.max() <= 1980
