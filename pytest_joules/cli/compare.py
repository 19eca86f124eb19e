"""`joules compare`: machines, models or dates side by side, from stored results."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pytest_joules.cli import app, print_json, text_width, write_files
from pytest_joules.errors import UsageError
from pytest_joules.words import nearest, one_line, printable

if TYPE_CHECKING:
    from pytest_joules.note.comparison import Comparison, Entry, Figure, Group
    from pytest_joules.store import StoredRun


@app.command()
def compare(
    suite: Annotated[str | None, typer.Argument(help="name of a suite; left out, what there is is listed")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="every run, not only the newest of each machine and model")
    ] = False,
    run: Annotated[
        list[str] | None,
        typer.Option("--run", help="a run's id or file; repeat it, the first is the reference", show_default=False),
    ] = None,
    metric: Annotated[str, typer.Option(help="the figure that is compared")] = "energy_per_token_mj",
    results: Annotated[Path, typer.Option(help="folder of the results")] = Path("results"),
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="write Markdown and one HTML page with a plot here", show_default=False),
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="print Markdown tables")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Put machines, models or dates side by side: figures, differences with 95 % intervals, and verdicts.

    The first column is the reference. Only like energies are held against each other: of the same parts, measured against
    measured, estimated against estimated; the others stand apart with the reason.

    Example: joules compare quickstart

    With --json the keys are suite, metric, meaning, runs, groups (heading, apart, alone, reference, rows), remarks, verdicts
    and skipped; without a suite, and with several to choose from, suites and skipped.
    """
    from pytest_joules.metrics import METRICS

    if sum((out is not None, as_markdown, as_json)) > 1:
        raise UsageError("-o, --markdown and --json exclude each other; ask for one")
    if metric not in METRICS:
        raise UsageError(
            f"--metric {metric}: there is no such figure{nearest(metric, METRICS)}; known: {', '.join(METRICS)}"
        )
    if run and (suite or every):
        raise UsageError("--run names the runs; leave out the suite and --all")
    skipped: list[str] = []
    found: Iterable[StoredRun]
    if run:
        found = {stored.path.resolve(): stored for stored in (_named(results, name) for name in run)}.values()
    else:
        by_suite = runs_by_suite(results)
        if suite is None and len(by_suite) != 1:
            _list(by_suite, as_json)
            return
        suite = suite or next(iter(by_suite))
        paths = runs_of(suite, by_suite, results)
        found = _every(paths, skipped) if every else _newest(paths, skipped)
    entries = list(_entries(found, skipped))
    if run and len(entries) < len({one.path for one in found}):
        raise UsageError(skipped[0])
    tell_passed_over(skipped)
    if not entries:
        raise UsageError(
            f"{results} has no complete run of {suite!r} that can be read; --all takes those cut short too"
        )
    _overlap(entries)
    from pytest_joules.note import comparison

    compared = comparison.compare(entries, metric)
    if out is not None:
        _write(compared, out)
    elif as_json:
        print_json(_record(compared, suite, skipped))
    else:
        for line in comparison.lines(compared, 0 if as_markdown else text_width()):
            typer.echo(line)


def runs_by_suite(results: Path) -> dict[str, list[Path]]:
    """Files of runs by suite, each oldest first."""
    from pytest_joules import store

    if not results.is_dir():
        raise UsageError(f"there are no results in {results}; run a prediction, or name the folder with --results")
    by_suite: dict[str, list[Path]] = {}
    for path in store.run_files(results):
        if path.parent.parent.parent == results:
            by_suite.setdefault(path.parent.name, []).append(path)
    if not by_suite:
        raise UsageError(f"{results} holds no run; run a prediction, or name another folder with --results")
    return by_suite


def runs_of(suite: str, by_suite: Mapping[str, list[Path]], results: Path) -> list[Path]:
    """Files of a suite's runs, of those that there are. Raises `UsageError` when it has none."""
    if suite not in by_suite:
        raise UsageError(
            f"{results} has no run of a suite {suite!r}{nearest(suite, by_suite)}; it has {', '.join(sorted(by_suite))}"
        )
    return by_suite[suite]


@contextlib.contextmanager
def passing_over(path: Path, skipped: list[str]) -> Iterator[None]:
    """Around what is done with one stored run of many: where it cannot be read or makes no table, the reason goes into `skipped`."""
    try:
        yield
    except UsageError as error:
        skipped.append(str(error))
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        skipped.append(f"{path}: makes no table: {type(error).__name__}: {error}")


def tell_passed_over(skipped: Iterable[str]) -> None:
    """Name the files that were passed over, on stderr."""
    for reason in skipped:
        typer.echo(f"joules: passed over: {printable(one_line(reason))}", err=True)


def _list(by_suite: dict[str, list[Path]], as_json: bool) -> None:
    """What could be compared."""
    found = {
        suite: {machine: sum(path.parent.parent.name == machine for path in paths) for machine in machines}
        for suite, paths in sorted(by_suite.items())
        for machines in [sorted({path.parent.parent.name for path in paths})]
    }
    if as_json:
        print_json({"suites": found, "skipped": []})
        return
    typer.echo("Suites with results; say which: joules compare SUITE")
    for suite, machines in found.items():
        runs = ", ".join(
            f"{machine} ({count} {'run' if count == 1 else 'runs'})" for machine, count in machines.items()
        )
        typer.echo(f"  {printable(suite)}: {printable(runs)}")


def _named(results: Path, name: str) -> StoredRun:
    """The run that is meant by a file or an id.

    Raises:
        UsageError: there is none, or it cannot be read.
    """
    from pytest_joules import store

    if Path(name).is_file():
        return store.load(Path(name))
    path = next((path for paths in runs_by_suite(results).values() for path in paths if path.stem == name), None)
    if path is None:
        raise UsageError(f"--run {name}: there is no such file, and no run of this id in {results}")
    return store.load(path)


def _every(paths: Sequence[Path], skipped: list[str]) -> Iterator[StoredRun]:
    """Every run that can be read, by machine and then by date."""
    from pytest_joules import store

    for path in sorted(paths, key=lambda path: (path.parent.parent.name, path.name)):
        stored = None
        with passing_over(path, skipped):
            stored = store.load(path)
        if stored is not None:
            yield stored


def _newest(paths: Sequence[Path], skipped: list[str]) -> Iterator[StoredRun]:
    """The newest complete run of each machine and model file that can be read, by machine.

    Only these are read whole; of the others no more than says which machine and model they are of.
    """
    from pytest_joules import store

    found: dict[tuple[object, ...], StoredRun] = {}
    for path in reversed(paths):
        with passing_over(path, skipped):
            facts = store.head(path)
            key = (path.parent.parent.name, *model_files(facts))
            if facts["complete"] is True and key not in found:
                found[key] = store.load(path)
    yield from (found[key] for key in sorted(found, key=str))


def model_files(facts: dict[str, Any]) -> tuple[object, ...]:
    """The model files of a run, which tell its runs on one machine apart unless the model is what varies."""
    axes, models = facts.get("axes"), facts.get("models")
    if not isinstance(axes, list) or not isinstance(models, list) or {"model", "format"} & set(map(str, axes)):
        return ()
    return tuple(
        (str(model.get("name")), str(model.get("format")), str(model.get("sha256")))
        for model in models
        if isinstance(model, dict)
    )


def _entries(found: Iterable[StoredRun], skipped: list[str]) -> Iterator[Entry]:
    from pytest_joules import store
    from pytest_joules.note import comparison

    for name, stored in zip(comparison.letters(), found, strict=False):
        try:
            verdicts = store.load_verdicts(stored)
        except (UsageError, OSError, UnicodeDecodeError) as error:
            skipped.append(f"{error}; the run is shown without its verdicts")
            verdicts = []
        made = None
        with passing_over(stored.path, skipped):
            made = comparison.entry(name, stored.run, verdicts)
        if made is not None:
            yield made


def _overlap(entries: Sequence[Entry]) -> None:
    """Runs that have no condition in common cannot stand side by side."""
    for one in entries[1:]:
        if not any(one.cells.keys() & other.cells.keys() for other in entries if other is not one):
            raise UsageError(
                f"run {one.run.run_id} of {one.run.suite_name} ({', '.join(one.run.axes) or 'nothing varies'}) has no condition "
                "in common with the others; leave it out"
            )


def _write(found: Comparison, out: Path) -> None:
    """The Markdown and the page. Raises `UsageError` when they cannot be written."""
    from pytest_joules.note import comparison

    suites = {one.run.suite_name for one in found.entries}
    name = f"compare-{re.sub(r'[^A-Za-z0-9._-]', '_', suites.pop()) if len(suites) == 1 else 'runs'}"
    texts = {f"{name}.md": "\n".join(comparison.lines(found, 0)) + "\n", f"{name}.html": comparison.page(found)}
    write_files(out, texts)


def _record(found: Comparison, suite: str | None, skipped: Sequence[str]) -> dict[str, Any]:
    from pytest_joules.metrics import METRICS
    from pytest_joules.note import comparison

    return {
        "suite": suite,
        "metric": found.metric,
        "meaning": METRICS[found.metric].meaning,
        "runs": [_run(one) for one in found.entries],
        "groups": [_group(group) for group in found.groups],
        "remarks": list(found.remarks),
        "verdicts": [
            {"claim": claim, "runs": {name: dataclasses.asdict(verdict) for name, (verdict, _) in by_name.items()}}
            for claim, by_name in comparison.matrix(
                (one.name, one.run.meter.basis, one.verdicts) for one in found.entries
            ).rows
        ],
        "skipped": list(skipped),
    }


def _run(one: Entry) -> dict[str, Any]:
    run = one.run
    return {
        "column": one.name,
        "run_id": run.run_id,
        "started_utc": run.started_utc,
        "suite": run.suite_name,
        "machine": run.machine_slug,
        "chip": run.machine.get("chip"),
        "models": [{key: model.get(key) for key in ("name", "format", "sha256")} for model in run.models],
        "meter": run.meter.name,
        "basis": run.meter.basis,
        "scope": run.meter.scope,
        "covers": sorted(run.meter.covers),
        "complete": run.complete,
        "passes": run.passes,
        "deviations": list(run.deviations),
        "effects": list(one.effects),
    }


def _group(group: Group) -> dict[str, Any]:
    names = [one.name for one in group.entries]
    return {
        "heading": group.heading,
        "apart": group.apart,
        "alone": group.alone,
        "reference": None if group.alone else names[0],
        "rows": [
            {"condition": dict(condition), "figures": dict(zip(names, map(_figure, figures), strict=True))}
            for condition, figures in group.rows
        ],
    }


def _figure(one: Figure) -> dict[str, Any]:
    difference = one.difference
    return {
        "value": one.value,
        "why_none": one.why_none,
        "difference": None
        if difference is None
        else {"ratio": difference.ratio, "low": difference.low, "high": difference.high, "shown": difference.shown},
        "no_interval": one.no_interval,
    }
