"""What a cap on the CPU's clock does to a small model that runs on the CPU."""

import pytest

pytestmark = pytest.mark.joules("clock-cap-small")


def test_a_token_costs_less_energy(sweep):
    """A cap at 2,000 MHz saves at least 10 % of the energy per token."""
    assert sweep.energy_per_token_mj.saving("uncapped", 2000) >= 0.10


def test_a_token_takes_longer(sweep):
    """It costs speed, but less than half of it."""
    speed = sweep.tokens_per_s
    assert 0.5 * speed["uncapped"] < speed[2000] < speed["uncapped"]
