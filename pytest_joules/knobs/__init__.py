"""Settings of the machine that a suite can fix or vary, such as a clock cap: the interface, and how they are found.

A knob is one module of this package (or an entry point in the group `pytest_joules.knobs`) with

    NAME: str                                         what a suite calls it
    def held(value) -> AbstractContextManager[None]   sets it and puts back what was there before
    def takes() -> str                                what values this machine takes, in words, for `joules doctor`; may be left out

`held` checks the value and the machine when it is called and changes nothing before the block is entered, so that every condition
of a suite can be asked about before anything is measured. A knob that makes its changes through the function `held` of this package is
put back on every way out, kill -9 included, and is looked at in every window: does it still read as it was set, and does the machine
keep to it?
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pytest_joules import discovery
from pytest_joules.errors import Unmeasured, UsageError
from pytest_joules.knobs._held import Cap, Change, Held, active, at_hand, held, put_back, told

__all__ = [
    "Cap", "Change", "Held", "active", "at_hand", "check", "held", "in_decode", "knobs", "put_back", "throughout", "told",
]  # fmt: skip

ENTRY_POINTS = "pytest_joules.knobs"

DECODE = "decode"
"""The phase that a setting can be held in alone: `knobs: {amdgpu_sclk_max_mhz: {decode: 1300}}`."""


def knobs() -> dict[str, Any]:
    """Every known knob by name: the modules of this package, then the installed entry points."""
    found = discovery.members(__name__, __path__, ENTRY_POINTS, offers="held")
    return {name: knob for name, knob in found.items() if not isinstance(knob, discovery.Broken)}


def throughout(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are held from before the server starts until it has stopped."""
    return {name: value for name, value in wanted.items() if not isinstance(value, Mapping)}


def in_decode(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are held while answers are decoded, and not while prompts are read.

    Raises:
        UsageError: another phase is named.
    """
    phased = {name: value for name, value in wanted.items() if isinstance(value, Mapping)}
    for name, phases in phased.items():
        if list(phases) != [DECODE]:
            raise UsageError(f"knob {name}: expected a value, or {{{DECODE}: value}}, not {dict(phases)!r}")
    return {name: phases[DECODE] for name, phases in phased.items()}


def check(wanted: Iterable[Mapping[str, Any]]) -> None:
    """Ask every knob about every value it is to take. Nothing is changed. A wrong value goes before a setting that is not here.

    Raises:
        UsageError: a value is none that the knob takes, or out of the machine's range.
        Unmeasured: this machine does not have the setting, or this user may not change it.
    """
    known = knobs()
    asked: list[tuple[str, Any]] = []
    not_here: Unmeasured | None = None
    for settings in wanted:
        for name, value in (*throughout(settings).items(), *in_decode(settings).items()):
            if (name, value) not in asked:
                asked.append((name, value))
                try:
                    known[name].held(value)
                except Unmeasured as error:
                    not_here = not_here or error
    if not_here is not None:
        raise not_here
