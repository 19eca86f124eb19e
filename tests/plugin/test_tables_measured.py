"""Tables of several shapes, measured and read back; and the hardware for tests that are no predictions."""

import os
import time

import gguf
import numpy as np
import pytest

from pytest_joules import protocol

OTHER_POWER = """
    from collections.abc import Sequence

    from pytest_joules.meters import Chosen
    from pytest_joules.meters.sampler import Power
    from pytest_joules.records import Rail, Sample


    class TenWatts:
        name = "ten-watts"
        rails = (
            Rail(name="ten", scope="wall", covers=("everything",), kind="instant", basis="measured", unit="W", source="the script"),
        )
        notes = ()

        def open(self, rate_hz):
            return Reader(1 / rate_hz)


    class Reader:
        def __init__(self, interval_s):
            self.interval_s, self.last_digit = interval_s, 0

        def read(self):
            self.last_digit = 1 - self.last_digit
            return [Sample("ten", time.monotonic(), 10.0 + 1e-4 * self.last_digit)]

        def close(self):
            pass


    class Source:
        named = True

        def meter(self, *, scope, basis, rate_hz, without=()):
            meter = TenWatts()
            return Power(Chosen(meter, "wall", meter.rails, "there is no other"), rate_hz)


    @pytest.fixture(scope="session")
    def power():
        return Source()
"""


def test_one_prediction_for_each_value(project) -> None:
    project.predictions(
        """
        @pytest.mark.parametrize("factor", [1.5, 3.0])
        def test_two_at_once(sweep, factor):
            \"\"\"Two at once are so much faster.\"\"\"
            assert sweep.tokens_per_s[2] > factor * sweep.tokens_per_s[1]
        """
    )
    done = project.run("-v")
    done.assert_outcomes(passed=1, failed=1)
    assert {name: v.word for name, v in project.verdicts().items()} == {
        "test_two_at_once[1.5]": "held",
        "test_two_at_once[3.0]": "refuted",
    }
    done.stdout.fnmatch_lines(["HELD (*) * Two at once are so much faster. ?1.5?"])
    assert project.starts == 4


def test_a_grid_of_two_axes(project) -> None:
    project.suite(vary={"parallel": [1, 2], "answer_tokens": [8, 16]}, request={}, protocol={"passes": 1})
    text = (
        (project.folder / "suites" / "scripted.yaml").read_text().replace("  answer_tokens: 8\n", "  temperature: 0\n")
    )
    (project.folder / "suites" / "scripted.yaml").write_text(text)
    project.predictions(
        """
        def test_rows(sweep):
            assert sweep.at(parallel=2, answer_tokens=16).tokens_per_s > 3 * sweep.at(parallel=1, answer_tokens=8).tokens_per_s

        def test_what_is_left(sweep):
            long = sweep.where(answer_tokens=16)
            assert long.axes == ("parallel",) and long.tokens_per_s[2] > 1.5 * long.tokens_per_s[1]

        @pytest.mark.parametrize("batch", [1, 2])
        def test_longer_is_faster(sweep, batch):
            speed = sweep.where(parallel=batch).tokens_per_s
            assert speed[16] > 1.5 * speed[8]
        """
    )
    done = project.run()
    done.assert_outcomes(passed=4)
    run = project.stored_run()
    assert run.axes == ("parallel", "answer_tokens")
    assert [w.tokens for w in run.windows] == [8, 16, 16, 32]
    assert [w.condition for w in run.windows] == [
        {"parallel": batch, "answer_tokens": length} for batch in (1, 2) for length in (8, 16)
    ]


def test_the_default_order_repeats_the_first_condition_as_a_control(project) -> None:
    project.suite(protocol={"order": "balanced"})
    project.predictions(
        """
        def test_two_at_once(sweep):
            assert sweep.tokens_per_s[2] > 1.5 * sweep.tokens_per_s[1]
        """
    )
    project.run().assert_outcomes(passed=1)
    windows = project.stored_run().windows
    first, second = windows[:3], windows[3:]
    assert [w.role for w in first] == [w.role for w in second] == ["measured", "measured", "control"]
    assert first[2].condition == second[2].condition == {"parallel": 1}
    assert [w.condition for w in second[:2]] == [w.condition for w in first[1::-1]]
    assert [w.pass_index for w in windows] == [0, 0, 0, 1, 1, 1]


def test_against_reads_the_latest_run_of_the_other_suite(project) -> None:
    project.suite("other", vary={"parallel": [1]}, protocol={"passes": 1})
    project.predictions(
        """
        def test_some_speed(sweep):
            assert sweep.tokens_per_s[1] > 1
        """,
        '"other"',
        "test_other.py",
    )
    project.predictions(
        """
        def test_three_times_faster(sweep, against):
            assert sweep.tokens_per_s[2] > 3 * against.tokens_per_s[1]
        """,
        '"scripted", against="other"',
    )
    assert project.run("test_other.py").ret == pytest.ExitCode.OK
    first = project.stored_run("other")
    project.script("    ROUND_S = 0.3\n")
    # The names of runs tell their order by the second.
    time.sleep(1)
    assert project.run("test_other.py").ret == pytest.ExitCode.OK
    second = max((stored.run for stored in project.all_stored("other")), key=lambda run: run.started_utc)
    assert second.run_id != first.run_id
    project.script()
    project.run("test_predictions.py").assert_outcomes(passed=1)
    assert project.verdicts()["test_three_times_faster"].against_run_id == second.run_id
    # The other suite was read, not measured once more.
    assert len(project.all_stored("other")) == 2


def test_a_power_source_of_the_project_takes_the_place_of_ours(project) -> None:
    project.suite(require={"basis": "measured", "scope": "wall"})
    project.script(OTHER_POWER)
    project.predictions(
        """
        def test_ten_watts(sweep):
            assert max(sweep.power_w.values()) < 10.01
        """
    )
    done = project.run()
    done.assert_outcomes(passed=1)
    assert [w.energy_j / w.window_s for w in project.stored_run().windows] == [pytest.approx(10, rel=1e-3)] * 4
    assert "Measured energy of the wall (everything) by ten-watts at 20 Hz" in " ".join(done.stdout.str().split())


def test_a_model_of_another_number_format_than_its_name_says_is_a_deviation(project) -> None:
    (project.folder / "models").mkdir()
    writer = gguf.GGUFWriter(project.folder / "models" / "labelled-q8_0.gguf", "llama")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    writer.add_tensor("token_embd.weight", np.zeros((4, 8), dtype=np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    project.suite(model="labelled", format="q8_0")
    project.predictions("def test_it(sweep):\n    assert sweep.tokens_per_s[2] > sweep.tokens_per_s[1]\n")
    project.run().assert_outcomes(passed=1)
    [deviation] = [said for said in project.stored_run().deviations if "labelled" in said]
    assert deviation == "model labelled: labelled-q8_0.gguf says that it is q4_1, not q8_0"


def test_energy_of_any_code(project) -> None:
    (project.folder / "test_budget.py").write_text(
        "import time\n\n"
        "def test_budget(power):\n"
        "    with power.window() as window:\n"
        "        time.sleep(0.6)\n"
        "    assert 0.6 <= window.window_s < 5\n"
        "    assert abs(window.energy_j / (window.power_w * window.window_s) - 1) < 1e-9\n"
        "    assert 0 < window.energy_j < 0.001, window\n"
    )
    done = project.run()
    done.assert_outcomes(failed=1)
    done.stdout.re_match_lines(
        [
            r"E +AssertionError: <power window: [\d.]+ J in [\d.]+ s, estimate, chip, estimated(, flagged)?>",
            r"joules: power by estimate \(estimated\), 1 window(, 1 flagged \(.*\))?",
        ]
    )
    assert not project.results.exists()


BUDGET = """
import time

def test_budget(power):
    with power.window() as window:
        time.sleep({seconds})
    assert window.energy_j < 200
"""


def test_windows_that_are_too_short_are_told_at_the_end(project) -> None:
    (project.folder / "test_budget.py").write_text(BUDGET.format(seconds=0.35))
    done = project.run()
    done.assert_outcomes(passed=1)
    done.stdout.re_match_lines([r"joules: power by estimate \(estimated\), 1 window, 1 flagged \(.*sensor updates.*\)"])


def test_workers_tell_it_as_well(project) -> None:
    (project.folder / "test_budget.py").write_text(BUDGET.format(seconds=0.6))
    done = project.run_apart("-n1", plugins=("xdist.plugin",))
    done.assert_outcomes(passed=1)
    assert sum("joules: power by estimate (estimated), 1 window" in line for line in done.outlines) == 1


def test_several_workers_measure_no_window(project) -> None:
    (project.folder / "test_budget.py").write_text(
        "\n".join(BUDGET.format(seconds=0.6).replace("budget", name) for name in ("one", "two"))
    )
    done = project.run_apart("-n2", "-rs", plugins=("xdist.plugin",))
    done.assert_outcomes(skipped=2)
    done.stdout.fnmatch_lines(["UNMEASURED*2 pytest workers share this machine and would measure each other; run*"])
    done.stdout.no_fnmatch_line("*power by*")


def test_a_window_waits_for_no_other_measurement_and_measures_beside_none(project) -> None:
    (project.folder / "test_budget.py").write_text(BUDGET.format(seconds=0.6))
    with protocol.machine_lock(f"suite other, process {os.getpid()}"):
        done = project.run()
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(
        [f"joules: this machine is being measured already (suite other, process {os.getpid()}); wait for it to end*"]
    )
    # While a window is open no other process may measure; nested ones are of the same measurement.
    (project.folder / "test_budget.py").write_text(
        "import pytest\nimport time\nfrom pytest_joules import protocol\nfrom pytest_joules.errors import Busy\n\n"
        "def test_budget(power):\n"
        "    with power.window():\n"
        "        with power.window() as window:\n"
        "            time.sleep(0.6)\n"
        "        with pytest.raises(Busy, match='a power window, process'), protocol.machine_lock('another'):\n"
        "            pass\n"
        "    with protocol.machine_lock('another'):\n"
        "        assert window.energy_j < 200\n"
    )
    project.run().assert_outcomes(passed=1)


def test_a_window_may_be_open_inside_and_around_the_measurement_of_a_suite(project) -> None:
    project.script(
        """
        opener = []

        @pytest.fixture(autouse=True, scope="session")
        def around(power):
            opener.append(power)
            with power.window():
                yield

        def answering(server):
            with opener[0].window():
                pass
        """
    )
    project.predictions("def test_it(sweep):\n    assert sweep.tokens_per_s[2] > sweep.tokens_per_s[1]\n")
    done = project.run()
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["joules: power by estimate (estimated), 5 windows*"])


def test_a_session_without_power_says_nothing_of_it(project) -> None:
    (project.folder / "test_it.py").write_text("def test_it(power):\n    pass\n")
    done = project.run()
    done.assert_outcomes(passed=1)
    done.stdout.no_fnmatch_line("*power by*")


IN_A_FIXTURE = """
import pytest

@pytest.fixture
def spent(power):
    with power.window() as window:
        pass
    return window

def test_budget(spent):
    assert spent.energy_j < 200
"""


@pytest.mark.parametrize("body", [BUDGET.format(seconds=0), IN_A_FIXTURE], ids=["in the test", "in a fixture"])
def test_a_meter_that_is_not_here_leaves_a_budget_unmeasured(project, monkeypatch, body) -> None:
    monkeypatch.setenv("JOULES_SYSFS_ROOT", str(project.folder))
    (project.folder / "test_budget.py").write_text(body)
    done = project.run("--joules-meter=rapl", "-rs")
    done.assert_outcomes(skipped=1)
    done.stdout.fnmatch_lines(["UNMEASURED*unmeasured: meter rapl: no RAPL zone*"])


def test_a_meter_that_is_not_here_leaves_a_prediction_unmeasured(project, monkeypatch) -> None:
    monkeypatch.setenv("JOULES_SYSFS_ROOT", str(project.folder))
    project.predictions("def test_it(sweep):\n    assert sweep.power_w[1] < 5\n")
    done = project.run("--joules-meter=rapl", "--joules-exploratory", "-rs")
    done.assert_outcomes(skipped=1)
    done.stdout.fnmatch_lines(["UNMEASURED*unmeasured: meter rapl: no RAPL zone*"])


def test_a_meter_that_is_here_and_cannot_be_read_is_an_error_in_one_line(project) -> None:
    (project.folder / "test_budget.py").write_text(BUDGET.format(seconds=0))
    done = project.run("--joules-meter=file:/no/such/log")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["joules: meter file: log cannot be read (No such file or directory)"])
    done.stdout.no_fnmatch_line("*session.py*")


def test_a_source_that_there_is_not_ends_the_session_at_its_start(project) -> None:
    (project.folder / "test_budget.py").write_text(BUDGET.format(seconds=0))
    done = project.run("--joules-meter=estimat")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["ERROR: --joules-meter: meter 'estimat': there is no source 'estimat'; did you mean*"])
    (project.folder / "test_budget.py").write_text("def test_it():\n    pass\n")
    project.run("--joules-meter=estimat").assert_outcomes(passed=1)


def test_a_window_without_energy_is_an_error_of_the_test_s_own_line(project) -> None:
    (project.folder / "test_budget.py").write_text(BUDGET.format(seconds=0))
    done = project.run()
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["E *Void: no energy for this window: *measure a longer block*"])
    done.stdout.no_fnmatch_line("*sampler.py*")


def test_a_window_is_closed_to_reading_while_it_is_open(project) -> None:
    (project.folder / "test_budget.py").write_text(
        "def test_budget(power):\n    with power.window() as window:\n        assert window.energy_j < 5\n"
    )
    done = project.run()
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["E *Void: the power window is still open; read it after the with block"])


def test_a_table_without_a_suite_says_what_is_missing(project) -> None:
    (project.folder / "test_it.py").write_text("def test_it(sweep):\n    assert sweep.power_w[1] < 5\n")
    done = project.run()
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(
        ["joules: test_it.py::test_it: it takes a table but names no suite; mark it with pytest.mark.joules('SUITE')"]
    )
    project.assert_untouched()


def test_folders_that_are_typed_are_meant_from_where_one_stands(project, monkeypatch) -> None:
    project.suite(vary={"parallel": [1]}, protocol={"passes": 1})
    project.predictions(
        """
        def test_some_speed(sweep):
            assert sweep.tokens_per_s[1] > 1
        """
    )
    inside = project.folder / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    project.run("..", "--joules-results=kept").assert_outcomes(passed=1)
    assert len(list((inside / "kept" / "bench" / "scripted").glob("*.json"))) == 1
    assert not project.results.exists()
    with (project.folder / "pytest.ini").open("a") as ini:
        ini.write("joules_results = ~/at_home\n")
    monkeypatch.setenv("HOME", str(project.folder))
    project.run("..").assert_outcomes(passed=1)
    assert len(list((project.folder / "at_home" / "bench" / "scripted").glob("*.json"))) == 1


@pytest.mark.parametrize(("values", "starts"), [(["warm", "cold"], 2), (["cold", "warm"], 3)])
def test_a_server_on_which_the_meter_was_tried_out_is_not_cold(project, values: list[str], starts: int) -> None:
    # The meter has to see the load step, and the estimate sees nothing but the CPU.
    project.script(
        """
        def answering(server):
            until = time.monotonic() + ROUND_S
            while time.monotonic() < until:
                pass
        """
    )
    protocol = {"passes": 1, "idle_s": 0.4, "rest_s": 0.2, "warmup_tokens": 2}
    project.suite(vary={"warm": values}, server={"parallel": 1}, protocol=protocol)
    project.predictions(
        """
        def test_any(sweep):
            assert sweep.tokens_per_s["cold"] > 1
        """
    )
    project.run().assert_outcomes(passed=1)
    assert project.starts == starts


def test_a_substitute_is_named_wherever_the_model_is(project) -> None:
    project.suite(model="big-model")
    project.predictions("def test_fast(sweep): assert sweep.tokens_per_s[2] > sweep.tokens_per_s[1]")
    done = project.run("--joules-model", f"big-model={os.environ['JOULES_MODELS']}/tiny-q4_0.gguf")
    assert any("tiny-q4_0.gguf in place of big-model q4_0" in line for line in done.outlines)
    assert any("deviation: model big-model: tiny-q4_0.gguf was used instead" in line for line in done.outlines)
    assert project.stored_run().models[0]["substitute"] is True


def test_a_substitute_that_no_suite_asks_for_is_told(project) -> None:
    project.predictions("def test_fast(sweep): assert sweep.tokens_per_s[2] > sweep.tokens_per_s[1]")
    done = project.run("--joules-model", "tinny=elsewhere.gguf", "-W", "error")
    done.stderr.fnmatch_lines(
        ["ERROR: --joules-model tinny: no suite here asks for this model; did you mean 'tiny'[?]"]
    )
