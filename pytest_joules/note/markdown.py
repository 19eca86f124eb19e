"""The note of a run as Markdown. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tabulate import tabulate

from pytest_joules.note.document import Claim, Document
from pytest_joules.words import printable


def markdown(note: Document, images: str = "") -> str:
    """The note as Markdown text.

    Args:
        images: the folder in which the plots' SVG files stand, relative to the text; without one they are left out.
    """
    return "\n".join(_parts(note, images)).rstrip() + "\n"


def _parts(note: Document, images: str) -> Iterator[str]:
    yield from (f"# {escaped(note.question)}", "", escaped(note.title) + ".", "", f"**{escaped(note.answer)}**", "")
    yield from (line for text in note.setup for line in (escaped(text), ""))
    yield from ("## Results", "", *table(note.headers, note.rows), "")
    if note.grades:
        yield from (*(f"- {escaped(line)}" for line in note.grades), "")
    yield from (
        "## Predictions",
        "",
        f"{note.counted}." if note.claims else "No prediction was judged on this run.",
        "",
    )
    for claim in note.claims:
        yield from _claim(claim)
    traces = [figure for figure in note.figures if figure.name.startswith("trace")]
    others = [figure for figure in note.figures if figure not in traces]
    if images:
        for figure in others:
            yield from (f"![{escaped(figure.told)}]({images}/{figure.name}.svg)", "", escaped(figure.caption), "")
    yield from _listed("Findings", [str(finding) for finding in note.findings])
    yield from _listed("Method, as run", note.method)
    if images and traces:
        yield from ("## Power in every window", "")
        for figure in traces:
            yield from (f"![{escaped(figure.told)}]({images}/{figure.name}.svg)", "", escaped(figure.caption), "")
    yield from _listed("Deviations", note.deviations)
    yield from _listed("Limits", note.limits)
    yield from _listed("Other attempts at these data", note.attempts)
    yield from ("## Reproduce", "", *fenced("\n".join(note.reproduce), "console"), "")
    yield from _listed("Raw data", note.files)


def _claim(claim: Claim) -> Iterator[str]:
    sure = f" ({claim.sure})" if claim.sure else ""
    primary = ", primary" if claim.primary else ""
    yield from (f"**{claim.word}{sure}{primary}**: {escaped(claim.text)}", "")
    if claim.asserted:
        yield from (*fenced(claim.asserted, "python"), "")
    yield from (f"- {escaped(line)}" for line in (claim.made, *claim.because))
    yield ""


def _listed(title: str, items: Sequence[str]) -> Iterator[str]:
    if items:
        yield from (f"## {title}", "", *(f"- {escaped(item)}" for item in items), "")


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], aligned: Sequence[str] | None = None) -> list[str]:
    """A Markdown table, each column `left` or `right` as `aligned` says, else all to the right as figures are."""
    text = tabulate(
        [[escaped(cell) for cell in row] for row in rows], headers=[escaped(header) for header in headers], tablefmt="pipe",
        disable_numparse=True, colalign=(aligned or ["right"] * len(headers)) if rows else None,
    )  # fmt: skip
    return text.splitlines()


def fenced(text: str, language: str) -> list[str]:
    """A code block that its text cannot end: the fence is longer than any in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}{language}", *text.splitlines(), fence]


def escaped(text: str) -> str:
    """Text of which Markdown and the HTML in it make nothing but text, on one line."""
    flat = printable(" ".join(text.split()))
    flat = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # Underscores within words, as in file names, mean nothing; all else that could mean something is marked.
    return re.sub(r"([\\`*\[\]|#~]|(?<!\w)_|_(?!\w))", r"\\\1", flat)
