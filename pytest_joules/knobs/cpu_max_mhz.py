"""The highest clock of the CPU, by cpufreq: `scaling_max_freq` of every policy, in kHz (Linux, Documentation/admin-guide/pm/cpufreq.rst)."""

from __future__ import annotations

from contextlib import AbstractContextManager

from pytest_joules.knobs import _cpu, _held

NAME = "cpu_max_mhz"


def takes() -> str:
    """What values this machine takes, in words. Raises `Unmeasured` as `held` does."""
    policies = _cpu.policies(NAME)
    for policy in policies:
        _held.writable(NAME, policy / "scaling_max_freq")
    return _held.numbers("MHz", _cpu.lowest_mhz(policies), _cpu.highest_mhz(policies))


def held(value: object) -> AbstractContextManager[None]:
    """Cap every CPU at `value` MHz inside the block.

    Raises:
        UsageError: the value is no clock that this machine allows.
        EngineError: `uncapped` is asked for and a cap is there.
        Unmeasured: this machine has no cpufreq, or this user may not write it.
    """
    wanted = _held.limit(NAME, value, "MHz")
    policies = _cpu.policies(NAME)
    files = [policy / "scaling_max_freq" for policy in policies]
    low, high = _cpu.lowest_mhz(policies), _cpu.highest_mhz(policies)
    if wanted is None:
        for path, policy in zip(files, policies, strict=True):
            _held.not_capped(NAME, path, _cpu.mhz(path), _cpu.mhz(policy / "cpuinfo_max_freq"), "MHz")
        return _held.held(NAME, ())
    mhz = _held.within(NAME, wanted, "MHz", low, high)
    changes = [_held.file(NAME, path, str(round(mhz * 1000))) for path in files]
    return _held.held(NAME, changes, [_cpu.cap(mhz)])
