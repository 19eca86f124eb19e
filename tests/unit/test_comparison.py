import itertools
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from pytest_joules.note import comparison
from pytest_joules.note.comparison import Comparison
from pytest_joules.records import Gate, IdleBaseline, PublishedCell, Run, Verdict


@pytest.fixture
def measured(make_run, make_window) -> Callable[..., Run]:
    """A run of four batches whose energy per token falls, `times` the usual one, with noise of the passes."""

    def build(
        times: float = 1.0,
        noise: float = 0.01,
        passes: int = 4,
        shift: float = 0.0,
        seed: int = 1,
        window: dict | None = None,
        **changes,
    ) -> Run:
        rng = np.random.default_rng(seed)
        shifts = np.exp(rng.normal(0, shift, passes))
        windows = [
            make_window(
                n,
                p,
                energy_j=times * float(shifts[p]) * 128 * n**0.5 * float(np.exp(rng.normal(0, noise))),
                **(window or {}),
            )
            for p in range(passes)
            for n in (1, 2, 4, 8)
        ]
        run_id = f"20261025T1015{seed % 60:02d}Z-{seed:06x}"
        return make_run(*windows, **({"run_id": run_id, "machine_slug": f"machine-{seed}"} | changes))

    return build


@pytest.fixture
def metered(make_run, make_window) -> Callable[..., object]:
    """A meter like the usual one but for these facts."""

    def build(calibration: float | None = 0.0, **changes) -> object:
        meter = make_run(make_window()).meter
        rails = tuple(replace(rail, calibration=calibration) for rail in meter.rails)
        return replace(meter, **({"rails": rails} | changes))

    return build


def side_by_side(*runs: Run, metric: str = "energy_per_token_mj") -> Comparison:
    named = zip(comparison.letters(), runs, strict=False)
    return comparison.compare([comparison.entry(name, run) for name, run in named], metric)


def ends(found: Comparison, row: int = 0, column: int = 1) -> tuple[float, float]:
    difference = found.groups[0].rows[row][1][column].difference
    assert difference is not None
    return difference.low, difference.high


def text(found: Comparison, width: int = 80) -> str:
    return "\n".join(comparison.lines(found, width))


def test_columns_are_named_as_in_a_spreadsheet() -> None:
    assert list(itertools.islice(comparison.letters(), 28))[-4:] == ["Y", "Z", "AA", "AB"]


def test_a_difference_beyond_the_noise_is_shown_with_its_interval(measured) -> None:
    found = side_by_side(measured(), measured(0.7, seed=2))
    low, high = ends(found)
    assert 0.6 < low < 0.7 < high < 0.8
    assert re.search(r"-3\d.\d% \(-3\d.\d to -2\d.\d%\)", text(found))


def test_a_difference_within_the_noise_is_said_not_to_be_shown(measured) -> None:
    found = side_by_side(measured(noise=0.03), measured(1.01, noise=0.03, seed=2))
    low, high = ends(found)
    assert low < 1 < high
    shown = comparison.cell_lines(found.groups[0].rows[0][1][1])
    assert shown[1] == "no difference shown"
    assert re.fullmatch(r"\(-[\d.]+ to \+[\d.]+%\)", shown[2])


@pytest.mark.parametrize(("noise", "shift", "widest"), [(0.04, 0.0, 0.5), (0.01, 0.05, 0.8)])
def test_the_interval_holds_the_truth_as_often_as_it_says(measured, noise: float, shift: float, widest: float) -> None:
    inside, widths = [], []
    for pair in range(50):
        found = side_by_side(
            measured(noise=noise, shift=shift, passes=2, seed=2 * pair + 1),
            measured(1.2, noise=noise, shift=shift, passes=2, seed=2 * pair + 2),
        )
        for row in range(4):
            low, high = ends(found, row)
            inside.append(low < 1.2 < high)
            widths.append(high - low)
    # 200 intervals, much alike within a pair: of 50 pairs at 95 %, under 88 % would be chance once in a hundred.
    assert np.mean(inside) > 0.88
    assert np.median(widths) < widest, "an interval that is never wrong because it says nothing"


def test_the_gain_of_one_meter_cancels_and_of_two_does_not(measured, metered) -> None:
    gain = {"calibration_j": 10.0, "uncertainty_j": 10.0}
    same = [measured(seed=s, window=gain, meter=metered(0.1), machine_slug="one") for s in (1, 2)]
    low, high = ends(side_by_side(*same), row=3)
    wide_low, wide_high = ends(side_by_side(same[0], replace(same[1], machine_slug="two")), row=3)
    assert wide_high - wide_low > (high - low) + 0.05


def test_what_the_edges_of_windows_are_off_widens_the_interval(measured) -> None:
    low, high = ends(side_by_side(measured(), measured(seed=2)))
    wide_low, wide_high = ends(side_by_side(measured(), measured(seed=2, window={"uncertainty_j": 13.0})))
    assert wide_high - wide_low > (high - low) + 0.05


def test_a_figure_above_idle_is_less_sure_than_the_whole(measured) -> None:
    idle = IdleBaseline(mean_w=10.0, sd_w=0.1, seconds=10.0)
    runs = [measured(seed=s, window={"uncertainty_j": 6.0}, idle=idle) for s in (1, 2)]
    low, high = ends(side_by_side(*runs))
    net_low, net_high = ends(side_by_side(*runs, metric="net_energy_per_token_mj"))
    # Of 12.8 W 2.8 are left.
    assert np.log(net_high / net_low) > 3 * np.log(high / low)


def test_a_meter_that_states_no_gain_is_told_of(measured, metered) -> None:
    silent = side_by_side(measured(meter=metered(None)), measured(seed=2, meter=metered(0.02)))
    assert any(remark.startswith("A: the meter (chip) states no calibration error") for remark in silent.remarks)
    stated = side_by_side(measured(meter=metered(0.02)), measured(seed=2, meter=metered(0.02)))
    assert not any("calibration" in remark for remark in stated.remarks)


def test_one_pass_gives_no_interval_and_no_bare_difference(measured) -> None:
    found = side_by_side(measured(), measured(0.5, passes=1, seed=2))
    figure = found.groups[0].rows[0][1][1]
    assert (figure.difference, figure.no_interval) == (None, "one pass")
    assert "no interval: one pass" in text(found)
    assert "%" not in "\n".join(comparison.table(found.groups[0], 80))


def test_a_count_has_no_interval(measured) -> None:
    found = side_by_side(measured(), measured(seed=2), metric="tokens")
    assert found.groups[0].rows[0][1][1].no_interval == "counted"


def test_a_copy_of_a_run_is_not_surer_than_a_run(measured) -> None:
    run = measured(noise=0.03)
    low, high = ends(side_by_side(run, replace(run, machine_slug="copied")))
    assert low < 0.99 < 1.01 < high


def test_only_energy_of_equal_parts_is_held_against_each_other(measured, metered) -> None:
    wider = metered(covers=("cpu", "dram"))
    found = side_by_side(measured(), measured(seed=2, meter=wider), measured(seed=3))
    assert [[one.name for one in group.entries] for group in found.groups] == [["A", "C"], ["B"]]
    assert found.groups[1].apart == "it covers (cpu, dram), not (cpu)"
    assert found.groups[1].rows[0][1][0].difference is None
    speed = side_by_side(measured(), measured(seed=2, meter=wider), metric="tokens_per_s")
    assert len(speed.groups) == 1
    assert ends(speed)
    assert any("--metric tokens_per_s" in remark for remark in found.remarks)


def test_order_of_the_parts_is_no_difference(measured, metered) -> None:
    found = side_by_side(
        measured(meter=metered(covers=("cpu", "gpu"))), measured(seed=2, meter=metered(covers=("gpu", "cpu")))
    )
    assert len(found.groups) == 1


def test_an_estimate_is_held_against_estimates_alone(measured, metered) -> None:
    estimate = metered(basis="estimated")
    found = side_by_side(measured(), measured(seed=2, meter=estimate), measured(seed=3, meter=estimate))
    assert [len(group.entries) for group in found.groups] == [1, 2]
    assert found.groups[1].heading.endswith("no power measurement")
    assert found.groups[1].apart == "estimated is not held against measured"
    assert found.groups[1].rows[0][1][1].difference is not None


def test_random_weights_are_compared_by_speed_alone(measured, metered) -> None:
    synthetic = metered(basis="synthetic")
    runs = [measured(seed=s, meter=synthetic) for s in (1, 2)]
    [energy] = side_by_side(*runs).groups
    assert "random weights" in energy.alone
    assert not any(figure.difference or figure.no_interval for _, figures in energy.rows for figure in figures)
    assert ends(side_by_side(*runs, metric="tokens_per_s"))


def published(run: Run, meter: object, spreads: dict[str, float], **cell: object) -> Run:
    cells = tuple(
        PublishedCell(
            condition=condition, figures={"energy_per_token_mj": 800.0}, roundings={"energy_per_token_mj": 40.0}, spreads=spreads, **cell
        )
        for condition in run.conditions
    )  # fmt: skip
    return replace(run, windows=(), published=cells, meter=meter)


def test_a_transcribed_run_stands_beside_a_measured_one_and_is_said_to(measured, metered) -> None:
    other = published(measured(seed=2), metered(basis="transcribed"), {"energy_per_token_mj": 0.02})
    found = side_by_side(measured(), other)
    low, high = ends(found)
    # Half a printed digit is 5 % here.
    assert high / low > 1.08
    assert found.groups[0].heading == "Measured (A) and transcribed (B) energy of the chip (cpu)"
    assert any(remark.startswith("B: transcribed") for remark in found.remarks)


def test_without_a_printed_spread_there_is_no_interval(measured, metered) -> None:
    other = published(measured(seed=2), metered(basis="transcribed"), {})
    assert side_by_side(measured(), other).groups[0].rows[0][1][1].no_interval == "no spread printed"


def test_a_printed_figure_that_must_not_be_judged_by_is_not_compared(measured, metered) -> None:
    other = published(
        measured(seed=2), metered(basis="transcribed"), {"energy_per_token_mj": 0.02}, missing={"energy_per_token_mj": "a misprint"}
    )  # fmt: skip
    found = side_by_side(measured(), other)
    figure = found.groups[0].rows[0][1][1]
    assert (figure.text, figure.difference, figure.no_interval) == ("800", None, "not to be read")
    assert "B: not to be read: a misprint" in found.remarks


def test_void_cells_say_so_and_why(measured) -> None:
    run = measured(seed=2)
    spoiled = replace(run.windows[0], outcome="void", failure="out of memory")
    found = side_by_side(measured(), replace(run, windows=(spoiled, *run.windows[1:])))
    figure = found.groups[0].rows[0][1][1]
    assert (figure.value, figure.text, figure.difference) == (None, "void", None)
    assert any("out of memory" in remark for remark in found.remarks)
    assert found.groups[0].rows[1][1][1].difference is not None


def test_conditions_that_one_run_lacks_stay_empty(measured) -> None:
    run = measured(seed=2)
    fewer = replace(
        run, conditions=run.conditions[1:], windows=tuple(w for w in run.windows if w.condition != {"parallel": 1})
    )
    found = side_by_side(fewer, measured())
    assert [condition["parallel"] for condition, _ in found.groups[0].rows] == [1, 2, 4, 8]
    assert found.groups[0].rows[0][1][0].text == ""
    assert found.groups[0].rows[0][1][1].difference is None


def test_runs_that_were_not_asked_the_same_are_told_apart(measured) -> None:
    def suite(**request: object) -> dict[str, object]:
        return {"question": "?", "request": {"parallel": 3, **request}, "gates": {"thin_samples": 10}}

    found = side_by_side(
        measured(suite=suite(answer_tokens=128)), measured(seed=2, suite=suite(answer_tokens=512)),
        measured(seed=3, suite=suite(answer_tokens=512, stream=False) | {"gates": {"thin_samples": 5}}),
    )  # fmt: skip
    assert "these runs were not asked the same: request.answer_tokens 128 (A) against 512 (B and C)" in found.remarks
    assert "these runs were not held to the same limits: gates.thin_samples 10 (A and B) against 5 (C)" in found.remarks
    assert "A and B: made by a version that does not state request.stream, as others do" in found.remarks


def test_a_run_that_drifted_says_that_no_interval_makes_up_for_it(measured) -> None:
    drift = Gate(name="drift", outcome="flag", value=0.1, limit="2%")
    found = side_by_side(measured(), measured(seed=2, gates=(drift,), deviations=("format: q8_0",), complete=False))
    assert any(remark.startswith("B: drift: 0.1") for remark in found.remarks)
    assert "B: deviation: format: q8_0" in found.remarks
    assert "B: cut short before its last window" in found.remarks


def test_files_of_one_name_are_told_apart_by_their_hash(measured) -> None:
    model = {"name": "made-up-7b", "format": "q4_0"}
    runs = [measured(seed=s, models=({**model, "sha256": digit * 64},)) for s, digit in ((1, "a"), (2, "b"))]
    assert [text for _, text in comparison.legend(side_by_side(*runs).entries)][1].split("; ")[
        1
    ] == "made-up-7b q4_0 [bbbbbbbb]"


def test_everything_fits_eighty_columns(measured) -> None:
    runs = [
        measured(0.5 + s, seed=s, machine={"chip": "A chip of a rather long name, 2027 edition"}) for s in range(1, 9)
    ]
    entries = [
        comparison.entry(n, r, [verdict(claim="word " * 30)]) for n, r in zip(comparison.letters(), runs, strict=False)
    ]
    shown = text(comparison.compare(entries, "energy_per_token_mj"))
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.count("A (reference)") > 1, "every part of a table that was cut up has the reference"
    assert "8 held (clear): A B C D E F G H" in shown


def test_names_of_machines_and_models_cannot_do_anything(measured) -> None:
    evil = {
        "machine_slug": "a|b",
        "machine": {"chip": "<script>x</script>\x1b[31m"},
        "models": ({"name": "m|n\x1b]0;", "format": None},),
    }
    found = side_by_side(measured(**evil), measured(seed=2))
    assert "\x1b" not in text(found)
    marked = text(found, 0)
    assert "a\\|b" in marked
    assert "<script>" not in marked
    assert "<script>" not in comparison.page(found)


def test_a_page_draws_each_group_for_itself(measured, metered) -> None:
    found = side_by_side(measured(), measured(seed=2, meter=metered(covers=("cpu", "dram"))))
    page = comparison.page(found)
    assert page.count("<svg") == 2
    assert "A machine-1" in page
    assert not re.search(r'(?:src|href)="http', page)


def test_too_many_lines_are_not_drawn(measured) -> None:
    entry = comparison.entry("A", measured())
    many = comparison.compare([replace(entry, name=f"A{n}") for n in range(comparison.MOST_LINES + 1)], "tokens_per_s")
    assert comparison.overlay(many, many.groups[0]) == []


def verdict(**changes: object) -> Verdict:
    usual = {
        "prediction": "test_x.py::test_y",
        "claim": "Eight are cheaper.",
        "word": "held",
        "robustness": "clear",
        "registration": "registered",
    }
    return Verdict(**(usual | changes))  # type: ignore[arg-type]


def test_the_last_verdict_of_a_prediction_stands(measured) -> None:
    entry = comparison.entry("A", measured(), [verdict(word="refuted"), verdict(robustness="narrow")])
    [(claim, by_name)] = comparison.matrix([(entry.name, "measured", entry.verdicts)]).rows
    assert (claim, by_name["A"][0].told) == ("Eight are cheaper.", "held (narrow)")


def test_tokens_of_windows_without_a_prompt_are_told(measured) -> None:
    found = side_by_side(
        measured(1), measured(2, engine={"llama-bench": {"name": "llama-bench", "includes": ["decode"]}})
    )
    assert "B: the windows of llama-bench hold no prompt: its tokens are decoded ones alone" in found.remarks


def test_verdicts_have_their_remarks_below() -> None:
    found = comparison.matrix(
        [
            ("A", "measured", [verdict()]),
            ("B", "measured", [verdict(registration="exploratory", remark="chosen after the data")]),
        ]
    )
    shown = list(comparison.matrix_lines(found, 80))
    assert shown[-2:] == ["[1] exploratory", "[2] chosen after the data"]
    assert any("[1, 2]" in line for line in shown)


def test_a_verdict_on_figures_that_were_not_measured_says_so() -> None:
    found = comparison.matrix(
        [(name, basis, [verdict()]) for name, basis in (("A", "measured"), ("B", "estimated"), ("C", "synthetic"))]
    )
    for width in (80, 50):
        shown = list(comparison.matrix_lines(found, width))
        assert shown[-2:] == ["[1] the energy of the run is estimated", "[2] the energy of the run is synthetic"]
    assert "  1 held (clear): A" in shown
    assert "  1 held (clear) [1]: B" in shown


def test_predictions_meet_in_a_row_by_claim_and_test_wherever_their_module_is() -> None:
    rows = comparison.matrix(
        [
            (
                "A",
                "measured",
                [verdict(), verdict(prediction="test_x.py::test_z[8]"), verdict(prediction="test_x.py::test_z[16]")],
            ),
            ("B", "measured", [verdict(prediction="other/test_w.py::test_y"), verdict(claim="Reworded.")]),
        ]
    ).rows
    assert [(claim, list(by_name)) for claim, by_name in rows] == [
        ("Eight are cheaper.", ["A", "B"]), ("Eight are cheaper. [8]", ["A"]), ("Eight are cheaper. [16]", ["A"]), ("Reworded.", ["B"]),
    ]  # fmt: skip


def test_what_was_judged_in_one_column_alone_can_be_left_out() -> None:
    found = comparison.matrix(
        [("A", "measured", [verdict()]), ("B", "measured", [verdict(), verdict(claim="Another.")])], least=2
    )
    assert [claim for claim, _ in found.rows] == ["Eight are cheaper."]


@pytest.mark.parametrize(("lengths", "leverage"), [([64, 128], 3.0), ([64, 256], 320 / 192), ([64], 1.0), ([], 1.0)])
def test_errors_of_energies_weigh_more_in_a_slope(measured, lengths: list[int], leverage: float) -> None:
    run = measured(suite={"question": "?", "request": {"lengths": lengths}})
    cell = comparison.entry("A", run).sweep.cells[0]
    assert comparison._leverage(cell, "decode_energy_per_token_mj", run) == pytest.approx(leverage)
