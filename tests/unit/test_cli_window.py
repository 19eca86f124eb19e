"""`joules window`: what it prints, how it exits, and what it makes of the traces of users."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from pytest_joules import cli
from pytest_joules.cli import window as window_command
from pytest_joules.errors import UsageError

CASES = Path(__file__).parents[1] / "cases"
KEYS = {
    "energy_j", "power_w", "outcome", "reasons", "samples", "refresh_s", "uncertainty_j", "window_s", "method", "rails",
}  # fmt: skip
BASIC = ("energy_j", "power_w", "outcome", "reasons", "samples", "refresh_s")


def run(*arguments: object) -> Result:
    assert window_command.window  # the import is what registers the command
    return CliRunner().invoke(cli.app, ["window", *map(str, arguments)])


def asked(*arguments: object) -> dict[str, Any]:
    """The JSON of a run that must give an answer, void or not."""
    result = run(*arguments, "--json")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    record: dict[str, Any] = json.loads(
        result.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not strict JSON")
    )
    assert result.exit_code == (1 if record["outcome"] == "void" else 0)
    assert (record["energy_j"] is None) == (record["outcome"] == "void") == (record["power_w"] is None)
    return record


def refused(*arguments: object) -> str:
    result = run(*arguments, "--json")
    assert isinstance(result.exception, UsageError), result.output
    assert result.stdout == ""
    return str(result.exception)


def between(window: Any) -> tuple[Any, ...]:
    return ("--start", window[0], "--end", window[1])


def write(path: Path, *columns: np.ndarray, names: tuple[str, ...] = ("mono", "power_w")) -> Path:
    rows = zip(*columns, strict=True)
    path.write_text("".join(json.dumps(dict(zip(names, map(float, row), strict=True))) + "\n" for row in rows))
    return path


# The cases of users -------------------------------------------------------------------------------------------------


def test_s01_clock_steps() -> None:
    found = asked(CASES / "S01-samples-clock-steps/samples.jsonl", "--start", 2, "--end", 18)
    assert found["energy_j"] == pytest.approx(480.0, abs=0.5)
    assert found["outcome"] == "flagged"
    assert "the wall clock was set by -3.2 s" in found["reasons"][0]


@pytest.mark.parametrize(
    ("file", "window", "energy_j"),
    [
        ("suspend", "suspend", None),
        ("uneven", "uneven", 350.0),
        ("thin", "thin_none", None),
        ("thin", "thin_one", None),
        ("thin", "thin_ok", 200.0),
    ],
)
def test_s02_gaps_and_thin_windows(file: str, window: str, energy_j: float | None) -> None:
    folder = CASES / "S02-sample-gaps-and-thin-windows"
    found = asked(folder / f"{file}.jsonl", *between(json.loads((folder / "windows.json").read_text())[window]))
    assert found["energy_j"] == (None if energy_j is None else pytest.approx(energy_j, abs=1.0))
    assert (found["outcome"] == "void") == (energy_j is None)


def test_s03_a_table_with_decimal_commas() -> None:
    refused(CASES / "S03-number-formats/smi_comma.csv", "--start", 0, "--end", 1)


def test_s04_zones() -> None:
    folder = CASES / "S04-timezones-and-the-repeated-hour"
    windows = json.loads((folder / "windows.json").read_text())
    utc, local, dst = (folder / f"meter_{name}.csv" for name in ("utc", "local", "dst"))
    assert asked(utc, *between(windows["meter_utc"]))["energy_j"] == pytest.approx(2000.0)
    assert "has no offset" in refused(local, *between(windows["meter_local"]))
    berlin = asked(local, *between(windows["meter_local"]), "--zone", "Europe/Berlin")
    assert berlin["energy_j"] == pytest.approx(2000.0)
    assert berlin["outcome"] == "measured"
    naive = asked(local, "--start", "2026-03-02 10:00:10", "--end", "2026-03-02 10:00:50", "--zone", "Europe/Berlin")
    assert naive["energy_j"] == pytest.approx(2000.0)
    assert "clocks differ by about 1 h" in refused(local, *between(windows["meter_local"]), "--zone", "UTC")
    assert "ambiguous" in refused(dst, *between(windows["meter_dst"]), "--zone", "Europe/Berlin")
    second = asked(dst, *between(windows["meter_dst"]), "--zone", "Europe/Berlin", "--fold", "second")
    assert second["energy_j"] == pytest.approx(3200.0)


def test_s05_only_the_window_counts() -> None:
    trace = CASES / "S05-window-and-baseline/trace.jsonl"
    found = asked(trace, "--start", 25, "--end", 45, "--tokens", 400)
    assert found["energy_j"] == pytest.approx(955.5, abs=10.0)
    assert found["energy_per_token_mj"] == pytest.approx(2400.0, rel=0.02)
    assert found["tokens"] == 400
    assert found["outcome"] == "measured"


def test_n03_a_short_window_of_a_long_average_is_void(tmp_path: Path) -> None:
    [device] = json.loads((CASES / "N03-nvml-one-second-average/nvml_nocounter.json").read_text())["devices"]
    t, power_mw = (np.array(column, dtype=float) for column in zip(*device["power_mw"], strict=True))
    path = write(tmp_path / "n03.jsonl", t, power_mw / 1000.0)
    found = asked(path, "--start", 2.0, "--end", 2.8, "--kind", "moving_average", "--averaging-s", 1)
    assert found["outcome"] == "void"
    assert "averaging time" in " ".join(found["reasons"])


def test_r02_one_wrap_with_the_range_stated(tmp_path: Path) -> None:
    records = [json.loads(line) for line in (CASES / "R02-rapl-wrap/single/steps.jsonl").read_text().splitlines()]
    t, value = np.array([r["t"] for r in records]), np.array([int(*r["set"].values()) / 1e6 for r in records])
    path = write(tmp_path / "rapl.jsonl", t, value, names=("mono", "energy_j"))
    found = asked(path, "--start", 0, "--end", 10, "--wrap-j", 262143.328850)
    assert found["energy_j"] == pytest.approx(420.0)
    assert found["outcome"] == "measured"
    assert found["method"] == "counter"
    assert asked(path, "--start", 0, "--end", 10)["outcome"] == "void"


# Gates --------------------------------------------------------------------------------------------------------------


def steady(tmp_path: Path, power_w: float = 50.0, ripple_w: float = 1.0) -> Path:
    t = np.arange(0.0, 60.0, 0.25)
    return write(tmp_path / "steady.jsonl", t, power_w + ripple_w * np.sin(7 * t))


def test_few_updates_flag_and_fewer_void(tmp_path: Path) -> None:
    path = steady(tmp_path)
    assert asked(path, "--start", 10, "--end", 20)["outcome"] == "measured"
    assert asked(path, "--start", 10, "--end", 11.5)["outcome"] == "flagged"
    assert asked(path, "--start", 10, "--end", 10.8)["outcome"] == "void"
    assert asked(path, "--start", 10, "--end", 11.5, "--min-samples", 9)["outcome"] == "void"


def test_a_step_at_an_edge_flags_then_voids_as_the_window_shrinks(tmp_path: Path) -> None:
    t = np.arange(0.0, 60.0, 1.0)
    path = write(tmp_path / "step.jsonl", t, np.where(t < 20, 10.0, 100.0 + np.sin(5 * t)))
    outcomes = [asked(path, "--start", 19.2, "--end", end, "--min-samples", 1)["outcome"] for end in (58.5, 27.5, 21.5)]
    assert outcomes == ["measured", "flagged", "void"]


@pytest.mark.parametrize(("level", "outcome"), [(43.218, "void"), (0.0, "void"), (50.0, "measured")])
def test_a_reading_that_never_moves(tmp_path: Path, level: float, outcome: str) -> None:
    path = steady(tmp_path, level, 0.0)
    assert asked(path, "--start", 10, "--end", 40)["outcome"] == outcome


@pytest.mark.parametrize(("factor", "outcome"), [(1.0, "measured"), (1.1, "flagged"), (1.75, "void")])
def test_power_that_disagrees_with_the_counter(tmp_path: Path, factor: float, outcome: str) -> None:
    t = np.arange(0.0, 60.0, 0.25)
    power = 50.0 + np.sin(7 * t)
    total = 50.0 * t - np.cos(7 * t) / 7
    path = write(tmp_path / "both.jsonl", t, power * factor, total, names=("mono", "power_w", "energy_j"))
    found = asked(path, "--start", 10, "--end", 40)
    assert found["outcome"] == outcome
    assert found["method"] == "counter"
    assert len(found["rails"]) == 2
    if outcome != "void":
        assert found["energy_j"] == pytest.approx(1500.0, rel=0.01)


def test_power_stands_in_for_a_counter_that_was_reset(tmp_path: Path) -> None:
    t = np.arange(0.0, 60.0, 0.25)
    total = np.where(t < 25, 900.0 + 50.0 * t, 50.0 * (t - 25))
    path = write(tmp_path / "reset.jsonl", t, 50.0 + np.sin(7 * t), total, names=("mono", "power_w", "energy_j"))
    found = asked(path, "--start", 10, "--end", 40)
    assert found["energy_j"] == pytest.approx(1500.0, rel=0.01)
    assert (found["outcome"], found["method"]) == ("flagged", "integrated")
    assert "power is integrated instead" in found["reasons"][0]


def test_skipped_lines_flag_the_window(tmp_path: Path) -> None:
    path = steady(tmp_path)
    path.write_text(path.read_text() + '{"mono": 61, "power_w": NaN}\n')
    found = asked(path, "--start", 10, "--end", 40)
    assert found["outcome"] == "flagged"
    assert "NaN is no number" in found["reasons"][0]


def test_readings_over_a_stated_limit_flag_the_window(tmp_path: Path) -> None:
    t = np.arange(0.0, 60.0, 0.25)
    power = 50.0 + np.sin(7 * t)
    power[100] = 900.0
    path = write(tmp_path / "spike.jsonl", t, power)
    assert asked(path, "--start", 10, "--end", 40, "--limit-w", 120)["outcome"] == "flagged"


# Rails, words and exit codes ----------------------------------------------------------------------------------------


def test_several_rails_are_summed_only_when_named(tmp_path: Path) -> None:
    path = tmp_path / "rails.jsonl"
    t = np.arange(0.0, 60.0, 0.25)
    path.write_text(
        "".join(
            json.dumps({"mono": m, "rail": rail, "power_w": level + np.sin(9 * m)}) + "\n"
            for m in t
            for rail, level in (("cpu", 20.0), ("gpu", 40.0))
        )
    )
    window = ("--start", 10, "--end", 40)
    assert "cpu, gpu" in refused(path, *window)
    assert "did you mean 'gpu'" in refused(path, *window, "--rail", "cpu,gpuu")
    assert asked(path, *window, "--rail", "gpu")["energy_j"] == pytest.approx(1200.0, rel=0.01)
    both = asked(path, *window, "--rail", "cpu, gpu")
    assert both["energy_j"] == pytest.approx(1800.0, rel=0.01)
    assert both["power_w"] == pytest.approx(60.0, rel=0.01)


def test_the_keys_of_the_json(tmp_path: Path) -> None:
    found = asked(steady(tmp_path), "--start", 10, "--end", 40)
    assert set(found) == KEYS
    assert tuple(found)[:6] == BASIC
    assert found["reasons"] == []
    assert found["samples"] == 121
    assert found["refresh_s"] == pytest.approx(0.25)
    assert found["window_s"] == 30.0
    assert set(asked(steady(tmp_path), "--start", 10, "--end", 40, "--tokens", 7)) == KEYS | {
        "tokens",
        "energy_per_token_mj",
    }


def test_the_text_names_energy_power_and_outcome(tmp_path: Path) -> None:
    good = run(steady(tmp_path), "--start", 10, "--end", 40, "--tokens", 500)
    assert good.exit_code == 0
    first, tokens, updates = good.stdout.splitlines()
    assert first.startswith("1500 ± ")
    assert first.endswith(" W")
    assert tokens.endswith(" mJ per token over 500 tokens")
    assert updates == "121 sensor updates, one every 0.25 s, integrated"
    void = run(steady(tmp_path), "--start", 10, "--end", 10.6)
    assert void.exit_code == 1
    assert void.stdout.startswith("void: no energy")
    assert "sensor updates: 3" in void.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--start", 40, "--end", 10), "is not after"),
        (("--start", 10, "--end", 10), "is not after"),
        (("--start", "soon", "--end", 10), "neither seconds nor"),
        (("--start", 100, "--end", 110), "0 of 240 samples fall in the window"),
        (("--start", 10, "--end", 40, "--tokens", 0), "--tokens 0"),
        (("--start", 10, "--end", 40, "--min-samples", 0), "--min-samples 0"),
        (("--start", 10, "--end", 40, "--limit-w", -5), "--limit-w -5"),
        (("--start", 10, "--end", 40, "--averaging-s", "nan"), "--averaging-s nan"),
        (("--start", 10, "--end", 40, "--fold", "third"), "--fold third"),
        (("--start", 10, "--end", 40, "--kind", "mean"), "no kind 'mean'"),
        (("--start", 10, "--end", 40, "--rail", "gpu"), "no such rail"),
    ],
)
def test_what_cannot_be_used_as_it_is_written(tmp_path: Path, arguments: tuple[object, ...], said: str) -> None:
    assert said in refused(steady(tmp_path), *arguments)


@pytest.mark.parametrize(
    ("reading", "arguments", "said"),
    [
        ("power_w", ("--zone", "Europe/Berlin"), "--zone Europe/Berlin: no time of the trace or the window lacks an offset"),
        ("power_w", ("--fold", "first"), "--fold first: no time of the trace or the window occurs twice"),
        ("power_w", ("--wrap-j", 1000), "--wrap-j 1000.0: there is no energy_j"),
        ("power_w", ("--kind", "interval_mean", "--averaging-s", 3), "--averaging-s 3.0: an interval_mean"),
        ("energy_j", ("--averaging-s", 3), "--averaging-s 3.0: there is no power_w"),
        ("energy_j", ("--kind", "instant"), "--kind instant: there is no power_w"),
        ("power_w", ("--rail", "trace,trace"), "trace is named twice"),
    ],
)  # fmt: skip
def test_an_option_that_would_do_nothing_is_refused(
    tmp_path: Path, reading: str, arguments: tuple[object, ...], said: str
) -> None:
    t = np.arange(0.0, 60.0, 0.25)
    path = write(tmp_path / "one.jsonl", t, 50.0 * t, names=("mono", reading))
    assert said in refused(path, "--start", 10, "--end", 20, *arguments)


def test_a_zone_of_the_window_alone_is_used(tmp_path: Path) -> None:
    t = np.arange(0.0, 60.0, 0.25)
    path = write(tmp_path / "utc.jsonl", 1772442000 + t, 50.0 + np.sin(7 * t), names=("time", "power_w"))
    found = asked(path, "--start", "2026-03-02 10:00:10", "--end", "2026-03-02 10:00:40", "--zone", "Europe/Berlin")
    assert found["energy_j"] == pytest.approx(1500.0, rel=0.01)


def test_a_window_past_the_trace_is_told_what_the_trace_covers(tmp_path: Path) -> None:
    [reason] = asked(steady(tmp_path), "--start", 50, "--end", 70)["reasons"]
    assert "the trace covers 0 to 59.75 s, the window reaches 10.25 s past it" in reason
    assert reason.endswith("take a window that the trace covers")
    # The next reading may well have been due only after the end.
    assert asked(steady(tmp_path), "--start", 50, "--end", 59.9)["outcome"] == "measured"


def test_remedies_and_limits_are_those_of_a_trace(tmp_path: Path) -> None:
    path = steady(tmp_path)
    thin = " ".join(asked(path, "--start", 10, "--end", 11.5)["reasons"])
    assert "take a longer window" in thin
    assert "answers" not in thin
    [short] = asked(path, "--start", 10, "--end", 20, "--averaging-s", 3)["reasons"]
    assert short == "averaging times in the window: trace: 3.3, each 3 s (limit: at least 5); take a longer window"
    t = np.arange(0.0, 60.0, 1.0)
    step = write(tmp_path / "step.jsonl", t, np.where(t < 20, 10.0, 100.0 + np.sin(5 * t)))
    [edges] = asked(step, "--start", 19.2, "--end", 27.5, "--min-samples", 1)["reasons"][-1:]
    assert edges.startswith("edge uncertainty: ")
    assert "% (limit: 5% flags, 25% voids); take a longer window: the edges then weigh less" in edges


def test_a_usage_error_is_one_line_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["joules", "window", str(tmp_path / "none.csv"), "--start", "1", "--end", "2", "--json"]
    )
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "cannot be read" in err


def test_help_shows_an_example() -> None:
    text = run("--help").stdout
    assert "joules window power.jsonl --start 25 --end 45 --tokens 400" in text
    assert all(key in text for key in BASIC)
