"""Apple silicon: temperatures and clocks in the lines of `macmon pipe`, which the meter of that name already reads.

A second macmon would draw power of its own, so nothing is found or started here: whoever reads the lines passes each to
`readings` and the result to `Watch.feed`. From macmon's sources: `cpu_temp_avg` and `gpu_temp_avg` are means of the SMC's
sensors in degrees Celsius, 0.0 where there is none; clocks are means over the interval in MHz, from 0.8.0 in `*_freq_mhz`, before
as the first of the two numbers in `*_usage`.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_joules.meters import Meter
from pytest_joules.meters.macmon import MacmonMeter, Reading, number, parse
from pytest_joules.vitals import Vital
from pytest_joules.vitals.watch import Watch

NAME = "macmon"

_TEMPERATURES = {"macmon.cpu.temperature": "cpu_temp_avg", "macmon.gpu.temperature": "gpu_temp_avg"}
_CLOCKS = {
    "macmon.efficiency_cores.clock": ("ecpu_freq_mhz", "ecpu_usage"),
    "macmon.performance_cores.clock": ("pcpu_freq_mhz", "pcpu_usage"),
    "macmon.gpu.clock": ("gpu_freq_mhz", "gpu_usage"),
}

VITALS = tuple(
    Vital(name=name, what="temperature", kind="gauge", unit="C", source=f"macmon pipe: temp.{field}")
    for name, field in _TEMPERATURES.items()
) + tuple(
    Vital(name=name, what="clock", kind="gauge", unit="MHz", source=f"macmon pipe: {new}, or {old}[0]")
    for name, (new, old) in _CLOCKS.items()
)
"""What a line may hold."""


def attach(meter: Meter, watch: Watch) -> None:
    """Have the watch told what stands beside the power in the lines of a macmon meter; other meters are left alone."""
    if isinstance(meter, MacmonMeter):
        meter.listeners.append(lambda line, mono: watch.feed(VITALS, readings(line), mono))


def readings(line: bytes) -> Mapping[str, float]:
    """The vitals in one line, by name; those that are missing or 0 are left out, and a broken line holds none."""
    reading = parse(line)
    if reading is None:
        return {}
    temp = reading.get("temp")
    found = {name: number(temp, field) for name, field in _TEMPERATURES.items()} if isinstance(temp, dict) else {}
    found |= {name: _mhz(reading, new, old) for name, (new, old) in _CLOCKS.items()}
    return {name: value for name, value in found.items() if value}


def _mhz(reading: Reading, new: str, old: str) -> float | None:
    if (value := number(reading, new)) is not None:
        return value
    pair = reading.get(old)
    return number({old: pair[0]}, old) if isinstance(pair, list) and len(pair) == 2 else None
