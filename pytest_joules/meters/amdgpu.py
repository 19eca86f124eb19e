"""AMD graphics on Linux: the amdgpu driver's hwmon files and its binary table `gpu_metrics`.

From the kernel's Documentation/gpu/amdgpu/thermal.rst: `power1_average` and, from Linux 6.6, `power1_input` are microwatts
of the SoC, "on APUs this includes the CPU"; a card has either, both or neither. `power2` is a second limit on the same
power and is never added.

From drivers/gpu/drm/amd/include/kgd_pp_interface.h: `gpu_metrics` begins with its own size and two revisions, the layouts
differ by revision, and a field that a chip does not fill holds all ones. Revision 1 is for discrete cards, in watts;
2 and 3 are for APUs, in milliwatts of 16 and 32 bits. Revision 1.0 and any unknown one are not decoded. In revision 3
`average_socket_power` is the power that the limits of the socket apply to, "APU+dGPU", and `average_apu_power` the APU's share
of it: the first is the chip's, unless a discrete card of the same make is in it.

Nobody states how exact these figures are, so no calibration is given.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
    content,
    exists,
    first_reading,
    optional_text,
    power_w,
)
from pytest_joules.records import Kind, Rail

NAME = "amdgpu"
VENDOR = "0x1002"

PLAIN_WATTS_BELOW = 100
"""A revision 2 table whose socket power is under this holds watts: no APU that runs a program draws under 0.1 W.

Some Renoir and Cezanne firmware fills those milliwatt fields with plain watts."""

JOULES_PER_COUNT = 2.0**-16
"""Unit of `energy_accumulator` from revision 1.4 on; before, the header gives none, so it is not used."""

_HEADER = struct.Struct("<HBB")
_MILLI = 1e-3
_APU_COVERS = ("cpu", "fabric", "gpu")
_APU_LABELS = ("slowPPT", "fastPPT")
_KERNELS_WORDS = {"socket_w": "average_socket_power", "apu_w": "average_apu_power"}
"""What kgd_pp_interface.h calls the fields that may stand for the chip; revisions from 1.4 on say `curr_socket_power`."""
_HWMON_FILES: tuple[tuple[str, Kind], ...] = (("power1_average", "moving_average"), ("power1_input", "instant"))


@dataclass(frozen=True, slots=True)
class _Layout:
    """Size in bytes of one revision, and of each field its offset, `struct` code and factor to W, J or s."""

    size: int
    fields: Mapping[str, tuple[int, str, float]]


_V1 = {"socket_w": (22, "H", 1.0)}
_V2 = {"socket_w": (40, "H", _MILLI), "cpu_w": (42, "H", _MILLI), "gfx_w": (46, "H", _MILLI)}
_LAYOUTS = {
    (1, 1): _Layout(96, _V1),
    (1, 2): _Layout(104, _V1),
    (1, 3): _Layout(120, _V1),
    (1, 4): _Layout(288, {"socket_w": (10, "H", 1.0), "energy_j": (24, "Q", JOULES_PER_COUNT)}),
    (1, 5): _Layout(360, {"socket_w": (10, "H", 1.0), "energy_j": (88, "Q", JOULES_PER_COUNT)}),
    (1, 6): _Layout(384, {"socket_w": (10, "H", 1.0), "energy_j": (88, "Q", JOULES_PER_COUNT)}),
    # Revision 2.0 has the driver's clock before the temperatures, so everything after sits four bytes further.
    (2, 0): _Layout(120, {"socket_w": (44, "H", _MILLI), "cpu_w": (46, "H", _MILLI), "gfx_w": (50, "H", _MILLI)}),
    (2, 1): _Layout(120, _V2),
    (2, 2): _Layout(128, _V2),
    (2, 3): _Layout(152, _V2),
    (2, 4): _Layout(168, _V2),
    (3, 0): _Layout(
        264,
        {
            "socket_w": (112, "I", _MILLI),
            "apu_w": (120, "I", _MILLI),
            "gfx_w": (124, "I", _MILLI),
            "dgpu_w": (128, "I", _MILLI),
            "cpu_w": (132, "I", _MILLI),
            "sys_w": (168, "H", _MILLI),
            "filter_s": (256, "I", 1e-6),
        },
    ),
}
_LAST_REVISION_WITH_PLAIN_WATTS = (2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMetrics:
    """What one `gpu_metrics` table says about power; `None` where the chip fills no value.

    Attributes:
        revision: format and content revision.
        socket_w: the socket; on an APU beside a discrete card of the same make, both.
        apu_w: the APU alone.
        gfx_w: the graphics part of it.
        cpu_w: the CPU cores.
        dgpu_w: the discrete card beside it.
        sys_w: the whole system, in a field that ends at 65.5 W.
        energy_j: joules since the driver was loaded.
        filter_s: time constant of the filter that all of these have passed.
    """

    revision: tuple[int, int]
    socket_w: float | None = None
    apu_w: float | None = None
    gfx_w: float | None = None
    cpu_w: float | None = None
    dgpu_w: float | None = None
    sys_w: float | None = None
    energy_j: float | None = None
    filter_s: float | None = None

    @property
    def is_apu(self) -> bool:
        """Whether the table is one that only APUs have."""
        return self.revision[0] > 1

    @property
    def chip_field(self) -> str | None:
        """The field that holds the power of the chip this table belongs to, or `None` where none does."""
        return next((field for field in ("socket_w", "apu_w") if self.chip_w(field) is not None), None)

    def chip_w(self, field: str) -> float | None:
        """Watts of the chip by one of the fields `socket_w` and `apu_w`, or `None` where that one does not hold them."""
        if field == "socket_w" and self.dgpu_w:
            return None
        found: float | None = getattr(self, field)
        # Old firmware hands out tables of zeros, and no chip that answers draws nothing.
        return found or None


def decode(table: bytes) -> GpuMetrics | None:
    """The power fields of a `gpu_metrics` table, or `None` for a revision or size that is not known."""
    if len(table) < _HEADER.size:
        return None
    size, *revisions = _HEADER.unpack_from(table)
    revision = (revisions[0], revisions[1])
    layout = _LAYOUTS.get(revision)
    if layout is None or not size == layout.size == len(table):
        return None
    found: dict[str, float] = {}
    socket_raw = 0
    for name, (offset, code, factor) in layout.fields.items():
        [raw] = struct.unpack_from(f"<{code}", table, offset)
        if raw == (1 << 8 * struct.calcsize(code)) - 1:
            continue
        found[name] = raw * factor
        socket_raw = raw if name == "socket_w" else socket_raw
    if (2, 0) <= revision <= _LAST_REVISION_WITH_PLAIN_WATTS and 0 < socket_raw < PLAIN_WATTS_BELOW:
        found = {name: value / _MILLI for name, value in found.items()}
    return GpuMetrics(revision=revision, **found)


def find(argument: str | None = None) -> Sequence[Meter]:
    """A meter of each APU, and one of all discrete cards together; asleep cards are left asleep.

    Args:
        argument: a PCI id such as `0000:03:00.0`, or a card's name, to read that card alone.

    Raises:
        MeterError: no card can be read, with the reason for each.
    """
    apus: list[Meter] = []
    discrete: list[Channel] = []
    counters: list[Channel] = []
    notes: list[str] = []
    for card in cards(NAME, VENDOR, (NAME,), argument):
        try:
            power, counter = _channels(card)
        except MeterError as error:
            notes.append(str(error))
            continue
        if power.rail.scope == "chip":
            note = f"{card.pci} is an APU: its power holds the CPU, so a CPU package must not be added"
            apus.append(FileMeter(NAME, [power], [note]))
        else:
            discrete.append(power)
            counters += [counter] if counter else []
    if len(discrete) > 1:
        notes.append(
            f"{len(discrete)} cards are summed, idle ones included; name one as {NAME}:PCI-ID to read it alone"
        )
    meters = list(apus)
    if discrete:
        meters.append(FileMeter(NAME, discrete, notes))
    if counters and len(counters) == len(discrete):
        meters.append(
            FileMeter(NAME, counters, [*notes, "the driver's own energy counter, beside the power of the same cards"])
        )
    if not meters:
        raise MeterError(f"meter {NAME}: {'; '.join(notes)}")
    return meters


def _channels(card: Card) -> tuple[Channel, Channel | None]:
    """How the card's power is read, and its energy counter where that is filled and no APU's.

    Raises:
        MeterError: the card sleeps, or none of its files gives a power.
    """
    card.check_awake()
    hwmon, table = card.hwmon(NAME), card.device / "gpu_metrics"
    metrics = _metrics(table)
    apu = _is_apu(card, hwmon, metrics)
    chosen = _power(card, hwmon, table, metrics)

    def rail(name: str, source: _Source) -> Rail:
        return Rail(
            name=f"{NAME}.{name}",
            scope="chip" if apu else "gpu",
            covers=_APU_COVERS if apu else ("gpu",),
            kind=source.kind,
            basis="measured",
            unit=source.unit,
            source=source.place,
            averaging_s=source.averaging_s,
            limit_w=cap_w(hwmon, "power1") if hwmon else None,
        )

    counter = None
    if metrics and metrics.energy_j and not apu:
        counted = _Source(
            f"{table}: energy_accumulator", "2^-16 J", "counter", lambda: _field(table, lambda found: found.energy_j)
        )
        counter = card.channel(rail(f"{card.pci}.energy", counted), counted.read)
    return card.channel(rail(card.pci, chosen), chosen.read), counter


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a value comes from, how it relates to time, and how it is read."""

    place: str
    unit: str
    kind: Kind
    read: Callable[[], float]
    averaging_s: float | None = None


def _power(card: Card, hwmon: Path | None, table: Path, metrics: GpuMetrics | None) -> _Source:
    """The best reading of the card's power.

    Revision 3 comes first: on the APUs that have it the hwmon file is decoded with its low byte wrong. Everywhere else the
    microwatts of hwmon are finer than the whole watts of revision 1, and surer than the units of revision 2.
    """
    in_table = None
    field = metrics.chip_field if metrics else None
    if metrics and field:
        major, minor = metrics.revision
        words = "curr_socket_power" if major == 1 and minor >= 4 else _KERNELS_WORDS[field]
        in_table = _Source(
            f"{table}: {words} (gpu_metrics {major}.{minor})",
            "W" if major == 1 else "mW",
            "moving_average",
            # The field is settled here once: a run in which it changed would be of two different things.
            lambda: _field(table, lambda found: found.chip_w(field)),
            # A filter of time constant T lags by T, as a mean over 2 T does.
            None if not metrics.filter_s else 2 * metrics.filter_s,
        )
        if major >= 3:
            return in_table
    tried = []
    for path, kind in [(hwmon / name, kind) for name, kind in _HWMON_FILES] if hwmon else []:
        source = _Source(str(path), "uW", kind, partial(power_w, path, can_be_zero=False))
        try:
            first_reading(source.read)
        except ReadError as error:
            tried.append(str(error))
        else:
            return source
    if in_table:
        return in_table
    cause = "; ".join(tried) or "it has no amdgpu sensor folder"
    raise MeterError(f"{card.name} ({card.pci}) gives no power: {cause}; gpu_metrics has none that is known either")


def _metrics(table: Path) -> GpuMetrics | None:
    try:
        return decode(content(table))
    except ReadError:
        return None


def _field(table: Path, value: Callable[[GpuMetrics], float | None]) -> float:
    """One value out of a fresh table. Raises `ReadError` when the table does not hold it this time."""
    metrics = decode(content(table))
    found = value(metrics) if metrics else None
    if found is None:
        raise ReadError(table, "does not hold this value just now", passing=True)
    return found


def _is_apu(card: Card, hwmon: Path | None, metrics: GpuMetrics | None) -> bool:
    """Whether the card's power holds a CPU, by what only APUs or only cards with memory of their own show.

    amdgpu_pm.c shows the northbridge voltage `in1` on APUs alone, and names the limits of handheld APUs slowPPT and
    fastPPT. Without any sign it is taken for a discrete card: an APU shows at least one of these.
    """
    if metrics:
        return metrics.is_apu
    if exists(card.device / "mem_info_vram_vendor"):
        return False
    return hwmon is not None and (exists(hwmon / "in1_label") or optional_text(hwmon / "power1_label") in _APU_LABELS)
