import math

import pytest

from pytest_joules import synthetic
from pytest_joules.metrics import METRICS
from pytest_joules.synthetic import search, tables

AXES = ("parallel",)
CONDITIONS = tuple({"parallel": n} for n in (1, 2, 4, 8, 16))


def find(predicts, function, **keys) -> synthetic.Search:
    return search(predicts(function, **keys), AXES, CONDITIONS)


def cheaper(sweep):
    assert sweep.energy_per_token_mj[8] < sweep.energy_per_token_mj[1]


def saves_a_further_15_to_30(sweep):
    energy = sweep.energy_per_token_mj
    assert 0.15 <= 1 - energy[16] / energy[8] <= 0.30


def knee_at_8(sweep):
    assert sweep.energy_per_token_mj.argmin() == 8


def passes_agree(sweep):
    assert sweep.energy_per_token_mj.spread.max() <= 0.05


def passes_agree_roughly(sweep):
    assert sweep.energy_per_token_mj.spread.max() <= 0.3


def under_200_mj(sweep):
    assert sweep.energy_per_token_mj[8] < 200


def speed_tops_out(sweep):
    assert sweep.tokens_per_s.max() < 1800


def power_within(sweep):
    assert sweep.power_w.max() < 60


@pytest.mark.parametrize(
    "function",
    [
        cheaper,
        saves_a_further_15_to_30,
        knee_at_8,
        passes_agree,
        passes_agree_roughly,
        under_200_mj,
        speed_tops_out,
        power_within,
    ],
)
def test_a_rule_that_says_something_can_hold_and_can_fail(predicts, function) -> None:
    found = find(predicts, function)
    assert found.broken == ""
    assert not found.cannot_fail
    assert not found.never_holds
    assert 0 < found.share_held < 1


def positive(sweep):
    assert all(energy > 0 for energy in sweep.energy_per_token_mj.values())


def one_of_all(sweep):
    assert sweep.energy_per_token_mj.argmin() in (1, 2, 4, 8, 16)


def no_more_than_itself(sweep):
    assert sweep.energy_per_token_mj[8] <= sweep.energy_per_token_mj.max()


def looks_at_nothing(sweep):
    pass


def one_request_alone(sweep):
    assert sweep.tokens_per_s[1] == sweep.tokens_per_s_per_request[1]


@pytest.mark.parametrize("function", [positive, one_of_all, no_more_than_itself, looks_at_nothing, one_request_alone])
def test_a_rule_that_cannot_fail_is_found(predicts, function) -> None:
    found = find(predicts, function)
    assert (found.cannot_fail, found.never_holds, found.share_held) == (True, False, 1.0)


def test_a_rule_that_never_holds_is_found(predicts) -> None:
    def negative(sweep):
        assert sweep.energy_per_token_mj[8] < 0

    found = find(predicts, negative)
    assert (found.cannot_fail, found.never_holds) == (False, True)


def test_a_rule_that_breaks_is_neither(predicts) -> None:
    def misspelt(sweep):
        assert sweep.energy_per_tokn_mj[8] < 1

    def of_another_suite(sweep):
        assert sweep.energy_per_token_mj[3] < 1

    found = find(predicts, misspelt)
    assert found.broken.startswith(
        "AttributeError: there is no metric 'energy_per_tokn_mj'; did you mean 'energy_per_token_mj'?"
    )
    assert (found.cannot_fail, found.never_holds) == (False, False)
    assert find(predicts, of_another_suite).broken.startswith("KeyError: the suite has no condition 3")


def test_a_rule_that_breaks_only_on_some_tables_is_found_too(predicts) -> None:
    def breaks_at_times(sweep):
        assert {1: True}.get(sweep.energy_per_token_mj.argmin()) or 1 / (sweep.energy_per_token_mj.argmin() - 8)

    assert find(predicts, breaks_at_times).broken.startswith("ZeroDivisionError")


def test_a_spread_of_one_pass_is_refused_before_anything_is_measured(predicts) -> None:
    assert search(predicts(passes_agree), AXES, CONDITIONS, passes=1).broken.startswith(
        "parallel=1: the spread of one pass is undefined"
    )


def test_comparing_two_suites(predicts) -> None:
    def within_8_percent(sweep, against):
        assert abs(sweep.energy_per_token_mj[8] / against.energy_per_token_mj[8] - 1) < 0.5

    def same_table(sweep, against):
        assert against.energy_per_token_mj[1] > 0

    def compared(function) -> synthetic.Search:
        prediction = predicts(function, wants=("sweep", "against"), against="other")
        return search(prediction, AXES, CONDITIONS, (AXES, CONDITIONS))

    assert 0 < compared(within_8_percent).share_held < 1
    assert compared(same_table).cannot_fail


def test_several_axes_of_any_kind(predicts) -> None:
    axes = ("model", "parallel", "gpu_layers", "cache_prompt", "temperature")
    conditions = [
        {"model": m, "parallel": n, "gpu_layers": layers, "cache_prompt": cache, "temperature": t}
        for m in ("a", "b")
        for n in (1, 8)
        for layers in (0, "all")
        for cache in (False, True)
        for t in (0, 0.7)
    ]

    def claim(sweep):
        small = sweep.where(model="a", gpu_layers="all", cache_prompt=True, temperature=0).energy_per_token_mj
        assert small[8] < small[1]

    found = search(predicts(claim), axes, conditions)
    assert found.broken == ""
    assert 0 < found.share_held < 1


def test_nothing_varies(predicts) -> None:
    def claim(sweep):
        assert sweep.at().energy_per_token_mj < 100

    found = search(predicts(claim), (), ({},))
    assert found.broken == ""
    assert 0 < found.share_held < 1


def test_the_tables_are_the_same_every_time_and_whole() -> None:
    first, second = ([dict(t.energy_per_token_mj) for t in tables(AXES, CONDITIONS)] for _ in range(2))
    assert first == second
    assert len(first) == synthetic.TABLES
    assert len({t[1] for t in first}) == synthetic.TABLES
    other = [dict(t.energy_per_token_mj) for t in tables(AXES, CONDITIONS, seed=1)]
    assert first != other
    for table in tables(AXES, CONDITIONS):
        for name in METRICS:
            assert all(math.isfinite(figure) and figure > 0 for figure in getattr(table, name).values())
        for n in (1, 16):
            assert table.tokens_per_s_per_request[n] == pytest.approx(table.tokens_per_s[n] / n, rel=0.5)


def test_the_tables_have_every_shape() -> None:
    energies = [table.energy_per_token_mj for table in tables(AXES, CONDITIONS)]
    assert {energy.argmin() for energy in energies} == {1, 2, 4, 8, 16}
    assert any(list(energy.values()) == sorted(energy.values()) for energy in energies)
    assert any(list(energy.values()) == sorted(energy.values(), reverse=True) for energy in energies)
    assert min(energy[8] for energy in energies) < 1
    assert max(energy[8] for energy in energies) > 10_000


def with_examples(predicts, function, **keys) -> synthetic.Search:
    return search(predicts(function), AXES, CONDITIONS, **keys)


def never_on_made_up_ones(sweep):
    assert 100.0 < sweep.energy_per_token_mj[8] < 100.0001


def always_on_made_up_ones(sweep):
    assert not 100.0 < sweep.energy_per_token_mj[8] < 100.0001


def energy_at_8(figure) -> dict:
    return {"energy_per_token_mj": {8: figure}}


def test_an_example_is_evidence_that_a_rule_can_hold_or_fail(predicts) -> None:
    assert with_examples(predicts, never_on_made_up_ones).never_holds
    assert with_examples(predicts, always_on_made_up_ones).cannot_fail
    found = with_examples(predicts, never_on_made_up_ones, holds=energy_at_8(100.00005))
    assert (found.never_holds, found.examples, found.tables) == (False, (), synthetic.TABLES + 1)
    assert found.share_held == 1 / (synthetic.TABLES + 1)
    found = with_examples(predicts, always_on_made_up_ones, fails=[energy_at_8(100.00005)])
    assert (found.cannot_fail, found.examples) == (False, ())


def test_an_example_that_says_otherwise_is_told_with_its_figures(predicts) -> None:
    found = with_examples(predicts, under_200_mj, holds=energy_at_8(300), fails=(energy_at_8(250), energy_at_8(20)))
    assert found.examples == (
        "it does not hold on its `holds` example: assert 300.0 < 200 (energy_per_token_mj: 8: 300)",
        "it holds on its `fails` example 2 (energy_per_token_mj: 8: 20)",
    )


def test_what_follows_from_an_example_is_filled_in(predicts) -> None:
    def everything(sweep):
        row = sweep[8]
        assert row.energy_per_token_mj == pytest.approx(50.0)
        assert row.tokens_per_s_per_request == pytest.approx(25.0)
        assert row.tokens == pytest.approx(1000.0)
        assert row.energy_j == pytest.approx(50.0)
        assert row.window_s == pytest.approx(5.0)

    example = {"power_w": {8: 10.0}, "tokens_per_s": {8: 200}, "window_s": {8: 5}}
    assert with_examples(predicts, everything, holds=example).examples == ()


def test_what_does_not_follow_is_undefined(predicts) -> None:
    found = with_examples(predicts, power_within, holds={"power_w": dict.fromkeys((1, 2, 4), 30.0)})
    assert found.examples == (
        "its `holds` example cannot be judged: parallel=8: power_w is undefined: the example has neither it nor figures it "
        "follows from (power_w: 1: 30.0, 2: 30.0, 4: 30.0)",
    )

    def fast(sweep):
        assert sweep.at(format="q4_0").tokens_per_s_per_request > 1

    # How many share the speed is not said by a suite that does not vary it.
    found = search(predicts(fast), ("format",), [{"format": "q4_0"}], holds={"tokens_per_s": {"q4_0": 9}})
    assert "tokens_per_s_per_request is undefined" in found.examples[0]


def test_what_the_suite_does_not_measure_is_not_measured_in_an_example_either(predicts) -> None:
    def first_soon(sweep):
        try:
            assert sweep[1].time_to_first_token_s < 1
        except synthetic.Void:
            assert sweep[1].tokens_per_s > 9

    undefined = {"time_to_first_token_s": "not streamed"}
    example = {"time_to_first_token_s": {1: 0.5}, "tokens_per_s": {1: 10}}
    table = synthetic._of_example(example, AXES, CONDITIONS, undefined)
    with pytest.raises(synthetic.Void, match="not streamed"):
        table.time_to_first_token_s[1]
    assert table.tokens_per_s[1] == 10
    assert "not streamed" in search(predicts(first_soon), AXES, CONDITIONS, undefined=undefined, holds=example).broken


def test_an_example_of_several_passes_has_a_spread(predicts) -> None:
    def all_known(sweep):
        assert sweep.energy_per_token_mj.spread[8] <= 0.05
        assert sweep.tokens_per_s.spread[8] == 0

    near, far = ({**energy_at_8((40, 40 + off)), "tokens_per_s": {8: 9}} for off in (1, 4))
    assert with_examples(predicts, all_known, holds=near, fails=far).examples == ()
    (fault,) = with_examples(predicts, all_known, holds=energy_at_8(40)).examples
    assert "the spread of one pass is undefined" in fault


@pytest.mark.parametrize(
    ("example", "fault"),
    [
        (
            {"energy_per_tokn_mj": {8: 1}},
            "there is no metric 'energy_per_tokn_mj'; did you mean 'energy_per_token_mj'?",
        ),
        (energy_at_8(0), "energy_per_token_mj at 8 is 0, which is no figure above 0"),
        (energy_at_8(math.nan), "energy_per_token_mj at 8 is nan, which is no figure above 0"),
        (energy_at_8("40"), "energy_per_token_mj at 8 is '40', which is no figure above 0"),
        (energy_at_8(()), "energy_per_token_mj at 8 is (), which is no figure above 0"),
        (energy_at_8(None), "energy_per_token_mj at 8 is None, which is no figure above 0"),
        ({"energy_per_token_mj": {3: 1}}, "the suite has no condition 3; it has 1, 2, 4, 8, 16"),
        (5, "5 is no mapping from metrics to figures by condition"),
        ({"energy_per_token_mj": 40}, "{'energy_per_token_mj': 40} is no mapping from metrics to figures by condition"),
        ({"energy_per_token_mj": {1: (1, 2), 8: (1, 2, 3)}}, "energy_per_token_mj at 8 has 3 passes, others have 2"),
    ],
)
def test_an_example_that_cannot_be_read_is_told_of(predicts, example, fault) -> None:
    assert with_examples(predicts, under_200_mj, fails=[example]).examples == (
        f"its `fails` example cannot be read: {fault}",
    )


def test_what_is_no_list_of_examples_is_told_of(predicts) -> None:
    (fault,) = with_examples(predicts, under_200_mj, holds=5).examples
    assert fault == "its `holds` example cannot be read: 5 is no mapping from metrics to figures by condition"


def test_an_example_of_two_suites_has_the_figures_of_both(predicts) -> None:
    def cheaper(sweep, against):
        assert sweep.energy_per_token_mj[8] < against.energy_per_token_mj[8]

    def found(**examples) -> tuple[str, ...]:
        prediction = predicts(cheaper, wants=("sweep", "against"), against="other")
        return search(prediction, AXES, CONDITIONS, (AXES, CONDITIONS), **examples).examples

    assert found(holds={**energy_at_8(40), "against": energy_at_8(50)}) == ()
    (fault,) = found(holds={**energy_at_8(60), "against": energy_at_8(50)})
    assert fault.endswith("(energy_per_token_mj: 8: 60; against: energy_per_token_mj: 8: 50)")
    assert "whose figures belong under 'against'" in found(fails=energy_at_8(50))[0]


def test_several_axes_in_an_example(predicts) -> None:
    def small(sweep):
        assert sweep.at(model="a", parallel=8).energy_per_token_mj < 30

    conditions = [{"model": m, "parallel": n} for m in "ab" for n in (1, 8)]
    found = search(
        predicts(small), ("model", "parallel"), conditions, holds={"energy_per_token_mj": {("a", 8): 20}},
        fails={"energy_per_token_mj": {("a", 8): 40}},
    )  # fmt: skip
    assert found.examples == ()


def near_a_real_figure(sweep):
    assert 41.0 < sweep.energy_per_token_mj[8] < 41.5 and sweep.tokens_per_s[8] > 390  # noqa: PT018


STORED = {1: (100.0, 102.0), 2: (80.0, 80.0), 4: (60.0, 60.0), 8: (43.0, 44.0), 16: (39.0, 39.0)}


def test_tables_around_a_stored_run_reach_thresholds_near_its_figures(table, predicts) -> None:
    assert with_examples(predicts, near_a_real_figure).never_holds
    found = with_examples(predicts, near_a_real_figure, around=table(STORED))
    assert 0 < found.share_held < 0.1
    assert found.tables > synthetic.TABLES + synthetic._MOVED_TOGETHER
    assert found == with_examples(predicts, near_a_real_figure, around=table(STORED))


def test_tables_around_a_run_are_whole_and_move_each_condition(table) -> None:
    moved = list(synthetic._around(table(STORED), AXES, CONDITIONS, 2))
    for one in moved:
        assert one.axes == AXES
        for name in METRICS:
            assert all(math.isfinite(figure) and figure > 0 for figure in getattr(one, name).values())
        for row in (one[1], one[16]):
            assert row.power_w == pytest.approx(row.energy_per_token_mj * row.tokens_per_s / 1000, rel=0.2)
            assert row.tokens == 128 * row.condition["parallel"]
    assert {one.energy_per_token_mj.argmin() for one in moved} == {2, 4, 8, 16}  # 1 is dearer than the rest by more
    assert min(one.energy_per_token_mj[8] for one in moved) == pytest.approx(0.435)
    assert max(one.energy_per_token_mj[8] for one in moved) == pytest.approx(4350)


def test_conditions_a_stored_run_lacks_are_made_up(table, predicts) -> None:
    stored = table({1: (100.0, 100.0), 64: (1.0, 1.0)}, void={8: "out of memory"})
    base = synthetic._base(stored, CONDITIONS)
    assert [figures["energy_per_token_mj"] for figures in base] == pytest.approx([100.0] * 5)
    assert base[0]["prompt_tokens"] == 20
    assert with_examples(predicts, power_within, around=stored).broken == ""
    nothing = table({}, void={8: "out of memory"})
    assert with_examples(predicts, power_within, around=nothing).tables == synthetic.TABLES


def test_a_published_run_is_moved_as_well(predicts) -> None:
    cells = [
        synthetic.Cell(
            condition=c, means={"power_w": 10.0, "tokens_per_s": 50.0 * c["parallel"]}, missing={"energy_j": "no"}
        )
        for c in CONDITIONS
    ]
    base = synthetic._base(synthetic.Sweep(AXES, cells), CONDITIONS)
    assert [figures["energy_per_token_mj"] for figures in base] == pytest.approx([200, 100, 50, 25, 12.5])


def test_many_conditions_stay_cheap(table, predicts) -> None:
    conditions = tuple({"parallel": n} for n in range(1, 33))
    stored = table(dict.fromkeys(range(1, 33), (100.0, 100.0)))
    tables_near = sum(1 for _ in synthetic._around(stored, AXES, conditions, 2))
    assert tables_near == synthetic._MOVED_TOGETHER + synthetic._MOVED_ALONE + len(synthetic._SCALES) ** 2
