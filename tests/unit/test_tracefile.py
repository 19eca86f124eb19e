"""Reading recorded traces: what is a number, what is a time, and what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from pytest_joules import trace, tracefile
from pytest_joules.errors import UsageError

CASES = Path(__file__).parents[1] / "cases"
ZONES = CASES / "S04-timezones-and-the-repeated-hour"
BERLIN = "Europe/Berlin"


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str | bytes, name: str = "t.jsonl") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def lines(*records: object) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def many(count: int = 20, **more: object) -> str:
    return lines(*({"mono": 0.5 * n, "power_w": 40.0 + n % 3, **more} for n in range(count)))


def energy(
    read: tracefile.Trace, window: list[str], zone: str | None = None, fold: tracefile.Fold | None = None
) -> float:
    start, end = (read.moment(text, zone, fold) for text in window)
    [series] = read.series
    found = trace.energy(series.rail, series.mono, series.value, start, end)
    assert found.energy_j is not None, found.reason
    return found.energy_j


# Numbers ------------------------------------------------------------------------------------------------------------


def number_cases() -> list[tuple[str, str]]:
    rows = (CASES / "S03-number-formats/lines.txt").read_text().splitlines()
    return [(row.rpartition("\t")[0], row.rpartition("\t")[2]) for row in rows]


@pytest.mark.parametrize(("text", "right"), number_cases())
def test_a_reading_is_read_as_it_was_meant_or_not_at_all(text: str, right: str) -> None:
    if right == "reject":
        with pytest.raises(ValueError, match=r".+"):
            tracefile.watts(text)
    else:
        assert tracefile.watts(text) == pytest.approx(float(right))


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "1_000",
        "0x10",
        "inf",
        "Infinity",
        "NaN",
        "1e999",
        "--3",
        "1.2.3",
        "٣",
        "12 V",
        "W",
        "1 234",
        "N/A",
        "[N/A]",
    ],
)
def test_what_python_takes_for_a_number_need_not_be_one(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        tracefile.watts(text)


def test_a_comma_is_named_as_the_cause() -> None:
    with pytest.raises(ValueError, match="comma"):
        tracefile.watts("23,47 W")
    with pytest.raises(ValueError, match="comma"):
        tracefile.number("1,234.5")


def test_nothing_of_a_table_with_decimal_commas_is_taken(write) -> None:
    comma = (CASES / "S03-number-formats/smi_comma.csv").read_text()
    with pytest.raises(UsageError, match="columns"):
        tracefile.read(write(comma, "smi.csv"))
    with pytest.raises(UsageError, match=r"2 of 2|no sample.*comma"):
        tracefile.read(write("mono,power_w\n1,50,3\n2,51,3\n", "t.csv"))
    with pytest.raises(UsageError, match="comma"):
        tracefile.read(write("mono;power_w\n1,0;50,3\n2,0;51,3\n", "t.csv"))
    with pytest.raises(UsageError, match="comma"):
        tracefile.read(write('mono,power_w\n1,"50,3"\n', "t.csv"))


# Lines that are no samples ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        '{"mono": 3.1, "power_w": NaN}',
        '{"mono": 3.1, "power_w": -Infinity}',
        '{"mono": 3.1, "power_w": 1e999}',
        '{"mono": 3.1, "power_w": null}',
        '{"mono": 3.1, "power_w": true}',
        '{"mono": 3.1, "power_w": [40]}',
        '{"mono": 3.1, "power_w": "23,47"}',
        '{"mono": "soon", "power_w": 40}',
        '{"power_w": 40}',
        '{"mono": 3.1}',
        '{"mono": 3.1, "pow',
        "[1, 2]",
        "meter 1.0 started",
        "[" * 100_000,
    ],
)
def test_a_bad_line_is_skipped_counted_and_told(write, bad: str) -> None:
    read = tracefile.read(write(many() + bad + "\n" + "\r\n\n" + many(1)))
    assert len(read.series[0].value) == 21
    assert len(read.skipped) == 1
    assert read.notes(0.0, 5.0)[0].startswith("1 of 22 lines are no samples (first: line 21:")


def test_a_file_of_mostly_bad_lines_is_refused(write) -> None:
    bad = '{"mono": 1.0, "power_w": null}\n'
    assert len(tracefile.read(write(many() + 5 * bad)).skipped) == 5
    with pytest.raises(UsageError, match=r"6 of 26 lines are no samples \(line 21: power_w is None"):
        tracefile.read(write(many() + 6 * bad))


@pytest.mark.parametrize(
    "text", ["", "\n\n", "nonsense\n", "mono,volts\n1,2\n", "time\n", "power_w\n40\n", "{}\n", "[]\n"]
)
def test_a_file_without_samples_is_refused(write, text: str) -> None:
    with pytest.raises(UsageError):
        tracefile.read(write(text))


def test_a_file_that_cannot_be_read_is_a_usage_error(tmp_path: Path, write) -> None:
    for path in (tmp_path, tmp_path / "none.csv", write(gzip.compress(many().encode())[:40], "cut.jsonl.gz")):
        with pytest.raises(UsageError, match="cannot be read"):
            tracefile.read(path)


# Forms --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "mono,power_w\n0,40\n1,41\n"),
        ("a.csv", "Mono , POWER_W\r\n\r\n0, 40 W\r\n1, 41000 mW\r\n"),
        ("a.csv", "mono;power_w\n0;40\n1;41\n"),
        ("a.tsv", "note\tmono\tpower_w\na\t0\t40\nb\t1\t41\n"),
        ("a.txt", '{"mono": 0, "power_w": 40}\n{"mono": 1, "power_w": 41, "note": "x"}'),
        ("a.csv", "\ufeffmono,power_w\n0,40\n1,41\n"),
    ],
)
def test_forms_that_mean_the_same(write, name: str, text: str) -> None:
    for raw in (text.encode(), gzip.compress(text.encode()), text.encode("utf-16")):
        [series] = tracefile.read(write(raw, name)).series
        np.testing.assert_allclose(series.mono, [0.0, 1.0])
        np.testing.assert_allclose(series.value, [40.0, 41.0])


def test_counters_and_power_of_one_rail_are_counted_and_checked(write) -> None:
    text = lines(*({"mono": float(n), "energy_j": 40.0 * n, "power_w": 40.0, "rail": "gpu"} for n in range(5)))
    counter, power = tracefile.read(write(text), wrap_j=1e5, limit_w=300.0).series
    assert (counter.rail.kind, counter.rail.role, counter.rail.wrap_j) == ("counter", "counted", 1e5)
    assert (power.rail.kind, power.rail.role, power.rail.wrap_j) == ("instant", "check", None)
    assert counter.rail.covers == power.rail.covers
    assert power.rail.limit_w == 300.0


def test_rails_are_kept_apart_in_order_of_appearance(write) -> None:
    text = lines(*({"mono": float(n), "power_w": 10.0 * (n % 2), "rail": ("cpu", "gpu")[n % 2]} for n in range(6)))
    assert [(s.rail.name, list(s.value)) for s in tracefile.read(write(text)).series] == [
        ("cpu", [0.0] * 3),
        ("gpu", [10.0] * 3),
    ]


def test_the_kind_comes_from_the_caller_then_the_file(write) -> None:
    path = write(many(kind="interval_mean"))
    assert tracefile.read(path).series[0].rail.kind == "interval_mean"
    assert tracefile.read(path, kind="instant").series[0].rail.kind == "instant"
    averaged = tracefile.read(write(many(averaging_s=1.0))).series[0].rail
    assert (averaged.kind, averaged.averaging_s) == ("moving_average", 1.0)
    assert tracefile.read(write(many())).series[0].rail.kind == "instant"


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (many(), {"kind": "movng_average"}, "did you mean 'moving_average'"),
        (many(), {"kind": "moving_average"}, "averaging_s"),
        (many(), {"kind": "counter"}, "energy_j"),
        (many(averaging_s=-1.0), {}, "averaging_s is -1"),
        (many(3, kind="instant") + many(3, kind="interval_mean"), {}, "more than one kind"),
    ],
)
def test_a_kind_that_makes_no_sense_is_refused(write, text: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        tracefile.read(write(text), **options)


# Clocks -------------------------------------------------------------------------------------------------------------


def windows(name: str) -> list[str]:
    return json.loads((ZONES / "windows.json").read_text())[name]


def test_times_with_an_offset_need_no_zone() -> None:
    assert energy(tracefile.read(ZONES / "meter_utc.csv"), windows("meter_utc")) == pytest.approx(2000.0)


def test_times_without_an_offset_need_one() -> None:
    with pytest.raises(UsageError, match="has no offset"):
        tracefile.read(ZONES / "meter_local.csv")
    for zone in (BERLIN, "+01:00", "+0100"):
        assert energy(tracefile.read(ZONES / "meter_local.csv", zone=zone), windows("meter_local")) == pytest.approx(
            2000.0
        )


def test_times_that_occur_twice_are_refused_until_the_pass_is_stated() -> None:
    with pytest.raises(UsageError, match="ambiguous"):
        tracefile.read(ZONES / "meter_dst.csv", zone=BERLIN)
    for fold in ("first", "second"):
        read = tracefile.read(ZONES / "meter_dst.csv", zone=BERLIN, fold=fold)
        assert energy(read, windows("meter_dst")) == pytest.approx(3200.0)
        assert energy(read, ["2026-10-25T00:30:10Z", "2026-10-25T00:30:50Z"]) == pytest.approx(2000.0)


def test_the_stated_pass_holds_where_the_file_does_not_fall_back(write) -> None:
    rows = "".join(f"2026-10-25 02:30:{n:02d},50\n" for n in range(60))
    path = write("time,power_w\n" + rows, "t.csv")
    second = ["2026-10-25T01:30:10Z", "2026-10-25T01:30:50Z"]
    assert energy(tracefile.read(path, zone=BERLIN, fold="second"), second) == pytest.approx(2000.0)
    with pytest.raises(UsageError, match="about 1 h"):
        tracefile.read(path, zone=BERLIN, fold="first").require_overlap(
            *(tracefile.read(path, zone=BERLIN, fold="second").moment(t) for t in second)
        )


def test_a_swapped_pair_in_the_repeated_hour_is_not_its_second_pass(write) -> None:
    seconds = [*range(20), 21, 20, *range(22, 60)]
    rows = "".join(f"2026-10-25 02:30:{n:02d},{50 + n % 2}\n" for n in seconds)
    [series] = tracefile.read(write("time,power_w\n" + rows, "t.csv"), zone=BERLIN, fold="first").series
    assert np.ptp(series.mono) == 59.0


def test_times_the_clock_skipped_do_not_exist(write) -> None:
    with pytest.raises(UsageError, match="does not exist in Europe/Berlin"):
        tracefile.read(write("time,power_w\n2026-03-29 02:30:00,50\n", "t.csv"), zone=BERLIN)


@pytest.mark.parametrize("zone", ["Europe/Berln", "Europe", "../etc/passwd", "", "CEST?", "+99:00"])
def test_a_zone_that_is_none_is_a_usage_error(zone: str) -> None:
    with pytest.raises(UsageError, match="time zone"):
        tracefile.read(ZONES / "meter_local.csv", zone=zone)


def test_no_overlap_is_an_error_that_tells_how_far_the_clocks_are_apart() -> None:
    read = tracefile.read(ZONES / "meter_local.csv", zone="UTC")
    start, end = (read.moment(text) for text in windows("meter_local"))
    with pytest.raises(UsageError, match="0 of 61 samples fall in the window; clocks differ by about 1 h"):
        read.require_overlap(start, end)
    with pytest.raises(UsageError, match="the trace covers 2026-03-02T10:00:00"):
        read.require_overlap(start - 86400 * 30, end - 86400 * 30)
    read.require_overlap(start + 3600, end + 3600)


@pytest.mark.parametrize(("factor", "unit"), [(1e3, "milliseconds"), (1e6, "microseconds"), (1e9, "nanoseconds")])
def test_a_finer_count_since_1970_is_named(write, factor, unit) -> None:
    with pytest.raises(UsageError, match=f"looks like {unit} since 1970: divide it by {factor:.0f}"):
        tracefile.read(write(f'{{"time": {1772442000 * factor:.0f}, "power_w": 10}}\n'))


def test_no_overlap_on_a_monotonic_clock_names_both_ranges(write) -> None:
    with pytest.raises(UsageError, match=r"0 of 20 samples.*covers 0 to 9.5 s"):
        tracefile.read(write(many())).require_overlap(100.0, 120.0)


def test_wall_steps_are_told_where_they_lie_in_the_window() -> None:
    read = tracefile.read(CASES / "S01-samples-clock-steps/samples.jsonl")
    assert not read.calendar
    assert read.notes(2.0, 18.0) == (
        "the wall clock was set by -3.2 s at 10 s",
        "the wall clock was set by +40.0 s at 15 s",
    )
    assert read.notes(2.0, 9.0) == ()
    with pytest.raises(UsageError, match="wall clock was set during"):
        read.moment("2026-03-02T09:00:02Z")


def test_labels_in_whole_seconds_are_no_steps(write) -> None:
    text = lines(*({"mono": 0.3 * n, "wall": int(1772442000.0 + 0.3 * n), "power_w": 30.0 + n % 2} for n in range(40)))
    read = tracefile.read(write(text))
    assert read.notes(0.0, 12.0) == ()


def test_a_calendar_time_finds_its_place_on_a_monotonic_clock(write) -> None:
    labelled = lines(*({"mono": 7.0 + n, "wall": 1772442000.0 + n, "power_w": 30.0 + n % 2} for n in range(30)))
    assert tracefile.read(write(labelled)).moment("2026-03-02T09:00:10Z") == pytest.approx(17.0)
    with pytest.raises(UsageError, match="no calendar times"):
        tracefile.read(write(many())).moment("2026-03-02T09:00:10Z")


def test_seconds_since_1970_are_calendar_times(write) -> None:
    path = write(lines(*({"time": 1772442000.0 + n, "power_w": 50.0 + n % 2} for n in range(30))))
    read = tracefile.read(path)
    assert read.calendar
    assert read.moment("1772442005") == 1772442005.0
    assert read.moment("2026-03-02T10:00:05+01:00") == 1772442005.0
    with pytest.raises(UsageError, match="calendar times"):
        read.moment("5.0")
    with pytest.raises(UsageError, match="no sample"):
        tracefile.read(write(lines({"time": 1772442000000, "power_w": 50.0})))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tomorrow", "neither"), ("", "neither"), ("25:00", "neither"), ("nan", "neither"), ("inf", "neither"),
        ("2026-03-02", "no time of day"), ("2026-03-02T09:00:10", "no offset"),
    ],
)  # fmt: skip
def test_a_moment_that_is_none_is_a_usage_error(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        tracefile.read(ZONES / "meter_utc.csv").moment(text)
