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
)
from pytest_joules.places import root
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
    found = {_sensor(path) for path in matching}
    if len(found) != 1:
        wrong = f"{len(found)} sensors are called {named!r}" if found else f"no sensor {named!r}"
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
    """The files of every sensor by every name that means it, a mean before a momentary value of the same rail.

    A sensor has up to four names. They come with the one that says most first: chip and label, then chip and rail, which a
    reboot does not change, then those with the number of the folder.
    """
    found: dict[str, list[Path]] = {}
    for folder in entries(root() / "class" / "hwmon"):
        chip = optional_text(folder / "name") or folder.name
        for path in entries(folder, _STEM):
            rail = path.name.rsplit("_", 1)[0]
            label = optional_text(folder / f"{rail}_label") or rail
            for name in dict.fromkeys(f"{where}/{what}" for where in (chip, folder.name) for what in (label, rail)):
                found.setdefault(name, []).append(path)
    return found


def _sensor(path: Path) -> tuple[Path, str]:
    """What tells sensors apart: the folder and the rail, of which there may be two files."""
    return path.parent, path.name.rsplit("_", 1)[0]


def _listed(sensors: dict[str, list[Path]]) -> str:
    """Every sensor once, by its first name that means no other."""
    named: dict[tuple[Path, str], str] = {}
    for name, paths in sensors.items():
        if len({_sensor(path) for path in paths}) == 1:
            named.setdefault(_sensor(paths[0]), name)
    return ", ".join(sorted(named.values())) or "none"


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
