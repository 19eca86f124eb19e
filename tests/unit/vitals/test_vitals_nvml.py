import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from players.fake_pynvml import FakeNvml
from players.sysfs_player import mount

from pytest_joules.vitals import Vital, nvml
from pytest_joules.vitals.watch import Watch

NOBODY = 2**22 + 17
"""A process id above the highest that Linux gives."""


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., FakeNvml]:
    def _install(*devices: dict[str, Any], **script: Any) -> FakeNvml:
        mount(monkeypatch, tmp_path, {})
        driver = FakeNvml({"devices": list(devices), **script})
        monkeypatch.setitem(sys.modules, "pynvml", driver)
        return driver

    return _install


def card(index: int = 0, **keys: Any) -> dict[str, Any]:
    return {"index": index, "uuid": f"GPU-{index}", "pci": f"00000000:0{index + 1}:00.0", "name": "Example"} | keys


def vitals() -> dict[str, Vital]:
    return {vital.name: vital for vital in nvml.find()}


def read(vital: Vital) -> Any:
    assert vital.read
    return vital.read()


def test_everything_that_a_gpu_answers(install: Callable[..., FakeNvml]) -> None:
    driver = install(
        card(
            temperature_v_c=63,
            clocks_mhz={nvml.CLOCK_SM: 1980, nvml.CLOCK_MEMORY: 2619},
            enforced_limit_mw=700_000,
            event_reasons=0x04,
            pids=[os.getpid()],
            process_names={os.getpid(): "/home/somebody/bin/llama-server --port 1"},
        ),
        card(1, temperature_c=41),
    )
    found = vitals()
    assert {name: read(vital) for name, vital in found.items()} == {
        "nvml.gpu0.temperature": 63.0,
        "nvml.gpu0.clock": 1980.0,
        "nvml.gpu0.memory_clock": 2619.0,
        "nvml.gpu0.power_limit": 700.0,
        "nvml.gpu0.throttle": {"power limit (software)"},
        "nvml.gpu0.programs": {os.getpid(): "llama-server"},
        "nvml.gpu1.temperature": 41.0,
    }
    assert found["nvml.gpu0.temperature"].source == "nvmlDeviceGetTemperatureV(NVML_TEMPERATURE_GPU), GPU 0"
    assert found["nvml.gpu1.temperature"].source == "nvmlDeviceGetTemperature(NVML_TEMPERATURE_GPU), GPU 1"
    assert driver.users == 1
    for vital in found.values():
        assert vital.close
        vital.close()
    assert driver.users == 0


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (0x00, set()),
        (0x01 | 0x02 | 0x10 | 0x100, set()),
        (0x04, {"power limit (software)"}),
        (0x08, {"hardware slowdown"}),
        (0x08 | 0x40, {"thermal slowdown (hardware)"}),
        (0x08 | 0x80, {"power brake (hardware)"}),
        (0x20 | 0x01, {"thermal slowdown (software)"}),
        (0x04 | 0x08 | 0x20, {"power limit (software)", "hardware slowdown", "thermal slowdown (software)"}),
    ],
)
def test_reasons_that_mean_throttling(mask: int, words: set[str]) -> None:
    assert nvml.reasons(mask) == words


def test_the_older_name_of_the_reasons(install: Callable[..., FakeNvml]) -> None:
    install(card(throttle_reasons=0x40))
    [vital] = vitals().values()
    assert read(vital) == {"thermal slowdown (hardware)"}
    assert vital.source.startswith("nvmlDeviceGetCurrentClocksThrottleReasons")


def test_all_ones_are_no_reading(install: Callable[..., FakeNvml]) -> None:
    install(card(temperature_v_c=2**32 - 1, event_reasons=2**64 - 1, enforced_limit_mw=2**32 - 1))
    assert vitals() == {}


def test_a_program_of_another_user_keeps_its_name_to_itself(
    install: Callable[..., FakeNvml], monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(pid: int) -> None:
        raise psutil.AccessDenied(pid)

    install(card(pids=[os.getpid()]))
    monkeypatch.setattr(psutil, "Process", denied)
    assert read(vitals()["nvml.gpu0.programs"]) == {os.getpid(): nvml.UNNAMED}


def test_process_ids_of_another_system_are_not_trusted(install: Callable[..., FakeNvml]) -> None:
    device = card(pids=[])
    install(device)
    programs = vitals()["nvml.gpu0.programs"]
    assert read(programs) == {}
    device["pids"] = [NOBODY]
    with pytest.raises(LookupError, match=str(NOBODY)):
        read(programs)


@pytest.mark.parametrize("code", [9, 12, 18])
def test_no_driver_no_vitals(install: Callable[..., FakeNvml], code: int) -> None:
    install(init_error=code)
    assert nvml.find() == []


def test_no_module_no_vitals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml.find() == []


def test_a_driver_that_breaks_is_no_exception(
    install: Callable[..., FakeNvml], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = install(card())

    def broken() -> int:
        raise driver.NVMLError(999)

    monkeypatch.setattr(driver, "nvmlDeviceGetCount", broken)
    assert nvml.find() == []
    assert driver.users == 0


def test_a_gpu_that_cannot_be_opened_leaves_the_other(install: Callable[..., FakeNvml]) -> None:
    install(card(error=15), card(1, temperature_c=41))
    assert set(vitals()) == {"nvml.gpu1.temperature"}


@pytest.mark.parametrize(("state", "found"), [("suspended", 0), ("suspending", 0), ("active", 1)])
def test_a_sleeping_gpu_is_left_asleep(
    install: Callable[..., FakeNvml], tmp_path: Path, state: str, found: int
) -> None:
    driver = install(card(temperature_c=41))
    folder = tmp_path / "sys/bus/pci/drivers/nvidia/0000:01:00.0/power"
    folder.mkdir(parents=True)
    (folder / "runtime_status").write_text(f"{state}\n")
    kept = nvml.find()
    assert (len(kept), driver.users) == (found, found)
    (folder / "runtime_status").write_text("suspended\n")
    assert [read(vital) for vital in kept] == [None] * found


def test_a_gpu_that_falls_off_the_bus_costs_its_vitals(install: Callable[..., FakeNvml]) -> None:
    device = card(temperature_c=41)
    driver = install(device, card(1, temperature_c=50))
    watch = Watch(100.0, nvml.find())
    watch.start()
    device["error"] = 15
    for _ in range(1000):
        if watch.faults:
            break
        watch.read_now()
        time.sleep(0.01)
    watch.stop()
    assert set(watch.faults) == {"nvml.gpu0.temperature"}
    assert "GPU is lost" in watch.faults["nvml.gpu0.temperature"]
    assert driver.users == 0
