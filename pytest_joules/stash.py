"""Where the plugin keeps its objects in pytest's configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_joules.collecting import Collector

COLLECTOR: pytest.StashKey[Collector] = pytest.StashKey()

WORKERS_NOTES: pytest.StashKey[list[tuple[str, list[str]]]] = pytest.StashKey()
"""Title and lines of what the workers of pytest-xdist measured."""
