"""CPU packages and their memory on Linux through RAPL's powercap files.

From the kernel's Documentation/power/powercap and drivers/powercap/intel_rapl_common.c (which serves AMD too): each zone
has a `name`, a counter `energy_uj` in microjoules and the value `max_energy_range_uj` at which it starts again from zero.
`core` and `uncore` lie inside `package-N`, `psys` holds the package and more, `dram` lies outside the package on
servers. The same package shows a second time under `intel-rapl-mmio`, and every child a second time as a link beside
its parent. Only those three files are read: their neighbours may answer with errors.

How exact the counters are nobody states. Measurements beside a power meter find that they follow the power closely, off by an
amount that differs by machine, more at rest than at work, and better where they are measured (Haswell servers and later) than
where they are modelled (Desrochers, Paradis, Weaver, doi:10.1145/2989081.2989088). No figure holds for every processor, so no
calibration is given.

On processors of several dies each die can list a package zone of its own that mirrors the one counter of the socket
(mlco2/codecarbon 1274).
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pytest_joules.errors import MeterAbsent, MeterError
from pytest_joules.meters import Meter
from pytest_joules.meters._sysfs import (
    Channel,
    FileMeter,
    ReadError,
    energy_j,
    entries,
    exists,
    first_reading,
    no_argument,
    optional_number,
    text,
)
from pytest_joules.places import root
from pytest_joules.records import Rail, Scope

NAME = "rapl"

REFRESH_S = 0.001
"""The counters are updated about every millisecond (Intel SDM volume 3, 16.10.3)."""

UDEV_RULE = (
    'SUBSYSTEM=="powercap", KERNEL=="intel-rapl:*", ACTION=="add|change", '
    'RUN+="/bin/chgrp power %S%p/energy_uj", RUN+="/bin/chmod g+r %S%p/energy_uj"'
)
"""Lets the members of the group `power` read the counters, which are root's alone since CVE-2020-8694."""

MIRROR_LOOKS = 4
MIRROR_PAUSE_S = 0.005

_ZONE = re.compile(r"intel-rapl(-mmio)?(:\d+)+")
_PACKAGE = re.compile(r"(package-\d+)(-die-\d+)?")
_NOT_DRIVEN_S = 0.05
_VIRTUAL = "the processor has none, its driver is not loaded, or this is a virtual machine or container"


@dataclass(frozen=True, slots=True)
class _Zone:
    """One zone: its real folder, its name, and whether it is reached through the memory-mapped interface."""

    folder: Path
    name: str
    mmio: bool

    @property
    def counter(self) -> Path:
        """The file of the counter."""
        return self.folder / "energy_uj"

    @property
    def package(self) -> str | None:
        """The package this zone is, without its die, or `None`."""
        match = _PACKAGE.fullmatch(self.name)
        return match.group(1) if match else None


def find(argument: str | None = None) -> Sequence[Meter]:
    """One meter: every package with its memory as scope chip, and the platform as scope board where it is counted.

    Raises:
        MeterError: a package cannot be read, with the path, the cause and what to do.
    """
    no_argument(NAME, argument)
    zones = _zones()
    packages, notes = _packages(zones)
    channels = [_channel(zone, zone.name, "chip", "cpu") for zone in packages]
    for zone in zones:
        above = zone.folder.name.rpartition(":")[0]
        owner = next((package for package in packages if package.folder.name == above), None)
        if zone.name == "dram" and owner is not None:
            wanted = _channel(zone, f"{owner.name}.dram", "chip", "dram")
        elif zone.name.startswith("psys") and not zone.mmio:
            wanted = _channel(zone, zone.name, "board", "platform")
        else:
            continue
        try:
            _first_j(zone)
        except ReadError as error:
            notes.append(f"{zone.name} is left out: {error}")
        else:
            channels.append(wanted)
    if all("dram" not in channel.rail.covers for channel in channels):
        notes.append("no dram zone: memory power is not in the chip figure")
    notes += [
        f"{channel.rail.name}: the range of the counter cannot be read, so a window in which it wraps has no energy"
        for channel in channels
        if channel.rail.wrap_j is None
    ]
    counted = ", ".join(channel.rail.name for channel in channels)
    return [FileMeter(NAME, channels, [f"counted: {counted}; core and uncore lie inside the package", *notes])]


def _zones() -> list[_Zone]:
    """Every zone once, the ordinary interface before the memory-mapped one.

    Raises:
        MeterError: there is no zone, or none that leads anywhere.
    """
    folder = root() / "class" / "powercap"
    links = entries(folder, _ZONE.pattern)
    if not links:
        raise MeterAbsent(
            f"meter {NAME}: no RAPL zone in {folder}: {_VIRTUAL}", "on bare metal try 'sudo modprobe intel_rapl_msr'"
        )
    found: dict[Path, _Zone] = {}
    reasons = []
    for link in links:
        for place in (link, *entries(link, _ZONE.pattern)):
            real = place.resolve()
            try:
                found.setdefault(real, _Zone(real, text(place / "name"), "mmio" in real.name))
            except ReadError as error:
                # The name of a link to nothing is not found either; the link is what is wrong.
                reasons.append(f"{place} is a link to nothing" if not exists(place) else str(error))
    if not found:
        raise MeterError(f"meter {NAME}: {reasons[0]}: {_VIRTUAL}")
    return sorted(found.values(), key=lambda zone: zone.mmio)


def _packages(zones: Sequence[_Zone]) -> tuple[list[_Zone], list[str]]:
    """The package zones to count, each counter once, and what is not counted and why.

    Raises:
        MeterError: a package has no readable counter: a sum without it would be of another machine.
    """
    by_name: dict[str, list[_Zone]] = {}
    for zone in zones:
        if zone.package:
            by_name.setdefault(zone.name, []).append(zone)
    if not by_name:
        raise MeterError(f"meter {NAME}: no package among the zones {', '.join(sorted({zone.name for zone in zones}))}")
    counted: list[_Zone] = []
    notes = []
    for name, same in by_name.items():
        zone = _first_readable(same)
        notes += [f"{other.folder.name} is {name} again and is not added" for other in same if other is not zone]
        twin = next((other for other in counted if _mirrors(other, zone)), None)
        if twin is not None:
            notes.append(f"{name} repeats the counter of {twin.name} and is not added")
        else:
            counted.append(zone)
    return counted, notes


def _first_readable(same: Sequence[_Zone]) -> _Zone:
    """The first of several zones of one name that gives a reading."""
    errors = []
    for zone in same:
        try:
            _first_j(zone)
        except ReadError as error:
            errors.append(error)
        else:
            return zone
    step = ""
    if errors[0].denied:
        step = (
            f"put the line '{UDEV_RULE}' into /etc/udev/rules.d/60-rapl.rules, run 'sudo udevadm control --reload' and "
            f"'sudo udevadm trigger --subsystem-match=powercap' as a member of group power, or use --joules-meter perf"
        )
    raise MeterError(f"meter {NAME}: {errors[0]}", step)


def _first_j(zone: _Zone) -> float:
    """A first reading of a zone that counts. Raises `ReadError`, also for a counter that nothing drives."""
    joules = first_reading(partial(energy_j, zone.counter))
    if joules == 0:
        time.sleep(_NOT_DRIVEN_S)
        joules = energy_j(zone.counter)
    if joules == 0:
        raise ReadError(
            zone.counter, "stands at 0: nothing drives this counter, as in many virtual machines", passing=False
        )
    return joules


def _mirrors(first: _Zone, second: _Zone) -> bool:
    """Whether two zones show one counter: every reading of one lies between two readings of the other around it.

    Counters that stand still meanwhile are one only when they are dies of the same package.
    """
    begun = before = energy_j(first.counter)
    for _ in range(MIRROR_LOOKS):
        between, after = energy_j(second.counter), energy_j(first.counter)
        if not before <= between <= after:
            return False
        time.sleep(MIRROR_PAUSE_S)
        before = energy_j(first.counter)
    return before > begun or first.package == second.package


def _channel(zone: _Zone, name: str, scope: Scope, part: str) -> Channel:
    """The rail of a zone and how it is read."""
    range_uj = optional_number(zone.folder / "max_energy_range_uj")
    rail = Rail(
        name=f"{NAME}.{name}",
        scope=scope,
        covers=(part,),
        kind="counter",
        basis="measured",
        unit="uJ",
        source=str(zone.counter),
        refresh_s=REFRESH_S,
        wrap_j=range_uj * 1e-6 if range_uj else None,
    )
    return Channel(rail, partial(energy_j, zone.counter))
