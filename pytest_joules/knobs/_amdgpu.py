"""What the knobs of AMD graphics share: the cards, and the performance level that stands over every other setting.

`power_dpm_force_performance_level` is `auto` unless somebody chose; `low` and `high` force the lowest and the highest clocks, `manual` lets
the tables be written, `profile_*` fix clocks for profiling (Linux, drivers/gpu/drm/amd/pm/amdgpu_pm.c, DOC of that name).
"""

from __future__ import annotations

import re
from pathlib import Path

from pytest_joules.errors import MeterError, Unmeasured
from pytest_joules.knobs._held import Cap, Change, file
from pytest_joules.meters._sysfs import Card
from pytest_joules.meters._sysfs import cards as found_cards

LEVEL = "power_dpm_force_performance_level"

_CLOCK = re.compile(r"^0:\s*(\d+)\s*mhz", re.IGNORECASE | re.MULTILINE)


def cards(knob: str) -> list[Card]:
    """Every card that the driver amdgpu runs. Raises `Unmeasured` where there is none."""
    try:
        found = [card for card in found_cards("amdgpu", "0x1002", ("amdgpu",), None) if (card.device / LEVEL).is_file()]
    except MeterError:
        found = []
    if not found:
        raise Unmeasured(f"knob {knob}: there is no AMD graphics with the driver amdgpu on this machine (no {LEVEL})")
    return found


def level(knob: str, card: Card, wanted: str) -> Change:
    """The performance level of a card."""
    return file(knob, card.device / LEVEL, wanted)


def cap(card: Card, at_most_mhz: float | None) -> Cap:
    """The shader clock of a card is not to be higher, as the driver reads it."""
    return Cap(kind="vital", of=f"amdgpu.{card.pci}.clock", at_most=at_most_mhz, unit="MHz")


def lowest_mhz(card: Card) -> float | None:
    """The lowest shader clock of a card, the first of `pp_dpm_sclk`."""
    path: Path = card.device / "pp_dpm_sclk"
    try:
        first = _CLOCK.search(path.read_text())
    except OSError:
        return None
    return float(first[1]) if first else None
