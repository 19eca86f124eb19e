import datetime
import json
import os
import threading
import time
from pathlib import Path

import pytest

from pytest_joules import meters
from pytest_joules.errors import MeterError
from pytest_joules.meters import file
from pytest_joules.meters.sampler import Power

BERLIN = datetime.timezone(datetime.timedelta(hours=1))


def stamp(ago_s: float = 0.0, zone: datetime.tzinfo | None = datetime.UTC) -> str:
    return datetime.datetime.fromtimestamp(time.time() - ago_s, zone).isoformat()


def append(path: Path, *lines: str, end: str = "\n") -> None:
    with path.open("a") as log:
        log.write("\n".join(lines) + end)


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    path = tmp_path / "meter.csv"
    append(path, "time,power_w", f"{stamp(2)},50.0", f"{stamp(1)},51.0")
    return path


def test_only_what_is_written_from_now_on_is_read_at_its_own_time(csv) -> None:
    [meter] = file.find(str(csv))
    [rail] = meter.rails
    assert (rail.name, rail.scope, rail.covers, rail.kind, rail.unit) == (
        "file.trace",
        "wall",
        ("wall",),
        "instant",
        "W",
    )
    reader = meter.open(5.0)
    assert reader.read() == []
    append(csv, f"{stamp(0.5)},60.0", f"{stamp(0.25)},61.0")
    first, second = reader.read()
    assert (first.rail, first.value, second.value) == ("file.trace", 60.0, 61.0)
    assert time.monotonic() - first.mono == pytest.approx(0.5, abs=0.2)
    assert second.mono - first.mono == pytest.approx(0.25, abs=0.01)
    assert reader.read() == []


def test_half_a_line_waits_for_its_other_half(csv) -> None:
    [meter] = file.find(str(csv))
    reader = meter.open(5.0)
    append(csv, f"{stamp()},6", end="")
    assert reader.read() == []
    append(csv, "2.5")
    assert [sample.value for sample in reader.read()] == [62.5]


def test_json_lines_on_this_machine_s_clock(tmp_path) -> None:
    path = tmp_path / "trace.jsonl"
    append(
        path,
        json.dumps(
            {"mono": time.monotonic(), "power_w": 5, "rail": "psu", "kind": "moving_average", "averaging_s": 1.0}
        ),
    )
    [meter] = file.find(str(path))
    assert [(rail.name, rail.kind, rail.averaging_s) for rail in meter.rails] == [("file.psu", "moving_average", 1.0)]
    reader = meter.open(5.0)
    now = time.monotonic()
    append(path, json.dumps({"mono": now, "power_w": 6, "rail": "psu"}))
    assert [(sample.mono, sample.value) for sample in reader.read()] == [(now, 6.0)]


def test_the_energy_of_a_counter_with_its_power_beside_it(tmp_path) -> None:
    path, stop = tmp_path / "trace.jsonl", threading.Event()
    line = lambda: json.dumps({"mono": time.monotonic(), "energy_j": 40.0 * time.monotonic(), "power_w": 40.0})  # noqa: E731
    append(path, line())

    def log() -> None:
        while not stop.wait(0.02):
            append(path, line())

    writing = threading.Thread(target=log)
    writing.start()
    try:
        chosen = meters.choose(f"file:{path}", scope="wall", basis="measured")
        assert [rail.kind for rail in chosen.rails] == ["counter"]
        assert {(rail.kind, rail.role) for rail in chosen.meter.rails} == {("counter", "counted"), ("instant", "check")}
        with Power(chosen, 10.0) as power, power.window() as window:
            time.sleep(0.5)
    finally:
        stop.set()
        writing.join()
    assert window.power_w == pytest.approx(40.0, rel=0.02)


def test_local_times_need_a_zone(tmp_path) -> None:
    path = tmp_path / "meter.csv"
    local = lambda: stamp(0, BERLIN).rpartition("+")[0]  # noqa: E731
    append(path, "time,power_w", f"{local()},50.0")
    with pytest.raises(MeterError, match="has no offset") as caught:
        file.find(str(path))
    assert "@Europe/Berlin" in caught.value.next_step
    [meter] = file.find(f"{path}@+01:00")
    reader = meter.open(5.0)
    append(path, f"{local()},52.0")
    [sample] = reader.read()
    assert time.monotonic() - sample.mono == pytest.approx(0.0, abs=0.2)
    with pytest.raises(MeterError, match="its clock is not this machine's"):
        file.find(f"{path}@+03:00")


def test_a_finished_recording_is_for_another_command(csv) -> None:
    os.utime(csv, (time.time() - 3600, time.time() - 3600))
    with pytest.raises(MeterError, match="finished recording") as caught:
        file.find(str(csv))
    assert "joules window" in caught.value.next_step


def test_a_clock_that_is_set_meanwhile_ends_the_reading(csv) -> None:
    [meter] = file.find(str(csv))
    reader = meter.open(5.0)
    append(csv, f"{stamp(3600)},50.0")
    with pytest.raises(MeterError, match="its clock is not this machine's"):
        reader.read()


@pytest.mark.parametrize("fate", ["removed", "cut short"])
def test_a_log_that_is_lost_ends_the_reading(csv, fate) -> None:
    [meter] = file.find(str(csv))
    reader = meter.open(5.0)
    if fate == "removed":
        csv.unlink()
    else:
        csv.write_text("time,power_w\n")
    with pytest.raises(MeterError, match=r"cannot be read|cut short"):
        reader.read()


def test_lines_that_are_no_samples_are_passed_over_until_they_are_too_many(csv) -> None:
    [meter] = file.find(str(csv))
    reader = meter.open(5.0)
    for line in ("sensor offline", f"{stamp()},", f"{stamp()},51,5", f"{stamp()},nan"):
        append(csv, line)
        assert reader.read() == []
    append(csv, f"{stamp()},53.0")
    assert [sample.value for sample in reader.read()] == [53.0]
    for _ in range(file.UNREADABLE_TO_GIVE_UP - 1):
        append(csv, "error")
        assert reader.read() == []
    append(csv, "error")
    with pytest.raises(MeterError, match="there is no sample in it") as caught:
        reader.read()
    assert "/" not in str(caught.value)


def test_a_long_log_is_not_read_from_its_beginning(csv, monkeypatch) -> None:
    monkeypatch.setattr(file, "LOOK_BACK_BYTES", 200)
    append(csv, *(f"{stamp(1000 - i)},{i}.0" for i in range(1000)))
    read = []
    parse = file.Log.parse
    monkeypatch.setattr(file.Log, "parse", lambda log, lines: read.append(len(lines)) or parse(log, lines))
    [meter] = file.find(str(csv))
    assert meter.rails[0].kind == "instant"
    assert read[0] <= 200


def test_rails_that_may_overlap_are_not_summed(tmp_path) -> None:
    path = tmp_path / "trace.csv"
    append(path, "mono,power_w,rail", f"{time.monotonic()},5,wall", f"{time.monotonic()},4,psu")
    with pytest.raises(MeterError, match="wall, psu, which may overlap"):
        file.find(str(path))


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ("", "no sample in it"),
        ("time,power_w\n", "no sample in it"),
        ("volts,amps\n1,2\n", "the columns are volts, amps"),
    ],
)
def test_a_file_without_samples(tmp_path, content, cause) -> None:
    path = tmp_path / "meter.csv"
    path.write_text(content)
    with pytest.raises(MeterError, match=cause):
        file.find(str(path))


def test_no_file(tmp_path) -> None:
    with pytest.raises(MeterError, match=r"meter file: none\.csv cannot be read"):
        file.find(str(tmp_path / "none.csv"))
    with pytest.raises(MeterError, match="only when asked for"):
        file.find()
