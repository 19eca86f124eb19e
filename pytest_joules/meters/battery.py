"""The whole machine's power while it runs from its battery, as the battery's own gauge tells.

From the kernel's Documentation/ABI/testing/sysfs-class-power: `power_now` is microwatts; where a gauge has none,
`current_now` in microamperes times `voltage_now` in microvolts. The sign of a discharging current differs by driver.
A supply of scope `Device` belongs to a mouse or a headset. Gauges are read anew only every second to every half minute.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pytest_joules.errors import MeterAbsent, MeterError
from pytest_joules.meters import Meter
from pytest_joules.meters._sysfs import (
    FILLERS,
    Channel,
    FileMeter,
    ReadError,
    entries,
    exists,
    first_reading,
    number,
    optional_text,
)
from pytest_joules.places import root
from pytest_joules.records import Rail

NAME = "battery"

NOTE = "the whole machine from its battery, screen and radios included; the gauge is slow, so measure long windows"

_DISCHARGING, _CHARGING = "Discharging", "Charging"
_UNPLUG = "unplug the machine, or measure with another meter"


def find(argument: str | None = None) -> Sequence[Meter]:
    """One meter of every battery of this machine together, while one of them discharges.

    Args:
        argument: the name of one supply, such as `BAT1`, to read that one alone.

    Raises:
        MeterError: there is no battery, none discharges, or one gives no reading.
    """
    folder = root() / "class" / "power_supply"
    supplies = [
        supply
        for supply in entries(folder)
        if optional_text(supply / "type") == "Battery"
        and optional_text(supply / "scope") != "Device"
        and optional_text(supply / "present") != "0"
        and argument in (None, supply.name)
    ]
    if not supplies:
        wanted = f"battery {argument}" if argument else "battery"
        raise MeterAbsent(f"meter {NAME}: no {wanted} in {folder}")
    states = {supply.name: optional_text(supply / "status") or "unknown" for supply in supplies}
    if _DISCHARGING not in states.values():
        said = ", ".join(f"{name} is {state}" for name, state in states.items())
        raise MeterError(f"meter {NAME}: it tells the machine's power only while discharging, and {said}", _UNPLUG)
    channels = [_channel(supply, supplies) for supply in supplies]
    for channel in channels:
        try:
            first_reading(channel.read)
        except ReadError as error:
            raise MeterError(f"meter {NAME}: {error}") from error
    return [FileMeter(NAME, channels, [NOTE])]


def _channel(supply: Path, supplies: Sequence[Path]) -> Channel:
    """The rail of a battery and how it is read."""
    direct = exists(supply / "power_now")
    rail = Rail(
        name=f"{NAME}.{supply.name}",
        scope="board",
        covers=("laptop",),
        kind="instant",
        basis="measured",
        unit="uW" if direct else "uA x uV",
        source=str(supply / "power_now") if direct else f"{supply / 'current_now'} x {supply / 'voltage_now'}",
    )
    return Channel(rail, partial(_power_w, supply, supplies, direct=direct))


def _power_w(supply: Path, supplies: Sequence[Path], *, direct: bool) -> float:
    """Watts out of one battery. Of several, those that rest while another discharges give 0 W.

    Raises:
        ReadError: the mains are back, or the gauge has no value.
    """
    states = [optional_text(other / "status") for other in supplies]
    if _DISCHARGING not in states or _CHARGING in states:
        raise ReadError(supply, "does not discharge any more: the mains feed the machine", passing=False)
    if direct:
        raw = [number(supply / "power_now")]
        watts = abs(raw[0]) * 1e-6
    else:
        raw = [number(supply / "current_now"), number(supply / "voltage_now")]
        watts = abs(raw[0]) * raw[1] * 1e-12
    if FILLERS.intersection(raw) or (watts == 0 and len(supplies) == 1):
        raise ReadError(supply, "has no value for its power just now", passing=True)
    return watts
