"""`joules costs` on stored runs."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from pytest_joules import store, verdict
from pytest_joules.cli.costs import app
from pytest_joules.errors import UsageError

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def keep(tmp_path, make_run, make_window, quicker) -> Callable[..., Path]:
    """Keep a run of a day as a measurement does, and return its file."""

    def write(
        machine: str, day: int, energy_j: float = 20.0, suite: str = "made-up", basis: str = "measured", **changes
    ) -> Path:
        windows = [
            make_window(n, p, energy_j=energy_j * n**0.5 * (1 + p / 100), **changes.pop("window", {}))
            for p in (0, 1)
            for n in (1, 8)
        ]
        run = make_run(
            *windows, run_id=f"202610{day:02d}T101530Z-3fa9c1", machine_slug=machine, suite_name=suite, **changes
        )
        run = replace(run, meter=replace(run.meter, basis=basis))
        return store.Store(tmp_path / "results").write(run, ()).path

    return write


@pytest.fixture
def asked(tmp_path) -> Callable[..., Result]:
    def ask(*arguments: object, results: Path = tmp_path / "results") -> Result:
        return CliRunner().invoke(app, ["costs", *map(str, arguments), "--results", str(results)])

    return ask


@pytest.fixture
def quicker(monkeypatch) -> None:
    """Fewer perturbed tables: how sure a best batch is, is tested where it is worked out."""
    monkeypatch.setattr(verdict, "TABLES", 200)


def curves(done: Result) -> list[tuple[str, str, str]]:
    assert done.exit_code == 0, done.output
    return [(c["machine"], c["run_id"][6:8], c["basis"]) for c in json.loads(done.stdout)["curves"]]


def test_the_committed_table_is_what_the_results_say(asked) -> None:
    """Run 'make costs' and commit it when this fails."""
    done = asked("--check", "-o", REPOSITORY, results=REPOSITORY / "results")
    assert done.exit_code == 0, done.stderr
    read = yaml.safe_load((REPOSITORY / "costs.yaml").read_text())
    published = [c for c in read["curves"] if c["machine"].startswith("apple-m5-pro")]
    at_16 = {c["suite"]: row["energy_per_token_mj"] for c in published for row in c["rows"] if row["batch"] == 16}
    assert at_16 == {"decode-batch": 111, "decode-batch-1.5b": 26}


def test_the_newest_complete_run_of_each_machine_and_suite(keep, asked) -> None:
    keep("one", 1)
    keep("one", 2)
    keep("one", 3, complete=False)
    keep("one", 1, suite="another")
    keep("two", 4)
    assert curves(asked("--json")) == [("one", "01", "measured"), ("one", "02", "measured"), ("two", "04", "measured")]


def void_all(path: Path) -> None:
    record = json.loads(path.read_text())
    for window in record["windows"]:
        window |= {"outcome": "void", "failure": "the server went away"}
    path.write_text(json.dumps(record))


def test_a_run_without_a_figure_leaves_the_one_before_it_in_place_and_is_named(keep, asked) -> None:
    keep("one", 1)
    void_all(keep("one", 2))
    done = asked("--json")
    assert curves(done) == [("one", "01", "measured")]
    assert "20261002T101530Z-3fa9c1 has no figure (the server went away)" in json.dumps(json.loads(done.stdout))


def test_a_machine_with_void_runs_alone_shows_why(keep, asked) -> None:
    void_all(keep("one", 1))
    [curve] = json.loads(asked("--json").stdout)["curves"]
    assert (curve["rows"], curve["best"]) == ([], None)
    assert [(a["batch"], a["void"], a["why"]) for a in curve["without"]] == [
        (1, True, "the server went away"),
        (8, True, "the server went away"),
    ]


def test_random_weights_are_left_out_and_named(keep, asked) -> None:
    keep("one", 1, basis="synthetic")
    done = asked("--json")
    assert curves(done) == []
    assert "random weights" in json.loads(done.stdout)["left_out"][0]


def test_files_that_cannot_be_read_are_named_and_passed_over(keep, asked) -> None:
    keep("one", 1)
    torn, newer, odd = keep("one", 2), keep("two", 1), keep("three", 1)
    torn.write_text(torn.read_text()[:-40])
    newer.write_text(newer.read_text().replace('"schema_version": 1', '"schema_version": 99'))
    odd.write_text(odd.read_text().replace('"slots": 1,', '"slots": 0,'))
    done = asked("--json")
    assert curves(done) == [("one", "01", "measured")]
    for said in (torn.name, "schema version 99", "makes no table"):
        assert said in done.stderr
    assert len(json.loads(done.stdout)["skipped"]) == 3


def test_a_written_table_is_current_until_the_results_change(keep, asked, tmp_path) -> None:
    keep("one", 1)
    out = tmp_path / "out"
    assert asked("-o", out).stdout.splitlines() == [str(out / "costs.yaml"), str(out / "costs.md")]
    assert asked("--check", "-o", out).exit_code == 0
    keep("one", 2)
    stale = asked("--check", "-o", out)
    assert stale.exit_code == 1
    assert f"{out / 'costs.yaml'} is stale; run 'joules costs -o {out}'" in stale.stderr
    assert "run 20261001T101530Z-3fa9c1 is now 20261002T101530Z-3fa9c1" in stale.stderr
    asked("-o", out)
    assert asked("--check", "-o", out).exit_code == 0


def test_a_table_changed_by_hand_or_missing_is_stale(keep, asked, tmp_path) -> None:
    keep("one", 1)
    assert f"{tmp_path / 'costs.yaml'} is not there" in asked("--check", "-o", tmp_path).stderr
    asked("-o", tmp_path)
    file = tmp_path / "costs.yaml"
    text = file.read_text()
    file.write_text(re.sub(r"energy_per_token_mj: [\d.]+", "energy_per_token_mj: 9", text, count=1))
    assert "batch 1: energy_per_token_mj 9 is now 157.03" in asked("--check", "-o", tmp_path).stderr
    for other, said in ((": {", "new"), (text + "# more\n", "it is laid out otherwise")):
        file.write_text(other)
        done = asked("--check", "-o", tmp_path)
        assert done.exit_code == 1
        assert said in done.stderr
    file.write_text(text)
    (tmp_path / "costs.md").write_text("")
    assert "costs.md is stale" in asked("--check", "-o", tmp_path).stderr


def test_a_machine_without_a_run_is_planned_with_what_others_have(keep, asked, tmp_path) -> None:
    keep("one", 1)
    keep("two", 1, basis="estimated", models=({"name": "small", "format": "q4_0", "sha256": "1" * 64},))
    machine = tmp_path / "results" / "desk-left" / "machine.json"
    machine.parent.mkdir()
    machine.write_text('{"chip": "Example 9"}')
    done = asked("--for", "desk-left", "--json")
    assert curves(done) == [("desk-left", "01", "transferred")]
    record = json.loads(done.stdout)
    assert record["curves"][0]["chip"] == "Example 9"
    assert record["curves"][0]["transferred_from"] == {"machine": "one", "chip": "Example M5", "basis": "measured"}
    machine.write_text("{")
    assert "machine.json" in asked("--for", "desk-left").stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--json", "--check"], "ask for one"),
        (["--for", "one", "--check"], "leave out -o and --check"),
        (["--for", "one", "-o", "x"], "leave out -o and --check"),
    ],
)
def test_options_that_exclude_each_other_are_one_line(keep, asked, arguments: list[str], said: str) -> None:
    keep("one", 1)
    done = asked(*arguments)
    assert isinstance(done.exception, UsageError)
    assert said in str(done.exception)


def test_a_folder_that_is_not_there_is_named(asked) -> None:
    assert "there are no results in" in str(asked().exception)


def test_json_has_the_documented_keys(keep, asked) -> None:
    keep("one", 1)
    record = json.loads(asked("--for", "two", "--json").stdout)
    page = (REPOSITORY / "docs" / "costs.md").read_text()
    assert set(record) == {"version", "planned_for", "curves", "left_out", "remarks", "skipped"}
    [curve] = record["curves"]
    for place in (record, curve, curve["rows"][0], curve["best"], curve["transferred_from"]):
        for key in place:
            assert f"`{key}`" in page, f"docs/costs.md does not tell of {key}"


def test_a_machine_without_a_complete_run_is_named_as_left_out(keep, asked) -> None:
    keep("one", 1, complete=False)
    keep("one", 2)
    keep("two", 1, complete=False)
    done = asked("--json")
    assert curves(done) == [("one", "02", "measured")]
    [left_out] = json.loads(done.stdout)["left_out"]
    assert left_out == "two, suite made-up, run 20261001T101530Z-3fa9c1: cut short before its last window"


def test_a_file_that_is_no_whole_run_is_named(keep, asked) -> None:
    keep("one", 1).with_name("20261002T101530Z-3fa9c1.json").write_text('{"run_id": "x"}')
    assert "20261002T101530Z-3fa9c1.json: is no stored run: it has no complete" in asked("--json").stderr


def test_an_energy_below_zero_costs_nothing_less(keep, asked) -> None:
    path = keep("one", 1)
    path.write_text(re.sub(r'"energy_j": 56[.0-9]+', '"energy_j": -10.0', path.read_text()))
    text = asked().stdout
    assert "its energy is -10 J, which no window can have" in " ".join(text.split())
    assert "-10" not in text.replace("-10 J", "")
