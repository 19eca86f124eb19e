"""Where a small CPU's minimum sits: arithmetic is soon its limit, and more slots bring nothing."""

import pytest

pytestmark = pytest.mark.joules("batch-grid-small")


def test_from_eight_on_the_curve_is_flat(sweep):
    """From 8 to 16 energy per token changes by less than 15 % either way."""
    assert abs(sweep.energy_per_token_mj.saving(8, 16)) < 0.15


def test_the_minimum_is_at_eight_or_beyond(sweep):
    """Energy per token is lowest at 8, 12 or 16."""
    assert sweep.energy_per_token_mj.argmin() in (8, 12, 16)


def test_four_cost_more_than_eight(sweep):
    """At 4 a token costs 5 to 30 % more than at 8."""
    energy = sweep.energy_per_token_mj
    assert 1.05 <= energy[4] / energy[8] <= 1.30
