"""`joules note`: the note of a stored run."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pytest_joules.cli import app, print_json
from pytest_joules.errors import UsageError

if TYPE_CHECKING:
    from pytest_joules.store import Store, StoredRun


@app.command()
def note(
    run: Annotated[str, typer.Argument(help="a run's file or id, a suite's name, or 'latest'")] = "latest",
    results: Annotated[Path, typer.Option(help="folder of the results")] = Path("results"),
    as_json: Annotated[
        bool, typer.Option("--json", help="print the table and the verdicts as one JSON object")
    ] = False,
) -> None:
    """Print the note of a stored run: question, machine, table, verdicts, limits.

    Example: joules note quickstart

    With --json the keys are run_id, suite, machine, basis, scope, meter, rows (condition and metrics) and verdicts.
    """
    from pytest_joules import store
    from pytest_joules.note import lines
    from pytest_joules.sweep import from_run

    stored = _find(store.Store(results), run)
    # A prediction judged again has several verdicts on one run; the last is the one that stands.
    verdicts = list({verdict.prediction: verdict for verdict in store.load_verdicts(stored)}.values())
    if not as_json:
        for line in lines.note(stored.run, verdicts, min(shutil.get_terminal_size().columns, 120)):
            typer.echo(line)
        return
    sweep = from_run(stored.run)
    print_json(
        {
            "run_id": stored.run.run_id,
            "suite": stored.run.suite_name,
            "machine": stored.run.machine_slug,
            "basis": stored.run.meter.basis,
            "scope": stored.run.meter.scope,
            "meter": stored.run.meter.name,
            "rows": list(lines.rows(sweep)),
            "verdicts": [dataclasses.asdict(verdict) for verdict in verdicts],
        }
    )


def _find(results: Store, run: str) -> StoredRun:
    from pytest_joules import store

    if Path(run).is_file():
        return store.load(Path(run))
    if not results.folder.is_dir():
        raise UsageError(
            f"there are no results in {results.folder}; run a prediction, or name the folder with --results"
        )
    by_id = sorted(results.folder.glob(f"*/*/{run}.json"))
    if by_id:
        return store.load(by_id[0])
    found = results.latest(None, None if run == "latest" else run)
    if found is None:
        raise UsageError(f"there is no run or suite {run!r} in {results.folder}")
    return found
