"""What one session does with a suite: it measures it once, tells what went wrong once, and keeps what it had."""

import json
import os
import re

import pytest
from _pytest.pytester import RunResult

from pytest_joules import protocol

ONE = """
    def test_a(sweep):
        assert sweep.tokens_per_s[2] > 1.5 * sweep.tokens_per_s[1]
"""

THREE = """
    def test_a(sweep):
        assert sweep.tokens_per_s[2] > 1.5 * sweep.tokens_per_s[1]

    def test_b(sweep):
        assert sweep.tokens_per_s[2] > 1.6 * sweep.tokens_per_s[1]

    def test_c(sweep):
        assert sweep.tokens_per_s[2] > 1.7 * sweep.tokens_per_s[1]
"""

NEVER_STARTS = """
    def starting(setting):
        raise EngineError("the server is out of order")
"""


def reasons(done: RunResult) -> list[str]:
    """What stands in the error sections, without the lines of progress."""
    return [line for line in done.outlines if re.match(r"joules: (?!measuring|scripted \d/)", line)]


def test_a_suite_is_measured_once_for_all_its_predictions(project) -> None:
    project.predictions(THREE)
    project.run().assert_outcomes(passed=3)
    assert project.starts == 4


def test_what_stopped_the_run_is_told_once(project) -> None:
    project.script(NEVER_STARTS)
    project.predictions(THREE)
    done = project.run()
    done.assert_outcomes(errors=3)
    assert reasons(done) == [
        "joules: nothing could be measured: the server is out of order",
        "joules: suite scripted was not measured: as above",
        "joules: suite scripted was not measured: as above",
    ]
    assert project.starts == 2
    assert [path.name for path in project.results.rglob("*.json*")] == ["ledger.jsonl"]


def test_tries_again_measure_nothing_again_and_still_show_the_reason(project) -> None:
    project.script(NEVER_STARTS)
    project.predictions(THREE)
    done = project.run_apart("--reruns", "2", plugins=("rerunfailures",))
    done.assert_outcomes(errors=3)
    assert done.parseoutcomes()["rerun"] == 6
    assert project.starts == 2
    assert reasons(done) == [
        "joules: nothing could be measured: the server is out of order",
        "joules: suite scripted was not measured: as above",
        "joules: suite scripted was not measured: as above",
    ]


def test_a_refuted_prediction_that_is_tried_again_stays_refuted(project) -> None:
    project.predictions(
        """
        def test_one_alone(sweep):
            assert sweep.tokens_per_s[1] > sweep.tokens_per_s[2]
        """
    )
    done = project.run_apart("--reruns", "2", "--junitxml=report.xml", plugins=("rerunfailures",))
    done.assert_outcomes(failed=1)
    assert project.starts == 4
    assert [v.word for v in project.verdicts().values()] == ["refuted"]
    # One for each try.
    assert (project.folder / "report.xml").read_text().count('name="joules_verdict" value="refuted"') == 3


@pytest.mark.parametrize(
    ("arguments", "plugin", "times"),
    [
        (("--count", "3"), "pytest_repeat", 3),
        (("--count", "3", "--repeat-scope", "session"), "pytest_repeat", 3),
        ((), "pytest_randomly", 1),
    ],
    ids=["repeat", "repeat over the session", "randomly"],
)
def test_plugins_that_repeat_or_shuffle_change_neither_the_run_nor_a_verdict(
    project, arguments, plugin: str, times: int
) -> None:
    project.predictions(
        """
        def test_two_at_once(sweep):
            assert sweep.tokens_per_s[2] > sweep.tokens_per_s[1]

        def test_one_alone(sweep):
            assert sweep.tokens_per_s[1] > sweep.tokens_per_s[2]
        """
    )
    done = project.run_apart(*arguments, plugins=(plugin,))
    done.assert_outcomes(passed=times, failed=times)
    assert project.starts == 4
    assert [(w.condition["parallel"], w.pass_index) for w in project.stored_run().windows] == [
        (1, 0), (2, 0), (2, 1), (1, 1),
    ]  # fmt: skip
    assert {(name.split("[")[0], v.word) for name, v in project.verdicts().items()} == {
        ("test_two_at_once", "held"), ("test_one_alone", "refuted"),
    }  # fmt: skip


def test_a_fault_in_judging_does_not_measure_again(project, monkeypatch) -> None:
    project.predictions(THREE)

    def fails(*arguments: object) -> None:
        raise ArithmeticError("no verdict today")

    monkeypatch.setattr("pytest_joules.verdict.robustness", fails)
    done = project.run()
    done.assert_outcomes(errors=3)
    done.stdout.fnmatch_lines(["*ArithmeticError: no verdict today"])
    assert project.starts == 4
    assert project.stored_run().complete


def test_an_interrupted_run_keeps_the_windows_that_closed(project) -> None:
    project.script(
        """
        def answering(server):
            if len(rounds) == 3:
                raise KeyboardInterrupt
        """
    )
    project.predictions(THREE)
    done = project.run_apart()
    assert done.ret == pytest.ExitCode.INTERRUPTED
    [journal] = project.journals()
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [event["event"] for event in events] == ["start", "window", "window", "cut short"]
    assert [event["window"]["tokens"] for event in events[1:3]] == [8, 16]
    assert all(event["samples"] for event in events[1:3])
    assert "KeyboardInterrupt" in events[3]["reason"]
    assert list(project.results.rglob("*.json")) == []


def test_two_runs_never_share_the_machine(project) -> None:
    project.predictions(ONE)
    holder = f"suite other, process {os.getpid()}"
    with protocol.machine_lock(holder):
        done = project.run()
    done.assert_outcomes(errors=1)
    assert reasons(done) == [
        f"joules: this machine is being measured already ({holder}); wait for it to end, then run again"
    ]
    project.assert_untouched()
    project.run().assert_outcomes(passed=1)


def test_a_meter_that_does_not_exist(project) -> None:
    project.predictions(THREE)
    done = project.run("--joules-meter", "estimat")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(
        ["ERROR: --joules-meter: *there is no source 'estimat'; did you mean 'estimate'?; known: *"]
    )
    project.assert_untouched()


def test_a_model_that_is_not_here_is_no_error(project) -> None:
    project.suite(model="tinny")
    project.predictions(THREE)
    done = project.run("-rs")
    done.assert_outcomes(skipped=3)
    done.stdout.fnmatch_lines(
        [
            "UNMEASURED ?3? *unmeasured: model tinny in format q4_0 is not on this machine (*did you mean 'tiny' in format q4_0*"
        ]
    )
    project.assert_untouched()


def test_several_workers_would_measure_each_other(project) -> None:
    project.predictions(THREE)
    done = project.run_apart("-n", "2", "-rs", plugins=("xdist",))
    assert done.ret == pytest.ExitCode.OK
    done.assert_outcomes(skipped=3)
    [reason] = [line for line in done.outlines if "unmeasured: " in line]
    assert reason.startswith("UNMEASURED [3] ")
    assert reason.endswith(
        "2 pytest workers share this machine and would measure each other; run without -n, or with -n 0"
    )
    project.assert_untouched()


@pytest.mark.parametrize("workers", ["0", "1"])
def test_one_worker_is_as_good_as_none(project, workers: str) -> None:
    project.predictions(ONE)
    done = project.run_apart("-n", workers, "-v", plugins=("xdist",))
    done.assert_outcomes(passed=1)
    lines = done.outlines
    assert [line for line in lines if re.search(r"(^|] |^test_predictions.*)HELD \(\w+, unavailable\)", line)]
    assert [line for line in lines if re.fullmatch(r"HELD \(\w+\) \[unavailable]: a", line)]
    assert f"result: {project.stored().path.relative_to(project.folder)}" in lines
