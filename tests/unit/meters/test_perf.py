import json
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from players.sysfs_player import energies, joules, mount

from pytest_joules.errors import MeterError
from pytest_joules.meters import perf
from pytest_joules.meters.perf import Decoder, find, parse
from pytest_joules.records import Sample

EVENTS = "bus/event_source/devices/power/events"
PLAYER = Path(__file__).parents[2] / "players" / "fake_macmon.py"
ZONE = "class/powercap/intel-rapl:0"
ROOT_ONLY = {f"{ZONE}/name": "package-0\n", f"{ZONE}/energy_uj": "5000000\n"}


class Named:
    name = "perf"
    notes = ()
    rails = tuple(perf._rail(event) for event in perf._EVENTS)


def line(end_s: float, joules_text: object, event: str = "energy-pkg", unit: str = "Joules") -> str:
    return f"     {end_s:.9f},{joules_text},{unit},power/{event}/,{round(end_s * 1e9)},100.00,,"


def fed(lines: Iterable[str], *, late_s: Iterable[float] = ()) -> list[Sample]:
    decoder = Decoder()
    late = [*late_s]
    samples = []
    for n, text in enumerate(lines):
        end_s = float(text.split(",")[0])
        samples += decoder.feed(text.encode(), 100.0 + end_s + (late[n] if late else 0.0))
    return samples


@pytest.fixture
def perf_that(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Puts a made-up perf on PATH that prints these lines, and then ends with `code` and `words` when these are given."""

    def perf_that(lines: Iterable[str], *, code: int | None = None, words: str = "") -> None:
        rows: list[dict[str, object]] = [{"t": 0.0, "line": text} for text in lines]
        rows += [] if code is None else [{"t": 0.0, "stderr": words}, {"t": 0.0, "exit": code}]
        script = tmp_path / "script.jsonl"
        script.write_text("\n".join(json.dumps(row) for row in rows))
        program = tmp_path / "bin" / "perf"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {PLAYER} {script} "$@"\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")

    return perf_that


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A kernel with these events, and zones that only root can read."""

    def kernel(*events: str) -> Any:
        files = {f"{EVENTS}/{event}": "event=0x02\n" for event in events} | {f"{EVENTS}/{events[0]}.scale": "2.3e-10\n"}
        sysfs = mount(monkeypatch, tmp_path, files | ROOT_ONLY)
        sysfs.faults = {f"{ZONE}/energy_uj": "EACCES"}
        return sysfs

    return kernel


def test_joules_of_an_interval_are_its_mean_power() -> None:
    samples = fed([line(0.5, 10.0), line(1.0, "20.00"), line(2.0, 30)])
    assert [sample.value for sample in samples] == [20.0, 40.0, 30.0]
    assert [sample.mono for sample in samples] == [100.5, 101.0, 102.0]
    assert {sample.rail for sample in samples} == {"perf.energy-pkg"}


def test_lines_that_arrive_late_are_dated_when_they_were_made() -> None:
    samples = fed([line(0.2 * n, 10.0) for n in range(1, 51)], late_s=[0.0, *([0.05] * 49)])
    found = energies(Named(), samples, 101.0, 109.0)
    assert joules(found, "perf.energy-pkg") == pytest.approx(400.0)
    assert samples[-1].mono == pytest.approx(110.0)


def test_an_interval_that_was_not_counted_is_bridged_and_flagged() -> None:
    lines = [line(1.0 * n, "<not counted>" if n == 5 else 50.0, unit="" if n == 5 else "Joules") for n in range(1, 11)]
    found = energies(Named(), fed(lines), 101.0, 110.0)["perf.energy-pkg"]
    assert found.energy_j == pytest.approx(450.0)
    assert any("no number" in flag for flag in found.flags)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# started on Mon",
        "1.0,2.0",
        "1.0,5,Joules,power/energy-cores/,1,100.00",
        "x,5,Joules,power/energy-pkg/",
        "\xff,,,,",
    ],
)
def test_other_lines_are_left_alone(text: str) -> None:
    assert parse(text.encode("latin-1")) is None


@pytest.mark.parametrize("value", ["<not supported>", "<not counted>", "nan", "inf", "-5", "1,5"])
def test_what_is_no_energy_is_missing(value: str) -> None:
    interval = parse(line(1.0, value).encode())
    assert interval is None or interval.joules is None


def test_another_unit_is_no_energy() -> None:
    interval = parse(line(1.0, 5.0, unit="Watt").encode())
    assert interval is not None
    assert interval.joules is None


def test_reads_packages_memory_and_platform(kernel: Any, perf_that: Any) -> None:
    kernel("energy-pkg", "energy-ram", "energy-psys", "energy-cores", "energy-gpu")
    perf_that([line(0.1, 5.0), line(0.1, 1.0, "energy-ram"), line(0.1, 8.0, "energy-psys"), line(0.2, 5.0)])
    [meter] = find()
    assert {rail.name: (rail.scope, rail.covers) for rail in meter.rails} == {
        "perf.energy-pkg": ("chip", ("cpu",)),
        "perf.energy-ram": ("chip", ("dram",)),
        "perf.energy-psys": ("board", ("platform",)),
    }
    reader = meter.open(10.0)
    samples: list[Sample] = []
    while len(samples) < 4:
        samples += reader.read()
    reader.close()
    assert [sample.value for sample in samples] == pytest.approx([50.0, 10.0, 80.0, 50.0])


def test_an_event_that_is_listed_and_not_counted_is_left_out(kernel: Any, perf_that: Any) -> None:
    kernel("energy-pkg", "energy-ram")
    perf_that([line(0.1, 5.0), line(0.1, "<not supported>", "energy-ram", unit="")])
    [meter] = find()
    assert [rail.name for rail in meter.rails] == ["perf.energy-pkg"]
    assert any("energy-ram is listed by the kernel and not counted here" in note for note in meter.notes)


@pytest.mark.parametrize("value", ["<not supported>", "0.00"])
def test_a_package_that_counts_nothing_is_an_error(kernel: Any, perf_that: Any, value: str) -> None:
    kernel("energy-pkg")
    perf_that([line(0.1, value)])
    with pytest.raises(MeterError, match="energy-pkg counts nothing"):
        find()


def test_a_user_who_may_not_count_is_told_how(kernel: Any, perf_that: Any) -> None:
    kernel("energy-pkg")
    perf_that([], code=255, words="Access to performance monitoring is limited.")
    with pytest.raises(MeterError, match=r"perf ended with exit code 255: Access .*perf_event_paranoid.*CAP_PERFMON"):
        find()


def test_files_that_can_be_read_go_first(kernel: Any, perf_that: Any) -> None:
    sysfs = kernel("energy-pkg")
    sysfs.faults = {}
    perf_that([line(0.1, 5.0)])
    with pytest.raises(MeterError, match="can be read as files; use --joules-meter rapl"):
        find()


def test_without_events_or_program_it_says_which(kernel: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kernel("energy-cores")
    with pytest.raises(MeterError, match="no event energy-pkg"):
        find()
    kernel_again = tmp_path / "sys" / EVENTS / "energy-pkg"
    kernel_again.write_text("event=0x02\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MeterError, match="no program 'perf' on PATH"):
        find()
