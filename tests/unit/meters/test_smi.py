import json
import math
import sys
from pathlib import Path

import pytest
from players.fake_pynvml import FakeNvml

from pytest_joules import meters
from pytest_joules.errors import MeterError
from pytest_joules.meters import smi

CASES = Path(__file__).parents[2] / "cases"
N02, S03 = CASES / "N02-smi-not-a-number", CASES / "S03-number-formats"
CASE_COLUMNS = ("index", "name", "memory.used", "power.draw")
GOOD = "0, 31.07 W, Example RTX, GPU-aaaa1111, 00000000:01:00.0, [N/A], 320.00 W"
OTHER = "1, 187.44 W, Example RTX, GPU-bbbb2222, 00000000:02:00.0, Disabled, 320.00 W"


@pytest.fixture(autouse=True)
def _no_nvml_and_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml({"init_error": 12, "devices": []}))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a program of the same name first on the path: it prints as told and keeps what it was asked."""

    def install(*lines: str, status: int = 0) -> Path:
        answer, asked = tmp_path / "answer", tmp_path / "asked"
        answer.write_text("".join(f"{line}\n" for line in lines))
        script = tmp_path / "nvidia-smi"
        script.write_text(f'#!/bin/sh\necho "$LC_ALL $@" >>"{asked}"\ncat "{answer}"\nexit {status}\n')
        script.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        return asked

    return install


@pytest.mark.parametrize("shape", json.loads((N02 / "case.json").read_text())["expect"])
def test_every_shape_of_reply(shape) -> None:
    want = json.loads((N02 / "case.json").read_text())["expect"][shape]
    text = (N02 / "smi" / f"{shape}.csv").read_text()
    if want == "UNAVAILABLE":
        with pytest.raises(MeterError, match="version mismatch"):
            smi.rows(text, CASE_COLUMNS)
        return
    got = {str(gpu): smi.watts(row["power.draw"]) for gpu, row in smi.rows(text, CASE_COLUMNS).items()}
    assert got == (want if want is not None else {"0": None})


def test_a_decimal_comma_loses_the_row_and_is_never_read_as_another_number() -> None:
    with pytest.raises(MeterError, match="187,44"):
        smi.rows((S03 / "smi_comma.csv").read_text(), CASE_COLUMNS)


@pytest.mark.parametrize("line", (S03 / "lines.txt").read_text().splitlines())
def test_numbers_with_and_without_units(line) -> None:
    text, want = line.split("\t")
    assert smi.watts(text) == (None if want == "reject" else pytest.approx(float(want)))


def test_several_gpus_are_one_rail_each(program) -> None:
    asked = program(GOOD, OTHER)
    [meter] = smi.find()
    assert [(rail.name, rail.scope, rail.limit_w) for rail in meter.rails] == [
        ("smi.gpu0.power", "gpu", 320.0),
        ("smi.gpu1.power", "gpu", 320.0),
    ]
    assert "GPU-" not in repr(meter.rails)
    program("0, 31.50 W", "1, [N/A]")
    reader = meter.open(5.0)
    assert reader.interval_s == 0.5
    first, second = reader.read()
    assert (first.value, math.isnan(second.value)) == (31.5, True)
    assert all(line.startswith("C ") for line in asked.read_text().splitlines())


def test_one_gpu_is_chosen_as_cuda_would(program, monkeypatch) -> None:
    program(GOOD, OTHER)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-bbbb")
    [meter] = smi.find()
    assert [rail.name for rail in meter.rails] == ["smi.gpu1.power"]
    [meter] = smi.find("00000000:01:00.0")
    assert [rail.name for rail in meter.rails] == ["smi.gpu0.power"]


@pytest.mark.parametrize("word", ["[N/A]", "[Not Supported]", "[Unknown Error]", "ERR!", "", "31,07 W"])
def test_a_word_in_place_of_a_power_makes_the_gpu_unusable(program, word) -> None:
    program(GOOD.replace("31.07 W", word))
    [found] = meters.look(["smi"])
    assert not found.meters
    assert found.reason.startswith("meter smi: ")


def test_a_gpu_without_a_power_is_left_out_and_named(program) -> None:
    program(GOOD, OTHER.replace("187.44 W", "[N/A]"))
    [meter] = smi.find()
    assert [rail.name for rail in meter.rails] == ["smi.gpu0.power"]
    assert any("GPU 1 (Example RTX) has no power reading" in note for note in meter.notes)


def test_a_partitioned_gpu_is_refused(program) -> None:
    program(GOOD.replace("[N/A]", "Enabled"))
    with pytest.raises(MeterError, match="MIG"):
        smi.find()


def test_it_gives_way_to_nvml_wherever_that_loads_or_fails_by_itself(program, monkeypatch) -> None:
    asked = program(GOOD)
    for error in (None, 18, 9):
        monkeypatch.setitem(sys.modules, "pynvml", FakeNvml({"init_error": error, "devices": []}))
        with pytest.raises(MeterError, match="only for where NVML cannot be loaded"):
            smi.find()
    assert not asked.exists()


def test_absent(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MeterError, match="there is no nvidia-smi"):
        smi.find()


def test_a_driver_that_fails_is_quoted(program) -> None:
    program("Failed to initialize NVML: Driver/library version mismatch", "NVML library version: 000.11", status=18)
    [found] = meters.look(["smi"])
    assert "Driver/library version mismatch" in found.reason
    assert "\n" not in found.reason


def test_a_driver_too_old_for_partitions_is_asked_again(program) -> None:
    asked = program('Field "mig.mode.current" is not a valid field to query.', status=2)
    with pytest.raises(MeterError):
        smi.find()
    first, second = asked.read_text().splitlines()
    assert ("mig.mode" in first, "mig.mode" in second) == (True, False)
