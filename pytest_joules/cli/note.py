"""`joules note`: the note of a stored run."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pytest_joules.cli import app, print_json, write_files
from pytest_joules.errors import UsageError

if TYPE_CHECKING:
    from pytest_joules.note.document import Document
    from pytest_joules.records import Sample, Verdict
    from pytest_joules.store import Store, StoredRun


@app.command()
def note(
    run: Annotated[
        str, typer.Argument(help="a run's file or id, a suite's name or 'latest': the newest complete run")
    ] = "latest",
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

    The page is one file, fetches nothing, and follows the reader's light or dark setting; files of an earlier -o are written anew.
    With --json the keys are run_id, suite, machine, complete, passes, basis, scope, covers, meter, deviations, limits, rows
    (condition, metrics, and the spread of energy per token over the passes) and verdicts.
    """
    from pytest_joules import history, store
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
                "complete": stored.run.complete,
                "passes": stored.run.passes,
                "basis": stored.run.meter.basis,
                "scope": stored.run.meter.scope,
                "covers": list(stored.run.meter.covers),
                "meter": stored.run.meter.name,
                "deviations": list(stored.run.deviations),
                "limits": [*store.damaged_verdicts(stored), *lines.limits(stored.run, sweep, deviations=False)],
                "rows": list(lines.rows(sweep)),
                "verdicts": [dataclasses.asdict(verdict) for verdict in verdicts],
            }
        )
    else:
        others = history.others(kept, stored.run)
        for fault in store.damaged_verdicts(stored):
            typer.echo(f"joules: {fault}", err=True)
        for line in lines.note(stored.run, verdicts, min(shutil.get_terminal_size().columns, 120), others):
            word, rest = lines.verdict_word(line)
            # Colours are taken out again where the output is no terminal.
            plain = not word or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
            typer.echo(line if plain else typer.style(word, fg=_COLOURS.get(word, "yellow"), bold=True) + rest)


_COLOURS = {"HELD": "green", "REFUTED": "red"}


def _document(results: Store, stored: StoredRun, verdicts: list[Verdict], *, plots: bool) -> Document:
    from pytest_joules import history, store
    from pytest_joules.note.document import document

    drawn, damaged = [], store.damaged_verdicts(stored)
    if plots:
        from pytest_joules.note.plots import figures

        samples: list[Sample] = []
        try:
            samples = store.load_samples(stored)
        except UsageError as error:
            damaged.append(f"no power traces: {error}".replace(f"{stored.path.parent}{os.sep}", ""))
        drawn = figures(stored.run, verdicts, samples)
    files = [stored.path, stored.verdicts_path, stored.path.with_name(stored.run.samples_file or stored.path.name)]
    files += [stored.path.with_name(stored.run.answers_file)] if stored.run.answers_file else []
    named = [
        f"{results.folder.name}/{path.parent.parent.name}/{path.parent.name}/{path.name}"
        for path in dict.fromkeys(files)
        if path.exists()
    ]
    return document(stored.run, verdicts, drawn, history.others(results, stored.run), named, damaged)


def _write(note: Document, stored: StoredRun, out: Path) -> None:
    """The Markdown with its plots in a folder beside it, and the page. Raises `UsageError` when they cannot be written."""
    from pytest_joules.note.document import stem
    from pytest_joules.note.markdown import markdown
    from pytest_joules.note.page import html

    name = stem(stored.run)
    texts = {f"{name}/{figure.name}.svg": figure.standalone for figure in note.figures}
    texts |= {f"{name}.md": markdown(note, images=name if note.figures else ""), f"{name}.html": html(note)}
    write_files(out, texts)
