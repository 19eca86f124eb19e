import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_joules import discovery
from pytest_joules.meters._sysfs import ReadError
from pytest_joules.vitals import Value, Vital, watch
from pytest_joules.vitals.watch import FAILURES, Watch

RATE_HZ = 50.0
PATIENCE_S = 10.0


def vital(name: str, read: Callable[[], Value | None], what: Any = "temperature", **keys: Any) -> Vital:
    usual = {"kind": "gauge", "unit": "C", "source": "made up"}
    return Vital(name=name, what=what, read=read, **(usual | keys))


def turns(*values: Any) -> Callable[[], Any]:
    """Reads one value after the other, then the last for ever; an exception is raised."""
    left = list(values)

    def read() -> Any:
        value = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(value, Exception):
            raise value
        return value

    return read


@contextmanager
def watching(*vitals: Vital, rate_hz: float = RATE_HZ) -> Iterator[Watch]:
    found = Watch(rate_hz, vitals)
    found.start()
    try:
        yield found
    finally:
        found.stop()


def until(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        if time.monotonic() > deadline:
            pytest.fail("it did not happen")
        time.sleep(0.005)


def readings(found: Watch, name: str) -> int:
    return sum(part.readings for part in found.between(0.0, time.monotonic() + 1) if part.name == name)


def fed(what: Any, *series: tuple[float, Any], name: str = "chip.it", rate_hz: float = 1.0, **keys: Any) -> Watch:
    """A watch that was handed readings at the times given."""
    found = Watch(rate_hz, [])
    one = Vital(name=name, what=what, source="made up", **({"kind": "gauge", "unit": ""} | keys))
    for mono, value in series:
        found.feed([one], {name: value}, mono)
    return found


# The thread


def test_every_vital_is_read_again_and_again() -> None:
    with watching(vital("a", turns(50.0)), vital("b", turns(60.0))) as found:
        until(lambda: readings(found, "a") > 3 and readings(found, "b") > 3)
    assert found.faults == {}
    assert {part.name: part.mean for part in found.between(0.0, time.monotonic())} == {"a": 50.0, "b": 60.0}


def test_start_returns_after_the_first_readings() -> None:
    with watching(vital("a", turns(50.0)), rate_hz=0.01) as found:
        assert readings(found, "a") == 1


def test_an_extra_round_comes_at_once() -> None:
    with watching(vital("a", turns(50.0), every=100), rate_hz=0.01) as found:
        found.read_now()
        until(lambda: readings(found, "a") == 2)


def test_a_costly_vital_is_read_in_few_rounds() -> None:
    with watching(vital("cheap", turns(50.0)), vital("costly", turns(50.0), every=4)) as found:
        until(lambda: readings(found, "cheap") >= 9)
        assert readings(found, "costly") <= 4


def test_a_stuck_read_costs_its_vital_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "STUCK_S", 0.1)
    release = threading.Event()
    with watching(vital("stuck", lambda: release.wait() and None), vital("well", turns(50.0))) as found:
        until(lambda: readings(found, "well") > 3)
        assert found.faults == {"stuck": "did not answer within 0.1 s"}
        release.set()
        until(lambda: sum(thread.name == "joules-vitals-read" for thread in threading.enumerate()) == 1)


def test_stop_does_not_wait_for_a_stuck_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "STOPPING_S", 0.1)
    release = threading.Event()
    found = Watch(RATE_HZ, [vital("stuck", lambda: release.wait() and None)])
    found.start(timeout_s=0.1)
    begun = time.monotonic()
    found.stop()
    release.set()
    assert time.monotonic() - begun < 1.0


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (OSError("gone"), "OSError: gone"),
        (ZeroDivisionError("oh"), "ZeroDivisionError: oh"),
        (255.0, "gives 255.0 C, which cannot be"),
        (float("nan"), "gives nan C, which cannot be"),
        ("warm", "gives warm C, which cannot be"),
    ],
)
def test_a_vital_that_fails_again_and_again_is_dropped_with_its_reason(value: Any, reason: str) -> None:
    with watching(vital("bad", turns(50.0, value)), vital("well", turns(50.0))) as found:
        until(lambda: found.faults)
        until(lambda: readings(found, "well") > FAILURES + 1)
    assert found.faults == {"bad": reason}
    assert readings(found, "bad") == 1


def test_one_failure_is_forgiven() -> None:
    failures = [OSError("busy")] * (FAILURES - 1)
    with watching(vital("a", turns(*failures, 50.0, *failures, 51.0))) as found:
        until(lambda: readings(found, "a") > 1)
    assert found.faults == {}


def test_what_is_gone_for_good_is_dropped_at_once(tmp_path: Any) -> None:
    with watching(vital("a", turns(50.0, ReadError(tmp_path, "does not exist", passing=False), 51.0))) as found:
        until(lambda: found.faults)
    assert found.faults == {"a": f"{tmp_path} does not exist"}


def test_a_sleeping_card_is_no_failure() -> None:
    with watching(vital("asleep", turns(*([None] * 2 * FAILURES), 50.0))) as found:
        until(lambda: readings(found, "asleep"))
    assert found.faults == {}


def test_what_is_held_is_let_go_once() -> None:
    closed: list[str] = []

    def close() -> None:
        closed.append("it")

    with watching(vital("a", turns(1.0), close=close), vital("b", turns(1.0), close=close)):
        assert not closed
    assert closed == ["it"]


def test_platforms_that_break_are_named_and_the_others_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks() -> None:
        raise RuntimeError("driver on fire")

    monkeypatch.setattr(watch, "FINDING_S", 0.1)
    release = threading.Event()
    known = {
        "absent": SimpleNamespace(find=list),
        "fire": SimpleNamespace(find=breaks),
        "stuck": SimpleNamespace(find=release.wait),
        "unloadable": discovery.Broken("ImportError: no"),
        "well": SimpleNamespace(find=lambda: [vital("well.temperature", turns(50.0))]),
    }
    monkeypatch.setattr(watch, "platforms", lambda: known)
    found = Watch(RATE_HZ)
    found.start(PATIENCE_S)
    found.stop()
    release.set()
    assert readings(found, "well.temperature")
    assert found.faults == {
        "fire": "RuntimeError: driver on fire",
        "stuck": "did not answer within 0.1 s",
        "unloadable": "cannot be loaded: ImportError: no",
    }


# What a stretch says


def test_a_stretch_holds_its_own_readings_alone() -> None:
    found = fed("temperature", *((float(t), 40.0 + t) for t in range(20)))
    [part] = found.between(5.0, 8.0)
    assert (part.readings, part.first, part.last) == (4, 45.0, 48.0)


def test_a_short_stretch_takes_the_readings_beside_it_but_no_old_ones() -> None:
    found = fed("temperature", (0.0, 40.0), (10.0, 50.0), (11.0, 52.0), (20.0, 60.0))
    [part] = found.between(10.2, 10.8)
    assert (part.readings, part.first, part.last) == (2, 50.0, 52.0)
    assert found.between(15.0, 16.0) == ()


def test_the_warmest_rise_counts() -> None:
    found = fed("temperature", (0.0, 40.0), (1.0, 41.0), name="cpu.package0.temperature")
    gpu = Vital(name="nvml.gpu0.temperature", what="temperature", kind="gauge", unit="C", source="made up")
    for mono, celsius in ((0.0, 60.0), (1.0, 64.0)):
        found.feed([gpu], {gpu.name: celsius}, mono)
    assert found.temperature_rise_c(0.0, 1.0) == 4.0
    assert found.temperature_rise_c(0.0, 1.0, ["cpu"]) == 1.0
    assert found.temperature_rise_c(0.0, 1.0, ["nvml.gpu"]) is None
    assert found.sees("temperature", ["nvml.gpu0"])
    assert not found.sees("throttle")


def test_throttling_of_words_and_of_counters() -> None:
    words = fed(
        "throttle", (0.0, frozenset()), (1.0, frozenset({"power limit (software)"})), (2.0, frozenset()), kind="words"
    )
    assert words.throttled(0.5, 1.5) == ("power limit (software)",)
    assert words.throttled(1.9, 2.0) == ("power limit (software)",)  # too short to have two readings of its own
    assert fed("throttle", (0.0, frozenset()), (1.0, frozenset()), kind="words").throttled(0.0, 1.0) == ()
    counter = fed("throttle", (0.0, 3.0), (1.0, 3.0), (2.0, 5.0), (3.0, 5.0), kind="counter", word="too hot")
    assert counter.throttled(1.2, 1.8) == ("too hot",)
    assert counter.throttled(2.0, 3.0, ["chip.it"]) == ("too hot",)  # the reading before is outside
    assert counter.throttled(3.0, 3.0) == ()


def test_throttling_that_cannot_be_told_is_not_none_of_it() -> None:
    assert fed("temperature", (0.0, 40.0)).throttled(0.0, 1.0) is None
    assert fed("throttle", (0.0, 3.0), kind="counter", word="too hot").throttled(0.0, 1.0) is None
    assert fed("throttle", (0.0, frozenset()), kind="words").throttled(50.0, 60.0) is None


def test_the_share_of_the_time_at_a_power_limit() -> None:
    cap, heat = frozenset({"power limit (PPT0)"}), frozenset({"thermal limit (EDGE)"})
    found = fed("throttle", (0.0, cap), (1.0, cap), (2.0, heat), (3.0, frozenset()), kind="words")
    assert found.power_limited_share(0.0, 3.0) == 0.5
    assert fed("temperature", (0.0, 40.0)).power_limited_share(0.0, 3.0) is None


def test_power_limits_by_name() -> None:
    assert fed("power_limit", (0.0, 300.0), (1.0, 250.0)).power_limits_w(0.0, 1.0) == {"chip.it": 250.0}


def test_swapped_memory_is_the_sum_of_both_ways() -> None:
    found = fed("swap", (0.0, 10.0), (1.0, 12.0), name="memory.swapped_in", kind="counter")
    out = Vital(name="memory.swapped_out", what="swap", kind="counter", unit="MiB", source="made up")
    found.feed([out], {out.name: 5.0}, 0.0)
    assert found.swapped_mib(0.0, 1.0) is None
    found.feed([out], {out.name: 9.0}, 1.0)
    assert found.swapped_mib(0.0, 1.0) == 6.0
    assert fed("temperature", (0.0, 40.0)).swapped_mib(0.0, 1.0) is None


def test_others_on_the_gpu_are_those_that_are_not_ours() -> None:
    found = fed("programs", (0.0, {7: "llama-server"}), (1.0, {7: "llama-server", 9: "game"}), kind="programs")
    assert found.others_on_gpu(0.0, 1.0, {7}) == ("game",)
    assert found.others_on_gpu(0.0, 1.0, {7, 9}) == ()
    assert found.others_on_gpu(50.0, 60.0, {7}) is None
    assert found.others_on_gpu(0.0, 1.0, {7}, ["nvml.gpu1"]) is None


def test_charging_is_told_or_not_known_or_no_battery() -> None:
    with watching(vital("battery.BAT0.charging", turns(0.0, 0.0, 1.0), "charging")) as found:
        until(lambda: found.charging(0.0, time.monotonic()))
    with watching(vital("battery.BAT0.charging", turns(0.0), "charging")) as found:
        assert found.charging(0.0, time.monotonic()) is False
    with watching(vital("battery.BAT0.charging", turns(OSError("no")), "charging")) as found:
        assert found.charging(0.0, time.monotonic()) is None
    with watching() as found:
        assert found.charging(0.0, time.monotonic()) is False
    assert Watch(RATE_HZ, []).charging(0.0, 1.0) is None


def test_fed_readings_are_thinned_and_checked() -> None:
    found = fed("temperature", (0.0, 40.0), (0.1, 41.0), (0.6, 42.0), (1.2, 400.0), (1.3, 43.0), (1.9, None))
    [part] = found.between(0.0, 2.0)
    assert (part.readings, part.first, part.last) == (3, 40.0, 43.0)
