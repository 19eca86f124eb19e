"""What the knobs of the CPU share: the policies of cpufreq and their clocks."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from pytest_joules.errors import Unmeasured
from pytest_joules.knobs._held import Cap
from pytest_joules.places import root


def folder() -> Path:
    """Where the kernel keeps what concerns all CPUs."""
    return root() / "devices" / "system" / "cpu"


def policies(knob: str) -> list[Path]:
    """The policies of cpufreq. Raises `Unmeasured` where there are none."""
    found = sorted(path.parent for path in (folder() / "cpufreq").glob("policy*/scaling_max_freq"))
    if not found:
        raise Unmeasured(
            f"knob {knob}: this machine has no cpufreq ({folder() / 'cpufreq'} is empty), so its clock cannot be capped; "
            "virtual machines have none"
        )
    return found


def mhz(path: Path) -> float | None:
    """A clock that the kernel gives in kHz; `None` where it does not."""
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text()) / 1000
    return None


def lowest_mhz(of: Sequence[Path]) -> float | None:
    """The lowest clock that every policy takes."""
    return max((clock for policy in of if (clock := mhz(policy / "cpuinfo_min_freq"))), default=None)


def highest_mhz(of: Sequence[Path]) -> float | None:
    """The highest clock that any policy reaches."""
    return max((clock for policy in of if (clock := mhz(policy / "cpuinfo_max_freq"))), default=None)


def cap(at_most_mhz: float | None) -> Cap:
    """No CPU is to run faster, as the kernel reads their clocks."""
    return Cap(kind="vital", of="cpu.highest_clock", at_most=at_most_mhz, unit="MHz")
