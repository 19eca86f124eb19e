"""An open question: the clock cap on an RTX laptop, by NVIDIA's locked clocks."""

import pytest

pytestmark = pytest.mark.joules("open-clock-cap-rtx")


@pytest.mark.joules(primary=True)
def test_1500_mhz_saves_a_fifth(sweep):
    """A cap at 1,500 MHz saves at least 20 % of the energy per token."""
    assert sweep.energy_per_token_mj.saving("uncapped", 1500) >= 0.20


def test_1500_mhz_costs_at_most_a_tenth_of_the_speed(sweep):
    """It costs at most 10 % of the speed."""
    speed = sweep.tokens_per_s
    assert speed[1500] >= 0.90 * speed["uncapped"]


def test_lower_caps_save_more(sweep):
    """Energy per token falls with each lower cap."""
    energy = sweep.energy_per_token_mj
    assert energy["uncapped"] > energy[1800] > energy[1500] > energy[1200]
