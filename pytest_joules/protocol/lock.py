"""One measurement at a time: two on one machine would measure each other."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import filelock

from pytest_joules.errors import Busy


@contextlib.contextmanager
def machine_lock(what: str, folder: Path | None = None) -> Iterator[None]:
    """Hold this machine for one measurement: two at once would measure each other.

    Raises:
        Busy: another measurement of ours holds it.
    """
    # One place for all users; the temporary folder can be each user's own.
    shared = Path("/tmp") if os.name == "posix" else Path(tempfile.gettempdir())  # noqa: S108
    place = folder or Path(os.environ.get("JOULES_LOCK_DIR") or shared)
    lock = filelock.FileLock(place / "pytest-joules.lock", mode=0o666)
    holder = place / "pytest-joules.lock.holder"
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        held_by = holder.read_text(errors="replace") if holder.exists() else "another run"
        raise Busy(f"this machine is being measured already ({held_by}); wait for it to end, then run again") from None
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
