"""AMD graphics on Linux: temperatures, clocks and power limit from hwmon, throttling from `gpu_metrics`.

hwmon is as the kernel's Documentation/gpu/amdgpu/thermal.rst has it. In drivers/gpu/drm/amd/include/kgd_pp_interface.h the
revisions 1.3 and 2.2 to 2.4 of `gpu_metrics` hold `indep_throttle_status`, whose bits are those of SMU_THROTTLER_*_BIT in
amdgpu_smu.h; 1.6 and 3.0 hold counters that rise while a limit is at work. The older `throttle_status` has other bits on
every chip and is not read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pytest_joules.errors import MeterError
from pytest_joules.meters._sysfs import Card, ReadError, cards, content, exists, number, optional_text, power_w
from pytest_joules.vitals import POWER_LIMIT, Value, Vital
from pytest_joules.vitals._hwmon import celsius, temperatures

NAME = "amdgpu"
VENDOR = "0x1002"

HOTSPOT_BIT = 36
"""RDNA 3 shows this one nearly always, so on discrete cards it says nothing."""

_HEADER = struct.Struct("<HBB")
_TEMPERATURE_LABELS = ("edge", "junction")
_CLOCKS = {"sclk": "clock", "mclk": "memory_clock"}

_CURRENT, _HEAT = "current limit", "thermal limit"
_BITS: Mapping[int, str] = {
    **{bit: f"{POWER_LIMIT} ({name})" for bit, name in enumerate(("PPT0", "PPT1", "PPT2", "PPT3"))},
    **{bit: f"{POWER_LIMIT} ({name})" for bit, name in enumerate(("SPL", "FPPT", "SPPT", "SPPT_APU"), 4)},
    **{
        bit: f"{_CURRENT} ({name})"
        for bit, name in enumerate(
            ("TDC_GFX", "TDC_SOC", "TDC_MEM", "TDC_VDD", "TDC_CVIP", "EDC_CPU", "EDC_GFX", "APCC"), 16
        )
    },
    **{
        bit: f"{_HEAT} ({name})"
        for bit, name in enumerate(
            (
                *("GPU", "CORE", "MEM", "EDGE", "HOTSPOT", "SOC", "VR_GFX", "VR_SOC", "VR_MEM0", "VR_MEM1"),
                *("LIQUID0", "LIQUID1", "VRHOT0", "VRHOT1", "PROCHOT_CPU", "PROCHOT_GFX"),
            ),
            32,
        )
    },
}
"""Bits of `indep_throttle_status`. Left out are PPM and FIT, which are at work in normal use."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """Size of one revision in bytes, and where throttling is in it.

    Attributes:
        status: offset of `indep_throttle_status`, 64 bits.
        counters: offsets of counters of 32 bits, by word.
    """

    size: int
    status: int | None = None
    counters: Mapping[str, int] | None = None


_LAYOUTS = {
    (1, 3): _Layout(120, status=112),
    (1, 6): _Layout(
        384,
        counters={
            f"{_HEAT} (PROCHOT)": 108,
            f"{POWER_LIMIT} (PPT)": 112,
            f"{_HEAT} (SOCKET)": 116,
            f"{_HEAT} (VR)": 120,
            f"{_HEAT} (HBM)": 124,
        },
    ),
    **{(2, minor): _Layout(size, status=120) for minor, size in ((2, 128), (3, 152), (4, 168))},
    (3, 0): _Layout(
        264,
        counters={
            f"{_HEAT} (PROCHOT)": 228,
            f"{POWER_LIMIT} (SPL)": 232,
            f"{POWER_LIMIT} (FPPT)": 236,
            f"{POWER_LIMIT} (SPPT)": 240,
            f"{_HEAT} (CORE)": 244,
            f"{_HEAT} (GFX)": 248,
            f"{_HEAT} (SOC)": 252,
        },
    ),
}


def find() -> Sequence[Vital]:
    """The vitals of every card of this make. A sleeping card is listed, and read once something else has woken it."""
    try:
        found = cards(NAME, VENDOR, (NAME,), None)
    except MeterError:
        return []
    return [vital for card in found for vital in _of_card(card)]


def _of_card(card: Card) -> Iterator[Vital]:
    name = f"{NAME}.{card.pci}"
    hwmon = card.hwmon(NAME)
    if hwmon:
        by_label = {label: path for label, path in temperatures(hwmon) if label in _TEMPERATURE_LABELS}
        if not by_label and exists(hwmon / "temp1_input"):
            # Older kernels have no labels, and the first file is the edge there.
            by_label["edge"] = hwmon / "temp1_input"
        for label, path in by_label.items():
            yield Vital(
                name=f"{name}.{label}_temperature",
                what="temperature",
                kind="gauge",
                unit="C",
                source=str(path),
                read=_when_awake(card, partial(celsius, path)),
            )
        for place in (1, 2):
            path = hwmon / f"freq{place}_input"
            label = optional_text(hwmon / f"freq{place}_label") or ""
            if exists(path) and label in _CLOCKS:
                yield Vital(
                    name=f"{name}.{_CLOCKS[label]}",
                    what="clock",
                    kind="gauge",
                    unit="MHz",
                    source=str(path),
                    read=_when_awake(card, partial(_mhz, path)),
                )
        if exists(hwmon / "power1_cap"):
            path = hwmon / "power1_cap"
            yield Vital(
                name=f"{name}.power_limit",
                what="power_limit",
                kind="gauge",
                unit="W",
                source=str(path),
                read=_when_awake(card, partial(power_w, path, can_be_zero=False)),
            )
    table = card.device / "gpu_metrics"
    if exists(table) and _tells(card, table):
        yield Vital(
            name=f"{name}.throttle",
            what="throttle",
            kind="words",
            unit="",
            source=f"{table}: indep_throttle_status, or the throttle residencies",
            read=_when_awake(card, Throttling(table).read),
        )


def _when_awake(card: Card, read: Callable[[], Value | None]) -> Callable[[], Value | None]:
    def reading() -> Value | None:
        try:
            card.check_awake()
        except ReadError:
            return None
        return read()

    return reading


def _mhz(path: Path) -> float:
    return number(path) / 1e6


def _tells(card: Card, table: Path) -> bool:
    """Whether the card's table has throttling in it; of a sleeping card that is not known, and it may."""
    try:
        card.check_awake()
    except ReadError:
        return True
    try:
        return _layout(content(table)) is not None
    except ReadError as error:
        return error.passing


def _layout(table: bytes) -> _Layout | None:
    if len(table) < _HEADER.size:
        return None
    size, major, minor = _HEADER.unpack_from(table)
    layout = _LAYOUTS.get((major, minor))
    return layout if layout and size == layout.size == len(table) else None


class Throttling:
    """What a card's `gpu_metrics` says of throttling, in words."""

    def __init__(self, table: Path) -> None:
        self._table = table
        self._before: dict[str, int] | None = None

    def read(self) -> frozenset[str] | None:
        """The limits at work, or those that were since the reading before; `None` when that is not known yet.

        Raises:
            ReadError: the table cannot be read or has nothing about it.
        """
        table = content(self._table)
        layout = _layout(table)
        if layout is None:
            raise ReadError(self._table, "has no throttling in a revision that is known", passing=False)
        if layout.status is not None:
            return self._status(table, layout.status)
        return self._risen(table, layout.counters or {})

    def _status(self, table: bytes, offset: int) -> frozenset[str]:
        [bits] = struct.unpack_from("<Q", table, offset)
        if bits == 2**64 - 1:
            raise ReadError(self._table, "does not fill indep_throttle_status", passing=True)
        discrete = table[2] == 1
        ignored = {HOTSPOT_BIT} if discrete else set()
        return frozenset(word for bit, word in _BITS.items() if bits >> bit & 1 and bit not in ignored)

    def _risen(self, table: bytes, counters: Mapping[str, int]) -> frozenset[str] | None:
        raw = {word: struct.unpack_from("<I", table, offset)[0] for word, offset in counters.items()}
        filled = {word: count for word, count in raw.items() if count != 2**32 - 1}
        if not filled:
            raise ReadError(self._table, "does not fill its throttle residencies", passing=True)
        before, self._before = self._before, filled
        if before is None:
            return None
        # A counter of 32 bits that goes round has risen too.
        return frozenset(word for word, count in filled.items() if count != before.get(word, count))
