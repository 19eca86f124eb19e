"""Whether a battery takes up energy, which a meter of the board or of the wall reads as if it were work.

Linux: `status` of each supply of type Battery, as in the kernel's Documentation/ABI/testing/sysfs-class-power; supplies of
scope `Device` belong to a mouse or a headset. macOS: the state that `pmset -g batt` prints.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from pytest_joules.meters._sysfs import ReadError, entries, optional_text, text
from pytest_joules.places import root
from pytest_joules.vitals import Vital

NAME = "battery"

PROGRAM_S = 1.5
"""How long `pmset` may take."""

PROGRAM_EVERY = 10
"""A program costs some milliseconds, and a battery does not hurry."""

_STATES = {"Charging": 1.0, "Discharging": 0.0, "Not charging": 0.0, "Full": 0.0}
_MAC_STATES = {
    "charging": 1.0,
    "finishing charge": 1.0,
    "discharging": 0.0,
    "charged": 0.0,
    "AC attached": 0.0,
    "not charging": 0.0,
}


def find() -> Sequence[Vital]:
    """Every battery of this machine."""
    if platform.system() == "Darwin":
        return (
            []
            if _mac_without_battery()
            else [_vital("internal", "pmset -g batt", lambda: pmset_charging(_pmset()), PROGRAM_EVERY)]
        )
    return [
        _vital(supply.name, str(supply / "status"), partial(_charging, supply / "status"), 1)
        for supply in entries(root() / "class" / "power_supply")
        if optional_text(supply / "type") == "Battery"
        and optional_text(supply / "scope") != "Device"
        and optional_text(supply / "present") != "0"
    ]


def _vital(name: str, source: str, read: Callable[[], float], every: int) -> Vital:
    return Vital(
        name=f"{NAME}.{name}.charging",
        what="charging",
        kind="gauge",
        unit="1 while charging",
        source=source,
        read=read,
        every=every,
    )


def _charging(path: Path) -> float:
    """1 while a battery charges, else 0. Raises `ReadError`, also for the status `Unknown`."""
    said = text(path)
    if said not in _STATES:
        raise ReadError(path, f"says {said[:40]!r}", passing=True)
    return _STATES[said]


def pmset_charging(printed: str) -> float:
    """1 when `pmset -g batt` says that the battery charges, else 0. Raises `LookupError` when it says neither."""
    found = re.search(r"InternalBattery.*?\d+%;\s*([^;]+);", printed)
    if found is None or found.group(1) not in _MAC_STATES:
        raise LookupError(f"pmset says {found.group(1) if found else 'nothing'!r} of the battery")
    return _MAC_STATES[found.group(1)]


def _mac_without_battery() -> bool:
    try:
        return "InternalBattery" not in _pmset()
    except (OSError, subprocess.SubprocessError):
        # Not to be told is not the same as to have none: the vital is there, and its reads say what is wrong.
        return False


def _pmset() -> str:
    return subprocess.run(
        ["pmset", "-g", "batt"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=True,
        env={**os.environ, "LC_ALL": "C"},
    ).stdout
