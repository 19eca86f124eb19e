"""`joules cell` on the cells of this repository."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from pytest_joules.cell import BASES, exactly
from pytest_joules.cli.cell import app
from pytest_joules.errors import UsageError
from pytest_joules.note import cellsheet, plots

REPOSITORY = Path(__file__).parents[2]
CELLS = REPOSITORY / "cells"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("COLUMNS", "80")

    def ask(name: str | Path, *arguments: object, fails: bool = False) -> Result:
        given = [
            "cell",
            str(CELLS / f"{name}.yaml" if isinstance(name, str) else name),
            *map(str, arguments),
            "--results",
            str(REPOSITORY / "results"),
        ]
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
    assert re.search(r"grows +grows +grows", text)
    assert re.search(r"120% +100% +27\.4 +39-68 +1\.88 +2\.7-4\.7", text)
    assert "no time is that of a steady state" in text


def test_what_rests_on_a_placeholder_is_marked_under_load_too(asked) -> None:
    text = asked("six-decode-one-prefill", "--load", "4", "--requests", 1000).stdout
    rows = [line.split()[1:] for line in text.splitlines() if re.match(r" +4 ", line)]
    assert [len(row) for row in rows] == [6, 6]
    assert all(cell.startswith("?") for row in rows for cell in row)
    assert (
        "?"
        not in asked("quickstart", "--load", "4", "--requests", 1000).stdout.partition("Times")[2].partition("From")[0]
    )


def test_no_prompt_length_is_not_a_prompt_of_0(asked, tmp_path: Path) -> None:
    given = (CELLS / "six-decode-one-prefill.yaml").read_text().replace(" prompt_tokens: 20,", "")
    without = tmp_path / "without.yaml"
    without.write_text(given)
    assert "how long a prompt is is not known; give --prompts" in str(asked(without, fails=True).exception)
    asked(without, "--load", "4", "--requests", 1000, "--prompts", "0")
    trace = tmp_path / "t.csv"
    trace.write_text("time_s,answer_tokens\n0,5\n1,5\n")
    done = asked(without, "--trace", trace, fails=True)
    assert "prompt_tokens is not among them; the cell has prefill modules, which read prompts" in str(done.exception)
    without.write_text((CELLS / "quickstart.yaml").read_text().replace(" prompt_tokens: 25,", ""))
    done = asked(without, "--load", "4", "--requests", 1000)
    assert "prompts of a length that nobody stated" in " ".join(done.stdout.split())
    assert (
        json.loads(asked(without, "--load", "4", "--requests", 1000, "--json").stdout)["load"]["prompt_tokens"] is None
    )


def test_a_range_is_never_written_backwards() -> None:
    known = exactly(1.0, "measured", "s")
    assert cellsheet._column([(2.0, 0.0), (31.4, 31.2)], 0, [known, known], "%") == ["0-2%", "31%"]


def test_a_column_has_equally_many_decimals() -> None:
    known, guessed = exactly(1.0, "measured", "s"), exactly(1.0, "placeholder", "s")
    assert cellsheet._column([(9.616, 9.616), (142.3, 142.3)], 3, [known, guessed]) == ["9.62", "?142.30"]
    assert cellsheet._column([(0.0, 0.12), (2.0, math.inf)], 2, [known, known]) == ["0.00-0.12", "2.00-grows"]


def test_a_share_of_a_capacity_says_which(asked) -> None:
    text = asked("six-decode-one-prefill", "--load", "50%", "--prompts", "400", "--requests", 1000).stdout
    assert "a load in % is a share of the capacity at the slow end of its range, 0.85 requests per s" in " ".join(
        text.split()
    )
    assert "a load in %" not in asked("quickstart", "--load", "4", "--requests", 1000).stdout


def test_a_load_may_be_written_with_an_exponent(asked) -> None:
    assert "grows" in asked("quickstart", "--load", "1e9", "--requests", 1000).stdout


def test_intervals_near_the_capacity_are_said_to_be_too_small(asked) -> None:
    said = " ".join(asked("quickstart", "--load", "96%", "--load", "2", "--requests", 4000).stdout.split())
    assert "at 14 requests per s queues last so long that half-widths are too small" in said
    assert "of a p99 it is not known with so few requests" in said
    many = " ".join(asked("quickstart", "--load", "4").stdout.split())
    assert re.search(
        r"up to [\d.]+% of the mean time of an answer, [\d.]+% of the p50 of that time, [\d.]+% of the p99 of that time",
        many,
    )


def test_pages_hold_the_sheet_and_its_plots(asked, tmp_path: Path) -> None:
    asked("quickstart", "-o", tmp_path, "--requests", 1000, "--load", "2")
    markdown = (tmp_path / "cell-quickstart.md").read_text()
    page = (tmp_path / "cell-quickstart.html").read_text()
    assert "| power of the modules" in markdown
    # The plots have more rates than were asked for, and the tables only those.
    assert len(re.findall(r"^\|\s+[\d.]+ \|", markdown, re.M)) == 2
    assert "6 rates more than asked for" in markdown
    assert "### Times" in markdown
    assert "![s to the whole answer over requests per s: half:" in markdown
    for name in ("latency", "power", "energy"):
        assert (tmp_path / "cell-quickstart" / f"{name}.svg").read_text().startswith("<svg")
    assert page.count("<svg") == 3
    assert '<span class="word UNMEASURED">placeholder</span>' in page
    assert "<script" not in page
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]+"', "", page.partition("<main>")[2])


def test_rates_beside_an_axis_leave_room_for_each_other() -> None:
    crowded = [(at, f"{at:g}") for at in (1.46, 2, 4.38, 6, 7.3, 10, 10.2, 11.7, 13, 13.1)]
    kept = plots._apart(crowded, 14.0)
    assert [name for _, name in kept] == ["2", "4.38", "6", "7.3", "10.2", "13.1"]


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
        (("--load", "1e999"), "--load 1e999: expected"),
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
