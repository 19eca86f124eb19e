"""Puts settings back when whoever changed them is gone.

usage: python -I -S _restorer.py STATE HEADER

Run as a program of its own, with the standard library only. STATE is a file that it makes, holds locked while it lives, and removes at
its end. HEADER is a line of JSON that goes to its start: `{"boot": ..., "python_path": [...]}`. Commands come on standard input, a pipe
held by the parent, one JSON object a line: `{"push": ID, "knob": ..., "steps": [...]}` before settings are changed, `{"pop": ID}` after
they were put back. Each is written to STATE and synced before `ok`, or what is wrong, is answered on standard output. When the
pipe closes, whatever was pushed and not popped is put back here, the last first. A STATE that is left behind means that this program
was killed too: the next run finds it.

A step is `{"path": ..., "texts": [...], "instead": [...]}`, texts to write one after the other and others to write where these are
refused, or `{"nvml": call, "gpu": index, "arguments": [...]}`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import sys

TYPE_CHECKING = False
"""Not from `typing`: nothing here needs that module at run time."""
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any


def write(path: str, text: str) -> None:
    """Write to a file that is there. Raises `OSError`."""
    # Never made anew: of a device that is gone no file must be left in its place.
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def apply(step: Mapping[str, Any]) -> None:
    """Do one step. Raises `OSError`, or what NVML raises."""
    if "nvml" in step:
        _nvml(step)
        return
    try:
        for text in step["texts"]:
            write(step["path"], text)
    except OSError:
        if not step.get("instead"):
            raise
        for text in step["instead"]:
            write(step["path"], text)


def _nvml(step: Mapping[str, Any]) -> None:
    import pynvml as nvml

    nvml.nvmlInit()
    try:
        getattr(nvml, step["nvml"])(nvml.nvmlDeviceGetHandleByIndex(step["gpu"]), *step["arguments"])
    finally:
        nvml.nvmlShutdown()


def outstanding(lines: Iterable[str]) -> list[dict[str, Any]]:
    """What was pushed and not popped, the last first. A line that was cut off was never answered, so nothing was changed after it."""
    held: dict[int, dict[str, Any]] = {}
    for line in lines:
        try:
            command = json.loads(line)
        except ValueError:
            continue
        if "push" in command:
            held[command["push"]] = command
        elif "pop" in command:
            held.pop(command["pop"], None)
    return list(held.values())[::-1]


def restore(held: Iterable[Mapping[str, Any]]) -> list[str]:
    """Put back what is held, in the given order, and tell what could not be."""
    faults = []
    for one in held:
        for step in one["steps"]:
            try:
                apply(step)
            except Exception as error:  # one setting that cannot be put back must not keep the others
                faults.append(f"knob {one['knob']}: {step.get('path') or step.get('nvml')}: {error}")
    return faults


def locked(descriptor: int) -> bool:
    """Whether the file could be locked: no living restorer holds it."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def main() -> int:
    """Keep what is pushed until it is popped or the parent is gone."""
    path, header = sys.argv[1], sys.argv[2]
    # Whoever ends the parent may end its whole session: this program must be the last to go.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.path += json.loads(header)["python_path"]
    lines: list[str] = []
    with open(path, "a", encoding="utf-8") as state:  # noqa: PTH123  pathlib would cost start-up time here
        locked(state.fileno())
        for line in itertools.chain([header + "\n"], iter(sys.stdin.readline, "")):
            answer = "ok"
            try:
                state.write(line)
                state.flush()
                os.fsync(state.fileno())
                lines.append(line)
            except OSError as error:
                answer = f"{path} cannot be written ({error.strerror})"
            # The parent may be gone by now; what it pushed is put back below.
            with contextlib.suppress(OSError):
                os.write(1, answer.encode() + b"\n")
        if not restore(outstanding(lines)):
            os.unlink(path)  # noqa: PTH108  as above
    return 0


if __name__ == "__main__":
    sys.exit(main())
