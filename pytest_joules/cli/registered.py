"""`joules registered`: what git can show about when a prediction was said."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from pytest_joules.cli import EXIT_FAILED, app, print_json
from pytest_joules.errors import UsageError


@app.command()
def registered(
    file: Annotated[Path, typer.Argument(help="a prediction: its module, or any file that states it")],
    run: Annotated[
        Path | None, typer.Option(help="a run's file: was the prediction there when it began?", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Say whether a prediction is committed as it stands, since when, and whether it was before a run.

    Its closure counts as a whole: the module, the conftest files above it, what they import, and the suites they name. Dates are
    shown and never trusted. A local history proves nothing to others; a commit on a remote or with a signature is stronger.

    Example: joules registered predictions/test_quickstart.py --run results/MACHINE/SUITE/RUN.json

    Exit code: 0 when it is registered (and with --run was before the run), else 1. Keys of --json: file, word, detail, head,
    commit, authored, committed, remotes, signed, doubts, files, and with --run before_run and why.
    """
    record = describe(file, run)
    if as_json:
        print_json(record)
    else:
        for line in _lines(record):
            typer.echo(line)
    if record["word"] != "registered" or record.get("before_run", True) is not True:
        raise typer.Exit(EXIT_FAILED)


def describe(file: Path, run: Path | None = None) -> dict[str, Any]:
    """What `--json` prints.

    Raises:
        UsageError: there is no such file, or the run's file is none.
    """
    from pytest_joules import registration

    if not file.is_file():
        raise UsageError(f"{file}: there is no such file")
    files = _closure(file.resolve())
    found = registration.examine(files)
    shown = registration.evidence(file.resolve(), found.commit)
    record: dict[str, Any] = {
        "file": str(file),
        "word": found.word,
        "detail": found.detail,
        "head": found.head,
        "commit": found.commit,
        "authored": shown.authored,
        "committed": shown.committed,
        "remotes": list(shown.remotes),
        "signed": shown.signed,
        "doubts": list(shown.doubts),
        "files": dict(found.blobs),
    }
    if run is not None:
        head, blob = _recorded(run, file)
        record["before_run"], record["why"] = registration.before(file.resolve(), head, blob, run.resolve())
    return record


def _closure(file: Path) -> list[Path]:
    """The files that a prediction's meaning depends on; of a file that is no module, that file alone."""
    from pytest_joules import registration, suite
    from pytest_joules.session import load_suite
    from pytest_joules.workload import questions

    if file.suffix != ".py":
        return [file]
    root = next((f for f in (file.parent, *file.parents) if (f / ".git").exists()), file.parent)
    others: list[Path] = []
    for name in _suites_named(file):
        try:
            found = load_suite(suite.find(name, file.parent, root))
            others += [*found.files, *questions.own_files(found, root)]
        except UsageError:
            continue  # the suite is told of where it is used
    return registration.closure(file, root, others)[0]


def _suites_named(file: Path) -> list[str]:
    """The suites in `pytest.mark.joules(...)` of a module, where they are written as they are."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "joules"
    ]
    named = [argument for call in calls for argument in call.args]
    named += [keyword.value for call in calls for keyword in call.keywords if keyword.arg in ("suite", "against")]
    return list(dict.fromkeys(a.value for a in named if isinstance(a, ast.Constant) and isinstance(a.value, str)))


def _recorded(run: Path, file: Path) -> tuple[str, str]:
    """The commit and the prediction's blob that a run recorded."""
    try:
        record = json.loads(run.read_text(encoding="utf-8"))
        provenance = record.get("provenance", record)
        blobs = provenance.get("blobs", {})
        # The path within the repository ends as the file's own does, the longest match first.
        path = max((p for p in blobs if file.resolve().as_posix().endswith(f"/{p}")), key=len, default="")
        return str(provenance.get("head", "")), str(blobs.get(path) or provenance.get("prediction_blob", ""))
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"{run}: is no run: {error}") from None


def _lines(record: dict[str, Any]) -> list[str]:
    lines = [f"{record['file']}: {record['word']}" + (f" ({record['detail']})" if record["detail"] else "")]
    if record["commit"] and record["word"] == "registered":
        strength = [f"on {', '.join(record['remotes'])}" if record["remotes"] else "on no remote"]
        strength.append("signed" if record["signed"] else "not signed")
        lines.append(f"  last changed in {record['commit'][:12]} of {record['committed']}; {', '.join(strength)}")
    lines += [f"  {doubt}" for doubt in record["doubts"]]
    lines += [f"  {len(record['files'])} files: {', '.join(record['files'])}"] if len(record["files"]) > 1 else []
    if "before_run" in record:
        word = {True: "before the run", False: "not before the run", None: "before or after the run, unknown"}[
            record["before_run"]
        ]
        lines.append(f"  {word}: {record['why']}")
    return lines
