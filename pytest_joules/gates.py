"""Validity checks on a window or a run: each passes, flags or voids, with what was seen, what is allowed and what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from pytest_joules.records import Gate, Outcome, RailEnergy, RequestRecord

SLOPE = (1.0, 1.4)
"""How steeply an outer meter may rise with an inner one."""

CARRIES_SHARE = 0.10
"""A rail with less of the energy than this may be slow without thinning the window."""

PROMPT_TOKEN_STEPS = 50
"""A prompt token costs about one decode step at most, a few more with drafting; an image costs thousands."""


def outcome(gates: Iterable[Gate]) -> Outcome:
    """The worst of them: `void`, `flagged` or `measured`. What cannot be evaluated flags, and never voids."""
    found = {gate.outcome for gate in gates}
    if "void" in found:
        return "void"
    return "flagged" if found & {"flag", "not evaluable"} else "measured"


def _worst(*, flags: bool, voids: bool) -> Literal["pass", "flag", "void"]:
    """The outcome of a value held against two limits."""
    return "void" if voids else "flag" if flags else "pass"


def requests_complete(answers: Sequence[RequestRecord], asked: int, answer_tokens: int) -> Gate:
    """Every request answered, at full length, by the length limit, nothing cut off at the front."""
    faults = []
    if len(answers) != asked:
        faults.append(f"{len(answers)} of {asked} answered")
    short = [a for a in answers if a.predicted_n != answer_tokens]
    if short:
        faults.append(f"{len(short)} answers of {short[0].predicted_n} tokens instead of {answer_tokens}")
    stopped = [a.stop_type for a in answers if a.stop_type not in ("limit", None)]
    if stopped:
        faults.append(f"stopped by {stopped[0]}, not by length")
    if any(a.truncated for a in answers):
        faults.append("a prompt was truncated")
    return Gate(
        name="answers complete",
        outcome="void" if faults else "pass",
        value="; ".join(faults) or f"{len(answers)} of {asked}",
        limit=f"every answer {answer_tokens} tokens long",
        remedy="raise context_per_slot, or see the server's log" if faults else "",
    )


def prompt_cache(answers: Sequence[RequestRecord], *, wanted: bool) -> Gate:
    """Prompts were computed when that was asked for, and came from the cache when that was."""
    cached = sum(a.cache_n for a in answers)
    computed = sum(a.prompt_n for a in answers)
    fault = cached == 0 if wanted else cached > 0
    odd = next((a for a in answers if _more_than_its_prompt(a)), None)
    value = f"{cached} of {cached + computed} prompt tokens from cache"
    remedy = ""
    if fault:
        remedy = "the server did not keep to its flags; use a newer llama-server"
    elif odd is not None:
        value += f"; prompt_ms and prompt_n disagree: {odd.prompt_ms:.0f} ms for {odd.prompt_n} tokens"
        remedy = "more was computed than the prompt's tokens; leave this window out of prompt figures"
    return Gate(
        name="prompt cache",
        outcome="void" if fault else "flag" if odd is not None else "pass",
        value=value,
        limit="some" if wanted else "none",
        remedy=remedy,
    )


def _more_than_its_prompt(answer: RequestRecord) -> bool:
    if not (answer.prompt_n and answer.prompt_ms and answer.predicted_n and answer.predicted_ms):
        return False
    step_ms = answer.predicted_ms / answer.predicted_n
    return answer.prompt_ms / answer.prompt_n > PROMPT_TOKEN_STEPS * step_ms


def achieved_batch(
    busy_slots: float, decode_steps: float | None, slots: int, void_below: float, flag_below: float
) -> Gate:
    """How many slots were busy per decode step, against how many were asked for.

    Args:
        busy_slots: slots busy summed over the decode steps of the window.
        decode_steps: steps of the window; `None` when the engine does not say.
    """
    limit = f"at least {flag_below:.0%} of {slots}"
    if not decode_steps:
        return Gate(
            name="achieved batch", outcome="not evaluable", value=None, limit=limit, remedy="the server has no /metrics"
        )
    achieved = busy_slots / decode_steps
    share = achieved / slots
    kind = _worst(flags=share < flag_below, voids=share < void_below)
    remedy = "" if kind == "pass" else "ask for longer answers, so that the ends of the requests weigh less"
    return Gate(name="achieved batch", outcome=kind, value=achieved, limit=limit, remedy=remedy)


def has_energy(rails: Sequence[RailEnergy], counted: Sequence[str], failure: str) -> Gate:
    """Every rail that counts has energy over the whole window."""
    missing = [f"{r.rail}: {r.reason}" for r in rails if r.rail in counted and r.energy_j is None]
    text = "; ".join(([failure] if failure else []) + missing)
    return Gate(
        name="energy",
        outcome="void" if missing else "pass",
        value=text if missing else "every rail read",
        limit="readings over the whole window",
        remedy="run 'joules meters' to see what the source gives" if missing else "",
    )


def samples(rails: Sequence[RailEnergy], counted: Sequence[str], least: int, thin: int, *, thin_voids: bool) -> Gate:
    """Distinct updates of the slowest rail that carries a share of the energy worth the name."""
    total_j = sum(r.energy_j or 0.0 for r in rails if r.rail in counted)
    carrying = [r for r in rails if r.rail in counted and (r.energy_j or 0.0) >= CARRIES_SHARE * total_j]
    updates = min((r.updates for r in carrying), default=0)
    kind = _worst(flags=updates < max(least, thin), voids=updates < least and thin_voids)
    remedy = "" if kind == "pass" else "longer answers, more rounds, or min_window_s make the window longer"
    return Gate(name="sensor updates", outcome=kind, value=f"{updates} (thin)" if kind == "flag" else str(updates),
                limit=f"{least} at least, {thin} not to be thin", remedy=remedy)  # fmt: skip


def edge_uncertainty(energy_j: float | None, uncertainty_j: float, flag_above: float, void_above: float) -> Gate:
    """Uncertainty from edges, refresh and lag as a share of the energy."""
    limit = f"{flag_above:.0%} flags, {void_above:.0%} voids"
    if not energy_j or energy_j <= 0:
        return Gate(name="edge uncertainty", outcome="not evaluable", value=None, limit=limit)
    share = uncertainty_j / energy_j
    kind = _worst(flags=share > flag_above, voids=share > void_above)
    remedy = "" if kind == "pass" else "a longer window makes the edges weigh less"
    return Gate(name="edge uncertainty", outcome=kind, value=share, limit=limit, remedy=remedy)


def client_cost(cpu_s: float, machine_cpu_s: float, flag_above: float) -> Gate:
    """CPU time of client and sampler as a share of all the CPU time spent in the window."""
    share = cpu_s / machine_cpu_s if machine_cpu_s > 0 else 0.0
    flagged = share > flag_above
    return Gate(
        name="client CPU",
        outcome="flag" if flagged else "pass",
        value=share,
        limit=f"{flag_above:.0%} of the CPU time",
        remedy="lower rate_hz" if flagged else "",
    )


def other_load(busy_cores: float | None, flag_above: float) -> Gate:
    """CPU time of programs that are neither ours nor the engine's, in cores: their energy is in the reading too."""
    limit = f"{flag_above:.0%} of a core"
    if busy_cores is None:
        return Gate(name="other load", outcome="not evaluable", value=None, limit=limit)
    flagged = busy_cores > flag_above
    return Gate(
        name="other load",
        outcome="flag" if flagged else "pass",
        value=f"{max(0.0, busy_cores):.0%} of a core",
        limit=limit,
        remedy="end other programs and measure again" if flagged else "",
    )


def pass_spread(spreads: Sequence[tuple[str, float]], flag_above: float) -> Gate:
    """Largest (max - min) / mean over the passes of any condition's energy per token.

    Args:
        spreads: (condition as text, spread) pairs.
    """
    limit = f"{flag_above:.0%}"
    if not spreads:
        return Gate(name="pass spread", outcome="not evaluable", value=None, limit=limit)
    over = [f"{name} {spread:.1%}" for name, spread in spreads if spread > flag_above]
    worst = max(spread for _, spread in spreads)
    return Gate(
        name="pass spread",
        outcome="flag" if over else "pass",
        value=", ".join(over) if over else worst,
        limit=limit,
        remedy="more passes, a quieter machine, or a longer warm-up" if over else "",
    )


def run_order(first: Sequence[float], second: Sequence[float]) -> Gate:
    """Whether the second of two passes reads higher everywhere: heat, not chance.

    Args:
        first, second: (C,) energy per token of each condition in the first and the second pass.
    """
    limit = "second pass higher at all of 5 or more, or by 2 % and 2 standard errors in the mean"
    if len(first) < 2 or len(first) != len(second):
        return Gate(name="run order", outcome="not evaluable", value=None, limit=limit)
    ratios = [b / a - 1 for a, b in zip(first, second, strict=True)]
    mean = sum(ratios) / len(ratios)
    variance = sum((r - mean) ** 2 for r in ratios) / (len(ratios) - 1)
    standard_error = (variance / len(ratios)) ** 0.5
    everywhere = len(ratios) >= 5 and all(r > 0 for r in ratios)
    found = everywhere or (abs(mean) > 0.02 and abs(mean) > 2 * standard_error)
    return Gate(
        name="run order",
        outcome="flag" if found else "pass",
        value=f"second pass {mean:+.1%} in the mean",
        limit=limit,
        remedy="a run-order effect: warm up longer, or rest between windows" if found else "",
    )


def drafted(answers: Sequence[RequestRecord]) -> Gate:
    """Speculative decoding really ran: a draft that fails to load is only a line in the server's log."""
    count = sum(a.draft_n for a in answers)
    return Gate(
        name="draft in use",
        outcome="pass" if count else "void",
        value=f"{count} tokens drafted",
        limit="more than none",
        remedy="" if count else "see the server's log: the draft must have the model's vocabulary",
    )


def meter_response(idle_w: float, load_w: float, least: float, others_cores: float | None, others_limit: float) -> Gate:
    """Whether a meter rose when the chip was loaded: one that did not is frozen, or reads something else.

    Args:
        idle_w, load_w: power before and under full load, over the rails that count.
        least: smallest rise, as a share of the idle power.
        others_cores: cores that other programs kept busy meanwhile, which hides the step.
    """
    share = load_w / idle_w - 1 if idle_w > 0 else float(load_w > 0)
    seen = f"{idle_w:.3g} W idle, {load_w:.3g} W under full load"
    limit = f"a rise of {least:.0%}"
    if share >= least:
        return Gate(name="meter follows the load", outcome="pass", value=seen, limit=limit)
    if others_cores is not None and others_cores > others_limit:
        return Gate(
            name="meter follows the load",
            outcome="not evaluable",
            value=f"{seen}, while other programs took {others_cores:.1f} cores",
            limit=limit,
            remedy="end other programs and measure again",
        )
    return Gate(name="meter follows the load", outcome="void", value=seen, limit=limit)


def wall_slope(inner_w: Sequence[float], outer_w: Sequence[float], inner: str, outer: str) -> Gate:
    """How much a meter further out rises for each watt of the one further in, over windows of different load.

    What lies between them (supply, regulators, memory, fans) can only add: a slope under 1 means that one of the two is
    wrong, a slope over 1.4 that the outer one sees work which the inner one does not.

    Args:
        inner_w, outer_w: (n,) mean power of each window by the two meters.
        inner, outer: their names.
    """
    name, limit = f"{outer} against {inner}", f"slope {SLOPE[0]:g} to {SLOPE[1]:g}, from windows that differ by a fifth"
    count = len(inner_w)
    if count < 2 or max(inner_w) < 1.2 * min(inner_w):
        return Gate(name=name, outcome="not evaluable", value=None, limit=limit)
    mean_in, mean_out = sum(inner_w) / count, sum(outer_w) / count
    spread = sum((x - mean_in) ** 2 for x in inner_w)
    slope = sum((x - mean_in) * (y - mean_out) for x, y in zip(inner_w, outer_w, strict=True)) / spread
    share = sum(inner_w) / sum(outer_w)
    flagged = not SLOPE[0] <= slope <= SLOPE[1]
    return Gate(
        name=name,
        outcome="flag" if flagged else "pass",
        value=f"slope {slope:.2f}, {inner} is {share:.0%} of it",
        limit=limit,
        remedy="find out what only the outer meter sees, and whether both see the same machine" if flagged else "",
    )


def readings(rails: Sequence[RailEnergy], counted: Sequence[str]) -> Gate:
    """What was mended or suspicious in the readings of the rails that count."""
    said = [f"{rail.rail}: {flag}" for rail in rails if rail.rail in counted for flag in rail.flags]
    return Gate(
        name="readings",
        outcome="flag" if said else "pass",
        value="; ".join(said) or "as they came",
        limit="nothing dropped, moved or standing still",
        remedy="see the samples beside the run" if said else "",
    )


def counter_check(
    counter_j: float, integrated_j: float, disagreement: float | None, flag_above: float, void_above: float
) -> Gate:
    """An energy counter against the power of the same rail, integrated.

    Args:
        disagreement: their difference as a share of the counter's energy; `None` when the window is too short to compare.
    """
    limit = f"{flag_above:.0%} flags, {void_above:.0%} voids"
    if disagreement is None:
        return Gate(name="counter against power", outcome="pass", value="too short to compare", limit=limit)
    kind = _worst(flags=disagreement > flag_above, voids=disagreement > void_above)
    remedy = "" if kind == "pass" else "one of the two is wrong: compare with another source"
    value = f"{counter_j:.4g} J against {integrated_j:.4g} J, {disagreement:.0%} apart"
    return Gate(name="counter against power", outcome=kind, value=value, limit=limit, remedy=remedy)
