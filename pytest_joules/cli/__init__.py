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

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130


@app.callback()
def _root() -> None:
    """Keeps subcommand names even while there is only one."""


def print_json(record: Any) -> None:
    """One strict JSON object on stdout: NaN and infinity are refused, not printed."""
    typer.echo(json.dumps(record, allow_nan=False, ensure_ascii=False, indent=2))


_BAD_CALL: type[Exception] = typer.BadParameter.__mro__[2]
"""What typer raises for a command line it cannot read (click's ClickException, whichever of the two brings it)."""


def main() -> None:
    """Run the command line; one line on stderr and a fitting exit code for everything foreseen."""
    for info in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{info.name}")
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except JoulesError as error:
        print(f"joules: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED)
    except _BAD_CALL as error:
        said = getattr(error, "format_message", error.__str__)()
        print(f"joules: {said or 'no command'}; see 'joules --help'", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        sys.exit(0)
