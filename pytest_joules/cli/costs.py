"""`joules costs`: what a token costs by machine, from stored results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from pytest_joules.cli import EXIT_FAILED, app, print_json, text_width, write_files
from pytest_joules.errors import UsageError
from pytest_joules.words import one_line, printable

if TYPE_CHECKING:
    from pytest_joules.costs import Curve, Table

YAML, MARKDOWN = "costs.yaml", "costs.md"

_CHANGES_SHOWN = 5


@app.command()
def costs(
    machine: Annotated[
        str,
        typer.Option(
            "--for", metavar="MACHINE", help="of this machine alone, the rest transferred", show_default=False
        ),
    ] = "",
    results: Annotated[Path, typer.Option(help="folder of the results")] = Path("results"),
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help=f"write {YAML} and {MARKDOWN} into this folder", show_default=False),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="say whether the files in -o, or else here, are what the results say")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Table what a token costs by machine, model and batch, with the cheapest batch and what a request gives up there.

    Taken is the newest complete run of each machine, suite and model file that has a figure. With --for, models that the machine
    has no figure of are taken over from other machines, as transferred.

    Example:
        joules costs -o .
        joules costs --check
        joules costs --for desk-left --json

    Exit code: 1 when --check finds the files stale. Keys of --json: version, planned_for (with --for), curves, left_out, remarks
    and skipped.
    """
    if sum((out is not None or check, as_json)) > 1:
        raise UsageError("-o and --check do not go together with --json; ask for one")
    if machine and (out is not None or check):
        raise UsageError("--for is printed, and not kept beside the table of all machines; leave out -o and --check")
    from pytest_joules import costs as table
    from pytest_joules.cli.compare import tell_passed_over

    skipped: list[str] = []
    found = _found(results, skipped)
    if machine:
        found = table.planned(found, machine, _chip(results, machine, skipped))
    tell_passed_over(skipped)
    if check:
        _check(found, out or Path())
    elif out is not None:
        write_files(out, _files(found))
    elif as_json:
        print_json({**table.record(found), "skipped": skipped})
    else:
        for line in table.text(found, text_width()):
            typer.echo(line)


def _found(results: Path, skipped: list[str]) -> Table:
    from pytest_joules import costs as table
    from pytest_joules.cli.compare import runs_by_suite

    curves: list[Curve] = []
    left_out: dict[str, None] = {}
    for _, paths in sorted(runs_by_suite(results).items()):
        curves += _curves(paths, left_out, skipped)
    return table.table(curves, left_out)


def _curves(paths: Sequence[Path], left_out: dict[str, None], skipped: list[str]) -> Iterator[Curve]:
    """The curves of a suite: of each machine and model file those of the newest complete run that has a figure.

    Where none has one, those of the newest, so that what was tried and why it is void is told. Where none is complete, the newest
    is named as left out.
    """
    from pytest_joules import costs as table
    from pytest_joules import store
    from pytest_joules.cli.compare import model_files, passing_over
    from pytest_joules.note.comparison import CUT_SHORT

    found: dict[tuple[object, ...], list[Curve]] = {}
    cut_short: dict[tuple[object, ...], Path] = {}
    for path in reversed(paths):
        with passing_over(path, skipped):
            facts = store.head(path)
            key = (path.parent.parent.name, *model_files(facts))
            if facts["complete"] is not True:
                cut_short.setdefault(key, path)
                continue
            if table.has_figures(found.get(key, ())):
                continue
            run = store.load(path).run
            if why := table.why_left_out(run):
                left_out[why] = None
                continue
            curves = table.curves(run)
            if key not in found:
                found[key] = curves
            elif table.has_figures(curves):
                found[key] = [table.older(curve, found[key]) for curve in curves]
    for key, path in cut_short.items():
        if key not in found:
            left_out[table.left_out(path.parent.parent.name, path.parent.name, path.stem, CUT_SHORT)] = None
    for curves in found.values():
        yield from curves


def _chip(results: Path, machine: str, skipped: list[str]) -> str:
    """What the machine's own facts say it is; empty where there are none."""
    path = results / machine / "machine.json"
    if not path.is_file():
        return ""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        skipped.append(f"{path}: cannot be read: {error}")
        return ""
    return str(facts.get("chip", "")) if isinstance(facts, dict) else ""


def _files(found: Table) -> dict[str, str]:
    from pytest_joules import costs as table

    return {YAML: table.as_yaml(found), MARKDOWN: "\n".join(table.text(found, 0)).rstrip() + "\n"}


def _check(found: Table, out: Path) -> None:
    """Ends with 1 where a file is not what the results say."""
    from pytest_joules import costs as table

    stale = {name: read for name, text in _files(found).items() if (read := _read(out / name)) != text}
    if not stale:
        typer.echo(f"{out / YAML} and {out / MARKDOWN} are what the results say")
        return
    changed: list[str] = []
    if stale.get(YAML):
        changed = table.changes(_parsed(stale[YAML]), found) or ["it is laid out otherwise"]
    for name, read in stale.items():
        what = "is not there" if read is None else "is stale"
        typer.echo(f"joules: {out / name} {what}; run 'joules costs -o {out}'", err=True)
    for change in changed[:_CHANGES_SHOWN]:
        typer.echo(f"  {printable(one_line(change))}", err=True)
    if len(changed) > _CHANGES_SHOWN:
        typer.echo(f"  and {len(changed) - _CHANGES_SHOWN} more", err=True)
    raise typer.Exit(EXIT_FAILED)


def _read(path: Path) -> str | None:
    """`None` of a file that is not there."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None


def _parsed(text: str | None) -> Any:
    try:
        return yaml.safe_load(text or "")
    except yaml.YAMLError:
        return None
