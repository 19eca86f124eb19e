import re
from dataclasses import replace

import pytest

from pytest_joules import verdict
from pytest_joules.note import lines
from pytest_joules.note.findings import findings, main_axis, ratios_between
from pytest_joules.records import Gate, PublishedCell, Rail, RailEnergy, RequestRecord, Run
from pytest_joules.sweep import Cell, Sweep, from_run

ANSWER = RequestRecord(
    slot=0, round=0, sent_s=0.0, received_s=1.0, prompt_n=20, cache_n=0, predicted_n=128, prompt_ms=1.0, predicted_ms=1.0,
    stop_type="limit",
)  # fmt: skip


@pytest.fixture
def curve(make_run, make_window):
    """A run over batch from mJ per token and tok/s of each pass."""

    def build(energy: dict[int, tuple[float, ...]], speed: dict[int, float], **changes: object) -> Run:
        windows = [
            make_window(n, p, energy_j=mj * 128 * n / 1000, end_mono=100.0 + 128 * n / speed[n])
            for n, passes in energy.items()
            for p, mj in enumerate(passes)
        ]
        return make_run(*windows, **changes)

    return build


KNEE = {1: (530.0, 538.0), 8: (136.0, 138.0), 16: (110.0, 112.0), 32: (127.0, 129.0)}
SPEED = {1: 55.6, 8: 293.2, 16: 338.8, 32: 322.7}


def texts(run: Run) -> list[str]:
    return [str(finding) for finding in findings(run)]


def test_a_knee_is_told_with_its_saving_its_penalty_and_what_a_request_gives_up(curve) -> None:
    assert texts(curve(KNEE, SPEED)) == [
        "Energy per token is lowest at batch 16, 111 mJ, 79% less than at 1. [clear]",
        "At the far end, batch 32, a token costs 15% more than at 16. [clear]",
        "Total speed is highest at batch 16, 339 tok/s. [clear]",
        "A request at batch 16, where a token costs least, runs at 21.2 tok/s, 38% of the 55.6 it has at 1. [clear]",
        "Power is lowest at batch 1, 29.7 W, and highest at 32, 41.3 W. [narrow: 91% of perturbed tables agree]",
    ]


def test_a_curve_that_still_falls_is_not_called_a_minimum_without_saying_so(curve) -> None:
    falling = curve({1: (500.0, 505.0), 2: (260.0, 262.0), 4: (140.0, 141.0)}, {1: 50.0, 2: 90.0, 4: 150.0})
    assert "It was still falling at the end of what was asked, by 46% from 2 to 4. [clear]" in texts(falling)


def test_what_the_noise_could_have_made_is_narrow(curve) -> None:
    level = curve({8: (112.0, 109.0), 16: (110.0, 111.0)}, {8: 300.0, 16: 301.0})
    least = next(f for f in findings(level) if "lowest" in f.text and "Energy" in f.text)
    assert least.sure == "narrow"
    assert "of perturbed tables agree" in least.why or "alone says" in least.why


def test_drift_makes_every_finding_narrow(curve) -> None:
    drift = Gate(name="drift", outcome="flag", value="rises by 6%", limit="2%")
    told = [f for f in findings(curve(KNEE, SPEED, gates=(drift,))) if f.sure]
    assert told
    assert all(f.sure == "narrow" and "drift" in f.why for f in told)


def test_a_void_condition_is_left_out_and_said_to_be(curve, make_window) -> None:
    run = curve(KNEE, SPEED)
    spoiled = tuple(
        replace(w, outcome="void", failure="out of memory") if w.condition["parallel"] == 32 else w for w in run.windows
    )
    told = texts(replace(run, windows=spoiled))
    assert told[0].startswith(
        "Energy per token is lowest at batch 16, 111 mJ, 79% less than at 1, of the 3 of 4 conditions with a figure."
    )
    assert not any("32" in text for text in told)


def test_nothing_is_found_in_a_table_that_is_void_altogether(curve) -> None:
    frozen = Gate(name="meter follows the load", outcome="void", value="30 W and 30 W", limit="a rise of 5%")
    assert findings(curve(KNEE, SPEED, gates=(frozen,))) == []


def test_an_estimate_is_called_one_and_its_power_is_no_finding(curve) -> None:
    run = curve(KNEE, SPEED)
    told = texts(replace(run, meter=replace(run.meter, basis="estimated")))
    assert "111 mJ (estimated)" in told[0]
    assert not any(text.startswith("Power") for text in told)


def test_the_share_of_the_wall_is_told_where_both_were_read(curve) -> None:
    run = curve({1: (500.0, 500.0)}, {1: 50.0})
    wall = Rail(
        name="plug",
        scope="wall",
        covers=("wall",),
        kind="instant",
        basis="measured",
        unit="W",
        source="made up",
        role="check",
    )
    windows = tuple(
        replace(
            w,
            rails=(
                RailEnergy(
                    rail="plug",
                    energy_j=2.0 * w.energy_j,
                    uncertainty_j=1.0,
                    updates=9,
                    refresh_s=1.0,
                    longest_gap_s=1.0,
                ),
            ),
        )
        for w in run.windows
    )
    told = texts(replace(run, windows=windows, meter=replace(run.meter, rails=(*run.meter.rails, wall))))
    assert "The chip took 50% to 50% of what the wall took in the same windows." in told


def test_tools_are_compared_at_equal_conditions_with_a_range() -> None:
    def cell(engine: str, n: int, energy: tuple[float, float]) -> Cell:
        passes = tuple({"energy_per_token_mj": e, "tokens_per_s": 10.0 * n} for e in energy)
        return Cell(condition={"engine": engine, "parallel": n}, passes=passes)

    sweep = Sweep(
        ("engine", "parallel"),
        [cell("a", 1, (100, 101)), cell("a", 8, (50, 51)), cell("b", 1, (104, 105)), cell("b", 8, (50, 50.5))],
    )
    (one, eight) = ratios_between(sweep, "energy_per_token_mj", "engine", "a", "b")
    assert one[0] == {"parallel": 1}
    assert one[1] == pytest.approx(209 / 201)
    assert one[2] < one[1] < one[3]
    assert eight[1] == pytest.approx(100.5 / 101)


def test_batch_is_looked_along_before_other_numbers_and_numbers_before_words() -> None:
    def axes(*names: str) -> Sweep:
        values = {"engine": "a", "parallel": 1, "answer_tokens": 64}
        return Sweep(names, [Cell(condition={name: values[name] for name in names})])

    assert main_axis(axes("answer_tokens", "parallel")) == "parallel"
    assert main_axis(axes("engine", "answer_tokens")) == "answer_tokens"
    assert main_axis(axes("engine")) == "engine"
    assert main_axis(Sweep((), [])) is None


def test_a_saving_is_told_as_it_was_printed_and_not_worked_out_from_rounded_figures(make_run) -> None:
    def cell(n: int, mj: float, change: str = "") -> PublishedCell:
        figures = {"energy_per_token_mj": mj, "tokens_per_s": 100.0 * n}
        return PublishedCell(
            condition={"parallel": n}, figures=figures, spreads={"energy_per_token_mj": 0.01}, change=change
        )

    run = make_run(
        published=(cell(1, 97.0), cell(16, 26.0, "74% less")), conditions=({"parallel": 1}, {"parallel": 16})
    )
    assert texts(run)[0].startswith("Energy per token is lowest at batch 16, 26.0 mJ, 74% less than at 1.")


def test_a_void_end_is_not_called_the_end_of_what_was_asked(curve) -> None:
    run = curve({1: (500.0, 505.0), 2: (260.0, 262.0), 4: (140.0, 141.0)}, {1: 50.0, 2: 90.0, 4: 150.0})
    spoiled = tuple(
        replace(w, outcome="void", failure="out of memory") if w.condition["parallel"] == 4 else w for w in run.windows
    )
    told = texts(replace(run, windows=spoiled))
    assert not any("end of what was asked" in text for text in told)
    assert any(
        text.startswith("It was still falling at batch 2, the last with a figure, by 48% from 1 to 2") for text in told
    )


def test_what_is_less_likely_than_not_is_called_not_shown(curve) -> None:
    level = curve(dict.fromkeys((1, 2, 4, 8), (100.0, 100.0)), dict.fromkeys((1, 2, 4, 8), 100.0))
    least, fastest, *others = texts(level)
    assert re.fullmatch(
        r"Not shown, since only \d+% of perturbed tables agree: energy per token is lowest at batch 1, .*", least
    )
    assert re.fullmatch(
        r"Not shown, since only \d+% of perturbed tables agree: total speed is highest at batch 8, .*", fastest
    )
    assert not any("far end" in text or "falling" in text for text in others)


def test_a_grid_is_told_by_its_least_condition_of_all_first(make_run, make_window) -> None:
    windows = [
        make_window(n, p, condition={"engine": engine, "parallel": n}, energy_j=joules * n)
        for p in (0, 1)
        for engine, one, eight in (("a", 70.0, 30.0), ("b", 60.0, 25.0))
        for n, joules in ((1, one), (8, eight))
    ]
    conditions = tuple({"engine": e, "parallel": n} for e in ("a", "b") for n in (1, 8))
    told = texts(make_run(*windows, axes=("engine", "parallel"), conditions=conditions))
    assert told[0].startswith("Of all conditions energy per token is lowest at engine=b, parallel=8, 195 mJ.")
    assert any(text.startswith("b over a, energy per token") for text in told)


def engines_run(make_run, make_window) -> Run:
    """A server at 40 mJ per token, 30 of it decoding, and a benchmark whose windows are all decode, at 30; answers of two lengths."""
    windows = [
        make_window(
            1, p, condition={"engine": engine}, role=role, answer_tokens=n, tokens=n, energy_j=(prompt_j + 0.03 * n) * times,
            requests=(ANSWER,),
        )
        for engine, prompt_j in (("llama-server", 1.28), ("llama-bench", 0.0))
        for p, times in enumerate((1.0, 1.01))
        for role, n in (("measured", 128), ("length", 32))
    ]  # fmt: skip
    facts = {"llama-server": {"includes": ["prefill", "decode"]}, "llama-bench": {"includes": ["decode"]}}
    conditions = tuple({"engine": name} for name in facts)
    return replace(make_run(), windows=tuple(windows), passes=2, axes=("engine",), conditions=conditions, engine=facts)


def test_windows_without_a_prompt_are_held_against_decoding_alone(make_run, make_window) -> None:
    told = texts(engines_run(make_run, make_window))
    assert any(t.startswith("The windows of llama-bench hold no prompt") for t in told)
    [ratio] = [t for t in told if "over llama-server" in t]
    assert ratio.startswith("llama-bench over llama-server, energy per decoded token")
    assert "the only condition 1.000 (" in ratio
    assert not any("is lowest" in t for t in told)
    headers, rows = lines.cells(from_run(engines_run(make_run, make_window)))
    assert headers[3:] == ["mJ per decode token", "mJ per token", "vs engine llama-server", "pass spread"]
    assert [row[-2] for row in rows] == ["", "unlike"]


def test_a_flag_of_a_window_of_another_length_is_told_and_makes_decode_verdicts_narrow(make_run, make_window) -> None:
    run = engines_run(make_run, make_window)
    busy = Gate(name="other load", outcome="flag", value="72% of a core", limit="10%")
    windows = [replace(w, outcome="flagged", gates=(busy,)) if w.role == "length" else w for w in run.windows]
    run = replace(run, windows=tuple(windows))
    said = list(lines.limits(run, from_run(run)))
    assert "other load 72% of a core (limit: 10%): engine=llama-server, answers of 32 passes 1 and 2" in " ".join(said)
    assert verdict.effects(run, {"decode_energy_per_token_mj"}) == ["other load in some windows"]
    assert verdict.effects(run, {"energy_per_token_mj"}) == []
