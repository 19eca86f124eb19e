import base64
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from players.sysfs_player import CASES, energies, joules, mount

from pytest_joules.errors import MeterError
from pytest_joules.meters import rapl
from pytest_joules.meters.amdgpu import decode, find

BLOBS = CASES / "A02-amdgpu-metrics-decode" / "blobs"
CARD = "class/drm/card0/device"
HWMON = f"{CARD}/hwmon/hwmon4"


def table(revision: tuple[int, int], size: int, fields: Mapping[tuple[int, str], int]) -> bytes:
    made = bytearray(b"\xff" * size)
    struct.pack_into("<HBB", made, 0, size, *revision)
    for (offset, code), value in fields.items():
        struct.pack_into(f"<{code}", made, offset, value)
    return bytes(made)


def packed(made: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(made).decode()}


def tree(files: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{CARD}/vendor": "0x1002\n", f"{HWMON}/name": "amdgpu\n"} | dict(files)


# Which hwmon file


@pytest.mark.parametrize(
    ("name", "file", "kind"),
    [
        ("input_only", "power1_input", "instant"),
        ("average_only", "power1_average", "moving_average"),
        ("both", "power1_average", "moving_average"),
    ],
)
def test_whichever_power_file_exists_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, file: str, kind: str
) -> None:
    sysfs = mount(monkeypatch, tmp_path, f"A01-amdgpu-which-power-file/{name}")
    [meter] = find()
    assert [sample.value for sample in sysfs.play(meter, [0.0])] == [83.0]
    [rail] = meter.rails
    assert rail.source.endswith(f"hwmon4/{file}")
    assert (rail.kind, rail.unit, rail.basis) == (kind, "uW", "measured")


def test_neither_power_file_is_an_error_that_names_both(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mount(monkeypatch, tmp_path, "A01-amdgpu-which-power-file/neither")
    with pytest.raises(MeterError, match=r"power1_average does not exist; .*power1_input does not exist"):
        find()


def test_an_average_that_stands_at_zero_gives_way_to_a_live_input(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mount(monkeypatch, tmp_path, tree({f"{HWMON}/power1_average": "0\n", f"{HWMON}/power1_input": "83000000\n"}))
    [meter] = find()
    assert meter.rails[0].source.endswith("power1_input")


# The binary table


def test_fields_of_every_known_table() -> None:
    found = {path.stem: decode(path.read_bytes()) for path in BLOBS.iterdir()}
    unsupported = {name for name, metrics in found.items() if metrics is None}
    assert unsupported == {"v1_0_zeros", "v9_9_unknown", "v3_0_truncated", "v2_2_size_lies", "empty"}
    v2, strix, missing, v1 = (
        found[name] for name in ("v2_2_gfx_missing", "v3_0_strix", "v3_0_all_missing", "v1_3_watts")
    )
    assert v2
    assert strix
    assert missing
    assert v1
    assert (v2.socket_w, v2.gfx_w) == (pytest.approx(27.4), None)
    assert strix.socket_w == strix.apu_w == pytest.approx(118.4)
    assert (strix.gfx_w, strix.sys_w) == (pytest.approx(84.2), None)
    assert missing.chip_field is None
    assert (v1.socket_w, v1.energy_j) == (187.0, None)


@pytest.mark.parametrize(
    ("revision", "size", "offset", "raw", "watts"),
    [
        ((1, 1), 96, 22, 55, 55.0),
        ((1, 2), 104, 22, 55, 55.0),
        ((1, 4), 288, 10, 700, 700.0),
        ((1, 6), 384, 10, 700, 700.0),
        ((2, 0), 120, 44, 21_500, 21.5),
        ((2, 1), 120, 40, 21_500, 21.5),
        ((2, 3), 152, 40, 21_500, 21.5),
        ((2, 1), 120, 40, 21, 21.0),
        ((2, 4), 168, 40, 21, 0.021),
    ],
)
def test_each_revision_has_its_place_and_unit(
    revision: tuple[int, int], size: int, offset: int, raw: int, watts: float
) -> None:
    metrics = decode(table(revision, size, {(offset, "H"): raw}))
    assert metrics
    assert metrics.socket_w == pytest.approx(watts)


@pytest.mark.parametrize("cut", [0, 1, 3, 4, 119])
def test_a_table_of_another_length_than_it_says_is_not_decoded(cut: int) -> None:
    assert decode(table((2, 1), 120, {(40, "H"): 21_500})[:cut]) is None
    assert decode(table((2, 1), 120, {}) + b"\0") is None


def test_beside_a_discrete_card_the_socket_is_not_the_apu() -> None:
    both = {(112, "I"): 150_000, (120, "I"): 40_000, (128, "I"): 110_000}
    metrics = decode(table((3, 0), 264, both))
    assert metrics
    assert metrics.chip_field == "apu_w"
    assert metrics.chip_w("apu_w") == pytest.approx(40.0)
    without = decode(table((3, 0), 264, {(112, "I"): 150_000, (128, "I"): 110_000}))
    assert without
    assert without.chip_field is None


@pytest.mark.parametrize(
    ("fields", "watts", "words"),
    [
        ({(112, "I"): 60_000, (120, "I"): 9_000}, 60.0, "average_socket_power"),
        ({(112, "I"): 60_000, (120, "I"): 9_000, (128, "I"): 0}, 60.0, "average_socket_power"),
        ({(112, "I"): 60_000}, 60.0, "average_socket_power"),
        ({(120, "I"): 9_000}, 9.0, "average_apu_power"),
        ({(112, "I"): 0, (120, "I"): 9_000}, 9.0, "average_apu_power"),
        ({(112, "I"): 60_000, (120, "I"): 9_000, (128, "I"): 51_000}, 9.0, "average_apu_power"),
    ],
)
def test_an_apus_power_is_the_sockets_and_the_source_names_the_field_that_is_read(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    fields: Mapping[tuple[int, str], int],
    watts: float,
    words: str,
) -> None:
    sysfs = mount(monkeypatch, tmp_path, tree({f"{CARD}/gpu_metrics": packed(table((3, 0), 264, fields))}))
    [meter] = find()
    assert [sample.value for sample in sysfs.play(meter, [0.0])] == [pytest.approx(watts)]
    assert f"gpu_metrics: {words} (gpu_metrics 3.0)" in meter.rails[0].source


@pytest.mark.parametrize(
    "later",
    [{(120, "I"): 9_000}, {(112, "I"): 60_000, (120, "I"): 9_000, (128, "I"): 51_000}],
)
def test_the_field_that_is_read_does_not_change_in_mid_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, later: Mapping[tuple[int, str], int]
) -> None:
    made = {(112, "I"): 60_000, (120, "I"): 9_000}
    sysfs = mount(monkeypatch, tmp_path, tree({f"{CARD}/gpu_metrics": packed(table((3, 0), 264, made))}))
    [meter] = find()
    reader = meter.open(10.0)
    sysfs.write({f"{CARD}/gpu_metrics": packed(table((3, 0), 264, later))})
    assert [sample.value for sample in reader.read()] == [pytest.approx(float("nan"), nan_ok=True)]
    sysfs.now = 6.0
    with pytest.raises(MeterError, match="does not hold this value just now"):
        reader.read()


def test_a_later_revision_calls_the_same_field_by_another_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mount(monkeypatch, tmp_path, tree({f"{CARD}/gpu_metrics": packed(table((1, 4), 288, {(10, "H"): 400}))}))
    [meter] = find()
    assert "curr_socket_power (gpu_metrics 1.4)" in meter.rails[0].source


def test_zeros_of_an_old_table_do_not_hide_the_sensor_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sysfs = mount(monkeypatch, tmp_path, "A02-amdgpu-metrics-decode/tree")
    [meter] = find()
    assert [sample.value for sample in sysfs.play(meter, [0.0])] == [61.0]


def test_an_apus_table_goes_before_the_sensor_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = table((3, 0), 264, {(112, "I"): 118_400, (256, "I"): 500_000})
    sysfs = mount(monkeypatch, tmp_path, tree({f"{CARD}/gpu_metrics": packed(made), f"{HWMON}/power1_average": "1\n"}))
    [meter] = find()
    [rail] = meter.rails
    assert [sample.value for sample in sysfs.play(meter, [0.0])] == [pytest.approx(118.4)]
    assert (rail.scope, rail.unit, rail.kind, rail.averaging_s) == ("chip", "mW", "moving_average", 1.0)
    assert "gpu_metrics 3.0" in rail.source


@pytest.mark.parametrize("raw", [2**16 - 1, 0])
def test_a_field_that_is_not_filled_is_no_power(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, raw: int) -> None:
    mount(monkeypatch, tmp_path, tree({f"{CARD}/gpu_metrics": packed(table((2, 1), 120, {(40, "H"): raw}))}))
    with pytest.raises(MeterError, match="gives no power"):
        find()


def test_a_filled_energy_counter_is_a_meter_beside_the_power(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def at(counted_j: int) -> dict[str, str]:
        return packed(table((1, 4), 288, {(10, "H"): 400, (24, "Q"): counted_j << 16}))

    sysfs = mount(
        monkeypatch, tmp_path, tree({f"{CARD}/gpu_metrics": at(1000), f"{HWMON}/power1_input": "400000000\n"})
    )
    power, counter = find()
    assert [rail.kind for rail in (*power.rails, *counter.rails)] == ["instant", "counter"]
    reader = counter.open(1.0)
    samples = []
    for t in range(11):
        sysfs.now = float(t)
        sysfs.write({f"{CARD}/gpu_metrics": at(1000 + 400 * t)})
        samples += reader.read()
    assert joules(energies(counter, samples, 0.0, 10.0)) == pytest.approx(4000.0)


def test_an_accumulator_whose_unit_is_not_stated_is_no_counter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = table((1, 3), 120, {(22, "H"): 187, (24, "Q"): 123456})
    mount(monkeypatch, tmp_path, tree({f"{CARD}/gpu_metrics": packed(made)}))
    [meter] = find()
    assert [rail.kind for rail in meter.rails] == ["moving_average"]


# Readings that cannot be true


def test_one_absurd_sample_and_one_zero_are_dropped_and_flagged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sysfs = mount(monkeypatch, tmp_path, "A04-hwmon-spike-and-sentinel")
    [meter] = find()
    assert meter.rails[0].limit_w == 120.0
    found = energies(meter, sysfs.play(meter, sysfs.times()), 0.0, 10.0)
    assert joules(found) == pytest.approx(600.2, abs=1.5)
    [energy] = found.values()
    assert sum(int(flag.split(" ")[0]) for flag in energy.flags) == 2


def test_a_card_that_gives_nothing_for_long_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sysfs = mount(monkeypatch, tmp_path, "A01-amdgpu-which-power-file/input_only")
    [meter] = find()
    reader = meter.open(10.0)
    sysfs.write({f"{HWMON}/power1_input": ""})
    sysfs.now = 4.0
    assert [sample.value for sample in reader.read()] == [pytest.approx(float("nan"), nan_ok=True)]
    sysfs.now = 6.0
    with pytest.raises(MeterError, match="power1_input is empty"):
        reader.read()


@pytest.mark.parametrize(("fault", "words"), [("ENOENT", "does not exist"), ("ENODEV", "device that is gone")])
def test_a_card_that_is_gone_is_an_error_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str, words: str
) -> None:
    sysfs = mount(monkeypatch, tmp_path, "A01-amdgpu-which-power-file/input_only")
    [meter] = find()
    reader = meter.open(10.0)
    sysfs.faults = {f"{HWMON}/power1_input": fault}
    with pytest.raises(MeterError, match=words):
        reader.read()


# Which card


def test_cards_are_found_by_vendor_and_a_sleeping_one_is_left_asleep(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sysfs = mount(monkeypatch, tmp_path, "A06-amdgpu-find-the-card")
    [meter] = find()
    assert [sample.value for sample in sysfs.play(meter, [0.0])] == [14.2]
    [rail] = meter.rails
    assert "card1/device/hwmon/hwmon12/power1_average" in rail.source
    assert (rail.scope, "cpu" in rail.covers) == ("chip", True)
    assert not any("card2" in read and "power1" in read for read in sysfs.reads)
    assert not any("DP-1" in read or "hwmon0" in read for read in sysfs.reads)
    with pytest.raises(MeterError, match=r"card2.* is suspended, and reading it would wake it"):
        find("card2")


def test_cards_carry_their_pci_id_and_are_named_by_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sysfs = mount(monkeypatch, tmp_path, "A06-amdgpu-find-the-card")
    ids = {"card1": "0000:c3:00.0", "card2": "0000:03:00.0"}
    sysfs.write(
        {f"class/drm/{card}/device/uevent": f"DRIVER=amdgpu\nPCI_SLOT_NAME={pci}\n" for card, pci in ids.items()}
    )
    for name in ("0000:c3:00.0", "c3:00.0", "0000:C3:00.0"):
        [meter] = find(name)
        assert [rail.name for rail in meter.rails] == ["amdgpu.0000:c3:00.0"]
    with pytest.raises(MeterError, match=r"no card '0000:99:00.0'; there are 0000:c3:00.0, 0000:03:00.0"):
        find("0000:99:00.0")


def test_a_card_that_falls_asleep_is_not_read_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sysfs = mount(monkeypatch, tmp_path, "A06-amdgpu-find-the-card")
    [meter] = find()
    reader = meter.open(1.0)
    sysfs.write({"class/drm/card1/device/power/runtime_status": "suspended\n"})
    sysfs.reads.clear()
    assert [sample.value for sample in reader.read()] == [pytest.approx(float("nan"), nan_ok=True)]
    assert not any("hwmon" in read for read in sysfs.reads)


def test_two_discrete_cards_are_one_meter_that_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    second = {
        name.replace("card0", "card1").replace("hwmon4", "hwmon11"): content
        for name, content in tree({f"{HWMON}/power1_average": "50000000\n"}).items()
    }
    sysfs = mount(monkeypatch, tmp_path, tree({f"{HWMON}/power1_average": "70000000\n"}) | second)
    [meter] = find()
    assert sum(sample.value for sample in sysfs.play(meter, [0.0])) == 120.0
    assert {rail.scope for rail in meter.rails} == {"gpu"}
    assert any("2 cards are summed" in note for note in meter.notes)


def test_no_card_of_this_make_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mount(monkeypatch, tmp_path, {"class/drm/card0/device/vendor": "0x10de\n"})
    with pytest.raises(MeterError, match="no card of vendor 0x1002"):
        find()


# What the power covers


def test_an_apus_power_holds_the_cpu_and_is_no_part_of_a_sum(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sysfs = mount(monkeypatch, tmp_path, "A07-apu-power-includes-cpu/apu")
    [meter], [package] = find(), rapl.find()
    times = sysfs.times()
    assert joules(energies(meter, sysfs.play(meter, times), 0.0, 10.0)) == pytest.approx(620.0)
    assert {rail.scope for rail in meter.rails} == {rail.scope for rail in package.rails} == {"chip"}
    assert set(meter.rails[0].covers) > {"cpu", "gpu"}
    assert any("must not be added" in note for note in meter.notes)


def test_a_discrete_card_stands_beside_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sysfs = mount(monkeypatch, tmp_path, "A07-apu-power-includes-cpu/dgpu")
    [meter], [package] = find(), rapl.find()
    times = sysfs.times()
    sysfs.at(0.0)
    readers = [meter.open(1.0), package.open(1.0)]
    samples = []
    for t in times:
        sysfs.at(t)
        samples += [sample for reader in readers for sample in reader.read()]
    gpu_j = joules(energies(meter, samples, 0.0, 10.0))
    assert gpu_j == pytest.approx(1430.0)
    assert gpu_j + joules(energies(package, samples, 0.0, 10.0)) == pytest.approx(1810.0)
    assert {rail.scope for rail in meter.rails} == {"gpu"}
    assert not {"cpu"} & {part for rail in meter.rails for part in rail.covers}


@pytest.mark.parametrize(
    ("files", "scope"),
    [
        ({f"{CARD}/mem_info_vram_vendor": "samsung\n"}, "gpu"),
        ({f"{HWMON}/in1_label": "vddnb\n"}, "chip"),
        ({f"{HWMON}/power1_label": "slowPPT\n"}, "chip"),
        ({f"{HWMON}/power1_label": "PPT\n"}, "gpu"),
        ({f"{CARD}/gpu_metrics": packed(table((2, 2), 128, {}))}, "chip"),
        ({f"{CARD}/gpu_metrics": packed(table((1, 3), 120, {}))}, "gpu"),
    ],
)
def test_apus_and_discrete_cards_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: Mapping[str, Any], scope: str
) -> None:
    mount(monkeypatch, tmp_path, tree({f"{HWMON}/power1_average": "20000000\n"} | dict(files)))
    [meter] = find()
    assert {rail.scope for rail in meter.rails} == {scope}
