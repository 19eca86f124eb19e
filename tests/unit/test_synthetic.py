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
