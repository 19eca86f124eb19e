"""Temperatures of hwmon devices, as the kernel's Documentation/ABI/testing/sysfs-class-hwmon has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_joules.meters._sysfs import entries, number, optional_text


def celsius(path: Path) -> float:
    """Degrees Celsius from a `temp*_input` file, which holds thousandths of them. Raises `ReadError`."""
    return number(path) / 1000.0


def temperatures(device: Path) -> Iterator[tuple[str, Path]]:
    """The label of each temperature of a device, empty where it has none, and its file."""
    for path in entries(device, r"temp\d+_input"):
        yield optional_text(device / path.name.replace("_input", "_label")) or "", path
