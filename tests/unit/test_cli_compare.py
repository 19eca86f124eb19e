"""`joules compare` on stored runs."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from pytest_joules import store
from pytest_joules.cli.compare import app
from pytest_joules.errors import UsageError
from pytest_joules.records import Run, Verdict

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def keep(tmp_path, make_run, make_window) -> Callable[..., Path]:
    """Keep a run of a day as a measurement does, and return its file."""

    def write(machine: str, day: int, energy_j: float = 200.0, suite: str = "made-up", **changes) -> Path:
        windows = [make_window(n, p, energy_j=energy_j * (1 + p / 100)) for p in (0, 1) for n in (1, 8)]
        run: Run = make_run(
            *windows, run_id=f"202610{day:02d}T101530Z-3fa9c1", machine_slug=machine, suite_name=suite, **changes
        )
        return store.Store(tmp_path / "results").write(run, ()).path

    return write


@pytest.fixture
def asked(tmp_path) -> Callable[..., Result]:
    def ask(*arguments: object, fails: bool = False) -> Result:
        done = CliRunner().invoke(app, ["compare", *map(str, arguments), "--results", str(tmp_path / "results")])
        assert (done.exit_code != 0) == fails, done.output
        return done

    return ask


def compared(done: Result) -> list[tuple[str, str]]:
    return [(run["machine"], run["run_id"][6:8]) for run in json.loads(done.stdout)["runs"]]


def test_the_newest_complete_run_of_each_machine_and_model_file(keep, asked) -> None:
    keep("one", 1)
    keep("one", 2)
    keep("one", 3, complete=False)
    keep("two", 1, suite="another")
    keep("two", 4)
    assert compared(asked("made-up", "--json")) == [("one", "02"), ("two", "04")]
    assert compared(asked("made-up", "--json", "--all")) == [("one", "01"), ("one", "02"), ("one", "03"), ("two", "04")]


def test_another_model_file_is_another_column_unless_the_model_is_what_varies(keep, asked) -> None:
    other = ({"name": "made-up-7b", "format": "q4_0", "sha256": "1" * 64},)
    keep("one", 1, models=other)
    keep("one", 2)
    assert [day for _, day in compared(asked("made-up", "--json"))] == ["02", "01"]


def test_runs_that_vary_the_model_are_one_column(keep, asked, tmp_path) -> None:
    for day in (1, 2):
        path = keep("one", day, models=({"name": f"m{day}", "format": None},))
        record = json.loads(path.read_text())
        for place in (record["conditions"], [window["condition"] for window in record["windows"]]):
            for condition in place:
                condition["model"] = "m"
        path.write_text(json.dumps(record | {"axes": ["parallel", "model"]}))
    assert [day for _, day in compared(asked("made-up", "--json"))] == ["02"]


def test_exact_runs_by_id_and_by_file_in_the_order_given(keep, asked) -> None:
    first, second = keep("one", 1), keep("two", 2, suite="another")
    assert compared(asked("--run", second.stem, "--run", first, "--run", second, "--json")) == [
        ("two", "02"),
        ("one", "01"),
    ]
    assert "these are runs of different suites" in asked("--run", second.stem, "--run", first).stdout


def test_runs_without_a_common_condition_are_refused(keep, asked, make_window) -> None:
    first = keep("one", 1)
    second = keep("two", 2)
    record = json.loads(second.read_text().replace('"parallel"', '"answer_tokens"'))
    second.write_text(json.dumps(record))
    done = asked("--run", first, "--run", second, fails=True)
    assert isinstance(done.exception, UsageError)
    assert "no condition in common" in str(done.exception)


def test_without_a_suite_what_there_is_is_listed(keep, asked) -> None:
    keep("one", 1)
    assert "made-up: energy per generated token, prompt included, in mJ per token" in asked().stdout, (
        "a single suite is compared at once"
    )
    keep("one", 1, suite="another")
    keep("two", 1)
    assert asked().stdout.splitlines()[1:] == ["  another: one (1 run)", "  made-up: one (1 run), two (1 run)"]
    assert json.loads(asked("--json").stdout)["suites"] == {"another": {"one": 1}, "made-up": {"one": 1, "two": 1}}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mode-up"], "did you mean 'made-up'?"),
        (["--metric", "energy_per_token"], "did you mean 'energy_per_token_mj'?"),
        (["--run", "20990101T000000Z-000000"], "no run of this id"),
        (["made-up", "--run", "x"], "leave out the suite"),
        (["--json", "--markdown"], "exclude each other"),
    ],
)
def test_what_cannot_be_compared_is_one_line_with_the_next_step(keep, asked, arguments: list[str], said: str) -> None:
    keep("one", 1)
    done = asked(*arguments, fails=True)
    assert isinstance(done.exception, UsageError)
    assert said in str(done.exception)


def test_a_folder_that_is_not_there_is_named(asked) -> None:
    assert "there are no results in" in str(asked(fails=True).exception)


def test_files_that_cannot_be_read_are_named_and_passed_over(keep, asked) -> None:
    keep("one", 1)
    torn, newer = keep("one", 2), keep("two", 1)
    torn.write_text(torn.read_text()[:-40])
    newer.write_text(newer.read_text().replace('"schema_version": 1', '"schema_version": 99'))
    done = asked("made-up", "--json")
    assert compared(done) == [("one", "01")]
    assert [torn.name in done.stderr, "schema version 99" in done.stderr] == [True, True]
    assert len(json.loads(done.stdout)["skipped"]) == 2
    assert isinstance(asked("--run", torn, fails=True).exception, UsageError)


def test_a_run_that_makes_no_table_is_passed_over(keep, asked) -> None:
    keep("one", 1)
    odd = keep("two", 1)
    odd.write_text(odd.read_text().replace('"slots": 1,', '"slots": 0,'))
    done = asked("made-up", "--json")
    assert compared(done) == [("one", "01")]
    assert "makes no table" in done.stderr
    assert "makes no table" in str(asked("--run", odd, "--run", keep("three", 1), fails=True).exception)


def test_older_runs_are_not_read_beyond_what_they_are_of(keep, asked) -> None:
    older = keep("one", 1)
    keep("one", 2)
    older.write_text(older.read_text()[:-40])
    assert asked("made-up").stderr == ""
    assert older.name in asked("made-up", "--all").stderr


def test_the_head_of_a_file_is_what_the_whole_says() -> None:
    for path in store.run_files(REPOSITORY / "results"):
        head, whole = store.head(path), json.loads(path.read_text())
        assert {"run_id", "complete", "axes", "models"} <= head.keys()
        assert all(whole[key] == value for key, value in head.items())


def test_json_has_the_documented_keys(keep, asked) -> None:
    keep("one", 1)
    keep("two", 1, energy_j=100.0)
    record = json.loads(asked("made-up", "--json").stdout)
    page = (REPOSITORY / "docs" / "compare.md").read_text()
    assert list(record) == ["suite", "metric", "meaning", "runs", "groups", "remarks", "verdicts", "skipped"]
    [group] = record["groups"]
    [first, *_] = group["rows"]
    assert first["condition"] == {"parallel": 1}
    difference = first["figures"]["B"]["difference"]
    assert difference["low"] < 0.5 < difference["high"]
    assert (group["reference"], difference["shown"]) == ("A", True)
    for place in (record, record["runs"][0], group, first, first["figures"]["B"], difference):
        for key in place.keys() - {"A", "B"}:
            assert f"`{key}`" in page, f"docs/compare.md does not tell of {key}"


def test_verdicts_are_the_stored_ones(keep, asked) -> None:
    stored = store.load(keep("one", 1))
    given = Verdict(
        prediction="test_x.py::test_y",
        claim="Eight are cheaper.",
        word="held",
        robustness="narrow",
        run_id=stored.run.run_id,
    )
    store.Store(stored.path.parents[2]).append_verdicts(stored, [replace(given, word="refuted"), given])
    assert re.search(r"Eight are cheaper\.\s+held \(narrow\)", asked("made-up").stdout)
    stored.verdicts_path.write_text('{"word": "held"}\n')
    assert "without its verdicts" in asked("made-up").stderr


def test_markdown_and_a_page_are_written(keep, asked, tmp_path) -> None:
    keep("one", 1)
    keep("two|three", 1)
    out = tmp_path / "out"
    assert asked("made-up", "-o", out).stdout.splitlines() == [
        str(out / "compare-made-up.md"),
        str(out / "compare-made-up.html"),
    ]
    assert (out / "compare-made-up.md").read_text() == asked("made-up", "--markdown").stdout
    page = (out / "compare-made-up.html").read_text()
    assert "<svg" in page
    assert "mJ per token over" in page
    assert "energy_per_token_mj" not in page
    assert not re.search(r"<(?:script|link|img)", page)
    (tmp_path / "file").write_text("")
    assert "is a file; name a folder" in str(asked("made-up", "-o", tmp_path / "file", fails=True).exception)


def test_piped_it_is_plain_text_of_eighty_columns(keep, asked, monkeypatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    for number in range(6):
        keep(f"machine-{number}", 1, energy_j=100.0 + 50 * number)
    lines = asked("made-up").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in "".join(lines)
