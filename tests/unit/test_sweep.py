import math
from dataclasses import replace

import pytest

from pytest_joules.errors import UsageError, Void
from pytest_joules.metrics import METRICS
from pytest_joules.records import Gate, IdleBaseline, PublishedCell
from pytest_joules.sweep import About, Cell, Column, Row, Sweep, from_run, label

ENERGY = {1: (100.0, 110.0), 2: (60.0, 60.0), 4: (30.0, 32.0), 8: (40.0, 40.0)}

# Rows as two published notes print them: batch, tokens/s, tokens/s per request, W, mJ per token, change against batch 1, pass spread.
PUBLISHED = {
    "7B": [
        (1, 55.6, 55.6, 29.7, 534, None, 0.052),
        (2, 94.5, 47.3, 45.8, 485, -0.09, 0.034),
        (4, 163.6, 40.9, 41.6, 255, -0.52, 0.057),
        (8, 293.2, 36.6, 40.3, 137, -0.74, 0.034),
        (16, 338.8, 21.2, 37.5, 111, -0.79, 0.03),
        (32, 322.7, 10.1, 41.2, 128, -0.76, 0.013),
    ],
    "1.5B": [
        (1, 191.0, 191.0, 18.5, 97, None, 0.048),
        (2, 326.5, 163.3, 32.7, 100, 0.03, 0.009),
        (4, 611.5, 152.9, 32.4, 53, -0.45, 0.001),
        (8, 1025.5, 128.2, 30.3, 30, -0.69, 0.018),
        (16, 1171.1, 73.2, 30.1, 26, -0.74, 0.036),
        (32, 963.0, 30.1, 27.6, 29, -0.7, 0.013),
    ],
}


def published(name: str) -> Sweep:
    names = ("tokens_per_s", "tokens_per_s_per_request", "power_w", "energy_per_token_mj")
    cells = [
        Cell(
            condition={"parallel": row[0]},
            means=dict(zip(names, map(float, row[1:5]), strict=True)),
            spreads={"energy_per_token_mj": row[6]},
        )
        for row in PUBLISHED[name]
    ]
    return Sweep(("parallel",), cells, About(suite=name, basis="transcribed", scope="chip"))


@pytest.fixture
def grid() -> Sweep:
    cells = [
        Cell(condition={"parallel": n, "format": form}, passes=({"energy_per_token_mj": base / n},))
        for form, base in (("q4_0", 100.0), ("q8_0", 160.0))
        for n in (1, 2)
    ]
    return Sweep(("parallel", "format"), cells)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_rows_give_the_published_columns(name: str) -> None:
    sweep = published(name)
    energy = sweep.energy_per_token_mj
    for batch, per_s, per_request, watts, mj, change, spread in PUBLISHED[name]:
        row = sweep[batch]
        assert (row.tokens_per_s, row.tokens_per_s_per_request, row.power_w, row.energy_per_token_mj) == (
            per_s,
            per_request,
            watts,
            mj,
        )
        assert energy.spread[batch] == spread
        # Watts over tokens/s and tokens/s over the batch are the printed columns but for their rounding.
        assert 1000 * row.power_w / row.tokens_per_s == pytest.approx(mj, rel=0.02)
        assert per_s / batch == pytest.approx(per_request, abs=0.06)
        if change is not None:
            # Half a digit of the change itself, and half a millijoule of either figure behind it.
            assert -energy.saving(1, batch) == pytest.approx(change, abs=0.005 + 0.5 * (1 + mj / energy[1]) / energy[1])
    assert energy.argmin() == 16
    assert sweep.tokens_per_s.argmax() == 16


def test_claims_of_the_published_notes_come_out_as_published() -> None:
    big, small = published("7B"), published("1.5B")
    energy = big.energy_per_token_mj
    assert 0.15 <= energy.saving(8, 16) <= 0.30
    assert energy[32] / energy[16] - 1 == pytest.approx(0.15, abs=0.005)
    assert big.tokens_per_s_per_request[16] / big.tokens_per_s_per_request[1] == pytest.approx(0.38, abs=0.005)
    assert {batch: spread for batch, spread in energy.spread.items() if spread > 0.05} == {1: 0.052, 4: 0.057}
    assert small.energy_per_token_mj[32] / small.energy_per_token_mj.min() - 1 == pytest.approx(0.12, abs=0.005)
    assert small.tokens_per_s.max() == 1171.1


def test_a_column_is_a_mapping_of_means(table) -> None:
    energy = table(ENERGY).energy_per_token_mj
    assert isinstance(energy, Column)
    assert dict(energy) == {1: 105.0, 2: 60.0, 4: 31.0, 8: 40.0}
    assert (len(energy), list(energy), 4 in energy, 5 in energy) == (4, [1, 2, 4, 8], True, False)
    assert (energy.argmin(), energy.argmax(), energy.min(), energy.max()) == (4, 1, 31.0, 105.0)
    assert energy.get(5) is None


def test_a_saving_is_a_share_of_the_cost(table) -> None:
    sweep = table(ENERGY)
    assert sweep.energy_per_token_mj.saving(1, 2) == pytest.approx(1 - 60 / 105)
    assert sweep.energy_per_token_mj.saving(4, 8) == pytest.approx(1 - 40 / 31)
    for name, metric in METRICS.items():
        if not metric.cost:
            with pytest.raises(TypeError, match=f"{name} is no cost"):
                getattr(sweep, name).saving(1, 2)
    with pytest.raises(TypeError, match="no cost"):
        sweep.energy_per_token_mj.spread.saving(1, 2)


def test_the_spread_is_of_the_passes(table) -> None:
    spread = table(ENERGY).energy_per_token_mj.spread
    assert dict(spread) == pytest.approx({1: 10 / 105, 2: 0.0, 4: 2 / 31, 8: 0.0})
    assert spread.max() == pytest.approx(10 / 105)


def test_the_spread_of_one_pass_is_undefined(table) -> None:
    with pytest.raises(Void, match="parallel=1: the spread of one pass is undefined; measure at least two"):
        table({1: (100.0,)}).energy_per_token_mj.spread[1]


def test_a_row_has_every_metric(table) -> None:
    row = table(ENERGY)[4]
    assert isinstance(row, Row)
    assert row.condition == {"parallel": 4}
    assert (row.energy_per_token_mj, row.tokens_per_s, row.tokens_per_s_per_request, row.tokens) == (
        31.0,
        200.0,
        50.0,
        512.0,
    )
    assert all(name in Sweep.__dict__ and name in Row.__dict__ for name in METRICS)


def test_a_condition_that_was_never_asked_for(table) -> None:
    sweep = table(ENERGY)
    for read in (lambda: sweep.energy_per_token_mj[16], lambda: sweep[16]):
        with pytest.raises(KeyError, match="the suite has no condition 16; it has 1, 2, 4, 8"):
            read()


def test_a_misspelt_metric_names_the_nearest(table) -> None:
    sweep = table(ENERGY)
    for holder in (sweep, sweep[1]):
        with pytest.raises(
            AttributeError, match="there is no metric 'energy_per_tokn_mj'; did you mean 'energy_per_token_mj'"
        ):
            holder.energy_per_tokn_mj  # noqa: B018
        with pytest.raises(AttributeError, match=r"no metric 'colour'; known: energy_per_token_mj, "):
            holder.colour  # noqa: B018


def test_a_void_cell_raises_when_it_is_read_and_only_then(table) -> None:
    sweep = table(ENERGY, void={16: "out of memory"})
    energy = sweep.energy_per_token_mj
    assert energy[8] == 40.0
    assert energy.saving(1, 8) > 0
    assert (16 in energy, len(energy), len(sweep)) == (True, 5, 5)
    assert sweep.reads.void == []
    for read in (
        lambda: energy[16],
        lambda: energy.spread[16],
        lambda: sweep[16].power_w,
        energy.argmin,
        energy.max,
        lambda: energy.get(16),
    ):
        with pytest.raises(Void, match="parallel=16: out of memory"):
            read()
    assert sweep.reads.void == ["parallel=16: out of memory"] * 6


def test_a_metric_without_a_figure_is_void_and_says_why() -> None:
    cell = Cell(
        condition={"parallel": 1}, passes=({"tokens": 1.0},), undefined={"net_energy_per_token_mj": "no idle baseline"}
    )
    sweep = Sweep(("parallel",), [cell])
    assert sweep.tokens[1] == 1.0
    with pytest.raises(Void, match="parallel=1: net_energy_per_token_mj is undefined: no idle baseline"):
        sweep.net_energy_per_token_mj[1]
    with pytest.raises(Void, match="power_w is undefined: no figure"):
        sweep.power_w[1]


def test_a_metric_that_only_some_passes_have_is_void() -> None:
    sweep = Sweep(
        ("parallel",), [Cell(condition={"parallel": 1}, passes=({"tokens": 1.0, "power_w": 2.0}, {"tokens": 3.0}))]
    )
    assert sweep.tokens[1] == 2.0
    with pytest.raises(Void, match="power_w is undefined"):
        sweep.power_w[1]


@pytest.mark.parametrize("figure", [math.nan, math.inf, -math.inf])
def test_what_is_no_figure_breaks_instead_of_comparing_false(table, figure: float) -> None:
    energy = table({1: (100.0, 100.0), 2: (figure, 50.0)}).energy_per_token_mj
    assert energy[1] == 100.0
    with pytest.raises(ValueError, match=f"energy_per_token_mj at parallel=2 is {figure}, which is no figure"):
        energy[2]


def test_factors_multiply_means_and_leave_the_spread_alone() -> None:
    known = {"means": {"power_w": 40.0}, "spreads": {"power_w": 0.05}}
    cell = Cell(
        condition={}, passes=({"tokens": 90.0}, {"tokens": 110.0}), factors={"power_w": 1.5, "tokens": 2.0}, **known
    )
    assert (cell.mean("power_w"), cell.spread("power_w")) == (60.0, 0.05)
    assert (cell.mean("tokens"), cell.spread("tokens")) == (200.0, pytest.approx(0.2))


def test_several_axes(grid: Sweep) -> None:
    assert grid.energy_per_token_mj[2, "q8_0"] == 80.0
    assert grid[1, "q4_0"].energy_per_token_mj == 100.0
    assert grid.at(format="q8_0", parallel=1).energy_per_token_mj == 160.0
    narrowed = grid.where(format="q4_0")
    assert narrowed.axes == ("parallel",)
    assert dict(narrowed.energy_per_token_mj) == {1: 100.0, 2: 50.0}
    assert narrowed[2].energy_per_token_mj == 50.0
    assert grid.where(parallel=2).energy_per_token_mj.saving("q8_0", "q4_0") == pytest.approx(0.375)
    assert grid.energy_per_token_mj.argmin() == (2, "q4_0")


def test_where_keeps_one_record_of_what_was_read(grid: Sweep) -> None:
    narrowed = grid.where(format="q4_0")
    narrowed.energy_per_token_mj[1]
    assert grid.reads.metrics == {"energy_per_token_mj"}
    assert not grid.reads.spread
    with pytest.raises(Void):
        narrowed.energy_per_token_mj.spread[1]
    assert grid.reads.spread
    assert len(grid.reads.void) == 1


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda grid: grid[1], r"2 axes are left \(parallel, format\): use .at\(...\) or .where\(...\)"),
        (lambda grid: grid.at(parallel=1), "at.. names one condition; also give format"),
        (lambda grid: grid.at(paralel=1, format="q4_0"), "no axis 'paralel'; did you mean 'parallel'"),
        (lambda grid: grid.where(formt="q4_0"), "no axis 'formt'; did you mean 'format'"),
        (lambda grid: grid.where(format="q5_0"), "no condition has format=q5_0; there are parallel=1, format=q4_0; "),
        (lambda grid: grid.at(parallel=3, format="q4_0"), "no condition .3, 'q4_0'."),
    ],
)
def test_wrong_use_of_axes_is_told(grid: Sweep, use, words: str) -> None:
    with pytest.raises(KeyError, match=words):
        use(grid)


def test_one_pass_alone(table) -> None:
    sweep = table(ENERGY)
    assert dict(sweep.single_pass(0).energy_per_token_mj) == {1: 100.0, 2: 60.0, 4: 30.0, 8: 40.0}
    assert dict(sweep.single_pass(1).energy_per_token_mj) == {1: 110.0, 2: 60.0, 4: 32.0, 8: 40.0}


def test_what_is_shown_can_be_read(table) -> None:
    sweep = table({1: (1234.5678, 1234.5678), 8: (40.0, 41.0)}, void={16: "out of memory"})
    assert repr(sweep.energy_per_token_mj) == "energy_per_token_mj{1: 1235, 8: 40.5, 16: void}"
    assert repr(sweep.energy_per_token_mj.spread) == "energy_per_token_mj.spread{1: 0, 8: 0.02469, 16: void}"
    assert repr(sweep[8]) == "<row parallel=8>"
    first, heads, _, *rows = str(sweep).splitlines()
    assert first == repr(sweep) == "<sweep made-up measured chip 20261025T101530Z-3fa9c1 of 3 conditions>"
    assert heads.split() == ["parallel", "tokens_per_s", "tokens_per_s_per_request", "power_w", "energy_per_token_mj"]
    assert [row.split() for row in rows] == [
        ["1", "50", "50", "61.73", "1235"],
        ["8", "400", "50", "16.2", "40.5"],
        ["16", *["void"] * 4],
    ]
    assert sweep.reads.void == []


def test_a_run_becomes_a_table(make_run, make_window) -> None:
    windows = [make_window(n, p, energy_j=200.0 + 10 * p) for p in (0, 1) for n in (1, 2)]
    sweep = from_run(
        make_run(
            *windows,
            make_window(1, 1, role="control", energy_j=1e6),
            make_window(1, 0, role="idle_before", condition={}),
        )
    )
    assert sweep.axes == ("parallel",)
    assert sweep.conditions == ({"parallel": 1}, {"parallel": 2})
    assert sweep.energy_j[2] == 205.0
    assert sweep.energy_per_token_mj[1] == pytest.approx(1000 * 205 / 128)
    assert sweep.energy_per_token_mj.spread[1] == pytest.approx(10 / 205)
    assert (sweep.about.suite, sweep.about.basis, sweep.about.scope, sweep.about.covers) == (
        "made-up",
        "measured",
        "chip",
        ("cpu",),
    )
    assert sweep.about.run_id == "20261025T101530Z-3fa9c1"


def test_the_table_is_the_mean_of_each_windows_own_ratio(make_run, make_window) -> None:
    windows = [make_window(1, 0, energy_j=100.0, tokens=100), make_window(1, 1, energy_j=100.0, tokens=300)]
    assert from_run(make_run(*windows)).energy_per_token_mj[1] == pytest.approx((1000 + 1000 / 3) / 2)


def test_a_void_window_voids_its_condition_alone(make_run, make_window) -> None:
    gate = Gate(name="answers complete", outcome="void", value="5 of 8 answered", limit="every answer 128 tokens long")
    # What would only have flagged it is no reason for that.
    flag = Gate(name="other load", outcome="flag", value="107% of a core", limit="10%")
    spoiled = make_window(2, 1, outcome="void", gates=(flag, gate), failure="")
    sweep = from_run(make_run(make_window(1, 0), make_window(1, 1), make_window(2, 0), spoiled))
    assert sweep.energy_j[1] == 200.0
    with pytest.raises(Void, match="parallel=2: pass 2: answers complete: 5 of 8 answered"):
        sweep.energy_j[2]


def test_a_condition_with_a_pass_too_few_is_void(make_run, make_window) -> None:
    sweep = from_run(make_run(make_window(1, 0), make_window(1, 1), make_window(2, 0)))
    with pytest.raises(Void, match="parallel=2: 1 of 2 passes were measured"):
        sweep.energy_j[2]


def test_a_condition_without_any_window_is_void(make_run, make_window) -> None:
    sweep = from_run(make_run(make_window(1), conditions=({"parallel": 1}, {"parallel": 64})))
    assert sweep.energy_j[1] == 200.0
    with pytest.raises(Void, match="parallel=64: 0 of 1 passes were measured"):
        sweep.energy_j[64]


def test_a_gate_of_the_whole_run_voids_every_cell(make_run, make_window) -> None:
    gate = Gate(
        name="power source", outcome="void", value="changed during the run, now battery", limit="the same throughout"
    )
    sweep = from_run(
        make_run(
            make_window(1), make_window(2), gates=(gate, replace(gate, name="drift", outcome="flag", value="+3 %"))
        )
    )
    for batch in (1, 2):
        with pytest.raises(Void, match=f"parallel={batch}: power source: changed during the run"):
            sweep.energy_j[batch]
    assert sweep.about.flags == ("drift: +3 % (limit: the same throughout)",)


def test_net_energy_needs_a_quiet_baseline(make_run, make_window) -> None:
    def net(idle: IdleBaseline | None) -> float:
        return from_run(make_run(make_window(1), idle=idle)).net_energy_per_token_mj[1]

    assert net(IdleBaseline(mean_w=5.0, sd_w=0.1, seconds=20.0)) == pytest.approx(1000 * 150 / 128)
    with pytest.raises(Void, match="no idle baseline was measured"):
        net(None)
    with pytest.raises(Void, match=r"the idle baseline .5 W, standard deviation 0.5 W. cannot be subtracted"):
        net(IdleBaseline(mean_w=5.0, sd_w=0.5, seconds=20.0))


def test_uncertainty_of_windows_reaches_the_cells_without_the_common_gain(make_run, make_window) -> None:
    windows = (make_window(1, 0, uncertainty_j=10.0, calibration_j=8.0), make_window(1, 1, uncertainty_j=2.0))
    [cell] = from_run(make_run(*windows)).cells
    assert cell.half_width == pytest.approx(6.0 / 200)
    assert cell.calibration == pytest.approx(8.0 / 200)


def test_the_order_of_axes_within_a_stored_condition_does_not_matter(make_run, make_window) -> None:
    window = make_window(condition={"format": "q4_0", "parallel": 2})
    sweep = from_run(make_run(window, axes=("parallel", "format"), conditions=({"parallel": 2, "format": "q4_0"},)))
    assert sweep.energy_j[2, "q4_0"] == 200.0


def test_labels() -> None:
    assert label({"parallel": 8, "format": "q4_0"}) == "parallel=8, format=q4_0"


def test_a_window_at_a_condition_that_was_not_asked_for_is_named(make_run, make_window) -> None:
    run = make_run(make_window(1), make_window(8), conditions=({"parallel": 1},))
    with pytest.raises(UsageError, match=r"a window at parallel=8 is not at one of its conditions"):
        from_run(run)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"energy_j": -5.0}, "pass 2: its energy is -5 J, which no window can have"),
        ({"energy_j": 0.0}, "pass 2: its energy is 0 J, which no window can have"),
        ({"tokens": -64}, "pass 2: it counts -64 generated and .* prompt tokens"),
        ({"prompt_tokens": -1}, "pass 2: it counts .* generated and -1 prompt tokens"),
        ({"tokens": 0}, "pass 2: no token was generated in it"),
    ],
)
def test_a_window_that_no_measurement_can_give_is_void(make_run, make_window, changed: dict, why: str) -> None:
    sweep = from_run(make_run(make_window(1, 0), make_window(1, 1, **changed)))
    for read in (sweep.energy_per_token_mj, sweep.tokens_per_s):
        with pytest.raises(Void, match=why):
            read[1]


def test_an_energy_that_was_not_measured_is_told_as_that(make_run, make_window) -> None:
    sweep = from_run(make_run(make_window(1, 0), make_window(1, 1, energy_j=None)))
    with pytest.raises(Void, match="energy_per_token_mj is undefined: no energy was measured in pass 2"):
        sweep.energy_per_token_mj[1]


def test_an_impossible_window_of_another_length_spoils_the_decode_energy_alone(make_run, make_window) -> None:
    windows = [make_window(1, p, role=role, answer_tokens=length, energy_j=energy_j)
               for p in (0, 1) for role, length, energy_j in (("measured", 128, 20.0), ("length", 32, -1.0))]  # fmt: skip
    [cell] = from_run(make_run(*windows)).cells
    assert cell.mean("energy_per_token_mj") > 0
    with pytest.raises(Void, match="answers of 32 tokens: its energy is -1 J"):
        cell.mean("decode_energy_per_token_mj")


def test_a_printed_figure_below_zero_is_void(make_run) -> None:
    cell = PublishedCell(condition={"parallel": 1}, figures={"energy_per_token_mj": -5.0}, roundings={}, spreads={})
    [found] = from_run(make_run(published=(cell,), conditions=({"parallel": 1},))).cells
    with pytest.raises(Void, match="energy_per_token_mj is printed as -5"):
        found.mean("energy_per_token_mj")
