"""`joules replay`: predictions judged again on stored runs, without hardware."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pytest_joules.cli import EXIT_FAILED, _pytest, app, print_json, text_width
from pytest_joules.errors import UsageError

if TYPE_CHECKING:
    from pytest_joules.records import Verdict
    from pytest_joules.session import Session
    from pytest_joules.store import StoredRun


@app.command()
def replay(
    run: Annotated[str, typer.Argument(help="latest, all, or the file, id or folder of runs")] = "latest",
    predictions: Annotated[
        list[Path] | None,
        typer.Option(help="files or folders of predictions; default predictions/", show_default=False),
    ] = None,
    results: Annotated[Path, typer.Option(help="folder of the results")] = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Judge predictions again on stored runs: one line for each, and where it was published, what was found there.

    A verdict that differs from the last one is added beside the run (*.verdicts.jsonl); the run itself is never touched.

    Example: joules replay results/apple-m5-pro-24gb

    Exit code: 0, or 1 when a stored or published verdict cannot be reproduced. With --json the keys are runs (run_id, suite,
    machine, basis, verdicts) and unreproduced.
    """
    collector = _pytest.run(
        [f"--joules-replay={run}", f"--joules-results={results}"], predictions or [Path("predictions")]
    )
    session = collector.session if collector else None
    found = _runs(session) if session else []
    if session and not found:
        reasons = [str(outcome.error).removeprefix("--joules-replay ") for outcome in session.measured.values()]
        raise UsageError(reasons[0] if reasons else "there is no prediction here to judge")
    unreproduced = session.unreproduced if session else []
    if as_json:
        print_json({"runs": [_record(*pair) for pair in found], "unreproduced": unreproduced})
    else:
        for stored, verdicts in found:
            typer.echo(_heading(stored))
            for verdict in verdicts.values():
                typer.echo(f"  {_line(verdict)}")
        for line in _matrix(found):
            typer.echo(line)
        for fault in unreproduced:
            typer.echo(f"not reproduced: {fault}")
    if unreproduced or session is None:
        raise typer.Exit(EXIT_FAILED)


def _runs(session: Session) -> list[tuple[StoredRun, dict[str, Verdict]]]:
    found = []
    for outcome in session.measured.values():
        found += [*outcome.also, (outcome.stored, outcome.verdicts)] if outcome.stored else []
    return found


def _matrix(found: list[tuple[StoredRun, dict[str, Verdict]]]) -> list[str]:
    """The same predictions on every machine that has a run of their suite, the newest run of each; nothing for one machine."""
    from pytest_joules.note import comparison

    oldest_first = sorted(found, key=lambda pair: pair[0].run.run_id)
    shared = comparison.matrix(
        ((stored.run.machine_slug, stored.run.meter.basis, v.values()) for stored, v in oldest_first), least=2
    )
    machines = dataclasses.replace(shared, columns=tuple(sorted(shared.columns)))
    return ["", *comparison.matrix_lines(machines, text_width())] if shared.rows else []


def _heading(stored: StoredRun) -> str:
    run = stored.run
    return f"{run.suite_name} on {run.machine_slug}, {run.meter.basis}, run {run.run_id}"


def _line(verdict: Verdict) -> str:
    from pytest_joules.words import one_line

    remarks = [verdict.registration, *([verdict.remark] if verdict.remark else [])]
    why = "" if verdict.word == "held" else verdict.detail or ""
    parts = [f"{verdict.told} [{', '.join(remarks)}]: {verdict.claim}"]
    parts += [f"published: {verdict.published}"] if verdict.published else []
    parts += [f"what it rests on was changed after it was {verdict.changed} on this run"] if verdict.changed else []
    parts += [one_line(why, 160)] if why else []
    parts += [verdict.compared] if verdict.compared and verdict.word == "held" else []
    return " | ".join(parts)


def _record(stored: StoredRun, verdicts: dict[str, Verdict]) -> dict[str, Any]:
    return {
        "run_id": stored.run.run_id,
        "suite": stored.run.suite_name,
        "machine": stored.run.machine_slug,
        "basis": stored.run.meter.basis,
        "verdicts": [dataclasses.asdict(verdict) for verdict in verdicts.values()],
    }
