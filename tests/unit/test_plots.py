import re
import sys

import pytest

from pytest_joules.errors import UsageError
from pytest_joules.note import plots
from pytest_joules.note.plots import Series, figures, lines_over, series_of, titled
from pytest_joules.records import Band, Rail, Run, Sample, Verdict
from pytest_joules.sweep import from_run


def texts(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


@pytest.fixture
def run(make_run, make_window) -> Run:
    return make_run(*(make_window(n, p, energy_j=200.0 + p) for n in (1, 2, 4) for p in (0, 1)))


def test_doublings_stand_at_equal_distances_and_other_numbers_where_they_are() -> None:
    place = plots._places([1, 2, 4, 8])
    assert [place(n) for n in (1, 2, 4, 8)] == [0.0, 1.0, 2.0, 3.0]
    place = plots._places([10, 12, 16])
    assert [place(n) for n in (10, 12, 16)] == [0.0, 1.0, 3.0]
    place = plots._places(["q8_0", "q4_0"])
    assert [place(n) for n in ("q8_0", "q4_0")] == [0.0, 1.0]
    assert not place.ordered


def test_axes_carry_names_and_units(run: Run) -> None:
    energy, speed = figures(run, [], [])
    assert {"batch", "mJ per token", "1", "2", "4"} <= set(texts(energy.drawn))
    assert {"batch", "tokens per s", "power, W"} <= set(texts(speed.drawn))


def test_each_pass_is_a_point_beside_the_mean(run: Run) -> None:
    (series,) = series_of(from_run(run), "parallel", "energy_per_token_mj")
    assert len(series.points) == 3
    assert len(series.passes) == 6


def test_a_predicted_band_is_drawn_and_told(run: Run) -> None:
    band = Band(metric="energy_per_token_mj", condition={"parallel": 4}, low=300.0, high=350.0)
    verdict = Verdict(prediction="t.py::x", claim="Four cost about a third.", word="held", band=band)
    plain, shaded = (figures(run, found, [])[0] for found in ([], [verdict]))
    assert "Shaded" not in plain.caption
    assert "at 4: 300 to 350 mJ (Four cost about a third)" in shaded.caption
    assert plots._BAND in shaded.drawn
    assert plots._BAND not in plain.drawn


def test_a_grid_has_a_line_for_each_combination_and_a_legend() -> None:
    drawn = lines_over(
        "n", "c", "parallel", "mJ per token", [Series(name="format=q4_0", points=[(1, 2.0), (2, 1.0)]), Series(name="format=q8_0", points=[(1, 4.0)])]
    ).drawn  # fmt: skip
    assert {"format=q4_0", "format=q8_0"} <= set(texts(drawn))


def test_a_condition_without_a_figure_is_no_point(make_run, make_window) -> None:
    run = make_run(make_window(1), make_window(2, outcome="void", failure="out of memory"))
    (series,) = series_of(from_run(run), "parallel", "tokens_per_s")
    assert [x for x, _ in series.points] == [1]


def test_a_run_without_samples_has_no_traces_and_one_without_figures_no_plots(make_run, make_window, run: Run) -> None:
    assert [figure.name for figure in figures(run, [], [])] == ["energy", "speed-and-power"]
    assert figures(make_run(make_window(1, outcome="void", failure="x")), [], []) == []


def test_the_power_of_a_counter_is_drawn_between_its_readings(make_window) -> None:
    counter = Rail(name="c", scope="chip", covers=("cpu",), kind="counter", basis="measured", unit="J", source="s")
    samples = [Sample("c", 100.0 + t, 20.0 * t) for t in (0, 1, 2, 3)]
    assert plots._trace(counter, samples, make_window()) == [(1.0, 20.0), (2.0, 20.0), (3.0, 20.0)]
    reset = [Sample("c", 100.0, 50.0), Sample("c", 101.0, 0.0), Sample("c", 102.0, 20.0)]
    assert plots._trace(counter, reset, make_window()) == [(2.0, 20.0)]


def test_a_long_trace_keeps_its_peaks() -> None:
    trace = [(float(t), 10.0) for t in range(5000)]
    trace[2345] = (2345.0, 99.0)
    kept = plots._thinned(trace)
    assert len(kept) <= plots._POINTS_PER_TRACE
    assert (2345.0, 99.0) in kept
    assert kept == sorted(kept)


def test_the_same_run_gives_the_same_drawing(run: Run) -> None:
    assert figures(run, [], []) == figures(run, [], [])


def test_a_drawing_follows_the_page_or_stands_on_white(run: Run) -> None:
    energy = figures(run, [], [])[0]
    assert "var(--series-1)" in energy.inline
    assert "var(" not in energy.standalone
    assert "#0a58ca" in energy.standalone


def test_a_drawing_has_a_name_for_who_cannot_see_it() -> None:
    assert titled("<svg a='b'><g/></svg>", "<x>") == "<svg a='b' role=\"img\"><title>&lt;x&gt;</title><g/></svg>"


def test_without_matplotlib_the_error_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"pip install 'pytest-joules\[note\]'"):
        figures(run, [], [])
