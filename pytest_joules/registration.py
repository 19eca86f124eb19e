"""What git can show about when a prediction was said.

The unit is the closure of a prediction: every file of the repository that its meaning depends on. It is registered when each of
them is in HEAD's tree and equal to the working file as git would store it, so line endings do not matter. Dates are
shown and never trusted.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Word = Literal["registered", "exploratory", "unknown", "unavailable"]

ALLOWED_IMPORTS = frozenset({"__future__", "math", "pytest", "pytest_joules", "typing"})
"""What a prediction may import beside files of its own repository: nothing that could touch the machine."""

_TIMEOUT_S = 20
_NONSENSE = "git answered something that makes no sense here"
_SCRUBBED = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR", "GIT_NAMESPACE", "GIT_PREFIX", "GIT_CEILING_DIRECTORIES", "GIT_DISCOVERY_ACROSS_FILESYSTEM",
    "GIT_SHALLOW_FILE", "GIT_GRAFT_FILE", "GIT_REPLACE_REF_BASE", "GIT_CONFIG", "GIT_CONFIG_COUNT", "GIT_CONFIG_PARAMETERS",
    "GIT_IMPLICIT_WORK_TREE", "GIT_ATTR_SOURCE", "GIT_DEFAULT_HASH",
    "GIT_LITERAL_PATHSPECS", "GIT_GLOB_PATHSPECS", "GIT_NOGLOB_PATHSPECS", "GIT_ICASE_PATHSPECS",
)  # fmt: skip
"""Variables that would make git answer for another repository or another file (a hook sets some of them)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What git showed.

    Attributes:
        detail: why the word is not `registered`; empty when it is.
        head: commit the working tree is on.
        commit: last commit that touched any file of the closure.
        committed: that commit's committer date as git gives it; a label, no evidence.
        blobs: git blob id by path within the repository.
        changed: files that are not committed as they are, as paths below `top`.
        top: the repository's folder, to tell how to commit; it is never kept.
    """

    word: Word
    detail: str = ""
    head: str = ""
    commit: str = ""
    committed: str = ""
    blobs: Mapping[str, str] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    top: Path | None = None


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
    conftests = [path for folder in _folders(module.parent, root) if (path := folder / "conftest.py").is_file()]
    files = [module, *others, *conftests]
    foreign: list[str] = []
    seen: set[Path] = set()
    # What a conftest imports belongs to the meaning too, but unlike a prediction it may reach the machine.
    for todo, confined in (([module], True), (conftests, False)):
        while todo:
            current = todo.pop()
            if current in seen:
                continue
            seen.add(current)
            found = _packages_around(current)
            for name, folders in _imports(current, root):
                if name.split(".")[0] in ALLOWED_IMPORTS:
                    continue
                target = _module_file(name, folders)
                if target is not None:
                    found.append(target)
                elif confined:
                    foreign.append(name)
            files += found
            todo += found
    return list(dict.fromkeys(files)), list(dict.fromkeys(foreign))


def _folders(folder: Path, root: Path) -> list[Path]:
    """A folder and those above it, up to `root`."""
    folders = [folder, *folder.parents]
    return folders[: folders.index(root) + 1] if root in folders else folders


def _packages_around(path: Path) -> list[Path]:
    """The `__init__.py` of every package that a file is in: they run before it."""
    found = []
    for folder in path.parents:
        if not (folder / "__init__.py").is_file():
            break
        found.append(folder / "__init__.py")
    return found


def _imports(path: Path, root: Path) -> list[tuple[str, list[Path]]]:
    """Modules that a file makes Python import, each with the folders in which they are looked for."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    # pytest puts the folders of test modules and conftest files on the import path.
    anywhere = _folders(path.parent, root)
    found: list[tuple[str, list[Path]]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, anywhere) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            folders = [path.parents[min(node.level, len(path.parents)) - 1]] if node.level else anywhere
            # What is imported from a package may be a module of it, or a name inside it.
            inside = [".".join(filter(None, (node.module, alias.name))) for alias in node.names]
            modules = [name for name in inside if _module_file(name, folders)]
            found += [(name, folders) for name in modules or filter(None, [node.module])]
        elif isinstance(node, ast.Assign) and "pytest_plugins" in [
            t.id for t in node.targets if isinstance(t, ast.Name)
        ]:
            texts = [part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant)]
            found += [(text, anywhere) for text in texts if isinstance(text, str)]
    return found


def _module_file(name: str, folders: Sequence[Path]) -> Path | None:
    parts = Path(*name.split("."))
    for folder in folders:
        for candidate in (folder / parts / "__init__.py", folder / parts.with_suffix(".py")):
            if candidate.is_file():
                return candidate
    return None


def examine(files: Sequence[Path]) -> Registration:
    """Ask git about the files of a closure. Never raises: what cannot be shown is said."""
    try:
        return _examine([file.resolve() for file in files])
    except _GitError as error:
        return Registration(word="unavailable", detail=str(error))
    except (ValueError, IndexError):
        return Registration(word="unavailable", detail=_NONSENSE)


def _examine(files: Sequence[Path]) -> Registration:
    tops = {
        file: Path(_git(file.parent, "rev-parse", "--show-toplevel").removesuffix("\n")).resolve() for file in files
    }
    main = tops[files[0]]
    head = _git(main, "rev-parse", "--verify", "--quiet", "HEAD", fails="").strip()
    blobs: dict[str, str] = {}
    changed: list[str] = []
    for top in dict.fromkeys(tops.values()):
        members = [file.relative_to(top).as_posix() for file in files if tops[file] == top]
        committed = _tree_blobs(top, members)
        # The names go as arguments: on standard input a line break or a quotation mark in one means something.
        working = dict(zip(members, _git(top, "hash-object", "--", *members).split(), strict=True))
        inside = top.relative_to(main).as_posix() if top.is_relative_to(main) else top.name
        prefix = "" if top == main else f"{inside}/"
        blobs |= {prefix + name: blob for name, blob in working.items()}
        changed += [prefix + name for name in members if committed.get(name) != working[name]]
    if changed:
        return Registration(
            word="exploratory",
            detail=f"not committed as they are: {', '.join(changed)}",
            head=head,
            blobs=blobs,
            changed=tuple(changed),
            top=main,
        )
    filtered = _filtered(tops)
    if filtered:
        return Registration(
            word="unknown",
            detail=f"git runs {', '.join(filtered)} through a filter, which may store another text than the file's",
            head=head,
            blobs=blobs,
        )
    own = [file.relative_to(main).as_posix() for file in files if tops[file] == main]
    logged = _git(main, "log", "-1", "--no-show-signature", "--format=%H%n%cI%n%P", "--", *own, fails="")
    commit, committed_date, parents, *_ = [*logged.split("\n"), "", ""]
    known = {"head": head, "commit": commit, "committed": committed_date, "blobs": blobs}
    shallow = _git(main, "rev-parse", "--is-shallow-repository").strip() == "true"
    if shallow and (not commit or not parents.strip()):
        detail = (
            "this is a shallow clone, its history starts too late to show the commit; fetch it whole (fetch-depth: 0)"
        )
        return Registration(word="unknown", detail=detail, **known)  # type: ignore[arg-type]
    return Registration(word="registered", **known)  # type: ignore[arg-type]


def _filtered(tops: Mapping[Path, Path]) -> list[str]:
    """Names of files that an attribute sends through a filter: a program then decides what git takes for their content."""
    found = []
    for top in dict.fromkeys(tops.values()):
        members = [file.relative_to(top).as_posix() for file in tops if tops[file] == top]
        shown = _git(top, "check-attr", "-z", "filter", "--", *members).split("\0")
        found += [
            name
            for name, value in zip(shown[::3], shown[2::3], strict=False)
            if value not in ("unspecified", "unset", "set")
        ]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What else git shows about a commit; none of it decides.

    Attributes:
        authored, committed: its dates as git gives them.
        remotes: remote-tracking branches that hold it: somebody else may have seen it.
        signed: it carries a signature, whether or not this machine can check it.
        doubts: what is odd about its dates.
    """

    authored: str = ""
    committed: str = ""
    remotes: tuple[str, ...] = ()
    signed: bool = False
    doubts: tuple[str, ...] = ()


_APART_S = 86400.0
"""Author and committer dates further apart than this are told of: an amended or rebased commit keeps the author's."""


def evidence(file: Path, commit: str) -> Evidence:
    """Dates, remotes and signature of a commit. Never raises: what git does not show is left out."""
    if not commit:
        return Evidence()
    try:
        shown = _git(file.parent, "log", "-1", "--no-show-signature", "--format=%aI%n%cI%n%at%n%ct", commit, "--")
        authored, committed, author_s, committer_s = shown.split()
        remotes = _git(file.parent, "branch", "-r", "--format=%(refname:short)", "--contains", commit, fails="").split()
        raw = _git(file.parent, "cat-file", "commit", commit, fails="")
        parents = _git(
            file.parent, "log", "--no-walk", "--no-show-signature", "--format=%ct", f"{commit}^@", "--", fails=""
        ).split()
    except (_GitError, ValueError):
        return Evidence()
    doubts = []
    if max(float(author_s), float(committer_s)) > time.time() + _APART_S:
        doubts.append("a date of its commit lies in the future")
    if abs(float(author_s) - float(committer_s)) > _APART_S:
        doubts.append("author and committer dates of its commit differ")
    if any(float(parent_s) > float(committer_s) for parent_s in parents):
        doubts.append("its commit is dated before the one it follows")
    return Evidence(
        authored=authored,
        committed=committed,
        remotes=tuple(remotes),
        signed="\ngpgsig" in raw.split("\n\n", 1)[0],
        doubts=tuple(doubts),
    )


def before(file: Path, head: str, recorded_blob: str, result: Path | None = None) -> tuple[bool | None, str]:
    """Whether a prediction, as it is now, was there when a run began.

    Args:
        file: the prediction.
        head: commit that the run recorded.
        recorded_blob: git blob id of the prediction that the run recorded, when it did.
        result: the run's file, when it is in the repository too.

    Returns:
        (yes, no, or `None` where history cannot show it; why).
    """
    try:
        blob = _git(file.parent, "hash-object", "--", file.name).strip()
        known = re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", recorded_blob) is not None
        if known and blob != recorded_blob:
            return False, "it differs from the one that the run recorded"
        if not _git(file.parent, "rev-parse", "--verify", "--quiet", f"{head}^{{commit}}", fails=""):
            same = " (its content is the one that the run recorded)" if known else ""
            return None, f"the commit that the run recorded is not in this history: rewritten, or another clone{same}"
        # By content: a file that was only renamed since is the same prediction.
        tree = _git(file.parent, "ls-tree", "-r", "-z", "--full-tree", head)
        if any(entry.split("\t", 1)[0].split()[-1] == blob for entry in tree.split("\0") if entry):
            return True, "the run's commit holds it"
        if result is not None and _introduced(file) and _introduced(file) == _introduced(result):
            return None, "it came with the result in one commit, which cannot tell what was first"
    except _GitError as error:
        return None, str(error)
    except (ValueError, IndexError):
        return None, _NONSENSE
    return False, "the run's commit does not hold it"


def _introduced(file: Path) -> str:
    """The commit that a file came with, followed through renames; empty when git does not show it."""
    added = _git(
        file.parent,
        "log",
        "--follow",
        "--diff-filter=A",
        "--no-show-signature",
        "--format=%H",
        "--",
        file.name,
        fails="",
    )
    return added.split()[-1] if added.split() else ""


def contains(file: Path, commit: str, blobs: Mapping[str, str]) -> bool | None:
    """Whether a commit's tree holds each of these blobs at its path.

    Args:
        file: any file of the repository.
        commit: its id, as a result keeps it.
        blobs: git blob id by path within the repository.

    Returns:
        `None` when git cannot show it: there is no such commit here, or no git.
    """
    if not commit or not blobs:
        return None
    try:
        top = Path(_git(file.parent, "rev-parse", "--show-toplevel").removesuffix("\n")).resolve()
        if not _git(top, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}", fails=""):
            return None
        return _tree_blobs(top, list(blobs), commit) == dict(blobs)
    except (_GitError, ValueError, IndexError):
        return None


def _tree_blobs(top: Path, members: Sequence[str], commit: str = "HEAD") -> dict[str, str]:
    """Blob id in a commit's tree by path; none before the first commit."""
    blobs: dict[str, str] = {}
    if not _git(top, "rev-parse", "--verify", "--quiet", commit, fails=""):
        return blobs
    for entry in _git(top, "ls-tree", "-z", commit, "--", *members).split("\0"):
        if entry:
            meta, path = entry.split("\t", 1)
            blobs[path] = meta.split()[2]
    return blobs


def _git(folder: Path, *arguments: str, fails: str | None = None) -> str:
    """Standard output of a git command; its messages are never taken for data.

    Args:
        fails: what to give when git exits with an error; by default `_GitError` is raised.
    """
    environment = {key: value for key, value in os.environ.items() if key not in _SCRUBBED}
    # Replaced objects would show another history than the one that was committed.
    environment |= {
        "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_REPLACE_OBJECTS": "1",
    }  # fmt: skip
    try:
        done = subprocess.run(
            ["git", "-c", "core.quotepath=off", "--literal-pathspecs", *arguments],
            cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, check=False,
            # Paths are bytes to git, whatever the locale of this process.
            encoding="utf-8", errors="surrogateescape",
        )  # fmt: skip
    except FileNotFoundError as error:
        if error.filename in (folder, str(folder)):
            raise _GitError(f"there is no folder {folder.name}") from None
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
