import json
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from players.sysfs_player import mount

from pytest_joules.meters._sysfs import ReadError
from pytest_joules.vitals import Vital, battery, macmon, memory
from pytest_joules.vitals.watch import Watch

TESTS = Path(__file__).parents[2]
MACHINES, LINES = TESTS / "machines", TESTS / "cases" / "M05-macmon-field-history"

VM_STAT = """Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               12345.
"Translation faults":                  99887766.
Pageins:                                5550000.
Pageouts:                                 12000.
Swapins:                                    640.
Swapouts:                                  1280.
"""
PMSET = "Now drawing from 'AC Power'\n -InternalBattery-0 (id=1234)\t85%; {}; 1:20 remaining present: true\n"


def read(vital: Vital) -> Any:
    assert vital.read
    return vital.read()


def program(monkeypatch: pytest.MonkeyPatch, module: Any, printed: str | Exception) -> None:
    def run(*words: Any, **keys: Any) -> SimpleNamespace:
        if isinstance(printed, Exception):
            raise printed
        return SimpleNamespace(stdout=printed)

    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(module.subprocess, "run", run)


# macmon


@pytest.mark.parametrize("version", ["0.2.0", "0.3.3", "0.5.1", "0.6.1", "0.7.2", "0.8.0", "0.8.2", "0.8.2-soc"])
def test_lines_of_every_version(version: str) -> None:
    assert macmon.readings((LINES / f"v{version}.json").read_bytes()) == {
        "macmon.cpu.temperature": 61.5,
        "macmon.gpu.temperature": 58.25,
        "macmon.efficiency_cores.clock": 1900.0,
        "macmon.performance_cores.clock": 3600.0,
        "macmon.gpu.clock": 1380.0,
    }


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[1]",
        b'{"temp": {"cpu_temp_avg": NaN}}',
        b'{"temp": null}',
        b'{"temp": {"cpu_temp_avg": 0.0, "gpu_temp_avg": "warm"}}',
        b'{"ecpu_usage": 5, "pcpu_usage": [], "gpu_usage": [null, 0.5]}',
    ],
)
def test_lines_that_hold_no_reading(line: bytes) -> None:
    assert macmon.readings(line) == {}


def test_lines_are_fed_to_a_watch() -> None:
    watch = Watch(1.0, [])
    line = (LINES / "v0.8.2.json").read_bytes()
    for tenth in range(50):
        watch.feed(macmon.VITALS, macmon.readings(line), tenth / 10)
    found = {part.name: part for part in watch.between(0.0, 5.0)}
    assert set(found) == {vital.name for vital in macmon.VITALS}
    assert found["macmon.cpu.temperature"].highest == 61.5
    assert found["macmon.cpu.temperature"].readings <= 10
    assert found["macmon.gpu.clock"].unit == "MHz"
    assert watch.temperature_rise_c(0.0, 5.0) == 0.0


# Memory


def test_swapping_on_linux(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("nr_free_pages 9\npgpgin 77\npswpin 512\npswpout 1024\nzswpin 3\n")
    monkeypatch.setattr(memory, "VMSTAT", vmstat)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(memory.os, "sysconf", lambda _: 4096)
    found = {vital.name: vital for vital in memory.find()}
    assert read(found["memory.swapped_in"]) == 2.0
    assert read(found["memory.swapped_out"]) == 4.0
    assert found["memory.swapped_out"].kind == "counter"
    assert read(found["memory.available"]) > 1.0
    vmstat.unlink()
    with pytest.raises(ReadError):
        read(found["memory.swapped_in"])


@pytest.mark.parametrize("content", [None, "", "pgpgin 5\n"])
def test_a_system_that_counts_no_swapping(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None) -> None:
    vmstat = tmp_path / "vmstat"
    if content is not None:
        vmstat.write_text(content)
    monkeypatch.setattr(memory, "VMSTAT", vmstat)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    assert [vital.name for vital in memory.find()] == ["memory.available"]


def test_swapping_on_a_mac_is_not_its_page_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    program(monkeypatch, memory, VM_STAT)
    found = {vital.name: vital for vital in memory.find()}
    assert read(found["memory.swapped_in"]) == 10.0
    assert read(found["memory.swapped_out"]) == 20.0
    assert found["memory.swapped_in"].every > 1
    with pytest.raises(LookupError):
        memory.vm_stat_mib(VM_STAT.replace("Swapins", "Swaps"), "Swapins")


# Battery


@pytest.mark.parametrize(
    ("machine", "found"),
    [("laptop-on-battery", {"battery.BAT0.charging": 0.0}), ("strix-halo", {}), ("virtual-machine", {})],
)
def test_batteries_of_whole_machines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, machine: str, found: Mapping[str, float]
) -> None:
    mount(monkeypatch, tmp_path, json.loads((MACHINES / f"{machine}.json").read_text())["sys"])
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    assert {vital.name: read(vital) for vital in battery.find()} == found


@pytest.mark.parametrize(
    ("status", "charging"), [("Charging", 1.0), ("Full", 0.0), ("Not charging", 0.0), ("Unknown", None), ("", None)]
)
def test_what_a_supply_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: str, charging: float | None
) -> None:
    supply = "class/power_supply/BAT1"
    mount(monkeypatch, tmp_path, {f"{supply}/type": "Battery\n", f"{supply}/status": f"{status}\n"})
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    [vital] = battery.find()
    if charging is None:
        with pytest.raises(ReadError):
            read(vital)
    else:
        assert read(vital) == charging


@pytest.mark.parametrize(
    ("state", "charging"),
    [
        ("charging", 1.0),
        ("finishing charge", 1.0),
        ("discharging", 0.0),
        ("charged", 0.0),
        ("AC attached", 0.0),
        ("dreaming", None),
    ],
)
def test_what_pmset_says(monkeypatch: pytest.MonkeyPatch, state: str, charging: float | None) -> None:
    program(monkeypatch, battery, PMSET.format(state))
    [vital] = battery.find()
    if charging is None:
        with pytest.raises(LookupError, match="dreaming"):
            read(vital)
    else:
        assert read(vital) == charging


def test_a_mac_without_a_battery_and_one_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    program(monkeypatch, battery, "Now drawing from 'AC Power'\n")
    assert battery.find() == []
    program(monkeypatch, battery, subprocess.TimeoutExpired("pmset", 1.5))
    [vital] = battery.find()
    with pytest.raises(subprocess.TimeoutExpired):
        read(vital)
