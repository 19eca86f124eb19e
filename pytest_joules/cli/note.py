"""`joules note`: the note of a stored run."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pytest_joules.cli import app, print_json
from pytest_joules.errors import UsageError

if TYPE_CHECKING:
    from pytest_joules.note.document import Document
    from pytest_joules.records import Verdict
    from pytest_joules.store import Store, StoredRun


@app.command()
def note(
    run: Annotated[str, typer.Argument(help="a run's file or id, a suite's name, or 'latest'")] = "latest",
    results: Annotated[Path, typer.Option(help="folder of the results")] = Path("results"),
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="write Markdown, plots and one HTML page into this folder", show_default=False
        ),
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="print Markdown, without plots")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="print the table and the verdicts as one JSON object")
    ] = False,
) -> None:
    """Print the note of a stored run, or write it as Markdown and as a page that can be sent to anybody.

    Example: joules note quickstart -o note

    The page is one file, fetches nothing, and follows the reader's light or dark setting. With --json the keys are run_id, suite,
    machine, basis, scope, meter, rows (condition and metrics) and verdicts.
    """
    from pytest_joules import store
    from pytest_joules.note import lines, markdown
    from pytest_joules.sweep import from_run

    if sum((out is not None, as_markdown, as_json)) > 1:
        raise UsageError("-o, --markdown and --json exclude each other; ask for one")
    kept = store.Store(results)
    stored = kept.find(run)
    # A prediction judged again has several verdicts on one run; the last is the one that stands.
    verdicts = list({verdict.prediction: verdict for verdict in store.load_verdicts(stored)}.values())
    if out is not None:
        _write(_document(kept, stored, verdicts, plots=True), stored, out)
    elif as_markdown:
        typer.echo(markdown.markdown(_document(kept, stored, verdicts, plots=False)), nl=False)
    elif as_json:
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
    else:
        for line in lines.note(stored.run, verdicts, min(shutil.get_terminal_size().columns, 120)):
            word, rest = lines.verdict_word(line)
            # Colours are taken out again where the output is no terminal.
            plain = "NO_COLOR" in os.environ or not word
            typer.echo(line if plain else typer.style(word, fg=_COLOURS.get(word, "yellow"), bold=True) + rest)


_COLOURS = {"HELD": "green", "REFUTED": "red"}


def _document(results: Store, stored: StoredRun, verdicts: list[Verdict], *, plots: bool) -> Document:
    from pytest_joules import history, store
    from pytest_joules.note.document import document

    drawn = []
    if plots:
        from pytest_joules.note.plots import figures

        drawn = figures(stored.run, verdicts, store.load_samples(stored))
    files = [stored.path, stored.verdicts_path, stored.path.with_name(stored.run.samples_file or stored.path.name)]
    named = [
        f"{path.parent.parent.name}/{path.parent.name}/{path.name}" for path in dict.fromkeys(files) if path.exists()
    ]
    return document(stored.run, verdicts, drawn, history.others(results, stored.run), named)


def _write(note: Document, stored: StoredRun, out: Path) -> None:
    """The Markdown with its plots in a folder beside it, and the page. Raises `UsageError` when they cannot be written."""
    from pytest_joules import store
    from pytest_joules.note.document import stem
    from pytest_joules.note.markdown import markdown
    from pytest_joules.note.page import html

    name = stem(stored.run)
    page = html(note)
    texts = {f"{name}/{figure.name}.svg": figure.standalone for figure in note.figures}
    texts |= {f"{name}.md": markdown(note, images=name if note.figures else ""), f"{name}.html": page}
    for file, text in texts.items():
        path = out / file
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"the note cannot be written: {store.unwritten(path, error)}") from None
    typer.echo(out / f"{name}.md")
    typer.echo(out / f"{name}.html")
