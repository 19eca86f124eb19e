"""Small helpers for the words people read: nearest names, numbers, durations. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is nearest, when one is near."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)), None)


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` when a known word is near, else an empty string."""
    close = closest(word, known)
    return "" if close is None else f"; did you mean {close!r}?"


def listed(names: Sequence[str]) -> str:
    """`A`, `A and B`, `A, B and C`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def duration(seconds: float) -> str:
    """`42 s`, `3 min 05 s` or `1 h 12 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def printable(text: str) -> str:
    """Text in which what a terminal would obey or cannot show is written out, as `repr` does; line breaks are kept."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode("ascii") for c in text)


def decoded(raw: bytes) -> str:
    """What a program printed, with the bytes that are no text written out."""
    return printable(raw.decode("utf-8", errors="backslashreplace"))


def one_line(text: str, limit: int = 300) -> str:
    """Text without line breaks, cut at `limit` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
