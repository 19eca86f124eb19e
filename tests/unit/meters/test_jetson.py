from pathlib import Path
from typing import Any

import pytest
from players.sysfs_player import mount

from pytest_joules.errors import MeterError
from pytest_joules.meters.jetson import find


def monitor(address: str, *rails: tuple[str, int, int], driver: str = "ina3221") -> dict[str, Any]:
    """A monitor whose channels have these labels, millivolts and milliamperes."""
    folder = f"bus/i2c/drivers/{driver}/1-00{address}/hwmon/hwmon{address}"
    made: dict[str, Any] = {f"{folder}/in7_label": "sum of shunt voltages\n"}
    for n, (label, millivolts, milliamperes) in enumerate(rails, 1):
        made[f"{folder}/in{n}_label"] = f"{label}\n"
        made[f"{folder}/in{n}_input"] = f"{millivolts}\n"
        made[f"{folder}/curr{n}_input"] = f"{milliamperes}\n"
    return made


ORIN_NANO = (("VDD_IN", 5000, 3000), ("VDD_CPU_GPU_CV", 5000, 1200), ("VDD_SOC", 5000, 600))


def test_volts_times_amperes_of_every_rail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sysfs = mount(monkeypatch, tmp_path, monitor("40", *ORIN_NANO))
    [meter] = find()
    read = {sample.rail: sample.value for sample in sysfs.play(meter, [0.0])}
    assert read == pytest.approx({"jetson.VDD_IN": 15.0, "jetson.VDD_CPU_GPU_CV": 6.0, "jetson.VDD_SOC": 3.0})
    assert {rail.name: rail.scope for rail in meter.rails} == {
        "jetson.VDD_IN": "board",
        "jetson.VDD_CPU_GPU_CV": "chip",
        "jetson.VDD_SOC": "chip",
    }
    assert meter.rails[0].covers == ("module",)
    assert all("in" in rail.source and "curr" in rail.source for rail in meter.rails)


def test_two_monitors_make_one_chip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = monitor("40", ("VDD_GPU_SOC", 12000, 1000), ("VDD_CPU_CV", 12000, 500), ("VIN_SYS_5V0", 5000, 900))
    mount(monkeypatch, tmp_path, first | monitor("41", ("NC", 0, 0), ("VDDQ_VDD2_1V8AO", 5000, 200)))
    [meter] = find()
    assert {part for rail in meter.rails for part in rail.covers} == {"cpu", "gpu", "npu", "fabric", "dram"}
    assert not any("5V0" in rail.name or "NC" in rail.name for rail in meter.rails)


def test_half_a_chip_is_no_chip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mount(monkeypatch, tmp_path, monitor("40", ("VDD_IN", 5000, 3000), ("CPU", 5000, 1200)))
    [meter] = find()
    assert [rail.name for rail in meter.rails] == ["jetson.VDD_IN"]
    assert any("lack the CPU or the GPU" in note for note in meter.notes)


def test_a_rail_that_cannot_be_read_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sysfs = mount(monkeypatch, tmp_path, monitor("40", *ORIN_NANO))
    sysfs.faults = {"bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon40/curr2_input": "EIO"}
    [meter] = find()
    assert [rail.name for rail in meter.rails] == ["jetson.VDD_IN"]
    assert any("VDD_CPU_GPU_CV is left out" in note and "curr2_input" in note for note in meter.notes)


@pytest.mark.parametrize("files", [{}, {"bus/i2c/drivers/ina3221/bind": ""}])
def test_another_machine_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str]) -> None:
    mount(monkeypatch, tmp_path, files)
    with pytest.raises(MeterError, match="no INA3221 monitor"):
        find()


def test_a_monitor_of_other_rails_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mount(monkeypatch, tmp_path, monitor("40", ("12V_PCIE", 12000, 10)))
    with pytest.raises(MeterError, match="meter jetson: "):
        find()
