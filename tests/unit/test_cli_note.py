import json
import os
import pty
import shutil
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
    # Of an option given twice the last one counts.
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
    assert set(record) == {
        "run_id", "suite", "machine", "complete", "passes", "basis", "scope", "covers", "meter", "deviations", "limits", "rows", "verdicts",
    }  # fmt: skip
    assert record["rows"][4]["energy_per_token_spread"] == 0.03
    assert "transcribed from" in record["limits"][0]
    assert record["rows"][4]["energy_per_token_mj"] == 111.0


def test_one_kind_of_output_at_a_time(tmp_path: Path) -> None:
    assert "exclude each other" in refused("--markdown", "--json")
    assert "exclude each other" in refused("--json", "-o", tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is a file; name a folder" in refused("decode-batch", "--results", RESULTS, "-o", tmp_path / "file")
    assert "cannot be written" in refused("decode-batch", "--results", RESULTS, "-o", tmp_path / "file" / "x")


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The stored quickstart, to be damaged."""
    folder = tmp_path / "results" / "amd-epyc-24gb" / "quickstart"
    shutil.copytree(RESULTS / "amd-epyc-24gb" / "quickstart", folder)
    return folder


def test_damaged_samples_cost_the_traces_and_nothing_else(copied: Path, tmp_path: Path) -> None:
    (samples,) = copied.glob("*f37884.samples.jsonl.gz")
    samples.write_bytes(samples.read_bytes()[:2000])
    written = invoke("quickstart", "--results", copied.parents[1], "-o", tmp_path / "note").split()
    text = Path(written[0]).read_text(encoding="utf-8")
    assert f"- no power traces: {samples.name}: is damaged" in text
    assert "trace-1" not in text
    assert "energy.svg" in text


def test_a_damaged_line_of_verdicts_is_told_and_not_left_out_in_silence(copied: Path) -> None:
    (verdicts,) = copied.glob("*f37884.verdicts.jsonl")
    lines = verdicts.read_text(encoding="utf-8").splitlines()
    verdicts.write_text("\n".join([*lines[:-1], lines[-1][:-200]]) + "\n", encoding="utf-8")
    text = invoke("quickstart", "--results", copied.parents[1], "--markdown")
    assert f"{verdicts.name}:{len(lines)} is damaged: a verdict that was given may be missing here" in text


def test_a_run_that_was_cut_short_is_found_by_its_id_and_says_so(copied: Path) -> None:
    for path in copied.glob("*Z-??????.json"):
        path.write_text(
            path.read_text(encoding="utf-8").replace('"complete": true', '"complete": false'), encoding="utf-8"
        )
    said = refused("quickstart", "--results", copied.parents[1])
    assert "there is no complete run" in said
    assert "20261129T235420Z-f37884" in said
    assert "This run was cut short" in invoke("20261129T235420Z-f37884", "--results", copied.parents[1])


def test_what_a_terminal_would_obey_is_written_out(copied: Path) -> None:
    (path,) = copied.glob("*f37884.json")
    path.write_text(path.read_text(encoding="utf-8").replace("no GPU: all", "\\u001b[31mno GPU: all"), encoding="utf-8")
    for form in ((), ("--markdown",)):
        text = invoke("20261129T235420Z-f37884", "--results", copied.parents[1], *form)
        assert "\x1b" not in text
        assert "x1b" in text


def test_the_run_of_record_is_among_the_other_attempts() -> None:
    assert "20261129T204512Z-c41aeb (quickstart): 5 held, 1 refuted" in invoke("20261129T235420Z-f37884")


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
