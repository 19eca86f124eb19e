"""One measurement at a time: two on one machine would measure each other."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import filelock
import psutil

from pytest_joules.errors import Busy

_joining = threading.Lock()
_joined = 0
_held = contextlib.ExitStack()


@contextlib.contextmanager
def process_lock(what: str) -> Iterator[None]:
    """`machine_lock` for all that this process measures: what begins while it is held here joins in.

    A test may open a power window while its suite is being measured, or open one around that.

    Raises:
        Busy: another process holds the machine.
    """
    global _joined
    with _joining:
        if not _joined:
            _held.enter_context(machine_lock(f"{what}, process {os.getpid()}"))
        _joined += 1
    try:
        yield
    finally:
        with _joining:
            _joined -= 1
            if not _joined:
                _held.close()


@contextlib.contextmanager
def machine_lock(what: str, folder: Path | None = None) -> Iterator[None]:
    """Hold this machine for one measurement: two at once would measure each other.

    Raises:
        Busy: another measurement of ours holds it.
    """
    # One place for all users; the temporary folder can be each user's own.
    shared = Path("/tmp") if os.name == "posix" else Path(tempfile.gettempdir())  # noqa: S108
    place = folder or Path(os.environ.get("JOULES_LOCK_DIR") or shared)
    # The last of several threads releases it, which need not be the one that took it.
    lock = filelock.FileLock(place / "pytest-joules.lock", mode=0o666, thread_local=False)
    holder = place / "pytest-joules.lock.holder"
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise Busy(
            f"this machine is being measured already ({_told(holder)}); wait for it to end, then run again"
        ) from None
    except OSError as error:
        raise Busy(f"the lock {lock.lock_file} cannot be taken: {error}") from None
    try:
        with contextlib.suppress(OSError):
            holder.write_text(what)
        yield
    finally:
        with contextlib.suppress(OSError):
            holder.unlink()
        lock.release()


def _told(holder: Path) -> str:
    """Who holds the lock, as far as it could write it down.

    A run that was killed leaves its words, and another user may not overwrite them.
    """
    with contextlib.suppress(OSError):
        text = holder.read_text(errors="replace")
        pid = text.rpartition("process ")[2]
        if text and not (pid.isdigit() and not psutil.pid_exists(int(pid))):
            return text
    return "another run"
