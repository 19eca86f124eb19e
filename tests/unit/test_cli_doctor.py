import getpass
import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pytest_joules import engines, knobs, machine, models
from pytest_joules.cli import app, doctor
from pytest_joules.errors import MeterError
from pytest_joules.meters import Found
from pytest_joules.records import Rail, Sample

MISMATCH = Found(
    "nvml", (), "meter nvml: library and driver are of different versions; restart the machine", "restart the machine"
)


class Steady:
    name = "steady"
    notes = ("made up",)
    interval_s = 0.01
    rails = (
        Rail(
            name="steady.power",
            scope="board",
            covers=("system",),
            kind="instant",
            basis="measured",
            unit="mW",
            source="made up",
        ),
    )

    def open(self, rate_hz: float) -> "Steady":
        return self

    def read(self) -> list[Sample]:
        return [Sample("steady.power", time.monotonic(), 12.0)]

    def close(self) -> None:
        pass


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder on a machine with one meter, one broken one, and nothing else running."""
    monkeypatch.setattr(doctor, "named", lambda *_: [Found("steady", (Steady(),)), MISMATCH])
    monkeypatch.setattr(machine, "heavy_processes", lambda *_: [])
    monkeypatch.setenv("JOULES_LLAMA_SERVER", str(tmp_path / "no-server"))
    monkeypatch.setenv("JOULES_MODELS", "")
    monkeypatch.setattr(models, "_PACKAGES_WITH_MODELS", ())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def joules(*words: str) -> Result:
    return CliRunner().invoke(app, ["doctor", "--seconds", "0.2", *words])


def report() -> dict[str, Any]:
    result = joules("--json")
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not strict JSON"))


def test_every_source_with_its_rails_or_the_reason_and_the_next_step(bare) -> None:
    steady, nvml = report()["sources"]
    [rail] = steady["rails"]
    assert (steady["usable"], rail["rail"], rail["scope"], rail["power_w"], rail["noise_w"]) == (
        True,
        "steady.power",
        "board",
        12.0,
        0.0,
    )
    assert (nvml["usable"], nvml["rails"]) == (False, [])
    assert (nvml["reason"], nvml["next_step"]) == (
        "meter nvml: library and driver are of different versions",
        "restart the machine",
    )


def test_a_machine_with_nothing_gets_every_answer_and_what_to_do(bare) -> None:
    found = report()
    assert set(found) == {"sources", "machine", "power_supply", "engines", "knobs", "models", "git", "versions"}
    assert found["machine"]["chip"]
    assert set(found["power_supply"]) == {"on_ac", "battery_percent", "low_power_mode"}
    server = found["engines"]["llama-server"]
    assert server["usable"] is False
    assert "no-server" in server["reason"]
    assert "-DLLAMA_BUILD_SERVER=ON" in server["next_step"]
    assert found["models"] == {"size_mb": {}}
    assert found["git"]["predictions"] == 0
    assert found["versions"]["pytest-joules"]


def test_the_server_the_models_and_the_predictions_that_are_there(bare, monkeypatch) -> None:
    server = bare / "llama-server"
    server.write_text("#!/bin/sh\necho 'version: 4321 (abcdef12)' >&2\n")
    server.chmod(0o755)
    monkeypatch.setenv("JOULES_LLAMA_SERVER", str(server))
    (bare / "models").mkdir()
    (bare / "models" / "tiny-q4_0.gguf").write_bytes(b"GGUF" + bytes(3_000_000))
    (bare / "predictions").mkdir()
    for name in ("test_said.py", "test_changed.py"):
        (bare / "predictions" / name).write_text("x = 1\n")
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "predictions"], ["commit", "-q", "-m", "said"]):
        subprocess.run([*git, *words], check=True)
    (bare / "predictions" / "test_changed.py").write_text("x = 2\n")
    found = report()
    assert found["engines"]["llama-server"]["usable"] is True
    assert (found["engines"]["llama-server"]["build"], found["engines"]["llama-server"]["commit"]) == (4321, "abcdef12")
    assert found["models"]["size_mb"] == {"tiny-q4_0.gguf": 3}
    assert found["git"]["predictions"] == 2
    assert found["git"]["not_committed_as_they_are"] == ["predictions/test_changed.py"]
    assert len(found["git"]["head"]) == 40


def test_a_folder_without_git_says_so(bare, monkeypatch) -> None:
    (bare / "predictions").mkdir()
    (bare / "predictions" / "test_said.py").write_text("x = 1\n")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(bare.parent))
    assert "not a git repository" in report()["git"]["detail"]


def test_what_fails_is_one_answer_of_many_and_never_a_traceback(bare, monkeypatch) -> None:
    def fall(*_: object) -> None:
        raise RuntimeError("of a kind nobody\nforesaw")

    monkeypatch.setattr(doctor, "named", fall)
    monkeypatch.setattr(machine, "describe", fall)
    monkeypatch.setattr(machine, "power_state", fall)
    monkeypatch.setattr(engines, "engines", fall)
    monkeypatch.setattr(models, "folders", fall)
    said = {"error": "RuntimeError: of a kind nobody foresaw"}
    found = report()
    assert [found[part] for part in ("machine", "power_supply", "engines", "models")] == [said] * 4
    [source] = found["sources"]
    assert (source["usable"], source["reason"]) == (False, said["error"])
    assert "Traceback" not in joules().stdout


def test_the_settings_that_this_machine_lets_a_suite_fix_or_why_not(bare, monkeypatch) -> None:
    policy = bare / "sys/devices/system/cpu/cpufreq/policy0"
    policy.mkdir(parents=True)
    for name, khz in (("scaling_max_freq", 3_000_000), ("cpuinfo_max_freq", 3_000_000), ("cpuinfo_min_freq", 400_000)):
        (policy / name).write_text(f"{khz}\n")
    monkeypatch.setenv("JOULES_SYSFS_ROOT", str(bare / "sys"))
    found = report()["knobs"]
    assert set(found) == set(knobs.knobs())
    assert found["cpu_max_mhz"] == {"usable": True, "takes": "400 to 3000 MHz, or uncapped"}
    assert found["intel_pstate_max_percent"]["usable"] is False
    assert found["intel_pstate_max_percent"]["reason"].startswith("this machine does not run the driver intel_pstate")


def test_a_source_that_stops_while_it_is_listened_to(bare, monkeypatch) -> None:
    def gone(_: Steady) -> None:
        raise MeterError("meter steady: unplugged")

    monkeypatch.setattr(Steady, "read", gone)
    steady, _ = report()["sources"]
    assert (steady["usable"], steady["reason"]) == (False, "meter steady: unplugged")


def test_for_people_it_says_the_same_under_the_same_names(bare) -> None:
    result = joules()
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert any(line.startswith("steady.power") and "board" in line for line in lines)
    assert "  nvml: library and driver are of different versions -> restart the machine" in lines
    headings = [line for line in lines if line and not line.startswith((" ", "-", "rail", "steady"))]
    assert headings == [
        "power sources",
        "not usable here:",
        "machine",
        "power_supply",
        "engines",
        "knobs",
        "models",
        "git",
        "versions",
    ]
    assert "  size_mb: none" in lines


def test_it_names_neither_the_machine_nor_its_user(bare) -> None:
    said = set(joules("--json").stdout.replace('"', " ").replace("/", " ").split())
    assert platform.node() not in said
    assert getpass.getuser() not in said


def test_on_this_very_machine_as_a_person_runs_it(tmp_path) -> None:
    words = [sys.executable, "-m", "pytest_joules", "doctor", "--json", "--seconds", "0.2"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    estimate = next(source for source in json.loads(done.stdout)["sources"] if source["source"] == "estimate")
    assert estimate["usable"]
