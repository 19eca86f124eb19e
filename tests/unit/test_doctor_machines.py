"""`joules doctor` on four made-up machines, out of tests/machines, and docs/doctor.md, which shows what it says there."""

import functools
import itertools
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from players.fake_pynvml import FakeNvml
from players.sysfs_player import Sysfs
from typer.testing import CliRunner

from pytest_joules import machine, meters, places
from pytest_joules.cli.doctor import app
from pytest_joules.cli.meters import folded
from pytest_joules.meters import _sysfs

MACHINES = Path(__file__).parents[1] / "machines"
PAGE, METERS_PAGE = (Path(__file__).parents[2] / "docs" / name for name in ("doctor.md", "meters.md"))
ON_THE_PAGE = {
    "strix-halo": "A Strix Halo desktop",
    "two-sockets": "A server with two sockets",
    "two-sockets as another user": "The same server, its counters root's alone",
    "laptop-on-battery": "A laptop on its battery",
    "virtual-machine": "A virtual machine with nothing",
}
"""The heading under which the page shows each machine."""

TURN_S = 0.1
NO_LIBRARY = 12
FIRST_FACT = "machine"
OF_A_TABLE = re.compile(r"\w+\.|rail |---")


class Live(Sysfs):
    """A machine on which time passes: its counters rise, and its gauges go through their readings."""

    def __init__(self, folder: Path, packed: Mapping[str, Any], *, root_only: bool) -> None:
        super().__init__(folder)
        folder.mkdir(parents=True)
        self.write(packed["sys"])
        self.faults = dict(packed.get("faults", {}))
        self._rising_w = {self._place(name): watts for name, watts in packed.get("rising_w", {}).items()}
        self._turns = {self._place(name): (name, turns) for name, turns in packed.get("turns", {}).items()}
        self._begun = time.monotonic()
        if root_only:
            self.faults |= dict.fromkeys(packed["rising_w"], "EACCES")

    def _place(self, name: str) -> str:
        return os.path.realpath(self.folder / name)

    def read_bytes(self, path: Path) -> bytes:
        passed_s, place = time.monotonic() - self._begun, os.path.realpath(path)
        if place in self._turns:
            name, turns = self._turns[place]
            self.write({name: turns[int(passed_s / TURN_S) % len(turns)]})
        content = super().read_bytes(path)
        if place in self._rising_w:
            return b"%d\n" % (int(content) + int(self._rising_w[place] * passed_s * 1e6))
        return content


@dataclass
class Examined:
    """What the doctor said of a machine, for people and for programs, with /sys for the folder of its tree."""

    name: str
    text: str
    report: dict[str, Any]

    @property
    def sources(self) -> dict[str, dict[str, Any]]:
        return {source["source"]: source for source in self.report["sources"]}

    @property
    def usable(self) -> set[str]:
        return {name for name, source in self.sources.items() if source["usable"]}

    def rails(self) -> list[tuple[str, ...]]:
        return [
            (rail["rail"], rail["scope"], " ".join(rail["covers"]), rail["kind"], rail["basis"], rail["unit"])
            for source in self.sources.values()
            for rail in source["rails"]
        ]

    def places(self) -> set[str]:
        return {rail["source"] for source in self.sources.values() for rail in source["rails"]}

    def why(self, source: str) -> str:
        """The reason why a source is shut and, behind an arrow, what to do."""
        said = self.sources[source]
        return f"{said['reason']} -> {said['next_step']}"


def examine(name: str, folder: Path, *words: str) -> str:
    """What the doctor prints on a machine, which has no driver, program or model beside its /sys."""
    tree, _, user = name.partition(" as ")
    with pytest.MonkeyPatch.context() as patch:
        packed = json.loads((MACHINES / f"{tree}.json").read_text())
        sysfs = Live(folder / "sys", packed, root_only=bool(user))
        patch.setenv(places.ROOT_VARIABLE, str(sysfs.folder))
        patch.setattr(_sysfs, "read_bytes", sysfs.read_bytes)
        patch.setattr(platform, "system", lambda: "Linux")
        patch.setattr(platform, "machine", lambda: "x86_64")
        patch.setattr(machine, "heavy_processes", lambda *_: [])
        patch.setitem(sys.modules, "pynvml", FakeNvml({"devices": [], "init_error": NO_LIBRARY}))
        for variable in ("JOULES_MACMON", "JOULES_MODELS", "CUDA_VISIBLE_DEVICES"):
            patch.delenv(variable, raising=False)
        patch.setenv("PATH", str(folder))
        patch.setenv("JOULES_LLAMA_SERVER", str(folder / "none"))
        patch.chdir(folder)
        result = CliRunner().invoke(app, ["doctor", *words])
    if result.exit_code or result.stderr:
        pytest.fail(f"exit code {result.exit_code}, stderr {result.stderr!r}")
    return result.stdout.replace(str(sysfs.folder), "/sys")


@functools.cache
def examination(name: str) -> Examined:
    printed = []
    for words in ((), ("--json",)):
        with tempfile.TemporaryDirectory() as folder:
            printed.append(examine(name, Path(folder), "--seconds", "0.4", *words))
    text, found = printed
    return Examined(
        name, text, json.loads(found, parse_constant=lambda word: pytest.fail(f"{word} is not strict JSON"))
    )


@pytest.fixture(params=ON_THE_PAGE)
def examined(request: pytest.FixtureRequest) -> Examined:
    return examination(request.param)


ESTIMATE = ("estimate.cpu", "chip", "cpu", "counter", "estimated", "busy CPU seconds")
RAILS = {
    "strix-halo": [("amdgpu.0000:c5:00.0", "chip", "cpu fabric gpu", "moving_average", "measured", "mW"), ESTIMATE],
    "two-sockets": [
        ESTIMATE,
        ("rapl.package-0", "chip", "cpu", "counter", "measured", "uJ"),
        ("rapl.package-1", "chip", "cpu", "counter", "measured", "uJ"),
        ("rapl.package-0.dram", "chip", "dram", "counter", "measured", "uJ"),
        ("rapl.package-1.dram", "chip", "dram", "counter", "measured", "uJ"),
    ],
    "two-sockets as another user": [ESTIMATE],
    "laptop-on-battery": [
        ("battery.BAT0", "board", "laptop", "instant", "measured", "uW"),
        ESTIMATE,
        ("rapl.package-0", "chip", "cpu", "counter", "measured", "uJ"),
        ("rapl.psys", "board", "platform", "counter", "measured", "uJ"),
    ],
    "virtual-machine": [ESTIMATE],
}

PLACES = {
    "strix-halo": {"/sys/class/drm/card1/device/gpu_metrics: average_socket_power (gpu_metrics 3.0)"},
    "two-sockets": {
        f"/sys/devices/virtual/powercap/intel-rapl/intel-rapl:{zone}/energy_uj"
        for zone in ("0", "0/intel-rapl:0:0", "1", "1/intel-rapl:1:0")
    },
    "laptop-on-battery": {
        "/sys/class/power_supply/BAT0/power_now",
        "/sys/devices/virtual/powercap/intel-rapl/intel-rapl:0/energy_uj",
        "/sys/devices/virtual/powercap/intel-rapl/intel-rapl:1/energy_uj",
    },
}
UDEV = r"SUBSYSTEM.*chmod g\+r.*60-rapl\.rules.*udevadm trigger.*--joules-meter perf$"
SHUT = {
    "strix-halo": {
        "rapl": rf"intel-rapl:0/energy_uj may not be read by this user -> .*{UDEV}",
        "perf": r"no program 'perf' on PATH -> install",
        "hwmon": r"there are amdgpu/PPT -> use --joules-meter hwmon:CHIP/LABEL",
        "intel_gpu": r"no card of vendor 0x8086 in /sys/class/drm -> $",
    },
    "two-sockets": {
        "perf": r"the same counters can be read as files -> use --joules-meter rapl$",
        "amdgpu": r"no card of vendor 0x1002",
        "hwmon": r"there are power_meter/power1 ->",
        "battery": r"no battery in /sys/class/power_supply",
    },
    "two-sockets as another user": {
        "rapl": rf"intel-rapl:0/energy_uj may not be read by this user -> .*{UDEV}",
        "perf": r"no program 'perf' on PATH -> install",
    },
    "laptop-on-battery": {
        "perf": r"the same counters can be read as files -> use --joules-meter rapl$",
        "intel_gpu": r"card1 \(0000:00:02\.0\) has no sensors: integrated graphics, whose power lies inside the CPU package",
        "hwmon": r"there are none ->",
    },
    "virtual-machine": {
        "rapl": r"no RAPL zone in /sys/class/powercap: .*virtual machine or container -> .*modprobe intel_rapl_msr",
        "perf": r"the kernel has no event energy-pkg",
        "amdgpu": r"no card of vendor 0x1002",
        "battery": r"no battery in /sys/class/power_supply",
        "hwmon": r"there are none ->",
        "nvml": r"no NVIDIA driver library .* -> on a machine with an NVIDIA GPU, install its driver",
        "smi": r"no nvidia-smi here -> ",
        "macmon": r"reads Apple silicon, and this is Linux on x86_64 -> $",
        "jetson": r"this is no Jetson, or its driver is not loaded -> $",
        "command": r"used only when asked for -> --joules-meter 'command:PROGRAM ARGS'",
        "shelly": r"used only when asked for -> --joules-meter shelly:ADDRESS",
    },
}
NOTES = {
    "strix-halo": {"amdgpu": ["0000:c5:00.0 is an APU: its power holds the CPU, so a CPU package must not be added"]},
    "two-sockets": {
        "rapl": [
            "counted: rapl.package-0, rapl.package-1, rapl.package-0.dram, rapl.package-1.dram; "
            "core and uncore lie inside the package"
        ]
    },
    "laptop-on-battery": {
        "rapl": [
            "counted: rapl.package-0, rapl.psys; core and uncore lie inside the package",
            "intel-rapl-mmio:0 is package-0 again and is not added",
            "no dram zone: memory power is not in the chip figure",
        ]
    },
}
SEEN_W = {
    "strix-halo": {"amdgpu.0000:c5:00.0": 11.475},
    "two-sockets": {
        "rapl.package-0": 61.4,
        "rapl.package-1": 57.8,
        "rapl.package-0.dram": 9.1,
        "rapl.package-1.dram": 8.7,
    },
    "laptop-on-battery": {"battery.BAT0": 10.494, "rapl.package-0": 4.3, "rapl.psys": 9.6},
}
"""Mean power of what the machine's files hold, in watts."""


def test_which_rails_there_are_and_what_they_say_of_themselves(examined: Examined) -> None:
    built_in = [rail for rail in examined.rails() if rail[0].split(".")[0] in shown_sources()]
    assert sorted(built_in) == sorted(RAILS[examined.name])
    assert examined.usable & shown_sources() == {rail[0].split(".")[0] for rail in RAILS[examined.name]}
    assert examined.places() >= PLACES.get(examined.name, set())


def test_why_the_others_are_shut_and_what_to_do(examined: Examined) -> None:
    for source, words in SHUT[examined.name].items():
        assert re.search(words, examined.why(source)), examined.why(source)
    for name in shown_sources() - examined.usable:
        assert examined.sources[name]["reason"], name
        assert examined.sources[name]["rails"] == []


def test_what_must_be_known_of_the_sources_that_are_there(examined: Examined) -> None:
    for source, notes in NOTES.get(examined.name, {}).items():
        assert examined.sources[source]["notes"] == notes
    for name in examined.usable:
        assert examined.sources[name]["reason"] == ""


def test_the_power_is_that_of_the_files(examined: Examined) -> None:
    power_w = {rail["rail"]: rail["power_w"] for one in examined.sources.values() for rail in one["rails"]}
    for rail, watts in SEEN_W.get(examined.name, {}).items():
        assert power_w[rail] == pytest.approx(watts, rel=0.1)


def test_a_person_reads_what_a_program_reads_and_never_a_traceback(examined: Examined) -> None:
    assert "Traceback" not in examined.text
    lines = unfolded(examined.text).splitlines()
    for name, source in examined.sources.items():
        rows = [line for line in lines if line.startswith(f"{name}.")]
        assert [row.split()[0] for row in rows] == [rail["rail"] for rail in source["rails"]]
        reasons = [line for line in lines[lines.index("not usable here:") :] if line.startswith(f"  {name}: ")]
        assert len(reasons) == (not source["usable"])
    assert lines.index(FIRST_FACT) > lines.index("not usable here:")


def test_words_fit_a_terminal_and_commands_can_be_copied(examined: Examined) -> None:
    lines = examined.text.splitlines()
    copied = re.compile(r".*(SUBSYSTEM==|CMAKE_ARGS=)")
    assert [line for line in lines if len(line) > 80 and not (OF_A_TABLE.match(line) or copied.match(line))] == []
    for source in examined.sources.values():
        for command in re.findall(r"(?<!\w)'[^']+'(?!\w)", source["next_step"]):
            assert any(command in line for line in lines), command
        said = re.sub(r"\s+", " ", examined.text)
        assert source["usable"] or re.sub(r"\s+", " ", source["next_step"]) in said


def test_on_a_laptop_the_firmware_counter_comes_before_the_battery_gauge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sysfs = Live(tmp_path / "sys", json.loads((MACHINES / "laptop-on-battery.json").read_text()), root_only=False)
    monkeypatch.setenv(places.ROOT_VARIABLE, str(sysfs.folder))
    monkeypatch.setattr(_sysfs, "read_bytes", sysfs.read_bytes)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    for scope, rail in (("board", "rapl.psys"), ("chip", "rapl.package-0")):
        assert [r.name for r in meters.choose("auto", scope=scope, basis="measured").rails] == [rail]


def test_the_power_supply_is_that_of_the_machine_looked_at() -> None:
    supply = examination("laptop-on-battery").report["power_supply"]
    assert (supply["on_ac"], supply["battery_percent"]) == (False, 76.0)
    assert examination("two-sockets").report["power_supply"]["on_ac"] is None


def test_the_page_shows_what_the_doctor_says(examined: Examined) -> None:
    printed = [line for line in lasting(examined.text) if source_of(line) in {"", *shown_sources()}]
    assert lasting(block_of(examined.name)) == printed, f"docs/doctor.md has to show:\n{examined.text}"


def test_the_page_breaks_its_lines_as_the_doctor_does() -> None:
    for block in blocks().values():
        whole = unfolded(block).splitlines()
        shown = [line if OF_A_TABLE.match(line) else folded(line) for line in whole]
        assert "\n".join(shown) == block.rstrip("\n")


def test_the_rule_that_opens_the_counters_stands_on_the_page_of_meters() -> None:
    rule = re.search(r"SUBSYSTEM==.*?energy_uj\"(?=' into )", examination("two-sockets as another user").why("rapl"))
    assert rule
    assert f"\n{rule.group()}\n" in METERS_PAGE.read_text()


def test_the_page_names_every_key() -> None:
    two_sockets = examination("two-sockets")
    rapl = two_sockets.sources["rapl"]
    keys = {*two_sockets.report, *rapl, *rapl["rails"][0]}
    assert not keys - set(re.findall(r"`(\w+)`", PAGE.read_text()))


def test_the_page_shows_no_other_machine() -> None:
    headings = re.findall(r"^## (.+)\n\n```console$", PAGE.read_text(), re.MULTILINE)
    assert headings == list(ON_THE_PAGE.values())


def test_every_machine_is_looked_at() -> None:
    assert {file.stem for file in MACHINES.iterdir()} == {name.partition(" as ")[0] for name in ON_THE_PAGE}


def test_as_a_person_runs_it(tmp_path: Path) -> None:
    sysfs = Live(tmp_path / "sys", json.loads((MACHINES / "two-sockets.json").read_text()), root_only=False)
    done = subprocess.run(
        [sys.executable, "-m", "pytest_joules", "doctor", "--json", "--seconds", "0.2"],
        capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False,
        env=os.environ | {places.ROOT_VARIABLE: str(sysfs.folder)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    rapl = next(source for source in json.loads(done.stdout)["sources"] if source["source"] == "rapl")
    assert (rapl["usable"], len(rapl["rails"])) == (True, 4)


def blocks() -> dict[str, str]:
    """What the page shows under each heading."""
    return dict(re.findall(r"^## ([^\n]+)\n\n```console\n\$ joules doctor\n(.+?)^```$", PAGE.read_text(), re.M | re.S))


def block_of(name: str) -> str:
    return blocks()[ON_THE_PAGE[name]]


def shown_sources() -> set[str]:
    """The sources that the page knows. One that has come since is not missing from it: a new source is one new file."""
    return {source_of(line) for block in blocks().values() for line in lasting(block)} - {""}


def source_of(line: str) -> str:
    """The source that a line is about, or nothing for a heading."""
    match = re.match(r"  (\w+): |(\w+)\.", line)
    return (match.group(1) or match.group(2)) if match else ""


def unfolded(text: str) -> str:
    """The text with each line whole. Where the doctor breaks one depends on where the tree was unpacked."""
    return re.sub(r"\n {6}(?=\S)", " ", text)


def lasting(text: str) -> list[str]:
    """The lines about power sources, without what the moment decides: refresh, power and noise of a rail."""
    about_sources = itertools.takewhile(lambda line: line != FIRST_FACT, unfolded(text).splitlines())
    return [
        "  ".join(re.split(r" {2,}", line)[:-3]) if re.match(r"\w+\.|rail ", line) else line
        for line in about_sources
        if not line.startswith("---")
    ]
