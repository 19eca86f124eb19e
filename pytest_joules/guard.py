"""Runs one program and outlives whoever started it just long enough to end it.

usage: python -I -S guard.py GRACE_S TELL PROGRAM [ARGUMENT ...]

Run as a program of its own, with the standard library only. Its standard input is a pipe held by the parent: when that
closes, for whatever reason (end, crash, kill -9 of the parent), the program and everything it started get SIGTERM, and
after GRACE_S seconds SIGKILL, or sooner if the parent itself is gone. When the program ends by itself, what it started and left behind is ended likewise. The file
descriptor TELL gets `{"pid": N}`, or `{"pid": null, "error": why}`, and at the end `{"exit": code or null, "signal": number or
null}`. If TELL is 1, all of the program's output goes to the guard's standard error; else both outputs are the guard's own.

A guard rather than a parent-death signal set in the parent: that signal fires when the *thread* that started the child ends,
it exists on Linux only, and setting it between fork and exec of a threaded process is not safe. The guard has one thread, so it
sets the signal for its own child too, which covers the guard itself being killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time

TYPE_CHECKING = False
"""Not from `typing`: nothing here needs that module at run time."""
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
"""From linux/prctl.h."""

ORPHANED_GRACE_S = 1.5
"""The longest grace once the parent is gone: no one waits for the program any more, and it must not work beside the next run."""


def command_line(grace_s: float, tell: int, command: Sequence[str]) -> list[str]:
    """What to run so that a program is under guard."""
    return [sys.executable, "-I", "-S", __file__, str(grace_s), str(tell), *command]


def told(tell: int, timeout_s: float) -> dict[str, Any]:
    """The next thing that a guard tells, read from the other end of TELL; empty when nothing comes in time or ever."""
    deadline = time.monotonic() + timeout_s
    line = b""
    while not line.endswith(b"\n") and select.select([tell], [], [], max(0.0, deadline - time.monotonic()))[0]:
        byte = os.read(tell, 1)
        if not byte:
            break
        line += byte
    found: dict[str, Any] = json.loads(line) if line.endswith(b"\n") else {}
    return found


def main() -> int:
    """Run the program named on the command line under guard."""
    grace_s, tell, command = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    if libc is not None:
        # Grandchildren whose parent ends become ours, so that none is missed at the end.
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)

    def die_with_guard() -> None:
        if libc is not None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=2 if tell == 1 else 1, stderr=2, start_new_session=True,
            preexec_fn=die_with_guard,
        )  # fmt: skip
    except OSError as error:
        _tell(tell, {"pid": None, "error": error.strerror or str(error)})
        return 127
    _tell(tell, {"pid": child.pid})
    if tell != 1:
        # Whoever reads the program's output sees its end when the program ends, not when the guard does.
        with open(os.devnull, "wb") as nothing:  # noqa: PTH123  pathlib would cost start-up time here
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda n, _: stopping.append(n))
    while child.poll() is None and not stopping:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
        if 0 in ready and not os.read(0, 4096):
            break
    code = _end(child, grace_s, parent)
    _tell(tell, {"exit": code if code >= 0 else None, "signal": -code if code < 0 else None})
    return 0


def _end(child: subprocess.Popen[bytes], grace_s: float, parent: int) -> int:
    """SIGTERM to the whole group, SIGKILL after the grace, then whatever else was left behind."""
    begun = time.monotonic()
    _signal_group(child.pid, signal.SIGTERM)
    while child.poll() is None and time.monotonic() - begun < grace_s:
        # Looked at each time: the pipe of a parent that is killed closes a moment before its children are given away.
        if os.getppid() != parent:
            grace_s = min(grace_s, ORPHANED_GRACE_S)
        time.sleep(0.02)
    _signal_group(child.pid, signal.SIGKILL)
    code = child.wait()
    deadline = time.monotonic() + grace_s
    # One that runs as another user cannot be killed, and must not keep the guard for ever.
    while (orphans := _children()) and time.monotonic() < deadline:
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)
    return code


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _children() -> list[int]:
    """Processes that became ours because their parent ended. Linux only; elsewhere the group is all there is."""
    # Not /proc/self/task/PID/children: kernels are built without it.
    own = str(os.getpid()).encode()
    found = []
    entries = os.listdir("/proc") if sys.platform == "linux" else []  # noqa: PTH208  pathlib would cost start-up time here
    for pid in filter(str.isdigit, entries):
        with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            # After the name, which may hold anything, come the state and the parent.
            if file.read().rpartition(b")")[2].split()[1] == own:
                found.append(int(pid))
    return found


def _tell(tell: int, record: dict[str, object]) -> None:
    # The parent may be gone already; ending the program matters more than telling.
    with contextlib.suppress(OSError):
        os.write(tell, json.dumps(record).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
