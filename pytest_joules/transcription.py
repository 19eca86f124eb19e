"""Runs that somebody else measured and published as a table, read into the same form as our own.

Nothing is made up: figures stand as printed, with half a unit of the last digit as what they may be off by; there are no samples and
no passes where none were published, and a check that the published numbers cannot answer reads `not evaluable`.

A file of published figures is YAML:

    source: where they were published, and when
    published: 2026-10-25
    machine, engine, meter: facts as in a run
    runs:
      decode-batch:                      name of the suite that describes what was run
        models: [{name: ..., format: ...}]
        deviations: [what differed from the suite]
        columns: [parallel, tokens_per_s, power_w, energy_per_token_mj, change, spread]
        rows: ["2 94.5 45.8 485 9%_less 3.4%"]   one text per condition; - for a figure that was not published
        samples: {1: "10"}               sensor updates of a window, as printed
        missing: {energy_per_token_mj: why it cannot be used}
        outcomes: {name of a prediction: held}
"""

from __future__ import annotations

import datetime
import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from pytest_joules import gates
from pytest_joules.errors import UsageError
from pytest_joules.metrics import METRICS
from pytest_joules.records import Basis, Gate, MeterRecord, PublishedCell, Rail, Run
from pytest_joules.suite import Suite
from pytest_joules.sweep import label

BASIS: Basis = "transcribed"
REGISTRATION = "as published"

_UNANSWERED = (
    "answers complete", "prompt cache", "achieved batch", "edge uncertainty", "counter against power", "client CPU",
    "other load", "power slope", "throttling", "meter follows the load", "power source", "run order", "drift",
)  # fmt: skip
"""Checks that a table cannot answer."""

_MISSING = "-"


def read(path: Path, suite_of: Callable[[str], Suite]) -> list[Run]:
    """The runs in a file of published figures.

    Args:
        suite_of: gives the suite of a name.

    Raises:
        UsageError: the file cannot be read, or something in it is missing or no figure.
    """
    try:
        text = path.read_text(encoding="utf-8")
        data = yaml.safe_load(text)
        return [_run(name, published, data, suite_of(name), path) for name, published in data["runs"].items()]
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    except KeyError as error:
        raise UsageError(
            f"{path}: {error.args[0]!r} is missing; see results/apple-m5-pro-24gb/published.yaml for all keys"
        ) from None
    except (TypeError, AttributeError) as error:
        raise UsageError(f"{path}: is no file of published figures: {type(error).__name__} {error}") from None


def _run(name: str, published: Mapping[str, Any], data: Mapping[str, Any], suite: Suite, path: Path) -> Run:
    cells = [_cell(str(row), published, suite, f"{path.name}: {name}") for row in published["rows"]]
    have = [cell.condition for cell in cells]
    why = str(published.get("rows_missing", "no row was published"))
    cells += [
        PublishedCell(condition=condition, missing=dict.fromkeys(METRICS, why))
        for condition in suite.conditions
        if condition not in have
    ]
    meter, date = data["meter"], str(data["published"])
    spreads = [
        (label(cell.condition), cell.spreads["energy_per_token_mj"])
        for cell in cells
        if "energy_per_token_mj" in cell.spreads
    ]
    moment = f"{datetime.date.fromisoformat(date):%Y%m%d}T000000Z"
    digest = hashlib.sha256(f"{path.name} {name}".encode()).hexdigest()[:6]
    rail = Rail(
        name=f"{meter['name']}.{meter['scope']}", scope=meter["scope"], covers=tuple(sorted(meter["covers"])), kind=meter["kind"],
        basis=BASIS, unit="W", source=str(data["source"]),
    )  # fmt: skip
    return Run(
        run_id=f"{moment}-{digest}",
        started_utc=f"{date}T00:00:00.000Z",
        finished_utc=f"{date}T00:00:00.000Z",
        complete=True,
        suite=suite.record(),
        suite_name=suite.name,
        axes=suite.axes,
        conditions=suite.conditions,
        passes=suite.protocol.passes,
        order=suite.protocol.order,
        machine=data["machine"],
        machine_slug=str(data["machine_slug"]),
        models=tuple(published["models"]),
        engine={str(data["engine"]["name"]): data["engine"]},
        meter=MeterRecord(
            name=meter["name"], basis=BASIS, scope=meter["scope"], covers=rail.covers, rate_hz=float(meter["rate_hz"]),
            rails=(rail,), chosen_because="as published", notes=(f"transcribed from {data['source']}: {meter['note']}",),
        ),
        windows=(),
        published=tuple(sorted(cells, key=lambda cell: suite.conditions.index(cell.condition))),
        gates=(
            gates.pass_spread(spreads, suite.gates.spread_flag_above),
            *(Gate(name=unanswered, outcome="not evaluable", value=None, limit="a table") for unanswered in _UNANSWERED),
        ),
        deviations=tuple(published.get("deviations", ())),
        notes=tuple(published.get("notes", ())),
        provenance={
            "registration": REGISTRATION,
            "source": data["source"],
            "outcomes": dict(published.get("outcomes", {})),
        },
    )  # fmt: skip


def _cell(row: str, published: Mapping[str, Any], suite: Suite, where: str) -> PublishedCell:
    columns, texts = list(published["columns"]), row.split()
    if len(columns) != len(texts):
        raise UsageError(f"{where}: row {row!r} has {len(texts)} entries for {len(columns)} columns")
    entries = dict(zip(columns, texts, strict=True))
    condition = next(
        (c for c in suite.conditions if all(str(value) == entries.get(axis) for axis, value in c.items())), None
    )
    if condition is None:
        raise UsageError(f"{where}: row {row!r} is of no condition of the suite")
    known = {name: text for name, text in entries.items() if name in METRICS and text != _MISSING}
    figures, roundings = {}, {}
    for name, text in known.items():
        figures[name], roundings[name] = _figure(text, where)
    spreads = {}
    if entries.get("spread", _MISSING) != _MISSING:
        percent, _ = _figure(entries["spread"].removesuffix("%"), where)
        spreads["energy_per_token_mj"] = round(percent / 100, 6)
    missing = {str(name): str(why) for name, why in published.get("missing", {}).items()}
    key = next(iter(condition.values())) if len(condition) == 1 else label(condition)
    return PublishedCell(
        condition=condition,
        figures=figures,
        roundings=roundings,
        spreads=spreads,
        missing=missing,
        change=entries.get("change", _MISSING).replace("_", " ") if entries.get("change", _MISSING) != _MISSING else "",
        gates=(_samples(published.get("samples", {}).get(key), suite),),
    )


def _figure(text: str, where: str) -> tuple[float, float]:
    """A printed figure, and half a unit of its last digit."""
    if not re.fullmatch(r"-?[\d,]+(\.\d+)?", text):
        raise UsageError(f"{where}: {text!r} is no figure")
    plain = text.replace(",", "")
    return float(plain), 0.5 * 10.0 ** -len(plain.partition(".")[2])


def _samples(printed: object, suite: Suite) -> Gate:
    """How often the sensor spoke in a window, of which a note may say no more than `3 to 4`."""
    found = re.match(r"\d+", str(printed)) if printed is not None else None
    least = int(found.group()) if found else None
    thin_voids = suite.require.thin == "void"
    return gates.updates(least, suite.require.min_samples, suite.gates.thin_samples, thin_voids=thin_voids)
