"""What a cap on the shader clock does to a 7B model at one request, as it was published for a Strix Halo.

A saving is held against the published one within 5 points, a loss of speed against the published one and 2 points more.
"""

import pytest

pytestmark = pytest.mark.joules("clock-cap", threshold="chosen after the data")


@pytest.mark.joules(primary=True)
def test_1800_mhz_saves_37_percent(sweep):
    """A cap at 1,800 MHz saves 37 % of the energy per token, give or take 5 points."""
    assert abs(sweep.energy_per_token_mj.saving("uncapped", 1800) - 0.37) <= 0.05


def test_1800_mhz_costs_4_percent_of_the_speed(sweep):
    """It costs about 4 % of the speed: at most 6 %."""
    speed = sweep.tokens_per_s
    assert speed[1800] >= (1 - 0.06) * speed["uncapped"]


def test_1200_mhz_saves_42_percent(sweep):
    """A cap at 1,200 MHz saves 42 % of the energy per token, give or take 5 points."""
    assert abs(sweep.energy_per_token_mj.saving("uncapped", 1200) - 0.42) <= 0.05


def test_1200_mhz_costs_8_percent_of_the_speed(sweep):
    """It costs about 8 % of the speed: at most 10 %."""
    speed = sweep.tokens_per_s
    assert speed[1200] >= (1 - 0.10) * speed["uncapped"]


def test_the_first_cap_saves_most(sweep):
    """From 1,800 to 1,200 MHz less than 15 % more is saved: the first cap takes most of it."""
    assert sweep.energy_per_token_mj.saving(1800, 1200) < 0.15
