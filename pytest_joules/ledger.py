"""Every attempt counts: what was started is written down before the first window, where later deletions show.

    results/<machine>/ledger.jsonl              beside the runs, to be committed with them
    <the user's state folder>/ledger.jsonl      on this machine, whatever the results folder

Each line carries the SHA-256 of the line before it, so that a line that was changed or taken out breaks the chain. Whoever
can write the files can write them anew; the ledger stops forgetting, not forging.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

STATE_VARIABLE = "JOULES_STATE_DIR"
NAME = "ledger.jsonl"


def state_folder() -> Path:
    """Where this user's ledger is; $JOULES_STATE_DIR names another place."""
    return Path(os.environ.get(STATE_VARIABLE) or platformdirs.user_state_dir("pytest-joules", appauthor=False))


@dataclass(frozen=True, slots=True)
class Entries:
    """What a ledger holds.

    Attributes:
        records: its lines, oldest first.
        faults: where the chain is broken, in words.
    """

    records: tuple[Mapping[str, Any], ...]
    faults: tuple[str, ...] = ()


def read(path: Path) -> Entries:
    """The entries of a ledger; none when there is no such file."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return Entries(())
    records, faults = [], []
    before = b""
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            record = json.loads(line)
            said = record["prev"]
        except (ValueError, KeyError, TypeError):
            faults.append(f"{path.name}:{number}: is no entry; a crash may have cut it off")
            before = line
            continue
        if said != _digest(before):
            faults.append(
                f"{path.name}:{number}: does not follow the line before it; something was changed or taken out"
            )
        records.append(record)
        before = line
    return Entries(tuple(records), tuple(faults))


def append(paths: Sequence[Path], record: Mapping[str, Any]) -> list[str]:
    """Add an entry to each ledger, on the disk before this returns.

    Returns:
        Why an entry could not be added, for each ledger where it could not.
    """
    failed = []
    for path in paths:
        try:
            _append(path, record)
        except OSError as error:
            failed.append(f"{path.name} in {path.parent.name}: {error.strerror or error}")
    return failed


def _append(path: Path, record: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b", buffering=0) as file:
        file.seek(0)
        content = file.readall()
        last = next((line for line in reversed(content.split(b"\n")) if line), b"")
        line = json.dumps({**record, "prev": _digest(last)}, allow_nan=False, ensure_ascii=False).encode()
        # A line that a crash cut off must not swallow the next one.
        line = (b"" if not content or content.endswith(b"\n") else b"\n") + line + b"\n"
        try:
            if file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file.fileno())
        except OSError:
            # Half a line would stand for ever as a break in the chain.
            file.truncate(len(content))
            raise


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest() if line else ""
