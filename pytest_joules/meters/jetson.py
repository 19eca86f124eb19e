"""NVIDIA Jetson modules through their INA3221 monitors: volts times amperes of each supply rail.

From the kernel's Documentation/hwmon/ina3221.rst: `in[123]_label` names a rail, `in[123]_input` is its voltage in millivolts and
`curr[123]_input` its current in milliamperes. The rail names are those of NVIDIA's device trees. VDD_IN feeds the whole
module, so the rails of the chip lie inside it and the two scopes stand apart. VIN_SYS_5V0 and SYS5V feed an unstated part
of the module and are left out.

The monitor itself is exact to 0.25 % (Texas Instruments, INA3221), the resistors that it measures across are not stated: no
calibration is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pytest_joules.errors import MeterAbsent, MeterError
from pytest_joules.meters import Meter
from pytest_joules.meters._sysfs import (
    Channel,
    FileMeter,
    ReadError,
    entries,
    first_reading,
    no_argument,
    number,
    optional_text,
)
from pytest_joules.places import root
from pytest_joules.records import Rail, Scope

NAME = "jetson"

_RAILS: dict[str, tuple[Scope, tuple[str, ...]]] = {
    "VDD_IN": ("board", ("module",)),
    "POM_5V_IN": ("board", ("module",)),
    "VDD_CPU_GPU_CV": ("chip", ("cpu", "gpu", "npu")),
    "VDD_GPU_SOC": ("chip", ("fabric", "gpu")),
    "VDD_CPU_CV": ("chip", ("cpu", "npu")),
    "VDD_SOC": ("chip", ("fabric",)),
    "VDDQ_VDD2_1V8AO": ("chip", ("dram",)),
    "GPU": ("chip", ("gpu",)),
    "CPU": ("chip", ("cpu",)),
    "SOC": ("chip", ("fabric",)),
    "CV": ("chip", ("npu",)),
    "VDDRQ": ("chip", ("dram",)),
}


def find(argument: str | None = None) -> Sequence[Meter]:
    """One meter: the rails of the chip as scope chip, the module's supply as scope board.

    Raises:
        MeterError: there is no monitor, or none of its rails is known or readable.
    """
    no_argument(NAME, argument)
    drivers = root() / "bus" / "i2c" / "drivers"
    labels = [
        label
        for driver in entries(drivers, r"ina3221x?")
        for device in entries(driver)
        for hwmon in entries(device / "hwmon")
        for label in entries(hwmon, r"in\d+_label")
    ]
    if not labels:
        raise MeterAbsent(
            f"meter {NAME}: no INA3221 monitor in {drivers}: this is no Jetson, or its driver is not loaded"
        )
    channels: dict[str, Channel] = {}
    notes = []
    for label in labels:
        name = optional_text(label)
        if name not in _RAILS or name in channels:
            continue
        volts, amperes = label.with_name(label.name.replace("_label", "_input")), _current_of(label)
        read = _product(volts, amperes)
        try:
            first_reading(read)
        except ReadError as error:
            notes.append(f"{name} is left out: {error}")
            continue
        scope, covers = _RAILS[name]
        rail = Rail(
            name=f"{NAME}.{name}",
            scope=scope,
            covers=covers,
            kind="instant",
            basis="measured",
            unit="mV x mA",
            source=f"{volts} x {amperes}",
        )
        channels[name] = Channel(rail, read)
    covered = {part for channel in channels.values() if channel.rail.scope == "chip" for part in channel.rail.covers}
    if not {"cpu", "gpu"} <= covered:
        # Half a chip would pass for a chip that draws half as much.
        channels = {name: channel for name, channel in channels.items() if channel.rail.scope != "chip"}
        notes.append("no chip power: the rails known here lack the CPU or the GPU")
    if not channels:
        raise MeterError(f"meter {NAME}: {'; '.join(notes)}")
    return [FileMeter(NAME, list(channels.values()), notes)]


def _current_of(label: Path) -> Path:
    channel = label.name.removeprefix("in").removesuffix("_label")
    return label.with_name(f"curr{channel}_input")


def _product(volts: Path, amperes: Path) -> Callable[[], float]:
    def read() -> float:
        return number(volts) * number(amperes) * 1e-6

    return read
