"""Intel discrete graphics on Linux through the hwmon files of the xe and i915 drivers.

From the kernel's Documentation/ABI/testing/sysfs-driver-intel-xe-hwmon: `energy1_input` is the energy of the card and
`energy2_input` that of its package, in microjoules; sysfs-driver-intel-i915-hwmon has `energy1_input` for the device. Both
drivers add up the 32-bit counters of the hardware themselves, so these do not wrap. Integrated graphics have no such
files: their power lies inside the CPU package.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pytest_joules.errors import MeterError
from pytest_joules.meters import Meter
from pytest_joules.meters._sysfs import (
    Card,
    Channel,
    FileMeter,
    ReadError,
    cap_w,
    cards,
    energy_j,
    first_reading,
    optional_text,
)
from pytest_joules.records import Rail

NAME = "intel_gpu"
VENDOR = "0x8086"

_DRIVERS = ("xe", "i915")
_CARD_COVERS = ("gpu", "vram", "vrm")
_PACKAGE_COVERS = ("gpu",)


def find(argument: str | None = None) -> Sequence[Meter]:
    """A meter of all cards together, and where every card counts both, a second one of their packages alone.

    Args:
        argument: a PCI id such as `0000:03:00.0`, or a card's name, to read that card alone.

    Raises:
        MeterError: no card can be read, with the reason for each.
    """
    widest: list[Channel] = []
    packages: list[Channel] = []
    notes: list[str] = []
    for card in cards(NAME, VENDOR, _DRIVERS, argument):
        try:
            channels = _channels(card)
        except MeterError as error:
            notes.append(str(error))
            continue
        widest.append(channels[0])
        packages += channels[1:]
    if not widest:
        raise MeterError(f"meter {NAME}: {'; '.join(notes)}")
    if len(widest) > 1:
        notes.append(f"{len(widest)} cards are summed, idle ones included; name one as {NAME}:PCI-ID to read it alone")
    meters = [FileMeter(NAME, widest, notes)]
    if len(packages) == len(widest):
        meters.append(
            FileMeter(NAME, packages, [*notes, "the package alone, without the card's memory and regulators"])
        )
    return meters


def _channels(card: Card) -> list[Channel]:
    """The card's counters, the widest first.

    Raises:
        MeterError: the card sleeps or has no counter.
    """
    card.check_awake()
    hwmon = card.hwmon(*_DRIVERS)
    if hwmon is None:
        raise MeterError(
            f"{card.name} ({card.pci}) has no sensors: integrated graphics, whose power lies inside the CPU package"
        )
    channels = []
    tried = []
    for part, path in _counters(hwmon):
        try:
            first_reading(partial(energy_j, path))
        except ReadError as error:
            tried.append(str(error))
            continue
        rail = Rail(
            name=f"{NAME}.{card.pci}.{part}",
            scope="gpu",
            covers=_CARD_COVERS if part == "card" else _PACKAGE_COVERS,
            kind="counter",
            basis="measured",
            unit="uJ",
            source=str(path),
            limit_w=cap_w(hwmon, path.name.replace("energy", "power").removesuffix("_input")),
        )
        channels.append(card.channel(rail, partial(energy_j, path)))
    if not channels:
        raise MeterError(f"{card.name} ({card.pci}) counts no energy: {'; '.join(tried)}")
    return channels


def _counters(hwmon: Path) -> list[tuple[str, Path]]:
    """What each counter covers and its file. A driver that labels its counters is taken at its word."""
    first, second = hwmon / "energy1_input", hwmon / "energy2_input"
    if optional_text(hwmon / "name") != "xe":
        return [("package", first)]
    labelled = optional_text(hwmon / "energy1_label")
    return [("package", first)] if labelled == "pkg" else [("card", first), ("package", second)]
