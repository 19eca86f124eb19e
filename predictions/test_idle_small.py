"""Whether one thread in place of two saves energy by the token, on a machine whose idle power is a third of its power."""

import pytest

pytestmark = pytest.mark.joules("idle-small")


def test_running_slowly_saves_nothing(sweep):
    """A token costs no less energy on one thread than on two."""
    assert sweep.energy_per_token_mj[1] >= sweep.energy_per_token_mj[2]


def test_idle_is_a_larger_share_of_a_slow_machine(sweep):
    """Idle power is 20 to 50 % of the power on two threads, and at least 5 points more on one."""
    share = {threads: sweep.idle_power_w[threads] / sweep.power_w[threads] for threads in (1, 2)}
    assert 0.20 <= share[2] <= 0.50
    assert share[1] >= share[2] + 0.05


def test_above_idle_the_slow_machine_is_no_worse(sweep):
    """Less the idle power a token costs at most 10 % more on one thread than on two: the difference is the idle power."""
    net = sweep.net_energy_per_token_mj
    assert net[1] <= 1.10 * net[2]
