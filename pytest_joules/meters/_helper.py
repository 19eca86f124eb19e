"""Running another program that prints readings line by line, and being rid of it afterwards.

The program runs under the guard of `pytest_joules.guard`, which ends it together with everything it started, also when
this process is killed without a word and the program never prints again. It has a session of its own: an interrupt typed
at the terminal does not reach it, and it cannot ask a question there. It has no standard input.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_joules import guard
from pytest_joules.errors import MeterError
from pytest_joules.words import decoded, one_line

GRACE_S = 0.5
"""How long a program may take to end itself before it is killed."""

REAP_S = GRACE_S + 1.5
"""How long to wait until a program that was told to end is gone."""

_START_S = 30.0

_CHUNK_BYTES = 65536
_LONGEST_LINE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Line:
    """One line, without its newline, and the monotonic time in seconds at which it arrived."""

    mono: float
    text: bytes


class Helper:
    """A running program whose standard output is read by the line.

    Attributes:
        pid: of the program itself, which leads a process group of its own.

    Raises:
        MeterError: the program cannot be started.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        self._name = os.path.basename(argv[0])  # noqa: PTH119  (a name on PATH is no path)
        self._out, out_end = os.pipe()
        self._err, err_end = os.pipe()
        self._tell, tell_end = os.pipe()
        self._woken, self._wake = os.pipe()
        try:
            process = subprocess.Popen(
                guard.command_line(GRACE_S, tell_end, argv),
                stdin=subprocess.PIPE,
                stdout=out_end,
                stderr=err_end,
                pass_fds=(tell_end,),
                env=environment(),
                start_new_session=True,
            )
        finally:
            for end in (out_end, err_end, tell_end):
                os.close(end)
        first = guard.told(self._tell, _START_S)
        if not first.get("pid"):
            _end(process, None)
            self._close_pipes()
            raise MeterError(f"{argv[0]} cannot be run: {first.get('error', 'its guard does not answer')}")
        self.pid: int = first["pid"]
        self._kill = weakref.finalize(self, _end, process, self.pid)
        self._selector = selectors.DefaultSelector()
        for end in (self._out, self._err, self._woken):
            os.set_blocking(end, False)
            self._selector.register(end, selectors.EVENT_READ)
        self._rest, self._last_words = b"", b""
        self._arrived: list[Line] = []
        self._ended = False
        self._how: dict[str, Any] | None = None
        self._closed = threading.Event()
        self._reading = threading.Lock()

    def lines(self, timeout_s: float | None = None) -> list[Line]:
        """The lines that have arrived; waits for one when there is none.

        Returns:
            Nothing when `timeout_s` ran out or the helper was closed. A last line without an end is left out: it was cut.

        Raises:
            MeterError: the program has ended, with its exit code and the last line of its standard error.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._reading:
            while not self._closed.is_set():
                if self._arrived:
                    arrived, self._arrived = self._arrived, []
                    return arrived
                if self._ended:
                    raise MeterError(self._how_it_ended())
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return []
                for key, _ in self._selector.select(left):
                    self._drain(key.fd)
        return []

    def close(self) -> None:
        """End the program with everything it started, and reap it. A blocked `lines` returns. May be called twice."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._kill()
        os.write(self._wake, b"x")
        with self._reading:
            self._selector.close()
            self._close_pipes()

    def _close_pipes(self) -> None:
        for end in (self._out, self._err, self._tell, self._woken, self._wake):
            os.close(end)

    def _drain(self, end: int) -> None:
        """Take in what one pipe holds."""
        if end == self._woken:
            return
        try:
            chunk = os.read(end, _CHUNK_BYTES)
        except BlockingIOError:
            return
        if end == self._err:
            self._last_words = (self._last_words + chunk)[-_CHUNK_BYTES:]
        else:
            *whole, self._rest = (self._rest + chunk).split(b"\n")
            if len(self._rest) > _LONGEST_LINE_BYTES:
                self._rest = b""
            # One clock reading a line: lines that come in one piece still keep their order in time.
            self._arrived += [Line(time.monotonic(), text) for text in whole]
        if not chunk:
            self._selector.unregister(end)
            self._ended = self._ended or end == self._out

    def _how_it_ended(self) -> str:
        if self._how is None:
            self._how = guard.told(self._tell, REAP_S)
        with contextlib.suppress(OSError):
            self._last_words += os.read(self._err, _CHUNK_BYTES)
        if self._how.get("signal"):
            how = f"was killed by signal {self._how['signal']}"
        elif self._how.get("exit") is not None:
            how = f"ended with exit code {self._how['exit']}"
        else:
            how = "closed its output"
        words = [decoded(line) for line in self._last_words.splitlines() if line.strip()]
        return f"{self._name} {how}" + (f": {one_line(words[-1])}" if words else "")


def environment() -> dict[str, str]:
    """This process's environment with messages and numbers as the C locale writes them."""
    return {**os.environ, "LC_ALL": "C"}


def ask(argv: Sequence[str], timeout_s: float) -> str | None:
    """The first line that a short program prints, or `None` when it fails, prints nothing or takes too long."""
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment(),
            start_new_session=True,
            timeout=timeout_s,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return one_line(decoded(done.stdout.partition(b"\n")[0].strip())) or None


def _end(process: subprocess.Popen[bytes], group: int | None) -> None:
    """Have the guard end its program with everything it started, and reap the guard."""
    with contextlib.suppress(OSError):
        if process.stdin:
            process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(REAP_S)
    # Only a guard that did not come to its own end leaves this to do: after one that did, the number may be another's.
    if process.returncode != 0 and group is not None:
        # A program that runs as another user cannot be killed; its closed pipe ends it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
