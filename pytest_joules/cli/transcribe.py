"""`joules transcribe`: runs from a file of published figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pytest_joules.cli import app


@app.command()
def transcribe(
    file: Annotated[Path, typer.Argument(help="YAML with the figures as they were printed")],
    results: Annotated[Path, typer.Option(help="folder of the results")] = Path("results"),
) -> None:
    """Make runs of figures that somebody else published, with the basis `transcribed`.

    Runs that are there already are left as they are: a run is never overwritten.

    Example: joules transcribe results/apple-m5-pro-24gb/published.yaml
    """
    from pytest_joules import store, suite, transcription
    from pytest_joules.session import load_suite

    here = Path.cwd()
    kept = store.Store(results)
    for run in transcription.read(file, lambda name: load_suite(suite.find(name, here, here))):
        try:
            written = kept.write(run, ())
        except FileExistsError:
            typer.echo(f"{run.suite_name}: {run.run_id} is there already")
        else:
            typer.echo(f"{run.suite_name}: {written.path}")
