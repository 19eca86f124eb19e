"""What machine this is, without anything that names its owner: no host name, serial number or user name."""

from __future__ import annotations

import functools
import os
import platform
import re
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from pytest_joules.places import root

_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Facts of the machine that a reader of a result needs.

    Attributes:
        memory_gb: installed memory, rounded up to the next whole GiB.
        threads: what engines get when a suite does not say: one per physical core, on Apple silicon per fast core.
        gpus: names of graphics cards that were found.
        virtual: runs under a hypervisor, where sensors are absent and neighbours unseen.
    """

    chip: str
    memory_gb: int
    os: str
    kernel: str
    architecture: str
    cpus: int
    cores: int
    threads: int
    gpus: tuple[str, ...]
    virtual: bool

    @property
    def slug(self) -> str:
        """Folder name of this machine's results: chip, first graphics card if it is a separate one, memory."""
        parts = [self.chip, *self.gpus[:1], f"{self.memory_gb}gb"]
        return re.sub(r"[^a-z0-9]+", "-", " ".join(parts).lower()).strip("-")

    def record(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "gpus": list(self.gpus)}


@functools.cache
def describe() -> Machine:
    """This machine."""
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    fast_cores = _sysctl("hw.perflevel0.physicalcpu")
    return Machine(
        chip=_chip(),
        memory_gb=-(-psutil.virtual_memory().total // _GIB),
        os=_os(),
        kernel=f"{platform.system()} {platform.release()}",
        architecture=platform.machine(),
        cpus=os.cpu_count() or 1,
        cores=cores,
        threads=int(fast_cores) if fast_cores.isdigit() else cores,
        gpus=_gpus(),
        virtual=_virtual(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerState:
    """Where the power comes from just now. `None` where the platform does not say."""

    on_ac: bool | None
    battery_percent: float | None
    low_power_mode: bool | None


def power_state() -> PowerState:
    """AC or battery, and whether a low-power mode is on."""
    on_ac, battery_percent = _supplies() if platform.system() == "Linux" else _battery()
    return PowerState(on_ac=on_ac, battery_percent=battery_percent, low_power_mode=_low_power_mode())


def heavy_processes(than_us: float = 0.10, over_s: float = 0.5, ours: frozenset[int] = frozenset()) -> list[str]:
    """Names and loads of other processes that take more than `than_us` of a core, watched for `over_s` seconds."""
    watched = []
    for process in psutil.process_iter(["name"]):
        try:
            process.cpu_percent(None)
            watched.append(process)
        except psutil.Error:
            continue
    psutil.cpu_percent(over_s)
    mine = ours | {os.getpid()} | {parent.pid for parent in psutil.Process().parents()}
    busy = []
    for process in watched:
        try:
            load = process.cpu_percent(None) / 100.0
        except psutil.Error:
            continue
        if load > than_us and process.pid not in mine:
            busy.append(f"{process.info['name']} {load:.0%} of a core")
    return busy


def boot_id() -> str:
    """What changes with every start of this machine; clocks of two boots cannot be compared."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return _sysctl("kern.bootsessionuuid") or f"{psutil.boot_time():.0f}"


def _chip() -> str:
    if brand := _sysctl("machdep.cpu.brand_string"):
        return brand
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(errors="replace") if cpuinfo.exists() else ""
    match = re.search(r"^(?:model name|Hardware|Model)\s*:\s*(.+)$", text, re.MULTILINE)
    name = match.group(1) if match else platform.processor() or platform.machine() or "unknown chip"
    name = re.sub(r"\((?:R|TM|tm|r)\)|\bCPU\b|@.*$|\b\d+-Core\b|\bProcessor\b|\bw/.*$", " ", name)
    return " ".join(name.split())


def _os() -> str:
    if platform.system() == "Darwin":
        return f"macOS {platform.mac_ver()[0]}"
    if platform.system() == "Linux":
        try:
            return platform.freedesktop_os_release()["PRETTY_NAME"]
        except (OSError, KeyError):
            return "Linux"
    return f"{platform.system()} {platform.version()}"


def _gpus() -> tuple[str, ...]:
    """Names of separate NVIDIA cards, without waking one that sleeps or loading a driver that is absent."""
    names = []
    for info in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        match = re.search(r"^Model:\s*(.+)$", info.read_text(errors="replace"), re.MULTILINE)
        if match:
            names.append(match.group(1).strip())
    return tuple(names)


def _virtual() -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        return bool(re.search(r"^flags\s*:.*\bhypervisor\b", cpuinfo.read_text(errors="replace"), re.MULTILINE))
    return _sysctl("kern.hv_vmm_present") == "1"


def _supplies() -> tuple[bool | None, float | None]:
    """Whether the mains feed a machine that has a battery, and its charge in percent, by the kernel's own files.

    From Documentation/ABI/testing/sysfs-class-power: a supply is a `Battery` or brings power in (`Mains`, `USB`), then
    `online` is not 0 when it does. A battery of scope `Device` is a mouse's.
    """
    told = [
        {name: _text(folder / name) for name in ("type", "scope", "present", "status", "capacity", "online")}
        for folder in sorted(root().glob("class/power_supply/*"))
    ]
    batteries = [one for one in told if one["type"] == "Battery" and one["scope"] != "Device" and one["present"] != "0"]
    if not batteries:
        return None, None
    online = [one["online"] for one in told if one["type"] != "Battery" and one["scope"] != "Device" and one["online"]]
    states = {one["status"] for one in batteries}
    if online:
        on_ac: bool | None = any(value != "0" for value in online)
    elif "Discharging" in states:
        on_ac = False
    else:
        on_ac = True if states & {"Charging", "Full", "Not charging"} else None
    charges = [float(one["capacity"]) for one in batteries if one["capacity"].isdigit()]
    return on_ac, sum(charges) / len(charges) if charges else None


def _battery() -> tuple[bool | None, float | None]:
    """The same where there are no such files."""
    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    if battery is None:
        return None, None
    return None if battery.power_plugged is None else bool(battery.power_plugged), float(battery.percent)


def _text(path: Path) -> str:
    """What a file holds, or nothing where there is none."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _low_power_mode() -> bool | None:
    if platform.system() == "Darwin":
        match = re.search(r"lowpowermode\s+(\d)", _output(["pmset", "-g"]))
        return None if match is None else match.group(1) == "1"
    profile = _text(root() / "firmware" / "acpi" / "platform_profile")
    return profile in ("low-power", "quiet") if profile else None


def _sysctl(name: str) -> str:
    return _output(["sysctl", "-n", name]) if platform.system() == "Darwin" else ""


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
