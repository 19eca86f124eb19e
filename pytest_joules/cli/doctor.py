"""`joules doctor`: what can be measured here, what cannot, why, and the next step."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from pytest_joules.cli import app, print_json, usable_time
from pytest_joules.cli.meters import LISTEN_HZ, LISTEN_S, folded, listening, named, records, remarks, table
from pytest_joules.errors import JoulesError
from pytest_joules.meters import Found
from pytest_joules.words import one_line

_BYTES_PER_MB = 1e6
_BUSY_SHARE, _WATCHED_S = 0.10, 0.5

_SERVER_BY_PIP = (
    "CMAKE_ARGS='-DLLAVA_BUILD=OFF -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_SERVER=ON -DLLAMA_TOOLS_INSTALL=ON "
    "-DCMAKE_INSTALL_RPATH={rpath}' pip install 'pytest-joules[embedded]'"
)
"""What uv takes from pyproject.toml and pip has to be told: build the server of llama-cpp-python as well."""

Report = dict[str, Any]


@app.command("doctor")
def doctor(
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to listen to each source.")] = LISTEN_S,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """What can be measured on this machine, what cannot, why, and the next step. Changes nothing.

    Example: joules doctor --json

    Exit code: 0 whatever can be measured, 2 for what cannot be used as it is written.
    """
    usable_time("--seconds", seconds)
    found = _sources()
    with listening([meter for one in found for meter in one.meters], LISTEN_HZ) as ears:
        time.sleep(seconds)
        heard = {ear: ear.rails(seconds) for ear in ears}
    facts: Report = {
        "machine": _asked(_machine),
        "power_supply": _asked(_power_supply),
        "engines": _asked(_engines),
        "knobs": _asked(_knobs),
        "models": _asked(_models),
        "git": _asked(_git),
        "versions": _asked(_versions),
    }
    if json:
        print_json({"sources": records(found, heard)} | facts)
        return
    typer.echo("power sources")
    typer.echo(table(heard))
    for line in (*remarks(found, heard), *lines(facts)):
        typer.echo(folded(line))


def lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """The facts beside the power sources, for people: under the keys of the JSON object what is known, or why it is not."""
    for heading, known in facts.items():
        yield heading
        for name, value in known.items():
            yield f"  {name}: {_shown(value)}"


def _shown(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return "; ".join(f"{name}: {_shown(one)}" for name, one in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(_shown, value)) or "none"
    return str(value) or "-"


def _asked(ask: Callable[[], Report]) -> Report:
    """What a question gives, or what went wrong with it: a doctor does not fall ill."""
    try:
        return ask()
    except Exception as error:  # whatever it is, the other answers are worth having
        return {"error": _said(error)}


def _said(error: Exception) -> str:
    """What went wrong, in one line. Our own errors are told to the end, where their next step stands."""
    return (
        " ".join(str(error).split()) if isinstance(error, JoulesError) else one_line(f"{type(error).__name__}: {error}")
    )


def _sources() -> list[Found]:
    try:
        return named(None)
    except Exception as error:  # an installed source that cannot even be imported
        return [Found("sources", (), _said(error), "remove or mend the package that it comes from")]


def _machine() -> Report:
    from pytest_joules import machine

    busy = machine.heavy_processes(_BUSY_SHARE, _WATCHED_S)
    return machine.describe().record() | {"results_folder": machine.describe().slug, "busy_with": busy}


def _power_supply() -> Report:
    from pytest_joules import machine

    state = machine.power_state()
    return {"on_ac": state.on_ac, "battery_percent": state.battery_percent, "low_power_mode": state.low_power_mode}


def _engines() -> Report:
    """By name of the engine, its build, or why it cannot be used and what to do."""
    from pytest_joules import engines

    return {name: _asked(functools.partial(_engine, name)) for name in engines.engines()}


def _engine(name: str) -> Report:
    from pytest_joules import engines
    from pytest_joules.errors import Unmeasured

    try:
        return {"usable": True, **engines.find(name).facts()}
    except Unmeasured as error:
        rpath = "@loader_path/../lib" if platform.system() == "Darwin" else "$ORIGIN/../lib"
        reason = _said(error)
        # An engine that is no part of llama.cpp is not had by building that.
        step = {"next_step": _SERVER_BY_PIP.format(rpath=rpath)} if "llama" in reason else {}
        return {"usable": False, "reason": reason, **step}


def _knobs() -> Report:
    """By name of the knob, the values that it takes here, or why it takes none."""
    from pytest_joules import knobs

    return {name: _asked(functools.partial(_knob, name, knob)) for name, knob in knobs.knobs().items()}


def _knob(name: str, knob: Any) -> Report:
    from pytest_joules.errors import Unmeasured

    if not hasattr(knob, "takes"):
        return {"usable": None}
    try:
        return {"usable": True, "takes": knob.takes()}
    except Unmeasured as error:
        return {"usable": False, "reason": _said(error).removeprefix(f"knob {name}: ")}


def _models() -> Report:
    """Size in megabytes by file name; whether a file is whole is not looked at."""
    from pytest_joules import models

    files = [
        file for folder in models.folders((), Path.cwd()) if folder.is_dir() for file in sorted(folder.rglob("*.gguf"))
    ]
    return {"size_mb": {file.name: round(file.stat().st_size / _BYTES_PER_MB) for file in files if file.is_file()}}


def _git() -> Report:
    """Whether git can show when the predictions of this folder were made."""
    from pytest_joules import registration

    predictions = sorted(Path.cwd().glob("predictions/**/test_*.py"))
    if not predictions:
        return {"program": shutil.which("git") is not None, "predictions": 0}
    shown = registration.examine(predictions)
    return {
        "program": shutil.which("git") is not None,
        "head": shown.head or None,
        "predictions": len(predictions),
        "not_committed_as_they_are": list(shown.changed),
        "detail": shown.detail,
    }


def _versions() -> Report:
    names = ("pytest-joules", "pytest", "nvidia-ml-py", "llama-cpp-python")
    return {"python": platform.python_version()} | {name: _version(name) for name in names}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
