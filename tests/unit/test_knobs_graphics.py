"""Clock caps of graphics cards, on made-up ones that do what the kernel and NVML do."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from players.fake_pynvml import FakeNvml
from players.sysfs_player import mount

from pytest_joules import knobs
from pytest_joules.errors import EngineError, Unmeasured, UsageError
from pytest_joules.knobs import (
    _restorer,
    amdgpu_performance_level,
    amdgpu_sclk_max_mhz,
    nvml_gpu_max_mhz,
    nvml_power_limit_w,
)

APU = """OD_SCLK:
0:        600Mhz
1:       2900Mhz
OD_RANGE:
SCLK:     600Mhz       2900Mhz
"""
VAN_GOGH = """OD_SCLK:
0:        200Mhz
1:       1600Mhz
OD_RANGE:
SCLK:     200Mhz       1600Mhz
CCLK:    1400Mhz       3500Mhz
CCLK_RANGE in Core0:
0:       1400Mhz
1:       3500Mhz
"""
RDNA_3 = """OD_SCLK:
0: 500Mhz
1: 2525Mhz
OD_MCLK:
0: 97Mhz
1: 1250MHz
OD_VDDGFX_OFFSET:
-60mV
OD_RANGE:
SCLK:     500Mhz       5000Mhz
MCLK:      97Mhz       1500Mhz
VDDGFX_OFFSET:    -450mv          0mv
"""
RDNA_4 = """OD_SCLK_OFFSET:
0Mhz
OD_MCLK:
0: 97Mhz
1: 1259MHz
OD_RANGE:
SCLK_OFFSET:    -500Mhz       1000Mhz
MCLK:      97Mhz       1500Mhz
"""
POLARIS = """OD_SCLK:
0:        300MHz        750mV
1:        588MHz        765mV
OD_RANGE:
SCLK:     300MHz       2000MHz
VDDC:     750mV        1150mV
"""
CARD = "devices/pci0000:00/0000:c5:00.0"


@pytest.mark.parametrize(
    ("table", "clocks"),
    [(APU, (600, 2900, 600, 2900)), (VAN_GOGH, (200, 1600, 200, 1600)), (RDNA_3, (500, 2525, 500, 5000))],
    ids=["apu", "van gogh", "rdna 3"],
)
def test_tables_with_a_highest_clock(table: str, clocks: tuple[int, ...]) -> None:
    found = amdgpu_sclk_max_mhz.parse(table)
    assert not isinstance(found, str)
    assert (found.low, found.high, found.lowest, found.highest) == clocks


@pytest.mark.parametrize(
    ("table", "why"),
    [(RDNA_4, "RDNA 4"), (POLARIS, "Polaris"), ("\n", "overdrive is switched off"), ("OD_MCLK:\n0: 97Mhz\n", "no shader clocks")],
    ids=["rdna 4", "polaris", "empty", "memory alone"],
)  # fmt: skip
def test_tables_without_one_say_why(table: str, why: str) -> None:
    found = amdgpu_sclk_max_mhz.parse(table)
    assert isinstance(found, str)
    assert why in found


class Driver:
    """The kernel's side of one card's table, as smu_v14_0_od_edit_dpm_table() has it, written to through `_restorer.write`."""

    def __init__(self, device: Path) -> None:
        self.device, self.writes = device, list[str]()
        self.low, self.high = 600, 2900
        self.default = 2900
        self.pending = self.high

    @property
    def level(self) -> str:
        return (self.device / "power_dpm_force_performance_level").read_text().strip()

    def write(self, path: str, text: str) -> None:
        self.writes.append(text.strip())
        if not path.endswith("pp_od_clk_voltage"):
            Path(path).write_text(text + "\n")
            return
        if self.level != "manual":
            raise OSError(22, "Invalid argument")
        if match := re.fullmatch(r"s 1 (\d+)", text.strip()):
            if int(match[1]) > self.default:
                raise OSError(22, "Invalid argument")
            self.pending = int(match[1])
        elif text.strip() == "r":
            self.pending = self.default
        else:
            assert text.strip() == "c"
            self.high = self.pending
        (self.device / "pp_od_clk_voltage").write_text(APU.replace("1:       2900", f"1:       {self.pending}"))


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """A Strix Halo whose driver can be told what the table's clocks are."""
    monkeypatch.setenv("JOULES_STATE_DIR", str(tmp_path / "state"))
    sysfs = mount(
        monkeypatch, tmp_path,
        {
            "class/drm/card1": {"link": f"../../{CARD}/drm/card1"},
            f"{CARD}/drm/card1/device": {"link": "../../../0000:c5:00.0"},
            f"{CARD}/vendor": "0x1002\n",
            f"{CARD}/power_dpm_force_performance_level": "auto\n",
            f"{CARD}/pp_dpm_sclk": "0: 600Mhz *\n1: 1800Mhz\n2: 2900Mhz\n",
            f"{CARD}/pp_od_clk_voltage": APU,
        },
    )  # fmt: skip
    driver = Driver(sysfs.folder / CARD)
    monkeypatch.setattr(_restorer, "write", driver.write)
    return driver


def test_a_shader_cap_is_committed_in_manual_and_put_back_before_the_level_is(card: Driver) -> None:
    with amdgpu_sclk_max_mhz.held(1800):
        assert (card.level, card.high) == ("manual", 1800)
        [one] = knobs.active()
        assert one.amiss() == []
        assert [(cap.of, cap.at_most) for cap in one.caps] == [("amdgpu.0000:c5:00.0.clock", 1800)]
    assert (card.level, card.high) == ("auto", 2900)
    assert card.writes == ["manual", "s 1 1800", "c", "manual", "s 1 2900", "c", "auto"]


def test_a_level_that_somebody_chose_before_is_put_back(card: Driver) -> None:
    (card.device / "power_dpm_force_performance_level").write_text("profile_peak\n")
    with amdgpu_sclk_max_mhz.held(1200):
        pass
    assert card.level == "profile_peak"


def test_where_the_earlier_clock_is_refused_the_table_is_reset(card: Driver) -> None:
    with amdgpu_sclk_max_mhz.held(1800):
        card.default = 2800
    assert card.writes[-4:] == ["s 1 2900", "r", "c", "auto"]
    assert knobs.told() == []


def test_a_level_that_somebody_changes_meanwhile_is_seen(card: Driver) -> None:
    with amdgpu_sclk_max_mhz.held(1800):
        (card.device / "power_dpm_force_performance_level").write_text("auto\n")
        [amiss] = knobs.active()[0].amiss()
        assert "was set to manual and reads auto" in amiss
    assert (card.level, card.high) == ("auto", 2900)
    assert len(knobs.told()) == 1


@pytest.mark.parametrize("mhz", [599, 2901])
def test_a_clock_outside_the_table_s_range_names_it(card: Driver, mhz: int) -> None:
    with pytest.raises(UsageError, match=f"{mhz} MHz is out of range; this machine allows 600 to 2900 MHz"):
        amdgpu_sclk_max_mhz.held(mhz)
    assert card.writes == []


def test_uncapped_is_refused_where_a_cap_is(card: Driver) -> None:
    with amdgpu_sclk_max_mhz.held("uncapped"):
        assert card.writes == []
    (card.device / "pp_od_clk_voltage").write_text(APU.replace("1:       2900", "1:       1800"))
    with pytest.raises(EngineError, match="to 1800 MHz of 2900 MHz"):
        amdgpu_sclk_max_mhz.held("uncapped")


def test_a_cap_under_somebody_s_lowest_clock_is_refused(card: Driver) -> None:
    (card.device / "pp_od_clk_voltage").write_text(APU.replace("0:        600", "0:       2000"))
    with pytest.raises(UsageError, match="under the lowest clock that somebody has set"):
        amdgpu_sclk_max_mhz.held(1800)


def test_without_overdrive_the_boot_parameter_is_named(card: Driver) -> None:
    (card.device / "pp_od_clk_voltage").unlink()
    with pytest.raises(Unmeasured, match=r"overdrive is switched off; boot with amdgpu\.ppfeaturemask"):
        amdgpu_sclk_max_mhz.held(1800)


def test_a_performance_level_is_held_and_its_clock_known(card: Driver) -> None:
    with amdgpu_performance_level.held("low"):
        assert card.level == "low"
        assert [cap.at_most for one in knobs.active() for cap in one.caps] == [600.0]
    assert card.level == "auto"
    with pytest.raises(UsageError, match=r"expected one of auto, low, .*, not 'lo'.*did you mean 'low'"):
        amdgpu_performance_level.held("lo")


def test_without_amd_graphics_it_is_unmeasured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mount(monkeypatch, tmp_path, {})
    for knob in (amdgpu_sclk_max_mhz, amdgpu_performance_level):
        with pytest.raises(Unmeasured, match="there is no AMD graphics"):
            knob.held("low" if knob is amdgpu_performance_level else 1800)
        with pytest.raises(Unmeasured, match="there is no AMD graphics"):
            knob.takes()


def test_what_a_graphics_knob_takes_here_is_told_in_words(card: Driver, nvidia: Callable[..., FakeNvml]) -> None:
    nvidia()
    assert amdgpu_sclk_max_mhz.takes() == "600 to 2900 MHz, or uncapped"
    assert amdgpu_performance_level.takes().startswith("auto, low, high")
    assert nvml_gpu_max_mhz.takes() == "210 to 2100 MHz, or uncapped"
    assert nvml_power_limit_w.takes() == "100 to 350 W, or uncapped"
    assert card.writes == []


@pytest.fixture
def nvidia(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeNvml]:
    def install(**keys: Any) -> FakeNvml:
        monkeypatch.setenv("JOULES_STATE_DIR", str(tmp_path / "state"))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        device = {
            "index": 0, "uuid": "GPU-0", "pci": "00000000:01:00.0", "name": "Example", "graphics_clocks_mhz": [210, 1500, 2100],
            "limits_mw": [100_000, 350_000], "default_limit_mw": 300_000, "limit_mw": 300_000,
        }  # fmt: skip
        driver = FakeNvml({"devices": [{k: v for k, v in (device | keys).items() if v is not None}]})
        monkeypatch.setitem(sys.modules, "pynvml", driver)
        return driver

    return install


def test_locked_clocks_of_a_gpu_are_capped_and_reset(nvidia: Callable[..., FakeNvml]) -> None:
    driver = nvidia()
    with nvml_gpu_max_mhz.held(1200):
        assert driver.devices[0]["locked_mhz"] == (210, 1200)
        assert driver.users == 1  # without persistence mode the driver would forget it
        assert [(cap.of, cap.at_most) for one in knobs.active() for cap in one.caps] == [("nvml.gpu0.clock", 1200)]
    assert driver.calls == [(0, "lock", 210, 1200), (0, "unlock")]
    assert driver.users == 0
    with pytest.raises(UsageError, match="this machine allows 210 to 2100 MHz"):
        nvml_gpu_max_mhz.held(2500)
    with nvml_gpu_max_mhz.held("uncapped"):
        assert "locked_mhz" not in driver.devices[0]


def test_a_power_limit_gets_back_what_it_was(nvidia: Callable[..., FakeNvml]) -> None:
    driver = nvidia(limit_mw=280_000)
    with nvml_power_limit_w.held(150):
        [one] = knobs.active()
        assert one.amiss() == []
        driver.devices[0]["limit_mw"] = 200_000
        assert one.amiss() == ["the power limit of GPU 0 was set to 150 W and reads 200 W"]
    assert driver.calls == [(0, "limit", 150_000), (0, "limit", 280_000)]
    assert len(knobs.told()) == 1
    with pytest.raises(UsageError, match="this machine allows 100 to 350 W"):
        nvml_power_limit_w.held(90)
    with pytest.raises(EngineError, match="to 280 W of 300 W"):
        nvml_power_limit_w.held("uncapped")


def test_a_laptop_that_has_no_power_limit_is_unmeasured(nvidia: Callable[..., FakeNvml]) -> None:
    nvidia(limits_mw=None, graphics_clocks_mhz=None)
    with pytest.raises(Unmeasured, match="the power limit of GPU 0 is not supported by this GPU"):
        nvml_power_limit_w.held(90)
    with pytest.raises(Unmeasured, match="the locked clock of GPU 0 is not supported by this GPU"):
        nvml_gpu_max_mhz.held(1200)


def test_nvml_needs_root_and_says_so(nvidia: Callable[..., FakeNvml], monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia(refuses=4)
    with pytest.raises(Unmeasured, match="can be set by root only; run pytest as root"), nvml_gpu_max_mhz.held(1200):
        pass
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Unmeasured, match="can be set by root only; run pytest as root"):
        nvml_power_limit_w.held(150)


def test_without_a_driver_it_is_unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml({"devices": [], "init_error": 12}))
    with pytest.raises(Unmeasured, match="knob nvml_gpu_max_mhz: there is no NVIDIA driver library"):
        nvml_gpu_max_mhz.held(1200)
