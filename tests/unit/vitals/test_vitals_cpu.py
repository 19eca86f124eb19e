import json
from pathlib import Path
from typing import Any

import pytest
from players.sysfs_player import Sysfs, mount

from pytest_joules.meters._sysfs import ReadError
from pytest_joules.vitals import Vital, cpu

MACHINES = Path(__file__).parents[2] / "machines"
CPUS = "devices/system/cpu"


def read(vital: Vital) -> Any:
    assert vital.read
    return vital.read()


def found(monkeypatch: pytest.MonkeyPatch, folder: Path, files: dict[str, Any]) -> tuple[Sysfs, dict[str, Vital]]:
    sysfs = mount(monkeypatch, folder, files)
    return sysfs, {vital.name: vital for vital in cpu.find()}


@pytest.mark.parametrize(
    ("machine", "celsius"),
    [
        ("strix-halo", {"cpu.package0.temperature": 41.25}),
        ("two-sockets", {"cpu.package0.temperature": 44.0, "cpu.package1.temperature": 43.0}),
        ("laptop-on-battery", {"cpu.package0.temperature": 41.0}),
        ("virtual-machine", {}),
    ],
)
def test_package_temperatures_of_whole_machines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, machine: str, celsius: dict[str, float]
) -> None:
    _, vitals = found(monkeypatch, tmp_path, json.loads((MACHINES / f"{machine}.json").read_text())["sys"])
    assert {name: read(vital) for name, vital in vitals.items() if vital.what == "temperature"} == celsius


def test_cores_and_other_devices_are_no_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = {
        "class/hwmon/hwmon0/name": "nvme\n",
        "class/hwmon/hwmon0/temp1_input": "38000\n",
        "class/hwmon/hwmon1/name": "coretemp\n",
        "class/hwmon/hwmon1/temp2_input": "90000\n",
        "class/hwmon/hwmon1/temp2_label": "Core 0\n",
    }
    assert found(monkeypatch, tmp_path, files)[1] == {}


@pytest.mark.parametrize(
    ("labels", "celsius"),
    [(("Tctl", "Tdie"), 50.0), (("Tdie", "Tctl"), 77.0), (("Tctl", "Tccd1"), 77.0), ((None, None), 77.0)],
)
def test_the_die_comes_before_the_control_temperature(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, labels: tuple[str | None, ...], celsius: float
) -> None:
    files = {
        "class/hwmon/hwmon0/name": "k10temp\n",
        "class/hwmon/hwmon0/temp1_input": "77000\n",
        "class/hwmon/hwmon0/temp2_input": "50000\n",
    }
    files |= {f"class/hwmon/hwmon0/temp{i}_label": label for i, label in enumerate(labels, 1) if label}
    _, vitals = found(monkeypatch, tmp_path, files)
    assert read(vitals["cpu.package0.temperature"]) == celsius


def test_clocks_are_mean_lowest_and_highest_in_one_pass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = {f"{CPUS}/cpu{i}/cpufreq/scaling_cur_freq": f"{khz}\n" for i, khz in enumerate((3_000_000, 1_000_000))}
    sysfs, vitals = found(monkeypatch, tmp_path, files | {f"{CPUS}/cpufreq/boost": "1\n"})
    assert read(vitals["cpu.mean_clock"]) == 2000.0
    assert read(vitals["cpu.lowest_clock"]) == 1000.0
    assert read(vitals["cpu.highest_clock"]) == 3000.0
    assert len(sysfs.reads) == 2
    sysfs.faults = {f"{CPUS}/cpu1/cpufreq/scaling_cur_freq": "EBUSY"}
    monkeypatch.setattr(cpu, "SAME_PASS_S", 0.0)
    assert read(vitals["cpu.lowest_clock"]) == 3000.0
    sysfs.faults[f"{CPUS}/cpu0/cpufreq/scaling_cur_freq"] = "EBUSY"
    with pytest.raises(ReadError):
        read(vitals["cpu.mean_clock"])


def test_thermal_events_are_counters_over_all_cpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = {
        f"{CPUS}/cpu{i}/thermal_throttle/{part}_throttle_count": f"{10 * i + n}\n"
        for i in range(2)
        for n, part in enumerate(("core", "package"))
    }
    sysfs, vitals = found(monkeypatch, tmp_path, files)
    assert {name: (vital.kind, vital.what, vital.word) for name, vital in vitals.items()} == {
        "cpu.core_throttles": ("counter", "throttle", "CPU core at its thermal limit"),
        "cpu.package_throttles": ("counter", "throttle", "CPU package at its thermal limit"),
    }
    assert (read(vitals["cpu.core_throttles"]), read(vitals["cpu.package_throttles"])) == (10.0, 12.0)
    sysfs.write({f"{CPUS}/cpu1/thermal_throttle/core_throttle_count": "13\n"})
    assert read(vitals["cpu.core_throttles"]) == 13.0


def test_a_machine_without_any_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert found(monkeypatch, tmp_path, {})[1] == {}
