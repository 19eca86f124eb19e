"""Published tables as runs, and the published note told again by replaying them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_joules import knobs, store, suite, transcription
from pytest_joules.errors import Unmeasured, UsageError
from pytest_joules.note import lines
from pytest_joules.sweep import from_run

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "results" / "apple-m5-pro-24gb" / "published.yaml"


def suite_of(name: str) -> suite.Suite:
    return suite.load(suite.find(name, ROOT, ROOT), tuple(knobs.knobs()))


@pytest.fixture(scope="module")
def runs():
    return {run.suite_name: run for run in transcription.read(PUBLISHED, suite_of)}


def table(run) -> list[list[str]]:
    return [line.split() for line in lines.table(from_run(run))[3:]]


def test_the_tables_print_the_published_rows_to_the_published_digits(runs) -> None:
    assert table(runs["decode-batch"]) == [
        ["1", "55.6", "55.6", "29.7", "534", "5.2%"],
        ["2", "94.5", "47.3", "45.8", "485", "9%", "less", "3.4%"],
        ["4", "163.6", "40.9", "41.6", "255", "52%", "less", "5.7%"],
        ["8", "293.2", "36.6", "40.3", "137", "74%", "less", "3.4%"],
        ["16", "338.8", "21.2", "37.5", "111", "79%", "less", "3.0%"],
        ["32", "322.7", "10.1", "41.2", "128", "76%", "less", "1.3%"],
    ]
    assert table(runs["decode-batch-1.5b"]) == [
        ["1", "191.0", "191.0", "18.5", "97", "4.8%"],
        ["2", "326.5", "163.3", "32.7", "100", "3%", "more", "0.9%"],
        ["4", "611.5", "152.9", "32.4", "53", "45%", "less", "0.1%"],
        ["8", "1,025.5", "128.2", "30.3", "30", "69%", "less", "1.8%"],
        ["16", "1,171.1", "73.2", "30.1", "26", "74%", "less", "3.6%"],
        ["32", "963.0", "30.1", "27.6", "29", "70%", "less", "1.3%"],
    ]
    assert [row[4] for row in table(runs["decode-batch-1.5b-long"])] == ["105", "103", "54", "30", "-", "-"]


def test_what_speaks_against_them_comes_from_the_gates(runs) -> None:
    seven, small, long = (
        list(lines.limits(runs[name], from_run(runs[name])))
        for name in ("decode-batch", "decode-batch-1.5b", "decode-batch-1.5b-long")
    )
    assert any(line.startswith("pass spread: parallel=1 5.2%, parallel=4 5.7% (limit: 5%)") for line in seven)
    assert any(line.startswith("deviation: format: q4_k_m was measured") for line in seven)
    assert not any(line.startswith("pass spread") for line in small)
    thin = [line for line in small if line.startswith("sensor updates")]
    assert [line.split(" ")[2] for line in thin] == ["2", "3", "7"]
    assert not any("parallel=32" in line for line in thin)
    for limits in (seven, small, long):
        [unchecked] = [line for line in limits if line.startswith("could not be checked: ")]
        assert {"achieved batch", "run order", "drift"} <= set(unchecked.split(": ")[1].split(", "))


def test_figures_are_off_by_half_a_digit_and_have_no_passes(runs) -> None:
    cell = from_run(runs["decode-batch"]).cells[0]
    assert cell.passes == ()
    assert cell.roundings["energy_per_token_mj"] == pytest.approx(0.5 / 534)
    assert cell.roundings["tokens_per_s"] == pytest.approx(0.05 / 55.6)
    assert cell.spread("energy_per_token_mj") == 0.052
    with pytest.raises(Unmeasured, match="no spread over the passes was published"):
        cell.spread("tokens_per_s")
    with pytest.raises(Unmeasured, match="it was not published"):
        cell.mean("window_s")


def test_the_committed_runs_are_what_the_file_gives(runs) -> None:
    for run in runs.values():
        path = ROOT / "results" / run.machine_slug / run.suite_name / f"{run.run_id}.json"
        stored = json.loads(path.read_text())
        assert stored == _as_stated(store.plain(store.as_record(run)), stored)


def _as_stated(now: Any, then: Any) -> Any:
    """A record less the keys that versions since have added: a stored run is never written anew."""
    if isinstance(now, dict) and isinstance(then, dict):
        return {key: _as_stated(value, then[key]) for key, value in now.items() if key in then}
    if isinstance(now, list) and isinstance(then, list) and len(now) == len(then):
        return [_as_stated(*pair) for pair in zip(now, then, strict=True)]
    return now


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("55.6  55.6", "55,6x 55.6"), "'55,6x' is no figure"),
        (("1   55.6  55.6  29.7", "3   55.6  55.6  29.7"), "is of no condition of the suite"),
        (("1   55.6  55.6  29.7", "1   55.6  55.6"), "6 entries for 7 columns"),
        (("machine_slug: apple", "machine: apple"), "'machine_slug' is missing"),
    ],
)
def test_a_slip_of_the_pen_is_one_line(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    file = tmp_path / "published.yaml"
    text = PUBLISHED.read_text()
    assert change[0] in text
    file.write_text(text.replace(*change, 1))
    with pytest.raises(UsageError, match=said):
        transcription.read(file, suite_of)


def test_the_published_note_comes_out_of_a_replay() -> None:
    """Eleven claims: eight judged as published, three that the published figures cannot decide."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest_joules", "replay", "results/apple-m5-pro-24gb", "--json"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["unreproduced"] == []
    verdicts = {v["prediction"].split("/")[1]: v for run in found["runs"] for v in run["verdicts"]}
    words = {name: (v["word"], v["robustness"], v["published"]) for name, v in verdicts.items()}
    seven, small, long = "test_decode_batch_7b.py::", "test_decode_batch_1_5b.py::", "test_decode_batch_1_5b_long.py::"
    assert words == {
        f"{seven}test_a_steep_fall_from_1_to_8": ("held", "clear", "held"),
        f"{seven}test_a_further_saving_from_8_to_16": ("held", "clear", "held"),
        f"{seven}test_flat_from_16_to_32": ("refuted", "clear", "refuted"),
        f"{seven}test_each_request_at_under_half_speed_by_16": ("held", "clear", "held"),
        f"{seven}test_passes_within_5_percent": ("refuted", "clear", "refuted"),
        f"{small}test_the_minimum_sits_at_16_or_32": ("held", "clear", "held"),
        f"{small}test_32_within_10_percent_of_the_minimum": ("refuted", "narrow", "refuted"),
        f"{small}test_throughput_tops_out_near_1800": ("refuted", "clear", "refuted"),
        f"{long}test_within_8_percent_of_the_short_run": ("unmeasured", "", "held"),
        f"{long}test_the_knee_stays_at_16": ("unmeasured", "", "held"),
        f"{long}test_passes_within_5_percent": ("unmeasured", "", "refuted"),
    }
    reasons = {name.split("::")[1]: v["detail"] for name, v in verdicts.items() if name.startswith(long)}
    assert "whole millijoules cannot decide a claim of 8 %" in reasons["test_within_8_percent_of_the_short_run"]
    assert "parallel=16, parallel=32: no figures were published" in reasons["test_the_knee_stays_at_16"]
    assert "no spread over the passes was published" in reasons["test_passes_within_5_percent"]
    assert {v["registration"] for v in verdicts.values()} == {"as published"}
    marked = {name for name, v in verdicts.items() if v["remark"] == "threshold chosen after the data"}
    assert marked == {f"{seven}test_a_steep_fall_from_1_to_8", f"{small}test_throughput_tops_out_near_1800"}
