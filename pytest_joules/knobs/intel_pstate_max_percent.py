"""The highest performance that the driver intel_pstate asks for, in percent of what the CPU supports.

`/sys/devices/system/cpu/intel_pstate/max_perf_pct` (Linux, Documentation/admin-guide/pm/intel_pstate.rst). 100 is the highest turbo clock.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from pytest_joules.errors import Unmeasured
from pytest_joules.knobs import _cpu, _held

NAME = "intel_pstate_max_percent"

_HIGHEST = 100.0


def takes() -> str:
    """What values this machine takes, in words. Raises `Unmeasured` as `held` does."""
    path = _path()
    _held.writable(NAME, path)
    return _held.numbers("%", _lowest(), _HIGHEST)


def held(value: object) -> AbstractContextManager[None]:
    """Hold every CPU to `value` percent inside the block.

    Raises:
        UsageError: the value is out of what the driver allows.
        EngineError: `uncapped` is asked for and a cap is there.
        Unmeasured: this machine does not run intel_pstate, or this user may not write its files.
    """
    wanted = _held.limit(NAME, value, "%")
    path = _path()
    if wanted is None:
        _held.not_capped(NAME, path, float(_held.reading(NAME, path)), _HIGHEST, "%")
        return _held.held(NAME, ())
    percent = round(_held.within(NAME, wanted, "%", _lowest(), _HIGHEST))
    highest_mhz = _cpu.highest_mhz(list((_cpu.folder() / "cpufreq").glob("policy*")))
    cap = _cpu.cap(highest_mhz * percent / 100 if highest_mhz else None)
    return _held.held(NAME, [_held.file(NAME, path, str(percent))], [cap])


def _path() -> Path:
    path = _cpu.folder() / "intel_pstate" / "max_perf_pct"
    if not path.is_file():
        raise Unmeasured(
            f"knob {NAME}: this machine does not run the driver intel_pstate (there is no {path}); take cpu_max_mhz"
        )
    return path


def _lowest() -> float:
    return float(_held.reading(NAME, _cpu.folder() / "intel_pstate" / "min_perf_pct"))
