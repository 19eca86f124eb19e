"""NVIDIA GPUs through NVML: temperature, clocks, what slows them down, power limit, and the programs that use them.

Calls and constants are those of nvml.h. Of the reasons for a clock only those are told that hold a chip back under load: an idle
chip, clocks that somebody set, and a display are none. GPUs that sleep are left asleep: starting NVML wakes them, so
nothing is found while one does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import Any

import psutil

from pytest_joules.errors import MeterError
from pytest_joules.meters._sysfs import entries, optional_text
from pytest_joules.meters.nvml import started
from pytest_joules.places import root
from pytest_joules.vitals import POWER_LIMIT, Kind, Value, Vital, What

NAME = "nvml"

TEMPERATURE_GPU, CLOCK_SM, CLOCK_MEMORY = 0, 1, 2
"""NVML_TEMPERATURE_GPU, NVML_CLOCK_SM and NVML_CLOCK_MEM."""

HW_SLOWDOWN, HW_SLOWDOWN_WORD = 0x08, "hardware slowdown"
"""Set by itself, or together with the hardware reason below that explains it."""

_HARDWARE = {0x40: "thermal slowdown (hardware)", 0x80: "power brake (hardware)"}
_SOFTWARE = {0x04: f"{POWER_LIMIT} (software)", 0x20: "thermal slowdown (software)"}

_ALL_ONES = frozenset({2**32 - 1, 2**64 - 1})
"""How NVML says that it has no number."""

UNNAMED = "a program that does not tell its name"


class _Driver:
    """NVML, started at the first use and kept until it is closed."""

    def __init__(self) -> None:
        self._session = contextlib.ExitStack()
        self._nvml: Any = None

    def nvml(self) -> Any:
        """The module `pynvml`, initialised. Raises `MeterError`."""
        if self._nvml is None:
            self._nvml = self._session.enter_context(started())
        return self._nvml

    def close(self) -> None:
        """Let go of the driver; it may be used again."""
        self._nvml = None
        self._session.close()


def find() -> Sequence[Vital]:
    """What every GPU answers, by its NVML index; nothing while one of them sleeps."""
    if _one_sleeps():
        return []
    driver = _Driver()
    try:
        indices = range(driver.nvml().nvmlDeviceGetCount())
    except Exception:  # whatever a driver does in place of starting, there is nothing to read
        indices = range(0)
    found = [vital for index in indices for vital in _of_gpu(driver, index)]
    if not found:
        with contextlib.suppress(MeterError):
            driver.close()
    return found


def _one_sleeps() -> bool:
    devices = entries(root() / "bus" / "pci" / "drivers" / "nvidia", r"[0-9a-f]{4,}:.*")
    states = {optional_text(device / "power" / "runtime_status") for device in devices}
    return not states.isdisjoint({"suspended", "suspending"})


def _of_gpu(driver: _Driver, index: int) -> Iterator[Vital]:
    """The vitals of one GPU that it answers to, each by the first question that works."""
    named: set[str] = set()
    for question in _QUESTIONS:
        read = partial(_ask, driver, index, question.ask)
        if question.name in named or not _answers(read):
            continue
        named.add(question.name)
        yield Vital(
            name=f"{NAME}.gpu{index}.{question.name}",
            what=question.what,
            kind=question.kind,
            unit=question.unit,
            source=f"{question.source}, GPU {index}",
            read=read,
            close=driver.close,
        )


def _answers(read: Callable[[], Value | None]) -> bool:
    try:
        read()
    except Exception:  # not supported, not known to this driver or this pynvml, or no number
        return False
    return True


def _ask(driver: _Driver, index: int, ask: Callable[[Any, Any], Value]) -> Value | None:
    if _one_sleeps():
        return None
    nvml = driver.nvml()
    return ask(nvml, nvml.nvmlDeviceGetHandleByIndex(index))


def _number(raw: int) -> float:
    if raw in _ALL_ONES:
        raise ValueError(f"NVML has no number for it ({raw})")
    return float(raw)


def _programs(nvml: Any, handle: Any) -> Value:
    pids = [int(process.pid) for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    strange = [pid for pid in pids if not psutil.pid_exists(pid)]
    if strange:
        # Inside a container the driver goes on counting as the host does, and nobody can be told from anybody.
        raise LookupError(f"the driver names process {strange[0]}, which this system does not know")
    return {pid: _program(nvml, pid) for pid in pids}


def reasons(mask: int) -> frozenset[str]:
    """The reasons in a mask of NVML that mean that the chip is held back, in words."""
    if mask in _ALL_ONES:
        raise ValueError("NVML does not tell why the clocks are what they are")
    words = {word for bit, word in (_HARDWARE | _SOFTWARE).items() if mask & bit}
    explained = any(mask & bit for bit in _HARDWARE)
    return frozenset(words | ({HW_SLOWDOWN_WORD} if mask & HW_SLOWDOWN and not explained else set()))


def _program(nvml: Any, pid: int) -> str:
    """The name of a program without its folder, which may hold the name of a person."""
    with contextlib.suppress(nvml.NVMLError, AttributeError):
        told = nvml.nvmlSystemGetProcessName(pid)
        text = told.decode("utf-8", "replace") if isinstance(told, bytes) else str(told)
        if name := PurePath(text.split(" ")[0]).name:
            return name
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).name()
    return UNNAMED


@dataclass(frozen=True, slots=True)
class _Question:
    """One thing to ask a GPU, and how; of those with the same name the first that is answered is used."""

    name: str
    what: What
    kind: Kind
    unit: str
    source: str
    ask: Callable[[Any, Any], Value]


_QUESTIONS = (
    _Question(
        name="temperature",
        what="temperature",
        kind="gauge",
        unit="C",
        source="nvmlDeviceGetTemperatureV(NVML_TEMPERATURE_GPU)",
        ask=lambda nvml, handle: _number(nvml.nvmlDeviceGetTemperatureV(handle, TEMPERATURE_GPU)),
    ),
    _Question(
        name="temperature",
        what="temperature",
        kind="gauge",
        unit="C",
        source="nvmlDeviceGetTemperature(NVML_TEMPERATURE_GPU)",
        ask=lambda nvml, handle: _number(nvml.nvmlDeviceGetTemperature(handle, TEMPERATURE_GPU)),
    ),
    _Question(
        name="clock",
        what="clock",
        kind="gauge",
        unit="MHz",
        source="nvmlDeviceGetClockInfo(NVML_CLOCK_SM)",
        ask=lambda nvml, handle: _number(nvml.nvmlDeviceGetClockInfo(handle, CLOCK_SM)),
    ),
    _Question(
        name="memory_clock",
        what="clock",
        kind="gauge",
        unit="MHz",
        source="nvmlDeviceGetClockInfo(NVML_CLOCK_MEM)",
        ask=lambda nvml, handle: _number(nvml.nvmlDeviceGetClockInfo(handle, CLOCK_MEMORY)),
    ),
    _Question(
        name="power_limit",
        what="power_limit",
        kind="gauge",
        unit="W",
        source="nvmlDeviceGetEnforcedPowerLimit, mW",
        ask=lambda nvml, handle: _number(nvml.nvmlDeviceGetEnforcedPowerLimit(handle)) / 1000.0,
    ),
    _Question(
        name="throttle",
        what="throttle",
        kind="words",
        unit="",
        source="nvmlDeviceGetCurrentClocksEventReasons",
        ask=lambda nvml, handle: reasons(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)),
    ),
    _Question(
        name="throttle",
        what="throttle",
        kind="words",
        unit="",
        source="nvmlDeviceGetCurrentClocksThrottleReasons",
        ask=lambda nvml, handle: reasons(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
    ),
    _Question(
        name="programs",
        what="programs",
        kind="programs",
        unit="",
        source="nvmlDeviceGetComputeRunningProcesses",
        ask=_programs,
    ),
)
