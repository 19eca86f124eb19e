"""What git can show about when a prediction was said.

The unit is the closure of a prediction: every file of the repository that its meaning depends on. It is registered when each of
them is in HEAD's tree and equal to the working file as git would store it, so line endings do not matter. Dates are
shown and never trusted.
"""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Word = Literal["registered", "exploratory", "unknown", "unavailable"]

ALLOWED_IMPORTS = frozenset({"__future__", "math", "pytest", "pytest_joules", "typing"})
"""What a prediction may import beside files of its own repository: nothing that could touch the machine."""

_TIMEOUT_S = 20
_SCRUBBED = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR", "GIT_NAMESPACE", "GIT_PREFIX", "GIT_CEILING_DIRECTORIES", "GIT_DISCOVERY_ACROSS_FILESYSTEM",
    "GIT_SHALLOW_FILE", "GIT_GRAFT_FILE", "GIT_REPLACE_REF_BASE", "GIT_CONFIG_COUNT", "GIT_CONFIG_PARAMETERS",
)  # fmt: skip
"""Variables that would make git answer for another repository than the file's own (a hook sets some of them)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What git showed.

    Attributes:
        detail: why the word is not `registered`; empty when it is.
        head: commit the working tree is on.
        commit: last commit that touched any file of the closure.
        committed: that commit's committer date as git gives it; a label, no evidence.
        blobs: git blob id by path within the repository.
        changed: files that are not committed as they are.
    """

    word: Word
    detail: str = ""
    head: str = ""
    commit: str = ""
    committed: str = ""
    blobs: Mapping[str, str] = field(default_factory=dict)
    changed: tuple[str, ...] = ()


class _GitError(Exception):
    pass


def closure(module: Path, root: Path, others: Iterable[Path]) -> tuple[list[Path], list[str]]:
    """Files a prediction's meaning depends on, and imports that reach outside them.

    Args:
        module: the prediction's test module.
        root: folder above which nothing counts.
        others: the suite's files and what they name.

    Returns:
        (files, names of imported modules that are neither allowed nor files of the repository).
    """
    files = [module, *others]
    folder = module.parent
    while True:
        if (folder / "conftest.py").is_file():
            files.append(folder / "conftest.py")
        if folder in (root, folder.parent):
            break
        folder = folder.parent
    foreign: list[str] = []
    todo, seen = [module], set()
    while todo:
        current = todo.pop()
        if current in seen:
            continue
        seen.add(current)
        for name in _imports(current):
            found = _module_file(name, (current.parent, root))
            if found is not None:
                files.append(found)
                todo.append(found)
            elif name.split(".")[0] not in ALLOWED_IMPORTS:
                foreign.append(name)
    return list(dict.fromkeys(files)), foreign


def _imports(path: Path) -> list[str]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return []
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            prefix = node.module or ""
            if node.level:
                names += [prefix] if prefix else [alias.name for alias in node.names]
            else:
                names.append(prefix)
    return names


def _module_file(name: str, folders: Sequence[Path]) -> Path | None:
    parts = Path(*name.split("."))
    for folder in folders:
        for candidate in (folder / parts.with_suffix(".py"), folder / parts / "__init__.py"):
            if candidate.is_file():
                return candidate
    return None


def examine(files: Sequence[Path]) -> Registration:
    """Ask git about the files of a closure. Never raises: what cannot be shown is said."""
    try:
        return _examine([file.resolve() for file in files])
    except _GitError as error:
        return Registration(word="unavailable", detail=str(error))


def _examine(files: Sequence[Path]) -> Registration:
    tops = {file: Path(_git(file.parent, "rev-parse", "--show-toplevel").strip()).resolve() for file in files}
    main = tops[files[0]]
    head = _git(main, "rev-parse", "--verify", "--quiet", "HEAD", fails="").strip()
    blobs: dict[str, str] = {}
    changed: list[str] = []
    for top in dict.fromkeys(tops.values()):
        members = [file.relative_to(top).as_posix() for file in files if tops[file] == top]
        committed = _tree_blobs(top, members) if head else {}
        working = dict(
            zip(members, _git(top, "hash-object", "--stdin-paths", stdin="\n".join(members)).split(), strict=True)
        )
        prefix = "" if top == main else f"{top.name}/"
        blobs |= {prefix + name: blob for name, blob in working.items()}
        changed += [prefix + name for name in members if committed.get(name) != working[name]]
    if changed:
        return Registration(
            word="exploratory",
            detail=f"not committed as they are: {', '.join(changed)}",
            head=head,
            blobs=blobs,
            changed=tuple(changed),
        )
    own = [file.relative_to(main).as_posix() for file in files if tops[file] == main]
    logged = _git(main, "log", "-1", "--format=%H%n%cI%n%P", "--", *own, fails="")
    commit, committed_date, parents, *_ = [*logged.split("\n"), "", ""]
    known = {"head": head, "commit": commit, "committed": committed_date, "blobs": blobs}
    shallow = _git(main, "rev-parse", "--is-shallow-repository").strip() == "true"
    if shallow and (not commit or not parents.strip()):
        detail = (
            "this is a shallow clone, its history starts too late to show the commit; fetch it whole (fetch-depth: 0)"
        )
        return Registration(word="unknown", detail=detail, **known)  # type: ignore[arg-type]
    return Registration(word="registered", **known)  # type: ignore[arg-type]


def _tree_blobs(top: Path, members: Sequence[str]) -> dict[str, str]:
    """Blob id in HEAD's tree by path."""
    blobs = {}
    for entry in _git(top, "ls-tree", "-z", "HEAD", "--", *members).split("\0"):
        if entry:
            meta, path = entry.split("\t", 1)
            blobs[path] = meta.split()[2]
    return blobs


def _git(folder: Path, *arguments: str, stdin: str = "", fails: str | None = None) -> str:
    """Standard output of a git command; its messages are never taken for data.

    Args:
        fails: what to give when git exits with an error; by default `_GitError` is raised.
    """
    environment = {key: value for key, value in os.environ.items() if key not in _SCRUBBED}
    environment |= {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            ["git", "-c", "core.quotepath=off", "--literal-pathspecs", *arguments],
            cwd=folder, env=environment, input=stdin, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise _GitError("there is no git program") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _GitError(f"git did not answer: {error}") from None
    if done.returncode == 0:
        return done.stdout
    if fails is not None:
        return fails
    if "not a git repository" in done.stderr:
        raise _GitError("this is not a git repository")
    raise _GitError(f"git refused (exit {done.returncode}): {' '.join(done.stderr.split())[:200]}")
