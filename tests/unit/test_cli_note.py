import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pytest_joules import store
from pytest_joules.cli import app
from pytest_joules.cli import note as _note  # noqa: F401  (registers the command)
from pytest_joules.errors import UsageError

REPOSITORY = Path(__file__).parents[2]
RESULTS, EXAMPLES = REPOSITORY / "results", REPOSITORY / "docs" / "examples"


def invoke(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, ["note", "--results", str(RESULTS), *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, ["note", *map(str, arguments)])
    assert isinstance(result.exception, UsageError), result.output
    return str(result.exception)


def test_a_note_is_written_as_markdown_plots_and_a_page(tmp_path: Path) -> None:
    printed = invoke("decode-batch", "-o", tmp_path / "note").split()
    markdown, page = map(Path, printed)
    assert markdown.read_text(encoding="utf-8").startswith("# Where does energy per token stop falling")
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    folder = markdown.with_suffix("")
    assert sorted(path.name for path in folder.iterdir()) == ["energy.svg", "speed-and-power.svg"]
    for path in folder.iterdir():
        assert f"{folder.name}/{path.name}" in markdown.read_text(encoding="utf-8")


def test_a_note_written_twice_is_the_same(tmp_path: Path) -> None:
    texts = []
    for _ in range(2):
        _, page = invoke("decode-batch", "-o", tmp_path).split()
        texts.append(Path(page).read_bytes())
    assert texts[0] == texts[1]


def test_markdown_can_be_printed() -> None:
    text = invoke("decode-batch", "--markdown")
    assert "\n|" in text
    assert "![" not in text


def test_json_is_one_strict_object() -> None:
    record = json.loads(invoke("decode-batch", "--json"), parse_constant=pytest.fail)
    assert set(record) == {"run_id", "suite", "machine", "basis", "scope", "meter", "rows", "verdicts"}
    assert record["rows"][4]["energy_per_token_mj"] == 111.0


def test_one_kind_of_output_at_a_time(tmp_path: Path) -> None:
    assert "exclude each other" in refused("--markdown", "--json")
    assert "exclude each other" in refused("--json", "-o", tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "the note cannot be written" in refused("decode-batch", "--results", RESULTS, "-o", tmp_path / "file")


def test_a_run_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "there is no run or suite 'nothing'" in refused("nothing", "--results", RESULTS)
    assert "there are no results in" in refused("--results", tmp_path / "none")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.md")), ids=lambda path: path.stem)
def test_the_examples_in_the_documentation_are_what_is_written_now(path: Path, tmp_path: Path) -> None:
    run_id = path.stem[-len("20261025T000000Z-0315e3") :]
    stored = store.Store(RESULTS).find(run_id)
    # Drawings differ between versions of the library that draws them; the words do not.
    written, _ = invoke(stored.path, "-o", tmp_path).split()
    assert Path(written).read_text(encoding="utf-8") == path.read_text(encoding="utf-8")


def test_there_are_examples() -> None:
    assert len(list(EXAMPLES.glob("*.html"))) >= 4


COMMAND = [sys.executable, "-m", "pytest_joules", "note", "decode-batch", "--results", str(RESULTS)]


def on_a_terminal(**environment: str) -> str:
    ours, theirs = pty.openpty()
    try:
        subprocess.run(
            COMMAND, stdout=theirs, check=True, timeout=60, env={**os.environ, "COLUMNS": "80", **environment}
        )
        os.close(theirs)
        text = b""
        while chunk := _read(ours):
            text += chunk
    finally:
        os.close(ours)
    return text.decode()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # the end, on Linux
        return b""


def test_colours_are_for_terminals_that_want_them() -> None:
    assert "\x1b[32m\x1b[1mHELD" in on_a_terminal()
    assert "\x1b" not in on_a_terminal(NO_COLOR="1")
    piped = subprocess.run(
        COMMAND, capture_output=True, text=True, check=True, timeout=60, env={**os.environ, "COLUMNS": "80"}
    )
    assert "\x1b" not in piped.stdout
    assert "HELD (clear)" in piped.stdout
    assert max(map(len, piped.stdout.splitlines())) <= 80
