"""What git shows of a prediction before it is measured, and what follows from it."""

import re
import shlex

import pytest

PREDICTION = """
    def test_two_at_once(sweep):
        \"\"\"Two at once are faster than one.\"\"\"
        assert sweep.tokens_per_s[2] > {factor} * sweep.tokens_per_s[1]
"""


@pytest.fixture
def committed(project):
    """A repository with suite and prediction committed."""
    project.predictions(PREDICTION.format(factor=1.5))
    project.commit()
    return project


def assert_refused(project, files: str) -> None:
    done = project.run()
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.assert_outcomes(errors=1)
    [line] = [line for line in done.outlines if "not committed" in line and not line.startswith("ERROR")]
    assert line == (
        f"joules: said after the fact? {files} not committed as now written: git add {re.sub(' (is|are)$', '', files)} "
        "&& git commit -m 'predict', or measure without registration: --joules-exploratory"
    )
    project.assert_untouched()


def test_a_committed_prediction_is_registered(committed) -> None:
    done = committed.run("-v")
    done.assert_outcomes(passed=1)
    verdict = committed.verdicts()["test_two_at_once"]
    assert verdict.registration == "registered"
    assert set(verdict.blobs) == {"conftest.py", "suites/scripted.yaml", "test_predictions.py"}
    assert committed.stored_run().provenance["head"]
    assert not re.search("exploratory|unavailable", done.stdout.str())
    done.stdout.re_match_lines([r"HELD \(\w+\): Two at once are faster than one\."])


def test_one_edited_since_is_refused(committed) -> None:
    committed.predictions(PREDICTION.format(factor=1.6))
    assert_refused(committed, "test_predictions.py is")


def test_one_whose_suite_was_edited_since_is_refused(committed) -> None:
    committed.suite(question="Another one?")
    assert_refused(committed, "suites/scripted.yaml is")


def test_one_that_was_never_committed_is_refused(project) -> None:
    project.commit()
    project.predictions(PREDICTION.format(factor=1.5))
    assert_refused(project, "test_predictions.py is")


def test_what_the_refusal_says_works(project) -> None:
    project.commit()
    project.predictions(PREDICTION.format(factor=1.5))
    [said] = [line for line in project.run().outlines if line.startswith("joules: said after the fact?")]
    for command in re.search(r": (git add .*) && (git commit -m 'predict')", said).groups():
        project.git(*shlex.split(command)[1:])
    project.run().assert_outcomes(passed=1)
    assert project.verdicts()["test_two_at_once"].registration == "registered"


def test_exploratory_is_measured_and_every_verdict_says_so(project) -> None:
    project.commit()
    project.predictions(PREDICTION.format(factor=1.5))
    project.predictions(PREDICTION.format(factor=3), name="test_more.py")
    done = project.run("-v", "--joules-exploratory")
    done.assert_outcomes(passed=1, failed=1)
    verdict_lines = [line for line in done.outlines if re.match(r"(\S+ )?(HELD|REFUTED) ", line)]
    # One for each in verbose output, one for each in the note, and the failure once more in pytest's own summary.
    assert len(verdict_lines) >= 4
    assert [line for line in verdict_lines if "exploratory" not in line] == []
    assert {verdict.registration for verdict in project.verdicts().values()} == {"exploratory"}


def test_the_option_can_stand_in_the_ini_file(project) -> None:
    project.commit()
    project.predictions(PREDICTION.format(factor=1.5))
    with (project.folder / "pytest.ini").open("a") as ini:
        ini.write("joules_exploratory = true\n")
    project.run().assert_outcomes(passed=1)
    assert project.verdicts()["test_two_at_once"].registration == "exploratory"
