"""Several sources in one run: sums of parts that do not overlap, and meters recorded beside the one that counts."""

import time
from collections.abc import Sequence

import numpy as np
import pytest

from pytest_joules import gates, meters
from pytest_joules.errors import Unmeasured, UsageError
from pytest_joules.meters.sampler import Power
from pytest_joules.reading import evenness
from pytest_joules.records import Rail, RailEnergy, Sample


class Steady:
    """A made source that always reads the same watts."""

    notes: tuple[str, ...] = ()

    def __init__(self, name: str, scope: str, covers: tuple[str, ...], power_w: float) -> None:
        self.name, self.power_w, self.interval_s = name, power_w, 0.02
        self.rails = (
            Rail(
                name=f"{name}.all", scope=scope, covers=covers, kind="instant", basis="measured", unit="W", source="made"
            ),
        )  # fmt: skip

    def find(self, argument: str | None) -> "Sequence[Steady]":
        return [self]

    def open(self, rate_hz: float) -> "Steady":
        return self

    def read(self) -> list[Sample]:
        return [Sample(self.rails[0].name, time.monotonic(), self.power_w)]

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def made_sources(monkeypatch):
    made = [
        Steady("card", "gpu", ("gpu", "vram"), 100.0),
        Steady("package", "chip", ("cpu", "dram"), 40.0),
        Steady("soc", "chip", ("cpu", "gpu"), 60.0),
        Steady("plug", "wall", ("system",), 180.0),
    ]
    monkeypatch.setattr(meters, "sources", lambda: {source.name: source for source in made})


def test_parts_that_do_not_overlap_are_added_and_named():
    chosen = meters.choose("card+package", scope=None, basis="measured")
    assert (chosen.name, chosen.scope) == ("card+package", "gpu+chip")
    assert chosen.covers == ("cpu", "dram", "gpu", "vram")
    with Power(chosen, rate_hz=50.0) as power, power.window() as window:
        time.sleep(0.3)
    assert window.power_w == pytest.approx(140.0, rel=0.02)


def test_parts_that_overlap_are_not_added():
    with pytest.raises(UsageError, match="package and soc both cover cpu"):
        meters.choose("package+soc", scope=None, basis="any")


def test_the_wall_holds_the_chip_and_is_not_added_to_it():
    with pytest.raises(UsageError, match="contain each other"):
        meters.choose("package+plug", scope=None, basis="any")


def test_a_sum_is_of_its_own_scope():
    assert meters.choose("card+package", scope="gpu+chip", basis="any").scope == "gpu+chip"
    with pytest.raises(Unmeasured, match=r"reads scope gpu\+chip; the suite requires gpu"):
        meters.choose("card+package", scope="gpu", basis="any")


def test_a_suite_that_requires_card_and_chip_gets_the_sum_of_the_two_by_itself():
    chosen = meters.choose("auto", scope="gpu+chip", basis="measured")
    assert (chosen.name, chosen.scope) == ("card+package", "gpu+chip")
    assert chosen.because == "auto: the best measured source here of scope gpu+chip"
    with pytest.raises(Unmeasured, match=r"of scope gpu\+chip"):
        meters.choose("auto", scope="gpu+chip", basis="measured", without={"card"})


def test_one_rail_of_a_source_can_be_named(monkeypatch):
    two = Steady("two", "chip", ("cpu",), 10.0)
    two.rails = tuple(
        Rail(
            name=f"two.{part}", scope="chip", covers=(part,), kind="instant", basis="measured", unit="W", source="made"
        )
        for part in ("cpu", "dram")
    )
    monkeypatch.setattr(meters, "sources", lambda: {"two": two})
    assert meters.choose("two", scope=None, basis="any").covers == ("cpu", "dram")
    assert meters.choose("two/dram", scope=None, basis="any").covers == ("dram",)
    with pytest.raises(UsageError, match=r"two has no rail 'dran'; did you mean 'dram'\?"):
        meters.choose("two/dran", scope=None, basis="any")


@pytest.mark.parametrize(
    ("wanted", "by", "parts"),
    [
        ("card:0+package", "+", ["card:0", "package"]),
        ("card:0,1,plug:host,package", ",", ["card:0,1", "plug:host", "package"]),
        ("card:./a+b+package/dram", "+", ["card:./a+b", "package/dram"]),
        ("card:./a+b", "+", ["card:./a+b"]),
        ("card:watts a,b,plug", ",", ["card:watts a,b", "plug"]),
    ],
)
def test_a_sign_inside_an_argument_divides_only_before_a_source(wanted, by, parts):
    assert meters._split(wanted, by) == parts


def test_a_meter_beside_is_recorded_and_not_counted():
    chosen = meters.choose("package,plug", scope=None, basis="any")
    with Power(chosen, rate_hz=50.0) as power, power.window() as window:
        time.sleep(0.3)
    assert window.power_w == pytest.approx(40.0, rel=0.02)
    energies = {rail.rail: rail.energy_j for rail in window.reading.rails}
    assert energies["plug.all"] / window.window_s == pytest.approx(180.0, rel=0.02)


def test_how_evenly_a_meter_was_read():
    found = evenness(np.array([0.0, 0.1, 0.2, 0.3, 0.62, 0.7]))
    assert (found.readings, found.interval_s, found.missed) == (6, pytest.approx(0.1), 2)
    assert found.late_worst_s == pytest.approx(0.22)


def test_the_part_that_runs_the_model_is_preferred():
    assert meters.choose("auto", scope=None, basis="measured").name == "card"
    assert meters.choose("auto", scope=None, basis="measured", without=["card"]).name == "soc"


def test_wall_rises_with_the_chip():
    gate = gates.wall_slope([20.0, 60.0], [60.0, 108.0], "package", "plug")
    assert (gate.outcome, gate.value) == ("pass", "slope 1.20, package is 48% of it")


@pytest.mark.parametrize(("wall_w", "slope"), [([60.0, 92.0], "0.80"), ([60.0, 120.0], "1.50")])
def test_a_wall_that_rises_too_little_or_too_much_is_flagged(wall_w, slope):
    gate = gates.wall_slope([20.0, 60.0], wall_w, "package", "plug")
    assert gate.outcome == "flag"
    assert f"slope {slope}" in gate.value


def test_without_load_steps_there_is_no_slope():
    assert gates.wall_slope([50.0, 52.0], [90.0, 95.0], "package", "plug").outcome == "not evaluable"


@pytest.mark.parametrize(("share", "outcome"), [(None, "pass"), (0.04, "pass"), (0.06, "flag"), (0.3, "void")])
def test_counter_against_power(share, outcome):
    assert gates.counter_check(100.0, 104.0, share, 0.05, 0.25).outcome == outcome


def test_mended_readings_flag_only_where_they_count():
    def rail(name: str, *flags: str) -> RailEnergy:
        return RailEnergy(
            rail=name, energy_j=1.0, uncertainty_j=0.0, updates=9, refresh_s=0.1, longest_gap_s=0.1, flags=flags
        )

    assert gates.readings([rail("a"), rail("b", "2 readings dropped")], ["a"]).outcome == "pass"
    flagged = gates.readings([rail("a", "2 readings dropped")], ["a"])
    assert (flagged.outcome, flagged.value) == ("flag", "a: 2 readings dropped")
