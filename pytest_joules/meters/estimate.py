"""CPU power estimated from utilisation: for machines without a sensor. Basis `estimated`, always.

Each logical CPU is taken to draw between an idle and a full-load wattage, in proportion to the time it was busy.
The wattages per processor family are those of the Cloud Carbon Footprint project (ccf-coefficients,
coefficients-aws-use.csv of March 2026), which derives them from SPECpower_ssj2008 results. They cover whole
servers divided by their threads, so they include memory and supply losses of those servers, not of this one.

At constant load this only restates throughput: 1 / (tokens per second) times a constant. It shows where time goes,
never what a chip really draws.
"""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from pytest_joules.records import Rail, Sample

NAME = "estimate"

IDLE_AND_FULL_W_PER_CPU = {
    "EPYC 1st Gen": (0.847, 2.604),
    "EPYC 2nd Gen": (0.474, 1.693),
    "EPYC 3rd Gen": (0.456, 1.957),
    "EPYC 4th Gen": (0.739, 2.282),
    "EPYC 5th Gen": (3.682, 8.961),
    "Sandy Bridge": (2.212, 8.631),
    "Ivy Bridge": (1.707, 5.557),
    "Haswell": (1.857, 5.595),
    "Broadwell": (0.713, 3.685),
    "Skylake": (0.613, 4.104),
    "Cascade Lake": (0.690, 4.063),
    "Coffee Lake": (1.138, 5.422),
    "Ice Lake": (0.767, 3.758),
    "Sapphire Rapids": (1.036, 4.160),
    "Emerald Rapids": (0.814, 4.482),
    "Granite Rapids": (0.582, 2.527),
    "Graviton": (0.474, 1.693),
}
"""Watts of one logical CPU, idle and fully busy, by processor family."""

FALLBACK_FAMILY = "the average of all families"

# (vendor, family, lowest model, highest model): the CPUID numbers as /proc/cpuinfo prints them, per the
# kernel's arch/x86/include/asm/intel-family.h and AMD's processor programming references.
_CPUID_FAMILIES = (
    ("AuthenticAMD", 23, 0x00, 0x0F, "EPYC 1st Gen"),
    ("AuthenticAMD", 23, 0x30, 0x3F, "EPYC 2nd Gen"),
    ("AuthenticAMD", 25, 0x00, 0x0F, "EPYC 3rd Gen"),
    ("AuthenticAMD", 25, 0x10, 0x1F, "EPYC 4th Gen"),
    ("AuthenticAMD", 25, 0xA0, 0xAF, "EPYC 4th Gen"),
    ("AuthenticAMD", 26, 0x00, 0x1F, "EPYC 5th Gen"),
    ("GenuineIntel", 6, 0x2D, 0x2D, "Sandy Bridge"),
    ("GenuineIntel", 6, 0x3E, 0x3E, "Ivy Bridge"),
    ("GenuineIntel", 6, 0x3F, 0x3F, "Haswell"),
    ("GenuineIntel", 6, 0x4F, 0x4F, "Broadwell"),
    ("GenuineIntel", 6, 0x9E, 0x9E, "Coffee Lake"),
    ("GenuineIntel", 6, 0x6A, 0x6A, "Ice Lake"),
    ("GenuineIntel", 6, 0x8F, 0x8F, "Sapphire Rapids"),
    ("GenuineIntel", 6, 0xCF, 0xCF, "Emerald Rapids"),
    ("GenuineIntel", 6, 0xAD, 0xAD, "Granite Rapids"),
)
_SKYLAKE_SERVER = ("GenuineIntel", 6, 0x55)
_CASCADE_LAKE_STEPPING = 5


def processor_family(cpuinfo: str) -> str:
    """The processor family named in `IDLE_AND_FULL_W_PER_CPU`, or `FALLBACK_FAMILY`.

    Args:
        cpuinfo: the text of /proc/cpuinfo; empty where there is none.
    """

    def number(key: str) -> int:
        match = re.search(rf"^{key}\s*:\s*(\d+)$", cpuinfo, re.MULTILINE)
        return int(match.group(1)) if match else -1

    match = re.search(r"^vendor_id\s*:\s*(\S+)$", cpuinfo, re.MULTILINE)
    vendor = match.group(1) if match else ""
    family, model, stepping = number("cpu family"), number("model"), number("stepping")
    if (vendor, family, model) == _SKYLAKE_SERVER:
        return "Cascade Lake" if stepping >= _CASCADE_LAKE_STEPPING else "Skylake"
    for known_vendor, known_family, low, high, name in _CPUID_FAMILIES:
        if (vendor, family) == (known_vendor, known_family) and low <= model <= high:
            return name
    return FALLBACK_FAMILY


def watts_per_cpu(family: str) -> tuple[float, float]:
    """Idle and full-load watts of one logical CPU of a family."""
    if family in IDLE_AND_FULL_W_PER_CPU:
        return IDLE_AND_FULL_W_PER_CPU[family]
    values = IDLE_AND_FULL_W_PER_CPU.values()
    return sum(v[0] for v in values) / len(values), sum(v[1] for v in values) / len(values)


class EstimateReader:
    """Turns the system's busy CPU time into an energy counter: no interval is lost between two reads."""

    def __init__(self, idle_w: float, full_w: float, cpus: int, interval_s: float) -> None:
        self.interval_s: float | None = interval_s
        self._idle_w, self._span_w, self._cpus = idle_w, full_w - idle_w, cpus
        self._start_mono, self._start_busy_s = time.monotonic(), busy_cpu_s()

    def read(self) -> Sequence[Sample]:
        """Joules since the reader was opened."""
        now = time.monotonic()
        busy_s = busy_cpu_s() - self._start_busy_s
        joules = self._idle_w * self._cpus * (now - self._start_mono) + self._span_w * busy_s
        return [Sample("estimate.cpu", now, joules)]

    def close(self) -> None:
        """Nothing is held."""


def busy_cpu_s() -> float:
    """CPU seconds spent on anything but idling, summed over all logical CPUs, since boot."""
    times = psutil.cpu_times()
    # On Linux guest time is already inside user time; steal is time that went to another machine.
    excluded = ("idle", "iowait", "guest", "guest_nice", "steal")
    return float(sum(value for name, value in times._asdict().items() if name not in excluded))


class EstimateMeter:
    """CPU power from utilisation and published wattages per processor family."""

    name = NAME

    def __init__(self, family: str, cpus: int) -> None:
        self.cpus = cpus
        self.idle_w, self.full_w = watts_per_cpu(family)
        self.rails = (
            Rail(
                name="estimate.cpu",
                scope="chip",
                covers=("cpu",),
                kind="counter",
                basis="estimated",
                unit="busy CPU seconds",
                source=f"system CPU times x {self.idle_w:.3g} to {self.full_w:.3g} W per CPU x {cpus} ({family}, Cloud Carbon Footprint)",
                limit_w=self.full_w * cpus,
            ),
        )
        self.notes = ("estimated from CPU utilisation: at constant load it only restates throughput",)

    def open(self, rate_hz: float) -> EstimateReader:
        """Read CPU times `rate_hz` times a second."""
        return EstimateReader(self.idle_w, self.full_w, self.cpus, 1.0 / rate_hz)


def find(argument: str | None = None) -> Sequence[EstimateMeter]:
    """Always one meter: every machine has CPU times."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(errors="replace") if cpuinfo.exists() else ""
    family = processor_family(text)
    if family == FALLBACK_FAMILY and platform.machine() in ("aarch64", "arm64") and platform.system() == "Linux":
        family = "Graviton"
    return [EstimateMeter(family, psutil.cpu_count() or 1)]
