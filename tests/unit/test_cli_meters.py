import importlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from pytest_joules.cli import app
from pytest_joules.cli import meters as cli_meters
from pytest_joules.errors import MeterError, UsageError
from pytest_joules.meters import Found
from pytest_joules.records import Rail, Sample


def rail(name: str, **changes: object) -> Rail:
    usual = {
        "scope": "gpu",
        "covers": ("gpu", "vram"),
        "kind": "instant",
        "basis": "measured",
        "unit": "W",
        "source": "made up",
    }
    return Rail(name=name, **(usual | changes))


class Stairs:
    """A meter whose power changes ten times a second, and a counter beside it."""

    name = "stairs"
    notes = ("made up",)
    interval_s = 0.01

    def __init__(self, fault: Exception | None = None) -> None:
        self.fault, self.closed = fault, False
        self.rails = (
            rail("stairs.power", averaging_s=1.0, kind="moving_average", role="check"),
            rail("stairs.energy", kind="counter"),
        )

    def open(self, rate_hz: float) -> "Stairs":
        if self.fault:
            raise self.fault
        return self

    def read(self) -> list[Sample]:
        now = time.monotonic()
        step = now // 0.1
        return [Sample("stairs.power", now, 30.0 + step * 619 % 1000 / 1000), Sample("stairs.energy", now, 4.0 * step)]

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    def has(*found: Found) -> None:
        monkeypatch.setattr(cli_meters, "look", lambda *_: list(found))

    return has


def joules(*words: str) -> Result:
    return CliRunner().invoke(app, ["meters", *words], env={"COLUMNS": "200"})


ABSENT = Found("rapl", (), "meter rapl: energy_uj is readable by root only; add the udev rule", "add the udev rule")


def test_each_rail_with_its_true_refresh_period_and_noise(machine) -> None:
    meter = Stairs()
    machine(Found("stairs", (meter,)), ABSENT)
    result = joules("--json", "--seconds", "1.2")
    stairs, rapl = json.loads(result.stdout)["sources"]
    power, energy = stairs["rails"]
    assert (stairs["source"], stairs["usable"], stairs["notes"]) == ("stairs", True, ["made up"])
    assert (power["rail"], power["scope"], power["covers"], power["kind"], power["averaging_s"], power["role"]) == (
        "stairs.power", "gpu", ["gpu", "vram"], "moving_average", 1.0, "check",
    )  # fmt: skip
    assert power["refresh_s"] == pytest.approx(0.1, abs=0.02)
    assert power["power_w"] == pytest.approx(30.5, abs=0.2)
    assert power["noise_w"] == pytest.approx(0.29, abs=0.1)
    assert energy["power_w"] == pytest.approx(40.0, rel=0.1)
    assert (rapl["usable"], rapl["reason"], rapl["next_step"]) == (
        False, "meter rapl: energy_uj is readable by root only", "add the udev rule",
    )  # fmt: skip
    assert meter.closed


def test_a_table_for_people_with_what_is_missing_and_what_to_do(machine) -> None:
    machine(Found("stairs", (Stairs(),)), ABSENT)
    result = joules("--seconds", "0.3")
    assert "moving average over 1 s" in result.stdout
    assert "gpu (check)" in result.stdout
    assert "  stairs: made up" in result.stdout
    assert "  rapl: energy_uj is readable by root only -> add the udev rule" in result.stdout


def test_a_next_step_is_told_to_its_end_and_its_commands_are_not_broken(machine) -> None:
    rule = ", ".join(f'KEY{number}=="value of rule {number}"' for number in range(30))
    step = f"put the line '{rule}' into a file of the system's rules, run 'sudo reload --the-rules' and measure again"
    machine(Found("rapl", (), f"meter rapl: a counter that is shut; {step}", step))
    printed = joules("--seconds", "0.1").stdout
    assert f"'{rule}'" in printed
    assert "'sudo reload --the-rules'" in printed
    assert " ".join(printed.split()).endswith(f"rapl: a counter that is shut -> {step}")
    assert [
        line for line in printed.splitlines() if len(line) > 80 and rule not in line and line.startswith("  ")
    ] == []


@pytest.mark.parametrize(
    ("line", "folded"),
    [
        ("  a: short", "  a: short"),
        ("", ""),
        (f"  a: {'x' * 40} {'y' * 40} z", f"  a: {'x' * 40}\n      {'y' * 40} z"),
        (f"{'x' * 40} {'y' * 40}", f"{'x' * 40}\n    {'y' * 40}"),
        (f"  a: {'x' * 60} 'two words' the owner's", f"  a: {'x' * 60} 'two words'\n      the owner's"),
        (f"  a: {'x' * 70} 'two words' b", f"  a: {'x' * 70}\n      'two words' b"),
        (f"  a: run FLAGS='{'x' * 70}' pip install b", f"  a: run\n      FLAGS='{'x' * 70}' pip install b"),
    ],
)
def test_words_that_do_not_fit_go_on_below(line, folded) -> None:
    assert cli_meters.folded(line) == folded


@pytest.mark.parametrize("fault", [MeterError("meter stairs: unplugged"), RuntimeError("a bug of a third party")])
def test_a_meter_that_cannot_be_opened_is_reported_and_the_others_go_on(machine, fault) -> None:
    machine(Found("broken", (Stairs(fault),)), Found("stairs", (Stairs(),)))
    broken, stairs = json.loads(joules("--json", "--seconds", "0.3").stdout)["sources"]
    assert (broken["usable"], stairs["usable"]) == (False, True)
    assert str(fault) in broken["reason"]
    assert [one["readings"] for one in broken["rails"]] == [0, 0]
    assert stairs["rails"][0]["readings"] > 5


def test_live_prints_plain_lines_when_piped(machine) -> None:
    meter = Stairs()
    machine(Found("stairs", (meter,)))
    result = joules("--live", "--seconds", "1.2")
    assert result.exit_code == 0
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert {row[1] for row in rows} == {"stairs.power", "stairs.energy"}
    assert all(row[2].endswith(" W") for row in rows)
    assert "\x1b" not in result.stdout
    assert meter.closed


def test_a_source_that_does_not_exist_is_a_fault_of_use() -> None:
    result = joules("--meter", "estimat")
    assert isinstance(result.exception, UsageError)
    assert "did you mean 'estimate'" in str(result.exception)


@pytest.mark.parametrize("text", ["estimate,rapl", "nvml+rapl", "shelly:127.0.0.1,rapl", "auto"])
def test_one_source_at_a_time(text) -> None:
    result = joules("--meter", text)
    assert isinstance(result.exception, UsageError)
    assert "one source per --meter, which may be repeated" in str(result.exception)


def test_a_source_without_a_name_is_said_to_be_so() -> None:
    result = joules("--meter", "")
    assert isinstance(result.exception, UsageError)
    assert "without a name" in str(result.exception)


def test_a_named_source_that_is_not_there_is_an_error_and_no_empty_table() -> None:
    result = joules("--meter", "command")
    assert isinstance(result.exception, MeterError)
    assert result.stdout == ""
    assert "used only when asked for; --joules-meter 'command:PROGRAM ARGS'" in str(result.exception)
    told = joules("--meter", "command", "--json")
    assert told.exit_code == 1
    assert json.loads(told.stdout)["sources"][0]["usable"] is False


def test_the_rounding_of_arithmetic_is_no_noise() -> None:
    heard = cli_meters.hear(rail("made.power"), np.arange(30.0), np.full(30, 12.1))
    assert heard.noise_w == 0.0


def test_a_reader_that_leaves_ends_it_quietly() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest_joules", "meters", "--live", "--meter", "estimate"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=30) == 0


@pytest.mark.parametrize(
    "words",
    [
        ("meters", "--seconds", "0.2", "--meter", "estimate"),
        ("doctor", "--seconds", "0.2", "--json"),
        ("window", "--help"),
    ],
)
def test_an_output_that_cannot_be_written_is_one_line(words) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pytest_joules", *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert done.returncode == 1
    assert done.stderr == "joules: the output cannot be written (No space left on device)\n"


def test_a_time_that_cannot_be_waited_for_is_refused() -> None:
    importlib.import_module("pytest_joules.cli.doctor")
    for command in ("meters", "doctor"):
        result = CliRunner().invoke(app, [command, "--seconds", "1e9999"])
        assert isinstance(result.exception, UsageError)
        assert str(result.exception).startswith("--seconds inf")


def test_only_the_named_source_is_looked_for() -> None:
    sources = json.loads(
        joules("--json", "--seconds", "0.3", "--meter", "estimate", "--meter", "shelly:127.0.0.1:1").stdout
    )["sources"]
    assert [(one["source"], one["usable"]) for one in sources] == [("estimate", True), ("shelly", False)]


def test_live_and_json_exclude_each_other() -> None:
    assert isinstance(joules("--live", "--json").exception, UsageError)


def test_what_is_heard_of_readings() -> None:
    mono = np.arange(0.0, 2.0, 0.05)
    nothing = cli_meters.hear(rail("a"), np.empty(0), np.empty(0))
    assert (nothing.readings, nothing.power_w, nothing.refresh_text) == (0, None, "no reading")
    gaps = cli_meters.hear(rail("a"), mono, np.full_like(mono, np.nan))
    assert (gaps.readings, gaps.power_w) == (0, None)
    still = cli_meters.hear(rail("a"), mono, np.full_like(mono, 5.0))
    assert (still.power_w, still.noise_w, still.refresh_text) == (5.0, 0.0, "not seen")
    lively = cli_meters.hear(rail("a"), mono, np.arange(len(mono), dtype=float))
    assert lively.refresh_text == "0.05 s or less"
    means = cli_meters.hear(rail("a", kind="interval_mean"), mono, np.full_like(mono, 5.0))
    assert means.refresh_text == "0.05 s"
    counter = cli_meters.hear(rail("a", kind="counter"), mono, 7.0 * mono)
    assert counter.power_w == pytest.approx(7.0)
    reset = cli_meters.hear(rail("a", kind="counter"), mono, 7.0 * np.concatenate((mono[:20] + 100, mono[20:])))
    assert reset.power_w == pytest.approx(7.0)


def test_live_on_a_terminal_updates_in_place_and_ctrl_c_ends_it_cleanly() -> None:
    controller, terminal = pty.openpty()
    words = [sys.executable, "-m", "pytest_joules", "meters", "--live", "--meter", "estimate"]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(words, stdout=terminal, stderr=subprocess.PIPE, env=environment)
    os.close(terminal)
    seen = b""
    deadline = time.monotonic() + 20.0
    while b"estimate.cpu" not in seen and time.monotonic() < deadline:
        if select.select([controller], [], [], 0.1)[0]:
            seen += os.read(controller, 65536)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    os.close(controller)
    assert b"estimate.cpu" in seen
    assert (process.returncode, err) == (0, b"")
