import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from players.fake_pynvml import FakeNvml

from pytest_joules import gates, meters, trace
from pytest_joules.errors import MeterError
from pytest_joules.meters import nvml
from pytest_joules.reading import group
from pytest_joules.records import Gate, RailEnergy

CASES = Path(__file__).parents[2] / "cases"
N01, N03, N06 = (
    CASES / f"{name}"
    for name in ("N01-nvml-energy-counter", "N03-nvml-one-second-average", "N06-nvml-init-and-partitions")
)
PASCAL, AMPERE, ADA, HOPPER, BLACKWELL = 4, 7, 8, 9, 10


@pytest.fixture(autouse=True)
def _no_choice_of_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch):
    def _install(driver: FakeNvml) -> FakeNvml:
        monkeypatch.setitem(sys.modules, "pynvml", driver)
        monkeypatch.setattr(nvml, "time", SimpleNamespace(monotonic=lambda: driver.now))
        return driver

    return _install


def card(index: int = 0, **keys: Any) -> dict[str, Any]:
    return {
        "index": index,
        "uuid": f"GPU-{index}0000000-1111-2222-3333-000000000009",
        "pci": f"00000000:0{index + 1}:00.0",
        "name": "Example Ada 16GB",
        "power_mw": 100_000 * (index + 1),
        "energy_mj": 1_000_000,
        "enforced_limit_mw": 320_000,
    } | keys


def play(
    driver: FakeNvml, start: float, end: float, rate_hz: float = 5.0, until: float = 12.0
) -> dict[str, RailEnergy]:
    """Energy of `[start, end]` of every rail, read at `rate_hz` over the whole script."""
    [meter] = nvml.find()
    reader = meter.open(rate_hz)
    samples = []
    for now in np.arange(0.0, until + 1e-9, 1.0 / rate_hz):
        driver.now = float(now)
        samples += reader.read()
    reader.close()
    by_rail = group(samples)
    return {rail.name: trace.energy(rail, *by_rail[rail.name], start, end) for rail in meter.rails}


def verdict(energy: RailEnergy) -> str:
    # The stated calibration is alike in every window and says nothing against one of them.
    edges_j = math.sqrt(energy.uncertainty_j**2 - energy.calibration_j**2)
    mended = Gate(name="readings", outcome="flag" if energy.flags else "pass", value="", limit="none mended")
    checks: list[Gate] = [
        mended,
        gates.has_energy([energy], [energy.rail], ""),
        gates.samples([energy], [energy.rail], 5, 10, thin_voids=True),
        gates.edge_uncertainty(energy.energy_j, edges_j, 0.05, 0.25),
    ]
    return gates.outcome(checks)


def expected(case: Path) -> dict[str, Any]:
    return json.loads((case / "case.json").read_text())["expect"]


# The case says "P-series". A driver that does not name the architecture must come to the same figure, with less trust
# in it, since the reading may be a mean over one second.
@pytest.mark.parametrize(
    ("extra", "outcomes"),
    [({"architecture": PASCAL}, {"measured"}), ({}, {"measured", "flagged"})],
    ids=["named", "unnamed"],
)
def test_power_is_integrated_where_the_card_has_no_counter(install, extra, outcomes) -> None:
    driver = install(FakeNvml.from_file(N01 / "nvml_pascal.json", **extra))
    want = expected(N01)["nvml_pascal"]
    energy = play(driver, 2.0, 10.0)["nvml.gpu0.power"]
    assert energy.energy_j == pytest.approx(want["energy_j"], abs=want["tol_j"])
    assert verdict(energy) in outcomes
    [meter] = nvml.find()
    assert any("power is integrated" in note for note in meter.notes)


def test_a_counter_that_falls_gives_no_energy(install) -> None:
    driver = install(FakeNvml.from_file(N01 / "nvml_reset.json", architecture=AMPERE))
    energy = play(driver, 4.0, 8.0)["nvml.gpu0.energy"]
    assert energy.energy_j is None
    assert "reset" in energy.reason
    assert verdict(energy) == "void"


def test_a_window_between_two_steps_of_the_counter_gives_no_energy(install) -> None:
    driver = install(FakeNvml.from_file(N01 / "nvml_coarse.json", architecture=AMPERE))
    energy = play(driver, 1.02, 1.07, until=4.0)["nvml.gpu0.energy"]
    assert energy.energy_j != 0
    assert verdict(energy) == "void"


def test_the_counter_counts_over_a_window_of_many_steps(install) -> None:
    driver = install(FakeNvml.from_file(N01 / "nvml_coarse.json", architecture=AMPERE))
    energies = play(driver, 1.0, 3.0, until=4.0)
    want = expected(N01)["nvml_coarse_ok"]
    assert energies["nvml.gpu0.energy"].energy_j == pytest.approx(want["energy_j"], abs=want["tol_j"])
    assert verdict(energies["nvml.gpu0.energy"]) == "measured"


def test_what_nvidia_states_of_its_sensors_is_part_of_the_uncertainty(install) -> None:
    driver = install(FakeNvml.from_file(N01 / "nvml_coarse.json", architecture=AMPERE))
    energies = play(driver, 1.0, 3.0, until=4.0)
    assert {rail.calibration for rail in nvml.find()[0].rails} == {0.05}
    for energy in energies.values():
        assert energy.energy_j
        assert energy.calibration_j == pytest.approx(0.05 * energy.energy_j)
        assert energy.uncertainty_j > energy.calibration_j


def test_the_counter_counts_and_power_is_kept_beside_it_for_comparison(install) -> None:
    driver = install(FakeNvml.from_file(N03 / "nvml_counter.json", architecture=ADA))
    [meter] = nvml.find()
    assert [(rail.name, rail.kind, rail.role) for rail in meter.rails] == [
        ("nvml.gpu0.energy", "counter", "counted"),
        ("nvml.gpu0.power", "moving_average", "check"),
    ]
    want = expected(N03)["nvml_counter"]
    energies = play(driver, 2.0, 2.8, rate_hz=20.0, until=6.0)
    assert energies["nvml.gpu0.energy"].energy_j == pytest.approx(want["energy_j"], abs=want["tol_j"])
    assert verdict(energies["nvml.gpu0.energy"]) == "measured"
    [chosen] = meters._by_scope(meter, None)
    assert [rail.name for rail in chosen.rails] == ["nvml.gpu0.energy"]


@pytest.mark.parametrize("extra", [{"architecture": ADA}, {}], ids=["named", "unnamed"])
def test_a_one_second_mean_cannot_carry_a_shorter_window_unnoticed(install, extra) -> None:
    driver = install(FakeNvml.from_file(N03 / "nvml_nocounter.json", **extra))
    energy = play(driver, 2.0, 2.8, rate_hz=20.0, until=6.0)["nvml.gpu0.power"]
    assert verdict(energy) in ("flagged", "void")


def test_the_instantaneous_field_carries_a_short_window_without_a_counter(install) -> None:
    # 300 W from 2.0 to 2.8 s: a mean over the last tenth of a second, published when that is over.
    instant = [[t / 10, (300_000 if 20 < t <= 28 else 40_000) + t % 3] for t in range(61)]
    fields = {186: instant, 185: 40_000}
    driver = install(FakeNvml.from_file(N03 / "nvml_nocounter.json", architecture=ADA, fields=fields))
    [meter] = nvml.find()
    [rail] = meter.rails
    assert "186" in rail.source
    assert rail.averaging_s == 0.1
    energy = play(driver, 2.0, 2.8, rate_hz=20.0, until=6.0)["nvml.gpu0.power"]
    assert energy.energy_j == pytest.approx(240.0, abs=15.0)


@pytest.mark.parametrize(
    ("file", "cause", "step"),
    [
        ("nvml_mismatch.json", "different versions", "restart"),
        ("nvml_nolib.json", "no NVIDIA driver library", "install its driver"),
        ("nvml_mig.json", "partitioned", "MIG off"),
        ("nvml_mig_noperm.json", "partitioned", "MIG off"),
    ],
)
def test_unavailable_says_why_and_what_to_do_in_one_line(install, file, cause, step) -> None:
    install(FakeNvml.from_file(N06 / file))
    [found] = meters.look(["nvml"])
    assert not found.meters
    assert cause in found.reason
    assert step in found.next_step
    assert "\n" not in found.reason


def test_a_driver_that_is_not_loaded_is_named_as_such(install) -> None:
    driver = install(FakeNvml({"init_error": 9, "devices": []}))
    with pytest.raises(MeterError, match="kernel driver is not loaded") as caught:
        nvml.find()
    assert not nvml.cannot_be_loaded(caught.value)
    driver.init_error = 12
    with pytest.raises(MeterError) as caught:
        nvml.find()
    assert nvml.cannot_be_loaded(caught.value)


def test_a_counter_that_is_not_ready_gives_way_to_power(install) -> None:
    driver = install(FakeNvml.from_file(N06 / "nvml_notready.json", architecture=HOPPER))
    energy = play(driver, 2.0, 10.0)["nvml.gpu0.power"]
    assert energy.energy_j == pytest.approx(88.0 * 8.0)
    assert verdict(energy) == "measured"
    [meter] = nvml.find()
    assert any("Not Ready" in note for note in meter.notes)


@pytest.mark.parametrize(
    ("architecture", "capability", "kind", "averaging_s"),
    [
        (AMPERE, (8, 6), "moving_average", 1.0),
        (AMPERE, (8, 0), "moving_average", 0.025),
        (HOPPER, (9, 0), "moving_average", 1.0),
        (BLACKWELL, (12, 0), "moving_average", 1.0),
        (PASCAL, (6, 1), "moving_average", 0.01),
        (3, (5, 2), "instant", None),
        (0xFFFFFFFF, (8, 9), "instant", 1.0),
    ],
)
def test_averaging_of_the_power_call_goes_by_architecture(install, architecture, capability, kind, averaging_s) -> None:
    install(FakeNvml({"devices": [card(energy_mj={"error": 3}, architecture=architecture, capability=capability)]}))
    [meter] = nvml.find()
    [rail] = meter.rails
    assert (rail.kind, rail.averaging_s, rail.source.split(",")[0]) == (kind, averaging_s, "nvmlDeviceGetPowerUsage")


@pytest.mark.parametrize(
    ("architecture", "field"), [(AMPERE, "186"), (ADA, "186"), (HOPPER, "185"), (BLACKWELL, "185")]
)
def test_the_power_field_that_sees_all_of_the_time_is_taken(install, architecture, field) -> None:
    device = card(architecture=architecture, fields={185: 90_000, 186: 95_000, 83: {"error": 3}})
    install(FakeNvml({"devices": [device]}))
    [meter] = nvml.find()
    assert field in meter.rails[1].source


def test_a_field_the_card_refuses_is_passed_over(install) -> None:
    device = card(architecture=ADA, fields={186: {"error": 3}, 185: 90_000}, energy_mj={"error": 3})
    install(FakeNvml({"devices": [device]}))
    [meter] = nvml.find()
    assert "185" in meter.rails[0].source
    [sample] = meter.open(5.0).read()
    assert sample.value == 90.0


def test_energy_is_read_by_field_where_the_call_is_missing(install) -> None:
    install(FakeNvml({"devices": [card(energy_mj={"error": 13}, fields={83: 5_000_000})]}))
    [meter] = nvml.find()
    assert "83" in meter.rails[0].source
    assert meter.open(5.0).read()[0].value == 5000.0


def test_several_gpus_are_one_rail_each_and_summed(install) -> None:
    install(FakeNvml({"devices": [card(0), card(1)]}))
    [meter] = nvml.find()
    [chosen] = meters._by_scope(meter, "gpu")
    assert [rail.name for rail in chosen.rails] == ["nvml.gpu0.energy", "nvml.gpu1.energy"]
    assert chosen.covers == ("gpu", "vram", "vrm")
    assert any("all 2 GPUs are counted" in note for note in meter.notes)
    assert [rail.limit_w for rail in chosen.rails] == [320.0, 320.0]


@pytest.mark.parametrize(
    ("visible", "argument", "gpus"),
    [
        ("1", None, [1]),
        ("1,0", None, [1, 0]),
        ("GPU-10000000", None, [1]),
        ("0,7,1", None, [0]),
        ("1", "0", [0]),
        (None, "GPU-00000000-1111-2222-3333-000000000009", [0]),
        (None, "00000000:02:00.0", [1]),
        (None, "02:00.0", [1]),
    ],
)
def test_the_gpus_in_use_are_the_ones_named(install, monkeypatch, visible, argument, gpus) -> None:
    install(FakeNvml({"devices": [card(0), card(1)]}))
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    [meter] = nvml.find(argument)
    assert [rail.name for rail in meter.rails if rail.role == "counted"] == [f"nvml.gpu{i}.energy" for i in gpus]


@pytest.mark.parametrize("visible", ["", "-1", "7", "NoDevFiles"])
def test_hidden_gpus_are_not_measured(install, monkeypatch, visible) -> None:
    install(FakeNvml({"devices": [card(0)]}))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(MeterError, match="hides every GPU"):
        nvml.find()


@pytest.mark.parametrize("argument", ["7", "GPU-ffff", "00000000:77:00.0", "one"])
def test_a_gpu_asked_for_that_is_not_there_is_an_error(install, argument) -> None:
    install(FakeNvml({"devices": [card(0)]}))
    with pytest.raises(MeterError, match="there is no GPU"):
        nvml.find(argument)


def test_a_slice_named_for_cuda_is_refused(install, monkeypatch) -> None:
    install(FakeNvml({"devices": [card(0)]}))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-00000000-1111-2222-3333-000000000009")
    with pytest.raises(MeterError, match="partitioned"):
        nvml.find()


def test_an_index_among_unlike_gpus_needs_a_stated_order(install, monkeypatch) -> None:
    install(FakeNvml({"devices": [card(0), card(1, name="Example GT")]}))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(MeterError, match="PCI_BUS_ID"):
        nvml.find()
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    [meter] = nvml.find()
    assert meter.rails[0].name == "nvml.gpu0.energy"


def test_a_gpu_without_a_reading_is_left_out_and_named(install) -> None:
    silent = card(1, name="Example GT", power_mw={"error": 3}, energy_mj={"error": 3})
    install(FakeNvml({"devices": [card(0), silent]}))
    [meter] = nvml.find()
    assert {rail.name for rail in meter.rails} == {"nvml.gpu0.energy", "nvml.gpu0.power"}
    assert any("GPU 1 (Example GT) has no power reading" in note for note in meter.notes)
    with pytest.raises(MeterError, match="no power reading"):
        nvml.find("1")


def test_a_lost_gpu_ends_the_reading_and_a_refused_call_only_leaves_a_gap(install) -> None:
    energy = [[0.0, 1_000_000], [1.0, {"error": 27}], [2.0, 1_200_000], [3.0, {"error": 15}]]
    driver = install(FakeNvml({"devices": [card(energy_mj=energy)]}))
    [meter] = nvml.find()
    reader = meter.open(5.0)
    driver.now = 1.5
    assert [math.isnan(sample.value) for sample in reader.read()] == [True, False]
    driver.now = 2.5
    assert [sample.value for sample in reader.read()] == [1200.0, 100.0]
    driver.now = 3.5
    with pytest.raises(MeterError, match="GPU 0 is gone"):
        reader.read()


@pytest.mark.parametrize("nothing", [0, 0xFFFFFFFF])
def test_what_stands_for_no_number_is_never_a_reading(install, nothing) -> None:
    driver = install(FakeNvml({"devices": [card(power_mw=[[0.0, 80_000], [1.0, nothing]], energy_mj={"error": 3})]}))
    [meter] = nvml.find()
    driver.now = 1.0
    [sample] = meter.open(5.0).read()
    assert math.isnan(sample.value)


def test_no_record_holds_a_uuid_and_the_driver_is_let_go(install) -> None:
    driver = install(FakeNvml({"devices": [card(0)]}))
    [meter] = nvml.find()
    assert "GPU-" not in repr(meter.rails) + repr(meter.notes)
    assert "00000000:01:00.0" in meter.rails[0].source
    reader = meter.open(5.0)
    assert driver.users == 1
    reader.close()
    reader.close()
    assert driver.users == 0


def test_a_machine_whose_driver_sees_no_gpu(install) -> None:
    install(FakeNvml({"devices": []}))
    with pytest.raises(MeterError, match="sees no GPU"):
        nvml.find()
