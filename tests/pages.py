"""What stands in README.md and in the pages of docs/: code blocks, commands, links and headings."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE
)
_FILE = re.compile(r"# (?P<name>[\w./-]+\.(?:py|ya?ml))\b")
_LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Block:
    """A code block of a page."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def file(self) -> str:
        """The file that its first line names, such as `# suites/batch.yaml`; empty when it names none."""
        named = _FILE.match(self.text)
        return named["name"] if named else ""

    def __str__(self) -> str:
        return f"{shown(self.page)}:{self.line}"


def shown(page: Path) -> str:
    """A page as a test's id."""
    return page.relative_to(ROOT).as_posix()


@functools.cache
def pages() -> tuple[Path, ...]:
    """Every page."""
    return (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))


@functools.cache
def blocks(*languages: str) -> tuple[Block, ...]:
    """Every code block in one of the languages."""
    found = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for fence in _FENCE.finditer(text):
            if fence["language"] in languages:
                body = "\n".join(line.removeprefix(fence["indent"]) for line in fence["text"].splitlines())
                found.append(Block(page, text.count("\n", 0, fence.start()) + 2, fence["language"], body + "\n"))
    return tuple(found)


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def spans(page: Path) -> list[str]:
    """Code within lines."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose(page))


def links(page: Path) -> list[str]:
    """Targets of links and pictures."""
    return [link["target"] for link in _LINK.finditer(re.sub(r"`[^`\n]*`", "", prose(page)))]


def headings(page: Path) -> list[str]:
    """Headings as written, without their signs."""
    return re.findall(r"^#{1,6} (.+)$", prose(page), re.MULTILINE)


def anchor(heading: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w\s-]", "", heading.lower()).strip().replace(" ", "-")


def commands(programs: Sequence[str]) -> Iterator[tuple[Block, list[str]]]:
    """Commands that a console block tells to type, as words, with what stands before the program taken off."""
    for block in blocks("console"):
        for line in re.sub(r"\\\n\s*", " ", block.text).splitlines():
            if not line.startswith("$ "):
                continue
            for part in re.split(r"&&|\|\||[;|](?=\s)", line.removeprefix("$ ")):
                words = shlex.split(part, comments=True)
                if words[:2] == ["uv", "run"]:
                    words = words[2:]
                if words[:3] == ["python", "-m", "pytest_joules"]:
                    words = ["joules", *words[3:]]
                if words and words[0] in programs:
                    yield block, words
