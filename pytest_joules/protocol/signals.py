"""Requests to end, told from outside, as an interruption that leaves everything in order."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Ended(KeyboardInterrupt):
    """A signal asked this process to end. Pytest stops at it as it does at Ctrl-C."""


@contextlib.contextmanager
def ending_in_order() -> Iterator[None]:
    """Within the block SIGTERM and SIGHUP raise `Ended`, once; the second time they do what they always do.

    A handler that somebody else has set, or a thread other than the main one, is left alone.
    """
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    if threading.current_thread() is threading.main_thread():
        ours = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
    else:
        ours = []

    def end(number: int, frame: FrameType | None) -> None:
        for each in ours:
            signal.signal(each, signal.SIG_DFL)
        raise Ended(f"ended by {signal.Signals(number).name}")

    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
