import contextlib
import json
import math
import os
import platform
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from players.sysfs_player import CASES, energies, joules

from pytest_joules.errors import MeterError
from pytest_joules.meters import Meter, macmon
from pytest_joules.meters.macmon import Decoder, find, parse
from pytest_joules.records import Sample

PLAYER = Path(__file__).parents[2] / "players" / "fake_macmon.py"
ALL = frozenset(channel.rail for channel in macmon._CHANNELS)
CHIP = ALL - {"macmon.system"}
LINE = {"cpu_power": 4.0, "gpu_power": 16.0, "ane_power": 0.0, "all_power": 20.0, "sys_power": 33.0, "ram_power": 2.0}


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(*command: object) -> None:
        monkeypatch.setenv(macmon.PROGRAM_VARIABLE, shlex.join(str(part) for part in command))

    return use


@pytest.fixture
def play(use: Any, tmp_path: Path) -> Any:
    """Lets macmon print these lines, one every 20 ms unless told, and look at them."""

    def play(lines: Iterable[Mapping[str, Any]], *, every_s: float = 0.02) -> Meter:
        script = tmp_path / "script.jsonl"
        rows = [{"t": every_s * (n + 1), "line": json.dumps(line)} for n, line in enumerate(lines)]
        script.write_text("\n".join(json.dumps(row) for row in rows))
        use(sys.executable, PLAYER, script)
        [meter] = find()
        return meter

    return play


def arrivals(case: str) -> list[tuple[float, bytes]]:
    rows = [json.loads(row) for row in (CASES / case).read_text().splitlines()]
    return [(row["t"], row["line"].encode()) for row in rows]


def fed(lines: Iterable[tuple[float, bytes]], rails: frozenset[str] = ALL) -> tuple[Decoder, list[Sample]]:
    decoder = Decoder(rails)
    return decoder, [sample for t, line in lines for sample in decoder.feed(line, t)]


def of(samples: Iterable[Sample], rail: str) -> list[float]:
    return [sample.value for sample in samples if sample.rail == rail and not math.isnan(sample.value)]


def rails_of(meter: Meter) -> set[str]:
    return {rail.name for rail in meter.rails}


class Named:
    """A meter only by its rails: what the decoder gives can be integrated without a program."""

    name = "macmon"
    notes = ()
    rails = tuple(macmon._rail(channel) for channel in macmon._CHANNELS)


# What the fields of every version are


@pytest.mark.parametrize(
    "version", ["v0.2.0", "v0.3.3", "v0.5.1", "v0.6.1", "v0.7.2", "v0.8.0", "v0.8.2", "v0.8.2-soc"]
)
def test_reads_the_power_fields_of_every_version(use: Any, version: str) -> None:
    use(sys.executable, PLAYER, CASES / "M05-macmon-field-history" / f"{version}.json")
    [meter] = find()
    reader = meter.open(rate_hz=10)
    samples = [*reader.read(), *reader.read()]
    reader.close()
    latest = {sample.rail: sample.value for sample in samples}
    assert latest["macmon.cpu"] + latest["macmon.gpu"] + latest["macmon.ane"] == 28.75
    assert latest.get("macmon.system") == (None if version == "v0.2.0" else 43.0)
    assert latest.get("macmon.dram") == (None if version in ("v0.2.0", "v0.3.3") else 1.25)
    assert rails_of(meter) == set(latest)
    assert "macmon 0.8.2" in meter.notes
    assert all(rail.source == f"macmon pipe: {field}" for rail, field in zip(meter.rails, fields(meter), strict=True))
    assert any("memory power is not in the chip" in note for note in meter.notes) == ("macmon.dram" not in latest)


def fields(meter: Meter) -> list[str]:
    by_rail = {channel.rail: channel.field for channel in macmon._CHANNELS}
    return [by_rail[rail.name] for rail in meter.rails]


def test_energy_is_power_times_the_time_between_arrivals() -> None:
    uneven = [0.0, 1.0, 1.4, 2.9, 4.0, 5.0, 6.0]
    lines = [(t, json.dumps(LINE | {"cpu_power": 10.0 if t <= 2.9 else 20.0}).encode()) for t in uneven]
    _, samples = fed(lines)
    found = energies(Named(), samples, 0.0, 6.0)
    assert joules(found, "macmon.cpu") == pytest.approx(10 * 2.9 + 20 * 3.1)
    assert joules(found, "macmon.ane") == 0.0


# The whole machine


@pytest.mark.parametrize("name", ["clamped", "zero", "missing"])
def test_no_system_power_where_it_is_only_the_chip_again(use: Any, name: str) -> None:
    use(sys.executable, PLAYER, CASES / "M03-macmon-system-power-floor" / f"{name}.jsonl", "--speed", "40")
    [meter] = find()
    assert "macmon.system" not in rails_of(meter)
    assert any("no system power" in note for note in meter.notes)
    assert {"macmon.cpu", "macmon.gpu"} <= rails_of(meter)


@pytest.mark.parametrize(
    ("name", "chip_w"), [("clamped", (30.5, 32.5)), ("zero", 30.0), ("missing", 30.0), ("good", 30.0)]
)
def test_chip_power_stays_usable_whatever_the_system_reads(name: str, chip_w: Any) -> None:
    _, samples = fed(arrivals(f"M03-macmon-system-power-floor/{name}.jsonl"))
    found = energies(Named(), samples, 1.0, 10.0)
    mean_w = joules(found, "macmon.cpu", "macmon.gpu", "macmon.ane") / 9.0
    if isinstance(chip_w, tuple):
        assert chip_w[0] <= mean_w <= chip_w[1]
    else:
        assert mean_w == pytest.approx(chip_w)
    assert joules(found, "macmon.dram") / 9.0 == pytest.approx(2.0)
    if name == "good":
        assert joules(found, "macmon.system") / 9.0 == pytest.approx(52.5, rel=0.01)
    else:
        assert found["macmon.system"].energy_j is None


def test_what_the_smc_counts_is_covered_by_a_word_of_its_own() -> None:
    assert {channel.covers for channel in macmon._CHANNELS if channel.scope == "board"} == {("mac",)}


def test_system_power_is_kept_when_a_first_line_has_none(play: Any) -> None:
    meter = play([LINE | {"sys_power": 0.0}, LINE, LINE, LINE])
    assert "macmon.system" in rails_of(meter)


def test_one_system_reading_among_many_that_are_none_is_no_system(play: Any) -> None:
    meter = play([LINE | {"sys_power": 33.0 if n == 3 else 20.0} for n in range(8)])
    assert "macmon.system" not in rails_of(meter)


def test_a_system_that_is_clamped_only_under_load_gives_no_energy_there() -> None:
    lines = [(float(t), json.dumps(LINE | {"sys_power": 20.0 if 5 <= t < 15 else 33.0}).encode()) for t in range(20)]
    _, samples = fed(lines)
    found = energies(Named(), samples, 5.0, 15.0)["macmon.system"]
    assert found.energy_j is None


# Channels that stand still


def test_zero_power_on_busy_cores_never_becomes_a_chip_without_a_cpu() -> None:
    decoder, samples = fed(arrivals("M01-macos27-cpu-power-zero/arrivals.jsonl"))
    found = energies(Named(), samples, 1.02, 30.02)
    assert found["macmon.cpu"].energy_j is None
    assert found["macmon.dram"].energy_j is None
    assert joules(found, "macmon.system") / 29.0 == pytest.approx(45.5, rel=0.01)
    assert "cpu_power" in decoder.faults["macmon.cpu"]
    assert platform.release() in decoder.faults["macmon.cpu"] or platform.mac_ver()[0] in decoder.faults["macmon.cpu"]
    assert "ram_power" in decoder.faults["macmon.dram"]
    assert "macmon.gpu" not in decoder.faults


def test_an_idle_cpu_may_read_zero() -> None:
    decoder, samples = fed(arrivals("M01-macos27-cpu-power-zero/control.jsonl"), CHIP - {"macmon.dram"})
    assert not decoder.faults
    assert of(samples, "macmon.cpu") == [0.0] * 10
    found = energies(Named(), samples, 1.02, 10.02)
    assert joules(found, "macmon.cpu", "macmon.gpu") == pytest.approx(0.02 * 9.0)


def test_a_dead_cpu_seen_at_the_start_leaves_the_system_alone(use: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(macmon, "DEAD_AFTER_S", 0.3)
    use(sys.executable, PLAYER, CASES / "M01-macos27-cpu-power-zero" / "arrivals.jsonl", "--speed", "25")
    [meter] = find()
    assert rails_of(meter) == {"macmon.system"}
    assert any("cpu_power has read 0.0 W" in note for note in meter.notes)
    assert any("no chip power" in note for note in meter.notes)


def test_a_reader_says_which_channel_died(use: Any, play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(macmon, "DEAD_AFTER_S", 0.2)
    meter = play([LINE | {"cpu_power": 0.0 if n else 4.0, "cpu_active_ratio": 0.6} for n in range(30)])
    reader = meter.open(rate_hz=10)
    samples: list[Sample] = []
    while len(of(samples, "macmon.gpu")) < 25:
        samples += reader.read()
    reader.close()
    assert of(samples, "macmon.cpu") == [4.0]
    assert "activity 60%" in reader.faults["macmon.cpu"]


@pytest.mark.parametrize(
    "activity", [{"cpu_active_ratio": 0.05}, {"pcpu_usage": [3600, 0.3]}, {"cpu_usage_pct": 0.4}, {}]
)
def test_a_dead_channel_is_known_from_any_word_on_activity_or_none(activity: Mapping[str, Any]) -> None:
    lines = [(float(t), json.dumps(LINE | {"cpu_power": 0.0} | activity).encode()) for t in range(9)]
    decoder, samples = fed(lines)
    assert not of(samples, "macmon.cpu")
    assert set(decoder.faults) == {"macmon.cpu"}


def test_batches_of_two_seconds_are_means_over_two_seconds() -> None:
    busy = {"cpu_active_ratio": 0.9}
    lines = [(float(t), json.dumps(LINE | busy | {"cpu_power": 0.0 if t % 2 else 20.0}).encode()) for t in range(31)]
    decoder, samples = fed(lines)
    assert not decoder.faults
    assert of(samples, "macmon.cpu")[1:] == [10.0] * 15
    found = energies(Named(), samples, 5.0, 25.0)["macmon.cpu"]
    assert found.energy_j == pytest.approx(200.0)
    assert found.refresh_s == pytest.approx(2.0)


def test_a_channel_that_comes_back_is_given_again() -> None:
    watts = [4.0] * 3 + [0.0] * 8 + [4.0] * 6
    lines = [
        (float(t), json.dumps(LINE | {"cpu_power": power, "cpu_active_ratio": 0.5}).encode())
        for t, power in enumerate(watts)
    ]
    decoder, samples = fed(lines)
    found = energies(Named(), samples, 1.0, 15.0)["macmon.cpu"]
    assert not decoder.faults
    assert found.energy_j is None
    assert energies(Named(), samples, 12.0, 16.0)["macmon.cpu"].energy_j == pytest.approx(16.0)


def test_memory_that_never_reads_anything_is_not_said_to_be_covered(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(macmon, "PROBE_S", 0.2)
    meter = play([LINE | {"ram_power": 0.0, "cpu_active_ratio": 0.0, "gpu_active_ratio": 0.0}] * 20)
    assert "macmon.dram" not in rails_of(meter)
    assert any("memory power is not in the chip figure" in note for note in meter.notes)


def test_no_chip_power_from_a_version_that_does_not_name_the_cpu(play: Any) -> None:
    meter = play([{name: value for name, value in LINE.items() if name != "cpu_power"}] * 3)
    assert rails_of(meter) == {"macmon.system"}


# Lines that are no readings


def test_broken_lines_are_skipped_and_counted() -> None:
    text = (CASES / "M04-macmon-broken-lines" / "stdout.bin").read_bytes()
    *lines, _cut = text.split(b"\n")
    decoder, samples = fed((float(n), line.rstrip(b"\r")) for n, line in enumerate(lines))
    expected = json.loads((CASES / "M04-macmon-broken-lines" / "stdout_expect.json").read_text())
    assert len(of(samples, "macmon.gpu")) in expected["usable_gpu_samples"]
    assert len(of(samples, "macmon.cpu")) in expected["usable_cpu_samples"]
    assert 0.0 not in of(samples, "macmon.gpu")
    # The line that the end cut off is no line yet, so it is not counted here.
    assert decoder.broken + 1 in expected["bad_lines"]
    flagged = energies(Named(), samples, 1.0, len(lines) - 1.0)["macmon.system"]
    assert any("no number" in flag for flag in flagged.flags)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"  ",
        b"[1, 2]",
        b'"text"',
        b"null",
        b"true",
        b"12",
        b"\xff\xfe",
        b'{"cpu_power": 1',
        b'{"cpu_power": NaN}',
        b"[" * 100_000,
        b"macmon",
    ],
)
def test_what_is_no_object_gives_no_power(line: bytes) -> None:
    decoder, samples = fed([(0.0, line)])
    assert all(math.isnan(sample.value) for sample in samples)
    assert decoder.broken == (1 if line.strip() else 0)


@pytest.mark.parametrize("value", ["null", "1e999", "-1.0", '"5.0"', "true", "[5.0]", "{}"])
def test_what_is_no_number_is_missing_for_its_field_only(value: str) -> None:
    reading = parse(f'{{"cpu_power": {value}, "gpu_power": 3}}'.encode())
    assert reading is not None
    assert macmon.number(reading, "cpu_power") is None
    assert macmon.number(reading, "gpu_power") == 3.0


# Programs that misbehave

HELPERS = CASES / "M06-power-helper-misbehaves" / "bin"


def test_a_panic_at_the_start_tells_code_and_last_words(use: Any) -> None:
    use(HELPERS / "macmon-panic")
    with pytest.raises(MeterError, match=r"exit code 101: thread 'main' panicked at src/sources.rs.* None value"):
        find()


def test_a_death_midway_is_an_error_and_not_silence(use: Any) -> None:
    use(HELPERS / "macmon-dies-midway")
    [meter] = find()
    reader = meter.open(rate_hz=5)
    samples: list[Sample] = []
    while len(of(samples, "macmon.gpu")) < 3:
        samples += reader.read()
    with pytest.raises(MeterError, match="macmon-dies-midway ended with exit code 137"):
        reader.read()
    with pytest.raises(MeterError):
        reader.read()
    reader.close()


def test_the_time_between_lines_is_taken_from_their_arrival(use: Any) -> None:
    use(HELPERS / "macmon-slow")
    [meter] = find()
    reader = meter.open(rate_hz=50)
    samples: list[Sample] = []
    while len(of(samples, "macmon.gpu")) < 6:
        samples += reader.read()
    reader.close()
    times = [sample.mono for sample in samples if sample.rail == "macmon.gpu"]
    assert (times[-1] - times[0]) / 5 == pytest.approx(0.1, abs=0.02)


def test_a_password_prompt_does_not_hold_the_run_up(use: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(macmon, "FIRST_LINE_S", 0.3)
    use(HELPERS / "sudo", "macmon")
    began = time.monotonic()
    with pytest.raises(MeterError, match=r"printed no power within .* see it fail"):
        find()
    assert time.monotonic() - began < 2.0
    assert not psutil.Process().children(recursive=True)


def blocked(script: Path, text: str) -> tuple[macmon.MacmonReader, threading.Thread, list[object], psutil.Process]:
    """A thread that reads a program which says nothing, and the process that holds the pipe open."""
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    reader = macmon.MacmonReader(macmon._start([str(script)], 100), Named.rails)
    got: list[object] = []
    thread = threading.Thread(target=lambda: got.append(list(reader.read())), daemon=True)
    thread.start()
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        below = [child for child in psutil.Process().children(recursive=True) if child.name() == "sleep"]
        if below:
            return reader, thread, got, below[0]
        time.sleep(0.01)
    pytest.fail("the program did not start")


def test_close_lets_a_blocked_read_go_and_ends_all_that_the_program_started(tmp_path: Path) -> None:
    reader, thread, got, sleeper = blocked(tmp_path / "silent", "sleep 3600")
    assert thread.is_alive()
    reader.close()
    reader.close()
    thread.join(2.0)
    assert got == [[]]
    assert not psutil.Process().children(recursive=True)
    psutil.wait_procs([sleeper], timeout=2.0)
    assert not sleeper.is_running() or sleeper.status() == psutil.STATUS_ZOMBIE


def test_close_lets_a_blocked_read_go_though_something_keeps_the_pipe(tmp_path: Path) -> None:
    reader, thread, got, sleeper = blocked(tmp_path / "silent", "setsid sleep 3600")
    try:
        reader.close()
        thread.join(2.0)
        assert got == [[]]
    finally:
        # On Linux the guard has ended it already.
        with contextlib.suppress(psutil.NoSuchProcess):
            sleeper.kill()


def test_a_program_ends_with_the_process_that_forgot_it() -> None:
    forgetful = """
import sys
from pytest_joules.meters._helper import Helper
helper = Helper(["sleep", "3600"])
print(helper.pid)
"""
    done = subprocess.run([sys.executable, "-c", forgetful], capture_output=True, text=True, check=True, timeout=20)
    assert not psutil.pid_exists(int(done.stdout))


def test_a_program_that_floods_its_standard_error_is_still_read(use: Any, tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    noise = [{"t": 0.0, "stderr": "x" * 50_000} for _ in range(6)]
    lines = [{"t": 0.02 * n, "line": json.dumps(LINE)} for n in range(1, 5)]
    script.write_text("\n".join(json.dumps(row) for row in (*noise, *lines)))
    use(sys.executable, PLAYER, script)
    [meter] = find()
    assert {"macmon.cpu", "macmon.system"} <= rails_of(meter)


def test_a_program_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch, use: Any) -> None:
    use("/nowhere/macmon")
    with pytest.raises(MeterError, match="meter macmon: /nowhere/macmon cannot be run: No such file"):
        find()
    monkeypatch.setenv(macmon.PROGRAM_VARIABLE, "macmon 'unfinished")
    with pytest.raises(MeterError, match="is no command line: No closing quotation"):
        find()


@pytest.mark.parametrize(("system", "words"), [("Darwin", "brew install macmon"), ("Linux", "reads Apple silicon")])
def test_without_macmon_the_next_step_depends_on_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, system: str, words: str
) -> None:
    monkeypatch.delenv(macmon.PROGRAM_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(platform, "system", lambda: system)
    with pytest.raises(MeterError, match=words):
        find()


def test_an_argument_is_refused() -> None:
    with pytest.raises(MeterError, match="takes no argument"):
        find("fast")


def test_the_program_cannot_ask_anything_and_writes_in_the_c_locale(use: Any, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    told = [f'echo "$LC_ALL" > {tmp_path}/locale', f"cat > {tmp_path}/stdin", f"ps -o sid= -p $$ > {tmp_path}/sid"]
    asked.write_text("\n".join(["#!/bin/sh", *told, "exit 3"]))
    asked.chmod(0o755)
    use(asked)
    kept, (reading, writing) = os.dup(0), os.pipe()
    os.dup2(reading, 0)
    try:
        with pytest.raises(MeterError, match="exit code 3"):
            find()
    finally:
        os.dup2(kept, 0)
        for end in (kept, reading, writing):
            os.close(end)
    assert (tmp_path / "locale").read_text().strip() == "C"
    assert (tmp_path / "stdin").read_bytes() == b""
    assert int((tmp_path / "sid").read_text()) != os.getsid(0)


def test_macos_27_is_said_to_batch(monkeypatch: pytest.MonkeyPatch, play: Any) -> None:
    monkeypatch.setattr(platform, "mac_ver", lambda: ("27.1", ("", "", ""), "arm64"))
    meter = play([LINE] * 3)
    assert any("macOS 27.1 moves the CPU, ANE and DRAM counters about every 2 s" in note for note in meter.notes)
