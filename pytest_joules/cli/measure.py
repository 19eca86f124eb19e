"""`joules measure`: the energy of a stretch of time, or of any command."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pytest_joules import gates
from pytest_joules.cli import EXIT_FAILED, EXIT_USAGE, app, print_json, usable_time
from pytest_joules.errors import JoulesError, UsageError
from pytest_joules.meters import Chosen, choose
from pytest_joules.records import Rail
from pytest_joules.words import one_line

if TYPE_CHECKING:
    from pytest_joules.cli.window import Judged
    from pytest_joules.tracefile import Series

RATE_HZ = 10.0
SIGNALLED = 128
"""What shells add to the number of the signal that ended a command."""
EXIT_NOT_FOUND, EXIT_NOT_RUN = 127, 126
"""What shells give for a command that is not there, and for one that cannot be run."""

OF_A_COMMAND = gates.Remedies(
    longer="measure for longer",
    meter="see to the meter, then measure again",
    readings="see what the source gives: 'joules meters'",
)

SAME_S = 1.0
"""What asks for an end within this time of the first is one request: some tell a process, and then its group."""

ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class CannotRunError(UsageError):
    """The command cannot be started."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class NoMeterError(JoulesError):
    """There is nothing to measure with, so that nothing was started."""

    exit_code = EXIT_USAGE


class _EndedError(Exception):
    """A signal asked for an end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


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
    Interrupted, it gives the figures of the part until then.

    Example: joules measure -- python train.py

    Exit code: the command's own, and 128 + n when signal n ended it;

    127 when there is no such command, 126 when it cannot be run;

    without a command 0, 1 without an energy, 128 + n when interrupted;

    2 for a wrong call or a meter that cannot be read: nothing was started.
    """
    import numpy as np

    from pytest_joules.meters.sampler import Power
    from pytest_joules.reading import group
    from pytest_joules.tracefile import Series

    if (seconds is None) == (not command):
        raise UsageError("give either --seconds S or -- COMMAND, as in 'joules measure -- sleep 5'")
    exit_code = None
    with contextlib.ExitStack() as stack:
        try:
            chosen = choose(meter, scope=None, basis="any")
            power = stack.enter_context(Power(chosen, rate_hz))
        except UsageError:
            raise
        except JoulesError as error:
            raise NoMeterError(str(error)) from error
        window = stack.enter_context(power.window())
        if command:
            exit_code = run(command, own_stdout=not json)
        elif ended_by := wait(usable_time("--seconds", seconds or 0.0)):
            exit_code = SIGNALLED + ended_by
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


def wait(seconds: float) -> int:
    """Wait; the number of the signal that ended it early, else 0."""

    def end(number: int, _: object) -> None:
        raise _EndedError(number)

    try:
        with _handled(end):
            time.sleep(seconds)
    except _EndedError as ended:
        return ended.number
    return 0


@contextlib.contextmanager
def _handled(handler: Callable[[int, object], None]) -> Iterator[None]:
    """Within the block what asks for an end goes to a handler; what is ignored, as under nohup, stays so."""
    before = {number: signal.getsignal(number) for number in ENDING}
    taken = [number for number, own in before.items() if own != signal.SIG_IGN]
    try:
        for number in taken:
            signal.signal(number, handler)
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number])


def _told_by_the_terminal() -> bool:
    """Whether an interrupt typed at the terminal reaches this process and what it starts alike."""
    with contextlib.suppress(OSError):
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
        try:
            return os.tcgetpgrp(terminal) == os.getpgrp()
        finally:
            os.close(terminal)
    return False


def run(command: Sequence[str], *, own_stdout: bool) -> int:
    """Run a command to its end.

    An interrupt typed at the terminal reaches the command by itself, and it decides what to do about it. Anything else
    that asks for an end may reach this process alone and is passed on; when it is asked again the command is killed.

    Args:
        command: the words of the command.
        own_stdout: whether it prints to our standard output, or else to our standard error.

    Returns:
        Its exit code, 128 + n when signal n ended it.

    Raises:
        CannotRunError: there is no such command.
    """
    running: list[subprocess.Popen[bytes]] = []
    asked: list[tuple[float, int]] = []

    def pass_on(number: int, _: object) -> None:
        if number == signal.SIGINT and _told_by_the_terminal():
            return
        asked.append((time.monotonic(), number))
        again = asked[-1][0] - asked[0][0] > SAME_S
        for process in running:
            if again or len(asked) == 1:
                process.send_signal(signal.SIGKILL if again else number)

    # In place before the command is, so that no signal comes too early to be dealt with.
    with _handled(pass_on):
        try:
            running.append(subprocess.Popen(list(command), stdout=None if own_stdout else sys.stderr.fileno()))
        except (OSError, ValueError) as error:
            code = EXIT_NOT_FOUND if isinstance(error, FileNotFoundError) else EXIT_NOT_RUN
            why = getattr(error, "strerror", None) or str(error)
            raise CannotRunError(f"{shlex.quote(command[0])} cannot be run ({why})", code) from error
        for _, number in asked[:1]:
            running[0].send_signal(number)
        code = running[0].wait()
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
    told: dict[str, Any] = {"failure": failure, "remedies": OF_A_COMMAND}
    total = judge([series[r.name] for r in chosen.rails], checks, start_mono, end_mono, **told)
    alone = {r.name: judge([series[r.name]], [], start_mono, end_mono, **told) for r in chosen.every_rail}
    return {
        "meter": chosen.name,
        "scope": chosen.scope,
        "covers": list(chosen.covers),
        "basis": chosen.basis,
        "chosen_because": chosen.because,
        **_figures(total),
        "rails": [
            _rail_record(rail, alone[rail.name]) | {"counted": rail.name in total.reading.counted}
            for rail in chosen.every_rail
        ],
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
        apart = "" if rail["counted"] else ", only to check" if rail["role"] == "check" else ", not counted"
        yield f"  {rail['rail']}: {_amount(rail)}{apart}; {rail['samples']} updates"
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
