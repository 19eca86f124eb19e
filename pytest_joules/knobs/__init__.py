"""Settings of the machine that a suite can fix or vary, such as a clock cap: the interface, and how they are found.

A knob is one module of this package (or an entry point in the group `pytest_joules.knobs`) with

    NAME: str                                         what a suite calls it
    def held(value) -> AbstractContextManager[None]   sets it and puts back what was there before
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
from types import ModuleType

ENTRY_POINTS = "pytest_joules.knobs"


def knobs() -> dict[str, ModuleType]:
    """Every known knob by name: the modules of this package, then the installed entry points."""
    found: dict[str, ModuleType] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        if hasattr(module, "held"):
            found[module.NAME] = module
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        found.setdefault(entry.name, entry.load())
    return found
