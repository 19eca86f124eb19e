"""Memory of the machine: what moves to and from the disk for want of it, and what is free.

Linux counts pages since boot in /proc/vmstat, `pswpin` and `pswpout`. macOS prints them with `vm_stat`, `Swapins` and
`Swapouts`; its page-ins are no such thing, since reading a model's file is one.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import psutil

from pytest_joules.meters._sysfs import ReadError, text
from pytest_joules.vitals import Vital

NAME = "memory"

VMSTAT = Path("/proc/vmstat")
MIB = 2**20

PROGRAM_S = 1.5
"""How long `vm_stat` may take."""

PROGRAM_EVERY = 5
"""A program costs some milliseconds, so it is run in one round of this many only."""

_LINUX_NAMES = {"swapped_in": "pswpin", "swapped_out": "pswpout"}
_MAC_NAMES = {"swapped_in": "Swapins", "swapped_out": "Swapouts"}


def find() -> Sequence[Vital]:
    """Swapping where this system counts it, and available memory."""
    available = Vital(
        name=f"{NAME}.available",
        what="memory",
        kind="gauge",
        unit="MiB",
        source="psutil.virtual_memory().available",
        read=lambda: psutil.virtual_memory().available / MIB,
    )
    if platform.system() == "Darwin":
        return [
            *_swapping("vm_stat", _MAC_NAMES, lambda field: vm_stat_mib(_vm_stat(), field), PROGRAM_EVERY),
            available,
        ]
    try:
        vmstat_mib(text(VMSTAT), "pswpin")
    except (ReadError, LookupError):
        return [available]
    return [*_swapping(str(VMSTAT), _LINUX_NAMES, lambda field: vmstat_mib(text(VMSTAT), field), 1), available]


def _swapping(place: str, names: dict[str, str], mib: Callable[[str], float], every: int) -> list[Vital]:
    return [
        Vital(
            name=f"{NAME}.{name}",
            what="swap",
            kind="counter",
            unit="MiB",
            source=f"{place}: {field}, pages",
            read=partial(mib, field),
            every=every,
        )
        for name, field in names.items()
    ]


def vmstat_mib(content: str, field: str) -> float:
    """A number of pages in /proc/vmstat, as MiB. Raises `LookupError` when it is not there."""
    found = re.search(rf"^{field} (\d+)$", content, re.MULTILINE)
    if found is None:
        raise LookupError(f"{VMSTAT} has no {field}")
    return int(found.group(1)) * os.sysconf("SC_PAGE_SIZE") / MIB


def vm_stat_mib(printed: str, field: str) -> float:
    """A number of pages that `vm_stat` printed, as MiB. Raises `LookupError` when it is not there."""
    size = re.search(r"page size of (\d+) bytes", printed)
    found = re.search(rf'^"?{field}"?:\s+(\d+)\.?$', printed, re.MULTILINE)
    if size is None or found is None:
        raise LookupError(f"vm_stat prints no {field}")
    return int(found.group(1)) * int(size.group(1)) / MIB


def _vm_stat() -> str:
    return subprocess.run(
        ["vm_stat"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=True,
        env={**os.environ, "LC_ALL": "C"},
    ).stdout
