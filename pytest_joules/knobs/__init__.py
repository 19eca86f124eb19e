"""Settings of the machine that a suite can fix or vary, such as a clock cap: the interface, and how they are found.

A knob is one module of this package (or an entry point in the group `pytest_joules.knobs`) with

    NAME: str                                         what a suite calls it
    def held(value) -> AbstractContextManager[None]   sets it and puts back what was there before
"""

from __future__ import annotations

from typing import Any

from pytest_joules import discovery

ENTRY_POINTS = "pytest_joules.knobs"


def knobs() -> dict[str, Any]:
    """Every known knob by name: the modules of this package, then the installed entry points."""
    found = discovery.members(__name__, __path__, ENTRY_POINTS, offers="held")
    return {name: knob for name, knob in found.items() if not isinstance(knob, discovery.Broken)}
