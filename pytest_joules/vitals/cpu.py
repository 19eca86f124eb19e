"""The CPU on Linux: package temperature, clocks, and how often it was slowed down for heat.

Temperatures come from the hwmon drivers `coretemp` (Intel, labels `Package id N`), `k10temp` and `zenpower` (AMD, `Tdie`, or
`Tctl` where there is none, which some chips report higher than it is) and `cpu_thermal` (boards with an ARM chip). The counts
of arch/x86/kernel/cpu/mce/therm_throt.c, Intel only, are kept for each CPU, and one event is counted on every CPU
that saw it: their sum says whether there was one, not how many.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from pytest_joules.meters._sysfs import ReadError, entries, exists, number, optional_text
from pytest_joules.places import root
from pytest_joules.vitals import Vital
from pytest_joules.vitals._hwmon import celsius, temperatures

NAME = "cpu"

SAME_PASS_S = 0.5
"""The clocks of all CPUs are read once for all figures that come of them when these are asked for within this time."""

_DIE_LABELS = ("Tdie", "Tctl")
_PACKAGE_LABEL = re.compile(r"Package id (\d+)")
_CPU = r"cpu\d+"


def find() -> Sequence[Vital]:
    """Temperatures of the packages, mean, lowest and highest clock, and the counts of thermal events."""
    return [*_temperatures(), *_clocks(), *_events()]


def _temperatures() -> Iterator[Vital]:
    files = [found for device in entries(root() / "class" / "hwmon") for found in _of_packages(device)]
    for place, (package, path) in enumerate(files):
        yield Vital(
            name=f"{NAME}.package{place if package is None else package}.temperature",
            what="temperature",
            kind="gauge",
            unit="C",
            source=str(path),
            read=partial(celsius, path),
        )


def _of_packages(device: Path) -> Iterator[tuple[int | None, Path]]:
    """The temperatures of whole packages that a device has, with the package's number where the label tells it."""
    driver = optional_text(device / "name")
    found = list(temperatures(device))
    if driver == "coretemp":
        for label, path in found:
            if package := _PACKAGE_LABEL.fullmatch(label):
                yield int(package.group(1)), path
    elif driver in ("k10temp", "zenpower"):
        by_label = dict(reversed(found))
        named = [by_label[label] for label in _DIE_LABELS if label in by_label]
        # Kernels before 5.6 label nothing where the two are the same; the first file is the die then.
        yield from ((None, path) for path in (named or [path for _, path in found])[:1])
    elif driver == "cpu_thermal":
        yield from ((None, path) for _, path in found[:1])


def _clocks() -> Iterator[Vital]:
    folder = root() / "devices" / "system" / "cpu"
    files = [cpu / "cpufreq" / "scaling_cur_freq" for cpu in entries(folder, _CPU)]
    clocks = _Clocks([path for path in files if exists(path)])
    figures: tuple[tuple[str, Callable[[Sequence[float]], float]], ...] = (
        ("mean", statistics.fmean), ("lowest", min), ("highest", max),
    )  # fmt: skip
    for figure, of in figures if clocks.files else ():
        yield Vital(
            name=f"{NAME}.{figure}_clock",
            what="clock",
            kind="gauge",
            unit="MHz",
            source=f"{figure} of {folder / 'cpu*' / 'cpufreq' / 'scaling_cur_freq'}",
            read=partial(clocks.figure, of),
        )


class _Clocks:
    """The clocks of all CPUs, read in one pass for several figures."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = tuple(files)
        self._mhz: list[float] = []
        self._read_mono = -SAME_PASS_S

    def figure(self, of: Callable[[Sequence[float]], float]) -> float:
        """A figure of the clocks in MHz. CPUs that are offline are left out; raises `ReadError` when all are."""
        if not self._mhz or time.monotonic() - self._read_mono >= SAME_PASS_S:
            self._mhz = _each(self.files, lambda path: number(path) / 1000.0)
            self._read_mono = time.monotonic()
        return of(self._mhz)


def _events() -> Iterator[Vital]:
    folder = root() / "devices" / "system" / "cpu"
    for part in ("core", "package"):
        files = [cpu / "thermal_throttle" / f"{part}_throttle_count" for cpu in entries(folder, _CPU)]
        present = [path for path in files if exists(path)]
        if present:
            yield Vital(
                name=f"{NAME}.{part}_throttles",
                what="throttle",
                kind="counter",
                unit="events",
                source=f"sum of {folder / 'cpu*' / 'thermal_throttle' / f'{part}_throttle_count'}",
                read=partial(_sum, present),
                word=f"CPU {part} at its thermal limit",
            )


def _sum(files: Sequence[Path]) -> float:
    return float(sum(_each(files, number)))


def _each(files: Sequence[Path], read: Callable[[Path], float]) -> list[float]:
    """What the files hold that can be read. Raises the last `ReadError` when none can."""
    found, last = [], ReadError(files[0], "does not exist", passing=False)
    for path in files:
        try:
            found.append(read(path))
        except ReadError as error:
            last = error
    if not found:
        raise last
    return found
