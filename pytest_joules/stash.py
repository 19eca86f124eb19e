"""Where the plugin keeps its objects in pytest's configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_joules.collecting import Collector
    from pytest_joules.session import PowerSource

COLLECTOR: pytest.StashKey[Collector] = pytest.StashKey()

POWER: pytest.StashKey[PowerSource] = pytest.StashKey()
"""What measured blocks of code in tests."""

WORKERS_NOTES: pytest.StashKey[list[tuple[str, list[str]]]] = pytest.StashKey()
"""Title and lines of what the workers of pytest-xdist measured; without a title, lines that stand alone."""
