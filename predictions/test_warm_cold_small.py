"""What a rest does to the next figure on a CPU whose energy is estimated from its time: nothing that an estimate could see."""

import pytest

pytestmark = pytest.mark.joules("warm-cold-small")


def test_cold_and_warm_cost_the_same(sweep):
    """The first work after a rest costs within 10 % of what later work costs by the token."""
    energy = sweep.energy_per_token_mj
    assert abs(energy["cold"] / energy["warm"] - 1) <= 0.10


def test_power_is_the_same(sweep):
    """So does its power."""
    power = sweep.power_w
    assert abs(power["cold"] / power["warm"] - 1) <= 0.10
