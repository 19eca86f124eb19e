import json
import math
import shlex
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from pytest_joules import meters
from pytest_joules.errors import MeterError, Unmeasured
from pytest_joules.meters import command
from pytest_joules.meters.sampler import Power


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "SETTLE_S", 0.05)


@pytest.fixture
def program(tmp_path: Path):
    """A Python program as the argument of the meter."""

    def write(body: str, *args: str) -> str:
        path = tmp_path / "meter.py"
        path.write_text("import json, os, sys, time\n" + textwrap.dedent(body))
        return shlex.join([sys.executable, "-u", "-S", str(path), *args])

    return write


def read_to_the_end(reader: command.CommandReader) -> None:
    while True:
        reader.read()


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


STEADY = """
    for i in range(10_000):
        print('{"power_w": 12.5}')
        time.sleep(0.01)
"""


def test_power_of_a_program_at_the_time_it_arrives(program) -> None:
    [meter] = command.find(program(STEADY))
    [rail] = meter.rails
    assert (rail.name, rail.scope, rail.covers, rail.kind, rail.unit, rail.basis) == (
        "command.power", "wall", ("wall",), "instant", "W", "measured",
    )  # fmt: skip
    reader = meter.open(5.0)
    assert reader.interval_s is None
    before = time.monotonic()
    [sample] = reader.read()
    assert (sample.rail, sample.value) == ("command.power", 12.5)
    assert before <= sample.mono <= time.monotonic()
    reader.close()


def test_its_energy_over_a_window(program) -> None:
    chosen = meters.choose("command:" + program(STEADY), scope=None, basis="measured")
    with Power(chosen, 5.0) as power, power.window() as window:
        time.sleep(0.3)
    assert window.power_w == pytest.approx(12.5)


def test_rails_say_what_they_are(program) -> None:
    body = """
        for i in range(10_000):
            print(json.dumps({"rail": "cpu", "energy_j": 1e3 + i, "scope": "chip", "covers": ["cpu"], "wrap_j": 65536}))
            print(json.dumps({"rail": "psu", "power_w": 40, "kind": "moving_average", "averaging_s": 0.5, "basis": "estimated"}))
            time.sleep(0.01)
    """
    [meter] = command.find(program(body))
    cpu, psu = meter.rails
    assert (cpu.name, cpu.scope, cpu.covers, cpu.kind, cpu.wrap_j) == (
        "command.cpu",
        "chip",
        ("cpu",),
        "counter",
        65536,
    )
    assert (psu.name, psu.scope, psu.kind, psu.averaging_s, psu.basis) == (
        "command.psu",
        "wall",
        "moving_average",
        0.5,
        "estimated",
    )


def test_rails_of_unlike_rates_are_all_heard(program, monkeypatch) -> None:
    monkeypatch.setattr(command, "SETTLE_S", 0.4)
    body = """
        for i in range(10_000):
            print('{"rail": "fast", "power_w": 1}')
            if i % 20 == 10: print('{"rail": "slow", "power_w": 2}')
            time.sleep(0.01)
    """
    [meter] = command.find(program(body))
    assert {rail.name for rail in meter.rails} == {"command.fast", "command.slow"}


def test_a_rail_that_appears_late_ends_the_reading(program) -> None:
    body = """
        for i in range(10_000):
            print('{"rail": "a", "power_w": 1}')
            if i > 30: print('{"rail": "b", "power_w": 2}')
            time.sleep(0.01)
    """
    [meter] = command.find(program(body))
    reader = meter.open(5.0)
    with pytest.raises(MeterError, match=r"command\.b appears only now"):
        read_to_the_end(reader)
    reader.close()


def test_a_line_that_is_no_sample_is_a_reading_that_failed(program) -> None:
    body = r"""
        sys.stdout.write('a heading\ner_w": 3}\n')
        while True:
            for value in ('12.5', 'null', 'NaN', '"12,5"', '-1', 'true', '1, "energy_j": 2', 'Infinity'):
                print('{"power_w": ' + value + '}\r')
            print("hello\n\n[1, 2]\n7\n" + '{"watts": 3}')
            time.sleep(0.01)
    """
    [meter] = command.find(program(body))
    reader = meter.open(5.0)
    read = []
    while len(read) < 60:
        read += reader.read()
    reader.close()
    nan = [math.nan] * 6
    values = [12.5, *nan[:3], -1.0, *nan[:3], *nan[:4]]
    # A blank line was not tried, and the heading is not counted.
    assert [s.value for s in read[:24]] == pytest.approx(values * 2, nan_ok=True)


def test_a_failed_reading_is_of_the_rail_it_names_or_of_all(program) -> None:
    body = r"""
        while True:
            print('{"rail": "a", "power_w": 1}\n{"rail": "b", "power_w": 2}')
            print('{"rail": "b", "power_w": null}\ngarbage')
            time.sleep(0.01)
    """
    [meter] = command.find(program(body))
    reader = meter.open(5.0)
    read = []
    while len(read) < 5:
        read += reader.read()
    reader.close()
    assert [s.rail for s in read[:3]] == ["command.a", "command.b", "command.b"]
    assert {s.rail for s in read[3:5]} == {"command.a", "command.b"}
    assert all(math.isnan(s.value) for s in read[2:5])


@pytest.mark.parametrize("bad", ['{"power_w": -10}', '{"power_w": NaN}', "garbage"])
def test_readings_that_vanish_are_told(program, bad) -> None:
    body = f"""
        for i in range(10_000):
            print('{bad}' if i % 5 == 4 else json.dumps({{"power_w": 12 + i % 3}}))
            time.sleep(0.01)
    """
    chosen = meters.choose("command:" + program(body), scope=None, basis="measured")
    with Power(chosen, 5.0) as power, power.window() as window:
        time.sleep(0.5)
    [rail] = window.reading.rails
    assert "readings in the window were dropped, over 10%" in rail.flags[0]
    assert "negative" in rail.flags[1] or "no number" in rail.flags[1]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"power_w": NaN}', "power_w is NaN, which is no number"),
        ('{"power_w": -20}', "power_w is negative"),
        ('{"power_w": "10"}', 'power_w is "10", which is no number'),
        ('{"power_w": true}', "power_w is true, which is no number"),
        ('{"watts": 10}', "it has neither power_w nor energy_j"),
        ('{"power_w": 1, "energy_j": 1}', "it has both power_w and energy_j"),
        ("[10]", "it is no JSON object"),
        ("10 W", "it is no JSON"),
    ],
)
def test_why_a_line_is_no_sample(program, monkeypatch, line, why) -> None:
    monkeypatch.setattr(command, "LEARN_S", 0.5)
    with pytest.raises(MeterError) as caught:
        command.find(program(f"print({line!r}); time.sleep(60)"))
    assert f"(it said '{line}': {why})" in str(caught.value)


def test_bytes_that_are_no_text_are_written_out(program, monkeypatch) -> None:
    monkeypatch.setattr(command, "LEARN_S", 0.5)
    with pytest.raises(MeterError) as caught:
        command.find(program(r"os.write(1, b'\x1b[31m\xff\n'); time.sleep(60)"))
    assert r"it said '\x1b[31m\xff'" in str(caught.value)
    with pytest.raises(MeterError) as caught:
        command.find(program(r"os.write(2, b'\x1b[31m\xff\n'); sys.exit(3)"))
    assert str(caught.value).endswith(r"exit code 3: \x1b[31m\xff")


def test_a_time_of_this_machine_s_clock_is_kept(program) -> None:
    body = """
        while True:
            print(json.dumps({"mono": time.monotonic() - 1.0, "power_w": 5}))
            time.sleep(0.01)
    """
    [meter] = command.find(program(body))
    reader = meter.open(5.0)
    [sample] = reader.read()
    reader.close()
    assert time.monotonic() - sample.mono > 0.99


@pytest.mark.parametrize("clock", ["time.time()", "time.monotonic() + 3600", "None", "'now'"])
def test_a_time_of_another_clock_is_refused(program, clock) -> None:
    with pytest.raises(MeterError, match="another clock"):
        command.find(program(f"print(json.dumps({{'mono': {clock}, 'power_w': 5}})); time.sleep(9)"))


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ({"power_w": 1, "scope": "chp"}, "scope 'chp'; did you mean 'chip'"),
        ({"power_w": 1, "scope": "chip"}, "without the parts it covers"),
        ({"power_w": 1, "kind": "counter"}, "kind 'counter'"),
        ({"energy_j": 1, "kind": "instant"}, "kind 'instant'"),
        ({"power_w": 1, "kind": "moving_average"}, "averaging_s"),
        ({"power_w": 1, "basis": "guessed"}, "basis 'guessed'"),
        ({"power_w": 1, "limit_w": 0}, "limit_w must be a number over 0"),
        ({"power_w": 1, "refresh_s": "0,1"}, "refresh_s must be a number over 0"),
    ],
)
def test_what_is_said_of_a_rail_is_checked(program, line, cause) -> None:
    with pytest.raises(MeterError, match=cause):
        command.find(program(f"print({json.dumps(line)!r}); time.sleep(9)"))


def test_a_program_that_ends_is_reported_with_its_code_and_last_word(program) -> None:
    with pytest.raises(
        MeterError, match=r"meter command: python.* ended with exit code 101: thread panicked"
    ) as caught:
        command.find(
            program("print('starting', file=sys.stderr); print('thread panicked', file=sys.stderr); sys.exit(101)")
        )
    assert "\n" not in str(caught.value)


def test_a_program_that_dies_midway_spoils_the_window_and_not_the_next(program) -> None:
    body = """
        for i in range(30):
            print('{"power_w": 20}')
            time.sleep(0.01)
        print('out of battery', file=sys.stderr)
        sys.exit(137)
    """
    chosen = meters.choose("command:" + program(body), scope=None, basis="measured")
    with Power(chosen, 5.0) as power:
        start = time.monotonic()
        deadline = start + 10.0
        while not power.failure and time.monotonic() < deadline:
            time.sleep(0.01)
        reading = power.measure(start, start + 5.0)
        assert reading.energy_j is None
        assert "exit code 137: out of battery" in reading.reason
        power.restart()
        assert power.failure == ""


def test_a_program_ended_by_a_signal_is_named_so(program) -> None:
    with pytest.raises(MeterError, match="signal 9"):
        command.find(program("import signal; os.kill(os.getpid(), signal.SIGKILL)"))


def test_it_runs_without_input_in_the_c_locale_and_in_its_own_group(program, monkeypatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    body = """
        print(json.dumps({"power_w": 1, "rail": f"{os.environ['LC_ALL']}|{sys.stdin.read()!r}|{os.getpgid(0) == os.getpid()}"}))
        time.sleep(9)
    """
    monkeypatch.setattr(command, "LEARN_S", 0.5)
    [meter] = command.find(program(body))
    assert meter.rails[0].name == "command.C|''|True"


def test_everything_it_started_ends_with_it(program, tmp_path) -> None:
    pids = tmp_path / "pids"
    body = f"""
        import signal, subprocess
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
        below = subprocess.Popen([sys.executable, "-S", "-c", deaf])
        time.sleep(0.2)
        open({str(pids)!r}, "w").write(f"{{os.getpid()}} {{below.pid}}")
        while True:
            print('{{"power_w": 1}}')
            time.sleep(0.01)
    """
    [meter] = command.find(program(body))
    reader = meter.open(5.0)
    reader.read()
    mine = [int(pid) for pid in pids.read_text().split()]
    reader.close()
    reader.close()
    assert len(mine) == 2
    deadline = time.monotonic() + 3.0
    while any(alive(pid) for pid in mine) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(alive(pid) for pid in mine)
    assert reader.read() == []


def test_a_silent_program_is_not_waited_for_for_ever(program, monkeypatch) -> None:
    monkeypatch.setattr(command, "LEARN_S", 0.3)
    with pytest.raises(MeterError, match=r"printed no sample within .* 'Password:'"):
        command.find(program("print('Password:'); time.sleep(60)"))


@pytest.mark.parametrize(
    ("argument", "cause"),
    [
        (None, "only when asked for"),
        ("", "no program"),
        ("'unclosed", "cannot be split"),
        ("/no/such/program", "cannot be run"),
    ],
)
def test_what_cannot_be_run(argument, cause) -> None:
    with pytest.raises(MeterError, match=cause):
        command.find(argument)


def test_another_scope_than_the_program_states_is_unmeasured(program) -> None:
    with pytest.raises(Unmeasured, match="reads scope wall"):
        meters.choose("command:" + program(STEADY), scope="chip", basis="measured")
