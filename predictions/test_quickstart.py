"""What serving several requests at once does to the price of a token on a small CPU.

Written for a processor with two cores and no graphics card, where reading the weights is shared by every sequence of a step
but the arithmetic soon is not.
"""

import pytest

pytestmark = pytest.mark.joules("quickstart")


def test_eight_at_once_are_cheaper_than_one(sweep):
    """A token costs less energy when eight requests are served at once than when one is."""
    energy = sweep.energy_per_token_mj
    assert energy[8] < energy[1]


def test_total_speed_rises_at_each_step(sweep):
    """Total speed rises with every doubling of the batch, up to eight."""
    speed = sweep.tokens_per_s
    assert speed[1] < speed[2] < speed[4] < speed[8]


def test_each_request_pays_with_half_its_speed(sweep):
    """By eight, each request runs at under half the speed it has alone."""
    speed = sweep.tokens_per_s_per_request
    assert speed[8] < 0.5 * speed[1]


def test_eight_is_the_cheapest(sweep):
    """Energy per token is lowest at eight: two cores still gain from the last doubling."""
    assert sweep.energy_per_token_mj.argmin() == 8


def test_eight_at_once_save_a_quarter_or_more(sweep):
    """Eight at once save between 25 and 60 % of the energy per token."""
    assert 0.25 <= sweep.energy_per_token_mj.saving(1, 8) <= 0.60


def test_passes_agree(sweep):
    """The two passes agree within 10 % at every batch."""
    assert sweep.energy_per_token_mj.spread.max() <= 0.10
