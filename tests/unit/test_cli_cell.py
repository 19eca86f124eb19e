"""`joules cell` on the cells of this repository."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from pytest_joules.cell import BASES
from pytest_joules.cli.cell import app
from pytest_joules.errors import UsageError

REPOSITORY = Path(__file__).parents[2]
CELLS = REPOSITORY / "cells"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("COLUMNS", "80")

    def ask(name: str, *arguments: object, fails: bool = False) -> Result:
        given = ["cell", str(CELLS / f"{name}.yaml"), *map(str, arguments), "--results", str(REPOSITORY / "results")]
        done = CliRunner().invoke(app, given)
        assert (done.exit_code != 0) == fails, done.output
        return done

    return ask


@pytest.mark.parametrize("name", sorted(path.stem for path in CELLS.glob("*.yaml")))
def test_every_row_has_its_basis_and_eighty_columns_hold_it(asked, name: str) -> None:
    lines = asked(name, *(() if name == "published" else ("--load", "50%", "--requests", 1000))).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    table = lines[next(i for i, line in enumerate(lines) if line.startswith("quantity")) + 2 : lines.index("From")]
    rows = [re.split(r"  +", line.strip()) for line in table if re.search(r"  (\d|\?)", line)]
    sheet = [cells for cells in rows if len(cells) >= 3][:10]
    assert sheet
    assert all(set(cells) & set(BASES) for cells in sheet)


def test_a_placeholder_is_marked_wherever_it_counts(asked) -> None:
    text = asked("row", "--load", "4", "--requests", 1000).stdout
    marked = [line for line in text.splitlines() if "placeholder" in line and "simulated" not in line]
    assert len(marked) > 10
    assert all("?" in line for line in marked)
    assert re.search(r"energy per correct answer +\? +J +placeholder", text)
    assert re.search(r"power at the wall +\? 294 to 532 +W +placeholder", text)
    assert "To be measured\n- decode: chip power with the server loaded and silent" in text


def test_the_published_figures_stand_in_the_published_sheet(asked) -> None:
    text = asked("published").stdout
    assert re.search(r"tokens per s +1,150 +tok/s +transcribed", text)
    assert re.search(r"energy per correct answer +111.3 +J +transcribed", text)
    assert re.search(r"energy per correct answer +\? 140 +J +placeholder", text)
    assert re.search(r"as stated elsewhere +140 +J +transcribed", text)
    assert re.search(r"as stated elsewhere +40 to 70% +of wall +transcribed", text)


def test_the_row_is_a_hundred_cells(asked) -> None:
    parts = json.loads(asked("row", "--json", "--load", "4", "--requests", 1000).stdout)["parts"]
    assert parts[-1]["title"] == "the row: 100 cells"
    [cell, row] = [{one["key"]: one for one in part["rows"]} for part in parts[-2:]]
    assert row["tokens_per_s"]["low"] == pytest.approx(100 * cell["tokens_per_s"]["low"])
    assert row["power_w"]["low"] > 100 * cell["power_w"]["low"]


def test_json_says_what_was_simulated(asked) -> None:
    done = asked("quickstart", "--json", "--load", "2", "--load", "50%", "--requests", 1000, "--placing", "fill-first")
    load = json.loads(done.stdout)["load"]
    assert (load["placing"], load["requests"], load["answer_tokens"]) == ("fill-first", 1000, 64)
    assert [point["requests_per_s"] for point in load["points"]] == pytest.approx([2, 7.3], abs=0.01)
    point = load["points"][0]
    assert point["basis"] == "estimated"
    assert point["fast"]["total"]["mean"]["half_width"] > 0
    assert point["fast"] == point["slow"]
    assert point["fast"]["arrived"] == point["fast"]["answered"] + point["fast"]["in_system"]


def test_a_load_beyond_the_capacity_is_said_to_grow(asked) -> None:
    text = asked("quickstart", "--load", "120%", "--requests", 1000).stdout
    assert re.search(r"120%.*grows +grows", text)
    assert "no time is that of a steady state" in text


def test_pages_hold_the_sheet_and_its_plots(asked, tmp_path: Path) -> None:
    asked("quickstart", "-o", tmp_path, "--requests", 1000)
    markdown = (tmp_path / "cell-quickstart.md").read_text()
    page = (tmp_path / "cell-quickstart.html").read_text()
    assert "| power of the modules" in markdown
    assert "![s to the whole answer over requests per s: half:" in markdown
    for name in ("latency", "power", "energy"):
        assert (tmp_path / "cell-quickstart" / f"{name}.svg").read_text().startswith("<svg")
    assert page.count("<svg") == 3
    assert '<span class="word UNMEASURED">placeholder</span>' in page
    assert "<script" not in page
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]+"', "", page.partition("<main>")[2])


def test_a_cell_that_cannot_be_simulated_still_has_a_page(asked, tmp_path: Path) -> None:
    asked("published", "-o", tmp_path)
    assert "Under load" not in (tmp_path / "cell-published.md").read_text()


def test_a_trace_is_simulated_as_it_was(asked, tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("time_s,answer_tokens\n" + "".join(f"{t},{32 * (1 + t % 2)}\n" for t in range(60)))
    record = json.loads(asked("quickstart", "--json", "--trace", trace).stdout)["load"]
    assert (record["arrivals"], record["requests"], record["answer_tokens"]) == ("trace", 60, 48)
    [point] = record["points"]
    assert point["requests_per_s"] == pytest.approx(1.0)
    assert point["fast"]["answered"] == 60
    asked("quickstart", "--trace", trace, "-o", tmp_path)
    assert "under a trace" in (tmp_path / "cell-quickstart.md").read_text()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("when,answer_tokens\n", "t.csv:1: the first line names the columns; time_s is not among them"),
        ("time_s,answer_tokens\n0,5\nsoon,5\n", "t.csv:3: time_s: expected a number, not 'soon'"),
        ("time_s,answer_tokens\n2,5\n1,5\n", "t.csv:3: time_s: expected 2 or later, in order of time, not 1"),
        ("time_s,answer_tokens\n0,5\n1,0\n", "t.csv:3: expected a prompt of 0 tokens or more and an answer above 0"),
        ("time_s,answer_tokens\n0,5\n1\n", "t.csv:3: answer_tokens: expected a number, not None"),
        ("time_s,answer_tokens\n0,5\n", "t.csv: a trace has two requests or more"),
    ],
)
def test_a_trace_that_cannot_be_used_is_refused(asked, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    assert said in str(asked("quickstart", "--trace", tmp_path / "t.csv", fails=True).exception)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--load", "often"), "--load often: expected requests per second, such as 2.5, or a share of the capacity"),
        (("--load", "0"), "--load 0: expected"),
        (("--answers", "0"), "--answers 0.0: should be greater than 0"),
        (("--placing", "first"), "--placing first: should be 'spread' or 'fill-first'"),
        (("--requests", "5"), "--requests 5: should be greater than or equal to 1000"),
        (("--trace", "t.csv", "--load", "2"), "--trace says when requests come"),
        (("--json", "-o", "x"), "-o and --json exclude each other"),
    ],
)
def test_what_cannot_be_meant_is_refused(asked, arguments: tuple[str, ...], said: str) -> None:
    done = asked("quickstart", *arguments, fails=True)
    assert isinstance(done.exception, UsageError)
    assert said in str(done.exception)


def test_the_published_cell_cannot_be_simulated_and_says_why(asked) -> None:
    done = asked("published", "--load", "4", fails=True)
    assert "cannot be simulated without the curve of capped decode" in str(done.exception)
