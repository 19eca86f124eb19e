"""The highest clock of the CPU, by cpufreq: `scaling_max_freq` of every policy, in kHz (Linux, Documentation/admin-guide/pm/cpufreq.rst)."""

from __future__ import annotations

from contextlib import AbstractContextManager

from pytest_joules.errors import Unmeasured, UsageError
from pytest_joules.knobs._files import held_files
from pytest_joules.places import root

NAME = "cpu_max_mhz"


def held(value: object) -> AbstractContextManager[None]:
    """Cap every CPU at `value` MHz inside the block.

    Raises:
        UsageError: the value is no positive number.
        Unmeasured: this machine has no cpufreq, or it cannot be written.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise UsageError(f"knob {NAME}: expected a clock in MHz, not {value!r}")
    folder = root() / "devices" / "system" / "cpu" / "cpufreq"
    files = sorted(folder.glob("policy*/scaling_max_freq"))
    if not files:
        raise Unmeasured(f"knob {NAME}: this machine has no cpufreq ({folder} is empty), so its clock cannot be capped")
    return held_files(NAME, {path: str(round(value * 1000)) for path in files})
