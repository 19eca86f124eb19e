from dataclasses import replace

import pytest

from pytest_joules.note import lines
from pytest_joules.records import Gate, Run, Verdict
from pytest_joules.sweep import Cell, Sweep, from_run


def verdict(**changes: object) -> Verdict:
    usual: dict[str, object] = {
        "prediction": "predictions/test_x.py::test_y",
        "claim": "Eight are cheaper than one.",
        "word": "held",
        "robustness": "clear",
        "registration": "registered",
    }
    return Verdict(**(usual | changes))


@pytest.fixture
def run(make_run, make_window) -> Run:
    windows = [
        make_window(n, p, energy_j=joules * (1.02 if p else 1.0), end_mono=110.0)
        for p in (0, 1)
        for n, joules in ((1, 137.0), (8, 280.0))
    ]
    return make_run(*windows)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1171.1, "1,171"), (100.0, "100"), (99.94, "99.9"), (40.3, "40.3"), (10.0, "10.0"), (9.62, "9.62"), (1.0, "1.00"), (0.1234, "0.123"), (0.0, "0.000"),
     (-40.26, "-40.3"), (1_234_567.0, "1,234,567")],
)  # fmt: skip
def test_figures_have_three_digits_or_more(value: float, text: str) -> None:
    assert lines.figure(value) == text


@pytest.mark.parametrize(
    ("value", "reference", "text"),
    [(255.0, 534.0, "52% less"), (100.0, 97.0, "3% more"), (97.0, 97.0, "0% more"), (1.0, 0.0, "")],
)
def test_changes_in_words(value: float, reference: float, text: str) -> None:
    assert lines.change(value, reference) == text


def test_the_heading_says_what_was_run_on_what_with_which_meter(run: Run) -> None:
    assert lines.heading(run) == [
        "Where does it stop falling?",
        "Example M5, 24 GB, ExampleOS 27. llama-server build 11669 (c1d0e7a00). made-up-7b q4_0.",
        "Measured energy of the chip (cpu) by chip at 5 Hz; 2 passes, order reversed. Run 20261025T101530Z-3fa9c1.",
    ]


def test_an_unknown_build_is_told_by_what_is_known(make_run, make_window) -> None:
    def engine(**facts: object) -> str:
        return lines.heading(make_run(make_window(), engine={"llama-server": {"name": "llama-server", **facts}}))[1]

    assert "llama-server 0.5.0-dev (0c1e570)." in engine(build=None, semver="0.5.0-dev", commit="0c1e570")
    assert ". llama-server. " in engine(build=None, semver=None, commit=None)


def test_the_table_has_the_columns_of_a_published_note(run: Run) -> None:
    shown = lines.table(from_run(run), "github")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in shown]
    assert cells[0] == ["batch", "tok/s", "tok/s per request", "W", "mJ per token", "vs batch 1", "pass spread"]
    assert cells[2:] == [
        ["1", "12.8", "12.8", "13.8", "1,081", "", "2.0%"],
        ["8", "102", "12.8", "28.3", "276", "74% less", "2.0%"],
    ]


def test_a_void_cell_says_so_and_takes_nothing_else_with_it(table) -> None:
    sweep = table({8: (40.0, 40.0)}, void={1: "out of memory"})
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines.table(sweep, "github")[2:]]
    assert cells == [["8", "400", "50.0", "16.0", "40.0", "", "0.0%"], ["1", "void", "", "", "", "", ""]]
    reversed_cells = Sweep(("parallel",), [Cell(condition={"parallel": 1}, void="out of memory"), *sweep.cells[:1]])
    assert [cell.strip() for cell in lines.table(reversed_cells, "github")[3].strip("|").split("|")][-2:] == [
        "",
        "0.0%",
    ]


def test_one_pass_has_no_spread(table) -> None:
    assert lines.table(table({1: (100.0,)}), "github")[2].rstrip("| ").endswith("100")


def test_several_axes_stand_in_the_order_of_the_table() -> None:
    cells = [Cell(condition={"parallel": 2, "format": "q4_0"}, passes=({"power_w": 1.0},))]
    shown = lines.table(Sweep(("format", "parallel"), cells), "github")
    assert [cell.strip() for cell in shown[0].strip("|").split("|")][:2] == ["format", "batch"]
    assert [cell.strip() for cell in shown[2].strip("|").split("|")][:2] == ["q4_0", "2"]
    assert "vs first" in shown[0]


def test_an_empty_table_has_its_headings(table) -> None:
    assert len(lines.table(table({}), "github")) == 2


def test_the_table_fits_a_terminal(run: Run) -> None:
    assert max(map(len, lines.table(from_run(run)))) <= 80


def test_rows_hold_plain_values(table) -> None:
    first, second = lines.rows(table({8: (40.0, 42.0)}, void={32: "out of memory"}))
    assert (first["parallel"], first["energy_per_token_mj"], first["void"]) == (8, 41.0, "")
    assert first["net_energy_per_token_mj"] is None
    assert (second["parallel"], second["energy_per_token_mj"], second["void"]) == (32, None, "out of memory")


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({}, ["HELD (clear): Eight are cheaper than one."]),
        (
            {
                "word": "refuted",
                "robustness": "narrow",
                "detail": "assert 40.0 > 30.0",
                "why_narrow": "80% of perturbed tables agree",
            },
            [
                "REFUTED (narrow): Eight are cheaper than one.",
                "    assert 40.0 > 30.0",
                "    narrow: 80% of perturbed tables agree",
            ],
        ),
        (
            {"word": "void", "robustness": "", "detail": "parallel=32: out of memory"},
            ["VOID: Eight are cheaper than one.", "    parallel=32: out of memory"],
        ),
        ({"registration": "exploratory"}, ["HELD (clear) [exploratory]: Eight are cheaper than one."]),
        (
            {"registration": "unavailable", "selected": False},
            ["HELD (clear) [unavailable, deselected]: Eight are cheaper than one."],
        ),
        ({"registration": ""}, ["HELD (clear): Eight are cheaper than one."]),
        ({"detail": "not shown where it held"}, ["HELD (clear): Eight are cheaper than one."]),
        ({"prediction": "predictions/test_x.py::test_y[8]"}, ["HELD (clear): Eight are cheaper than one. [8]"]),
    ],
)
def test_verdicts_in_words(changes: dict[str, object], shown: list[str]) -> None:
    assert list(lines.verdicts([verdict(**changes)])) == shown


def test_several_verdicts_are_counted_and_a_reason_is_told_once() -> None:
    void = {"word": "void", "robustness": "", "detail": "parallel=32: out of memory"}
    found = [
        verdict(**void),
        verdict(**void),
        verdict(robustness="narrow", why_narrow="pass 1 alone says refuted", primary=True),
    ]
    assert list(lines.verdicts(found)) == [
        "1 of 3 held, 1 narrow",
        "HELD (narrow) [primary]: Eight are cheaper than one.",
        "    narrow: pass 1 alone says refuted",
        "VOID: Eight are cheaper than one.",
        "    parallel=32: out of memory",
        "VOID: Eight are cheaper than one.",
        "    as above",
    ]


def test_limits_tell_what_speaks_against_the_figures(make_run, make_window) -> None:
    thin = Gate(
        name="sensor updates",
        outcome="flag",
        value="7 (thin)",
        limit="5 at least, 10 not to be thin",
        remedy="longer answers",
    )
    blind = Gate(name="achieved batch", outcome="not evaluable", value=None, limit="at least 95% of 8")
    passed = Gate(name="prompt cache", outcome="pass", value="0 of 48 prompt tokens from cache", limit="none")
    spread = Gate(name="pass spread", outcome="flag", value="parallel=1 5.2%", limit="5%", remedy="more passes")
    order = Gate(name="run order", outcome="not evaluable", value=None, limit="second pass higher at all")
    cold = Gate(name="power source", outcome="pass", value="mains", limit="the same throughout")
    run = make_run(
        make_window(1, 0, outcome="flagged", gates=(thin, passed)),
        make_window(1, 1, outcome="flagged", gates=(thin, blind)),
        make_window(8, 0, outcome="void", failure="llama-server died"),
        make_window(8, 1),
        make_window(1, 1, role="control", outcome="flagged", gates=(thin,)),
        gates=(spread, order, cold),
        deviations=("model m: other.gguf was used instead",),
        notes=("resumed after window 3",),
    )
    assert list(lines.limits(run, from_run(run))) == [
        "parallel=8 is void: pass 1: llama-server died",
        "sensor updates 7 (thin) (limit: 5 at least, 10 not to be thin): parallel=1 passes 1 and 2",
        "achieved batch could not be checked (limit: at least 95% of 8): parallel=1 pass 2",
        "could not be checked: run order",
        "pass spread: parallel=1 5.2% (limit: 5%); more passes",
        "deviation: model m: other.gguf was used instead",
        "resumed after window 3",
    ]


def test_the_note_is_heading_table_verdicts_and_limits_within_its_width(run: Run) -> None:
    found = [verdict(word="refuted", detail="assert 40.0 > 30.0", claim="Eight at once " + "are so much cheaper " * 6)]
    note = lines.note(run, found, width=60)
    text = "\n".join(note)
    assert text.index("Where does it") < text.index("batch") < text.index("REFUTED")
    # A table is not wrapped: its columns would no longer stand under each other.
    unwrapped = lines.table(from_run(run))
    assert [line for line in note if len(line) > 60 and line not in unwrapped] == []
    assert "Limits" not in text
    assert "Limits" in lines.note(replace(run, notes=("resumed",)), found)


def test_a_check_on_the_run_that_makes_many_verdicts_narrow_is_told_in_full_once(run: Run) -> None:
    drift = Gate(
        name="drift", outcome="flag", value="rises by 12.6% over the run", limit="2%; or chance", remedy="warm up; rest"
    )
    drifted = replace(run, gates=(drift,))
    why = f"{drift}; pass 4 alone says refuted"
    text = "\n".join(lines.note(drifted, [verdict(robustness="narrow", why_narrow=why)] * 2))
    assert text.count("    narrow: drift (see Limits); pass 4 alone says refuted") == 2
    assert text.count(str(drift)) == 1
    assert f"- {drift}" in text


def test_how_long_it_took(run: Run) -> None:
    assert lines.took(run) == "40 s"


def test_looser_limits_than_usual_are_told_and_stricter_ones_are_not() -> None:
    stricter = {
        "gates": {"uncertainty_void_above": 0.1, "thin_samples": 20},
        "require": {"min_samples": 9, "thin": "void"},
    }
    assert lines.looser(stricter) == []
    assert lines.looser({}) == []
    loose = {
        "gates": {"uncertainty_void_above": 10, "batch_void_below": 0.5, "thin_samples": 4},
        "require": {"min_samples": 2, "thin": "flag"},
    }
    assert set(lines.looser(loose)) == {
        "uncertainty_void_above 10 instead of 0.25", "batch_void_below 0.5 instead of 0.8", "thin_samples 4 instead of 10",
        "min_samples 2 instead of 5", "thin windows are flagged and not void",
    }  # fmt: skip


def test_a_check_with_a_value_of_its_own_in_every_window_takes_no_line_for_each(make_run, make_window) -> None:
    windows = [
        make_window(
            n, 0, outcome="flagged", gates=(Gate(name="answer lengths", outcome="flag", value=f"{n} %", limit="10 %"),)
        )
        for n in (1, 2, 4, 8, 16)
    ]
    run = make_run(*windows)
    told = [line for line in lines.limits(run, from_run(run)) if line.startswith("answer lengths")]
    assert told == [
        "answer lengths 1 % (limit: 10 %): parallel=1 pass 1",
        "answer lengths 2 % (limit: 10 %): parallel=2 pass 1",
        "answer lengths 4 % (limit: 10 %): parallel=4 pass 1",
        "answer lengths, the same limit, in 2 more windows, with other values",
    ]
