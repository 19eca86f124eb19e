"""`joules check`: suites and predictions before anything is measured."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pytest_joules.cli import EXIT_FAILED, _pytest, app, print_json
from pytest_joules.errors import JoulesError, UsageError

if TYPE_CHECKING:
    from pytest_joules.examining import Examined
    from pytest_joules.session import Session
    from pytest_joules.suite import Suite


@dataclass(frozen=True, slots=True, kw_only=True)
class _Here:
    """What becomes of a suite.

    Attributes:
        errors: what pytest would end with as an error, whatever this machine has.
        lacking: why it cannot be measured on this machine; empty when it can.
        void: conditions that their engine is not made for, with the reason.
    """

    errors: tuple[str, ...]
    lacking: str
    void: dict[str, str]


@app.command()
def check(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="predictions, files or folders; default predictions/")
    ] = None,
    results: Annotated[Path, typer.Option(help="folder of the results")] = Path("results"),
    models: Annotated[
        list[str] | None,
        typer.Option("--joules-models", metavar="DIR", help="where models are looked up, as for pytest; may repeat"),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--joules-model", metavar="NAME=PATH", help="use this file for a model name, as for pytest; may repeat"
        ),
    ] = None,
    server: Annotated[
        list[str] | None,
        typer.Option(
            "--joules-server", metavar="PATH|URL", help="program or address of the engine, as for pytest; may repeat"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Say of every prediction whether it is valid, registered, can fail, can be decided, and can be measured here.

    Each is judged on some hundred made-up tables of its suite's conditions, near a stored run where there is one. The share on which
    it holds says how bold it is: one that always holds predicts nothing and is refused, one that never does is likely a slip.

    Example: joules check predictions/test_quickstart.py

    Exit code: 0, or 1 when anything is refused. Keys of --json: predictions (name, suite, claim, registration, errors, warnings,
    share_held, tables, decidable), suites (name, here: why it cannot be measured on this machine, empty when it can, errors: what is
    wrong with it on any machine, void: conditions that their engine is not made for, with the reason), faults.
    """
    passed = [f"--joules-results={results}"]
    for option, values in (("models", models), ("model", model), ("server", server)):
        passed += [f"--joules-{option}={value}" for value in values or ()]
    collector = _pytest.run(["--joules-check", "--collect-only", *passed], paths or [Path("predictions")])
    if collector is None:
        typer.echo("there is no prediction here")
        raise typer.Exit(EXIT_FAILED)
    session = collector.session
    found, faults = session.examined(thoroughly=True)
    faults = [*collector.faults, *faults]
    here = {name: _here(suite, session) for name, suite in {e.suite.name: e.suite for e in found}.items()}
    if as_json:
        print_json(
            {
                "predictions": [_record(one, session) for one in found],
                "suites": [
                    {"name": name, "here": one.lacking, "errors": list(one.errors), "void": one.void}
                    for name, one in here.items()
                ],
                "faults": faults,
            }
        )
    else:
        for line in _lines(found, here, faults, session):
            typer.echo(line)
    if faults or any(one.errors for one in found) or any(one.errors for one in here.values()):
        raise typer.Exit(EXIT_FAILED)


def _here(suite: Suite, session: Session) -> _Here:
    from pytest_joules import engines
    from pytest_joules.sweep import label

    void = {}
    for condition in suite.conditions:
        setting = suite.setting(condition)
        # An engine that is not here is among what this machine lacks.
        with contextlib.suppress(JoulesError):
            if why := engines.cannot(session.engine(setting.engine), setting):
                void[label(condition) or "the only condition"] = why
    errors = list(dict.fromkeys(_errors(suite, session)))
    if len(void) == len(suite.conditions):
        errors.append(f"nothing can be measured: {'; '.join(dict.fromkeys(void.values()))}")
    return _Here(errors=tuple(errors), lacking=session.impossible(suite), void=void)


def _errors(suite: Suite, session: Session) -> Iterator[str]:
    """What is wrong with the settings, engines and models of a suite; not what this machine lacks."""
    from pytest_joules import protocol

    settings = [suite.setting(condition) for condition in suite.conditions]
    looks: list[Callable[[], object]] = [functools.partial(protocol.check_settings, settings)]
    for one in settings:
        looks += [
            functools.partial(session.engine, one.engine),
            functools.partial(session.model, one.model, one.format, one.engine),
        ]
        if one.draft.draft_model:
            looks.append(functools.partial(session.model, one.draft.draft_model, one.draft.draft_format, one.engine))
    for look in looks:
        try:
            look()
        except UsageError as error:
            yield str(error)
        except JoulesError:
            continue


def _lines(found: list[Examined], here: dict[str, _Here], faults: list[str], session: Session) -> list[str]:
    lines = list(faults)
    for suite, of in here.items():
        if of.errors:
            lines += [f"{suite}: refused: {error}" for error in of.errors]
        else:
            lines.append(
                f"{suite}: {f'cannot be measured here: {of.lacking}' if of.lacking else 'can be measured here'}"
            )
            lines += [f"  {name} will be void: {why}" for name, why in of.void.items()]
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
