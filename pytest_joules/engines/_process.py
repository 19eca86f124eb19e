"""A guarded child process with its output in a log file, and what a program says when it is asked."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_joules import guard
from pytest_joules.errors import EngineError
from pytest_joules.words import one_line

GRACE_S = 5.0
"""How long a program may take to end itself before it is killed."""

_ASKED_S = 60.0
"""How long a program may take to say what it is."""

_TAIL_LINES, _TAIL_ERRORS, _TAIL_WIDTH = 2, 3, 160
_SPEAKS_OF_ERROR = re.compile(r"error|fail|cannot|couldn't|unable|invalid|abort|exception|out of memory", re.IGNORECASE)


def environment() -> dict[str, str]:
    """Ours, without anything that llama.cpp would take for flags, and with numbers as the C locale writes them."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("LLAMA_ARG_", "LLAMA_API_KEY"))}
    return kept | {"LC_ALL": "C"}


def said_by(name: str, program: Path, question: str) -> str:
    """What a program of llama.cpp says to `--version` or `--help`, on whichever stream.

    Args:
        name: of the engine, for the message.

    Raises:
        EngineError: it cannot be run.
    """
    try:
        done = subprocess.run(
            [program, question], capture_output=True, text=True, errors="replace", timeout=_ASKED_S,
            stdin=subprocess.DEVNULL, env=environment(), check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"{name}: {program} {question}: {error}") from None
    if done.returncode < 0:
        raise EngineError(
            f"{name}: {program.name} {question} died of signal {-done.returncode}: it was likely built for another processor; "
            f"build or fetch one for this machine{': ' + one_line(done.stderr) if done.stderr.strip() else ''}"
        )
    return f"{done.stdout}\n{done.stderr}"


class GuardedProcess:
    """A program that ends when we do, however we end.

    Attributes:
        pid: of the program itself.
        log_path: file its output goes to, from its first byte; nobody has to read a pipe for it to go on.
    """

    def __init__(
        self, command: Sequence[str], log_path: Path, environment: Mapping[str, str], output: int | None = None
    ) -> None:
        """Start it.

        Args:
            output: file descriptor that its output goes to instead of the log, which whoever reads it then keeps.
        """
        self.log_path = log_path
        self._ended: dict[str, int | None] | None = None
        with log_path.open("wb") as log:
            # A session of its own: Ctrl-C in the terminal is for pytest, which then ends this in order.
            self._guard = subprocess.Popen(
                guard.command_line(GRACE_S, 1, command),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log if output is None else output, env=dict(environment),
                start_new_session=True,
            )  # fmt: skip
        first = self._told(timeout_s=30.0)
        if not first.get("pid"):
            self.stop()
            raise EngineError(f"cannot start {command[0]}: {first.get('error', 'its guard does not answer')}")
        self.pid: int = first["pid"]

    @property
    def pids(self) -> frozenset[int]:
        """The program and its guard."""
        return frozenset((self.pid, self._guard.pid))

    def running(self) -> bool:
        """Whether the program is still there."""
        return self._guard.poll() is None and not self._readable(0.0)

    def how_it_ended(self) -> str:
        """`exit code 1`, `signal 9 (SIGKILL)`, with the end of the log; for a program that is no longer running."""
        self._finish(timeout_s=2.0)
        ended = self._ended or {}
        if number := ended.get("signal"):
            how = f"signal {number} ({signal.Signals(number).name})"
        elif ended.get("exit") is not None:
            how = f"exit code {ended['exit']}"
        else:
            how = "an unknown cause"
        return f"{how}; its log ends: {self.log_tail() or '(empty)'}"

    def log_tail(self) -> str:
        """What the log says at its end: its last lines, and before them the lines that speak of an error."""
        lines = [line.strip() for line in self.log_text().splitlines() if line.strip()]
        errors = [line for line in lines[:-_TAIL_LINES] if _SPEAKS_OF_ERROR.search(line)]
        return " | ".join(one_line(line, _TAIL_WIDTH) for line in [*errors[-_TAIL_ERRORS:], *lines[-_TAIL_LINES:]])

    def log_text(self) -> str:
        """The whole log so far."""
        with contextlib.suppress(OSError):
            return self.log_path.read_text(encoding="utf-8", errors="replace")
        return ""

    def stop(self) -> None:
        """End the program and all it started, and reap it. May be called twice."""
        if self._guard.stdin and not self._guard.stdin.closed:
            with contextlib.suppress(OSError):
                self._guard.stdin.close()
        self._finish(timeout_s=GRACE_S + 10.0)
        if self._guard.stdout and not self._guard.stdout.closed:
            self._guard.stdout.close()

    def _finish(self, timeout_s: float) -> None:
        if self._ended is None and self._guard.stdout and not self._guard.stdout.closed:
            self._ended = self._told(timeout_s)
        try:
            self._guard.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(self._guard.pid, signal.SIGKILL)
            self._guard.wait()

    def _readable(self, timeout_s: float) -> bool:
        return bool(self._guard.stdout and select.select([self._guard.stdout], [], [], timeout_s)[0])

    def _told(self, timeout_s: float) -> dict[str, Any]:
        return guard.told(self._guard.stdout.fileno(), timeout_s) if self._guard.stdout else {}
