"""Who used the CPU: the client, the engine, or others."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil

from pytest_joules.meters.estimate import busy_cpu_s


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """CPU seconds so far, or over a stretch: ours, the engine's, and the whole machine's."""

    mono: float
    ours_s: float
    engine_s: float | None
    machine_s: float

    @classmethod
    def now(cls, engine_pids: frozenset[int] | None) -> CpuTimes:
        """As of now. `engine_s` is `None` where an engine's process cannot be seen, or is not known."""
        engine_s: float | None = None
        try:
            if engine_pids is not None:
                engine_s = sum(sum(psutil.Process(pid).cpu_times()[:4]) for pid in engine_pids)
        except psutil.Error:
            engine_s = None
        return cls(time.monotonic(), time.process_time(), engine_s, busy_cpu_s())

    def since(self, earlier: CpuTimes) -> CpuTimes:
        """What was spent between two moments."""
        engine_s = None if self.engine_s is None or earlier.engine_s is None else self.engine_s - earlier.engine_s
        return CpuTimes(
            self.mono - earlier.mono, self.ours_s - earlier.ours_s, engine_s, self.machine_s - earlier.machine_s
        )

    @property
    def others_cores(self) -> float | None:
        """Cores kept busy by anything else over the stretch: never more than there are, whatever the clocks' ticks say."""
        if self.engine_s is None:
            return None
        return min((self.machine_s - self.ours_s - self.engine_s) / self.mono, float(psutil.cpu_count() or 1))
