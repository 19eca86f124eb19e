import math

import pytest

from pytest_joules import margin
from pytest_joules.margin import Compared, margins, nearest

ENERGY = {1: (100.0, 100.0), 8: (40.0, 40.0), 16: (32.0, 32.0)}
LIMIT = 50.0


def found(predicts, table, function, energy=ENERGY, **keys):
    return margins(predicts(function, **keys), table(energy))


def test_a_comparison_with_a_figure(table, predicts) -> None:
    def claim(sweep):
        assert sweep.energy_per_token_mj[8] < 50

    assert found(predicts, table, claim) == [
        Compared("sweep.energy_per_token_mj[8] < 50", 40.0, 50.0, 50.0, True, pytest.approx(0.2))
    ]


def test_the_threshold_is_what_depends_on_no_table(table, predicts) -> None:
    def claim(sweep, least):
        energy = sweep.energy_per_token_mj[8]
        assert least <= energy
        assert LIMIT > energy  # noqa: SIM300
        assert sweep.energy_per_token_mj[1] > energy

    compared = found(predicts, table, claim, params={"least": 30})
    assert [one.threshold for one in compared] == [30, 50, 40]
    assert [one.margin for one in compared] == pytest.approx([1 / 3, 0.2, 1.5])


def test_a_failed_one_lies_on_the_wrong_side(table, predicts) -> None:
    def claim(sweep):
        assert sweep.energy_per_token_mj[1] > 90, f"told nobody: {1 / 0}"
        assert sweep.energy_per_token_mj[8] < 32, f"{sweep}"
        assert sweep.energy_per_token_mj[16] < 1

    compared = found(predicts, table, claim)
    assert [one.held for one in compared] == [True, False]
    assert compared[1].margin == pytest.approx(-0.25)
    assert nearest(compared) is compared[1]


def test_a_chain_counts_by_its_nearer_end(table, predicts) -> None:
    def claim(sweep):
        assert 0.15 <= sweep.energy_per_token_mj.saving(8, 16) <= 0.50

    (one,) = found(predicts, table, claim)
    assert (one.text, one.left, one.right, one.held) == (
        "0.15 <= sweep.energy_per_token_mj.saving(8, 16) <= 0.50", 0.15, pytest.approx(0.2), True,
    )  # fmt: skip
    assert (one.threshold, one.margin) == (0.15, pytest.approx(1 / 3))
    (one,) = found(predicts, table, claim, {**ENERGY, 16: (16.0, 16.0)})
    assert (one.threshold, one.held, one.margin) == (0.50, False, pytest.approx(-0.2))


def test_each_operand_of_a_chain_is_evaluated_once(table, predicts) -> None:
    count = []

    def claim(sweep):
        assert 1 < (count.append(1) or sweep.energy_per_token_mj[8]) < 50 < 70.5

    assert len(found(predicts, table, claim)) == 1
    # Once for the verdict and once to look.
    assert len(count) == 2


def test_and_is_looked_into_but_not_or_nor_not_nor_in(table, predicts) -> None:
    def claim(sweep):
        energy = sweep.energy_per_token_mj
        assert energy[8] < 50 and (energy[16] < 40 and energy.argmin() in (16, 32))  # noqa: PT018
        assert energy[8] < 1 or energy[8] > 2
        assert not energy[8] < 1
        assert all(energy[n] > 3 for n in energy)
        assert (energy.argmin() is not None) == True  # noqa: E712

    assert [one.text for one in found(predicts, table, claim)] == ["energy[8] < 50", "energy[16] < 40"]


def test_what_comes_after_a_failure_was_not_evaluated(table, predicts) -> None:
    def claim(sweep):
        assert sweep.energy_per_token_mj[8] < 1 and sweep.energy_per_token_mj[999] < 1  # noqa: PT018

    (one,) = found(predicts, table, claim)
    assert (one.left, one.right, one.held) == (40.0, 1.0, False)


def test_a_loop_gives_several(table, predicts) -> None:
    def claim(sweep):
        for batch in (1, 8):
            assert abs(sweep.energy_per_token_mj[batch] / 50 - 1) <= 1.5

    compared = found(predicts, table, claim)
    assert [one.left for one in compared] == pytest.approx([1.0, 0.2])
    assert nearest(compared).left == pytest.approx(1.0)


def test_a_loop_over_chains_keeps_them_apart(table, predicts) -> None:
    def claim(sweep):
        for batch in (1, 8, 16):
            assert 10 < sweep.energy_per_token_mj[batch] < 200

    assert [one.margin for one in found(predicts, table, claim)] == pytest.approx([0.5, 0.8, 0.84])


def test_equality_has_no_room_and_inequality_has(table, predicts) -> None:
    def claim(sweep):
        assert sweep.energy_per_token_mj[8] == 40
        assert sweep.energy_per_token_mj[8] != 50

    assert [one.margin for one in found(predicts, table, claim)] == pytest.approx([0.0, 0.2])

    def equals(sweep):
        assert sweep.energy_per_token_mj[8] == 50

    assert [one.margin for one in found(predicts, table, equals)] == pytest.approx([-0.2])


def test_the_place_of_a_minimum_has_no_distance(table, predicts) -> None:
    def claim(sweep):
        assert sweep.energy_per_token_mj.argmin() == 16
        assert len(sweep) > 2
        assert sweep.energy_per_token_mj[16] < sweep.energy_per_token_mj[8]

    (one,) = found(predicts, table, claim)
    assert one.left == 32.0

    def elsewhere(sweep):
        assert sweep.energy_per_token_mj[16] < sweep.energy_per_token_mj[8]
        assert sweep.energy_per_token_mj.argmin() == 8

    assert found(predicts, table, elsewhere) == []


def test_of_a_threshold_of_zero_there_is_no_share(table, predicts) -> None:
    def claim(sweep):
        assert sweep.energy_per_token_mj.saving(1, 8) > 0
        assert sweep.energy_per_token_mj[8] < 50

    compared = found(predicts, table, claim)
    assert [one.margin for one in compared] == [None, pytest.approx(0.2)]
    assert nearest(compared) is compared[1]
    assert nearest(compared[:1]) is compared[0]
    assert nearest([]) is None


def make(limit):
    def claim(sweep, factor=2.0, *, bonus=1.0):
        def own(n):
            assert sweep.energy_per_token_mj[n] < 1000
            return sweep.energy_per_token_mj[n]

        assert own(8) * factor * bonus < limit

    return claim


def test_closures_defaults_and_inner_functions_go_on_to_work(table, predicts) -> None:
    compared = found(predicts, table, make(100))
    assert [(one.left, one.right) for one in compared] == [(40.0, 1000.0), (80.0, 100.0)]
    assert found(predicts, table, make(100), params={"factor": 1.0, "bonus": 2.0})[1].left == 80.0


class InAClass:
    limit = 60

    @staticmethod
    def alone(sweep):
        assert sweep.energy_per_token_mj[8] < 50

    def method(self, sweep: "no such name"):  # noqa: F722
        assert sweep.energy_per_token_mj[8] < self.limit


def test_methods(table, predicts) -> None:
    assert found(predicts, table, InAClass().method)[0].right == 60.0
    assert found(predicts, table, InAClass().alone)[0].right == 50.0


def test_both_tables(table, predicts) -> None:
    def claim(sweep, against):
        assert sweep.energy_per_token_mj[8] < against.energy_per_token_mj[8]

    prediction = predicts(claim, wants=("sweep", "against"), against="other")
    (one,) = margins(prediction, table(ENERGY), table({8: (50.0, 50.0)}))
    assert (one.threshold, one.margin) == (50.0, pytest.approx(0.2))


def test_where_there_is_nothing_to_see_the_list_is_empty(table, predicts) -> None:
    def minimum(sweep):
        assert sweep.energy_per_token_mj[8] < 50
        assert sweep.energy_per_token_mj.argmin() in (1, 8), "at 16"

    def breaks(sweep):
        assert sweep.energy_per_token_mj[8] < 50
        assert sweep.energy_per_token_mj[3]

    def otherwise(sweep):
        if sweep.energy_per_token_mj[8] < 50:
            raise AssertionError

    from_text: dict = {}
    exec("def from_text(sweep):\n    assert sweep.energy_per_token_mj[8] < 50\n", from_text)
    for function in (minimum, breaks, otherwise, from_text["from_text"], lambda sweep: None, math.sqrt):
        assert found(predicts, table, function) == []


def test_a_source_that_is_no_longer_what_runs_is_not_believed(table, predicts, monkeypatch) -> None:
    def claim(sweep):
        assert sweep.energy_per_token_mj[8] < 50

    monkeypatch.setattr(margin.inspect, "getsource", lambda _: "def claim(sweep):\n    assert len(sweep) > 50\n")
    assert found(predicts, table, claim) == []


def test_the_tables_are_not_read_from(table, predicts) -> None:
    sweep = table(ENERGY)
    assert margins(predicts(InAClass.alone), sweep)
    assert sweep.reads.metrics == set()
