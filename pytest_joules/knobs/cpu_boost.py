"""Whether the CPU may run faster than its nominal clock: `cpufreq/boost`, or `intel_pstate/no_turbo`, which says the opposite.

Linux, Documentation/admin-guide/pm/cpufreq.rst and intel_pstate.rst. The nominal clock stands in `base_frequency` of the policies, which
not every driver has; without it, it cannot be seen whether the machine keeps to the setting.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from pytest_joules.errors import Unmeasured, UsageError
from pytest_joules.knobs import _cpu, _held

NAME = "cpu_boost"

_MEANING = {"on": True, "off": False}


def takes() -> str:
    """What values this machine takes, in words. Raises `Unmeasured` as `held` does."""
    path, _ = _switch()
    _held.writable(NAME, path)
    return "on or off"


def held(value: object) -> AbstractContextManager[None]:
    """Allow boost, or not, inside the block.

    Args:
        value: `on` or `off`, or the same as true or false.

    Raises:
        UsageError: it is neither.
        Unmeasured: this machine has no such switch, or this user may not write it.
    """
    allowed = value if isinstance(value, bool) else _MEANING.get(str(value))
    if allowed is None:
        raise UsageError(f"knob {NAME}: expected on or off, not {value!r}")
    path, is_off_switch = _switch()
    change = _held.file(NAME, path, str(int(allowed != is_off_switch)))
    nominal = [_cpu.mhz(path) for path in (_cpu.folder() / "cpufreq").glob("policy*/base_frequency")]
    known = [clock for clock in nominal if clock]
    caps = [] if allowed else [_cpu.cap(max(known, default=None))]
    return _held.held(NAME, [change], caps)


def _switch() -> tuple[Path, bool]:
    """The file, and whether it says that boost is off."""
    boost, no_turbo = _cpu.folder() / "cpufreq" / "boost", _cpu.folder() / "intel_pstate" / "no_turbo"
    if boost.is_file():
        return boost, False
    if no_turbo.is_file():
        return no_turbo, True
    raise Unmeasured(f"knob {NAME}: this machine has neither {boost} nor {no_turbo}, so boost cannot be switched")
