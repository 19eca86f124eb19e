"""`joules export`: stored runs for other tools, and the schemas of the files."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pytest_joules.cli import app
from pytest_joules.errors import UsageError, Void
from pytest_joules.words import nearest, printable

if TYPE_CHECKING:
    from pytest_joules.records import Run
    from pytest_joules.store import StoredRun

_FORMATS = ("csv", "pytest-benchmark", "json-schema")


@app.command()
def export(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            help="runs' files or ids, suites' names, or 'latest' (the default); with json-schema: suite, run or verdict",
            show_default=False,
        ),
    ] = None,
    form: Annotated[str, typer.Option("--format", metavar="FORMAT", help=", ".join(_FORMATS), show_default=False)] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="file or folder to write to instead of stdout")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace what is there")] = False,
    every: Annotated[bool, typer.Option("--all", help="all runs of the named suites, or all runs there are")] = False,
    windows: Annotated[bool, typer.Option("--windows", help="csv: a row for each window, not each condition")] = False,
    metric: Annotated[
        str, typer.Option(help="pytest-benchmark: another figure than time_per_token_s", show_default=False)
    ] = "",
    results: Annotated[Path, typer.Option(help="folder of the results")] = Path("results"),
) -> None:
    """Write stored runs for other tools: a table as CSV, or the file that `pytest-benchmark compare` reads.

    With --format json-schema, print the JSON Schema of suite files, run files or verdict lines instead.

    Example:
        joules export quickstart --format csv --all > quickstart.csv
        joules export quickstart --format pytest-benchmark -o quickstart.json
        joules export --format json-schema suite -o suite.schema.json

    docs/export.md tells every column and key. A condition without figures is left out of a pytest-benchmark file, and named.
    """
    if form not in _FORMATS:
        given = f"--format {form}: there is no such format{nearest(form, _FORMATS)}" if form else "--format is missing"
        raise UsageError(f"{given}; there are {', '.join(_FORMATS)}")
    _refuse_idle({"--windows": windows, "--metric": metric, "--all": every}, form)
    if form == "json-schema":
        _schemas(runs or (), output, force)
        return

    from pytest_joules.store import Store

    meant = _every(results, runs or ()) if every else map(Store(results).find, runs or ("latest",))
    chosen = list({stored.run.run_id: stored for stored in meant}.values())
    if form == "csv":
        _write(output, _csv([stored.run for stored in chosen], windows), force)
    else:
        _benchmarks(chosen, metric, output, force)


_ONLY_FOR = {"--windows": ("csv",), "--metric": ("pytest-benchmark",), "--all": ("csv", "pytest-benchmark")}


def _refuse_idle(given: Mapping[str, object], form: str) -> None:
    for option, value in given.items():
        if value and form not in _ONLY_FOR[option]:
            raise UsageError(f"{option} has no effect with --format {form}; leave it out")


def _every(results: Path, suites: Sequence[str]) -> list[StoredRun]:
    """Every run of the suites, or of all, that can be read and makes a table; the others are named. Oldest first in each suite.

    Raises:
        UsageError: there is none.
    """
    from pytest_joules import store
    from pytest_joules.cli.compare import passing_over, runs_by_suite, runs_of, tell_passed_over
    from pytest_joules.sweep import from_run

    by_suite = runs_by_suite(results)
    found: list[StoredRun] = []
    skipped: list[str] = []
    paths = {path for suite in suites or by_suite for path in runs_of(suite, by_suite, results)}
    for path in sorted(paths, key=lambda path: path.name):
        with passing_over(path, skipped):
            stored = store.load(path)
            from_run(stored.run)
            found.append(stored)
    tell_passed_over(skipped)
    if not found:
        raise UsageError(f"none of the runs in {results} can be read; name another folder with --results")
    return found


def _csv(runs: Sequence[Run], of_windows: bool) -> str:
    from pytest_joules.note import exports

    axes = exports.axes_of(runs)
    rows = [row for run in runs for row in (exports.windows if of_windows else exports.conditions)(run, axes)]
    if of_windows:
        for run in runs:
            if not run.windows:
                _say(f"run {run.run_id} was published as a table and has no windows")
        if not rows:
            raise UsageError("there is no window to write; leave out --windows")
    return exports.csv_text(rows)


def _benchmarks(chosen: Sequence[StoredRun], metric: str, output: Path | None, force: bool) -> None:
    from pytest_joules.note import exports

    metric = metric or exports.TIME_PER_TOKEN
    if metric not in exports.BENCHMARK_METRICS:
        raise UsageError(
            f"--metric {metric}: pytest-benchmark cannot be given that{nearest(metric, exports.BENCHMARK_METRICS)}; "
            f"there are {', '.join(exports.BENCHMARK_METRICS)}"
        )
    folder = output if output is not None and output.is_dir() else None
    if len(chosen) > 1 and folder is None:
        raise UsageError(
            f"{len(chosen)} runs are a file each for pytest-benchmark: name a folder that is there with -o FOLDER"
        )
    without = 0
    for stored in chosen:
        try:
            found = exports.benchmarks(stored.run, metric)
        except Void as nothing:
            without += 1
            if without == len(chosen):
                raise
            _say(str(nothing))
            continue
        for why in found.left_out:
            _say(f"left out of run {stored.run.run_id}: {why}")
        if folder is None:
            _write(output, _json(found.file), force)
            continue
        path = _numbered(folder, stored.run, metric)
        if path.exists() and not force:
            _say(f"{path}: is there already")
        else:
            _write(path, _json(found.file), force)
            _say(str(path))


def _numbered(folder: Path, run: Run, metric: str) -> Path:
    """Where pytest-benchmark looks for a run in its storage: `<machine>/<number>_<name>.json`, numbered by machine.

    Raises:
        UsageError: the machine's folder cannot be made.
    """
    from pytest_joules.note import exports

    about = (run.suite_name, *([] if metric == exports.TIME_PER_TOKEN else [metric]), run.run_id)
    name = _file_name("-".join(about))
    place = folder / _file_name(run.machine_slug)
    numbered = {path: int(path.name[:4]) for path in place.glob("[0-9][0-9][0-9][0-9]_*.json")}
    if there := next((path for path in numbered if path.name[5:] == f"{name}.json"), None):
        return there
    try:
        place.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"{place}: cannot be made: {error.strerror or error}") from None
    return place / f"{max(numbered.values(), default=0) + 1:04}_{name}.json"


def _file_name(text: str) -> str:
    """Names come from a file that anybody may have written; none may lead out of the folder."""
    return re.sub(r"[^\w.+-]", "_", text).lstrip(".") or "_"


def _schemas(names: Sequence[str], output: Path | None, force: bool) -> None:
    from pytest_joules import schemas
    from pytest_joules.engines import engines
    from pytest_joules.knobs import knobs

    makers = {
        "suite": lambda: schemas.suite(tuple(knobs()), tuple(engines())),
        "run": schemas.run,
        "verdict": schemas.verdict,
    }
    for name in names:
        if name not in makers:
            raise UsageError(f"there is no schema of {name!r}{nearest(name, makers)}; there are {', '.join(makers)}")
    if output and output.is_dir():
        for name in names or makers:
            _write(output / f"{name}.schema.json", _json(makers[name]()), force)
    elif len(names) == 1:
        _write(output, _json(makers[names[0]]()), force)
    else:
        raise UsageError(f"name one of {', '.join(makers)}, or a folder that is there with -o FOLDER")


def _json(record: Mapping[str, Any]) -> str:
    return json.dumps(record, allow_nan=False, ensure_ascii=False, indent=2) + "\n"


def _say(text: str) -> None:
    typer.echo(f"joules: {printable(text)}", err=True)


def _write(path: Path | None, text: str, force: bool) -> None:
    """To stdout, or into a file that is not there yet.

    Raises:
        UsageError: it is there and `force` was not given, or it cannot be written.
    """
    if path is None:
        typer.echo(text, nl=False)
        return
    if path.is_dir():
        raise UsageError(f"{path}: is a folder; name a file in it")
    try:
        with path.open("w" if force else "x", encoding="utf-8", newline="") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path}: is there already; name another file, or replace it with --force") from None
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no folder {path.parent}; make it first") from None
    except OSError as error:
        if not force:
            # Half a table reads like a whole one.
            with contextlib.suppress(OSError):
                path.unlink()
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None
