"""The table of what a token costs, from runs alone."""

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from pytest_joules import costs, store, verdict
from pytest_joules.note import comparison, lines
from pytest_joules.note.findings import findings
from pytest_joules.records import Gate, RequestRecord, Run

RESULTS = Path(__file__).parents[2] / "results"
PUBLISHED = {
    "decode-batch": {1: (534, 55.6), 2: (485, 94.5), 4: (255, 163.6), 8: (137, 293.2), 16: (111, 338.8), 32: (128, 322.7)},
    "decode-batch-1.5b": {1: (97, 191.0), 2: (100, 326.5), 4: (53, 611.5), 8: (30, 1025.5), 16: (26, 1171.1), 32: (29, 963.0)},
}  # fmt: skip
"""By suite and batch: mJ per token and tokens/s, as printed."""


@pytest.fixture
def measured(make_run, make_window) -> Callable[..., Run]:
    """A run of four passes: 100, 70, 50 and 60 mJ per token at 1, 2, 4 and 8."""

    def build(
        noise: float = 0.01, batches: tuple[int, ...] = (1, 2, 4, 8), window: dict | None = None, **changes
    ) -> Run:
        rng = np.random.default_rng(1)
        mj = {1: 100.0, 2: 70.0, 4: 50.0, 8: 60.0}
        windows = [
            make_window(n, p, energy_j=0.128 * n * mj[n] * float(np.exp(rng.normal(0, noise))), **(window or {}))
            for p in range(4)
            for n in batches
        ]
        return make_run(*windows, **changes)

    return build


@pytest.fixture
def with_basis() -> Callable[[Run, str], Run]:
    return lambda run, basis: replace(run, meter=replace(run.meter, basis=basis))


@pytest.fixture(autouse=True)
def quicker(monkeypatch) -> None:
    """Fewer perturbed tables: how sure a best batch is, is tested where it is worked out."""
    monkeypatch.setattr(verdict, "TABLES", 200)


@functools.cache
def of(suite: str) -> costs.Curve:
    [path] = (RESULTS / "apple-m5-pro-24gb" / suite).glob("*.json")
    [curve] = costs.curves(store.load(path).run)
    return curve


def shown(*curves: costs.Curve, width: int = 80) -> str:
    return "\n".join(costs.text(costs.table(curves), width))


@pytest.mark.parametrize("suite", PUBLISHED)
def test_printed_figures_are_there_digit_for_digit(suite: str) -> None:
    curve = of(suite)
    rows = costs.record(costs.table([curve]))["curves"][0]["rows"]
    found = {row["batch"]: (row["energy_per_token_mj"], row["tokens_per_s"]) for row in rows}
    assert found == PUBLISHED[suite]
    assert [type(energy) for energy, _ in found.values()] == [int] * 6
    text = shown(curve)
    for batch, (energy, speed) in PUBLISHED[suite].items():
        assert f" {batch}  " in text
        assert f"{energy}  " in text
        assert f"{speed:,.1f}" in text


@pytest.mark.parametrize("suite", PUBLISHED)
def test_the_knee_of_the_published_sweeps_is_at_16_as_their_note_says(suite: str) -> None:
    best = of(suite).best
    assert best is not None
    assert (best.batch, best.sure, best.largest_measured) == (16, "clear", False)


def test_what_is_saved_at_the_best_batch_is_what_was_printed() -> None:
    printed = {"decode-batch": (0.79, 0.381), "decode-batch-1.5b": (0.74, 0.383)}
    for suite, expected in printed.items():
        best = of(suite).best
        assert best is not None
        assert (best.energy_saved, best.speed_kept) == expected


def test_a_printed_figure_that_must_not_be_read_is_no_number() -> None:
    curve = of("decode-batch-1.5b-long")
    assert (curve.rows, curve.best) == ((), None)
    assert [(a.batch, a.printed, a.void) for a in curve.without][:2] == [(1, "105", False), (2, "103", False)]
    assert "no figure at batch 1 (printed as 105), 2 (printed as 103)" in shown(curve)


def test_the_format_is_the_one_that_was_measured() -> None:
    assert of("decode-batch").of_model == "qwen2.5-7b-instruct q4_k_m"


def test_printed_and_estimated_figures_have_no_interval_and_say_why(measured, with_basis) -> None:
    [estimated] = costs.curves(with_basis(measured(), "estimated"))
    for curve in (of("decode-batch"), estimated):
        assert curve.no_interval
        assert all(f.interval is None for row in curve.rows for f in row.figures.values())
        assert f"no interval: {curve.no_interval}" in shown(curve)
        assert f"{curve.rows[0].pass_spread:.1%}" in shown(curve)


def test_an_interval_lies_about_its_figure_and_holds_the_meters_gain(measured) -> None:
    [plain] = costs.curves(measured())
    [gained] = costs.curves(measured(window={"uncertainty_j": 1.0, "calibration_j": 1.0}))

    def width(curve: costs.Curve) -> float:
        figure = curve.rows[0].figures[costs.ENERGY]
        assert figure.interval is not None
        assert figure.interval[0] < 100 < figure.interval[1]
        return figure.interval[1] - figure.interval[0]

    # 1 J of 12.8 J is 8 %, taken as the ends of a uniform error.
    assert width(gained) > width(plain) + 10


def test_one_pass_has_no_interval(measured) -> None:
    run = measured()
    [curve] = costs.curves(replace(run, windows=run.windows[:4], passes=1))
    assert curve.no_interval == "one pass"
    assert [row.figures[costs.ENERGY].interval for row in curve.rows] == [None] * 4


def test_the_best_batch_is_as_sure_as_the_note_of_the_run_says(measured) -> None:
    for noise in (0.005, 0.2):
        run = measured(noise)
        note = next(f for f in findings(run) if "is lowest at" in f.text)
        [curve] = costs.curves(run)
        assert curve.best is not None
        assert f"batch {curve.best.batch}," in note.text
        assert (curve.best.sure, curve.best.why) == (note.sure, note.why)
    assert note.sure == "narrow"
    assert note.why in shown(curve).replace("\n  ", " ")


def test_the_best_of_what_was_measured_may_not_be_the_end_of_it(measured) -> None:
    [falling] = costs.curves(measured(batches=(2, 4)))
    assert falling.best is not None
    assert falling.best.largest_measured
    assert "may be cheaper still" in shown(falling).replace("\n  ", " ")
    # Nobody was alone, so nothing is said of what is given up.
    assert (falling.best.energy_saved, falling.best.speed_kept) == (None, None)


def test_a_void_batch_is_listed_with_its_reason_and_has_no_number(measured) -> None:
    run = measured()
    gate = Gate(name="achieved batch", outcome="void", value=0.5, limit="0.8 at least")
    windows = [
        replace(w, outcome="void", gates=(gate,)) if (w.condition["parallel"], w.pass_index) == (4, 1) else w
        for w in run.windows
    ]
    [curve] = costs.curves(replace(run, windows=tuple(windows)))
    assert [row.batch for row in curve.rows] == [1, 2, 8]
    assert [(a.batch, a.void) for a in curve.without] == [(4, True)]
    assert curve.best is not None
    assert curve.best.batch == 8
    assert "Cheapest at batch 8 of the 3 with a figure" in shown(curve)
    assert "void at batch 4: pass 2: achieved batch: 0.5" in shown(curve).replace("\n  ", " ")


def test_a_flag_is_named_at_its_batch(measured) -> None:
    run = measured()
    gate = Gate(name="sensor updates", outcome="flag", value="7", limit="10 not to be thin")
    windows = [replace(w, outcome="flagged", gates=(gate,)) if w.condition["parallel"] == 1 else w for w in run.windows]
    [curve] = costs.curves(replace(run, windows=tuple(windows)))
    assert [row.flags for row in curve.rows] == [("sensor updates",), (), (), ()]


def test_a_file_that_stood_in_for_a_model_has_no_row_under_its_name(measured) -> None:
    stood_in = {"name": "qwen2.5-7b-instruct", "format": "q4_0", "path": "tiny-q8_0.gguf", "substitute": True}
    run = measured(models=(stood_in,))
    [curve] = costs.curves(run)
    assert curve.of_model == "tiny-q8_0.gguf"
    assert "tiny-q8_0.gguf in place of qwen2.5-7b-instruct q4_0" in lines.heading(run)[1]
    assert comparison.models_text(run) == "tiny-q8_0.gguf in place of qwen2.5-7b-instruct q4_0"


def test_decode_alone_stands_beside_where_lengths_were_measured(measured) -> None:
    answer = RequestRecord(
        slot=0, round=0, sent_s=0.0, received_s=10.0, prompt_n=20, cache_n=0, predicted_n=128, prompt_ms=1.0, predicted_ms=9.0,
        stop_type="limit",
    )  # fmt: skip
    run = measured(window={"answer_tokens": 128, "requests": (answer,)})
    longer = [
        replace(w, role="length", answer_tokens=256, energy_j=w.energy_j * 1.9, tokens=2 * w.tokens)
        for w in run.windows
    ]
    [curve] = costs.curves(replace(run, windows=(*run.windows, *longer)))
    [row, *_] = costs.record(costs.table([curve]))["curves"][0]["rows"]
    assert row["decode_energy_per_token_mj"] == pytest.approx(0.9 * row["energy_per_token_mj"], rel=0.01)
    assert len(row["decode_energy_per_token_interval_mj"]) == 2
    assert re.search(r"^ .* decode ", shown(curve), re.MULTILINE)
    assert max(map(len, shown(curve).splitlines())) <= 80
    [plain] = costs.curves(measured())
    assert "decode_energy_per_token_mj" not in costs.record(costs.table([plain]))["curves"][0]["rows"][0]


def grid(run: Run, axis: str, values: tuple, **changes) -> Run:
    """The same run at each value of a second axis."""
    windows = tuple(replace(w, condition={**w.condition, axis: value}) for value in values for w in run.windows)
    conditions = tuple({**c, axis: value} for value in values for c in run.conditions)
    return replace(run, axes=("parallel", axis), windows=windows, conditions=conditions, **changes)


def test_formats_and_engines_of_a_grid_are_curves_of_their_own(measured) -> None:
    models = tuple({"name": "made-up-7b", "format": form, "sha256": form * 8} for form in ("q4_0", "q8_0"))
    curves = costs.curves(grid(measured(), "format", ("q8_0", "q4_0"), models=models))
    assert [(c.of_model, c.sha256) for c in curves] == [
        ("made-up-7b q8_0", "q8_0" * 8),
        ("made-up-7b q4_0", "q4_0" * 8),
    ]
    engines = costs.curves(grid(measured(), "engine", ("llama-server", "in-process")))
    assert [c.engine for c in engines] == ["llama-server", "in-process"]
    assert ["in-process" in c.told for c in engines] == [False, True]


def test_another_axis_and_unusual_settings_stand_beside_the_figures(measured) -> None:
    suite = {"question": "", "model": "made-up-7b", "server": {"context_per_slot": 4096}, "knobs": {"cpu_max_mhz": 1800},
             "request": {"answer_tokens": 64, "lengths": [32]}, "protocol": {"warm": "cold", "passes": 4}}  # fmt: skip
    [capped] = costs.curves(replace(measured(), suite=suite))
    assert capped.settings == {"context_per_slot": 4096, "warm": "cold", "cpu_max_mhz": 1800}
    assert capped.answer_tokens == 64
    assert "cpu_max_mhz 1800" in shown(capped)
    first, second = costs.curves(grid(measured(), "cache_type_k", ("f16", "q8_0")))
    assert (first.settings, first.varied) == ({"cache_type_k": "f16"}, ("cache_type_k",))
    assert first.told != second.told


def test_without_a_batch_axis_there_is_a_row_and_no_best(measured) -> None:
    run = grid(measured(batches=(1,)), "cache_type_k", ("f16", "q8_0"))
    windows = tuple(replace(w, condition={"cache_type_k": w.condition["cache_type_k"]}) for w in run.windows)
    conditions = tuple({"cache_type_k": c["cache_type_k"]} for c in run.conditions)
    run = replace(run, axes=("cache_type_k",), windows=windows, conditions=conditions)
    run = replace(run, suite={**run.suite, "server": {"parallel": 2}})
    assert [([row.batch for row in c.rows], c.best) for c in costs.curves(run)] == [([2], None)] * 2


def test_an_engine_whose_windows_leave_the_prompt_out_says_so(measured) -> None:
    engine = {"llama-bench": {"name": "llama-bench", "includes": ["decode"]}}
    suite = {"question": "", "model": "made-up-7b", "engine": "llama-bench"}
    [curve] = costs.curves(replace(measured(), engine=engine, suite=suite))
    assert curve.includes == ("decode",)
    assert "reading the prompt is not inside" in shown(curve)


def test_random_weights_have_no_cost(measured, with_basis) -> None:
    assert "random weights" in costs.why_left_out(with_basis(measured(), "synthetic"))
    assert not any(
        costs.why_left_out(with_basis(measured(), basis)) for basis in ("measured", "transcribed", "estimated")
    )


def test_what_a_machine_has_not_measured_is_transferred_and_says_from_where(measured) -> None:
    [own] = costs.curves(measured())
    table = costs.planned(costs.table([own, of("decode-batch")]), "example-m5-24gb", "Example M5")
    assert [(c.basis, c.model) for c in table.curves] == [
        ("measured", "made-up-7b"),
        ("transferred", "qwen2.5-7b-instruct"),
    ]
    taken = table.curves[1]
    assert taken.transferred_from == costs.Source(machine="apple-m5-pro-24gb", chip="Apple M5 Pro", basis="transcribed")
    assert (taken.machine, taken.chip, taken.covers) == ("example-m5-24gb", "Example M5", ("cpu", "dram", "gpu"))
    assert taken.run_id.startswith("20261025T000000Z")
    text = "\n".join(costs.text(table, 80))
    assert "Transferred from apple-m5-pro-24gb (Apple M5 Pro): transcribed energy" in text.replace("\n", " ")
    assert "There cheapest at batch 16" in text
    assert costs.record(table)["planned_for"] == "example-m5-24gb"


def test_a_transferred_figure_loses_its_interval(measured) -> None:
    [own] = costs.curves(measured())
    [taken] = costs.planned(costs.table([own]), "desk-left").curves
    assert own.rows[0].figures[costs.ENERGY].interval is not None
    assert all(f.interval is None for row in taken.rows for f in row.figures.values())
    assert "not known" in taken.no_interval


def test_an_estimate_is_never_transferred(measured, with_basis) -> None:
    [estimated] = costs.curves(with_basis(measured(), "estimated"))
    table = costs.planned(costs.table([estimated]), "example-m5-24g")
    assert table.curves == ()
    assert any("because it is estimated: made-up-7b q4_0 of example-m5-24gb" in remark for remark in table.remarks)
    assert any("did you mean 'example-m5-24gb'?" in remark for remark in table.remarks)


def test_an_own_run_keeps_others_out_unless_it_is_void(measured) -> None:
    [own] = costs.curves(measured())
    [other] = costs.curves(measured(machine_slug="other"))
    assert [c.basis for c in costs.planned(costs.table([own, other]), "other").curves] == ["measured"]
    void = replace(other, rows=(), best=None)
    assert [c.basis for c in costs.planned(costs.table([own, void]), "other").curves] == ["measured", "transferred"]


def test_yaml_is_the_record_and_a_row_is_a_line(measured) -> None:
    table = costs.table([of("decode-batch"), *costs.curves(measured())])
    text = costs.as_yaml(table)
    plain = yaml.safe_load(text)
    assert plain == yaml.safe_load(yaml.safe_dump(_plain(costs.record(table))))
    assert [curve["machine"] for curve in plain["curves"]] == ["apple-m5-pro-24gb", "example-m5-24gb"]
    assert (
        len([line for line in text.splitlines() if line.lstrip().startswith("- {batch: 16, energy_per_token_mj: 111,")])
        == 1
    )


def _plain(value):
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def test_the_order_does_not_follow_from_the_order_of_the_files(measured) -> None:
    curves = [of("decode-batch"), of("decode-batch-1.5b"), *costs.curves(measured())]
    assert costs.as_yaml(costs.table(curves)) == costs.as_yaml(costs.table(reversed(curves)))


def test_what_changed_is_told_by_machine_batch_and_figure() -> None:
    table = costs.table([of("decode-batch"), of("decode-batch-1.5b")])
    old = yaml.safe_load(costs.as_yaml(table))
    assert costs.changes(old, table) == []
    old["curves"][0]["rows"][4]["energy_per_token_mj"] = 27
    [change] = costs.changes(old, table)
    assert "apple-m5-pro-24gb qwen2.5-1.5b-instruct q4_0" in change
    assert change.endswith("batch 16: energy_per_token_mj 27 is now 26")
    old["curves"][0]["run_id"] = "before"
    assert costs.changes(old, table)[0].endswith("run before is now 20261025T000000Z-5a0d21")
    del old["curves"][0]
    assert [change.split(": ")[1] for change in costs.changes(old, table)] == ["new"]
    assert costs.changes(yaml.safe_load(costs.as_yaml(table)), costs.table([]))[0].endswith("gone")


@pytest.mark.parametrize("old", [None, 3, [], {"curves": 1}, {"curves": [1, {"rows": [None], "settings": 2}]}])
def test_what_is_no_table_is_a_table_of_nothing(old: object) -> None:
    assert any(change.endswith("new") for change in costs.changes(old, costs.table([of("decode-batch")])))


def test_text_of_others_is_only_text(measured) -> None:
    hostile = "<script>|`*\x1b[31m"
    models = ({"name": hostile, "format": "q4_0", "sha256": None},)
    [curve] = costs.curves(measured(machine_slug=hostile, models=models, suite_name=hostile, deviations=(hostile,)))
    marked = shown(curve, width=0)
    assert "<script>" not in marked
    assert r"\|" in marked
    for text in (marked, shown(curve), costs.as_yaml(costs.table([curve]))):
        assert "\x1b" not in text
    assert yaml.safe_load(costs.as_yaml(costs.table([curve])))["curves"][0]["machine"] == hostile


def test_lines_fit_80_columns(measured) -> None:
    [long] = costs.curves(measured(machine_slug="a-machine-with-quite-a-long-name-24gb"))
    for line in shown(of("decode-batch"), of("decode-batch-1.5b-long"), long).splitlines():
        assert len(line) <= 80


def test_a_name_is_broken_at_hyphens_and_words_stand_to_the_left_in_markdown(measured) -> None:
    [curve] = costs.curves(measured(machine_slug="a-machine-with-a-name-that-is-longer-than-its-column"))
    name, rest, model = shown(curve).split("-----\n", 1)[1].split("\n")[:3]
    assert (name.split()[0], rest.split()[0], model.split()[:2]) == (
        "a-machine-with-a-name-that-is-", "longer-than-its-column", ["made-up-7b", "q4_0"],
    )  # fmt: skip
    assert re.search(r"\|:-+\|:-+\|:-+\|:-+\|-+:\|", shown(curve, width=0))


def test_the_largest_batch_with_a_figure_is_not_called_the_largest_measured(measured, make_window) -> None:
    run = measured(batches=(1, 2, 4))
    void = [make_window(8, p, outcome="void", failure="it fell") for p in range(4)]
    [curve] = costs.curves(replace(run, windows=(*run.windows, *void), conditions=(*run.conditions, {"parallel": 8})))
    assert "the largest batch with a figure, so a larger one may be cheaper still" in " ".join(shown(curve).split())
