"""How fast this machine's processor reads and writes its memory: the kernels of STREAM, with numpy in one thread per CPU.

numpy lets go of the interpreter's lock within each call, so threads are enough. Bytes are counted as STREAM counts them: those the
program reads and writes. A processor that reads a line before it overwrites it moves more, by up to half in `copy` and a third in
`add`; `read` writes nothing, and reading is what decoding does.
"""

from __future__ import annotations

import os
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import psutil

from pytest_joules.errors import UsageError
from pytest_joules.places import root

LEAST_ARRAY_MB = 512
"""Size of each array at least; where the cache is larger than a quarter of that, four times the cache, as STREAM asks."""

UNQUIET_CORES, UNQUIET_SPREAD = 0.1, 0.15
"""From so many cores kept busy by others, or so unlike repeats, the figure is one that an idle machine may well exceed."""

_OF_FREE_MEMORY = 0.5
"""No more of the free memory than this is taken."""

_PLAIN = {
    "read": "reads one array",
    "copy": "reads one array and writes one",
    "add": "reads two arrays and writes their sum",
}
_ARRAYS_MOVED = {"read": 1, "copy": 2, "add": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """What one kernel reached.

    Attributes:
        gb_s: of each repeat, in order; the first one, which warms up, is left out.
    """

    name: str
    gb_s: tuple[float, ...]

    @property
    def what(self) -> str:
        """What it does, in words."""
        return _PLAIN[self.name]

    @property
    def best_gb_s(self) -> float:
        """The highest of the repeats: whatever disturbs makes it slower, never faster."""
        return max(self.gb_s)

    @property
    def median_gb_s(self) -> float:
        """The median of the repeats."""
        return statistics.median(self.gb_s)

    @property
    def spread(self) -> float:
        """(highest - lowest) / highest."""
        return 1 - min(self.gb_s) / max(self.gb_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The bandwidth of this machine's memory as its processor sees it.

    Attributes:
        cache_mb: last-level cache that this machine states; `None` where it states none.
        cores_others: how many cores others kept busy meanwhile.
    """

    kernels: tuple[Kernel, ...]
    threads: int
    array_mb: float
    cache_mb: float | None
    cores_others: float

    @property
    def best(self) -> Kernel:
        """The kernel that reached most."""
        return max(self.kernels, key=lambda kernel: kernel.best_gb_s)

    @property
    def unquiet(self) -> str:
        """What speaks against the figure; empty where nothing does."""
        said = []
        if self.cores_others > UNQUIET_CORES:
            said.append(f"other programs kept {self.cores_others:.1f} cores busy")
        if self.best.spread > UNQUIET_SPREAD:
            said.append(f"the repeats differ by {self.best.spread:.0%}")
        return " and ".join(said)


def probe(repeats: int = 12, threads: int | None = None, array_mb: float | None = None) -> Probe:
    """Measure it; takes a few seconds and three arrays of memory.

    Args:
        threads: one for each CPU this process may use, unless stated.
        array_mb: size of each array; large enough to leave the cache behind, unless stated.

    Raises:
        UsageError: there is too little free memory for arrays that no cache can hold.
    """
    import numpy as np

    from pytest_joules.meters.estimate import busy_cpu_s

    threads = threads or _cpus()
    cache_mb = last_level_cache_mb()
    array_mb = array_mb or max(LEAST_ARRAY_MB, 4 * (cache_mb or 0))
    needed, free = 3e6 * array_mb, psutil.virtual_memory().available
    if needed > _OF_FREE_MEMORY * free:
        raise UsageError(
            f"the probe needs {needed / 1e9:.1f} GB for arrays that no cache can hold, and {free / 1e9:.1f} GB are free, half of which "
            "it takes at most; close other programs"
        )
    count = int(1e6 * array_mb) // 8
    parts = [slice(i * count // threads, (i + 1) * count // threads) for i in range(threads)]
    a, b, c = (np.empty(count) for _ in range(3))

    def fill(part: slice) -> None:
        # Whoever writes to a page first decides in which memory it lies.
        a[part], b[part], c[part] = 0.0, 1.0, 2.0

    bits = b.view(np.int64)
    kernels: Mapping[str, Callable[[slice], Any]] = {
        "read": lambda part: np.bitwise_or.reduce(bits[part]),
        "copy": lambda part: np.copyto(a[part], b[part]),
        "add": lambda part: np.add(b[part], c[part], out=a[part]),
    }
    began, busy, ours = time.monotonic(), busy_cpu_s(), time.process_time()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(fill, parts))
        found = tuple(
            Kernel(name=name, gb_s=tuple(_timed(pool, kernel, parts, 8 * count * _ARRAYS_MOVED[name], repeats)))
            for name, kernel in kernels.items()
        )
    others = (busy_cpu_s() - busy - (time.process_time() - ours)) / (time.monotonic() - began)
    return Probe(kernels=found, threads=threads, array_mb=array_mb, cache_mb=cache_mb, cores_others=max(0.0, others))


def _timed(
    pool: ThreadPoolExecutor, kernel: Callable[[slice], Any], parts: Sequence[slice], moved: int, repeats: int
) -> list[float]:
    found = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        list(pool.map(kernel, parts))
        found.append(moved / (time.perf_counter() - start) / 1e9)
    return found[1:]


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def last_level_cache_mb() -> float | None:
    """All last-level caches together in MB, as the system states them; of a virtual machine those it is shown."""
    sizes: dict[tuple[int, str], float] = {}
    for index in root().glob("devices/system/cpu/cpu[0-9]*/cache/index[0-9]*"):
        try:
            level, text, shared = ((index / name).read_text().strip() for name in ("level", "size", "shared_cpu_list"))
        except OSError:
            continue
        size = re.fullmatch(r"(\d+)([KM]?)", text)
        if size and level.isdigit():
            sizes[int(level), shared] = int(size[1]) * {"": 1, "K": 1024, "M": 1024**2}[size[2]] / 1e6
    last = max((level for level, _ in sizes), default=0)
    return sum(size for (level, _), size in sizes.items() if level == last) or None
