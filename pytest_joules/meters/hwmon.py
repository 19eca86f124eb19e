"""Any power or energy sensor under /sys/class/hwmon, named by its chip and label.

From the kernel's Documentation/ABI/testing/sysfs-class-hwmon: `power*_average` and `power*_input` are microwatts,
`energy*_input` microjoules, and `*_label` says in the driver's own words what is meant. Those words do not say what the
power covers, so nothing is read unless it is asked for by name, and it is compared with nothing but itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import get_args

from pytest_joules.errors import MeterAbsent, MeterError
from pytest_joules.meters import Meter
from pytest_joules.meters._sysfs import (
    Channel,
    FileMeter,
    ReadError,
    cap_w,
    energy_j,
    entries,
    first_reading,
    optional_text,
    power_w,
    root,
)
from pytest_joules.records import Kind, Rail, Scope
from pytest_joules.words import nearest

NAME = "hwmon"

_STEM = r"(power|energy)\d+_(average|input)"


def find(argument: str | None = None) -> Sequence[Meter]:
    """The one sensor that the argument names.

    Args:
        argument: `CHIP/LABEL` or `CHIP/LABEL=SCOPE`, where CHIP is the driver's name or the folder (`hwmon3`), LABEL the text
            of the label file or the rail's own name (`power1`), and SCOPE `board` unless told.

    Raises:
        MeterError: no argument, no such sensor, or it gives no reading; the sensors that there are, are listed.
    """
    sensors = _sensors()
    if argument is None:
        raise MeterAbsent(
            f"meter {NAME}: a label does not say what it covers, so a sensor must be named; there are {_listed(sensors)}",
            f"use --joules-meter {NAME}:CHIP/LABEL, with =chip, =gpu, =board or =wall behind it where the scope is known",
        )
    named, _, told = argument.partition("=")
    known: tuple[Scope, ...] = get_args(Scope)
    scope = next((scope for scope in known if scope == (told or "board")), None)
    if scope is None:
        raise MeterError(f"meter {NAME}: {told!r} is no scope{nearest(told, known)}", f"one of {', '.join(known)}")
    matching = sensors.get(named, [])
    folders = {path.parent for path in matching}
    if len(folders) != 1:
        wrong = f"{len(folders)} sensors are called {named!r}" if folders else f"no sensor {named!r}"
        raise MeterError(f"meter {NAME}: {wrong}; there are {_listed(sensors)}", "name the folder, as in hwmon3/power1")
    errors = []
    for path in matching:
        channel = _channel(path, named, scope)
        try:
            first_reading(channel.read)
        except ReadError as error:
            errors.append(str(error))
        else:
            return [
                FileMeter(NAME, [channel], [f"{named} is taken for scope {scope}, as told: its label does not say"])
            ]
    raise MeterError(f"meter {NAME}: {'; '.join(errors)}")


def _sensors() -> dict[str, list[Path]]:
    """The files of every sensor by every name that means it, a mean before a momentary value of the same rail."""
    found: dict[str, list[Path]] = {}
    for folder in entries(root() / "class" / "hwmon"):
        chip = optional_text(folder / "name")
        for path in entries(folder, _STEM):
            rail = path.name.rsplit("_", 1)[0]
            labels = {rail, optional_text(folder / f"{rail}_label") or rail}
            for name in (f"{where}/{label}" for where in {folder.name, chip or folder.name} for label in labels):
                found.setdefault(name, []).append(path)
    return found


def _listed(sensors: dict[str, list[Path]]) -> str:
    return ", ".join(sorted(sensors)) or "none"


def _channel(path: Path, named: str, scope: Scope) -> Channel:
    """The rail of a file and how it is read."""
    counter = path.name.startswith("energy")
    limit_w = None if counter else cap_w(path.parent, path.name.rsplit("_", 1)[0])
    kind: Kind = "counter" if counter else "moving_average" if path.name.endswith("_average") else "instant"
    rail = Rail(
        name=f"{NAME}.{named}",
        scope=scope,
        covers=(named,),
        kind=kind,
        basis="measured",
        unit="uJ" if counter else "uW",
        source=str(path),
        limit_w=limit_w,
    )
    return Channel(rail, partial(energy_j, path) if counter else partial(power_w, path))
