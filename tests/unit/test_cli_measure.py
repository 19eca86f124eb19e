import json
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner, Result

from pytest_joules import meters
from pytest_joules.cli import app, main, measure
from pytest_joules.errors import MeterError, UsageError
from pytest_joules.meters import Chosen
from pytest_joules.records import Rail, Sample

KEYS = {"energy_j", "power_w", "outcome", "reasons", "samples", "refresh_s"}


def rail(name: str = "steady.box.power", **changes: object) -> Rail:
    usual = {
        "scope": "chip",
        "covers": ("cpu", "dram"),
        "kind": "instant",
        "basis": "measured",
        "unit": "W",
        "source": "made up",
    }
    return Rail(name=name, **(usual | changes))


class Steady:
    """A meter that gives the same watts, or a counter that rises by as many, a hundred times a second."""

    name = "steady"
    notes = ("made up",)
    interval_s = 0.01

    def __init__(self, *rails: Rail, watts: float = 20.0, check_watts: float = 20.0, dies_after: int = 10**9) -> None:
        self.rails = rails or (rail(),)
        self.watts, self.check_watts, self.left = watts, check_watts, dies_after

    def open(self, rate_hz: float) -> "Steady":
        return self

    def read(self) -> list[Sample]:
        self.left -= 1
        if self.left < 0:
            raise MeterError("meter steady: unplugged")
        now = time.monotonic()
        return [
            Sample(r.name, now, 1e6 + self.watts * now if r.kind == "counter" else self._power(r)) for r in self.rails
        ]

    def close(self) -> None:
        pass

    def _power(self, r: Rail) -> float:
        # The last digit moves, as that of every working sensor does.
        return (self.check_watts if r.role == "check" else self.watts) + 0.001 * (time.monotonic_ns() // 10_000_000 % 7)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch):
    def install(meter: Steady) -> None:
        chosen = meters._by_scope(meter, None)[0]
        monkeypatch.setattr(
            measure, "choose", lambda *_, **__: Chosen(meter, chosen.scope, chosen.rails, "made for this")
        )

    return install


def joules(*words: str) -> Result:
    return CliRunner().invoke(app, ["measure", *words])


def test_energy_of_a_stretch_of_time(use) -> None:
    use(Steady())
    result = joules("--seconds", "0.3", "--json")
    assert result.exit_code == 0
    record = json.loads(result.stdout)
    assert set(record) >= KEYS | {"meter", "scope", "basis", "covers", "rails", "window_s"}
    assert record["power_w"] == pytest.approx(20.0, rel=0.01)
    assert record["energy_j"] == pytest.approx(20.0 * record["window_s"], rel=0.01)
    assert record["window_s"] == pytest.approx(0.3, abs=0.1)
    assert (record["outcome"], record["reasons"]) == ("measured", [])
    assert (record["meter"], record["scope"], record["basis"], record["covers"]) == (
        "steady",
        "chip",
        "measured",
        ["cpu", "dram"],
    )
    [one] = record["rails"]
    assert set(one) >= KEYS | {"rail", "scope", "basis", "kind"}
    assert one["energy_j"] == record["energy_j"]
    assert "command_exit_code" not in record


def test_rails_of_the_scope_are_summed_and_another_scope_stands_apart(use) -> None:
    meter = Steady(rail("steady.a", covers=("cpu",)), rail("steady.b", covers=("dram",)))
    use(meter)
    record = json.loads(joules("--seconds", "0.3", "--json").stdout)
    assert record["power_w"] == pytest.approx(40.0, rel=0.01)
    assert record["covers"] == ["cpu", "dram"]
    assert [one["rail"] for one in record["rails"]] == ["steady.a", "steady.b"]


def test_a_stated_calibration_widens_the_figure_and_flags_nothing(use) -> None:
    use(Steady(rail(calibration=0.10)))
    result = joules("--seconds", "0.5", "--json")
    record = json.loads(result.stdout)
    assert (record["outcome"], record["reasons"]) == ("measured", [])
    assert record["uncertainty_j"] == pytest.approx(0.10 * record["energy_j"], rel=0.1)
    assert " ± 1 J" in joules("--seconds", "0.5").stdout.splitlines()[0]


def test_figures_for_people(use) -> None:
    use(Steady())
    result = joules("--seconds", "0.3")
    first = result.stdout.splitlines()[0]
    assert " J (20" in first
    assert first.endswith(" s")
    assert "scope chip (cpu, dram), measured; made for this" in result.stdout
    assert result.stderr == ""


def test_a_stretch_too_short_for_the_sensor_is_void_and_has_no_figures(use) -> None:
    use(Steady())
    result = joules("--seconds", "0.02", "--json")
    record = json.loads(result.stdout)
    assert (result.exit_code, record["outcome"]) == (1, "void")
    assert (record["energy_j"], record["power_w"], record["uncertainty_j"]) == (None, None, None)
    assert record["reasons"]


def test_a_meter_that_dies_makes_it_void_with_its_last_words(use) -> None:
    use(Steady(dies_after=10))
    result = joules("--seconds", "0.3", "--json")
    record = json.loads(result.stdout)
    assert (result.exit_code, record["outcome"], record["energy_j"]) == (1, "void", None)
    assert any("unplugged" in reason for reason in record["reasons"])


@pytest.mark.parametrize(("check_watts", "outcome"), [(20.0, "measured"), (18.0, "flagged"), (10.0, "void")])
def test_a_counter_is_held_against_the_power_beside_it(use, check_watts, outcome) -> None:
    counter, check = rail("steady.box.energy", kind="counter", unit="J"), rail("steady.box.power", role="check")
    use(Steady(counter, check, check_watts=check_watts))
    record = json.loads(joules("--seconds", "0.3", "--json").stdout)
    assert record["outcome"] == outcome
    assert any("counter against power" in reason for reason in record["reasons"]) == (outcome != "measured")
    if outcome != "void":
        assert record["power_w"] == pytest.approx(20.0, rel=0.02)
    assert [one["role"] for one in record["rails"]] == ["counted", "check"]


@pytest.mark.parametrize("words", [[], ["--seconds", "1", "--", "true"]])
def test_either_a_time_or_a_command(words) -> None:
    result = joules(*words)
    assert isinstance(result.exception, UsageError)


def test_a_command_that_is_not_there(use) -> None:
    use(Steady())
    result = joules("--", "no-such-command-anywhere")
    assert isinstance(result.exception, UsageError)
    assert "no-such-command-anywhere cannot be run" in str(result.exception)


def test_what_was_mended_in_the_samples_flags(use, monkeypatch) -> None:
    meter = Steady()
    power = meter._power
    monkeypatch.setattr(
        meter, "_power", lambda r: float("nan") if time.monotonic_ns() // 10_000_000 % 10 == 3 else power(r)
    )
    use(meter)
    record = json.loads(joules("--seconds", "0.3", "--json").stdout)
    assert record["outcome"] == "flagged"
    assert "no number" in record["reasons"][0]
    assert record["power_w"] == pytest.approx(20.0, rel=0.02)


def test_each_gpu_is_compared_with_its_own_power(use) -> None:
    rails = [rail(f"steady.{gpu}.{what}", kind=kind, role=role, covers=("gpu",))
             for gpu in ("gpu0", "gpu1") for what, kind, role in (("energy", "counter", "counted"), ("power", "instant", "check"))]  # fmt: skip
    use(Steady(*rails, check_watts=10.0))
    record = json.loads(joules("--seconds", "0.3", "--json").stdout)
    assert record["outcome"] == "void"
    assert len([reason for reason in record["reasons"] if "counter against power" in reason]) == 2


def test_a_command_keeps_its_output_and_its_exit_code(use, capfd) -> None:
    use(Steady())
    result = joules("--", "sh", "-c", "echo mine; sleep 0.3; exit 7")
    assert (result.exit_code, result.stdout) == (7, "")
    assert capfd.readouterr().out == "mine\n"
    assert "by steady, scope chip (cpu, dram), measured" in result.stderr


@pytest.mark.parametrize(("command", "code"), [("no-such-command-anywhere", 127), ("/etc/hostname", 126)])
def test_a_command_that_cannot_be_run_is_one_line_and_the_shells_exit_code(
    use, monkeypatch, capsys, command, code
) -> None:
    use(Steady())
    monkeypatch.setattr(sys, "argv", ["joules", "measure", "--", command])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert (ended.value.code, out, len(err.splitlines())) == (code, "", 1)
    assert err.startswith(f"joules: {command} cannot be run")


# From here on the command itself is run, as a person would, with the estimate that every machine has.


def start(*words: str) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "pytest_joules", "measure", "--meter", "estimate", *words]
    # In a session of its own no terminal interrupts it; a shell's background jobs ignore interrupts, and it must not.
    return subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def test_with_json_stdout_holds_one_object_and_nothing_else() -> None:
    process = start("--json", "--", "sh", "-c", "echo mine; sleep 0.7; kill -9 $$")
    out, err = process.communicate(timeout=30)
    record = json.loads(out)
    assert (process.returncode, record["command_exit_code"]) == (137, 137)
    assert "mine" in err
    assert record["energy_j"] > 0


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 5), (signal.SIGHUP, 129)])
def test_the_command_is_told_what_asks_for_an_end_and_decides_about_it(sent, code) -> None:
    process = start("--", "sh", "-c", "trap 'exit 5' INT; echo ready; while :; do sleep 0.05; done")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.7)
    process.send_signal(sent)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert "by estimate, scope chip" in err


def test_a_command_that_does_not_heed_is_killed_when_it_is_asked_again() -> None:
    process = start("--", "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    time.sleep(measure.SAME_S + 0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 137


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stretch_that_is_interrupted_gives_the_figures_until_then(sent, code) -> None:
    process = start("--seconds", "60", "--json")
    time.sleep(3.0)
    process.send_signal(sent)
    out, err = process.communicate(timeout=30)
    record = json.loads(out)
    assert (process.returncode, err) == (code, "")
    assert 0.1 < record["window_s"] < 20.0


@pytest.mark.parametrize("words", [("--seconds", "inf"), ("--seconds", "1e9999"), ("--seconds", "1e10")])
def test_a_time_that_is_none_is_refused_in_one_line(words) -> None:
    result = joules("--meter", "estimate", *words)
    assert isinstance(result.exception, UsageError)
    assert str(result.exception).startswith(words[-2])


def test_there_is_no_such_meter_here_and_nothing_is_started(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setattr(
        sys, "argv", ["joules", "measure", "--meter", "file:/no/such/log", "--", "touch", str(tmp_path / "x")]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert (ended.value.code, out, len(err.splitlines())) == (2, "", 1)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("wanted", ["", "estimate,", "estimate,estimate"])
def test_a_source_named_twice_or_not_at_all_is_refused(wanted) -> None:
    result = joules("--meter", wanted, "--seconds", "0.1")
    assert isinstance(result.exception, UsageError)
    assert ("read twice" if wanted == "estimate,estimate" else "without a name") in str(result.exception)


def test_a_rail_that_is_not_counted_is_marked(use) -> None:
    use(Steady(rail("steady.a"), rail("steady.wall", scope="wall", covers=("wall",))))
    printed = joules("--seconds", "0.3").stdout
    assert [", not counted" in line for line in printed.splitlines() if line.startswith("  steady.")] == [False, True]
    record = json.loads(joules("--seconds", "0.3", "--json").stdout)
    assert [one["counted"] for one in record["rails"]] == [True, False]


def test_remedies_are_those_of_a_measurement(use) -> None:
    use(Steady())
    reasons = " ".join(json.loads(joules("--seconds", "0.02", "--json").stdout)["reasons"])
    assert "measure for longer" in reasons
    assert "answers" not in reasons
    assert "rounds" not in reasons
