"""`joules registered` on the repositories of the trial cases, and on a module with its closure."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pytest_joules import registration
from pytest_joules.cli.registered import app

CASES = Path(__file__).parents[1] / "cases"


@pytest.fixture(scope="module")
def repositories(tmp_path_factory) -> Path:
    """All repositories of the cases, each in a folder of its case's first three letters."""
    place = tmp_path_factory.mktemp("repositories")
    for case in ("G01", "G03", "G04", "G05"):
        [folder] = CASES.glob(f"{case}-*")
        subprocess.run(["sh", folder / "make.sh", place / case], check=True, capture_output=True)
    return place


def asked(*arguments: object) -> dict:
    """The JSON of `joules registered`."""
    done = CliRunner().invoke(app, ["registered", *map(str, arguments), "--json"])
    assert done.exit_code in (0, 1), done.output
    record = json.loads(done.stdout)
    good = record["word"] == "registered" and record.get("before_run", True) is True
    assert done.exit_code == (0 if good else 1)
    return record


@pytest.mark.parametrize(
    ("place", "word", "committed", "detail"),
    [
        ("G01/full", "registered", "2026-01-10", ""),
        ("G01/shallow", "unknown", "", "shallow clone"),
        ("G01/shallow_merge", "unknown", "", "shallow clone"),
        ("G01/partial", "unknown", "", "shallow clone"),
        ("G03/main", "registered", "2026-01-10", ""),
        ("G03/wt", "registered", "2026-01-10", ""),
        ("G03/super/sub", "registered", "2026-01-11", ""),
        ("G03/super_dirty/sub", "exploratory", "", "not committed as they are: prediction.toml"),
        ("G03/plain", "unavailable", "", "not a git repository"),
        ("G04/lf", "registered", "2026-01-10", ""),
        ("G04/crlf", "registered", "2026-01-10", ""),
        ("G04/edited", "exploratory", "", "not committed as they are"),
    ],
)
def test_what_git_can_show(repositories: Path, place: str, word: str, committed: str, detail: str) -> None:
    found = asked(repositories / place / "prediction.toml")
    assert found["word"] == word
    assert detail in found["detail"]
    if committed:
        assert found["committed"].startswith(committed)


def test_line_endings_are_not_content(repositories: Path) -> None:
    lf, crlf = (asked(repositories / "G04" / name / "prediction.toml")["files"] for name in ("lf", "crlf"))
    assert lf == crlf


@pytest.mark.parametrize(
    ("folder", "detail"), [("bin_nogit", "there is no git program"), ("bin_dubious", "git refused (exit 128)")]
)
def test_without_an_answer_from_git(repositories: Path, monkeypatch, folder: str, detail: str) -> None:
    monkeypatch.setenv("PATH", str(repositories / "G03" / folder))
    found = asked(repositories / "G03" / "main" / "prediction.toml")
    assert found["word"] == "unavailable"
    assert detail in found["detail"]
    assert found["files"] == {}


@pytest.mark.parametrize(
    ("place", "before", "why", "doubts"),
    [
        ("future", True, "the run's commit holds it", ["a date of its commit lies in the future"]),
        ("backdated_author", False, "the run's commit does not hold it", ["author and committer dates of its commit differ"]),
        ("backdated_both", False, "the run's commit does not hold it", ["its commit is dated before the one it follows"]),
        ("renamed/predictions/example.toml", True, "the run's commit holds it", []),
        ("amended", None, "is not in this history", []),
        ("squashed", None, "one commit, which cannot tell what was first", []),
        ("edited_after", False, "it differs from the one that the run recorded", []),
    ],
)  # fmt: skip
def test_before_or_after_a_run(
    repositories: Path, place: str, before: bool | None, why: str, doubts: list[str]
) -> None:
    folder = repositories / "G05" / place.split("/")[0]
    file = repositories / "G05" / place if "." in place else folder / "prediction.toml"
    found = asked(file, "--run", folder / "result.json")
    assert found["before_run"] is before
    assert why in found["why"]
    assert found["doubts"] == doubts


def test_a_module_is_registered_with_its_conftest_and_its_suites(tmp_path: Path, monkeypatch) -> None:
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, os.devnull)
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "Somebody")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "somebody@example.org")
    (tmp_path / "suites").mkdir()
    (tmp_path / "predictions").mkdir()
    suite = tmp_path / "suites" / "small.yaml"
    suite.write_text("question: Which?\nmodel: m\nvary: {parallel: [1, 2]}\n")
    (tmp_path / "conftest.py").write_text("")
    module = tmp_path / "predictions" / "test_it.py"
    module.write_text(
        "import pytest\npytestmark = pytest.mark.joules('small')\ndef test_it(sweep):\n    assert sweep.tokens_per_s[1] > 3\n"
    )

    def git(*arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "predict")
    found = asked(module)
    assert (found["word"], found["remotes"], found["signed"]) == ("registered", [], False)
    assert set(found["files"]) == {"predictions/test_it.py", "suites/small.yaml", "conftest.py"}
    suite.write_text(suite.read_text() + "format: q4_0\n")
    assert asked(module)["detail"] == "not committed as they are: suites/small.yaml"
    git("commit", "-qam", "another format")
    head = registration.examine([module]).head
    assert registration.contains(module, head, asked(module)["files"]) is True
    assert (
        registration.contains(module, f"{head[:-1]}{'0' if head[-1] != '0' else '1'}", asked(module)["files"]) is None
    )


def test_people_get_a_line_or_two(repositories: Path) -> None:
    done = CliRunner().invoke(app, ["registered", str(repositories / "G01" / "shallow" / "prediction.toml")])
    assert len(done.stdout.splitlines()) == 1
    assert "unknown (this is a shallow clone" in done.stdout


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["registered", str(tmp_path / "none.py")])
    assert "there is no such file" in str(done.exception)
