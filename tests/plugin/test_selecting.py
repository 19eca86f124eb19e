"""pytest's own options about what to run, with predictions among the tests."""

import os
import re
import subprocess
import sys

import pytest

TWO = """
    def test_two_at_once(sweep):
        assert sweep.tokens_per_s[2] > 1.5 * sweep.tokens_per_s[1]

    def test_one_alone(sweep):
        assert sweep.tokens_per_s[1] > sweep.tokens_per_s[2]
"""


@pytest.fixture
def no_git(tmp_path, monkeypatch):
    """A git that leaves a trace when it is called."""
    trace = tmp_path / "called"
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {trace}\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return trace


@pytest.mark.parametrize("option", ["--collect-only", "--setup-plan", "--fixtures", "--markers", "--help"])
def test_options_that_only_look_touch_nothing(project, no_git, option: str) -> None:
    project.predictions(TWO)
    before = {path for path in project.folder.rglob("*") if "cache" not in str(path)}
    done = project.run(option)
    assert done.ret == pytest.ExitCode.OK
    assert {path for path in project.folder.rglob("*") if "cache" not in str(path)} == before
    assert not no_git.exists()
    project.assert_untouched()


def test_the_trap_for_git_works(project, no_git) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        project.git("status")
    assert no_git.exists()


def test_collect_only_lists_predictions(project) -> None:
    project.predictions(TWO)
    project.run("--collect-only", "-q").stdout.fnmatch_lines(
        ["test_predictions.py::test_two_at_once", "test_predictions.py::test_one_alone", "2 tests collected in *"]
    )


def test_setup_plan_shows_the_table_as_a_fixture(project) -> None:
    project.predictions(TWO)
    project.run("--setup-plan").stdout.fnmatch_lines(
        ["*SETUP    F sweep*", "*test_two_at_once (fixtures used: *sweep)*"]
    )


def test_fixtures_and_the_mark_are_documented(project) -> None:
    done = project.run("--fixtures")
    for line in (
        "sweep -- *",
        "against -- *",
        "power ?session scope? -- *",
        "warm_chip ?session scope? -- *",
        "*The table of the suite named by `pytest.mark.joules`, measured on first use in the session.",
    ):
        done.stdout.fnmatch_lines([line])
    project.run("--markers").stdout.fnmatch_lines(
        ["@pytest.mark.joules(suite, against=None, primary=False, decide=None, *): *"]
    )


def test_stopping_at_the_first_failure_judges_all_the_same(project) -> None:
    project.predictions(
        """
        def test_one_alone(sweep):
            assert sweep.tokens_per_s[1] > sweep.tokens_per_s[2]

        def test_two_at_once(sweep):
            assert sweep.tokens_per_s[2] > 1.5 * sweep.tokens_per_s[1]
        """
    )
    done = project.run("-x")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*stopping after 1 failures*"])
    assert {name: v.word for name, v in project.verdicts().items()} == {
        "test_one_alone": "refuted",
        "test_two_at_once": "held",
    }


def test_last_failed_runs_the_refuted_one_again(project) -> None:
    project.predictions(TWO)
    project.run("-k", "one_alone").assert_outcomes(failed=1, deselected=1)
    project.stored().path.unlink()
    project.run("--lf").assert_outcomes(failed=1)
    assert project.verdicts()["test_one_alone"].word == "refuted"
    assert project.starts == 8


def test_what_stepwise_or_last_failed_leave_out_is_marked_as_deselected(project) -> None:
    project.predictions(TWO)
    project.script(
        """
        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_collection_modifyitems(config, items):
            result = yield
            left_out = [item for item in items if item.name == "test_one_alone"]
            items[:] = [item for item in items if item not in left_out]
            config.hook.pytest_deselected(items=left_out)
            return result
        """
    )
    project.run().assert_outcomes(passed=1, deselected=1)
    assert {name: v.selected for name, v in project.verdicts().items()} == {
        "test_two_at_once": True,
        "test_one_alone": False,
    }


def test_ordinary_tests_run_beside_predictions(project) -> None:
    project.predictions(TWO)
    (project.folder / "test_plain.py").write_text("def test_plain():\n    assert 2 + 2 == 5\n")
    done = project.run("-v", "-k", "plain")
    done.assert_outcomes(failed=1, deselected=2)
    assert "joules:" not in done.stdout.str()
    project.assert_untouched()


@pytest.fixture
def run_plain(moved_there, tmp_path):
    """Runs pytest as installed in a project that has nothing to do with energy; gives its output and files."""

    def run(*arguments: str) -> tuple[list[str], set[str]]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        (folder / "test_plain.py").write_text(
            "import sys\n\ndef test_plain():\n    assert 'pytest_joules.session' not in sys.modules\n"
        )
        command = [sys.executable, "-m", "pytest", "-v", "-p", "no:randomly", *arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        lines = [re.sub(r" in [\d.]+s|joules-[\d.]+, ", "", line) for line in (done.stdout + done.stderr).splitlines()]
        return [line for line in lines if not line.startswith("rootdir:")], {path.name for path in folder.rglob("*")}

    return run


def test_a_project_that_merely_has_the_plugin_sees_nothing_of_it(run_plain) -> None:
    assert run_plain() == run_plain("-p", "no:joules")


def test_without_the_plugin_this_repository_collects(pytestconfig, project) -> None:
    project.folder = pytestconfig.rootpath
    done = project.run_apart(
        "-pno:joules", "-pno:cacheprovider", "--collect-only", "-q", "tests/plugin/test_selecting.py", plugins=None
    )
    assert done.ret == pytest.ExitCode.OK
    done.stdout.fnmatch_lines(["tests/plugin/test_selecting.py::test_without_the_plugin_this_repository_collects"])


def test_the_plugin_loads_nothing_heavy(pytester) -> None:
    script = pytester.makepyfile(
        """
        import sys
        import pytest
        before = set(sys.modules)
        import pytest_joules.plugin
        print(*sorted({name.split(".")[0] for name in set(sys.modules) - before}))
        """
    )
    done = pytester.run(sys.executable, script)
    assert "pytest_joules" in done.outlines[0].split()
    assert set(done.outlines[0].split()) & {"numpy", "pydantic", "aiohttp", "yaml", "rich", "psutil", "typer"} == set()


@pytest.mark.parametrize("with_ini", [True, False], ids=["another project", "a folder"])
def test_a_folder_behind_an_option_does_not_become_the_project(project, tmp_path_factory, with_ini: bool) -> None:
    project.predictions(TWO)
    other = tmp_path_factory.mktemp("other")
    if with_ini:
        (other / "pytest.ini").write_text("[pytest]\n")
    (project.folder / "pytest.ini").unlink()
    done = project.run_apart("test_predictions.py", "--joules-models", str(other))
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines([f"*in two words pytest takes the path for one of tests*write --joules-models={other}*"])
    done = project.run_apart("test_predictions.py", "--collect-only", f"--joules-models={other}")
    assert done.ret == pytest.ExitCode.OK


def test_a_folder_of_the_project_behind_an_option_is_none_of_tests(project) -> None:
    project.predictions(TWO)
    (project.folder / "models").mkdir()
    assert project.run_apart("--collect-only", "--joules-models", "models").ret == pytest.ExitCode.OK
