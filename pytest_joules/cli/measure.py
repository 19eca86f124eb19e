"""`joules measure`: the energy of a stretch of time, or of any command."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pytest_joules.cli import EXIT_FAILED, app, print_json
from pytest_joules.errors import UsageError
from pytest_joules.meters import Chosen, choose
from pytest_joules.records import Rail
from pytest_joules.words import one_line

if TYPE_CHECKING:
    from pytest_joules.cli.window import Judged
    from pytest_joules.tracefile import Series

RATE_HZ = 10.0
SIGNALLED = 128
"""What shells add to the number of the signal that ended a command."""


@app.command("measure")
def measure(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND ...", help="What to run.", show_default=False)
    ] = None,
    meter: Annotated[str, typer.Option(help="Source to use, NAME or NAME:ARGUMENT; see 'joules meters'.")] = "auto",
    seconds: Annotated[
        float | None, typer.Option(min=0.0, help="Length of the stretch, in place of a command.")
    ] = None,
    rate_hz: Annotated[float, typer.Option(min=0.1, max=1000.0, help="How often the source is read.")] = RATE_HZ,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object on stdout; what the command prints goes to stderr.")
    ] = False,
) -> None:
    """Energy of a stretch of time or of any command, whose exit code is passed on.

    What the command prints stays as it is, and the figures go to stderr; without a command they go to stdout.

    Example: joules measure -- python train.py
    """
    import numpy as np

    from pytest_joules.meters.sampler import Power
    from pytest_joules.reading import group
    from pytest_joules.tracefile import Series

    if (seconds is None) == (not command):
        raise UsageError("give either --seconds S or -- COMMAND, as in 'joules measure -- sleep 5'")
    exit_code = None
    chosen = choose(meter, scope=None, basis="any")
    with Power(chosen, rate_hz) as power, power.window() as window:
        if command:
            exit_code = run(command, own_stdout=not json)
        else:
            time.sleep(seconds or 0.0)
    reading = window.reading
    samples = group(power.samples(float("-inf"), float("inf")))
    nothing = (np.empty(0), np.empty(0))
    series = {rail.name: Series(rail, *samples.get(rail.name, nothing)) for rail in chosen.every_rail}
    record = describe(chosen, series, reading.start_mono, reading.end_mono, power.failure)
    if json:
        print_json(record | ({"command_exit_code": exit_code} if command else {}))
    else:
        for line in lines(record):
            typer.echo(line, err=bool(command))
    if exit_code is None and record["outcome"] == "void":
        exit_code = EXIT_FAILED
    raise typer.Exit(exit_code or 0)


def run(command: Sequence[str], *, own_stdout: bool) -> int:
    """Run a command to its end.

    An interrupt typed at the terminal reaches the command by itself, and it decides what to do about it. A request to
    terminate reaches this process alone and is passed on.

    Args:
        command: the words of the command.
        own_stdout: whether it prints to our standard output, or else to our standard error.

    Returns:
        Its exit code, 128 + n when signal n ended it.

    Raises:
        UsageError: there is no such command.
    """
    running: list[subprocess.Popen[bytes]] = []
    asked = threading.Event()

    def pass_on(*_: object) -> None:
        asked.set()
        for process in running:
            process.terminate()

    # In place before the command is, so that no signal comes too early to be dealt with.
    before = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, pass_on),
        signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),
    }
    try:
        running.append(subprocess.Popen(list(command), stdout=None if own_stdout else sys.stderr.fileno()))
        if asked.is_set():
            running[0].terminate()
        code = running[0].wait()
    except OSError as error:
        raise UsageError(f"{shlex.quote(command[0])} cannot be run ({error.strerror})") from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else SIGNALLED - code


def describe(
    chosen: Chosen, series: Mapping[str, Series], start_mono: float, end_mono: float, failure: str = ""
) -> dict[str, Any]:
    """Everything about a measured stretch, as plain JSON values: the total, and each rail.

    Args:
        chosen: the meter and the rails that count.
        series: every rail's samples, by rail.
        start_mono: when the stretch began.
        end_mono: when it ended.
        failure: why the meter stopped answering, when it did.
    """
    from pytest_joules.cli.window import judge

    checks = [(series[counter.name], series[power.name]) for counter, power in chosen.checks]
    total = judge([series[r.name] for r in chosen.rails], checks, start_mono, end_mono, failure=failure)
    alone = {r.name: judge([series[r.name]], [], start_mono, end_mono, failure=failure) for r in chosen.every_rail}
    return {
        "meter": chosen.name,
        "scope": chosen.scope,
        "covers": list(chosen.covers),
        "basis": chosen.basis,
        "chosen_because": chosen.because,
        **_figures(total),
        "rails": [_rail_record(rail, alone[rail.name]) for rail in chosen.every_rail],
        "notes": list(chosen.notes),
    }


def lines(record: Mapping[str, Any]) -> Iterator[str]:
    """The record for people, the total first."""
    scope = f"{record['scope']} ({', '.join(record['covers'])})"
    # "measured" as an outcome beside an estimated basis would say two things with one word.
    against = "" if record["outcome"] == "measured" else f", {record['outcome']}"
    yield f"{_amount(record)} over {record['window_s']:.2f} s{against}"
    yield f"  by {record['meter']}, scope {scope}, {record['basis']}; {one_line(record['chosen_because'], 100)}"
    for rail in record["rails"]:
        role = ", only to check" if rail["role"] == "check" else ""
        yield f"  {rail['rail']}: {_amount(rail)}{role}; {rail['samples']} updates"
    for reason in record["reasons"]:
        yield f"  {reason}"
    for note in record["notes"]:
        yield f"  note: {note}"


def _rail_record(rail: Rail, found: Judged) -> dict[str, Any]:
    return {
        "rail": rail.name,
        "scope": rail.scope,
        "covers": list(rail.covers),
        "kind": rail.kind,
        "basis": rail.basis,
        "role": rail.role,
        "source": rail.source,
        **_figures(found),
    }


def _figures(found: Judged) -> dict[str, Any]:
    """The keys that `joules window --json` has too, but for the rails."""
    return {key: value for key, value in found.record(None).items() if key != "rails"}


def _amount(figures: Mapping[str, Any]) -> str:
    if figures["energy_j"] is None:
        return "no energy"
    return f"{figures['energy_j']:.4g} ± {figures['uncertainty_j']:.2g} J ({figures['power_w']:.4g} W)"
