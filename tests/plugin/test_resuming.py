"""A run that was cut short goes on where it stopped, or says why it cannot."""

import json

import pytest

from pytest_joules import ledger, machine, store

ONE = """
def test_two_at_once(sweep):
    assert sweep.tokens_per_s[2] > sweep.tokens_per_s[1]
"""
INTERRUPTED = """
def answering(server):
    if len(rounds) == 3:
        raise KeyboardInterrupt
"""


@pytest.fixture
def cut_short(project):
    """A project whose run was interrupted in its third window of four."""
    project.script(INTERRUPTED)
    project.predictions(ONE)
    done = project.run_apart()
    assert done.ret == pytest.ExitCode.INTERRUPTED
    done.stdout.fnmatch_lines(
        ["cut short: 2 closed windows are kept in *.journal.jsonl; --joules-resume goes on from there"]
    )
    project.script()
    return project


def entered(project) -> list[tuple[str, str]]:
    found = ledger.read(project.results / "bench" / "ledger.jsonl")
    assert found.faults == ()
    return [(entry["event"], entry.get("outcome", "")) for entry in found.records]


def test_the_rest_is_measured_and_the_table_is_whole(cut_short) -> None:
    [journal] = cut_short.journals()
    before = store.load_journal(journal)
    done = cut_short.run_apart("--joules-resume")
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["joules: measuring scripted, 4 windows, 2 of them left"])
    stored = cut_short.stored()
    run = stored.run
    assert run.run_id == before.run_id
    assert [(w.role, w.condition["parallel"], w.pass_index) for w in run.windows] == [
        ("measured", 1, 0), ("measured", 2, 0), ("bridge", 2, 0), ("measured", 2, 1), ("measured", 1, 1),
    ]  # fmt: skip
    assert run.windows[:2] == before.windows
    [bridge] = [gate for gate in run.gates if gate.name == "bridge"]
    assert "mJ per token before the interruption" in str(bridge.value)
    assert any(note.startswith("resumed after 2 windows") for note in run.notes)
    kept = {sample.mono for sample in store.load_samples(stored)}
    assert {round(s.mono, 6) for s in before.samples} <= kept
    assert cut_short.journals() == []
    # Two and the one that was cut off, then the bridge and the two that were left.
    assert cut_short.starts == 3 + 3
    assert entered(cut_short) == [("start", ""), ("end", "cut short"), ("resume", ""), ("end", "complete")]


def test_a_run_may_be_cut_short_more_than_once(cut_short) -> None:
    # In the second part the bridge and the third window close.
    cut_short.script(INTERRUPTED)
    assert cut_short.run_apart("--joules-resume").ret == pytest.ExitCode.INTERRUPTED
    cut_short.script()
    cut_short.run("--joules-resume").assert_outcomes(passed=1)
    roles = [window.role for window in cut_short.stored_run().windows]
    assert roles.count("measured") == 4
    assert roles.count("bridge") == 2


def test_without_the_option_it_begins_anew_and_says_so(cut_short) -> None:
    done = cut_short.run_apart()
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(
        [
            "joules: a run of this suite that was cut short after 2 windows is kept; this one begins anew (--joules-resume goes on with it)"
        ]
    )
    assert len(cut_short.journals()) == 1
    assert [window.role for window in cut_short.stored_run().windows] == ["measured"] * 4


def test_with_nothing_to_resume_it_measures(project) -> None:
    project.predictions(ONE)
    project.run("--joules-resume").assert_outcomes(passed=1)
    assert not any("resumed" in note for note in project.stored_run().notes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"request": {"answer_tokens": 9}}, "the suite was changed"),
        ({"gates": {"spread_flag_above": 0.5}}, "the suite was changed"),
    ],
)
def test_a_changed_suite_is_another_run(cut_short, change, words) -> None:
    cut_short.suite(**change)
    done = cut_short.run("--joules-resume")
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines([f"*cannot be resumed: {words}; measure anew, without --joules-resume*"])
    assert len(cut_short.journals()) == 1


def test_another_boot_is_another_run(cut_short, monkeypatch) -> None:
    monkeypatch.setattr(machine, "boot_id", lambda: "another")
    done = cut_short.run("--joules-resume")
    done.stdout.fnmatch_lines(["*cannot be resumed: the machine was started again; measure anew*"])
    assert len(cut_short.journals()) == 1


def test_a_journal_cut_off_in_mid_line_loses_only_that_line(cut_short) -> None:
    [journal] = cut_short.journals()
    lines = [line for line in journal.read_text().split("\n") if line]
    # As SIGKILL leaves it: the second window is half written.
    journal.write_text("\n".join([*lines[:2], lines[2][: len(lines[2]) // 2]]))
    assert store.load_journal(journal).closed == 1
    cut_short.run("--joules-resume").assert_outcomes(passed=1)
    roles = [window.role for window in cut_short.stored_run().windows]
    assert roles == ["measured", "bridge", "measured", "measured", "measured"]


def test_what_was_attempted_stays_in_the_ledger(cut_short) -> None:
    path = cut_short.results / "bench" / "ledger.jsonl"
    lines = path.read_bytes().split(b"\n")
    begun = json.loads(lines[0])
    assert (begun["suite"], begun["machine"], begun["passes"]) == ("scripted", "bench", 2)
    assert begun["conditions"] == [{"parallel": 1}, {"parallel": 2}]
    assert list(begun["models"]) == ["tiny"]
    assert all(len(digest) == 64 for digest in begun["models"].values())
    for changed in ([lines[0].replace(b"bench", b"other"), *lines[1:]], lines[1:]):
        path.write_bytes(b"\n".join(changed))
        [fault] = ledger.read(path).faults
        assert "something was changed or taken out" in fault


@pytest.mark.parametrize("windows", [1, 3])
def test_a_step_of_two_lengths_that_was_cut_between_them_is_measured_again_as_a_whole(project, windows: int) -> None:
    project.suite(request={"lengths": [16]})
    project.script(INTERRUPTED)
    project.predictions(ONE)
    assert project.run_apart().ret == pytest.ExitCode.INTERRUPTED
    [journal] = project.journals()
    lines = journal.read_text().splitlines(keepends=True)
    # Windows of 8 and of 16 tokens at one slot, then the same at two.
    journal.write_text("".join(lines[: 1 + windows]))
    project.script()
    project.run("--joules-resume")
    measured = [w for w in project.stored_run().windows if w.role != "bridge"]
    found = sorted((w.sequence, w.answer_tokens) for w in measured)
    assert found == [(step, tokens) for step in range(4) for tokens in (8, 16)]
    assert len(project.stored_run().windows) - len(measured) == (windows > 1)


def test_a_run_that_was_stored_and_never_judged_is_judged_and_not_measured_again(project) -> None:
    project.predictions(ONE)
    project.run().assert_outcomes(passed=1)
    # As a kill between the last window and the first verdict leaves it.
    stored = project.stored()
    stored.verdicts_path.unlink()
    project.run("--joules-resume").assert_outcomes(passed=1)
    assert project.starts == 4
    assert [v.word for v in project.verdicts().values()] == ["held"]
    project.suite(gates={"spread_flag_above": 0.5})
    stored.verdicts_path.unlink()
    project.run("--joules-resume").assert_outcomes(passed=1)
    assert project.starts == 8
