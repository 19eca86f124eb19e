import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_joules.registration import Registration, closure, contains, examine

NAME = "prediction.toml"


def prediction(joules: str = "0.50") -> str:
    return f'metric = "joules_per_token"\npredicted = {joules}\ntolerance = 0.05\n'


@pytest.fixture(autouse=True)
def _git_of_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """git with nobody's configuration, as an example author."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, os.devnull)
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "Example")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "example@example.invalid")


class Repo:
    """A repository to build step by step, with dates as stated."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def git(self, *arguments: str, day: str = "2026-01-05", authored: str = "") -> str:
        dates = {"GIT_COMMITTER_DATE": f"{day}T10:00:00+00:00", "GIT_AUTHOR_DATE": f"{authored or day}T10:00:00+00:00"}
        command = ["git", "-c", "protocol.file.allow=always", *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=os.environ | dates, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
        return path

    def commit(self, day: str = "2026-01-05", message: str = "made up", authored: str = "") -> str:
        self.git("add", "-A")
        self.git("commit", "-qm", message, day=day, authored=authored)
        return self.git("rev-parse", "HEAD")

    def clone(self, name: str, *options: str) -> "Repo":
        self.git("clone", "-q", *options, f"file://{self.folder}", str(self.folder.parent / name))
        return Repo(self.folder.parent / name)

    def examine(self, *names: str) -> Registration:
        return examine([self.folder / name for name in names or (NAME,)])


@pytest.fixture
def new(tmp_path: Path) -> Callable[[str], Repo]:
    def make(name: str = "repo") -> Repo:
        repo = Repo(tmp_path / name)
        repo.folder.mkdir()
        repo.git("init", "-q", "-b", "main")
        return repo

    return make


@pytest.fixture
def committed(new) -> Repo:
    """A repository with a prediction of the tenth of January."""
    repo = new()
    repo.write("README", "start\n")
    repo.commit("2026-01-05")
    repo.write(NAME, prediction())
    repo.commit("2026-01-10")
    return repo


def test_committed_as_it_is(committed: Repo) -> None:
    found = committed.examine()
    assert (found.word, found.detail, found.changed) == ("registered", "", ())
    assert found.head == found.commit == committed.git("rev-parse", "HEAD")
    assert found.committed.startswith("2026-01-10T10:00:00")
    assert found.blobs == {NAME: committed.git("rev-parse", f"HEAD:{NAME}")}


def test_the_commit_is_the_last_that_touched_any_file_of_the_closure(committed: Repo) -> None:
    before = committed.git("rev-parse", "HEAD")
    committed.write("suites/s.yaml", "question: q\n")
    with_suite = committed.commit("2026-01-15")
    committed.write("README", "more\n")
    head = committed.commit("2026-01-20")
    assert committed.examine().commit == before
    found = committed.examine(NAME, "suites/s.yaml")
    assert (found.word, found.commit, found.head) == ("registered", with_suite, head)
    assert set(found.blobs) == {NAME, "suites/s.yaml"}


def edit(repo: Repo) -> None:
    repo.write(NAME, prediction("0.51"))


def stage(repo: Repo) -> None:
    edit(repo)
    repo.git("add", NAME)


def stage_and_put_back(repo: Repo) -> None:
    stage(repo)
    repo.write(NAME, prediction())


def commit_elsewhere(repo: Repo) -> None:
    repo.git("checkout", "-q", "-b", "side")
    edit(repo)
    repo.commit("2026-01-12")
    repo.git("checkout", "-q", "main")
    edit(repo)


def forget(repo: Repo) -> None:
    repo.git("rm", "-q", "--cached", NAME)


def forget_and_commit(repo: Repo) -> None:
    forget(repo)
    repo.git("commit", "-qm", "forgotten")


def detach(repo: Repo) -> None:
    repo.git("checkout", "-q", "--detach")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (edit, "exploratory"),
        (stage, "exploratory"),
        (stage_and_put_back, "registered"),
        (commit_elsewhere, "exploratory"),
        (forget, "registered"),
        (forget_and_commit, "exploratory"),
        (detach, "registered"),
    ],
)
def test_what_counts_is_the_file_and_the_tree_of_head(
    committed: Repo, change: Callable[[Repo], None], word: str
) -> None:
    change(committed)
    found = committed.examine()
    assert found.word == word
    assert found.changed == (() if word == "registered" else (NAME,))
    assert found.detail == ("" if word == "registered" else f"not committed as they are: {NAME}")


def test_nothing_was_ever_committed(new) -> None:
    repo = new()
    repo.write(NAME, prediction())
    found = repo.examine()
    assert (found.word, found.changed, found.head) == ("exploratory", (NAME,), "")


@pytest.mark.parametrize("part", ["conftest.py", "helpers/limits.py", "suites/s.yaml"])
@pytest.mark.parametrize("how", ["edited", "new"])
def test_every_part_of_the_closure_must_be_committed(new, part: str, how: str) -> None:
    repo = new()
    parts = {
        "predictions/test_x.py": "import pytest\nfrom helpers.limits import LEAST\n",
        "conftest.py": "import os\n",
        "helpers/limits.py": "LEAST = 0.15\n",
        "suites/s.yaml": "question: q\n",
    }
    for name, text in parts.items():
        repo.write(name, text)
    if how == "new":
        repo.git("add", *[name for name in parts if name != part])
        repo.git("commit", "-qm", "without one")
    else:
        repo.commit()
        repo.write(part, parts[part] + "\n")
    files, foreign = closure(
        repo.folder / "predictions" / "test_x.py", repo.folder, [repo.folder / "suites" / "s.yaml"]
    )
    assert foreign == []
    assert {path.relative_to(repo.folder).as_posix() for path in files} == set(parts)
    found = examine(files)
    assert (found.word, found.changed) == ("exploratory", (part,))


# Shallow clones


@pytest.fixture
def full(committed: Repo) -> Repo:
    """A history with a result after the prediction, a merge on a branch, and unrelated commits."""
    committed.write("result.json", '{"joules_per_token": 0.52}\n')
    committed.commit("2026-01-20")
    committed.write("README", "more\n")
    committed.commit("2026-02-10")
    committed.git("checkout", "-q", "-b", "side")
    committed.write("side.txt", "side\n")
    committed.commit("2026-02-20")
    committed.git("checkout", "-q", "main")
    committed.write("README", "again\n")
    committed.commit("2026-02-25")
    committed.git("branch", "merged")
    committed.git("checkout", "-q", "merged")
    committed.git("merge", "-q", "--no-ff", "-m", "merge", "side", day="2026-03-01")
    committed.git("checkout", "-q", "main")
    return committed


def test_a_full_history(full: Repo) -> None:
    found = full.examine()
    assert (found.word, found.committed[:10]) == ("registered", "2026-01-10")


@pytest.mark.parametrize(
    "options", [("--depth", "1"), ("--depth", "1", "-b", "merged"), ("--depth", "3")], ids=["one", "merge", "three"]
)
def test_a_shallow_clone_shows_nothing_and_says_so(full: Repo, options: tuple[str, ...]) -> None:
    shallow = full.clone("shallow", *options)
    found = shallow.examine()
    assert found.word == "unknown"
    assert "shallow clone" in found.detail
    assert "fetch-depth: 0" in found.detail
    assert len(found.detail.splitlines()) == 1
    assert found.blobs == full.examine().blobs


def test_a_shallow_clone_that_reaches_back_far_enough(full: Repo) -> None:
    full.write(NAME, prediction("0.55"))
    full.commit("2026-03-02")
    assert full.clone("shallow", "--depth", "2").examine().word == "registered"


def test_a_shallow_clone_with_an_edited_file(full: Repo) -> None:
    shallow = full.clone("shallow", "--depth", "1")
    edit(shallow)
    assert shallow.examine().word == "exploratory"


# Layouts, and no git


def test_a_linked_worktree(committed: Repo, tmp_path: Path) -> None:
    committed.git("worktree", "add", "-q", str(tmp_path / "wt"), "-b", "wt")
    found = Repo(tmp_path / "wt").examine()
    assert (found.word, found.committed[:10]) == ("registered", "2026-01-10")


@pytest.fixture
def nested(new) -> Repo:
    """A repository with another inside, which holds a prediction of the eleventh."""
    inner = new("inner")
    inner.write(NAME, prediction())
    inner.commit("2026-01-11")
    outer = new("outer")
    outer.write("conftest.py", "\n")
    outer.git("submodule", "--quiet", "add", f"file://{inner.folder}", "deep/sub")
    outer.commit("2026-01-12")
    return outer


def test_a_submodule_answers_for_itself(nested: Repo) -> None:
    found = nested.examine(f"deep/sub/{NAME}")
    assert (found.word, found.committed[:10], list(found.blobs)) == ("registered", "2026-01-11", [NAME])
    nested.write(f"deep/sub/{NAME}", prediction("0.60"))
    assert nested.git("status", "--porcelain", "--ignore-submodules=all") == ""
    found = nested.examine(f"deep/sub/{NAME}")
    assert (found.word, found.changed) == ("exploratory", (NAME,))


def test_a_closure_across_a_submodule(nested: Repo) -> None:
    found = nested.examine("conftest.py", f"deep/sub/{NAME}")
    assert (found.word, set(found.blobs)) == ("registered", {"conftest.py", f"deep/sub/{NAME}"})
    nested.write(f"deep/sub/{NAME}", prediction("0.60"))
    assert nested.examine("conftest.py", f"deep/sub/{NAME}").changed == (f"deep/sub/{NAME}",)


def test_a_downloaded_archive_has_no_history(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(prediction())
    found = examine([tmp_path / NAME])
    assert (found.word, found.detail) == ("unavailable", "this is not a git repository")
    assert (found.head, found.blobs) == ("", {})


def test_no_git_program(committed: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    found = committed.examine()
    assert (found.word, found.detail) == ("unavailable", "there is no git program")


@pytest.mark.parametrize("code", [1, 128])
def test_a_git_that_refuses(committed: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    refusing = tmp_path / "bin" / "git"
    refusing.parent.mkdir()
    refusing.write_text(
        f'#!/bin/sh\necho "fatal: detected dubious ownership in repository at /srv/repo" >&2\nexit {code}\n'
    )
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", str(refusing.parent))
    found = committed.examine()
    assert (found.word, found.head, found.blobs) == ("unavailable", "", {})
    assert found.detail == f"git refused (exit {code}): fatal: detected dubious ownership in repository at /srv/repo"


def test_a_bare_repository_and_a_folder_that_is_gone(committed: Repo, tmp_path: Path) -> None:
    bare = committed.clone("bare.git", "--bare")
    assert bare.examine("HEAD").word == "unavailable"
    found = examine([tmp_path / "gone" / NAME])
    assert (found.word, found.detail) == ("unavailable", "there is no folder gone")


@pytest.mark.parametrize(
    "variables",
    [
        {"GIT_DIR": "other/.git"},
        {"GIT_DIR": "other/.git", "GIT_WORK_TREE": "other"},
        {"GIT_INDEX_FILE": "other/.git/index", "GIT_PREFIX": "deep/"},
        {"GIT_OBJECT_DIRECTORY": "other/.git/objects"},
        {"GIT_COMMON_DIR": "other/.git"},
        {"GIT_NAMESPACE": "hidden"},
        {"GIT_CEILING_DIRECTORIES": ""},
        {"GIT_GLOB_PATHSPECS": "1"},
        {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.worktree", "GIT_CONFIG_VALUE_0": "other"},
        {"GIT_CONFIG_PARAMETERS": "'core.bare'='true'"},
    ],
    ids=lambda variables: ",".join(variables),
)
def test_variables_that_lead_git_elsewhere_are_not_heard(
    committed: Repo, new, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    new("other").git("commit", "-qm", "empty", "--allow-empty")
    committed.write("deep/er/x", "x")
    committed.commit()
    for name, value in variables.items():
        monkeypatch.setenv(name, str(committed.folder.parent / value) if "/" in value or value == "other" else value)
    found = committed.examine(NAME, "deep/er/x")
    assert (found.word, set(found.blobs)) == ("registered", {NAME, "deep/er/x"})


def test_a_replaced_object_is_not_what_was_committed(new) -> None:
    repo = new()
    repo.write("README", "start\n")
    without = repo.commit()
    repo.write(NAME, prediction())
    with_it = repo.commit()
    repo.git("reset", "-q", "--soft", without)
    repo.git("replace", without, with_it)
    assert repo.git("ls-tree", "--name-only", "HEAD").splitlines() == ["README", NAME]
    assert repo.examine().word == "exploratory"


# Line endings and names


def test_line_endings_do_not_matter(new) -> None:
    lf = new("lf")
    lf.write(NAME, prediction())
    lf.commit("2026-01-10")
    crlf, edited = (lf.clone(name, "-c", "core.autocrlf=true") for name in ("crlf", "edited"))
    assert b"\r\n" in (crlf.folder / NAME).read_bytes()
    assert crlf.examine().word == "registered"
    assert crlf.examine().blobs == lf.examine().blobs
    edited.write(NAME, prediction("0.51").replace("\n", "\r\n"))
    assert edited.examine().word == "exploratory"


def test_a_file_that_git_filters_may_be_another_than_it_says(committed: Repo) -> None:
    attributes = committed.folder / ".git" / "info" / "attributes"
    attributes.parent.mkdir(exist_ok=True)
    attributes.write_text(f"{NAME} filter=old\n")
    committed.git("config", "filter.old.clean", f"git show HEAD:{NAME}")
    edit(committed)
    found = committed.examine()
    assert (found.word, found.commit) == ("unknown", "")
    assert found.detail == f"git runs {NAME} through a filter, which may store another text than the file's"
    attributes.write_text(f"{NAME} -filter\n")
    assert committed.examine().word == "exploratory"


@pytest.mark.parametrize("answer", ["/usr", "", "a b c"])
def test_a_git_that_answers_nonsense_shows_nothing(
    committed: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{answer}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    assert committed.examine().word == "unavailable"
    assert contains(committed.folder / NAME, "0" * 40, {NAME: "1" * 40}) in (None, False)


def test_line_endings_by_attribute(new) -> None:
    repo = new()
    repo.write(".gitattributes", "*.toml text eol=crlf\n")
    repo.write(NAME, prediction().replace("\n", "\r\n"))
    repo.commit()
    assert repo.git("cat-file", "-s", f"HEAD:{NAME}") == str(len(prediction()))
    assert repo.examine().word == "registered"


@pytest.mark.parametrize(
    "name",
    [
        "a file with spaces.toml", " leading and trailing ", "prévisions/übermäßig 漢字.toml", "[abc]*?.toml", "-dash.toml",
        ":(top)magic.toml", 'quo"ted.toml', "line\nbreak.toml", "tab\there.toml", "back\\slash.toml", "$HOME 'x'.toml",
    ],
)  # fmt: skip
def test_file_names_of_any_kind(new, name: str) -> None:
    repo = new("a repository with spaces é")
    repo.write("decoy.toml", prediction("0.99"))
    repo.write(name, prediction())
    repo.commit()
    found = repo.examine(name, "decoy.toml")
    assert (found.word, set(found.blobs)) == ("registered", {name, "decoy.toml"})
    repo.write(name, prediction("0.51"))
    found = repo.examine(name, "decoy.toml")
    assert (found.word, found.changed) == ("exploratory", (name,))


def test_a_link_stands_for_what_it_points_to(committed: Repo) -> None:
    (committed.folder / "link.toml").symlink_to(NAME)
    assert committed.examine("link.toml").word == "registered"
    edit(committed)
    assert committed.examine("link.toml").changed == (NAME,)


# Dates, and history that moved


def test_dates_are_shown_and_decide_nothing(new) -> None:
    for name, day, authored in (("future", "2031-01-10", ""), ("backdated", "2026-01-25", "2026-01-10")):
        repo = new(name)
        repo.write(NAME, prediction())
        repo.commit(day, authored=authored)
        found = repo.examine()
        assert (found.word, found.committed[:10]) == ("registered", day)


def test_a_commit_dated_before_its_own_parent(committed: Repo) -> None:
    edit(committed)
    commit = committed.commit("2025-12-01")
    found = committed.examine()
    assert (found.word, found.commit, found.committed[:10]) == ("registered", commit, "2025-12-01")


def test_a_renamed_file_keeps_its_blob(committed: Repo) -> None:
    before = committed.examine().blobs[NAME]
    (committed.folder / "predictions").mkdir()
    committed.git("mv", NAME, "predictions/example.toml")
    assert committed.examine("predictions/example.toml").word == "exploratory"
    committed.commit("2026-02-01")
    found = committed.examine("predictions/example.toml")
    assert (found.word, found.blobs) == ("registered", {"predictions/example.toml": before})


def test_an_amended_commit_has_the_same_blob_under_another_name(committed: Repo) -> None:
    before = committed.examine()
    committed.git("commit", "-q", "--amend", "-m", "reworded", "--reset-author", day="2026-02-01")
    after = committed.examine()
    assert (after.word, after.blobs) == ("registered", before.blobs)
    assert after.commit != before.commit


def test_an_edit_after_the_run_has_another_blob(committed: Repo) -> None:
    before = committed.examine()
    edit(committed)
    committed.commit("2026-01-21", "small fix")
    after = committed.examine()
    assert after.word == "registered"
    assert after.blobs[NAME] != before.blobs[NAME]


# What a prediction's meaning depends on


@pytest.fixture
def lay(tmp_path: Path) -> Callable[..., tuple[list[str], list[str]]]:
    """Lays out files and gives the closure of one of them, by name."""

    def build(
        files: dict[str, str], module: str = "predictions/test_x.py", others: tuple[str, ...] = ()
    ) -> tuple[list[str], list[str]]:
        for name, text in files.items():
            path = tmp_path / "repo" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
        root = tmp_path / "repo"
        found, foreign = closure(root / module, root, [root / other for other in others])
        return [path.relative_to(root).as_posix() for path in found], foreign

    return build


def test_a_module_alone(lay) -> None:
    text = "from __future__ import annotations\nimport math\nimport typing\nimport pytest\nfrom pytest_joules import Sweep\n"
    assert lay({"predictions/test_x.py": text}) == (["predictions/test_x.py"], [])


def test_the_suites_files_and_every_conftest_up_to_the_root_and_no_further(lay, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("")
    files = {
        "predictions/deep/test_x.py": "",
        "predictions/deep/conftest.py": "",
        "conftest.py": "import os\n",
        "suites/a.yaml": "",
        "other/conftest.py": "",
    }
    found, foreign = lay(files, "predictions/deep/test_x.py", ("suites/a.yaml", "suites/a.yaml"))
    assert found == ["predictions/deep/test_x.py", "suites/a.yaml", "predictions/deep/conftest.py", "conftest.py"]
    assert foreign == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import helper", {"predictions/helper.py"}),
        ("from helper import LEAST", {"predictions/helper.py"}),
        ("from helper import *", {"predictions/helper.py"}),
        ("import helper as h, math", {"predictions/helper.py"}),
        ("def test_x(sweep):\n    from helper import LEAST", {"predictions/helper.py"}),
        ("import typing\nif typing.TYPE_CHECKING:\n    import helper", {"predictions/helper.py"}),
        ("import far", {"far.py"}),
        ("import shared.limits", {"shared/limits.py"}),
        ("from shared import limits", {"shared/limits.py"}),
        ("from shared import limits, rates", {"shared/limits.py", "shared/rates.py"}),
        ("from shared.limits import LEAST", {"shared/limits.py"}),
        ("import pack", {"pack/__init__.py"}),
        ("from pack import NAME", {"pack/__init__.py"}),
        ("from pack import inner", {"pack/__init__.py", "pack/inner.py"}),
        ("from pack import inner, NAME", {"pack/__init__.py", "pack/inner.py"}),
        ("import pack.sub.leaf", {"pack/__init__.py", "pack/sub/__init__.py", "pack/sub/leaf.py", "pack/inner.py"}),
        ("import both", {"both/__init__.py"}),
        ("import chain", {"chain.py", "far.py", "predictions/helper.py"}),
        ("import ring_a", {"ring_a.py", "ring_b.py"}),
        ("pytest_plugins = ['shared.limits']", {"shared/limits.py"}),
    ],
)
def test_what_a_prediction_imports_belongs_to_it(lay, text: str, expected: set[str]) -> None:
    files = {
        "predictions/helper.py": "LEAST = 1\n",
        "far.py": "",
        "shared/limits.py": "LEAST = 1\n",
        "shared/rates.py": "",
        "pack/__init__.py": "NAME = 1\n",
        "pack/inner.py": "",
        "pack/sub/__init__.py": "from .. import inner\n",
        "pack/sub/leaf.py": "from . import NOTHING\n",
        "both/__init__.py": "",
        "both.py": "",
        "chain.py": "import far\nimport predictions.helper\n",
        "ring_a.py": "import ring_b\n",
        "ring_b.py": "import ring_a\n",
    }
    found, foreign = lay({**files, "predictions/test_x.py": f"{text}\n"})
    assert set(found) == {"predictions/test_x.py", *expected}
    assert foreign == []


def test_a_module_inside_a_package(lay) -> None:
    files = {
        "predictions/__init__.py": "from . import setup\n",
        "predictions/setup.py": "",
        "predictions/energy/__init__.py": "",
        "predictions/energy/test_x.py": "from . import near\nfrom ..limits import LEAST\nfrom .. import shared\nfrom .near import ONE\n",
        "predictions/energy/near.py": "",
        "predictions/limits.py": "",
        "predictions/shared.py": "",
    }
    found, foreign = lay(files, "predictions/energy/test_x.py")
    assert set(found) == set(files)
    assert foreign == []


@pytest.mark.parametrize(
    ("text", "foreign"),
    [
        ("import numpy as np", ["numpy"]),
        ("import os.path", ["os.path"]),
        ("from subprocess import run", ["subprocess"]),
        ("def test_x(sweep):\n    import requests", ["requests"]),
        ("from helper import LEAST", ["socket"]),
        ("import json\nimport json", ["json"]),
        ("pytest_plugins = ('pytester',)", ["pytester"]),
    ],
)
def test_what_reaches_outside_is_named(lay, text: str, foreign: list[str]) -> None:
    assert lay({"predictions/test_x.py": f"{text}\n", "predictions/helper.py": "import socket\n"})[1] == foreign


def test_a_conftest_may_reach_the_machine_but_what_it_imports_belongs_to_the_closure(lay) -> None:
    files = {
        "predictions/test_x.py": "import a\n",
        "conftest.py": "import os\nfrom fixtures import ours\nimport b\n",
        "fixtures.py": "import subprocess\n",
        "a.py": "import b\n",
        "b.py": "import socket\n",
    }
    found, foreign = lay(files)
    assert set(found) == set(files)
    # The helper that both import is the prediction's too.
    assert foreign == ["socket"]


def test_the_package_itself_is_no_part_of_a_closure_in_its_own_repository(lay) -> None:
    files = {
        "predictions/test_x.py": "from pytest_joules import Sweep\n",
        "pytest_joules/__init__.py": "import numpy\n",
    }
    assert lay(files) == (["predictions/test_x.py"], [])


@pytest.mark.parametrize("text", ["\ufeffimport helper\n", "# -*- coding: utf-8 -*-\r\nimport helper\r\n"])
def test_files_as_editors_save_them(lay, text: str) -> None:
    assert "predictions/helper.py" in lay({"predictions/test_x.py": text, "predictions/helper.py": ""})[0]


@pytest.mark.parametrize("text", ["def broken(:\n", "\x00"])
def test_a_file_that_is_no_python_is_still_part_of_it(lay, text: str) -> None:
    files = {"predictions/test_x.py": "import helper\n", "predictions/helper.py": text}
    assert lay(files) == (["predictions/test_x.py", "predictions/helper.py"], [])
