import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from pytest_joules.errors import MeterError, Void
from pytest_joules.meters import Chosen, sampler
from pytest_joules.meters.sampler import Power, PowerWindow, Sampler
from pytest_joules.reading import Reading, checks, group, total
from pytest_joules.records import Rail, RailEnergy, Sample
from pytest_joules.suite import GateLimits


def rail(name: str = "cpu", **changes: Any) -> Rail:
    usual: dict[str, Any] = {
        "scope": "chip",
        "covers": (name,),
        "kind": "counter",
        "basis": "measured",
        "unit": "J",
        "source": "made up",
    }
    return Rail(name=name, **(usual | changes))


INTERVAL_S = 0.04
RATE_HZ = 1 / INTERVAL_S


class Made:
    """A meter whose readings are made by a function of the number of the read; read often, but not so often that a busy machine gaps."""

    name = "made"
    notes = ()

    def __init__(
        self, read: Callable[[int], Sequence[Sample]], *rails: Rail, interval_s: float | None = INTERVAL_S
    ) -> None:
        self.rails, self.interval_s, self._read = rails or (rail(),), interval_s, read
        self.opened = self.closed = self.reads = 0

    def open(self, rate_hz: float) -> "Made":
        self.opened += 1
        self.reads = 0
        return self

    def read(self) -> Sequence[Sample]:
        self.reads += 1
        return self._read(self.reads)

    def close(self) -> None:
        self.closed += 1


def steady(watts: float = 20.0) -> Callable[[int], Sequence[Sample]]:
    """A counter that rises by so many joules a second."""

    def read(_: int) -> Sequence[Sample]:
        now = time.monotonic()
        return [Sample("cpu", now, watts * now)]

    return read


def chosen(meter: Made) -> Chosen:
    return Chosen(meter, "chip", tuple(r for r in meter.rails if r.role == "counted"), "made for this")


@contextmanager
def sampling(meter: Made, rate_hz: float = RATE_HZ) -> Iterator[Power]:
    with Power(chosen(meter), rate_hz) as power:
        yield power


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "STUCK_AFTER_S", 0.5)


def test_a_meter_is_read_until_it_is_stopped() -> None:
    meter = Made(steady())
    with sampling(meter) as power:
        time.sleep(0.1)
        assert power.failure == ""
    assert (meter.opened, meter.closed) == (1, 1)
    reads = meter.reads
    time.sleep(0.05)
    assert meter.reads == reads
    assert not [t for t in threading.enumerate() if t.name == "joules-made"]


def test_the_energy_of_a_stretch_is_exact_whatever_the_threads_did() -> None:
    def late(number: int) -> Sequence[Sample]:
        # Every third read hangs: its reading is late, and dated to when it came.
        if number % 3 == 0:
            time.sleep(INTERVAL_S / 2)
        return steady(50.0)(number)

    with sampling(Made(late)) as power:
        start = time.monotonic()
        time.sleep(0.5)
        end = time.monotonic()
        reading = power.measure(start, end)
    assert reading.energy_j == pytest.approx(50.0 * (end - start), rel=1e-3)
    assert reading.power_w == pytest.approx(50.0, rel=1e-3)
    assert (reading.start_mono, reading.end_mono) == (start, end)


def test_a_read_that_hung_is_not_made_good_by_a_burst() -> None:
    times: list[float] = []

    def hangs_once(number: int) -> Sequence[Sample]:
        if number == 5:
            time.sleep(0.4)
        times.append(time.monotonic())
        return steady()(number)

    with sampling(Made(hangs_once)):
        while len(times) < 10:
            time.sleep(0.01)
    # Ten reads were missed; the next ones keep their distance all the same.
    assert times[8] - times[5] > 2 * INTERVAL_S


def test_a_meter_that_speaks_of_its_own_accord_is_waited_for() -> None:
    def speaks(number: int) -> Sequence[Sample]:
        time.sleep(INTERVAL_S)
        return steady()(number)

    with sampling(Made(speaks, interval_s=None)) as power, power.window() as window:
        time.sleep(0.4)
    assert window.power_w == pytest.approx(20.0, rel=1e-3)


def test_the_margin_is_sampled_on_both_sides_of_a_window() -> None:
    with sampling(Made(steady())) as power:
        assert power.margin_s == pytest.approx(2 * INTERVAL_S)
        with power.window() as window:
            time.sleep(0.4)
        before = power.samples(0.0, window.reading.start_mono)
        after = power.samples(window.reading.end_mono, math.inf)
    assert before
    assert after


@pytest.mark.parametrize(
    ("times", "lag_s", "margin_s"),
    [
        ({}, 0.0, 0.2),
        ({"refresh_s": 0.5}, 0.0, 1.0),
        ({"averaging_s": 1.0}, 0.0, 2.0),
        ({"averaging_s": 1.0, "refresh_s": 0.1}, 0.0, 2.2),
        ({"refresh_s": 0.5}, 0.25, 1.5),
    ],
)
def test_the_margin_is_twice_what_the_slowest_sensor_may_be_late(
    times: dict[str, float], lag_s: float, margin_s: float
) -> None:
    power = Power(chosen(Made(steady(), rail(**times), rail("dram"))), 10.0)
    power.lags_s["cpu"] = lag_s
    assert power.margin_s == pytest.approx(margin_s)


def test_a_window_in_code() -> None:
    with sampling(Made(steady(30.0))) as power:
        with power.window() as window:
            assert isinstance(window, PowerWindow)
            assert repr(window) == "<power window, open, made, chip, measured>"
            with pytest.raises(Void, match="still open; read it after the with block"):
                window.energy_j  # noqa: B018
            time.sleep(0.4)
        again = power.latest_power_w()
    assert window.window_s >= 0.4
    assert window.power_w == pytest.approx(30.0, rel=1e-3)
    assert window.energy_j == pytest.approx(30.0 * window.window_s, rel=1e-3)
    assert again == pytest.approx(30.0, rel=1e-3)
    assert repr(window).startswith("<power window: ")
    assert repr(window).endswith(" s, made, chip, measured>")
    assert {gate.outcome for gate in window.gates} == {"pass"}
    assert window.flags == ()


def test_a_block_that_is_short_for_the_sensor_is_flagged() -> None:
    with sampling(Made(steady(30.0))) as power, power.window() as window:
        time.sleep(3.5 * INTERVAL_S)
    assert window.energy_j > 0
    assert any(flag.startswith("sensor updates: ") for flag in window.flags)
    assert all("answers" not in flag for flag in window.flags)
    assert repr(window).endswith(", made, chip, measured, flagged>")


def test_two_meters_far_apart_give_no_energy() -> None:
    def both(_: int) -> Sequence[Sample]:
        now = time.monotonic()
        return [Sample("box.energy", now, 20.0 * now), Sample("box.power", now, 50.0 + now % 1)]

    meter = Made(both, rail("box.energy"), replace(rail("box.power"), kind="instant", unit="W", role="check"))
    with sampling(meter) as power, power.window() as window:
        time.sleep(0.4)
    with pytest.raises(Void, match="counter against power"):
        window.energy_j  # noqa: B018
    assert "void: counter against power" in repr(window)


def test_an_error_in_the_block_leaves_the_window_measured() -> None:
    opened: list[PowerWindow] = []

    def spoil(power: Power) -> None:
        with power.window() as window:
            opened.append(window)
            time.sleep(0.4)
            raise KeyError("in the block")

    with sampling(Made(steady())) as power:
        with pytest.raises(KeyError):
            spoil(power)
        assert opened[0].power_w == pytest.approx(20.0, rel=1e-3)


@pytest.mark.parametrize(
    ("error", "words"),
    [(MeterError("meter made: unplugged"), "meter made: unplugged"), (OSError("gone"), "OSError: gone")],
)
def test_a_meter_that_dies_voids_the_window_it_died_in(error: Exception, words: str) -> None:
    def dies(number: int) -> Sequence[Sample]:
        if number > 10:
            raise error
        return steady()(number)

    with sampling(Made(dies)) as power:
        with power.window() as window:
            time.sleep(0.5)
        assert power.failure == words
        assert window.reading.energy_j is None
        assert words in window.reading.reason
        with pytest.raises(Void, match=f"no energy for this window: .*{words}"):
            window.energy_j  # noqa: B018
        assert repr(window).startswith("<power window, void: ")


def test_a_meter_that_died_can_be_opened_again() -> None:
    meter = Made(steady())
    real = meter._read

    def dies(number: int) -> Sequence[Sample]:
        if number > 5 and meter.opened == 1:
            raise MeterError("meter made: unplugged")
        return real(number)

    meter._read = dies
    with sampling(meter) as power:
        begun = time.monotonic()
        while not power.failure and time.monotonic() < begun + 10.0:
            time.sleep(0.01)
        assert power.failure == "meter made: unplugged"
        earlier = len(power.samples(0.0, math.inf))
        power.restart()
        assert power.failure == ""
        with power.window() as window:
            time.sleep(0.4)
        assert window.power_w == pytest.approx(20.0, rel=1e-3)
        assert len(power.samples(0.0, math.inf)) > earlier
    assert (meter.opened, meter.closed) == (2, 2)


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (lambda _: [], "meter made: no reading within 1 s; run 'joules meters'"),
        (lambda _: [Sample("cpu", time.monotonic(), math.nan)], "meter made: no reading within 1 s"),
        (lambda _: [Sample("another", time.monotonic(), 1.0)], "meter made: no reading within 1 s"),
        (lambda _: 1 / 0, "meter made: ZeroDivisionError: division by zero"),
    ],
)
def test_a_meter_that_never_gives_a_reading_is_refused_and_closed(read: Any, words: str) -> None:
    meter = Made(read)
    with pytest.raises(MeterError, match=words):
        Sampler(chosen(meter), RATE_HZ).start(timeout_s=0.6)
    assert meter.closed == 1


def test_stopping_what_does_not_run_does_nothing() -> None:
    one = Sampler(chosen(Made(steady())), RATE_HZ)
    one.stop()
    one.start()
    one.stop()
    one.stop()
    assert not one.wait_past(time.monotonic() + 5.0, timeout_s=0.01)


def test_samples_that_arrive_late_or_out_of_order_belong_to_their_own_time() -> None:
    late = Sampler(chosen(Made(steady())), RATE_HZ)
    late._take([Sample("cpu", mono, mono) for mono in (1.0, 2.0, 5.0)])
    late._take([Sample("cpu", mono, mono) for mono in (3.0, 4.0, math.nan, 6.0, 5.5)])
    assert [s.mono for s in late.samples(2.5, 5.5)] == [5.0, 3.0, 4.0, 5.5]
    assert [s.mono for s in late.samples(-math.inf, 2.5)] == [1.0, 2.0]
    assert late.samples(6.5, math.inf) == []


def test_the_power_just_now_needs_two_readings_of_every_rail() -> None:
    def read(number: int) -> Sequence[Sample]:
        now = time.monotonic()
        dram = [Sample("dram", now, 4.0)] if number % 2 else [Sample("dram", now, math.nan)]
        return [Sample("cpu", now, 20.0 * now), *dram, Sample("check", now, 99.0)]

    rails = (rail(), rail("dram", kind="instant"), rail("check", kind="instant", role="check"))
    with sampling(Made(read, *rails)) as power:
        time.sleep(0.15)
        assert power.latest_power_w() == pytest.approx(24.0, rel=1e-3)
    quiet = Sampler(chosen(Made(steady())), RATE_HZ)
    now = time.monotonic()
    for age_s, power_w in ((0.2, None), (0.1, 20.0)):
        quiet._take([Sample("cpu", now - age_s, -20.0 * age_s)])
        assert quiet.latest_power_w() == (None if power_w is None else pytest.approx(power_w))


def part(
    name: str, energy_j: float | None, uncertainty_j: float = 0.0, reason: str = "", calibration_j: float = 0.0
) -> RailEnergy:
    return RailEnergy(
        rail=name, energy_j=energy_j, uncertainty_j=uncertainty_j, updates=9, refresh_s=0.1, longest_gap_s=0.1, reason=reason,
        calibration_j=calibration_j,
    )  # fmt: skip


def test_rails_are_summed_own_errors_in_quadrature_and_gains_alike() -> None:
    rails = [
        part("cpu", 30.0, 3.0, calibration_j=1.0),
        part("dram", 10.0, 4.0, calibration_j=2.0),
        part("check", 99.0, 50.0),
    ]
    reading = total(rails, ["cpu", "dram"], 5.0, 15.0)
    assert (reading.energy_j, reading.calibration_j) == (40.0, 3.0)
    assert reading.edges_j == pytest.approx(((9 - 1) + (16 - 4)) ** 0.5)
    assert reading.uncertainty_j == pytest.approx(((9 - 1) + (16 - 4) + 3**2) ** 0.5)
    assert reading.power_w == 4.0
    assert [r.rail for r in reading.rails] == ["cpu", "dram", "check"]


def test_a_missing_part_makes_the_whole_missing_and_never_smaller() -> None:
    rails = [part("cpu", 30.0, 3.0), part("dram", None, reason="a gap of 3 s")]
    reading = total(rails, ["cpu", "dram"], 5.0, 15.0, "meter made: unplugged")
    assert (reading.energy_j, reading.power_w) == (None, None)
    assert reading.reason == "meter made: unplugged; dram: a gap of 3 s"
    assert total(rails, ["cpu"], 5.0, 15.0).energy_j == 30.0


def test_power_stands_in_for_a_counter_without_energy() -> None:
    rails = [part("gpu.energy", None, reason="it was reset"), part("gpu.power", 30.0, 3.0), part("dram", 10.0, 4.0)]
    reading = total(rails, ["gpu.energy", "dram"], 5.0, 15.0, pairs=[("gpu.energy", "gpu.power")])
    assert (reading.energy_j, reading.uncertainty_j) == (40.0, 5.0)
    assert reading.counted == ("gpu.power", "dram")
    assert reading.stood_in == ("gpu.energy: it was reset; its power is integrated instead",)
    assert reading.pairs == ()


def test_a_counter_and_its_power_are_held_against_each_other() -> None:
    rails = [part("0.energy", 30.0), part("0.power", 31.0), part("1.energy", 50.0), part("1.power", 90.0)]
    pairs = [("0.energy", "0.power"), ("1.energy", "1.power")]
    reading = total(rails, ["0.energy", "1.energy"], 0.0, 10.0, pairs=pairs)
    found = checks(reading, GateLimits(), {"0.power": 0.1, "1.power": 0.1}, min_samples=5, thin_voids=True)
    compared = [gate for gate in found if gate.name == "counter against power"]
    assert [gate.outcome for gate in compared] == ["pass", "void"]
    assert "50 J against 90 J" in str(compared[1])


def test_samples_are_grouped_by_rail_in_their_order() -> None:
    by_rail = group([Sample("a", 1.0, 10.0), Sample("b", 1.5, 1.0), Sample("a", 2.0, 20.0)])
    assert {name: (list(t), list(v)) for name, (t, v) in by_rail.items()} == {
        "a": ([1.0, 2.0], [10.0, 20.0]),
        "b": ([1.5], [1.0]),
    }
    assert group([]) == {}


def test_a_reading_has_a_mean_power() -> None:
    assert Reading(10.0, 14.0, 80.0, 1.0, ()).power_w == 20.0
    assert Reading(10.0, 14.0, None, 0.0, ()).power_w is None
