"""Looking first, leaving out, throwing away and trying again until it fits: each shows."""

import pytest

from pytest_joules import ledger

TWO = """
def test_two_at_once(sweep):
    assert sweep.tokens_per_s[2] > sweep.tokens_per_s[1]

def test_one_alone(sweep):
    assert sweep.tokens_per_s[1] > sweep.tokens_per_s[2]
"""
FAST_ALONE = """
def answering(server):
    if server.slots == 2:
        time.sleep(5 * ROUND_S)
"""
PEEKED = """
def answering(server):
    if len(rounds) == 3:
        raise KeyboardInterrupt
"""


def flat(done) -> str:
    """The output without its line breaks."""
    return " ".join(" ".join(done.outlines).split())


def words(project) -> dict[str, tuple[str, str]]:
    """Word and registration of the verdicts on the newest run."""
    from pytest_joules import store

    newest = project.all_stored()[-1]
    return {v.prediction.rsplit("::", 1)[1]: (v.word, v.registration) for v in store.load_verdicts(newest)}


@pytest.fixture
def committed(project):
    """A project whose predictions are committed."""
    project.predictions(TWO)
    project.commit()
    return project


def test_the_first_run_of_a_committed_prediction_is_registered_and_the_next_a_replication(committed) -> None:
    committed.run().assert_outcomes(passed=1, failed=1)
    [first] = committed.all_stored()
    assert words(committed) == {"test_two_at_once": ("held", "registered"), "test_one_alone": ("refuted", "registered")}
    done = committed.run()
    done.stdout.fnmatch_lines(
        [f"*a replication; of record is held (*) in {first.run.run_id}", "Other attempts at these data", f"- {first.run.run_id} (scripted): 1 held, 1 refuted"]
    )  # fmt: skip
    assert words(committed)["test_two_at_once"] == ("held", "registered")


def test_run_again_until_green_keeps_the_first_outcome_of_record(committed) -> None:
    committed.run("-k", "one_alone").assert_outcomes(failed=1)
    [first] = committed.all_stored()
    committed.script(FAST_ALONE)
    committed.git("commit", "-qam", "another machine")
    done = committed.run("-k", "one_alone")
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines([f"- {first.run.run_id} (scripted): 1 held, 1 refuted"])
    # The conftest belongs to the prediction: it was changed with the first figures known.
    assert words(committed)["test_one_alone"] == ("held", "after-data")


def test_a_look_before_the_prediction_is_committed_shows(project) -> None:
    project.predictions(TWO)
    project.commit()
    project.script(PEEKED)
    project.git("commit", "-qam", "peek")
    assert project.run_apart().ret == pytest.ExitCode.INTERRUPTED
    project.script()
    project.predictions(
        TWO + "\ndef test_made_to_fit(sweep):\n    assert sweep.tokens_per_s[2] > 1.5 * sweep.tokens_per_s[1]\n"
    )
    project.git("commit", "-qam", "predict")
    done = project.run()
    assert {registration for _, registration in words(project).values()} == {"after-data"}
    assert "cut short after 2 windows (KeyboardInterrupt: ); would have said held: two at once; " in flat(done)
    assert "had measured the same model at every condition of this suite" in flat(done)


def test_another_results_folder_does_not_hide_a_look(project) -> None:
    project.predictions(TWO)
    project.commit()
    project.run("--joules-results", str(project.folder / "elsewhere")).assert_outcomes(passed=1, failed=1)
    project.predictions(TWO.replace("test_two_at_once", "test_two_are_faster"))
    project.git("commit", "-qam", "predict")
    done = project.run()
    assert words(project)["test_two_are_faster"] == ("held", "after-data")
    assert "(scripted): complete, and its result is not in the results folder" in flat(done)


def test_a_deleted_result_is_still_told_of(committed) -> None:
    committed.run()
    [first] = committed.all_stored()
    for path in first.path.parent.iterdir():
        path.unlink()
    done = committed.run()
    assert f"- {first.run.run_id} (scripted): complete, and its result is not in the results folder" in flat(done)
    assert ledger.read(committed.results / "bench" / "ledger.jsonl").faults == ()


def test_what_was_left_out_by_name_is_judged_and_shown(committed) -> None:
    done = committed.run("-k", "two_at_once")
    done.assert_outcomes(passed=1, deselected=1)
    assert words(committed)["test_one_alone"] == ("refuted", "registered")
    done.stdout.fnmatch_lines(["REFUTED * one alone"])


def test_both_sides_of_a_hedge_are_in_the_note(committed) -> None:
    done = committed.run()
    done.stdout.fnmatch_lines(["HELD * two at once", "REFUTED * one alone"])


def test_another_model_is_no_look(committed, surroundings) -> None:
    import shutil
    from pathlib import Path

    committed.run()
    folder = Path(surroundings["JOULES_MODELS"])
    shutil.copy(folder / "tiny-q4_0.gguf", folder / "small-q4_0.gguf")
    with (folder / "small-q4_0.gguf").open("ab") as file:
        file.write(b"\0" * 64)
    committed.suite(model="small")
    committed.git("commit", "-qam", "predict about another model")
    committed.run()
    assert words(committed)["test_two_at_once"] == ("held", "registered")
