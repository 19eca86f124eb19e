"""What the author stakes on a claim: examples, a clear outcome or none, and the report of `joules check`."""

import json
import subprocess
import sys

import pytest


def test_a_narrow_outcome_decides_nothing_where_only_a_clear_one_was_to(project) -> None:
    # Chance alone decides: the two batches cost the same time.
    project.predictions(
        """
        @pytest.mark.joules(decide="clear", primary=True)
        def test_a_coin(sweep):
            \"\"\"The second decimal is on our side.\"\"\"
            assert sweep.tokens_per_s_per_request[2] > sweep.tokens_per_s_per_request[1]
        """
    )
    project.run().assert_outcomes(errors=1)
    verdict = project.verdicts()["test_a_coin"]
    assert (verdict.word, verdict.robustness, verdict.primary) == ("void", "narrow", True)
    assert verdict.detail.startswith("narrow, and only a clear outcome was to decide: ")
    assert "decide it" in verdict.detail


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ('holds={"tokens_per_s": {1: 50, 2: 40}}', "it does not hold on its `holds` example: assert 40.0 > 50.0"),
        ('fails={"tokens_per_s": {1: 50, 2: 60}}', "it holds on its `fails` example (tokens_per_s: 1: 50, 2: 60)"),
        ('holds={"tokens_per_s": {1: 50}}', "its `holds` example"),
        ("holds=3", "holds=3 is no example; write holds={'energy_per_token_mj': {1: 100, 8: 40}}"),
        ('decide="narrow"', "decide='narrow'; it can be 'clear', or left out"),
    ],
)
def test_examples_hold_their_author_to_account(project, mark: str, said: str) -> None:
    project.predictions(
        f"""
        @pytest.mark.joules({mark})
        def test_two_at_once(sweep):
            assert sweep.tokens_per_s[2] > sweep.tokens_per_s[1]
        """
    )
    done = project.run()
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert said in done.stderr.str()
    project.assert_untouched()


def test_the_report_before_anything_is_measured(project) -> None:
    project.predictions(
        """
        @pytest.mark.joules(holds={"tokens_per_s": {1: 50, 2: 60}}, fails={"tokens_per_s": {1: 50, 2: 40}})
        def test_two_at_once(sweep):
            \"\"\"Two at once are faster.\"\"\"
            assert sweep.tokens_per_s[2] > sweep.tokens_per_s[1]

        def test_always(sweep):
            assert sweep.tokens_per_s[2] > 0

        def test_to_a_hair(sweep):
            assert 0.999 < sweep.tokens_per_s[2] / sweep.tokens_per_s[1] < 1.001
        """
    )
    project.commit()

    def asked(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest_joules", "check", *arguments, "."]
        return subprocess.run(command, cwd=project.folder, capture_output=True, text=True, timeout=60, check=False)

    done = asked("--json")
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert found["suites"] == [{"name": "scripted", "here": "", "errors": [], "void": {}}]
    rows = {row["name"].split("::")[1]: row for row in found["predictions"]}
    assert rows["test_two_at_once"]["errors"] == []
    assert 0.3 < rows["test_two_at_once"]["share_held"] < 0.9
    assert rows["test_two_at_once"]["decidable"] > 0.5
    assert "predicts nothing" in rows["test_always"]["errors"][0]
    assert any(
        "finer than 2 passes" in warning or "none of" in warning for warning in rows["test_to_a_hair"]["warnings"]
    )
    assert {row["registration"] for row in found["predictions"]} == {"registered"}
    text = asked().stdout
    assert "refused: it holds on every table that could come out" in text
    assert "[registered]: Two at once are faster." in text
    project.assert_untouched()


def test_a_suite_that_no_machine_can_measure_is_refused_and_not_called_impossible_here(project) -> None:
    named = {
        "knob": {"knobs": {"cpu_max_mhz": -5}, "model": "nowhere"},
        "broken": {"model": "cut"},
        "unfit": {"engine": "in-process", "draft": {"draft_model": "tiny", "draft_format": "q4_0"}},
        "partly": {"vary": {"draft_threshold": ["off", 0.5]}, "engine": "in-process",
                   "draft": {"draft_model": "tiny", "draft_format": "q4_0"}},
        "absent": {"model": "nowhere"},
    }  # fmt: skip
    for name, sections in named.items():
        project.suite(name, **sections)
        project.predictions(
            "def test_it(sweep):\n    assert sweep.tokens_per_s.at[0] > 50\n", f'"{name}"', f"test_{name}.py"
        )
    (project.folder / "elsewhere").mkdir()
    (project.folder / "elsewhere" / "cut-q4_0.gguf").write_bytes(b"GGUF\x03")
    command = [sys.executable, "-m", "pytest_joules", "check", "--joules-models", "elsewhere", "."]
    done = subprocess.run(command, cwd=project.folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    assert "knob: refused: knob cpu_max_mhz: expected a number of MHz above 0 or uncapped, not -5\n" in done.stdout
    assert "cut-q4_0.gguf: the file is cut off or damaged; fetch it again" in done.stdout
    assert "\nbroken: refused: model " in f"\n{done.stdout}"
    assert "unfit: refused: nothing can be measured: in-process: it has no draft models; leave out draft" in done.stdout
    assert "\n  draft_threshold=0.5 will be void: in-process: it has no draft models" in done.stdout
    assert "absent: cannot be measured here: model nowhere in format q4_0 is not on this machine" in done.stdout
