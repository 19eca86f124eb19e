import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from players.sysfs_player import energies, joules, mount

from pytest_joules import meters
from pytest_joules.errors import MeterError
from pytest_joules.meters.intel_gpu import find


def card(number: int, driver: str, files: Mapping[str, str]) -> dict[str, Any]:
    device = f"class/drm/card{number}/device"
    hwmon = f"{device}/hwmon/hwmon{number + 5}"
    made = {f"{device}/vendor": "0x8086\n", f"{device}/uevent": f"PCI_SLOT_NAME=0000:0{number}:00.0\n"}
    return made | {f"{hwmon}/name": f"{driver}\n"} | {f"{hwmon}/{name}": text for name, text in files.items()}


def covers(meter: Any) -> set[str]:
    return {part for rail in meter.rails for part in rail.covers}


def test_an_xe_card_counts_card_and_package_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    counters = {"energy1_input": "9000000000\n", "energy2_input": "5000000000\n", "power1_crit": "300000000\n"}
    sysfs = mount(monkeypatch, tmp_path, card(3, "xe", counters))
    whole, package = find()
    assert [covers(whole), covers(package)] == [{"gpu", "vram", "vrm"}, {"gpu"}]
    assert [whole.rails[0].limit_w, package.rails[0].limit_w] == [300.0, None]
    samples = []
    readers = [whole.open(1.0), package.open(1.0)]
    folder = "class/drm/card3/device/hwmon/hwmon8"
    for t in range(11):
        sysfs.now = float(t)
        grown = {"energy1_input": 9_000_000_000 + 150_000_000 * t, "energy2_input": 5_000_000_000 + 90_000_000 * t}
        sysfs.write({f"{folder}/{name}": f"{value}\n" for name, value in grown.items()})
        samples += [sample for reader in readers for sample in reader.read()]
    assert joules(energies(whole, samples, 0.0, 10.0)) == pytest.approx(1500.0)
    assert joules(energies(package, samples, 0.0, 10.0)) == pytest.approx(900.0)


def test_a_card_and_the_processor_with_its_memory_can_be_added(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    zones = {
        f"class/powercap/intel-rapl:{zone}/{name}": text
        for zone, part in (("0", "package-0"), ("0/intel-rapl:0:0", "dram"))
        for name, text in (("name", f"{part}\n"), ("energy_uj", "7000000\n"), ("max_energy_range_uj", "262143328850\n"))
    }
    mount(monkeypatch, tmp_path, card(3, "xe", {"energy1_input": "9000000000\n"}) | zones)
    chosen = meters.choose("intel_gpu+rapl", scope=None, basis="measured")
    assert (chosen.scope, chosen.covers) == ("gpu+chip", ("cpu", "dram", "gpu", "vram", "vrm"))


@pytest.mark.parametrize(
    ("driver", "files", "part"),
    [
        ("i915", {"energy1_input": "5\n"}, "package"),
        ("xe", {"energy2_input": "5\n"}, "package"),
        ("xe", {"energy1_input": "5\n"}, "card"),
        ("xe", {"energy1_input": "5\n", "energy1_label": "pkg\n"}, "package"),
        ("xe", {"energy1_input": "5\n", "energy1_label": "card\n"}, "card"),
    ],
)
def test_each_driver_has_its_own_first_counter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, driver: str, files: dict[str, str], part: str
) -> None:
    mount(monkeypatch, tmp_path, card(0, driver, files))
    [meter] = find()
    [rail] = meter.rails
    assert rail.name == f"intel_gpu.0000:00:00.0.{part}"
    assert (rail.scope, rail.kind, rail.unit) == ("gpu", "counter", "uJ")


def test_integrated_graphics_are_said_to_lie_in_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mount(monkeypatch, tmp_path, {"class/drm/card0/device/vendor": "0x8086\n", "class/drm/card0-eDP-1/status": "on\n"})
    with pytest.raises(MeterError, match=r"card0 .*integrated graphics, whose power lies inside the CPU package"):
        find()


def test_a_sleeping_card_is_left_asleep_beside_a_working_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    both = card(0, "xe", {"energy1_input": "5\n"}) | card(1, "xe", {"energy1_input": "7\n"})
    sysfs = mount(monkeypatch, tmp_path, both | {"class/drm/card1/device/power/runtime_status": "suspended\n"})
    [meter] = find()
    assert [rail.name for rail in meter.rails] == ["intel_gpu.0000:00:00.0.card"]
    assert any("0000:01:00.0" in note or "card1" in note for note in meter.notes)
    assert not any("card1" in read and "energy" in read for read in sysfs.reads)


def test_a_card_that_falls_asleep_gives_no_number(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sysfs = mount(monkeypatch, tmp_path, card(0, "i915", {"energy1_input": "5\n"}))
    [meter] = find()
    reader = meter.open(1.0)
    sysfs.write({"class/drm/card0/device/power/runtime_status": "suspended\n"})
    assert [math.isnan(sample.value) for sample in reader.read()] == [True]


def test_several_cards_are_one_meter_unless_one_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = {"energy1_input": "5\n", "energy2_input": "4\n"}
    mount(monkeypatch, tmp_path, card(0, "xe", files) | card(1, "xe", files))
    whole, package = find()
    assert (len(whole.rails), len(package.rails)) == (2, 2)
    assert any("2 cards are summed" in note for note in whole.notes)
    [one, _] = find("0000:01:00.0")
    assert [rail.name for rail in one.rails] == ["intel_gpu.0000:01:00.0.card"]


def test_a_card_whose_counter_fails_is_an_error_with_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mount(monkeypatch, tmp_path, card(0, "i915", {"energy1_input": "\n"}))
    with pytest.raises(MeterError, match=r"counts no energy: .*energy1_input is empty"):
        find()
