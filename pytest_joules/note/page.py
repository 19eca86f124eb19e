"""HTML pages: one file each, nothing fetched, every text escaped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pytest_joules.errors import UsageError
from pytest_joules.note.document import Document
from pytest_joules.note.plots import Figure, titled
from pytest_joules.words import printable

if TYPE_CHECKING:
    from markupsafe import Markup


def html(note: Document) -> str:
    """The note of a run as a page.

    Raises:
        UsageError: jinja2 is not installed.
    """
    traces = [figure for figure in note.figures if figure.name.startswith("trace")]
    others = [figure for figure in note.figures if figure not in traces]
    return rendered("note.html.j2", title=note.title, note=note, plots=placed(others), traces=placed(traces))


def rendered(template: str, **values: Any) -> str:
    """A page made from one of the templates, which extend `page.html.j2`. Whatever is no `Markup` is escaped.

    Raises:
        UsageError: jinja2 is not installed.
    """
    try:
        import jinja2
    except ImportError:
        raise UsageError(
            "pages need jinja2, which is not installed: pip install 'pytest-joules[note]', or print the note without -o"
        ) from None
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pytest_joules.note"), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined, finalize=_shown,
    )  # fmt: skip
    return environment.get_template(template).render(**values)


def _shown(value: Any) -> Any:
    """Text with control characters written out; what is Markup already, and no `str` of ours, is left as it is."""
    return printable(value) if type(value) is str else value


def placed(figures: Iterable[Figure]) -> list[dict[str, str | Markup]]:
    """Plots for a template: `svg`, which is our own drawing and not escaped again, and `caption`."""
    from markupsafe import Markup

    # matplotlib escapes what it writes, and `titled` the rest.
    return [{"svg": Markup(titled(f.inline, f.told)), "caption": f.caption} for f in figures]  # noqa: S704
