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


def gate(outcome: Any) -> Gate:
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
    ("others", "wanted", "outcome"),
    [
        ({}, False, "not evaluable"),
        # Of which the others say nothing either.
        ({"prompt_n": 0}, True, "not evaluable"),
        ({"cache_n": 23}, False, "void"),
        ({"cache_n": 23}, True, "pass"),
    ],
)
def test_where_the_server_counts_no_prompt_there_is_no_cache_to_judge(
    others: dict[str, Any], wanted: bool, outcome: str
) -> None:
    untold = answer(prompt_n=0, counted_from="usage")
    assert gates.prompt_cache([untold, answer(**others)], wanted=wanted).outcome == outcome
    # A tool whose windows hold no prefill has none to count.
    assert gates.prompt_cache([answer(prompt_n=0, counted_from="llama-bench")], wanted=False).outcome == "pass"


@pytest.mark.parametrize(
    ("ends", "outcome", "value"),
    [
        (("eos", "limit", "word"), "pass", "3 of 3"),
        *((("eos", end, "eos"), "void", f"stopped by {end}, not by length or by the model") for end in ("abort", "content_filter", "none")),
        # The others do say.
        (("eos", None, "limit"), "void", "1 answers that do not say why they ended"),
        ((None, None, None), "not evaluable", None),
    ],
)  # fmt: skip
def test_an_answer_that_the_model_may_end_was_ended_by_it_or_by_its_limit(
    ends, outcome: str, value: str | None
) -> None:
    found = gates.requests_complete([answer(stop_type=end) for end in ends], 3, 128, exact=False)
    assert (found.outcome, found.value) == (outcome, value)
    assert bool(found.remedy) == (outcome != "pass")


@pytest.mark.parametrize(
    ("times", "outcome"),
    [
        # An image is one token to the count and minutes to the processor.
        ({"prompt_n": 1, "prompt_ms": 402_000.0, "predicted_ms": 31_000.0}, "flag"),
        # One computed token beside a batch that is being decoded.
        ({"prompt_n": 1, "prompt_ms": 80.0}, "pass"),
        ({"prompt_n": 0, "prompt_ms": 0.0, "counted_from": "llama-bench"}, "pass"),
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
    assert (found.outcome, found.value) == ("void", "meter made-up: unplugged")
    assert gates.has_energy(rails, ["cpu"], "meter made-up: unplugged").outcome == "pass"


def test_a_broken_meter_is_one_cause_and_not_one_for_each_rail() -> None:
    rails = [rail(name, None, reason="the window is too short for this sensor") for name in ("cpu", "gpu")]
    found = gates.has_energy(rails, ["cpu", "gpu"], "meter made-up: my sensor broke; meter made-up: my sensor broke")
    assert str(found) == (
        "energy: meter made-up: my sensor broke (limit: readings over the whole window); see to the meter, then measure again"
    )
    found = gates.has_energy(rails, ["cpu", "gpu"], "", "name another column")
    assert (found.value, found.remedy) == ("cpu, gpu: the window is too short for this sensor", "name another column")
    assert "make the window longer" in gates.has_energy(rails, ["cpu", "gpu"], "").remedy


def test_a_cause_never_makes_a_line_that_nobody_reads() -> None:
    found = gates.has_energy(
        [rail("cpu", None)], ["cpu"], "; ".join(f"/sys/class/powercap/{n}: gone" for n in range(50))
    )
    assert len(str(found)) < 300
    assert str(found.value).startswith("/sys/class/powercap/0: gone; ")


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


@pytest.mark.parametrize(
    ("busy", "cores", "outcome"),
    [(1.0, 2, "void"), (0.51, 2, "void"), (0.5, 2, "flag"), (0.05, 2, "pass"), (1.0, 8, "flag"), (2.1, 8, "void"), (9.0, None, "flag")],
)  # fmt: skip
def test_a_program_that_holds_a_share_of_the_machine_voids(busy: float, cores: int | None, outcome: str) -> None:
    found = gates.other_load(busy, 0.10, 0.25, cores)
    assert found.outcome == outcome
    assert bool(found.remedy) == (outcome != "pass")


def test_other_load_tells_both_limits() -> None:
    assert str(gates.other_load(1.0, 0.10, 0.25, 2)) == (
        "other load: 100% of a core (limit: 10% of a core flags, 0.5 of the 2 cores voids); end other programs and measure again"
    )


def test_the_spread_of_the_passes() -> None:
    assert gates.pass_spread([("parallel=1", 0.02), ("parallel=8", 0.05)], 0.05).outcome == "pass"
    found = gates.pass_spread([("parallel=1", 0.052), ("parallel=4", 0.057), ("parallel=8", 0.034)], 0.05)
    assert (found.outcome, found.value) == ("flag", "parallel=1 5.2%, parallel=4 5.7%")
    assert gates.pass_spread([], 0.05).outcome == "not evaluable"


@pytest.mark.parametrize(
    ("first", "second", "outcome"),
    [
        ([100.0] * 5, [101.0] * 5, "flag"),
        ([100.0] * 5, [99.0] * 5, "flag"),
        ([100.0] * 5, [101.0, 101.0, 101.0, 101.0, 99.9], "pass"),
        ([100.0] * 4, [101.0] * 4, "pass"),
        # A mean of 2.5 % beyond two standard errors of 1.7 %, which chance does in 10 % of runs; and beyond those of 1.2 %.
        ([100.0] * 3, [101.0, 102.5, 104.0], "pass"),
        ([100.0] * 3, [101.5, 102.5, 103.5], "flag"),
        ([100.0] * 2, [110.0, 110.2], "flag"),
        ([100.0, 100.0, 100.0], [103.0, 104.0, 103.5], "flag"),
        ([100.0, 100.0, 100.0], [97.0, 96.0, 96.5], "flag"),
        ([100.0, 100.0, 100.0], [103.0, 95.0, 110.0], "pass"),
        ([100.0], [110.0], "not evaluable"),
        ([], [], "not evaluable"),
        ([100.0, 100.0], [100.0], "not evaluable"),
        ([100.0, 0.0], [110.0, 110.0], "not evaluable"),
    ],
)
def test_a_second_pass_that_reads_higher_is_an_effect_of_the_order(
    first: list[float], second: list[float], outcome: str
) -> None:
    found = gates.run_order(first, second)
    assert found.outcome == outcome
    assert ("run-order effect" in found.remedy) == (outcome == "flag")


def test_the_text_of_the_run_order_says_which_way() -> None:
    limit = "(limit: 2% or what chance gives in the mean, and not all of 5 or more conditions the same way)"
    remedy = "a run-order effect: warm up longer, or rest between windows"
    found = gates.run_order([100.0] * 6, [91.0, 92.0, 91.0, 92.0, 91.0, 93.0])
    seen = "run order: second pass lower by 8.3% in the mean and at 6 of 6 conditions (by chance in under 1% of runs)"
    assert str(found) == f"{seen} {limit}; {remedy}"
    found = gates.run_order([100.0] * 2, [102.0, 107.0])
    assert found.value == "second pass higher by 4.5% in the mean"
    found = gates.run_order([100.0] * 3, [101.5, 102.5, 103.5])
    assert found.value == "second pass higher by 2.5% in the mean and at 3 of 3 conditions (by chance in 5% of runs)"


@pytest.mark.parametrize(
    ("passes", "outcome", "value"),
    [
        # Each pass differs from its neighbour by too little; together they do not.
        ([[100.0] * 4, [101.0] * 4, [103.0] * 4, [104.0] * 4], "flag", "last 2 passes higher by 3.0% in the mean"),
        ([[100.0] * 4, [150.0] * 4, [100.0] * 4], "pass", "last pass higher by 0.0% in the mean"),
        ([[100.0] * 4, [104.0] * 4, [103.0] * 4, [101.0] * 4], "pass", "last 2 passes higher by 0.0% in the mean"),
        ([[100.0] * 4], "not evaluable", "None"),
        ([], "not evaluable", "None"),
        ([[100.0] * 4, [100.0] * 3, [100.0] * 4], "not evaluable", "None"),
    ],
)
def test_later_passes_against_earlier_ones(passes: list[list[float]], outcome: str, value: str) -> None:
    found = gates.run_order(*passes)
    assert found.outcome == outcome
    assert str(found.value).startswith(value)


def test_how_much_of_a_run_order_matters_is_for_the_suite_to_say() -> None:
    assert gates.run_order([100.0] * 3, [103.0] * 3).outcome == "flag"
    found = gates.run_order([100.0] * 3, [103.0] * 3, flag_above=0.04)
    assert (found.outcome, found.limit[:2]) == ("pass", "4%")


@pytest.mark.parametrize(
    ("figures", "outcome", "value"),
    [
        ([100.0, 200.0, 400.0, 100.1, 200.1, 400.1], "pass", "rises by 0.1% over the run ("),
        (
            [100.0, 200.0, 400.0, 105.0, 210.1, 420.0],
            "flag",
            "rises by 8.5% over the run (by chance in under 1% of runs)",
        ),
        ([100.0, 200.0, 400.0, 95.0, 190.2, 380.0], "flag", "falls by "),
        # As large a change on average, and no more than noise gives.
        ([100.0, 200.0, 400.0, 125.0, 180.0, 440.0], "pass", "rises by "),
        ([100.0, 200.0, 400.0, 100.0, 200.0, 400.0], "pass", "rises by 0.0%"),
        ([100.0, 200.0, 400.0], "not evaluable", "None"),
        ([100.0, 200.0, 400.0, 0.0, 0.0, 0.0], "not evaluable", "None"),
        ([], "not evaluable", "None"),
    ],
)
def test_what_goes_up_with_time_is_drift(figures: list[float], outcome: str, value: str) -> None:
    windows = [("abc"[i % 3], 30.0 * i, figure) for i, figure in enumerate(figures)]
    found = gates.drift(windows, 0.02)
    assert found.outcome == outcome
    assert str(found.value).startswith(value)
    assert bool(found.remedy) == (outcome == "flag")


def test_a_control_repeat_is_one_more_window_of_its_condition() -> None:
    windows = [("a", 0.0, 100.0), ("b", 30.0, 200.0), ("b", 60.0, 201.5), ("a", 90.0, 104.4)]
    assert gates.drift(windows, 0.02).outcome == "pass"
    controls = [("a", 45.0, 101.9), ("a", 105.0, 104.8)]
    assert gates.drift([*windows, *controls], 0.02).outcome == "flag"


def test_drift_needs_time_to_pass() -> None:
    assert gates.drift([("a", 0.0, 100.0)] * 4, 0.02).outcome == "not evaluable"


@pytest.mark.parametrize(
    ("pairs", "outcome", "value"),
    [
        ([(100.0, 104.9), (100.0, 98.0)], "pass", "+4.9% in pass 1 at most"),
        ([(100.0, 105.1), (100.0, 94.0), (100.0, 100.0)], "flag", "+5.1% in pass 1, -6.0% in pass 2"),
        ([(None, 105.0), (100.0, 101.0)], "pass", "+1.0% in pass 2 at most"),
        ([(100.0, None)], "not evaluable", None),
        ([], "not evaluable", None),
    ],
)
def test_the_control_repeat_comes_back_to_its_condition(
    pairs: list[tuple[float | None, float | None]], outcome: str, value: str | None
) -> None:
    found = gates.control_repeat(pairs, 0.05)
    assert (found.outcome, found.value) == (outcome, value)


@pytest.mark.parametrize(
    ("first", "second", "uncertainty", "outcome", "value"),
    [
        (100.0, 101.0, 0.0, "pass", "power rises by 2.0%"),
        (100.0, 103.0, 0.0, "flag", "power rises by 5.9%"),
        (103.0, 100.0, 0.0, "flag", "power falls by 5.9%"),
        (100.0, 103.0, 0.05, "pass", "power rises by 5.9% (known to 5.0%)"),
        (None, 103.0, 0.0, "not evaluable", None),
        (100.0, None, 0.0, "not evaluable", None),
        (0.0, 0.0, 0.0, "not evaluable", None),
    ],
)
def test_power_that_rises_within_a_window(
    first: float | None, second: float | None, uncertainty: float, outcome: str, value: str | None
) -> None:
    found = gates.window_power_slope(first, second, 0.02 + 1e-9, uncertainty)
    assert (found.outcome, None if found.value is None else str(found.value)[:40]) == (outcome, value)


def test_the_halves_of_a_straight_rise_give_the_whole_of_it() -> None:
    # From 99 W to 101 W: the halves are 99.5 W and 100.5 W.
    assert gates.window_power_slope(99.5, 100.5, 0.02).value == "power rises by 2.0%"


FLAGS: dict[str, tuple[Gate, str, str]] = {
    "warmer": (gates.temperature_rise(3.1, 3.0), "flag", "temperature rise: +3.1 °C (limit: 3 °C within the window); warm up longer"),
    "as warm": (gates.temperature_rise(3.0, 3.0), "pass", "temperature rise: +3.0 °C (limit: 3 °C within the window)"),
    "cooler": (gates.temperature_rise(-8.0, 3.0), "pass", "temperature rise: -8.0 °C (limit: 3 °C within the window)"),
    "no sensor": (gates.temperature_rise(None, 3.0), "not evaluable", "temperature rise: None (limit: 3 °C within the window)"),
    "throttled": (gates.throttled(["heat", "heat", "power brake"]), "flag", "throttling: heat, power brake (limit: none); cool the machine, or set a lower clock that it can hold"),
    "not throttled": (gates.throttled([]), "pass", "throttling: none (limit: none)"),
    "not told": (gates.throttled(None), "not evaluable", "throttling: None (limit: none)"),
    "at the limit": (gates.power_limit_saturated(0.51, 450.0, 0.5), "flag", "power limit: 51% of the window at the power limit of 450 W (limit: 50% of the window at the limit); raise the limit, or state it beside the result"),
    "under the limit": (gates.power_limit_saturated(0.5, None, 0.5), "pass", "power limit: 50% of the window at the power limit (limit: 50% of the window at the limit)"),
    "no limit": (gates.power_limit_saturated(None, None, 0.5), "not evaluable", "power limit: None (limit: 50% of the window at the limit)"),
    "intercept": (gates.lengths_intercept(1.2, 10.0, 0.1), "flag", "answer lengths: 1.2 J beside the tokens, 12% (limit: 10% of the energy at the shortest answers); longer answers, or a shorter prompt"),
    "below zero": (gates.lengths_intercept(-1.2, 10.0, 0.1), "flag", "answer lengths: -1.2 J beside the tokens, -12% (limit: 10% of the energy at the shortest answers); longer answers, or a shorter prompt"),
    "small intercept": (gates.lengths_intercept(1.0, 10.0, 0.1), "pass", "answer lengths: 1 J beside the tokens, 10% (limit: 10% of the energy at the shortest answers)"),
    "one length": (gates.lengths_intercept(None, 10.0, 0.1), "not evaluable", "answer lengths: None (limit: 10% of the energy at the shortest answers)"),
    "no energy": (gates.lengths_intercept(1.0, 0.0, 0.1), "not evaluable", "answer lengths: None (limit: 10% of the energy at the shortest answers)"),
    "swapping": (gates.swapping(640.0, 16.0), "flag", "swapping: 640 MiB (limit: 16 MiB); end other programs, or take a smaller model or context"),
    "a few pages": (gates.swapping(16.0, 16.0), "pass", "swapping: 16 MiB (limit: 16 MiB)"),
    "swap unknown": (gates.swapping(None, 16.0), "not evaluable", "swapping: None (limit: 16 MiB)"),
    "others": (gates.other_gpu_process(["game", "game", "Xorg"]), "flag", "others on the GPU: game, Xorg (limit: none); end these programs and measure again"),
    "alone": (gates.other_gpu_process(()), "pass", "others on the GPU: none (limit: none)"),
    "others unknown": (gates.other_gpu_process(None), "not evaluable", "others on the GPU: None (limit: none)"),
    "charging": (gates.battery_charging(True), "flag", "battery: charging (limit: not charging); wait until it is full, then measure again"),
    "full": (gates.battery_charging(False), "pass", "battery: not charging (limit: not charging)"),
    "battery unknown": (gates.battery_charging(None), "not evaluable", "battery: None (limit: not charging)"),
}  # fmt: skip


@pytest.mark.parametrize("case", FLAGS)
def test_what_a_flag_says(case: str) -> None:
    found, outcome, told = FLAGS[case]
    assert (found.outcome, str(found)) == (outcome, told)


def test_what_narrows_a_verdict_is_named_as_its_gate_is() -> None:
    found = [
        gates.drift([], 0.02), gates.run_order(), gates.window_power_slope(None, None, 0.02), gates.temperature_rise(None, 3.0),
        gates.throttled(None), gates.power_limit_saturated(None, None, 0.5), gates.setting_seen("estimated"),
    ]  # fmt: skip
    assert tuple(gate.name for gate in found) == gates.NARROWING


def test_a_draft_that_is_not_used_voids() -> None:
    assert gates.drafted([answer(), answer(draft_n=190, draft_accepted_n=92)]).outcome == "pass"
    found = gates.drafted([answer(), answer()])
    assert (found.outcome, found.value) == ("void", "0 tokens drafted")
