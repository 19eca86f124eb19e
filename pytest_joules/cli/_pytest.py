"""Commands that are a front over pytest: it collects, and the session it leaves behind is told of."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from pytest_joules.collecting import Collector


def run(arguments: Sequence[str], paths: Sequence[Path]) -> Collector | None:
    """What pytest collected and did; `None` when no prediction was found, which has then been said.

    Raises:
        typer.Exit: pytest could not do it, and has said why.
    """
    import pytest

    from pytest_joules.stash import COLLECTOR

    class Keep:
        collector: Collector | None = None

        def pytest_sessionfinish(self, session: pytest.Session) -> None:
            Keep.collector = session.config.stash.get(COLLECTOR, None)

    # What pytest prints about its tests says the same in more words.
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = pytest.main(
            ["-q", "-p", "joules", "-p", "no:cacheprovider", "-p", "no:randomly", *arguments, *map(str, paths)],
            plugins=[Keep()],
        )
    if code in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.INTERRUPTED) or (
        Keep.collector is None and code != pytest.ExitCode.OK
    ):
        typer.echo(said.getvalue().strip(), err=True)
        raise typer.Exit(int(code))
    return Keep.collector
