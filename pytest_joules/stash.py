"""Where the plugin keeps its one object in pytest's configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_joules.collecting import Collector

COLLECTOR: pytest.StashKey[Collector] = pytest.StashKey()
