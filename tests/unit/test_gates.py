from collections.abc import Sequence
from typing import Any

import pytest

from pytest_joules import gates
from pytest_joules.records import Gate, RailEnergy, RequestRecord


def answer(**changes: Any) -> RequestRecord:
    usual: dict[str, Any] = {
        "slot": 0, "round": 0, "sent_s": 0.0, "received_s": 3.2, "prompt_n": 24, "cache_n": 0, "predicted_n": 128,
        "prompt_ms": 60.0, "predicted_ms": 3200.0, "stop_type": "limit",
    }  # fmt: skip
    return RequestRecord(**(usual | changes))


def rail(name: str = "cpu", energy_j: float | None = 100.0, updates: int = 50, reason: str = "") -> RailEnergy:
    return RailEnergy(
        rail=name,
        energy_j=energy_j,
        uncertainty_j=1.0,
        updates=updates,
        refresh_s=0.2,
        longest_gap_s=0.2,
        reason=reason,
    )


def gate(outcome: str) -> Gate:
    return Gate(name="made up", outcome=outcome, value=None, limit="")


@pytest.mark.parametrize(
    ("found", "word"),
    [
        ((), "measured"),
        (("pass", "pass"), "measured"),
        (("pass", "flag"), "flagged"),
        (("pass", "not evaluable"), "flagged"),
        (("flag", "void", "pass"), "void"),
        (("not evaluable", "void"), "void"),
    ],
)
def test_the_worst_gate_decides(found: Sequence[str], word: str) -> None:
    assert gates.outcome([gate(outcome) for outcome in found]) == word


def test_a_gate_tells_value_limit_and_remedy() -> None:
    told = Gate(
        name="achieved batch", outcome="void", value=5.12345, limit="at least 95% of 8", remedy="ask for longer answers"
    )
    assert str(told) == "achieved batch: 5.123 (limit: at least 95% of 8); ask for longer answers"


@pytest.mark.parametrize(
    ("answers", "value"),
    [
        ([answer()] * 4, "4 of 4"),
        ([answer()] * 3, "3 of 4 answered"),
        ([], "0 of 4 answered"),
        ([answer()] * 3 + [answer(predicted_n=40)], "1 answers of 40 tokens instead of 128"),
        ([answer()] * 3 + [answer(predicted_n=0, predicted_ms=0.0)], "1 answers of 0 tokens instead of 128"),
        ([answer()] * 3 + [answer(stop_type="eos")], "stopped by eos, not by length"),
        ([answer()] * 3 + [answer(truncated=True)], "a prompt was truncated"),
        ([answer(predicted_n=4, stop_type="word")] * 3, "3 of 4 answered; 3 answers of 4 tokens instead of 128; stopped by word, not by length"),
        ([answer(stop_type=None)] * 4, "4 of 4"),
    ],
)  # fmt: skip
def test_every_request_is_answered_in_full(answers: list[RequestRecord], value: str) -> None:
    found = gates.requests_complete(answers, 4, 128)
    assert (found.value, found.outcome) == (value, "pass" if value == "4 of 4" else "void")
    assert bool(found.remedy) == (found.outcome == "void")


@pytest.mark.parametrize(
    ("cached", "wanted", "outcome", "value"),
    [
        (0, False, "pass", "0 of 48 prompt tokens from cache"),
        (23, False, "void", "46 of 48 prompt tokens from cache"),
        (23, True, "pass", "46 of 48 prompt tokens from cache"),
        (0, True, "void", "0 of 48 prompt tokens from cache"),
    ],
)
def test_the_prompt_cache_did_as_it_was_told(cached: int, wanted: bool, outcome: str, value: str) -> None:
    found = gates.prompt_cache([answer(prompt_n=24 - cached, cache_n=cached)] * 2, wanted=wanted)
    assert (found.outcome, found.value) == (outcome, value)


@pytest.mark.parametrize(
    ("times", "outcome"),
    [
        # An image is one token to the count and minutes to the processor.
        ({"prompt_n": 1, "prompt_ms": 402_000.0, "predicted_ms": 31_000.0}, "flag"),
        # One computed token beside a batch that is being decoded.
        ({"prompt_n": 1, "prompt_ms": 80.0}, "pass"),
        ({"prompt_n": 0, "prompt_ms": 0.0}, "pass"),
        ({"prompt_ms": None, "predicted_ms": None}, "pass"),
        ({"predicted_n": 0, "predicted_ms": 0.0}, "pass"),
    ],
)
def test_a_prompt_that_cost_far_more_than_its_tokens_is_flagged(times: dict[str, Any], outcome: str) -> None:
    found = gates.prompt_cache([answer(), answer(**times)], wanted=False)
    assert found.outcome == outcome
    assert ("prompt_ms and prompt_n disagree: 402000 ms for 1 tokens" in str(found.value)) == (outcome == "flag")


@pytest.mark.parametrize(
    ("busy", "steps", "outcome", "value"),
    [
        (1000.0, 128.0, "pass", 7.8125),
        (960.0, 128.0, "flag", 7.5),
        (640.0, 128.0, "void", 5.0),
        (0.0, None, "not evaluable", None),
        (0.0, 0.0, "not evaluable", None),
    ],
)
def test_how_many_slots_were_really_busy(busy: float, steps: float | None, outcome: str, value: float | None) -> None:
    found = gates.achieved_batch(busy, steps, 8, 0.8, 0.95)
    assert (found.outcome, found.value) == (outcome, value)


def test_a_rail_without_energy_voids_and_says_why() -> None:
    rails = [rail("cpu"), rail("dram", None, reason="a gap of 3 s"), rail("check", None, reason="dead")]
    assert gates.has_energy([rails[0]], ["cpu"], "").outcome == "pass"
    found = gates.has_energy(rails, ["cpu", "dram"], "meter made-up: unplugged")
    assert (found.outcome, found.value) == ("void", "meter made-up: unplugged; dram: a gap of 3 s")
    assert gates.has_energy(rails, ["cpu"], "").outcome == "pass"


@pytest.mark.parametrize(
    ("updates", "thin_voids", "outcome", "value"),
    [(10, True, "pass", "10"), (9, True, "flag", "9 (thin)"), (5, True, "flag", "5 (thin)"), (4, True, "void", "4"), (4, False, "flag", "4 (thin)"), (0, True, "void", "0")],
)  # fmt: skip
def test_few_updates_make_a_window_thin(updates: int, thin_voids: bool, outcome: str, value: str) -> None:
    found = gates.samples([rail(updates=updates)], ["cpu"], 5, 10, thin_voids=thin_voids)
    assert (found.outcome, found.value) == (outcome, value)
    assert bool(found.remedy) == (outcome != "pass")


def test_a_slow_rail_counts_only_where_it_carries_energy() -> None:
    rails = [rail("cpu", 95.0, 50), rail("dram", 5.0, 2), rail("check", 95.0, 1)]
    assert gates.samples(rails, ["cpu", "dram"], 5, 10, thin_voids=True).outcome == "pass"
    rails[1] = rail("dram", 20.0, 2)
    assert gates.samples(rails, ["cpu", "dram"], 5, 10, thin_voids=True).outcome == "void"


@pytest.mark.parametrize(
    ("energy_j", "uncertainty_j", "outcome"),
    [(100.0, 5.0, "pass"), (100.0, 5.1, "flag"), (100.0, 25.0, "flag"), (100.0, 25.1, "void"), (None, 0.0, "not evaluable"), (0.0, 1.0, "not evaluable"), (0.5, 0.01, "pass")],
)  # fmt: skip
def test_uncertainty_is_a_share_of_the_energy(energy_j: float | None, uncertainty_j: float, outcome: str) -> None:
    assert gates.edge_uncertainty(energy_j, uncertainty_j, 0.05, 0.25).outcome == outcome


@pytest.mark.parametrize(
    ("ours", "machine", "outcome"), [(0.2, 20.0, "pass"), (0.5, 20.0, "flag"), (0.05, 0.9, "flag"), (0.0, 0.0, "pass")]
)
def test_what_the_client_cost(ours: float, machine: float, outcome: str) -> None:
    assert gates.client_cost(ours, machine, 0.02).outcome == outcome


@pytest.mark.parametrize(
    ("cores", "outcome", "value"),
    [
        (0.05, "pass", "5% of a core"),
        (0.5, "flag", "50% of a core"),
        (-0.02, "pass", "0% of a core"),
        (None, "not evaluable", None),
    ],
)
def test_other_programs(cores: float | None, outcome: str, value: str | None) -> None:
    found = gates.other_load(cores, 0.10)
    assert (found.outcome, found.value) == (outcome, value)


def test_the_spread_of_the_passes() -> None:
    assert gates.pass_spread([("parallel=1", 0.02), ("parallel=8", 0.05)], 0.05).outcome == "pass"
    found = gates.pass_spread([("parallel=1", 0.052), ("parallel=4", 0.057), ("parallel=8", 0.034)], 0.05)
    assert (found.outcome, found.value) == ("flag", "parallel=1 5.2%, parallel=4 5.7%")
    assert gates.pass_spread([], 0.05).outcome == "not evaluable"


@pytest.mark.parametrize(
    ("first", "second", "outcome"),
    [
        ([100.0] * 5, [101.0] * 5, "flag"),
        ([100.0] * 5, [101.0, 101.0, 101.0, 101.0, 99.9], "pass"),
        ([100.0] * 4, [101.0] * 4, "pass"),
        # A mean of 2.5 % beyond two standard errors of 1.7 %, and within two of 2.9 %.
        ([100.0] * 3, [101.0, 102.5, 104.0], "flag"),
        ([100.0] * 3, [100.0, 102.5, 105.0], "pass"),
        ([100.0] * 2, [110.0, 110.2], "flag"),
        ([100.0, 100.0, 100.0], [103.0, 104.0, 103.5], "flag"),
        ([100.0, 100.0, 100.0], [97.0, 96.0, 96.5], "flag"),
        ([100.0, 100.0, 100.0], [103.0, 95.0, 110.0], "pass"),
        ([100.0], [110.0], "not evaluable"),
        ([], [], "not evaluable"),
        ([100.0, 100.0], [100.0], "not evaluable"),
    ],
)
def test_a_second_pass_that_reads_higher_is_an_effect_of_the_order(
    first: list[float], second: list[float], outcome: str
) -> None:
    found = gates.run_order(first, second)
    assert found.outcome == outcome
    assert ("run-order effect" in found.remedy) == (outcome == "flag")


def test_a_draft_that_is_not_used_voids() -> None:
    assert gates.drafted([answer(), answer(draft_n=190, draft_accepted_n=92)]).outcome == "pass"
    found = gates.drafted([answer(), answer()])
    assert (found.outcome, found.value) == ("void", "0 tokens drafted")
