import math

import pytest

from pytest_joules.errors import Void
from pytest_joules.prediction import Judgement, Prediction, judge, refusals
from pytest_joules.sweep import Sweep

ENERGY = {1: (100.0, 102.0), 2: (70.0, 70.0), 8: (40.0, 40.0)}
VOID = {32: "out of memory"}


def judged(prediction: Prediction, sweep: Sweep, against: Sweep | None = None) -> tuple[str, str]:
    found = judge(prediction, sweep, against)
    assert isinstance(found, Judgement)
    return found.word, found.detail


def holds(sweep):
    """Eight are cheaper than one.

    And more about it.
    """
    assert sweep.energy_per_token_mj[8] < sweep.energy_per_token_mj[1]


def fails(sweep):
    assert sweep.energy_per_token_mj[8] > 1.5 * sweep.energy_per_token_mj[1]


def test_it_holds(table, predicts) -> None:
    assert judged(predicts(holds), table(ENERGY)) == ("held", "")


def test_a_failed_assertion_refutes_with_its_two_numbers(table, predicts) -> None:
    assert judged(predicts(fails), table(ENERGY)) == ("refuted", "assert 40.0 > (1.5 * 101.0)")


def test_numbers_of_a_refutation_are_told_to_four_digits(table, predicts) -> None:
    def claim(sweep):
        assert sweep.energy_per_token_mj[1] / 3 < 1

    assert judged(predicts(claim), table(ENERGY)) == ("refuted", "assert (101.0 / 3) < 1")

    def third(sweep):
        energy = sweep.energy_per_token_mj[1] / 3
        assert energy < 1

    assert judged(predicts(third), table(ENERGY)) == ("refuted", "assert 33.67 < 1")


def test_an_assertion_without_words_is_told_as_written(table, predicts) -> None:
    source = {"math": math}
    exec("def silent(sweep):\n    assert math.isclose(sweep.tokens[1], 5)\n", source)
    assert judged(predicts(source["silent"]), table(ENERGY)) == ("refuted", "assert")

    def silent(sweep):
        raise AssertionError

    assert judged(predicts(silent), table(ENERGY))[0] == "refuted"


def key_error(sweep):
    assert sweep.energy_per_token_mj[64] < 1


def misspelt(sweep):
    assert sweep.energy_per_tokn_mj[8] < 1


def divides_by_nothing(sweep):
    assert sweep.energy_per_token_mj[8] / 0 < 1


def gives_up(sweep):
    raise SystemExit(3)


def skips(sweep):
    pytest.skip("not today")


def reports(sweep):
    pytest.fail("no")


@pytest.mark.parametrize(
    ("function", "detail"),
    [
        (key_error, "KeyError: the suite has no condition 64; it has 1, 2, 8"),
        (misspelt, "AttributeError: there is no metric 'energy_per_tokn_mj'; did you mean 'energy_per_token_mj'?"),
        (divides_by_nothing, "ZeroDivisionError: float division by zero"),
        (gives_up, "SystemExit: 3"),
        (skips, "Skipped: not today"),
        (reports, "Failed: no"),
    ],
)
def test_anything_but_an_assertion_error_breaks(table, predicts, function, detail: str) -> None:
    word, said = judged(predicts(function), table(ENERGY))
    assert word == "broken"
    assert said.startswith(detail)


def test_an_interruption_is_no_verdict(table, predicts) -> None:
    def interrupted(sweep):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judge(predicts(interrupted), table(ENERGY))


def test_a_figure_that_is_none_breaks_and_does_not_refute(table, predicts) -> None:
    word, detail = judged(predicts(holds), table({1: (100.0, 100.0), 8: (math.nan, 40.0)}))
    assert (word, detail) == ("broken", "ValueError: energy_per_token_mj at parallel=8 is nan, which is no figure")


def test_a_void_cell_that_was_read_makes_it_void(table, predicts) -> None:
    def reads_it(sweep):
        assert sweep.energy_per_token_mj[32] < 1

    assert judged(predicts(reads_it), table(ENERGY, void=VOID)) == ("void", "parallel=32: out of memory")


def test_a_void_cell_that_was_not_read_touches_nothing(table, predicts) -> None:
    def asks_for_it(sweep):
        assert 32 in sweep.energy_per_token_mj
        assert sweep.energy_per_token_mj[8] < 50

    for function, word in ((holds, "held"), (fails, "refuted"), (asks_for_it, "held")):
        assert judged(predicts(function), table(ENERGY, void=VOID))[0] == word


def test_catching_the_void_does_not_make_it_valid(table, predicts) -> None:
    def catches(sweep):
        try:
            assert sweep.energy_per_token_mj[32] > 0
        except Void:
            energy = 1.0
        assert energy > 0

    def catches_and_fails(sweep):
        with pytest.raises(Void):
            sweep.energy_per_token_mj[32]
        assert sweep.energy_per_token_mj[8] > 1000

    for function in (catches, catches_and_fails):
        assert judged(predicts(function), table(ENERGY, void=VOID)) == ("void", "parallel=32: out of memory")


def test_a_void_cell_of_the_other_table_counts_as_well(table, predicts) -> None:
    def compares(sweep, against):
        try:
            other = against.energy_per_token_mj[32]
        except Void:
            other = 1000.0
        assert sweep.energy_per_token_mj[8] < other

    prediction = predicts(compares, wants=("sweep", "against"), against="other")
    assert judged(prediction, table(ENERGY), table(ENERGY, void=VOID)) == ("void", "parallel=32: out of memory")
    assert judged(prediction, table(ENERGY), table({32: (90.0, 90.0)})) == ("held", "")


def test_both_tables_and_parametrised_values(table, predicts) -> None:
    def claim(against, sweep, factor):
        assert sweep.energy_per_token_mj[8] == factor * against.energy_per_token_mj[8]

    prediction = predicts(claim, wants=("sweep", "against"), params={"factor": 0.5}, against="other")
    assert judged(prediction, table({8: (20.0, 20.0)}), table(ENERGY))[0] == "held"


def test_what_was_read_is_recorded_for_this_evaluation_alone(table, predicts) -> None:
    def claim(sweep):
        assert sweep.tokens_per_s[8] > 0
        assert sweep.energy_per_token_mj.spread.max() < 1

    sweep = table(ENERGY)
    reads = judge(predicts(claim), sweep).reads
    assert (reads.metrics, reads.spread) == ({"tokens_per_s", "energy_per_token_mj"}, True)
    assert judge(predicts(holds), sweep).reads.metrics == {"energy_per_token_mj"}
    assert sweep.reads.metrics == set()


def test_the_claim_is_the_first_paragraph_or_the_name(predicts) -> None:
    def test_the_knee_is_at_16(sweep):
        assert sweep

    assert predicts(holds).claim == "Eight are cheaper than one."
    assert predicts(test_the_knee_is_at_16).claim == "the knee is at 16"
    assert predicts(holds).asserted == "sweep.energy_per_token_mj[8] < sweep.energy_per_token_mj[1]"


class InAClass:
    def method(self, sweep):
        assert sweep.energy_per_token_mj[8] < 50


def with_inner_functions(sweep):
    def saving(a, b):
        return 1 - sweep.energy_per_token_mj[b] / sweep.energy_per_token_mj[a]

    class Inner:
        def get(self):
            return 1

    assert max([1, 8], key=lambda n: -sweep.energy_per_token_mj[n]) == 8
    assert saving(1, 8) > Inner().get() - 1


def parametrised(sweep, against, batch):
    assert sweep.energy_per_token_mj[batch] < against.energy_per_token_mj[batch]


@pytest.mark.parametrize("function", [holds, fails, with_inner_functions, parametrised, InAClass().method])
def test_a_plain_function_of_tables_can_be_a_prediction(function) -> None:
    assert refusals(function, ("batch",)) == []


def returns(sweep):
    return sweep.energy_per_token_mj[8] < 50


def returns_early(sweep):
    if len(sweep) < 3:
        return
    assert sweep.energy_per_token_mj[8] < 50


async def asynchronous(sweep):
    assert sweep.energy_per_token_mj[8] < 50


async def asynchronous_and_yielding(sweep):
    yield sweep


def yields(sweep):
    yield sweep.energy_per_token_mj[8] < 50


def measures(sweep, power):
    assert power


def not_parametrised(sweep, batch):
    assert batch


def anything(sweep, *rest, **more):
    assert rest


@pytest.mark.parametrize(
    ("function", "reasons"),
    [
        (returns, ["it returns; say what must hold with assert"]),
        (returns_early, ["it returns; say what must hold with assert"]),
        (asynchronous, ["it is async; a prediction is a plain function of a table"]),
        (asynchronous_and_yielding, ["it is async; a prediction is a plain function of a table"]),
        (yields, ["it yields; a prediction is a plain function of a table"]),
        (measures, ["it takes 'power'"]),
        (not_parametrised, ["it takes 'batch'"]),
        (anything, ["it takes 'rest'", "it takes 'more'"]),
    ],
)
def test_what_cannot_be_a_prediction(function, reasons: list[str]) -> None:
    found = refusals(function, ())
    assert len(found) == len(reasons)
    assert all(one.startswith(reason) for one, reason in zip(found, reasons, strict=True))
