import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_joules import verdict
from pytest_joules.prediction import Prediction, judge
from pytest_joules.sweep import Cell, Sweep
from pytest_joules.verdict import Robustness, passes_to_decide, pooled_noise, resolution, robustness

STEEP = {1: (100.0, 101.0), 2: (80.0, 81.0), 4: (60.0, 60.4), 8: (40.0, 40.3)}


def eight_are_cheaper(sweep):
    assert sweep.energy_per_token_mj[8] < sweep.energy_per_token_mj[1]


def eight_are_dearer(sweep):
    assert sweep.energy_per_token_mj[8] > sweep.energy_per_token_mj[1]


def passes_within_5_percent(sweep):
    assert sweep.energy_per_token_mj.spread.max() <= 0.05


def judged(
    prediction: Prediction, sweep: Sweep, against: Sweep | None = None, flags: tuple[str, ...] = ()
) -> Robustness:
    return robustness(prediction, judge(prediction, sweep, against), sweep, against, flags)


@pytest.mark.parametrize("function", [eight_are_cheaper, eight_are_dearer])
def test_a_wide_margin_is_clear_either_way(table, predicts, function) -> None:
    assert judged(predicts(function), table(STEEP)) == Robustness("clear", 1.0, "")


def test_at_the_threshold_it_is_narrow(table, predicts) -> None:
    def saves_half(sweep):
        assert sweep.energy_per_token_mj.saving(1, 8) >= 0.50

    found = judged(predicts(saves_half), table({**STEEP, 8: (50.0, 50.3)}))
    assert found.word == "narrow"
    assert 0.2 < found.agreement < 0.8
    assert found.why_narrow.endswith("% of perturbed tables agree")


def test_a_single_pass_that_says_otherwise_makes_it_narrow(table, predicts) -> None:
    def cheap(sweep):
        assert sweep.energy_per_token_mj[8] < 42

    energy = {**dict.fromkeys(range(1, 8), (100.0, 100.0)), 8: (40.0, 43.0)}
    found = judged(predicts(cheap), table(energy))
    assert found.word == "narrow"
    assert "pass 2 alone says refuted" in found.why_narrow
    assert "pass 1" not in found.why_narrow


def test_one_pass_is_always_narrow(table, predicts) -> None:
    found = judged(predicts(eight_are_cheaper), table({1: (100.0,), 8: (1.0,)}))
    assert found.word == "narrow"
    assert "one pass: its noise is unknown" in found.why_narrow


@pytest.mark.parametrize("number", range(12))
def test_one_pass_of_any_run_can_be_judged(table, predicts, monkeypatch, number: int) -> None:
    # One degree of freedom has no bounds: among so many draws some lie far beyond what exp can take.
    monkeypatch.setattr(verdict, "TABLES", 20_000)
    shaken = verdict._Perturbed(table(dict.fromkeys((1, 2, 4, 8, 16, 32), (100.0,))), np.random.default_rng(number))
    farthest = max(range(20_000), key=lambda i: max(abs(shaken._logs[m][i]).max() for m in shaken._logs))
    perturbed = shaken(farthest)
    assert all(math.isfinite(figure) for figure in perturbed.power_w.values())


def test_a_claim_about_the_spread_is_a_fact_of_the_run(table, predicts) -> None:
    energy = {1: (100.0, 104.9), 2: (80.0, 80.0), 8: (40.0, 40.0)}
    assert judged(predicts(passes_within_5_percent), table(energy)) == Robustness("clear", 1.0, "")
    assert judged(predicts(passes_within_5_percent), table({**energy, 8: (40.0, 43.0)})) == Robustness("clear", 1.0, "")


def test_the_energy_in_a_claim_about_the_spread_is_still_perturbed(table, predicts) -> None:
    def both(sweep):
        assert sweep.energy_per_token_mj.spread.max() <= 0.05
        assert sweep.energy_per_token_mj[8] <= 40.15

    found = judged(predicts(both), table(STEEP))
    assert found.word == "narrow"
    assert "alone" not in found.why_narrow


def test_flags_of_the_run_make_it_narrow(table, predicts) -> None:
    found = judged(predicts(eight_are_cheaper), table(STEEP), flags=("run order: second pass +4.0% in the mean",))
    assert found == Robustness("narrow", 1.0, "run order: second pass +4.0% in the mean")


@pytest.mark.parametrize(
    "function", [lambda sweep: sweep.energy_per_token_mj[64], lambda sweep: sweep.energy_per_token_mj[32]]
)
def test_void_and_broken_have_no_robustness(table, predicts, function) -> None:
    assert judged(predicts(function), table(STEEP, void={32: "out of memory"})) == Robustness("", None)


def test_it_comes_out_the_same_again(table, predicts) -> None:
    def close(sweep):
        assert sweep.energy_per_token_mj[8] < 40.3

    first, again = (judged(predicts(close), table(STEEP)) for _ in range(2))
    assert first == again
    assert 0 < first.agreement < 1
    others = {judged(predicts(close), table(STEEP, run_id=f"run-{n}")).agreement for n in range(4)}
    assert len(others) > 1


def test_a_void_cell_that_is_not_read_changes_nothing(table, predicts) -> None:
    found = judged(predicts(eight_are_cheaper), table(STEEP, void={32: "out of memory"}))
    assert found == Robustness("clear", 1.0, "")


def test_the_other_table_is_perturbed_too(table, predicts) -> None:
    def cheaper_than_before(sweep, against):
        assert sweep.energy_per_token_mj[8] < against.energy_per_token_mj[8]

    prediction = predicts(cheaper_than_before, wants=("sweep", "against"), against="other")
    near = table({**STEEP, 8: (40.3, 40.4)}, run_id="other")
    far = table({**STEEP, 8: (60.0, 60.1)}, run_id="other")
    assert judged(prediction, table(STEEP), near).word == "narrow"
    assert judged(prediction, table(STEEP), far) == Robustness("clear", 1.0, "")


def test_uncertain_edges_make_narrow_what_the_passes_alone_would_not(table, predicts) -> None:
    def below(sweep):
        assert sweep.energy_per_token_mj[8] < 42.5

    assert judged(predicts(below), table(STEEP)).word == "clear"
    assert judged(predicts(below), table(STEEP, half_width=0.3)).word == "narrow"


def test_the_gain_of_the_meter_weighs_on_figures_and_cancels_in_ratios(table, predicts) -> None:
    def below(sweep):
        assert sweep.energy_per_token_mj[8] < 42.5

    def saves(sweep):
        assert sweep.energy_per_token_mj.saving(1, 8) > 0.56

    assert judged(predicts(below), table(STEEP, calibration=0.3)).word == "narrow"
    assert judged(predicts(saves), table(STEEP, calibration=0.3)).word == "clear"


def test_a_step_common_to_all_conditions_weighs_on_figures_alone(table, predicts) -> None:
    def below(sweep):
        assert sweep.energy_per_token_mj[8] < 44.5

    def saves(sweep):
        assert sweep.energy_per_token_mj.saving(1, 8) > 0.55

    warmer = {n: (mj, mj * 1.2) for n, (mj, _) in STEEP.items()}
    assert judged(predicts(saves), table(warmer)).word == "clear"
    found = judged(predicts(below), table(warmer))
    assert found.word == "narrow"


def test_metrics_are_perturbed_together(table) -> None:
    shaken = verdict._Perturbed(table(STEEP), np.random.default_rng(1))
    for index in range(20):
        perturbed = shaken(index)
        for n in STEEP:
            row = perturbed[n]
            assert row.power_w == pytest.approx(row.energy_per_token_mj * row.tokens_per_s / 1000, rel=1e-3)
            assert row.energy_j == pytest.approx(row.energy_per_token_mj * row.tokens / 1000, rel=1e-3)
            assert row.window_s == pytest.approx(row.tokens / row.tokens_per_s, rel=1e-3)
            assert row.tokens == 128 * n


def test_noise_is_pooled_over_the_conditions() -> None:
    # Residuals of +-1 % in logarithms after condition and pass means: sd = sqrt(8 x 0.01^2 / 3).
    signs = {1: 1, 2: -1, 4: 1, 8: -1}
    cells = [
        Cell(
            condition={"parallel": n},
            passes=tuple({"energy_per_token_mj": n * math.exp(s * sign * 0.01)} for s in (1, -1)),
        )
        for n, sign in signs.items()
    ]
    noise = pooled_noise(Sweep(("parallel",), cells), "energy_per_token_mj")
    assert (noise.sd, noise.dof) == (pytest.approx(math.sqrt(8e-4 / 3)), 3)
    assert noise.common == pytest.approx((0.0, 0.0))


def test_what_all_conditions_share_is_no_noise_but_a_common_factor(table) -> None:
    noise = pooled_noise(table(dict.fromkeys((1, 2, 4, 8), (100.0, 110.0))), "energy_per_token_mj")
    assert (noise.sd, noise.dof) == (verdict.LEAST_SD, 3)
    assert noise.common == pytest.approx((-math.log(1.1) / 2, math.log(1.1) / 2))


def test_noise_of_one_condition_is_its_own_scatter(table) -> None:
    noise = pooled_noise(table({1: (100.0, 110.0, 105.0)}), "energy_per_token_mj")
    logs = np.log([100.0, 110.0, 105.0])
    assert (noise.sd, noise.dof, noise.common) == (pytest.approx(logs.std(ddof=1)), 2, (0.0, 0.0))


def test_the_mean_of_more_passes_is_shaken_less(table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "TABLES", 4000)
    draw = random.Random(3)
    for passes in (2, 8):
        sweep = table({n: [100.0 * math.exp(draw.gauss(0, 0.02)) for _ in range(passes)] for n in range(1, 13)})
        noise = pooled_noise(sweep, "energy_per_token_mj")
        logs = verdict._Perturbed(sweep, np.random.default_rng(4))._logs["energy_per_token_mj"]
        # What is common to all conditions of a table is taken out; t is wider than a normal of its scale.
        scatter = (logs - logs.mean(axis=1, keepdims=True)).std() * math.sqrt(12 / 11)
        expected = noise.sd / math.sqrt(passes) * math.sqrt(noise.dof / (noise.dof - 2))
        assert scatter == pytest.approx(expected, rel=0.05)


def test_a_void_or_incomplete_cell_takes_no_part_in_the_noise(table) -> None:
    whole = pooled_noise(table(STEEP), "energy_per_token_mj")
    cells = [*table(STEEP, void={32: "out of memory"}).cells, *table({64: (100.0,)}).cells]
    cells.append(Cell(condition={"parallel": 16}, passes=({"power_w": 1.0}, {"power_w": 2.0})))
    cells.append(Cell(condition={"parallel": 128}, passes=({"energy_per_token_mj": 0.0}, {"energy_per_token_mj": 5.0})))
    assert pooled_noise(Sweep(("parallel",), cells), "energy_per_token_mj") == whole


def test_noise_of_one_pass_is_unknown(table) -> None:
    assert pooled_noise(table({1: (100.0,), 8: (40.0,)}), "energy_per_token_mj") is None
    assert pooled_noise(table({}, void={1: "out of memory"}), "energy_per_token_mj") is None


@settings(max_examples=40, derandomize=True, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([1, 2, 4, 8]), st.lists(st.floats(1e-3, 1e6), min_size=2, max_size=2), min_size=1, max_size=4
    )
)
def test_noise_has_a_floor_and_a_centred_common_factor(energy: dict[int, list[float]]) -> None:
    cells = [
        Cell(condition={"parallel": n}, passes=tuple({"energy_per_token_mj": mj} for mj in passes))
        for n, passes in energy.items()
    ]
    noise = pooled_noise(Sweep(("parallel",), cells), "energy_per_token_mj")
    assert noise.sd >= verdict.LEAST_SD
    assert noise.dof >= 1
    assert noise.common[0] <= 0 <= noise.common[1]
    assert sum(noise.common) == pytest.approx(0.0, abs=1e-9)
    scaled = [
        replace(cell, passes=tuple({"energy_per_token_mj": 7 * f["energy_per_token_mj"]} for f in cell.passes))
        for cell in cells
    ]
    again = pooled_noise(Sweep(("parallel",), scaled), "energy_per_token_mj")
    assert again.sd == pytest.approx(noise.sd, rel=1e-6)


SD = 0.02
RUNS = 80
LIMIT = 0.30


def runs(table, margin_sds: float, count: int = RUNS):
    """Two noisy passes over six conditions, where the true saving lies so many standard deviations of its mean past the limit."""
    draw = random.Random(5)
    of_the_ratio = SD * math.sqrt(2) / math.sqrt(2)
    true = dict.fromkeys((1, 2, 4, 8, 16, 32), 100.0)
    true[8] = 100.0 * (1 - LIMIT) * math.exp(-margin_sds * of_the_ratio)
    for number in range(count):
        yield table(
            {n: [mj * math.exp(draw.gauss(0, SD)) for _ in range(2)] for n, mj in true.items()}, run_id=f"run-{number}"
        )


def saves_enough(sweep):
    assert sweep.energy_per_token_mj.saving(1, 8) >= LIMIT


@pytest.mark.parametrize("margin_sds", [-0.01, -1.0])
def test_a_wrong_verdict_is_seldom_clear(table, predicts, monkeypatch, margin_sds: float) -> None:
    monkeypatch.setattr(verdict, "TABLES", 200)
    prediction = predicts(saves_enough)
    wrong = sum(
        judge(prediction, sweep).word == "held" and judged(prediction, sweep).word == "clear"
        for sweep in runs(table, margin_sds)
    )
    # 5 % of them, and two standard errors of such a count.
    assert wrong <= 0.05 * RUNS + 2 * math.sqrt(0.05 * 0.95 * RUNS)


def test_a_margin_of_four_standard_deviations_is_seldom_narrow(table, predicts, monkeypatch) -> None:
    monkeypatch.setattr(verdict, "TABLES", 200)
    prediction = predicts(saves_enough)
    narrow = sum(judged(prediction, sweep).word == "narrow" for sweep in runs(table, 4.0))
    assert narrow <= 0.10 * RUNS + 2 * math.sqrt(0.10 * 0.90 * RUNS)


def to_decide(prediction: Prediction, sweep: Sweep, **keys) -> int | None:
    return passes_to_decide(prediction, judge(prediction, sweep), sweep, **keys)


def near_the_limit(table, off: float, **keys) -> Sweep:
    """Two noisy passes of six conditions, where the last stands so far under 50."""
    draw = random.Random(11)
    energy = {n: [100.0 * math.exp(draw.gauss(0, SD)) for _ in range(2)] for n in (1, 2, 4, 8, 16, 32)}
    scatter = math.exp(draw.gauss(0, SD))
    energy[32] = [50.0 * (1 - off) * scatter, 50.0 * (1 - off) / scatter]
    return table(energy, **keys)


def under_half(sweep):
    assert sweep.energy_per_token_mj[32] < 50


def test_a_nearer_threshold_needs_more_passes(table, predicts) -> None:
    needed = [to_decide(predicts(under_half), near_the_limit(table, off)) for off in (0.2, 0.03, 0.01)]
    assert needed[0] == 2
    assert needed[1:] == sorted(set(needed[1:]))
    # Two sided or not, 5 % of a normal lie beyond 1.6 standard errors.
    sd = pooled_noise(near_the_limit(table, 0.01), "energy_per_token_mj").sd
    assert needed[-1] == pytest.approx((1.645 * sd / 0.01) ** 2, rel=0.4)


def test_a_narrow_agreement_needs_more_passes_than_the_run_had(table, predicts) -> None:
    for off in (0.01, 0.03, 0.06):
        sweep = near_the_limit(table, off)
        found = judged(predicts(under_half), sweep)
        needed = to_decide(predicts(under_half), sweep)
        assert (needed > 2) == (found.agreement < verdict.AGREE_FOR_CLEAR)


def test_what_more_passes_do_not_mend_needs_no_number(table, predicts) -> None:
    assert to_decide(predicts(under_half), near_the_limit(table, 0.0005)) is None
    assert to_decide(predicts(under_half), near_the_limit(table, 0.015), most=2) is None
    assert to_decide(predicts(under_half), near_the_limit(table, 0.015, half_width=0.1)) is None
    assert to_decide(predicts(under_half), near_the_limit(table, 0.015, calibration=0.1)) is None
    rounded = near_the_limit(table, 0.015)
    rounded = rounded.fresh([replace(cell, roundings={"energy_per_token_mj": 0.1}) for cell in rounded.cells])
    assert to_decide(predicts(under_half), rounded) is None


def test_where_the_noise_of_a_pass_is_unknown_no_number_is_given(table, predicts) -> None:
    assert to_decide(predicts(eight_are_cheaper), table({1: (100.0,), 8: (40.0,)})) is None
    published = [Cell(condition={"parallel": n}, means={"energy_per_token_mj": mj}) for n, mj in ((1, 9.0), (8, 4.0))]
    assert to_decide(predicts(eight_are_cheaper), Sweep(("parallel",), published)) is None
    assert to_decide(predicts(lambda sweep: sweep[3]), table(STEEP)) is None


def test_as_if_of_more_passes_the_noise_has_more_degrees_of_freedom(table) -> None:
    sweep = near_the_limit(table, 0.0)
    noise = pooled_noise(sweep, "energy_per_token_mj")
    for passes, dof in ((2, 5), (3, 10), (9, 40)):
        logs = verdict.perturbations(sweep, np.random.default_rng(7), passes, 20_000)["energy_per_token_mj"]
        assert logs.shape == (20_000, 6)
        scatter = (logs - logs.mean(axis=1, keepdims=True)).std() * math.sqrt(6 / 5)
        assert scatter == pytest.approx(noise.sd / math.sqrt(passes) * math.sqrt(dof / (dof - 2)), rel=0.05)


def test_the_range_of_normals() -> None:
    # Harter, Tables of range and studentized range, 1960.
    for count, expected in ((2, 1.12838), (3, 1.69257), (4, 2.05875), (8, 2.84720)):
        assert verdict._expected_range(count) == pytest.approx(expected, abs=1e-5)


BATCHES = tuple({"parallel": n} for n in (1, 2, 4, 8, 16))


def resolved(predicts, function, passes: int = 2, **keys) -> float | None:
    return resolution(predicts(function), ("parallel",), BATCHES, passes, **keys)


def test_a_coarse_rule_is_resolved_and_a_fine_one_is_not(table, predicts) -> None:
    def coarse(sweep):
        assert sweep.energy_per_token_mj[8] < sweep.energy_per_token_mj[1]

    def band(sweep):
        assert 0.1 <= sweep.energy_per_token_mj.saving(1, 8) <= 0.4

    def fine(sweep):
        assert 0.200 <= sweep.energy_per_token_mj.saving(1, 8) <= 0.204

    def never(sweep):
        assert sweep.energy_per_token_mj[8] < 0

    run = table({n: (100.0 * n**-0.1,) * 2 for n in (1, 2, 4, 8, 16)})
    assert resolved(predicts, coarse) > 0.7
    assert 0.1 < resolved(predicts, band, around=run) < resolved(predicts, coarse, around=run)
    assert resolved(predicts, fine, around=run) == 0.0
    assert resolved(predicts, never) is None
    assert resolved(predicts, coarse, passes=1) == 0.0
    assert resolved(predicts, band, spread=0.001, around=run) > resolved(predicts, band, spread=0.1, around=run)
    assert resolved(predicts, band, around=run) == resolved(predicts, band, around=run)


def test_a_claim_about_spreads_is_always_resolved(predicts) -> None:
    assert resolved(predicts, passes_within_5_percent) == 1.0


def test_resolution_of_a_comparison_of_two_suites(predicts) -> None:
    def cheaper(sweep, against):
        assert sweep.energy_per_token_mj[8] < against.energy_per_token_mj[8]

    prediction = predicts(cheaper, wants=("sweep", "against"), against="other")
    assert resolution(prediction, ("parallel",), BATCHES, 2, against=(("parallel",), BATCHES)) > 0.5


def test_a_claim_that_is_a_band_is_told_by_its_two_figures(table, predicts) -> None:
    sweep = table({8: (137.0, 137.0), 16: (111.0, 111.0)})

    def claim(sweep: Sweep) -> None:
        assert 0.15 <= sweep.energy_per_token_mj.saving(8, 16) <= 0.30

    band = verdict.band(predicts(claim), sweep)
    assert band is not None
    assert band.condition == {"parallel": 16}
    assert band.low == pytest.approx(0.70 * 137, rel=1e-4)
    assert band.high == pytest.approx(0.85 * 137, rel=1e-4)


def test_a_refuted_band_is_told_too_and_an_open_one_or_one_of_spreads_is_none(table, predicts) -> None:
    sweep = table({8: (137.0, 139.0), 16: (111.0, 112.0)})

    def refuted(sweep: Sweep) -> None:
        assert 150 < sweep.energy_per_token_mj[8] < 170

    def one_sided(sweep: Sweep) -> None:
        assert sweep.energy_per_token_mj[16] < sweep.energy_per_token_mj[8]

    def of_spread(sweep: Sweep) -> None:
        assert 0.001 < sweep.energy_per_token_mj.spread[8] < 0.05

    def of_speed(sweep: Sweep) -> None:
        assert 1 < sweep.tokens_per_s[8] < 1e9

    band = verdict.band(predicts(refuted), sweep)
    assert band is not None
    assert (band.low, band.high) == (pytest.approx(150, rel=1e-4), pytest.approx(170, rel=1e-4))
    assert [verdict.band(predicts(f), sweep) for f in (one_sided, of_spread, of_speed)] == [None, None, None]
