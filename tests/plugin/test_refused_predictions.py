"""What is refused before the first window: nothing is started, and nothing is written."""

import pytest

HELD = """
    def test_held(sweep):
        assert sweep.tokens_per_s[2] > 1.5 * sweep.tokens_per_s[1]
"""

REFUSED = {
    "a misspelt metric": (
        """
        def test_it(sweep):
            assert sweep.energy_per_tokn_mj[2] < 5
        """,
        "*::test_it: AttributeError: there is no metric 'energy_per_tokn_mj'; did you mean 'energy_per_token_mj'?; known: *",
    ),
    "a misspelt metric of a row": (
        """
        def test_it(sweep):
            assert sweep[2].tokens_per_ss < 5
        """,
        "*::test_it: AttributeError: there is no metric 'tokens_per_ss'; did you mean 'tokens_per_s'?; known: *",
    ),
    "a condition the suite has not": (
        """
        def test_it(sweep):
            assert sweep.power_w[16] < 5
        """,
        "*::test_it: KeyError: the suite has no condition 16; it has 1, 2",
    ),
    "an axis the suite has not": (
        """
        def test_it(sweep):
            assert sweep.at(paralel=2).power_w < 5
        """,
        "*::test_it: KeyError: the table has no axis 'paralel'; did you mean 'parallel'?; it has parallel",
    ),
    "a rule that cannot fail": (
        """
        def test_it(sweep):
            assert sweep.tokens_per_s[2] > 0
        """,
        "*::test_it: it holds on every table that could come out, so it predicts nothing; assert something that can fail",
    ),
    "xfail": (
        """
        @pytest.mark.xfail
        def test_it(sweep):
            assert sweep.power_w[2] < 5
        """,
        "*::test_it: it is marked xfail; a prediction that is expected to fail is another prediction, state that one",
    ),
    "a skip": (
        """
        def test_it(sweep):
            if sweep.power_w[2] > 1:
                pytest.skip("not on this machine")
            assert sweep.power_w[2] < 0.5
        """,
        "*::test_it: Skipped: not on this machine",
    ),
    "return": (
        """
        def test_it(sweep):
            return sweep.power_w[2] < 5
        """,
        "*::test_it: it returns; say what must hold with assert",
    ),
    "async": (
        """
        async def test_it(sweep):
            assert sweep.power_w[2] < 5
        """,
        "*::test_it: it is async; a prediction is a plain function of a table",
    ),
    "a fixture that touches the machine": (
        """
        def test_it(sweep, tmp_path):
            assert sweep.power_w[2] < 5
        """,
        "*::test_it: it takes 'tmp_path'; a prediction takes 'sweep', 'against' and parametrised values, nothing that *",
    ),
    "an import from outside": (
        """
        import os

        def test_it(sweep):
            assert sweep.power_w[2] < os.cpu_count()
        """,
        "*::test_it: it imports os; a prediction imports only math, pytest, pytest_joules and files of its repository",
    ),
    "no table": (
        """
        def test_it():
            assert 1 + 1 == 3
        """,
        "*::test_it: it does not take 'sweep', so it says nothing about the suite",
    ),
    "a comparison with no suite": (
        """
        def test_it(sweep, against):
            assert sweep.power_w[2] < against.power_w[2]
        """,
        "*::test_it: it takes 'against' but names no suite; write pytest.mark.joules(..., against='SUITE')",
    ),
    "two suites": (
        """
        @pytest.mark.joules("other")
        def test_it(sweep):
            assert sweep.power_w[2] < 5
        """,
        "*::test_it: it needs the name of one suite, pytest.mark.joules('SUITE'); given: 'other', 'scripted'",
    ),
}


@pytest.mark.parametrize(("text", "said"), REFUSED.values(), ids=REFUSED)
def test_no_prediction(project, text: str, said: str) -> None:
    project.predictions(HELD, name="test_good.py")
    project.predictions(text)
    done = project.run()
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines([f"ERROR: {said}"])
    project.assert_untouched()


@pytest.mark.parametrize(
    ("mark", "said"),
    {
        "": "*::test_held: it needs the name of one suite, pytest.mark.joules('SUITE'); given: none",
        "7": "*::test_held: it needs the name of one suite, pytest.mark.joules('SUITE'); given: 7",
        '"scripted", "other"': "*::test_held: it needs the name of one suite, *; given: 'scripted', 'other'",
        '"scripted", agianst="other"': "*::test_held: pytest.mark.joules takes no agianst; it takes suite, against, primary, decide, threshold, holds, fails",
        '"scriptd"': "there is no suite 'scriptd'; did you mean 'scripted'?",
        '"scripted", against="othr"': "there is no suite 'othr'; did you mean 'other'?",
    }.items(),
)
def test_no_mark(project, mark: str, said: str) -> None:
    project.suite("other")
    project.predictions(HELD, mark)
    done = project.run()
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines([f"ERROR: {said}"])
    project.assert_untouched()


def test_no_yield(project) -> None:
    project.predictions(
        """
        def test_it(sweep):
            assert sweep.power_w[2] < 5
            yield
        """
    )
    done = project.run()
    # Newer pytest refuses it before we do.
    assert done.ret in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.USAGE_ERROR)
    assert "yield" in done.stdout.str() + done.stderr.str()
    project.assert_untouched()


def test_a_misspelt_key_of_a_suite_with_file_and_line(project) -> None:
    (project.folder / "suites" / "scripted.yaml").write_text(
        "question: Is every key known?\nmodel: tiny\nrequest:\n  answer_token: 8\nvary: {parallel: [1, 2]}\n"
    )
    project.predictions(HELD)
    done = project.run()
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(
        [
            "ERROR: suites/scripted.yaml:4: request.answer_token: there is no request key 'answer_token'; "
            "did you mean 'answer_tokens'?; known: *"
        ]
    )
    project.assert_untouched()


def test_every_fault_is_told_at_once(project) -> None:
    project.predictions(
        """
        def test_a(sweep):
            assert sweep.powr_w[2] < 5

        @pytest.mark.xfail
        def test_b(sweep):
            assert sweep.power_w[2] < 5

        def test_c(sweep):
            assert sweep.power_w[7] < 5
        """
    )
    done = project.run()
    done.stderr.fnmatch_lines_random(["*::test_a: *'powr_w'*", "*::test_b: *xfail*", "*::test_c: *condition 7*"])
    project.assert_untouched()


def test_a_rule_that_hardly_ever_holds_is_only_doubted(project) -> None:
    project.predictions(
        """
        def test_it(sweep):
            assert sweep.power_w[2] == 3.14159
        """
    )
    doubt = "*::test_it: it held on none of * made-up tables; is its threshold as meant?"
    done = project.run("--collect-only", "-W", "default")
    assert done.ret == pytest.ExitCode.OK
    done.stdout.fnmatch_lines([f"*PredictionWarning: {doubt}"])
    done = project.run("--collect-only", "-W", "error")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines([f"ERROR: {doubt}"])


def test_python_without_assertions_is_refused(project) -> None:
    project.predictions(HELD)
    done = project.run_apart(python=("-O",))
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["ERROR: python runs with -O or PYTHONOPTIMIZE: assert statements do nothing, *"])
    project.assert_untouched()


def test_assertions_that_pytest_does_not_rewrite_are_judged_all_the_same(project) -> None:
    project.predictions(
        """
        def test_one_alone(sweep):
            assert sweep.tokens_per_s[1] > sweep.tokens_per_s[2]
        """
    )
    project.run_apart("--assert=plain").assert_outcomes(failed=1)
    verdict = project.verdicts()["test_one_alone"]
    assert (verdict.word, verdict.detail) == ("refuted", "assert sweep.tokens_per_s[1] > sweep.tokens_per_s[2]")


def test_a_worker_of_xdist_tells_it_too(project) -> None:
    project.predictions(REFUSED["a misspelt metric"][0])
    done = project.run_apart("-n", "1", plugins=("xdist",))
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["joules: *::test_it: *did you mean 'energy_per_token_mj'?*"])
    assert "INTERNALERROR" not in done.stdout.str()
    project.assert_untouched()
