"""What is looked at in a window whose suite sets something on the machine, and settings that are held in decode alone."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_joules import gates, knobs
from pytest_joules.engines import Round
from pytest_joules.errors import EngineError, UsageError
from pytest_joules.knobs import Cap, Change
from pytest_joules.protocol import settings
from pytest_joules.reading import Reading
from pytest_joules.records import RailEnergy
from pytest_joules.suite import Draft, Request, Server, Setting
from pytest_joules.vitals import Vital
from pytest_joules.vitals.watch import Watch

CLOCK = Vital(name="chip.clock", what="clock", kind="gauge", unit="MHz", source="made up")


class Knob:
    """A knob whose setting is a variable."""

    NAME = "chip_max_mhz"

    def __init__(self) -> None:
        self.value, self.times = "free", list[tuple[str, float]]()
        self.caps = [Cap(kind="vital", of="chip.clock", at_most=1800.0, unit="MHz")]

    @contextlib.contextmanager
    def held(self, value: object) -> Iterator[None]:
        change = Change(what="the clock", wanted="set", steps=(), back=(), now=lambda: self.value)
        self.value = "set"
        self.times.append(("set", time.monotonic()))
        with knobs.held(self.NAME, [change], self.caps):
            yield
        self.value = "free"
        self.times.append(("free", time.monotonic()))


@pytest.fixture
def knob(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Knob:
    made = Knob()
    monkeypatch.setenv("JOULES_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(knobs, "knobs", lambda: {made.NAME: made})
    return made


def setting(value: Any, **request: Any) -> Setting:
    return Setting(
        engine="x", model="m", format=None, server=Server(), request=Request(**request), draft=Draft(),
        knobs={Knob.NAME: value},
    )  # fmt: skip


def reading(start: float, end: float, power_w: float = 100.0) -> Reading:
    rail = RailEnergy(
        rail="nvml.gpu0.energy", energy_j=power_w * (end - start), uncertainty_j=0.0, updates=9, refresh_s=None, longest_gap_s=0.0
    )  # fmt: skip
    return Reading(start, end, rail.energy_j, 0.0, (rail,), counted=(rail.rail,))


def watch(*clocks: tuple[float, float]) -> Watch:
    seen = Watch(rate_hz=1000.0, vitals=[])
    for mono, mhz in clocks:
        seen.feed([CLOCK], {CLOCK.name: mhz}, mono)
    return seen


def outcomes(found: Sequence[gates.Gate]) -> dict[str, str]:
    return {gate.name: gate.outcome for gate in found}


@pytest.mark.parametrize(
    ("mhz", "outcome"),
    [(1795.0, "pass"), (1850.0, "pass"), (1860.0, "void"), (2900.0, "void"), (None, "not evaluable")],
)
def test_a_window_whose_clock_was_over_the_cap_is_void(knob: Knob, mhz: float | None, outcome: str) -> None:
    seen = watch() if mhz is None else watch((100.2, 1500.0), (100.5, mhz))
    with knob.held(1800):
        found = settings.setting_gates(setting(1800), SimpleNamespace(), seen, reading(100.0, 101.0), "measured")  # type: ignore[arg-type]
    assert outcomes(found) == {"settings in force": "pass", "cap held": outcome, "setting seen by the meter": "pass"}
    if outcome == "void":
        assert f"chip.clock {mhz:.0f} MHz against 1800 MHz set" in str(found[1])


def test_a_window_in_which_somebody_changed_the_setting_is_void(knob: Knob) -> None:
    with knob.held(1800):
        knob.value = "2900"
        found = settings.setting_gates(
            setting(1800), SimpleNamespace(), watch((100.5, 1.0)), reading(100.0, 101.0), "measured"
        )  # type: ignore[arg-type]
    assert outcomes(found) == {"settings in force": "void", "cap held": "pass", "setting seen by the meter": "pass"}
    assert "the clock was set to set and reads 2900" in str(found[0])
    assert len(knobs.told()) == 1


@pytest.mark.parametrize(("power_w", "outcome"), [(150.0, "pass"), (160.0, "void")])
def test_a_power_limit_is_held_against_the_mean_power_of_its_rails(knob: Knob, power_w: float, outcome: str) -> None:
    knob.caps = [Cap(kind="power", of="nvml.gpu0", at_most=150.0, unit="W")]
    with knob.held(150):
        found = settings.setting_gates(setting(150), SimpleNamespace(), watch(), reading(0.0, 9.0, power_w), "measured")  # type: ignore[arg-type]
    assert outcomes(found)["cap held"] == outcome


def test_a_knob_that_does_not_tell_what_it_did_is_not_taken_at_its_word() -> None:
    found = settings.setting_gates(setting(150), SimpleNamespace(), watch(), reading(0.0, 9.0), "measured")  # type: ignore[arg-type]
    assert outcomes(found) == {"settings in force": "pass", "cap held": "not evaluable"}
    assert "knob chip_max_mhz could not be compared" in str(found[1])


def test_an_estimate_does_not_see_a_cap(knob: Knob) -> None:
    with knob.held(1800):
        found = settings.setting_gates(
            setting(1800), SimpleNamespace(), watch((100.5, 1.0)), reading(100.0, 101.0), "estimated"  # type: ignore[arg-type]
        )  # fmt: skip
    assert outcomes(found)["setting seen by the meter"] == "flag"


def test_a_suite_without_settings_has_no_gate_on_them() -> None:
    bare = Setting(engine="x", model="m", format=None, server=Server(), request=Request(), draft=Draft(), knobs={})
    assert settings.setting_gates(bare, SimpleNamespace(), watch(), reading(0.0, 9.0), "measured") == []  # type: ignore[arg-type]


class Phases:
    """A server that reads its prompts for a while and then decodes."""

    def __init__(self, knob: Knob, fails: bool = False) -> None:
        self.knob, self.fails, self.slots = knob, fails, 1
        self.seen: Mapping[str, str] = {}

    def run_round_in_phases(
        self, prompts: Sequence[Sequence[int]], answer_tokens: int, round_index: int, decoding: Callable[[], None]
    ) -> Round:
        start = time.monotonic()
        prefill = self.knob.value
        if self.fails:
            raise EngineError("died")
        told = threading.Thread(target=decoding)
        told.start()
        told.join()
        deadline = time.monotonic() + 20
        while self.knob.value == "free" and time.monotonic() < deadline:
            time.sleep(0.005)
        self.seen = {"prefill": prefill, "decode": self.knob.value}
        # Long enough for the restorer to have answered, so that the setting counts as held.
        while not knobs.active() and time.monotonic() < deadline:
            time.sleep(0.005)
        return Round(start, time.monotonic(), ())


def test_a_setting_of_decode_alone_is_made_at_the_last_first_token_and_lifted_at_the_last_answer(knob: Knob) -> None:
    inner = Phases(knob)
    server: Any = settings.phased(inner, {knob.NAME: 1800})  # type: ignore[arg-type]
    with knobs.at_hand():
        start = time.monotonic()
        for index in range(2):
            server.run_round([[1]], 8, index)
            assert inner.seen == {"prefill": "free", "decode": "set"}
            assert knob.value == "free"
        end = time.monotonic()
    assert server.slots == 1
    switched = settings.switches(server, start, end)["switches"]
    assert [list(times) for times in switched] == [["first_tokens_s", "held_s", "lifting_s", "lifted_s"]] * 2
    assert all(list(times.values()) == sorted(times.values()) for times in switched)
    assert settings.switches(server, end, end + 1) == {}


def test_the_cap_of_decode_is_held_against_readings_of_decode_alone(
    knob: Knob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "SETTLE_S", 1.0)
    server = settings.phased(Phases(knob), {knob.NAME: 1800})  # type: ignore[arg-type]
    stretch = settings.Stretch(asked=10.0, held=10.1, lifted=20.0, free=20.1, amiss=(), caps=tuple(knob.caps))
    server.stretches.append(stretch)  # type: ignore[attr-defined]
    asked = setting({"decode": 1800}, stream=True)
    fast_in_prefill = watch((9.0, 2900.0), (10.5, 2900.0), (15.0, 1790.0), (20.05, 2900.0))
    assert outcomes(settings.setting_gates(asked, server, fast_in_prefill, reading(8.0, 21.0), "measured")) == {
        "settings in force": "pass", "cap held": "pass", "setting seen by the meter": "pass",
    }  # fmt: skip
    too_fast = watch((15.0, 2900.0))
    assert (
        outcomes(settings.setting_gates(asked, server, too_fast, reading(8.0, 21.0), "measured"))["cap held"] == "void"
    )
    unseen = watch((9.0, 1000.0))
    assert (
        outcomes(settings.setting_gates(asked, server, unseen, reading(8.0, 21.0), "measured"))["cap held"]
        == "not evaluable"
    )


def test_a_round_that_fails_before_decode_sets_nothing(knob: Knob) -> None:
    server = settings.phased(Phases(knob, fails=True), {knob.NAME: 1800})  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="died"):
        server.run_round([[1]], 8, 0)
    assert knob.times == []


@pytest.mark.parametrize(
    "request_keys", [{}, {"stream": True, "closed_loop": True}], ids=["not streamed", "closed loop"]
)
def test_decode_alone_needs_streamed_rounds(knob: Knob, request_keys: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"knob chip_max_mhz: held in decode alone; .* set request.stream: true"):
        settings.check([setting({"decode": 1800}, **request_keys)])
    assert knob.times == []


def test_decode_alone_needs_an_engine_that_tells_when_it_begins() -> None:
    with pytest.raises(UsageError, match="this engine does not tell when decode begins; take llama-server"):
        settings.phased(SimpleNamespace(), {"chip_max_mhz": 1800})  # type: ignore[arg-type]
