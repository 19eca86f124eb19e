from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from players.sysfs_player import energies, joules, mount

from pytest_joules.errors import MeterError
from pytest_joules.meters import _sysfs, rapl
from pytest_joules.meters.rapl import find

TOP = "devices/virtual/powercap/intel-rapl"


def zones(named: Mapping[str, tuple[str, str]], interface: str = "intel-rapl") -> dict[str, Any]:
    """A tree of zones as the kernel lays it out, by number (`0` or `0:2`): the name and the counter of each."""
    files: dict[str, Any] = {}
    for at, (name, counter) in named.items():
        package = at.split(":")[0]
        folder = f"devices/virtual/powercap/{interface}/{interface}:{package}"
        folder += f"/{interface}:{at}" if ":" in at else ""
        files[f"{folder}/name"] = f"{name}\n"
        files[f"{folder}/energy_uj"] = f"{counter}\n"
        files[f"{folder}/max_energy_range_uj"] = "262143328850\n"
        files[f"class/powercap/{interface}:{at}"] = {"link": f"../../{folder}"}
    return files


# Ways of not being there


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "eacces",
            r"intel-rapl:0/energy_uj may not be read by this user; put the line .*chgrp power.* into .*meter perf",
        ),
        ("dangling", r"class/powercap/intel-rapl:0 is a link to nothing: .*virtual machine"),
        ("empty", r"no RAPL zone in .*class/powercap: .*virtual machine.*modprobe"),
        ("frozen", r"intel-rapl:0/energy_uj stands at 0: nothing drives this counter"),
    ],
)
def test_a_counter_that_is_not_there_is_named_with_its_cause(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, words: str
) -> None:
    mount(monkeypatch, tmp_path, f"R01-rapl-unavailable/{name}")
    with pytest.raises(MeterError, match=words):
        find()


def test_neighbours_that_answer_with_errors_do_not_matter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sysfs = mount(monkeypatch, tmp_path, "R01-rapl-unavailable/enodata")
    [meter] = find()
    assert joules(energies(meter, sysfs.play(meter, sysfs.times()), 0.0, 10.0)) == pytest.approx(780.0)
    assert {Path(read).name for read in sysfs.reads} == {"name", "energy_uj", "max_energy_range_uj"}


def test_a_machine_without_the_class_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mount(monkeypatch, tmp_path, {})
    with pytest.raises(MeterError, match="no RAPL zone"):
        find()


@pytest.mark.parametrize("fault", ["EACCES", "EPERM", "ENODATA", "EIO", "EMPTY"])
def test_a_sum_without_one_of_the_packages_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str
) -> None:
    sysfs = mount(monkeypatch, tmp_path, zones({"0": ("package-0", "5000000"), "1": ("package-1", "7000000")}))
    sysfs.faults = {"class/powercap/intel-rapl:1/energy_uj": fault}
    with pytest.raises(MeterError, match="intel-rapl:1/energy_uj"):
        find()


def test_a_counter_that_stands_still_has_no_energy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sysfs = mount(monkeypatch, tmp_path, zones({"0": ("package-0", "5000000")}))
    [meter] = find()
    [found] = energies(meter, sysfs.play(meter, [float(t) for t in range(11)]), 0.0, 10.0).values()
    assert found.energy_j is None


# Wraps


def test_one_wrap_adds_the_range_of_its_zone_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sysfs = mount(monkeypatch, tmp_path, "R02-rapl-wrap/single")
    [meter] = find()
    assert meter.rails[0].wrap_j == pytest.approx(262143.328850)
    assert joules(energies(meter, sysfs.play(meter, sysfs.times()), 0.0, 10.0)) == pytest.approx(420.0)


def test_an_unknown_number_of_wraps_is_no_energy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sysfs = mount(monkeypatch, tmp_path, "R02-rapl-wrap/gap")
    [meter] = find()
    [found] = energies(meter, sysfs.play(meter, sysfs.times()), 0.0, 904.0).values()
    assert found.energy_j is None
    assert found.reason


def test_a_wrap_without_a_readable_range_is_no_energy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sysfs = mount(monkeypatch, tmp_path, "R04-rapl-wrap-range-unreadable/norange")
    [meter] = find()
    assert meter.rails[0].wrap_j is None
    assert any("range of the counter cannot be read" in note for note in meter.notes)
    samples = sysfs.play(meter, sysfs.times())
    [found] = energies(meter, samples, 0.0, 10.0).values()
    assert found.energy_j is None
    assert joules(energies(meter, samples, 0.0, 4.0)) == pytest.approx(200.0)


def test_a_counter_that_dips_for_one_reading_is_no_wrap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sysfs = mount(monkeypatch, tmp_path, "R04-rapl-wrap-range-unreadable/dip")
    [meter] = find()
    found = energies(meter, sysfs.play(meter, sysfs.times()), 0.0, 10.0)
    assert joules(found) == pytest.approx(500.0, rel=0.01)


# Zones that overlap


def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> tuple[Any, dict[str, Any]]:
    sysfs = mount(monkeypatch, tmp_path, f"R05-rapl-overlapping-domains/{name}")
    [meter] = find()
    return meter, energies(meter, sysfs.play(meter, sysfs.times()), 0.0, 10.0)


def by_scope(meter: Any, found: Mapping[str, Any]) -> dict[str, float]:
    return {
        scope: joules(found, *(rail.name for rail in meter.rails if rail.scope == scope))
        for scope in {rail.scope for rail in meter.rails}
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mmio", {"chip": 246.0}),
        ("psys", {"chip": 310.0, "board": 480.0}),
        ("amd", {"chip": 630.0}),
        ("client_dram", {"chip": 230.0}),
    ],
)
def test_every_watt_is_counted_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, expected: dict[str, float]
) -> None:
    meter, found = play(monkeypatch, tmp_path, name)
    assert by_scope(meter, found) == pytest.approx(expected)


def test_memory_is_a_rail_of_its_own_and_its_absence_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    meter, found = play(monkeypatch, tmp_path, "client_dram")
    assert (joules(found, "rapl.package-0"), joules(found, "rapl.package-0.dram")) == pytest.approx((200.0, 30.0))
    assert {part for rail in meter.rails for part in rail.covers} == {"cpu", "dram"}
    assert not any("no dram zone" in note for note in meter.notes)
    meter, _ = play(monkeypatch, tmp_path / "amd", "amd")
    assert any("no dram zone" in note for note in meter.notes)
    assert any("counted: rapl.package-0;" in note for note in meter.notes)


def test_the_second_interface_is_named_as_not_added(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    meter, _ = play(monkeypatch, tmp_path, "mmio")
    assert [rail.source.split("powercap/")[1] for rail in meter.rails] == ["intel-rapl/intel-rapl:0/energy_uj"]
    assert any("intel-rapl-mmio:0 is package-0 again and is not added" in note for note in meter.notes)


def test_the_second_interface_serves_when_only_it_can_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sysfs = mount(monkeypatch, tmp_path, "R05-rapl-overlapping-domains/mmio")
    sysfs.faults = {"class/powercap/intel-rapl:0/energy_uj": "EACCES"}
    [meter] = find()
    assert joules(energies(meter, sysfs.play(meter, sysfs.times()), 0.0, 10.0)) == pytest.approx(241.0)


def test_a_zone_reached_by_two_paths_is_one_rail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = zones({"0": ("package-0", "5000000"), "0:0": ("dram", "3000000")})
    sysfs = mount(monkeypatch, tmp_path, made)
    [meter] = find()
    assert [rail.name for rail in meter.rails] == ["rapl.package-0", "rapl.package-0.dram"]
    (sysfs.folder / "class/powercap/intel-rapl:0:0").unlink()
    [meter] = find()
    assert len(meter.rails) == 2


@pytest.mark.parametrize("name", ["dram", "psys"])
@pytest.mark.parametrize("counter", ["0", ""])
def test_a_lesser_zone_that_gives_nothing_is_left_out_and_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, counter: str
) -> None:
    at = "0:2" if name == "dram" else "1"
    mount(monkeypatch, tmp_path, zones({"0": ("package-0", "5000000"), at: (name, counter)}))
    [meter] = find()
    assert [rail.name for rail in meter.rails] == ["rapl.package-0"]
    assert any(f"{name} is left out" in note for note in meter.notes)


def test_packages_of_two_sockets_are_added(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Both at the same value, and standing still: two sockets that were just made up, not one counter shown twice.
    mount(monkeypatch, tmp_path, zones({"0": ("package-0", "5000000"), "1": ("package-1", "5000000")}))
    [meter] = find()
    assert len(meter.rails) == 2


@pytest.mark.parametrize("moving", [True, False])
def test_dies_that_mirror_one_counter_are_counted_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, moving: bool
) -> None:
    dies = {"0": ("package-0-die-0", "5000000"), "1": ("package-0-die-1", "5000000")}
    mount(monkeypatch, tmp_path, zones(dies))
    shown(monkeypatch, lambda path, reads: 5_000_000 + (61 * reads if moving else 0))
    [meter] = find()
    assert [rail.name for rail in meter.rails] == ["rapl.package-0-die-0"]
    assert any("package-0-die-1 repeats the counter of package-0-die-0" in note for note in meter.notes)


def test_sockets_that_mirror_one_moving_counter_are_counted_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mount(monkeypatch, tmp_path, zones({"0": ("package-0", "5000000"), "1": ("package-1", "5000000")}))
    shown(monkeypatch, lambda path, reads: 5_000_000 + 61 * reads)
    [meter] = find()
    assert [rail.name for rail in meter.rails] == ["rapl.package-0"]


def test_dies_with_counters_of_their_own_are_added(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dies = {"0": ("package-0-die-0", "5000000"), "1": ("package-0-die-1", "6000000")}
    mount(monkeypatch, tmp_path, zones(dies))
    shown(monkeypatch, lambda path, reads: (5_000_000 if "rapl:0" in str(path) else 9_000_000) + 61 * reads)
    [meter] = find()
    assert [rail.name for rail in meter.rails] == ["rapl.package-0-die-0", "rapl.package-0-die-1"]


def shown(monkeypatch: pytest.MonkeyPatch, counter: Any) -> None:
    """Let every energy_uj show a number that depends on its path and on how many were read before."""
    below, reads = _sysfs.read_bytes, [0]

    def read_bytes(path: Path) -> bytes:
        if path.name != "energy_uj":
            return below(path)
        reads[0] += 1
        return str(counter(path, reads[0])).encode()

    monkeypatch.setattr(_sysfs, "read_bytes", read_bytes)


def test_a_machine_with_parts_of_a_package_only_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mount(monkeypatch, tmp_path, zones({"0": ("core", "5000000")}))
    with pytest.raises(MeterError, match="no package among the zones core"):
        find()


def test_reading_is_in_microjoules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sysfs = mount(monkeypatch, tmp_path, zones({"0": ("package-0", "5250000")}))
    [meter] = find()
    assert [sample.value for sample in sysfs.play(meter, [0.0])] == [pytest.approx(5.25)]
    assert meter.open(8.0).interval_s == pytest.approx(0.125)
    [rail] = meter.rails
    assert (rail.unit, rail.kind, rail.refresh_s) == ("uJ", "counter", rapl.REFRESH_S)
