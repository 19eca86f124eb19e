import base64
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from players.sysfs_player import mount

from pytest_joules.meters._sysfs import ReadError
from pytest_joules.vitals import Vital
from pytest_joules.vitals.amdgpu import find

MACHINES = Path(__file__).parents[2] / "machines"
CARD = "class/drm/card0/device"
HWMON = f"{CARD}/hwmon/hwmon4"
TABLE = f"{CARD}/gpu_metrics"
STATE = f"{CARD}/power/runtime_status"


def table(revision: tuple[int, int], size: int, fields: Mapping[tuple[int, str], int]) -> dict[str, str]:
    made = bytearray(b"\xff" * size)
    struct.pack_into("<HBB", made, 0, size, *revision)
    for (offset, code), value in fields.items():
        struct.pack_into(f"<{code}", made, offset, value)
    return {"b64": base64.b64encode(bytes(made)).decode()}


def tree(files: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{CARD}/vendor": "0x1002\n", f"{HWMON}/name": "amdgpu\n"} | dict(files)


def vitals() -> dict[str, Vital]:
    return {vital.name.removeprefix("amdgpu.card0."): vital for vital in find()}


def read(vital: Vital) -> Any:
    assert vital.read
    return vital.read()


def test_a_whole_apu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mount(monkeypatch, tmp_path, json.loads((MACHINES / "strix-halo.json").read_text())["sys"])
    found = {vital.name: vital for vital in find()}
    assert {name: vital.what for name, vital in found.items()} == {
        "amdgpu.0000:c5:00.0.clock": "clock",
        "amdgpu.0000:c5:00.0.throttle": "throttle",
    }
    assert read(found["amdgpu.0000:c5:00.0.clock"]) == 600.0


def test_a_whole_card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = {
        f"{HWMON}/temp{n}_{end}": text
        for n, label, milli in ((1, "edge", 55000), (2, "junction", 71000), (3, "mem", 80000))
        for end, text in (("label", label), ("input", f"{milli}\n"))
    }
    files |= {f"{HWMON}/freq1_label": "sclk\n", f"{HWMON}/freq1_input": "2450000000\n"}
    files |= {f"{HWMON}/freq2_label": "mclk\n", f"{HWMON}/freq2_input": "1249000000\n"}
    files |= {f"{HWMON}/power1_cap": "300000000\n"}
    mount(monkeypatch, tmp_path, tree(files))
    assert {name: (read(vital), vital.unit) for name, vital in vitals().items()} == {
        "edge_temperature": (55.0, "C"),
        "junction_temperature": (71.0, "C"),
        "clock": (2450.0, "MHz"),
        "memory_clock": (1249.0, "MHz"),
        "power_limit": (300.0, "W"),
    }


def test_a_card_without_labels_has_an_edge(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mount(monkeypatch, tmp_path, tree({f"{HWMON}/temp1_input": "47000\n"}))
    assert read(vitals()["edge_temperature"]) == 47.0


@pytest.mark.parametrize(
    ("revision", "size", "offset"), [((1, 3), 120, 112), ((2, 2), 128, 120), ((2, 3), 152, 120), ((2, 4), 168, 120)]
)
@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0, set()),
        (1 << 0 | 1 << 5, {"power limit (PPT0)", "power limit (FPPT)"}),
        (1 << 16 | 1 << 22, {"current limit (TDC_GFX)", "current limit (EDC_GFX)"}),
        (1 << 35 | 1 << 46, {"thermal limit (EDGE)", "thermal limit (PROCHOT_CPU)"}),
        (1 << 56 | 1 << 57, set()),
    ],
)
def test_the_status_in_words(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    revision: tuple[int, int],
    size: int,
    offset: int,
    bits: int,
    words: set[str],
) -> None:
    mount(monkeypatch, tmp_path, tree({TABLE: table(revision, size, {(offset, "Q"): bits})}))
    assert read(vitals()["throttle"]) == words


@pytest.mark.parametrize(
    ("revision", "size", "offset", "words"),
    [((1, 3), 120, 112, set()), ((2, 2), 128, 120, {"thermal limit (HOTSPOT)"})],
)
def test_the_hotspot_bit_says_nothing_on_a_discrete_card(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, revision: tuple[int, int], size: int, offset: int, words: set[str]
) -> None:
    mount(monkeypatch, tmp_path, tree({TABLE: table(revision, size, {(offset, "Q"): 1 << 36})}))
    assert read(vitals()["throttle"]) == words


def test_a_status_that_is_not_filled_is_no_reading(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mount(monkeypatch, tmp_path, tree({TABLE: table((1, 3), 120, {})}))
    with pytest.raises(ReadError, match="does not fill"):
        read(vitals()["throttle"])


@pytest.mark.parametrize(
    ("revision", "size", "offset", "word"),
    [
        ((3, 0), 264, 228, "thermal limit (PROCHOT)"),
        ((3, 0), 264, 232, "power limit (SPL)"),
        ((3, 0), 264, 252, "thermal limit (SOC)"),
        ((1, 6), 384, 108, "thermal limit (PROCHOT)"),
        ((1, 6), 384, 112, "power limit (PPT)"),
        ((1, 6), 384, 124, "thermal limit (HBM)"),
    ],
)
def test_residencies_tell_by_rising(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, revision: tuple[int, int], size: int, offset: int, word: str
) -> None:
    sysfs = mount(monkeypatch, tmp_path, tree({TABLE: table(revision, size, {(offset, "I"): 500})}))
    throttle = vitals()["throttle"]
    assert read(throttle) is None
    assert read(throttle) == set()
    sysfs.write({TABLE: table(revision, size, {(offset, "I"): 800})})
    assert read(throttle) == {word}
    assert read(throttle) == set()
    sysfs.write({TABLE: table(revision, size, {(offset, "I"): 3})})
    assert read(throttle) == {word}  # gone round


@pytest.mark.parametrize(("revision", "size"), [((1, 1), 96), ((1, 4), 288), ((2, 1), 120), ((9, 9), 64), ((1, 3), 96)])
def test_tables_that_tell_of_no_throttling_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, revision: tuple[int, int], size: int
) -> None:
    mount(monkeypatch, tmp_path, tree({TABLE: table(revision, size, {})}))
    assert vitals() == {}


def test_a_sleeping_card_is_not_read_until_it_wakes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = {
        STATE: "suspended\n",
        f"{HWMON}/temp1_input": "47000\n",
        f"{HWMON}/power1_cap": "300000000\n",
        TABLE: table((1, 3), 120, {(112, "Q"): 1}),
    }
    sysfs = mount(monkeypatch, tmp_path, tree(files))
    found = vitals()
    assert {name: read(vital) for name, vital in found.items()} == dict.fromkeys(
        ("edge_temperature", "power_limit", "throttle")
    )
    assert not [path for path in sysfs.reads if path.endswith(("temp1_input", "power1_cap", "gpu_metrics"))]
    sysfs.write({STATE: "active\n"})
    assert read(found["edge_temperature"]) == 47.0
    assert read(found["throttle"]) == {"power limit (PPT0)"}


def test_a_card_that_wakes_with_an_unknown_table_says_so_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sysfs = mount(monkeypatch, tmp_path, tree({STATE: "suspended\n", TABLE: table((1, 1), 96, {})}))
    throttle = vitals()["throttle"]
    sysfs.write({STATE: "active\n"})
    with pytest.raises(ReadError) as raised:
        read(throttle)
    assert not raised.value.passing


@pytest.mark.parametrize("machine", ["two-sockets", "laptop-on-battery", "virtual-machine"])
def test_machines_without_such_a_card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, machine: str) -> None:
    mount(monkeypatch, tmp_path, json.loads((MACHINES / f"{machine}.json").read_text())["sys"])
    assert find() == []
