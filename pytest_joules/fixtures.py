"""The fixtures: `sweep` and `against` for predictions, and factories for tests that want the hardware.

A prediction's `sweep` asks for the factories only when something is measured, so that a conftest can override them and a
replay opens nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pytest_joules.stash import POWER

if TYPE_CHECKING:
    from pytest_joules.protocol import Warm
    from pytest_joules.session import ModelServers, PowerSource
    from pytest_joules.sweep import Sweep


@pytest.fixture(scope="session")
def model_server(pytestconfig: pytest.Config) -> Iterator[ModelServers]:
    """Starts model servers: `with model_server(parallel=8) as server: ...`."""
    from pytest_joules.collecting import collector_of
    from pytest_joules.session import ModelServers

    servers = ModelServers(collector_of(pytestconfig).session)
    yield servers
    servers.close()


@pytest.fixture(scope="session")
def warm_chip() -> Warm:
    """Warms the chip up with a server's own work: `warm_chip(server, seconds=30)`."""
    from pytest_joules.protocol import warm

    return warm


@pytest.fixture(scope="session")
def power(pytestconfig: pytest.Config) -> Iterator[PowerSource]:
    """Energy of any code: `with power.window() as w: ...`, then `assert w.energy_j < 200`."""
    from pytest_joules.collecting import collector_of
    from pytest_joules.session import PowerSource

    source = PowerSource(collector_of(pytestconfig).session.options.meter)
    pytestconfig.stash[POWER] = source
    yield source
    source.close()


@pytest.fixture
def sweep(request: pytest.FixtureRequest) -> Sweep:
    """The table of the suite named by `pytest.mark.joules`, measured on first use in the session."""
    from pytest_joules.collecting import collector_of
    from pytest_joules.session import Hardware

    def hardware() -> Hardware:
        return Hardware(*(request.getfixturevalue(name) for name in ("model_server", "warm_chip", "power")))

    return collector_of(request.config).table(request.node, hardware)


@pytest.fixture
def against(request: pytest.FixtureRequest) -> Sweep:
    """The latest complete run, on this machine, of the suite named by `pytest.mark.joules(..., against=...)`."""
    from pytest_joules.collecting import collector_of

    return collector_of(request.config).against(request.node)
