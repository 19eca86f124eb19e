"""Whether the CPU may run faster than its nominal clock: `cpufreq/boost`, or `intel_pstate/no_turbo`, which says the opposite.

Linux, Documentation/admin-guide/pm/cpufreq.rst and intel_pstate.rst. The nominal clock stands in `base_frequency` of the policies, which
not every driver has; without it, it cannot be seen whether the machine keeps to the setting.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from pytest_joules.errors import Unmeasured, UsageError
from pytest_joules.knobs import _cpu, _held

NAME = "cpu_boost"

_MEANING = {"on": True, "off": False}


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
    boost, no_turbo = _cpu.folder() / "cpufreq" / "boost", _cpu.folder() / "intel_pstate" / "no_turbo"
    if boost.is_file():
        change = _held.file(NAME, boost, str(int(allowed)))
    elif no_turbo.is_file():
        change = _held.file(NAME, no_turbo, str(int(not allowed)))
    else:
        raise Unmeasured(f"knob {NAME}: this machine has neither {boost} nor {no_turbo}, so boost cannot be switched")
    nominal = [_cpu.mhz(path) for path in (_cpu.folder() / "cpufreq").glob("policy*/base_frequency")]
    known = [clock for clock in nominal if clock]
    caps = [] if allowed else [_cpu.cap(max(known, default=None))]
    return _held.held(NAME, [change], caps)
