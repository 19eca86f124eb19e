"""This repository's own choices. The plugin itself comes in by its entry point, never from here."""

import os
from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Where this clone keeps model weights."""
    # Weights are never in git; a clone keeps them in a folder that git ignores.
    os.environ.setdefault("JOULES_MODELS", str(Path(config.rootpath) / "models"))
