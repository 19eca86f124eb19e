"""Whether the 1.5B curve stands when every window is four times as long."""

import pytest

pytestmark = pytest.mark.joules("decode-batch-1.5b-long", against="decode-batch-1.5b")


def test_within_8_percent_of_the_short_run(sweep, against):
    """From batch 1 to 8 a token costs within 8 % of what it cost in the short windows."""
    for batch in (1, 2, 4, 8):
        assert abs(sweep.energy_per_token_mj[batch] / against.energy_per_token_mj[batch] - 1) <= 0.08


def test_the_knee_stays_at_16(sweep):
    """Energy per token is lowest at 16, and 32 stays above it."""
    energy = sweep.energy_per_token_mj
    assert energy.argmin() == 16
    assert energy[32] > energy[16]


def test_passes_within_5_percent(sweep):
    """The passes agree within 5 % at every batch."""
    assert sweep.energy_per_token_mj.spread.max() <= 0.05
