import math
from pathlib import Path
from typing import Any

import pytest
from players.sysfs_player import mount

from pytest_joules.errors import MeterError
from pytest_joules.meters.battery import find


def supply(name: str, **files: object) -> dict[str, Any]:
    told: dict[str, object] = {"type": "Battery", "status": "Discharging"} | files
    return {f"class/power_supply/{name}/{file}": f"{text}\n" for file, text in told.items() if text is not None}


@pytest.mark.parametrize(
    ("files", "watts"),
    [
        ({"power_now": 12_500_000}, 12.5),
        ({"power_now": -12_500_000}, 12.5),
        ({"current_now": 1_100_000, "voltage_now": 11_400_000}, 12.54),
        ({"current_now": -1_100_000, "voltage_now": 11_400_000}, 12.54),
    ],
)
def test_the_gauge_tells_the_machines_power(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, int], watts: float
) -> None:
    sysfs = mount(monkeypatch, tmp_path, supply("BAT0", **files))
    [meter] = find()
    assert [sample.value for sample in sysfs.play(meter, [0.0])] == [pytest.approx(watts)]
    [rail] = meter.rails
    assert (rail.name, rail.scope, rail.covers) == ("battery.BAT0", "board", ("laptop",))
    assert all(name in rail.source for name in files)


@pytest.mark.parametrize("status", ["Charging", "Full", "Not charging", "Unknown", None])
def test_nothing_is_read_unless_it_discharges(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: str | None
) -> None:
    mount(monkeypatch, tmp_path, supply("BAT0", status=status, power_now=12_500_000))
    with pytest.raises(MeterError, match=r"only while discharging, and BAT0 is .*unplug"):
        find()


@pytest.mark.parametrize(
    "files",
    [
        {},
        supply("mouse", scope="Device", power_now=5),
        supply("BAT0", present=0, power_now=5),
        supply("AC", type="Mains"),
    ],
)
def test_without_a_battery_of_the_machine_it_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str]
) -> None:
    mount(monkeypatch, tmp_path, files)
    with pytest.raises(MeterError, match="no battery in"):
        find()


@pytest.mark.parametrize("status", ["Charging", "Full", "Not charging"])
def test_the_mains_coming_back_end_the_measurement(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: str
) -> None:
    sysfs = mount(monkeypatch, tmp_path, supply("BAT0", power_now=12_500_000))
    [meter] = find()
    reader = meter.open(1.0)
    sysfs.write(supply("BAT0", status=status))
    with pytest.raises(MeterError, match="the mains feed the machine"):
        reader.read()


def test_of_two_batteries_one_may_rest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    both = supply("BAT0", status="Full", power_now=0) | supply("BAT1", power_now=9_000_000)
    sysfs = mount(monkeypatch, tmp_path, both)
    [meter] = find()
    assert [sample.value for sample in sysfs.play(meter, [0.0])] == [0.0, 9.0]
    reader = meter.open(1.0)
    sysfs.write(supply("BAT1", status="Full", power_now=0))
    with pytest.raises(MeterError, match="the mains feed the machine"):
        reader.read()
    sysfs.write(supply("BAT0", status="Charging", power_now=5_000_000) | supply("BAT1", power_now=20_000_000))
    with pytest.raises(MeterError, match="the mains feed the machine"):
        reader.read()
    [one] = find("BAT1")
    assert [rail.name for rail in one.rails] == ["battery.BAT1"]


@pytest.mark.parametrize("power", [0, 4294967295])
def test_a_gauge_without_a_value_is_missing_and_not_zero(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, power: int
) -> None:
    sysfs = mount(monkeypatch, tmp_path, supply("BAT0", power_now=12_500_000))
    [meter] = find()
    reader = meter.open(1.0)
    sysfs.write(supply("BAT0", power_now=power))
    assert [math.isnan(sample.value) for sample in reader.read()] == [True]
