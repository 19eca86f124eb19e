"""Stored runs judged again: no server, no meter, the same words."""

import json
import subprocess
import sys

from pytest_joules import ledger, store

TWO = """
def test_two_at_once(sweep):
    assert sweep.tokens_per_s[2] > sweep.tokens_per_s[1]

def test_one_alone(sweep):
    assert sweep.tokens_per_s[1] > sweep.tokens_per_s[2]
"""


def moved(project, machine: str) -> None:
    """The only run once more, as one of another machine."""
    stored = project.stored()
    place = project.results / machine / "scripted"
    place.mkdir(parents=True)
    record = json.loads(stored.path.read_text()) | {"machine_slug": machine}
    (place / stored.path.name).write_text(json.dumps(record))


def test_nothing_is_started_and_the_verdicts_are_the_same(project) -> None:
    project.predictions(TWO)
    project.run().assert_outcomes(passed=1, failed=1)
    before = project.verdicts()
    done = project.run("--joules-replay", "latest", "--joules-meter", "rapl")
    done.assert_outcomes(passed=1, failed=1)
    assert project.starts == 4
    assert project.verdicts() == before
    # Nothing new was said, so nothing was added.
    assert len(store.load_verdicts(project.stored())) == 2


def test_a_new_prediction_on_an_old_run_came_after_the_data(project) -> None:
    project.predictions(TWO)
    project.commit()
    project.run()
    project.predictions(TWO.replace("test_two_at_once", "test_two_are_faster"))
    project.git("commit", "-qam", "predict")
    done = project.run("-v", "--joules-replay", project.stored().run.run_id)
    done.stdout.fnmatch_lines(["*::test_two_are_faster HELD (*, after-data) *"])
    given = project.verdicts()["test_two_are_faster"]
    assert (given.word, given.registration, given.replayed) == ("held", "after-data", True)


def test_a_verdict_that_cannot_be_reproduced_is_an_error(project) -> None:
    project.predictions(TWO)
    project.run("-k", "two_at_once").assert_outcomes(passed=1, deselected=1)
    path = project.stored().verdicts_path
    path.write_text(path.read_text().replace('"word": "held"', '"word": "refuted"'))
    assert project.run("-k", "two_at_once", "--joules-replay", "all").ret == 1


def test_what_is_not_there_is_said(project) -> None:
    project.predictions(TWO)
    done = project.run("--joules-replay", "latest")
    done.assert_outcomes(skipped=2)
    done = project.run("-rs", "--joules-replay", "20990101T000000Z-000000")
    assert "there is no such run, file or folder; say latest or all, or name one" in done.stdout.str()


def test_the_same_claims_on_every_machine(project) -> None:
    project.predictions(TWO)
    project.run()
    moved(project, "another")
    command = [sys.executable, "-m", "pytest_joules", "replay", "all", "--predictions", "."]
    done = subprocess.run(command, cwd=project.folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any(line.split() == ["another", "bench"] for line in lines)
    assert any(line.split()[:3] == ["two", "at", "once"] and line.count("held") == 2 for line in lines)


def test_figures_of_another_machine_are_called_transferred(project) -> None:
    project.predictions(TWO)
    project.run()
    moved(project, "another")
    project.predictions(
        """
        def test_as_fast_as_there(sweep, against):
            assert 0.5 < sweep.tokens_per_s[2] / against.tokens_per_s[2] < 2
        """,
        '"scripted", against="scripted@another"',
        "test_there.py",
    )
    project.run("test_there.py", "--joules-replay", str(project.results / "bench")).assert_outcomes(passed=1)
    [given] = [v for v in project.verdicts().values() if "there" in v.prediction]
    assert given.remark == "compared with figures transferred from another"


def test_a_claim_that_was_bent_to_fit_says_what_it_was(project) -> None:
    project.predictions(TWO)
    project.commit()
    project.run("-k", "one_alone").assert_outcomes(failed=1, deselected=1)
    project.predictions(TWO.replace("[1] > sweep.tokens_per_s[2]", "[1] > 20"))
    project.git("commit", "-qam", "bent")
    done = project.run("-k", "one_alone", "--joules-replay", "latest")
    done.assert_outcomes(passed=1, deselected=1)
    assert project.verdicts()["test_one_alone"].changed.startswith("refuted")
    assert "what it rests on was changed after it was refuted" in " ".join(" ".join(done.outlines).split())


def test_a_slip_in_the_name_of_a_run_is_no_green_light(project) -> None:
    project.predictions(TWO)
    project.run()

    def asked(run: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest_joules", "replay", run, "--predictions", ".", "--json"]
        return subprocess.run(command, cwd=project.folder, capture_output=True, text=True, timeout=60, check=False)

    done = asked("nonsense")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("joules: nonsense: there is no such run, file or folder")
    project.stored().path.unlink()
    done = asked("latest")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no stored run of suite scripted to replay" in done.stderr


def test_an_engine_that_is_misspelt_is_told_with_its_line(project) -> None:
    project.predictions(TWO)
    project.suite(engine="inprocess")
    done = project.run()
    done.stderr.fnmatch_lines(
        ["ERROR: suites/scripted.yaml:*: engine: there is no engine 'inprocess'; did you mean 'in-process'?; known: *"]
    )


def test_how_it_stood_to_the_run_is_not_asked_again(project) -> None:
    project.predictions(TWO)
    project.commit()
    project.run()
    assert {v.registration for v in project.verdicts().values()} == {"registered"}
    # As if another ledger of this user told of an earlier look only now.
    [begun, _] = ledger.read(project.results / "bench" / "ledger.jsonl").records
    earlier = {**begun, "run_id": "20200101T000000Z-000000", "head": "", "prev": ""}
    assert ledger.append([project.state / ledger.NAME], earlier) == []
    project.run("--joules-replay", "latest")
    assert {v.registration for v in project.verdicts().values()} == {"registered"}
    project.run()
    assert {v.registration for v in store.load_verdicts(project.all_stored()[-1])} == {"after-data"}
