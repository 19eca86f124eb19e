import re
from pathlib import Path
from typing import Any

import pytest
from players.sysfs_player import energies, joules, mount

from pytest_joules.errors import MeterError
from pytest_joules.meters.hwmon import find

TREE = {
    "class/hwmon/hwmon0/name": "nvme\n",
    "class/hwmon/hwmon0/temp1_input": "41000\n",
    "class/hwmon/hwmon3/name": "corsairpsu\n",
    "class/hwmon/hwmon3/power1_label": "power total\n",
    "class/hwmon/hwmon3/power1_input": "240000000\n",
    "class/hwmon/hwmon3/power1_crit": "850000000\n",
    "class/hwmon/hwmon3/power2_label": "power +12v\n",
    "class/hwmon/hwmon3/power2_input": "200000000\n",
    "class/hwmon/hwmon10/name": "amd_energy\n",
    "class/hwmon/hwmon10/energy1_label": "Esocket0\n",
    "class/hwmon/hwmon10/energy1_input": "7000000\n",
    "class/hwmon/hwmon11/name": "power_meter\n",
    "class/hwmon/hwmon11/power1_average": "90000000\n",
    "class/hwmon/hwmon11/power1_input": "95000000\n",
}


@pytest.mark.parametrize(
    ("argument", "value", "kind", "scope"),
    [
        ("corsairpsu/power total", 240.0, "instant", "board"),
        ("corsairpsu/power1=wall", 240.0, "instant", "wall"),
        ("hwmon3/power +12v", 200.0, "instant", "board"),
        ("amd_energy/Esocket0=chip", 7.0, "counter", "chip"),
        ("power_meter/power1", 90.0, "moving_average", "board"),
    ],
)
def test_one_sensor_by_chip_and_label(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, argument: str, value: float, kind: str, scope: str
) -> None:
    sysfs = mount(monkeypatch, tmp_path, TREE)
    [meter] = find(argument)
    assert [sample.value for sample in sysfs.play(meter, [0.0])] == [pytest.approx(value)]
    [rail] = meter.rails
    assert (rail.kind, rail.scope, rail.covers) == (kind, scope, (argument.split("=")[0],))
    assert rail.limit_w == (850.0 if value == 240.0 else None)
    assert any(f"scope {scope}" in note for note in meter.notes)


def test_without_a_name_the_sensors_are_listed_and_none_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mount(monkeypatch, tmp_path, TREE)
    with pytest.raises(
        MeterError, match=r"must be named; .*amd_energy/Esocket0, .*corsairpsu/power total.*CHIP/LABEL"
    ) as found:
        find()
    assert "nvme" not in str(found.value)


def test_every_sensor_is_listed_once_by_a_name_that_is_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    twin = {
        "class/hwmon/hwmon12/name": "power_meter\n",
        "class/hwmon/hwmon12/power1_average": "10000000\n",
        "class/hwmon/hwmon13/name": "psu\n",
        "class/hwmon/hwmon13/power1_label": "in\n",
        "class/hwmon/hwmon13/power1_input": "10000000\n",
        "class/hwmon/hwmon13/power2_label": "in\n",
        "class/hwmon/hwmon13/power2_input": "20000000\n",
    }
    mount(monkeypatch, tmp_path, TREE | twin)
    with pytest.raises(MeterError) as found:
        find()
    [listed] = re.findall(r"there are (.*?);", str(found.value))
    assert listed.split(", ") == [
        "amd_energy/Esocket0",
        "corsairpsu/power +12v",
        "corsairpsu/power total",
        "hwmon11/power1",
        "hwmon12/power1",
        "psu/power1",
        "psu/power2",
    ]
    for name in listed.split(", "):
        assert len(find(name)) == 1
    with pytest.raises(MeterError, match=r"2 sensors are called 'psu/in'"):
        find("psu/in")


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("corsairpsu/power9", "no sensor 'corsairpsu/power9'; there are"),
        ("corsairpsu", "no sensor 'corsairpsu'"),
        (
            "corsairpsu/power1=wal",
            r"'wal' is no scope; did you mean 'wall'\?; one of chip, gpu, gpu\+chip, board, wall",
        ),
    ],
)
def test_what_is_not_there_is_named_beside_what_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, argument: str, words: str
) -> None:
    mount(monkeypatch, tmp_path, TREE)
    with pytest.raises(MeterError, match=words):
        find(argument)


def test_two_chips_of_one_name_must_be_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    twin = {"class/hwmon/hwmon12/name": "power_meter\n", "class/hwmon/hwmon12/power1_average": "10000000\n"}
    mount(monkeypatch, tmp_path, TREE | twin)
    with pytest.raises(MeterError, match=r"2 sensors are called 'power_meter/power1'.*name the folder"):
        find("power_meter/power1")
    [meter] = find("hwmon12/power1")
    assert meter.rails[0].source.endswith("hwmon12/power1_average")


@pytest.mark.parametrize("text", ["65535000000\n", "4294967295000\n", "-5\n", "", "none\n"])
def test_a_sensor_that_gives_no_power_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    mount(monkeypatch, tmp_path, TREE | {"class/hwmon/hwmon3/power2_input": text})
    with pytest.raises(MeterError, match="power2_input"):
        find("hwmon3/power2")


def test_energy_of_a_counter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sysfs = mount(monkeypatch, tmp_path, TREE)
    [meter] = find("amd_energy/Esocket0")
    reader = meter.open(1.0)
    samples: list[Any] = []
    for t in range(11):
        sysfs.now = float(t)
        sysfs.write({"class/hwmon/hwmon10/energy1_input": f"{7_000_000 + 12_000_000 * t}\n"})
        samples += reader.read()
    assert joules(energies(meter, samples, 0.0, 10.0)) == pytest.approx(120.0)
