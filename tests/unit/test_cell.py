"""Cells: totals and their basis, ranges, what is not known, and files that are not as they should be."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_joules import cellfile, store
from pytest_joules.cell import (
    BASES,
    Cell,
    Curve,
    Link,
    Modules,
    Overhead,
    Quantity,
    compose,
    exactly,
    held,
    plant,
    product,
    ratio,
    scaled,
    serve,
    total,
    unknown,
    unlike,
    wall,
    worst,
)
from pytest_joules.errors import UsageError
from pytest_joules.queueing import Load, Policy
from pytest_joules.records import Basis, Gate

REPOSITORY = Path(__file__).parents[2]


def q(low: float, high: float | None = None, basis: Basis = "measured") -> Quantity:
    return Quantity(low=low, high=low if high is None else high, basis=basis, sources=(f"{low} {basis}",))


def decode(**changes: object) -> Modules:
    usual: dict[str, object] = {
        "name": "decode",
        "does": "decode",
        "count": 6,
        "slots": 8,
        "tokens_per_s": q(200.0),
        "tokens_per_s_per_request": q(25.0),
        "power_w": q(40.0),
        "idle_power_w": q(10.0),
        "curve": Curve(
            tokens_per_s={1: q(60.0), 8: q(200.0)},
            tokens_per_s_per_request={1: q(60.0), 8: q(25.0)},
            power_w={1: q(30.0), 8: q(40.0)},
        ),
    }
    return Modules(**(usual | changes))  # type: ignore[arg-type]


def cell(**changes: object) -> Cell:
    usual: dict[str, object] = {"name": "made up", "modules": (decode(),), "floor": 20.0}
    return Cell(**(usual | changes))  # type: ignore[arg-type]


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Cell]:
    """The cell of a file's text; runs are looked up in the repository's results."""

    def write(text: str) -> Cell:
        path = tmp_path / "c.yaml"
        path.write_text(text)
        return cellfile.load(path, store.Store(REPOSITORY / "results"))[0]

    return write


@pytest.fixture
def refused(written) -> Callable[[str], str]:
    def refuse(text: str) -> str:
        with pytest.raises(UsageError) as caught:
            written(text)
        return str(caught.value)

    return refuse


def kept(name: str) -> Cell:
    return cellfile.load(REPOSITORY / "cells" / f"{name}.yaml", store.Store(REPOSITORY / "results"))[0]


@given(st.lists(st.sampled_from(BASES), min_size=1, max_size=5))
def test_a_total_is_as_good_as_the_worst_in_it(bases: list[Basis]) -> None:
    found = total([q(1.0, basis=basis) for basis in bases])
    assert found.low == len(bases)
    assert found.basis == worst(bases) == max(bases, key=BASES.index)


@pytest.mark.parametrize("of", [total, lambda of: product(*of), lambda of: ratio(*of, "x")])
def test_what_is_not_known_is_not_0(of: Callable[[list[Quantity]], Quantity]) -> None:
    found = of([q(3.0), unknown("the other one")])
    assert not found.known
    assert found.basis == "placeholder"
    assert found.needs == ("the other one",)
    assert found.sources == ("3.0 measured",)


def test_nothing_is_divided_by_what_may_be_0() -> None:
    found = ratio(q(3.0), q(0.0, 2.0), "tokens per s")
    assert not found.known
    assert found.needs == ("tokens per s: a figure that cannot be 0",)


ENDS = st.tuples(st.floats(0.1, 1e4), st.floats(0.1, 1e4)).map(sorted)


@settings(max_examples=60, deadline=None)
@given(st.tuples(ENDS, ENDS, ENDS), st.tuples(st.floats(0.01, 0.2), st.floats(0.2, 0.6)), st.data())
def test_whatever_lies_in_the_ranges_gives_totals_in_the_ranges(
    ranges: tuple[list[float], ...], shares: tuple[float, float], data: st.DataObject
) -> None:
    def made(pick: Callable[[float, float], Quantity]) -> Cell:
        (speed, power, host), (share_low, share_high) = ranges, shares
        return cell(
            modules=(decode(tokens_per_s=pick(*speed), power_w=pick(*power)),),
            overheads=(
                Overhead(name="host", per="module", power_w=pick(*host)),
                Overhead(name="supplies", per="cell", share=pick(share_low, share_high)),
                Overhead(name="switch", per="row", power_w=pick(*host)),
                Overhead(name="feed", per="row", share=pick(share_low, share_high)),
            ),
            answer_tokens=q(100.0),
            correct_share=q(0.5),
            cells=3,
        )

    whole = compose(made(q))
    one = compose(made(lambda low, high: q(data.draw(st.floats(low, high)))))
    for of, in_whole in ((one.totals, whole.totals), (one.row, whole.row)):
        assert of is not None
        for name in ("tokens_per_s", "power_w", "energy_per_token_mj", "energy_per_correct_j", "chip_share"):
            low, high = getattr(in_whole, name).ends
            drawn, _ = getattr(of, name).ends
            assert low * (1 - 1e-9) <= drawn <= high * (1 + 1e-9), name


def test_a_cell_by_hand() -> None:
    sheet = compose(
        cell(
            modules=(decode(), Modules(name="prefill", does="prefill", count=1, power_w=q(60.0))),
            overheads=(
                Overhead(name="host", per="cell", power_w=q(50.0)),
                Overhead(name="idle", per="module", power_w=q(10.0)),
                Overhead(name="supplies", per="cell", share=q(0.2)),
            ),
            answer_tokens=q(120.0),
            correct_share=q(0.75),
            cells=100,
        )
    )
    totals, row = sheet.totals, sheet.row
    assert totals.tokens_per_s.ends == pytest.approx((1200.0,) * 2)
    assert totals.modules_w.ends == pytest.approx((300.0,) * 2)
    assert totals.power_w.ends == pytest.approx(((300.0 + 50.0 + 70.0) / 0.8,) * 2)
    assert totals.energy_per_token_mj.ends == pytest.approx((525.0 / 1200 * 1000,) * 2)
    assert totals.energy_per_correct_j.ends == pytest.approx((525.0 / 1200 * 120 / 0.75,) * 2)
    assert totals.chip_share.ends == pytest.approx((300.0 / 525.0,) * 2)
    assert totals.requests_held.ends == (48.0, 48.0)
    assert row is not None
    assert row.power_w.ends == pytest.approx((52500.0,) * 2)
    assert row.energy_per_correct_j.ends == totals.energy_per_correct_j.ends
    assert row.chip_share == totals.chip_share


def test_a_missing_overhead_leaves_the_wall_unknown_and_the_chips_known() -> None:
    totals = compose(cell(overheads=(Overhead(name="fans", per="cell", power_w=unknown("fans")),))).totals
    assert totals.modules_w.ends == (240.0, 240.0)
    for missing in (totals.power_w, totals.energy_per_token_mj, totals.chip_share):
        assert not missing.known
        assert missing.needs == ("fans",)


def test_graded_modules_say_how_many_answers_are_correct() -> None:
    """40 W at 80 J for a correct answer are one in 2 s, of six modules three in a second."""
    beside = (Overhead(name="host", per="cell", power_w=q(60.0)),)
    totals = compose(cell(modules=(decode(energy_per_correct_j=q(80.0)),), overheads=beside)).totals
    assert totals.energy_per_correct_j.ends == pytest.approx(((6 * 40.0 + 60.0) / 3.0,) * 2)


def test_what_is_in_anothers_figures_adds_nothing() -> None:
    sheet = compose(cell(overheads=(Overhead(name="host", per="cell", inside="the decode modules"),)))
    assert sheet.totals.power_w.ends == (240.0, 240.0)
    assert any("in the figures of the decode modules" in row.remark for part in sheet.parts for row in part.rows)


def test_modules_that_are_measured_at_the_wall_have_no_share_of_it() -> None:
    assert not compose(cell(modules=(decode(scope="wall"),))).totals.chip_share.known


@pytest.mark.parametrize(("floor", "holds"), [(60.0, 1), (61.0, 0), (25.0, 8), (26.0, 1)])
def test_a_module_holds_the_largest_batch_measured_at_the_floor(floor: float, holds: int) -> None:
    assert held(decode(), floor)[0].ends == (holds, holds)


def test_a_module_holds_no_more_than_its_slots() -> None:
    assert held(decode(slots=1), 25.0)[0].ends == (1.0, 1.0)


def test_a_floor_that_full_load_does_not_keep_is_told_of() -> None:
    assert "under the floor of 30" in compose(cell(floor=30.0)).remarks[0]
    assert not compose(cell(floor=25.0)).remarks


def test_without_a_curve_nobody_knows_how_many_requests_are_held() -> None:
    assert compose(cell(modules=(decode(curve=None),))).totals.requests_held.needs == (
        "decode: speed per request at several batches",
    )


def test_the_published_cell_comes_out_as_published() -> None:
    published = kept("published")
    sheet = compose(published)
    assert sheet.totals.tokens_per_s.ends == pytest.approx((1150.0,) * 2)
    assert sheet.totals.tokens_per_s.basis == "transcribed"
    assert sheet.totals.energy_per_correct_j.ends == pytest.approx((140.0,) * 2)
    # The page says itself that a placeholder is in the 140 J.
    assert sheet.totals.energy_per_correct_j.basis == "placeholder"
    assert published.stated["energy_per_correct_j"].ends == (140.0, 140.0)
    assert published.stated["energy_per_correct_j"].basis == "transcribed"
    assert published.decode[0].energy_per_correct_j == replace(
        exactly(111.3, "transcribed", ""), sources=published.decode[0].energy_per_correct_j.sources
    )
    assert sum(one.count for one in published.decode) == 6
    assert sum(one.count for one in published.prefill) == 1
    assert sheet.row is not None
    assert sheet.row.tokens_per_s.ends == pytest.approx((115_000.0,) * 2)
    assert sheet.row.energy_per_correct_j.ends == pytest.approx((140.0,) * 2)
    assert not sheet.totals.power_w.known


def test_a_cell_of_a_transcribed_run() -> None:
    sheet = compose(kept("six-decode-one-prefill"))
    assert sheet.totals.tokens_per_s.ends == pytest.approx((6 * 338.8,) * 2)
    assert sheet.totals.tokens_per_s.basis == "transcribed"
    assert sheet.totals.power_w.basis == "placeholder"
    assert sheet.totals.requests_held.ends == (96.0, 96.0)
    assert not sheet.totals.energy_per_correct_j.known
    assert any("share of correct answers" in need for need in sheet.needs)


def test_an_estimate_is_never_called_measured() -> None:
    sheet = compose(kept("quickstart"))
    assert sheet.totals.tokens_per_s.basis == "measured"
    for of_energy in (sheet.totals.modules_w, sheet.totals.power_w, sheet.totals.energy_per_token_mj):
        assert of_energy.basis == "estimated"


def test_a_file_can_make_a_basis_worse_and_not_better(written) -> None:
    text = """
name: of another machine
modules:
  - {name: d, does: decode, run: quickstart@amd-epyc-24gb, condition: {parallel: 4}, basis: BASIS, because: it is another one}
"""
    transferred = written(text.replace("BASIS", "transferred")).decode[0]
    assert (transferred.tokens_per_s.basis, transferred.power_w.basis) == ("transferred", "estimated")
    assert "it is another one" in transferred.power_w.sources
    assert written(text.replace("BASIS", "measured")).decode[0].power_w.basis == "estimated"


def test_random_weights_have_a_speed_and_a_synthetic_energy(tmp_path, make_run, make_window) -> None:
    made = make_run(make_window(1), make_window(8))
    made = replace(made, meter=replace(made.meter, basis="synthetic"), suite={**made.suite, "server": {"parallel": 1}})
    store.Store(tmp_path / "results").write(made, ())
    path = tmp_path / "c.yaml"
    path.write_text(f"name: c\nmodules: [{{name: d, does: decode, run: {made.run_id}, condition: {{parallel: 8}}}}]\n")
    modules = cellfile.load(path, store.Store(tmp_path / "results"))[0].decode[0]
    assert modules.tokens_per_s.basis == "measured"
    assert modules.power_w.basis == "synthetic"


def test_a_void_condition_is_a_placeholder_with_its_reason(tmp_path, make_run, make_window) -> None:
    frozen = Gate(name="meter frozen", outcome="void", value="yes", limit="no")
    made = make_run(make_window(1), make_window(8, outcome="void", gates=(frozen,)))
    made = replace(made, suite={**made.suite, "server": {"parallel": 1}})
    store.Store(tmp_path / "results").write(made, ())
    path = tmp_path / "c.yaml"
    path.write_text(f"name: c\nmodules: [{{name: d, does: decode, run: {made.run_id}, condition: {{parallel: 8}}}}]\n")
    modules = cellfile.load(path, store.Store(tmp_path / "results"))[0].decode[0]
    assert not modules.power_w.known
    assert "meter frozen" in modules.power_w.needs[0]


def test_an_overhead_that_the_file_does_not_name_is_not_0(written) -> None:
    text = "name: c\nmodules: [{name: d, does: decode, run: quickstart@amd-epyc-24gb, condition: {parallel: 4}}]\n"
    sheet = compose(written(text))
    assert not sheet.totals.power_w.known
    assert [need.split(":")[0] for need in sheet.totals.power_w.needs] == ["host", "supplies", "fans", "idle"]
    named = "overheads: [{name: Host, inside: d}, {name: the rest, covers: [fans, idle], inside: d}, {name: supplies, inside: d}]\n"
    assert compose(written(text + named)).totals.power_w.known


@pytest.mark.parametrize(
    "overhead",
    [
        "name: ghost fanatics supplieser idler",
        "name: 'enclosure without host, fans, supplies or idle'",
        "name: 'host, supplies, fans and idle', covers: []",
        "name: everything, covers: [host, supplies, fans, idle], per: row",
    ],
)
def test_a_name_that_only_mentions_an_overhead_covers_none(written, overhead: str) -> None:
    text = f"{OVER}  - {{{overhead}, power_w: {{value: 1, basis: measured, source: s}}}}\n"
    totals = compose(written(text)).totals
    assert not totals.power_w.known
    assert "host: power, or share of the wall; no overhead is named host or covers it" in totals.power_w.needs
    assert len(totals.power_w.needs) == 4


WALL = "name: c\nmodules:\n  - {name: d, does: decode, scope: wall, power_w: {value: 10, basis: measured, source: s}}\n"


def test_modules_at_the_wall_have_their_overheads_in_them(written, refused) -> None:
    assert compose(written(WALL)).totals.power_w.ends == (10.0, 10.0)
    host = "overheads:\n  - {name: host, power_w: {value: 5, basis: measured, source: s}}\n"
    assert "c.yaml:5: overheads.1: the modules' power is that at the wall and has host in it" in refused(WALL + host)
    switch = host.replace("name: host", "name: switch")
    assert compose(written(WALL + switch)).totals.power_w.ends == (15.0, 15.0)


def test_modules_at_the_wall_and_under_it_make_no_wall_together(written) -> None:
    mixed = WALL + "  - {name: e, does: decode, power_w: {value: 10, basis: measured, source: s}}\n"
    whole = "overheads: [{name: all, covers: [host, supplies, fans, idle], power_w: {value: 5, basis: measured, source: s}}]\n"
    totals = compose(written(mixed + whole)).totals
    assert totals.modules_w.ends == (20.0, 20.0)
    assert not totals.power_w.known
    assert "e: power at the wall" in totals.power_w.needs[0]


def test_a_void_condition_between_two_others_is_bridged_as_a_placeholder_only(tmp_path, make_run, make_window) -> None:
    frozen = Gate(name="meter frozen", outcome="void", value="yes", limit="no")
    made = make_run(make_window(1), make_window(4, outcome="void", gates=(frozen,)), make_window(8))
    made = replace(made, suite={**made.suite, "server": {"parallel": 1}})
    store.Store(tmp_path / "results").write(made, ())
    path = tmp_path / "c.yaml"
    path.write_text(f"name: c\nmodules: [{{name: d, does: decode, run: {made.run_id}, condition: {{parallel: 8}}}}]\n")
    found = cellfile.load(path, store.Store(tmp_path / "results"))[0]
    assert any("parallel=4 is void: pass 1: meter frozen" in remark for remark in compose(found).remarks)
    served = serve(found, replace(LOAD, requests_per_s=0.1), Policy())
    assert served.times.basis == served.of_capacity.basis == "placeholder"
    assert "parallel=4 is void" in served.times.needs[0]
    assert not compose(found).totals.modules_most_w.known


def test_what_no_window_can_have_is_in_no_sheet(tmp_path, make_run, make_window) -> None:
    made = make_run(make_window(1), replace(make_window(8), energy_j=-5.0))
    made = replace(made, suite={**made.suite, "server": {"parallel": 1}})
    store.Store(tmp_path / "results").write(made, ())
    path = tmp_path / "c.yaml"
    path.write_text(f"name: c\nmodules: [{{name: d, does: decode, run: {made.run_id}, condition: {{parallel: 8}}}}]\n")
    assert not compose(cellfile.load(path, store.Store(tmp_path / "results"))[0]).totals.modules_w.known


def test_a_sheet_says_how_noisy_its_runs_are_and_what_they_ran() -> None:
    sheet = compose(kept("quickstart"))
    assert "virtual machine: energy per token differs by up to 14.9% between passes" in sheet.remarks
    assert "virtual machine: flagged: pass spread" in sheet.remarks
    assert "smollm2-135m-instruct q4_1" in sheet.sources[0]
    assert any("deviation: format: q4_k_m" in remark for remark in compose(kept("six-decode-one-prefill")).remarks)


def test_energy_per_token_of_a_module_is_that_of_the_table(written) -> None:
    sheet = compose(written(BASE.replace("parallel: 4", "parallel: 8")))
    [row] = [row for row in sheet.parts[0].rows if row.key == "energy_per_token_mj"]
    module = sheet.cell.decode[0]
    assert row.value is not None
    assert round(row.value.ends[0], 1) == 27.3
    assert round(1000 * module.power_w.ends[0] / module.tokens_per_s.ends[0], 1) == 27.2


def test_supplies_are_sized_by_the_most_and_not_by_full_load() -> None:
    hungry = replace(
        decode().curve, power_w={1: q(30.0), 2: q(50.0), 8: q(40.0)}, tokens_per_s={1: q(60.0), 2: q(90.0), 8: q(200.0)}
    )
    beside = (Overhead(name="host", per="cell", power_w=q(50.0)), Overhead(name="supplies", per="cell", share=q(0.2)))
    sheet = compose(cell(modules=(decode(curve=hungry),), overheads=beside, cells=2))
    assert sheet.totals.modules_most_w.ends == (300.0, 300.0)
    assert sheet.totals.most_w.ends == pytest.approx((350.0 / 0.8,) * 2)
    assert sheet.row is not None
    assert sheet.row.most_w.ends == pytest.approx((700.0 / 0.8,) * 2)
    assert [row.key for row in sheet.parts[1].rows if row.quantity == "  the most, at fewer requests"] == [
        "modules_most_w",
        "most_w",
    ]
    assert not any(row.key == "most_w" for part in compose(cell()).parts for row in part.rows)


def test_stated_figures_that_contradict_each_other_are_told_of() -> None:
    graded = decode(energy_per_correct_j=q(80.0))
    [said] = compose(cell(modules=(graded,), answer_tokens=q(120.0), correct_share=q(0.75))).remarks
    assert said.startswith("decode: its power and speed make 32 J per correct answer")
    assert not compose(
        cell(modules=(decode(energy_per_correct_j=q(32.5)),), answer_tokens=q(120.0), correct_share=q(0.75))
    ).remarks
    assert (
        "power_w is not what its curve has at 8 at once" in compose(cell(modules=(decode(power_w=q(60.0)),))).remarks[0]
    )
    apart = decode(curve=None, tokens_per_s_per_request=q(60.0))
    assert "tokens_per_s is not tokens_per_s_per_request times 8" in compose(cell(modules=(apart,))).remarks[0]


def test_the_load_says_how_long_an_answer_is_where_nothing_else_does(written) -> None:
    assert "tokens of an answer" in compose(written(BASE)).needs
    assert "tokens of an answer" not in compose(written(BASE + "load: {answer_tokens: 64}\n")).needs


@pytest.mark.parametrize(
    ("answers", "prompts", "told"), [(64.0, 0.0, 0), (70.0, 0.0, 0), (400.0, 0.0, 1), (400.0, 900.0, 1)]
)
def test_requests_unlike_the_measured_ones_are_told_of(answers: float, prompts: float, told: int) -> None:
    said = list(unlike(kept("quickstart"), answers, prompts))
    assert len(said) == told
    assert all("measured with answers of 64 tokens, simulated with 400" in one for one in said)
    beside = replace(
        kept("quickstart"), modules=(*kept("quickstart").modules, Modules(name="p", does="prefill", count=1))
    )
    assert any("prompts of 25 tokens, simulated with 900" in one for one in unlike(beside, 64.0, 900.0))


def test_a_stated_curve_stands_in_for_a_run(written) -> None:
    found = written("""
name: c
modules:
  - name: d
    does: decode
    curve: {parallel: [1, 8], tokens_per_s: [60, 200], power_w: [30, 40], basis: measured, source: a notebook}
    idle_power_w: {value: 10, basis: measured, source: a notebook}
""").decode[0]
    assert found.slots == 8
    assert found.tokens_per_s.ends == (200.0, 200.0)
    assert found.tokens_per_s_per_request.ends == (25.0, 25.0)
    assert found.power_w.ends == (40.0, 40.0)


BASE = "name: c\nmodules:\n  - {name: d, does: decode, run: quickstart@amd-epyc-24gb, condition: {parallel: 4}}\n"
OVER = BASE + "overheads:\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- 1\n", "c.yaml:1: a cell is a mapping with at least name and modules"),
        ("name: c\n", "c.yaml:1: cell: modules is missing"),
        ("name: c\nmodules: []\n", "c.yaml:2: modules: none of them does decode"),
        (BASE.replace("name: d", "nmae: d"), "c.yaml:3: modules.1.nmae: there is no such key; did you mean 'name'?"),
        (BASE.replace("decode,", "decoding,"), "c.yaml:3: modules.1.does: should be 'decode' or 'prefill', not 'decoding'"),
        (BASE.replace("parallel: 4", "parallel: 3"), "has no condition parallel=3; it has parallel=1; parallel=2"),
        (BASE.replace("quickstart@", "nothing@"), "c.yaml:3: modules.1.run: there is no complete run of 'nothing' on 'amd-epyc-24gb'"),
        (BASE.replace("quickstart@amd-epyc-24gb", "x"), "c.yaml:3: modules.1.run: there is no run or suite 'x'"),
        (BASE.replace("run:", "basis: transferred, run:"), "c.yaml:3: modules.1: basis and because"),
        (BASE.replace("run:", "count: 0, run:"), "c.yaml:3: modules.1.count: should be greater than 0, not 0"),
        (BASE + "  - {name: d, does: prefill}\n", "c.yaml:4: modules.2: there are 'd' modules already"),
        (BASE + "  - {name: p, does: prefill, slots: 4}\n", "c.yaml:4: modules.2.slots: it is for modules that decode"),
        (
            BASE.replace("run:", "power_w: {value: 1, basis: measured, source: s}, run:"),
            "c.yaml:3: modules.1.power_w: the run says it; remove one of them",
        ),
        (
            BASE.replace("run:", "idle_power_w: {value: 1, basis: measured, source: s}, run:"),
            "c.yaml:3: modules.1.idle_power_w: run 20261129T235420Z-f37884 says it; remove it",
        ),
        (OVER + "  - {name: host}\n", "c.yaml:5: overheads.1: give one of power_w, share, energy_per_correct_j and inside; it has none"),
        (OVER + "  - {name: host, power_w: {value: 1, basis: measured}}\n", "c.yaml:5: overheads.1.power_w: a figure has a source"),
        (OVER + "  - {name: host, power_w: {basis: measured, source: s}}\n", "only a placeholder may have no figure"),
        (OVER + "  - {name: host, power_w: {basis: placeholder}}\n", "says what is to be measured in its place; give needs"),
        (OVER + "  - {name: host, power_w: {low: 3, high: 2, basis: measured, source: s}}\n", "low 3 is over high 2"),
        (OVER + "  - {name: host, power_w: {low: 3, basis: measured, source: s}}\n", "give value, or low and high"),
        (OVER + "  - {name: host, power_w: {value: -1, basis: measured, source: s}}\n", "should be greater than or equal to 0"),
        (OVER + "  - {name: host, power_w: {value: 1, basis: good, source: s}}\n", "overheads.1.power_w.basis: should be 'measured'"),
        (OVER + "  - {name: host, share: {value: 1.2, basis: measured, source: s}}\n", "a share is 1 at most"),
        (OVER + "  - {name: host, count: 2, share: {value: 0.5, basis: measured, source: s}}\n", "come to 1, which leaves nothing"),
        (OVER + "  - {name: host, per: module, share: {value: 0.1, basis: measured, source: s}}\n", "a share is of the wall of"),
        (BASE + "load: {requests_per_s: [0]}\n", "c.yaml:4: load.requests_per_s.1: should be greater than 0"),
        (BASE + "extends: nowhere\n", "c.yaml:4: extends: there is no cell 'nowhere' beside this one"),
    ],
)  # fmt: skip
def test_a_fault_is_told_with_its_line_and_key(refused, text: str, said: str) -> None:
    assert said in refused(text)


def test_every_fault_is_told_at_once(refused) -> None:
    assert len(refused(OVER + "  - {name: host}\n  - {name: fans}\n").splitlines()) == 2


def test_what_cannot_be_simulated_says_what_is_missing() -> None:
    prefill = Modules(name="prefill", does="prefill", count=1, prompt_tokens_per_s=unknown("how fast"))
    with pytest.raises(UsageError, match="without prompt_tokens_per_s of prefill: how fast"):
        plant(cell(modules=(decode(), prefill)), "slow")
    with pytest.raises(UsageError, match="without the curve of decode"):
        plant(cell(modules=(decode(curve=None),)), "slow")
    with pytest.raises(UsageError, match="decode: a curve up to 16 slots needs figures at 1 and at 16 or more"):
        plant(cell(modules=(decode(slots=16),)), "slow")


LOAD = Load(requests_per_s=4.0, answer_tokens=100.0, answer_lengths="exponential", requests=2000)


def test_what_is_simulated_is_estimated_at_best_and_as_bad_as_what_it_is_made_of() -> None:
    served = serve(cell(), LOAD, Policy())
    assert served.fast is served.slow
    assert (served.times.basis, served.modules_w.basis, served.wall_w.basis) == ("estimated",) * 3
    guessed = serve(cell(modules=(decode(idle_power_w=q(5.0, 9.0, "placeholder")),)), LOAD, Policy())
    assert (guessed.times.basis, guessed.modules_w.basis) == ("estimated", "placeholder")
    low, high = guessed.modules_w.ends
    assert low < high
    assert guessed.fast.total == guessed.slow.total


def test_without_idle_power_there_are_times_and_no_energy() -> None:
    served = serve(cell(modules=(decode(idle_power_w=unknown("idle")),)), LOAD, Policy())
    assert served.fast.total.mean.value > 0
    assert not served.modules_w.known
    assert served.modules_w.needs == ("idle",)


def test_energy_at_the_wall_is_that_of_the_modules_and_the_overheads() -> None:
    beside = (
        Overhead(name="host", per="cell", power_w=q(50.0)),
        Overhead(name="supplies", per="cell", share=q(0.2)),
    )
    of = cell(overheads=beside)
    served = serve(of, LOAD, Policy())
    assert served.fast.energy_j is not None
    modules_w = served.fast.energy_j / served.fast.window_s
    assert served.wall_w.ends == pytest.approx(((modules_w + 50.0) / 0.8,) * 2)
    assert wall(of, served.modules_w) == served.wall_w
    per_answer = served.wall_w.ends[0] * served.fast.window_s / served.fast.answered_in_window
    assert served.wall_per_answer_j.ends == pytest.approx((per_answer,) * 2)


def test_a_load_that_cannot_be_served_has_the_power_of_full_modules() -> None:
    served = serve(cell(), replace(LOAD, requests_per_s=13.0), Policy())
    assert served.slow.growing
    assert served.of_capacity.ends == pytest.approx((13.0 / 12.0,) * 2)
    # But the modules are full, and draw no more than when they are.
    assert served.modules_w.ends == (240.0, 240.0)
    assert served.modules_per_answer_j.ends == pytest.approx((240.0 / 12.0,) * 2)
    batched = serve(cell(), replace(LOAD, requests_per_s=13.0), Policy(batching="static"))
    assert not batched.modules_w.known


def test_the_slow_end_is_slower_and_takes_more() -> None:
    ranged = decode(curve=replace(decode().curve, tokens_per_s={1: q(50.0, 60.0), 8: q(150.0, 200.0)}))
    served = serve(cell(modules=(ranged,)), LOAD, Policy())
    assert served.slow.total.mean.value > served.fast.total.mean.value
    assert served.slow.energy_j is not None
    assert served.fast.energy_j is not None
    assert served.slow.energy_j / served.slow.window_s > served.fast.energy_j / served.fast.window_s


def test_the_link_takes_its_time() -> None:
    prefill = Modules(name="prefill", does="prefill", count=1, prompt_tokens_per_s=q(1000.0))
    of = cell(modules=(decode(), prefill), link=Link(s_per_prompt_token=scaled(q(1.0, 2.0), 1e-3)))
    slow, _, _ = plant(of, "slow")
    fast, _, _ = plant(of, "fast")
    assert (slow.link_s_per_prompt_token, fast.link_s_per_prompt_token) == pytest.approx((2e-3, 1e-3))
