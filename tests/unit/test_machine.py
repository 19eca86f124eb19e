import getpass
import json
import os
import platform
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_joules import machine
from pytest_joules.machine import Machine, describe, heavy_processes, power_state


def made(**changes: Any) -> Machine:
    usual: dict[str, Any] = {
        "chip": "AMD Ryzen AI MAX+ 395", "memory_gb": 128, "os": "ExampleOS 1", "kernel": "Linux 6.18", "architecture": "x86_64",
        "cpus": 32, "cores": 16, "threads": 16, "gpus": (), "virtual": False,
    }  # fmt: skip
    return Machine(**(usual | changes))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """A made-up /proc and /sys of a Linux machine."""
    monkeypatch.setattr(machine, "Path", lambda path: tmp_path / str(path).lstrip("/"))
    monkeypatch.setenv("JOULES_SYSFS_ROOT", str(tmp_path / "sys"))
    monkeypatch.setattr(machine.platform, "system", lambda: "Linux")

    def write(path: str, text: str) -> None:
        (tmp_path / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path.lstrip("/")).write_text(text)

    return write


@pytest.mark.parametrize(
    ("changes", "slug"),
    [
        ({}, "amd-ryzen-ai-max-395-128gb"),
        ({"chip": "Apple M5 Pro", "memory_gb": 24}, "apple-m5-pro-24gb"),
        ({"gpus": ("NVIDIA GeForce RTX 4090", "NVIDIA T400")}, "amd-ryzen-ai-max-395-nvidia-geforce-rtx-4090-128gb"),
        ({"chip": "  ../Chip/ñ", "memory_gb": 1}, "chip-1gb"),
    ],
)
def test_a_slug_is_a_plain_folder_name(changes: dict[str, Any], slug: str) -> None:
    assert made(**changes).slug == slug


def test_the_record_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    record = made(gpus=("A", "B")).record()
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["gpus"] == ["A", "B"]


def test_this_machine_is_described_without_its_owner() -> None:
    found = describe()
    assert found.chip
    assert found.memory_gb >= 1
    assert 1 <= found.cores <= found.cpus
    assert 1 <= found.threads <= found.cores
    assert found.architecture == platform.machine()
    text = json.dumps(found.record())
    for name in {socket.gethostname(), getpass.getuser(), str(Path.home())} - {"root", "/root", "localhost", "vm"}:
        assert name not in text


@pytest.mark.parametrize(
    ("total", "memory_gb"), [(24 * 2**30, 24), (24 * 2**30 - 300 * 2**20, 24), (24 * 2**30 + 1, 25)]
)
def test_memory_is_told_as_it_is_sold(monkeypatch: pytest.MonkeyPatch, total: int, memory_gb: int) -> None:
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: SimpleNamespace(total=total))
    assert describe.__wrapped__().memory_gb == memory_gb


@pytest.mark.parametrize(
    ("line", "chip"),
    [
        ("model name\t: Intel(R) Xeon(R) Platinum 8480+ CPU @ 2.00GHz", "Intel Xeon Platinum 8480+"),
        ("model name\t: AMD EPYC 7B13 64-Core Processor", "AMD EPYC 7B13"),
        ("model name\t: AMD RYZEN AI MAX+ 395 w/ Radeon 8060S", "AMD RYZEN AI MAX+ 395"),
        ("model name\t: 13th Gen Intel(R) Core(TM) i7-1360P", "13th Gen Intel Core i7-1360P"),
        ("Model\t\t: Raspberry Pi 5 Model B Rev 1.0", "Raspberry Pi 5 Model B Rev 1.0"),
    ],
)
def test_the_name_of_a_chip_without_its_trimmings(root, line: str, chip: str) -> None:
    root("/proc/cpuinfo", f"processor\t: 0\n{line}\nflags\t\t: fpu\n")
    assert machine._chip() == chip


def test_a_chip_without_a_name(root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.platform, "processor", lambda: "")
    monkeypatch.setattr(machine.platform, "machine", lambda: "riscv64")
    assert machine._chip() == "riscv64"
    monkeypatch.setattr(machine.platform, "machine", lambda: "")
    assert machine._chip() == "unknown chip"


def test_a_virtual_machine_is_known_by_its_flags(root) -> None:
    root("/proc/cpuinfo", "flags\t\t: fpu vme hypervisor lahf_lm\n")
    assert machine._virtual()
    root("/proc/cpuinfo", "flags\t\t: fpu vme nohypervisor2 lahf_lm\n")
    assert not machine._virtual()


def test_separate_graphics_cards(root) -> None:
    assert machine._gpus() == ()
    root("/proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t NVIDIA GeForce RTX 4090\nIRQ:   \t\t 40\n")
    root("/proc/driver/nvidia/gpus/0000:02:00.0/information", "IRQ:   \t\t 41\n")
    assert machine._gpus() == ("NVIDIA GeForce RTX 4090",)


@pytest.mark.parametrize(
    ("profile", "low"),
    [("low-power\n", True), ("quiet\n", True), ("balanced\n", False), ("performance\n", False), (None, None)],
)
def test_a_low_power_mode(root, profile: str | None, low: bool | None) -> None:
    if profile is not None:
        root("/sys/firmware/acpi/platform_profile", profile)
    assert machine._low_power_mode() is low


@pytest.mark.parametrize(
    ("battery", "on_ac", "percent"),
    [
        (None, None, None),
        (SimpleNamespace(power_plugged=True, percent=80), True, 80.0),
        (SimpleNamespace(power_plugged=False, percent=12.5), False, 12.5),
        (SimpleNamespace(power_plugged=None, percent=50), None, 50.0),
    ],
)
def test_where_the_power_of_a_mac_comes_from(
    monkeypatch, battery: Any, on_ac: bool | None, percent: float | None
) -> None:
    monkeypatch.setattr(machine.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(machine, "_output", lambda command: "")
    monkeypatch.setattr(machine.psutil, "sensors_battery", lambda: battery, raising=False)
    found = power_state()
    assert (found.on_ac, found.battery_percent) == (on_ac, percent)


def test_a_platform_without_batteries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.platform, "system", lambda: "Windows")
    monkeypatch.delattr(machine.psutil, "sensors_battery", raising=False)
    assert power_state().on_ac is None


AC, USB, MOUSE = {"type": "Mains"}, {"type": "USB"}, {"type": "Battery", "scope": "Device", "status": "Discharging"}
CELL = {"type": "Battery", "capacity": "76"}


@pytest.mark.parametrize(
    ("supplies", "on_ac", "percent"),
    [
        ({}, None, None),
        ({"AC": AC | {"online": "1"}}, None, None),
        ({"AC": AC | {"online": "1"}, "mouse": MOUSE | {"capacity": "5"}}, None, None),
        ({"BAT0": CELL | {"status": "Discharging", "present": "0"}}, None, None),
        ({"BAT0": CELL | {"status": "Discharging"}}, False, 76.0),
        ({"BAT0": CELL | {"status": "Charging"}}, True, 76.0),
        ({"BAT0": {"type": "Battery", "status": "Unknown"}}, None, None),
        ({"AC": AC | {"online": "0"}, "BAT0": CELL | {"status": "Discharging"}}, False, 76.0),
        (
            {"AC": AC | {"online": "0"}, "C": USB | {"online": "1"}, "BAT0": CELL | {"status": "Not charging"}},
            True,
            76.0,
        ),
        ({"BAT0": CELL | {"status": "Discharging"}, "BAT1": CELL | {"status": "Full", "capacity": "100"}}, False, 88.0),
    ],
)
def test_where_the_power_of_a_linux_machine_comes_from(
    root, supplies: dict[str, dict[str, str]], on_ac: bool | None, percent: float | None
) -> None:
    for name, files in supplies.items():
        for file, text in files.items():
            root(f"/sys/class/power_supply/{name}/{file}", f"{text}\n")
    found = power_state()
    assert (found.on_ac, found.battery_percent) == (on_ac, percent)


MAC = {
    ("sysctl", "-n", "machdep.cpu.brand_string"): "Apple M5 Pro",
    ("sysctl", "-n", "kern.hv_vmm_present"): "0",
    ("pmset", "-g"): "System-wide power settings:\nCurrently in use:\n lowpowermode         1\n",
}


def test_a_mac_is_asked_by_its_own_tools(root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(machine.platform, "mac_ver", lambda: ("27.0.1", ("", "", ""), "arm64"))
    monkeypatch.setattr(machine, "_output", lambda command: MAC.get(tuple(command), ""))
    assert (machine._chip(), machine._os(), machine._virtual()) == ("Apple M5 Pro", "macOS 27.0.1", False)
    assert machine._low_power_mode() is True


def test_a_tool_that_fails_says_nothing() -> None:
    assert machine._output([sys.executable, "-S", "-c", "print(' here ')"]) == "here"
    assert machine._output([sys.executable, "-S", "-c", "print('half'); raise SystemExit(1)"]) == ""
    assert machine._output(["no-such-program-of-ours"]) == ""


class Process:
    """A process that takes a share of a core, or has ended when it is looked at again."""

    def __init__(self, pid: int, name: str, percent: float | None) -> None:
        self.pid, self.info, self._percent, self._looks = pid, {"name": name}, percent, 0

    def cpu_percent(self, _: None) -> float:
        self._looks += 1
        if self._percent is None and self._looks > 1:
            raise machine.psutil.NoSuchProcess(self.pid)
        return 0.0 if self._looks == 1 or self._percent is None else self._percent


def test_other_programs_at_work_are_named_and_ours_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    parent = os.getppid()
    processes = [
        Process(10**7, "browser", 250.0), Process(10**7 + 1, "gone", None), Process(10**7 + 2, "idle", 9.9),
        Process(10**7 + 3, "llama-server", 190.0), Process(os.getpid(), "pytest", 90.0), Process(parent, "shell", 90.0),
    ]  # fmt: skip
    monkeypatch.setattr(machine.psutil, "process_iter", lambda _: processes)
    monkeypatch.setattr(machine.psutil, "cpu_percent", waited.append)
    assert heavy_processes(over_s=0.25, ours=frozenset({10**7 + 3})) == ["browser 250% of a core"]
    assert waited == [0.25]
