from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_joules import meters
from pytest_joules.errors import MeterError, Unmeasured, UsageError
from pytest_joules.meters import Chosen, choose, look
from pytest_joules.records import Rail


def rail(scope: str, *covers: str, basis: str = "measured", role: str = "counted") -> Rail:
    name = f"{scope}.{'-'.join(covers)}.{basis}"
    return Rail(
        name=name, scope=scope, covers=covers, kind="instant", basis=basis, unit="W", source="made up", role=role
    )  # type: ignore[arg-type]


class Meter:
    def __init__(self, name: str, *rails: Rail, notes: tuple[str, ...] = ()) -> None:
        self.name, self.rails, self.notes = name, rails, notes

    def open(self, rate_hz: float) -> meters.Reader:
        raise MeterError("nothing is opened here")


CHIP = Meter("chipmeter", rail("chip", "cpu", "gpu"))
PLUG = Meter("plug", rail("wall", "wall"))
GUESS = Meter("guess", rail("chip", "cpu", basis="estimated"))


@pytest.fixture
def have(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, list[str | None]]]:
    """Sources by name: what they find, or the error they raise. Returns the arguments that each was asked with."""

    def install(**found: Meter | Sequence[Meter] | Exception) -> dict[str, list[str | None]]:
        asked: dict[str, list[str | None]] = {name: [] for name in found}

        def source(name: str, what: Any) -> SimpleNamespace:
            def find(argument: str | None) -> Sequence[Meter]:
                asked[name].append(argument)
                if isinstance(what, Exception):
                    raise what
                return [what] if isinstance(what, Meter) else what

            return SimpleNamespace(NAME=name, find=find)

        known: Mapping[str, Any] = {name: source(name, what) for name, what in found.items()}
        monkeypatch.setattr(meters, "sources", lambda: dict(known))
        return asked

    return install


def test_the_sources_of_the_package_are_found_by_listing_it() -> None:
    known = meters.sources()
    assert {"estimate", "nvml", "rapl", "macmon"} <= set(known)
    assert "sampler" not in known


def test_a_named_source(have) -> None:
    have(chipmeter=CHIP, guess=GUESS)
    chosen = choose("chipmeter", scope="chip", basis="measured")
    assert chosen == Chosen(CHIP, "chip", CHIP.rails, "named by --joules-meter")
    assert (chosen.basis, chosen.covers) == ("measured", ("cpu", "gpu"))


@pytest.mark.parametrize(
    ("wanted", "argument"), [("plug:http://10.0.0.7/rpc", "http://10.0.0.7/rpc"), ("plug", None), ("plug:", None)]
)
def test_what_stands_behind_a_colon_goes_to_the_source(have, wanted: str, argument: str | None) -> None:
    asked = have(plug=PLUG)
    assert choose(wanted, scope=None, basis="any").meter is PLUG
    assert asked == {"plug": [argument]}


@pytest.mark.parametrize(
    ("wanted", "words"),
    [("chipmetre", "no source 'chipmetre'; did you mean 'chipmeter'?; known: chipmeter, guess"), ("zzz", "no source 'zzz'; known: chipmeter, guess")],
)  # fmt: skip
def test_an_unknown_name_with_the_nearest(have, wanted: str, words: str) -> None:
    asked = have(guess=GUESS, chipmeter=CHIP)
    with pytest.raises(UsageError) as caught:
        choose(wanted, scope=None, basis="any")
    assert words in str(caught.value)
    assert asked == {"guess": [], "chipmeter": []}


def test_a_named_source_that_cannot_be_used_says_why_and_no_other_is_taken(have) -> None:
    asked = have(chipmeter=MeterError("meter chipmeter: readable by root only", "add a udev rule"), guess=GUESS)
    with pytest.raises(MeterError, match="readable by root only; add a udev rule"):
        choose("chipmeter", scope=None, basis="any")
    assert asked["guess"] == []


def test_auto_prefers_what_is_measured(have) -> None:
    have(guess=GUESS, plug=PLUG, chipmeter=CHIP)
    assert choose("auto", scope=None, basis="any").meter is CHIP
    have(guess=GUESS, plug=PLUG)
    assert choose("auto", scope=None, basis="any").meter is PLUG
    have(guess=GUESS)
    chosen = choose("auto", scope=None, basis="any")
    assert (chosen.meter, chosen.basis) == (GUESS, "estimated")


def test_auto_tells_why_no_measured_source_was_taken(have) -> None:
    have(guess=GUESS, chipmeter=MeterError("meter chipmeter: readable by root only", "add a udev rule"))
    assert "readable by root only; add a udev rule" in choose("auto", scope=None, basis="any").because


def test_auto_passes_over_what_was_tried_in_vain(have) -> None:
    have(chipmeter=CHIP, plug=PLUG)
    assert choose("auto", scope=None, basis="measured", without={"chipmeter"}).meter is PLUG
    with pytest.raises(Unmeasured):
        choose("auto", scope=None, basis="measured", without={"chipmeter", "plug"})


def test_among_measured_sources_the_one_that_covers_more_of_a_scope(have) -> None:
    less = Meter("less", rail("chip", "cpu"))
    have(less=less, chipmeter=CHIP)
    assert choose("auto", scope="chip", basis="measured").meter is CHIP


@pytest.mark.parametrize(
    ("scope", "basis", "words"),
    [
        ("board", "any", "the suite needs a source of scope board and this machine has none"),
        ("chip", "measured", "the suite needs a measured source of scope chip and this machine has none"),
        (None, "measured", ""),
    ],
)
def test_auto_without_a_source_that_fits_is_unmeasured_with_reasons(have, scope: Any, basis: str, words: str) -> None:
    have(guess=GUESS, chipmeter=MeterError("meter chipmeter: readable by root only", "add a udev rule"))
    with pytest.raises(Unmeasured) as caught:
        choose("auto", scope=scope, basis=basis)
    assert words in str(caught.value)
    assert "meter chipmeter: readable by root only; add a udev rule" in str(caught.value)


@pytest.mark.parametrize(
    ("wanted", "scope", "basis", "words"),
    [
        ("plug", "chip", "measured", "meter plug reads scope wall; the suite requires chip"),
        ("guess", "chip", "measured", "meter guess is estimated; the suite requires a measured source"),
    ],
)
def test_a_named_source_that_does_not_fit_is_unmeasured(have, wanted: str, scope: Any, basis: str, words: str) -> None:
    have(plug=PLUG, guess=GUESS)
    with pytest.raises(Unmeasured, match=words):
        choose(wanted, scope=scope, basis=basis)


def test_rails_of_one_scope_are_summed_and_others_stand_apart(have) -> None:
    both = Meter(
        "both",
        rail("chip", "cpu"),
        rail("chip", "dram"),
        rail("wall", "wall"),
        rail("chip", "cpu", "dram", role="check"),
    )
    have(both=both)
    assert choose("both", scope="chip", basis="measured").rails == both.rails[:2]
    assert choose("both", scope="wall", basis="measured").rails == both.rails[2:3]
    assert choose("both", scope="chip", basis="measured").covers == ("cpu", "dram")


def test_a_sum_is_as_good_as_its_worst_part(have) -> None:
    mixed = Meter("mixed", rail("chip", "cpu"), rail("chip", "dram", basis="estimated"))
    have(mixed=mixed)
    assert choose("mixed", scope="chip", basis="any").basis == "estimated"
    with pytest.raises(Unmeasured, match="meter mixed is estimated"):
        choose("mixed", scope="chip", basis="measured")


def test_a_source_that_breaks_takes_no_other_with_it(have) -> None:
    have(third=ZeroDivisionError("division by zero"), none=[], chipmeter=CHIP)
    assert choose("auto", scope=None, basis="measured").meter is CHIP
    third, none, chip = look()
    assert (third.meters, third.reason) == ((), "meter third: ZeroDivisionError: division by zero")
    assert (none.meters, none.reason) == ((), "meter none: nothing to read on this machine")
    assert (chip.meters, chip.reason) == ((CHIP,), "")
    assert [found.source for found in look(["chipmeter"])] == ["chipmeter"]
