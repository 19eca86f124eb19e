"""Predictions on the pages: what is shown is taken, and what is said to be refused is refused with these words."""

import re

import pages
import pytest

# Imported once for all: a run within this process would load it anew.
pytestmark = pytest.mark.usefixtures("sources_loaded")

MARK = "pytest.mark.joules("
STATED = "pytestmark = pytest.mark.joules('batches')"
USUAL = "def test_it(sweep): assert sweep.power_w[8] < 40"
SUITE = "question: of a page\nmodel: of-a-page\nvary: {parallel: [1, 8, 16, 32]}\n"
PAGE = pages.DOCS / "predictions.md"


def name_of(block: pages.Block) -> str:
    return f"test_{re.sub(r'[^a-z0-9]+', '_', pages.shown(block.page).lower())}_{block.line}"


def test_predictions_on_pages_are_taken(project) -> None:
    """A python block that names a suite is a module of predictions; each can be one, and can fail."""
    found = [block for block in pages.blocks("python") if MARK in block.text]
    assert found
    suites = [*(pages.ROOT / "suites").glob("*.yaml")]
    for suite in suites:
        (project.folder / "suites" / suite.name).write_text(suite.read_text())
    for block in pages.blocks("yaml"):
        if block.file.startswith("suites/"):
            (project.folder / block.file).write_text(block.text)
    for block in found:
        (project.folder / f"{name_of(block)}.py").write_text(block.text)
    done = project.run("--collect-only", "-q")
    assert done.ret == pytest.ExitCode.OK, done.outlines + done.errlines
    listed = {line.partition(".py::")[0] for line in done.outlines if "::" in line}
    assert listed == {name_of(block) for block in found}


@pytest.mark.parametrize("block", [b for b in pages.blocks("python") if MARK not in b.text], ids=str)
def test_other_python_on_pages_can_be_compiled(block: pages.Block) -> None:
    compile(block.text, str(block), "exec")


def module_of(written: str) -> str:
    """A module in which stands what an entry of the list shows."""
    if written.startswith("@"):
        return f"import pytest\n{STATED}\n{written}\n{USUAL}\n"
    if written.startswith("import "):
        return f"{written}\nimport pytest\n{STATED}\n{USUAL}\n"
    function = written if " test_it(" in written else f"def test_it(sweep): {written}"
    return f"import pytest\n{STATED}\n{function}\n"


def test_what_is_refused_is_refused_in_these_words(project) -> None:
    (project.folder / "suites" / "batches.yaml").write_text(SUITE)
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^- `(.+?)`<br>(`+)(.+?)\2$", text, re.MULTILINE)
    assert len(rows) == text.count("<br>") > 0
    for index, (written, _, _) in enumerate(rows):
        (project.folder / f"test_row_{index}.py").write_text(module_of(written))
    done = project.run("--collect-only", "-q")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    said = done.errlines + done.outlines
    for index, (written, _, message) in enumerate(rows):
        [line] = [line for line in said if f"test_row_{index}.py::test_it: " in line]
        assert line.partition("::test_it: ")[2].startswith(message), written


def test_options_of_pytest_on_pages_exist(project) -> None:
    of_xdist = {"-n"}
    known = of_xdist | set(re.findall(r"(?<![\w-])--?[\w-]+", "\n".join(project.run("--help").outlines)))
    typed = {
        word.partition("=")[0] for _, words in pages.commands(["pytest"]) for word in words if word.startswith("-")
    }
    assert typed
    assert typed <= known
