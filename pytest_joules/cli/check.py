"""`joules check`: suites and predictions before anything is measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pytest_joules.cli import EXIT_FAILED, _pytest, app, print_json

if TYPE_CHECKING:
    from pytest_joules.examining import Examined
    from pytest_joules.session import Session


@app.command()
def check(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="predictions, files or folders; default predictions/")
    ] = None,
    results: Annotated[Path, typer.Option(help="folder of the results")] = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Say of every prediction whether it is valid, registered, can fail, can be decided, and can be measured here.

    Each is judged on some hundred made-up tables of its suite's conditions, near a stored run where there is one. The share on which
    it holds says how bold it is: one that always holds predicts nothing and is refused, one that never does is likely a slip.

    Example: joules check predictions/test_quickstart.py

    Exit code: 0, or 1 when anything is refused. Keys of --json: predictions (name, suite, claim, registration, errors, warnings,
    share_held, tables, decidable), suites (name, here: why it cannot be measured on this machine, empty when it can), faults.
    """
    collector = _pytest.run(
        ["--joules-check", "--collect-only", f"--joules-results={results}"], paths or [Path("predictions")]
    )
    if collector is None:
        typer.echo("there is no prediction here")
        raise typer.Exit(EXIT_FAILED)
    session = collector.session
    found, faults = session.examined(thoroughly=True)
    faults = [*collector.faults, *faults]
    here = {name: session.impossible(suite) for name, suite in {e.suite.name: e.suite for e in found}.items()}
    if as_json:
        print_json(
            {
                "predictions": [_record(one, session) for one in found],
                "suites": [{"name": name, "here": why} for name, why in here.items()],
                "faults": faults,
            }
        )
    else:
        for line in _lines(found, here, faults, session):
            typer.echo(line)
    if faults or any(one.errors for one in found):
        raise typer.Exit(EXIT_FAILED)


def _lines(found: list[Examined], here: dict[str, str], faults: list[str], session: Session) -> list[str]:
    lines = list(faults)
    for suite, why in here.items():
        lines.append(f"{suite}: {'can be measured here' if not why else f'cannot be measured here: {why}'}")
        for one in found:
            if one.suite.name == suite:
                lines.append(
                    f"  {_verdict(one)} [{session.standing(one.prediction.name).word}]: {one.prediction.claim}"
                )
                lines += [f"      refused: {error}" for error in one.errors]
                lines += [f"      warning: {warning}" for warning in one.warnings]
    return lines


def _verdict(one: Examined) -> str:
    if one.errors:
        return "refused"
    decided = f", decided on {one.decidable:.0%} of those" if one.decidable is not None else ""
    return f"holds on {one.share_held or 0:.0%} of {one.tables} tables{decided}"


def _record(one: Examined, session: Session) -> dict[str, Any]:
    registered = session.standing(one.prediction.name)
    return {
        "name": one.prediction.name,
        "suite": one.suite.name,
        "claim": one.prediction.claim,
        "registration": registered.word,
        "registration_detail": registered.detail,
        "errors": list(one.errors),
        "warnings": list(one.warnings),
        "share_held": one.share_held,
        "tables": one.tables,
        "decidable": one.decidable,
    }
