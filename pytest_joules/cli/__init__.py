"""The `joules` command. Each subcommand is one module of this package that decorates a function with `@app.command`."""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import os
import pkgutil
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from pytest_joules.errors import JoulesError, UsageError
from pytest_joules.words import printable

app = typer.Typer(
    name="joules",
    help="What a token costs on machines you own: measure it, judge it, note it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130

LONGEST_S = 366 * 86400.0
"""No stretch of time asked for is longer: what is, is a slip, or more than a clock can wait for."""


@app.callback()
def _root() -> None:
    """Keeps subcommand names even while there is only one."""


def print_json(record: Any) -> None:
    """One strict JSON object on stdout: NaN and infinity are refused, not printed."""
    typer.echo(json.dumps(record, allow_nan=False, ensure_ascii=False, indent=2))


def write_files(out: Path, texts: Mapping[str, str]) -> None:
    """Write texts into a folder, by their paths below it, in place of what an earlier call wrote; folders are made.

    Prints the paths but those of plots, which the text beside them names.

    Raises:
        UsageError: the folder is a file, or something cannot be written.
    """
    from pytest_joules import store

    if out.exists() and not out.is_dir():
        raise UsageError(f"-o {out}: is a file; name a folder")
    for name, text in texts.items():
        path = out / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {store.unwritten(path, error)}") from None
        if path.suffix != ".svg":
            typer.echo(path)


def text_width() -> int:
    """Columns that lines of text are wrapped at: the terminal's, 80 where there is none, 120 at most."""
    return min(shutil.get_terminal_size().columns, 120)


def usable_time(option: str, seconds: float) -> float:
    """A length of time that can be waited for.

    Raises:
        UsageError: it is none, or longer than anybody means.
    """
    if not 0 <= seconds <= LONGEST_S:
        raise UsageError(f"{option} {seconds:g}: it must be a time in seconds of a year at most")
    return seconds


_BAD_CALL: type[Exception] = typer.BadParameter.__mro__[2]
"""What typer raises for a command line it cannot read (click's ClickException, whichever of the two brings it)."""


def main() -> None:
    """Run the command line; one line on stderr and a fitting exit code for everything foreseen."""
    for info in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{info.name}")
    out = sys.stdout
    try:
        code = app(standalone_mode=False) or 0
        if out is not None:
            out.flush()
    except JoulesError as error:
        _complain(str(error))
        code = getattr(error, "exit_code", EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED)
    except _BAD_CALL as error:
        said = getattr(error, "format_message", error.__str__)()
        _complain(f"{said or 'no command'}; see 'joules --help'")
        code = EXIT_USAGE
    except (KeyboardInterrupt, typer.Abort):
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        code = _output_lost(0)
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        _complain(f"the output cannot be written ({error.strerror})")
        code = _output_lost(EXIT_FAILED)
    except SystemExit as ended:
        # Whoever read our output has gone, and typer has put something silent in its place.
        if sys.stdout is out:
            raise
        code = _output_lost(0) if ended.code == EXIT_FAILED else ended.code
    sys.exit(code)


_CANNOT_WRITE = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EBADF)


def _complain(text: str) -> None:
    """Say it on stderr, if there still is one."""
    with contextlib.suppress(OSError):
        print(f"joules: {printable(text)}", file=sys.stderr)


def _output_lost(code: int) -> int:
    """Throw away what was not written, so that the end of Python does not try again."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.__stdout__.fileno() if sys.__stdout__ else 1)
        os.close(nowhere)
    return code
