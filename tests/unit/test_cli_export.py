"""`joules export`, and the programs that read what it writes."""

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pytest_joules import cli, store
from pytest_joules.cli import export, note  # noqa: F401 -- each adds its command
from pytest_joules.errors import UsageError, Void
from pytest_joules.records import PublishedCell, Run

FIRST, SECOND, PRINTED = (f"2026102{day}T101530Z-00000{day}" for day in (5, 6, 7))


@pytest.fixture
def results(tmp_path: Path, make_run: Callable[..., Run], make_window) -> Path:
    """Two runs of one suite, the second with batch 8 void, and one that was published as a table."""
    windows = [make_window(n, p, end_mono=110.0 + p) for n in (1, 8) for p in (0, 1)]
    first = make_run(*windows, run_id=FIRST)
    second = replace(
        first, run_id=SECOND, windows=(*windows[:3], replace(windows[3], outcome="void", failure="it fell"))
    )
    cell = PublishedCell(condition={"parallel": 1}, figures={"energy_per_token_mj": 534.0})
    printed = make_run(run_id=PRINTED, suite_name="printed", published=(cell,), conditions=({"parallel": 1},))
    kept = store.Store(tmp_path / "results")
    for run in (first, second, printed):
        kept.write(run, ())
    return kept.folder


def ran(results: Path, *arguments: object, command: str = "export"):
    return CliRunner().invoke(cli.app, [command, *map(str, arguments), "--results", str(results)])


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text), strict=True))


def run_module(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    # The worker that runs this test is none of the programs that it starts.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_the_csv_holds_the_table_of_the_note(results: Path) -> None:
    told = json.loads(ran(results, SECOND, "--json", command="note").stdout)
    found = rows_of(ran(results, SECOND, "--format", "csv").stdout)
    assert len(found) == len(told["rows"]) == 2
    for row, noted in zip(found, told["rows"], strict=True):
        assert (row["run_id"], row["machine"], row["basis"], row["scope"]) == (
            told["run_id"], told["machine"], told["basis"], told["scope"],
        )  # fmt: skip
        assert (row["outcome"] == "void") is bool(noted["void"])
        for name in set(noted) - {"void"}:
            assert row[name] == ("" if noted[name] is None else str(noted[name]))


def test_all_runs_of_a_suite_stand_in_one_table(results: Path) -> None:
    found = rows_of(ran(results, "made-up", "--all", "--format", "csv").stdout)
    assert [(row["run_id"], row["parallel"]) for row in found] == [(r, n) for r in (FIRST, SECOND) for n in "18"]
    assert {row["run_id"] for row in rows_of(ran(results, "--all", "--format", "csv").stdout)} == {
        FIRST,
        SECOND,
        PRINTED,
    }


def test_a_run_named_twice_is_written_once(results: Path) -> None:
    assert len(rows_of(ran(results, SECOND, "made-up", FIRST, "--format", "csv").stdout)) == 4


def test_windows_of_a_run(results: Path) -> None:
    found = rows_of(ran(results, FIRST, "--format", "csv", "--windows").stdout)
    assert [(row["parallel"], row["pass"], row["window_s"]) for row in found] == [
        ("1", "1", "10.0"), ("1", "2", "11.0"), ("8", "1", "10.0"), ("8", "2", "11.0"),
    ]  # fmt: skip


def test_pytest_benchmark_compares_two_files(results: Path, tmp_path: Path) -> None:
    for run, name in ((FIRST, "a.json"), (SECOND, "b.json")):
        done = ran(results, run, "--format", "pytest-benchmark", "-o", tmp_path / name)
        assert done.stdout == ""
    assert "left out of run" in done.stderr
    assert "parallel=8: pass 2: it fell" in done.stderr
    said = run_module("pytest_benchmark", "compare", "a.json", "b.json", "--columns=min,max,rounds", cwd=tmp_path)
    assert "benchmark 'made-up: time_per_token_s': 3 tests" in said.stdout
    assert "Name (time in ms)" in said.stdout
    [line] = [line for line in said.stdout.splitlines() if line.startswith("made-up[parallel=8] (a)")]
    # The times of 10 and 11 s over 8 times 128 tokens, in milliseconds.
    assert [float(word) for word in line.split() if word[0].isdigit()] == pytest.approx([9.7656, 10.7422, 2])


def test_pytest_benchmark_finds_a_folder_of_runs_by_number(results: Path, tmp_path: Path) -> None:
    storage = tmp_path / "storage"
    storage.mkdir()
    arguments = ("--all", "--format", "pytest-benchmark", "-o", storage)
    assert "has time_per_token_s for each pass: parallel=1: the passes' own" in ran(results, *arguments).stderr
    names = [f"0001_made-up-{FIRST}.json", f"0002_made-up-{SECOND}.json"]
    assert sorted(path.name for path in (storage / "example-m5-24gb").iterdir()) == names
    assert ran(results, *arguments).stderr.count("is there already") == 2
    ran(results, FIRST, *arguments[1:], "--metric", "energy_per_token_mj")
    said = run_module(
        "pytest_benchmark", "--storage", storage, "compare", "0001", "0003", "--columns=mean", cwd=tmp_path
    )
    assert "made-up[parallel=8] (0001_made-up)" in said.stdout
    assert "benchmark 'made-up: energy_per_token_mj, chip (cpu), measured; read s as J': 2 tests" in said.stdout
    # Millijoules where the tool says milliseconds: 200 J over 128 tokens.
    assert "1,562.5000" in said.stdout


def test_a_pytest_session_compares_with_an_exported_run(results: Path, tmp_path: Path) -> None:
    ran(results, FIRST, "--format", "pytest-benchmark", "-o", tmp_path / "run.json")
    machine = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))["machine_info"]
    (tmp_path / "conftest.py").write_text(f"def pytest_benchmark_generate_machine_info(config): return {machine!r}")
    (tmp_path / "test_it.py").write_text("def test_it(benchmark): benchmark.pedantic(int)")
    options = ("-p", "no:randomly", "-p", "no:cacheprovider", "-W", "error", "--benchmark-compare=run.json")
    said = run_module("pytest", *options, cwd=tmp_path)
    assert "Comparing against benchmarks from: run.json" in said.stdout + said.stderr
    assert "1 passed" in said.stdout


def test_a_file_names_no_host(results: Path) -> None:
    record = json.loads(ran(results, FIRST, "--format", "pytest-benchmark").stdout)
    assert set(record["machine_info"]) == {"chip", "memory_gb", "os", "machine_slug"}


def test_names_from_a_file_do_not_lead_out_of_the_folder(results: Path, tmp_path: Path, make_run, make_window) -> None:
    strange = make_run(make_window(1), machine_slug="../..", suite_name="/etc/x", run_id="../y")
    (tmp_path / "strange.json").write_text(json.dumps(store.as_record(strange)), encoding="utf-8")
    (tmp_path / "out").mkdir()
    ran(results, tmp_path / "strange.json", "--format", "pytest-benchmark", "-o", tmp_path / "out")
    assert [path.relative_to(tmp_path / "out").parts for path in tmp_path.glob("out/**/*.json")] == [
        ("_..", "0001__etc_x-.._y.json")
    ]


def test_an_existing_file_is_kept_unless_told_otherwise(results: Path, tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_text("mine")
    refused = ran(results, FIRST, "--format", "csv", "-o", file)
    assert isinstance(refused.exception, UsageError)
    assert file.read_text() == "mine"
    ran(results, FIRST, "--format", "csv", "-o", file, "--force")
    assert len(rows_of(file.read_text(encoding="utf-8"))) == 2


def test_schemas_go_to_stdout_or_into_a_folder(tmp_path: Path) -> None:
    def asked(*arguments: object):
        return CliRunner().invoke(cli.app, ["export", "--format", "json-schema", *map(str, arguments)])

    assert json.loads(asked("verdict").stdout)["title"] == "pytest-joules verdict"
    asked("-o", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "run.schema.json", "suite.schema.json", "verdict.schema.json",
    ]  # fmt: skip
    asked("suite", "-o", tmp_path / "mine.json")
    assert (tmp_path / "mine.json").read_text() == (tmp_path / "suite.schema.json").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--format is missing; there are csv, pytest-benchmark, json-schema"),
        (("--format", "cvs"), "--format cvs: there is no such format; did you mean 'csv'?"),
        (("made-down", "--format", "csv"), "there is no run or suite 'made-down' in"),
        (
            ("made-down", "--all", "--format", "csv"),
            "results has no run of a suite 'made-down'; did you mean 'made-up'?",
        ),
        (("--format", "csv", "--metric", "power_w"), "--metric has no effect with --format csv"),
        (("suite", "--all", "--format", "json-schema"), "--all has no effect with --format json-schema"),
        (
            ("--format", "pytest-benchmark", "--metric", "tokens_per_s"),
            "--metric tokens_per_s: pytest-benchmark cannot",
        ),
        (("--all", "--format", "pytest-benchmark"), "3 runs are a file each for pytest-benchmark"),
        (("printed", "--windows", "--format", "csv"), "there is no window to write; leave out --windows"),
        (("made-up", "--format", "csv", "-o", "no/such.csv"), "no/such.csv: there is no folder no; make it first"),
        (("made-up", "--format", "csv", "-o", "."), ".: is a folder; name a file in it"),
        (("--format", "json-schema"), "name one of suite, run, verdict, or a folder"),
        (("runs", "--format", "json-schema"), "there is no schema of 'runs'; did you mean 'run'?"),
    ],
)
def test_what_cannot_be_written_is_said_in_a_line(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = ran(results, *arguments)
    assert isinstance(done.exception, UsageError)
    assert str(done.exception).removeprefix(f"{results.parent}/").startswith(message)
    assert done.stdout == ""


def test_a_run_without_figures_of_its_passes_is_no_benchmark(results: Path) -> None:
    assert isinstance(ran(results, "printed", "--format", "pytest-benchmark").exception, Void)


def test_of_all_runs_one_that_cannot_be_read_is_named_and_passed_over(results: Path, tmp_path: Path) -> None:
    [first] = results.glob(f"*/*/{FIRST}.json")
    torn, odd = (first.with_name(f"2026102{day}T101530Z-00000{day}.json") for day in (8, 9))
    torn.write_text(first.read_text()[:-40])
    odd.write_text(first.read_text().replace('"slots": 1,', '"slots": 0,'))
    done = ran(results, "--all", "--format", "csv")
    assert {row["run_id"] for row in rows_of(done.stdout)} == {FIRST, SECOND, PRINTED}
    assert "passed over: " in done.stderr
    assert all(path.name in done.stderr for path in (torn, odd))
    first.unlink()
    [path.unlink() for path in results.glob("*/*/*Z-00000[67].json")]
    assert "none of the runs in" in str(ran(results, "--all", "--format", "csv").exception)
