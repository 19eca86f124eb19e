import json
import math
from dataclasses import asdict

import pytest

from pytest_joules.vitals import Vital, believable, increase, platforms, rise, summary

HEAT = Vital(name="chip.temperature", what="temperature", kind="gauge", unit="C", source="made up")
EVENTS = Vital(name="chip.events", what="throttle", kind="counter", unit="events", source="made up", word="too hot")
WORDS = Vital(name="chip.throttle", what="throttle", kind="words", unit="", source="made up")
PROGRAMS = Vital(name="chip.programs", what="programs", kind="programs", unit="", source="made up")


def test_every_platform_is_found_by_its_module() -> None:
    assert {"amdgpu", "battery", "cpu", "memory", "nvml"} <= set(platforms())
    assert not {"macmon", "watch"} & set(platforms())


def test_a_gauge_tells_both_ends_and_the_extremes() -> None:
    found = summary(HEAT, [50.0, 70.0, 45.0, 55.0])
    assert (found.readings, found.first, found.last, found.lowest, found.highest) == (4, 50.0, 55.0, 45.0, 70.0)
    assert found.mean == pytest.approx(55.0)
    assert found.increase is None


def test_words_are_a_share_and_a_list_without_doubles() -> None:
    found = summary(WORDS, [frozenset(), frozenset({"b", "a"}), frozenset({"a"}), frozenset()])
    assert found.seen == ("a", "b")
    assert (found.mean, found.first, found.highest) == (0.5, 0.0, 1.0)


def test_programs_are_told_by_name() -> None:
    assert summary(PROGRAMS, [{7: "server"}, {7: "server", 9: "game"}]).seen == ("server", "game")


@pytest.mark.parametrize("vital", [HEAT, EVENTS, WORDS, PROGRAMS])
def test_a_summary_survives_json(vital: Vital) -> None:
    value = {7: "server"} if vital is PROGRAMS else frozenset({"slow"}) if vital is WORDS else 3.0
    found = asdict(summary(vital, [value, value]))
    assert json.loads(json.dumps(found, allow_nan=False)) == found | {"seen": list(found["seen"])}


@pytest.mark.parametrize(
    ("numbers", "rose"),
    [([5.0], None), ([], None), ([5.0, 5.0], 0.0), ([5.0, 9.0], 4.0), ([5.0, 9.0, 1.0, 4.0], 7.0)],
)
def test_a_counter_that_fell_is_counted_on_both_sides(numbers: list[float], rose: float | None) -> None:
    assert increase(numbers) == rose


def test_a_steady_rise_is_told_in_full() -> None:
    assert rise([40.0 + second for second in range(31)]) == pytest.approx(30.0, rel=0.05)


def test_a_jump_at_the_start_is_no_rise() -> None:
    """The chip cools while nothing runs between warm-up and window, and is back within a second."""
    assert rise([60.0, *([72.0] * 14)]) == 0.0
    assert rise([*([72.0] * 14), 60.0]) == 0.0


def test_few_readings_are_taken_as_they_are() -> None:
    assert rise([60.0, 72.0, 72.0]) == 12.0
    assert rise([60.0]) is None


@pytest.mark.parametrize(
    ("celsius", "fine"),
    [(20.0, True), (-40.0, True), (150.0, True), (-41.0, False), (151.0, False), (math.nan, False), (math.inf, False)],
)
def test_absurd_temperatures_are_not_believed(celsius: float, fine: bool) -> None:
    assert believable(HEAT, celsius) is fine


def test_a_count_is_never_negative() -> None:
    assert not believable(EVENTS, -1.0)
    assert believable(EVENTS, 1e12)
