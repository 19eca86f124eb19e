"""The `joules` command. Each subcommand is one module of this package that decorates a function with `@app.command`."""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from typing import Any

import typer

from pytest_joules.errors import JoulesError, UsageError

app = typer.Typer(
    name="joules",
    help="What a token costs on machines you own: measure it, judge it, note it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

EXIT_FAILED, EXIT_USAGE = 1, 2


@app.callback()
def _root() -> None:
    """Keeps subcommand names even while there is only one."""


def print_json(record: Any) -> None:
    """One strict JSON object on stdout: NaN and infinity are refused, not printed."""
    typer.echo(json.dumps(record, allow_nan=False, ensure_ascii=False, indent=2))


def main() -> None:
    """Run the command line; one line on stderr and a fitting exit code for everything foreseen."""
    for info in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{info.name}")
    try:
        app()
    except JoulesError as error:
        print(f"joules: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED)
    except BrokenPipeError:
        sys.exit(0)
