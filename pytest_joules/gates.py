"""Validity checks on a window or a run: each passes, flags or voids, with what was seen, what is allowed and what to do. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_joules.records import Gate, Outcome, RailEnergy, RequestRecord
from pytest_joules.words import one_line

SLOPE = (1.0, 1.4)
"""How steeply an outer meter may rise with an inner one."""

CARRIES_SHARE = 0.10
"""A rail with less of the energy than this may be slow without thinning the window."""

CHANCE = 0.05
"""A trend that noise alone gives in fewer runs than this is none of chance's."""

RUN_ORDER_ABOVE = 0.02
"""Difference between earlier and later passes that matters, as a share."""

NARROWING = (
    "drift", "run order", "power slope", "temperature rise", "throttling", "power limit", "setting seen by the meter",
)  # fmt: skip
"""Names of the gates whose flag makes verdicts narrow: the machine changed while it was measured, or the meter cannot see what was set."""

_CAUSE_CHARACTERS = 200
"""A cause is cut here, so that the line with limit and remedy stays under 300 characters."""

RELEASE_SHARE = 0.02
"""How much of a round may pass between the first request sent and the last, before its batch is another than asked."""

CAP_TOLERANCE = 0.03
"""Clocks come in steps, and what is read is a mean: a cap of 1800 MHz may read 1805. A machine that does not keep to a cap is off by more."""

CUT_OFF_SHARE = 0.05
"""So many answers may end for want of tokens before a share of right ones says more of the limit than of the model."""

ENDS = frozenset({"limit", "eos", "word"})
"""How an answer ends that the model may end: anything else (abort, content_filter, none) broke it off."""

_COUNTED_BY_THE_SERVER = frozenset({"timings", "tokens_predicted", "usage"})
"""`counted_from` of answers with prompts; a tool whose windows hold no prefill has no prompt tokens to count."""

PROMPT_TOKEN_STEPS = 50
"""A prompt token costs about one decode step at most, a few more with drafting; an image costs thousands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedies:
    """What to do about a reading, in the words of the place where it is shown; these are those of a suite.

    Attributes:
        longer: how its window is made longer.
        meter: what to do about a meter that fails.
        readings: where to look when readings were dropped or moved.
    """

    longer: str = "longer answers, more rounds, or min_window_s make the window longer"
    meter: str = "see to the meter, then measure again"
    readings: str = "see the samples beside the run"


OF_A_SUITE = Remedies()


def outcome(gates: Iterable[Gate]) -> Outcome:
    """The worst of them: `void`, `flagged` or `measured`. What cannot be evaluated flags, and never voids."""
    found = {gate.outcome for gate in gates}
    if "void" in found:
        return "void"
    return "flagged" if found & {"flag", "not evaluable"} else "measured"


def _worst(*, flags: bool, voids: bool) -> Literal["pass", "flag", "void"]:
    """The outcome of a value held against two limits."""
    return "void" if voids else "flag" if flags else "pass"


def requests_complete(answers: Sequence[RequestRecord], asked: int, answer_tokens: int, *, exact: bool = True) -> Gate:
    """Every request answered, nothing cut off at the front; at full length, by the length limit, unless the model may end it.

    Args:
        exact: every answer is to have `answer_tokens`; otherwise that is the most, and why each ended must be known.
    """
    limit = f"every answer {answer_tokens} tokens long" if exact else f"every answer of {answer_tokens} tokens at most"
    faults = []
    if len(answers) != asked:
        faults.append(f"{len(answers)} of {asked} answered")
    wrong = [
        a for a in answers if (a.predicted_n != answer_tokens if exact else not 0 < a.predicted_n <= answer_tokens)
    ]
    if wrong:
        instead = f"instead of {answer_tokens}" if exact else f"where 1 to {answer_tokens} are allowed"
        faults.append(f"{len(wrong)} answers of {wrong[0].predicted_n} tokens {instead}")
    reasons = [a.stop_type for a in answers if a.stop_type is not None]
    stopped = [one for one in reasons if (one != "limit" if exact else one not in ENDS)]
    if stopped:
        faults.append(f"stopped by {stopped[0]}, not by length" + ("" if exact else " or by the model"))
    unexplained = 0 if exact else len(answers) - len(reasons)
    if unexplained and reasons:
        faults.append(f"{unexplained} answers that do not say why they ended")
    if any(a.truncated for a in answers):
        faults.append("a prompt was truncated")
    if unexplained and not faults:
        return _unseen(
            "answers complete", limit, "the server does not say why an answer ended; use a newer build of it"
        )
    return Gate(
        name="answers complete",
        outcome="void" if faults else "pass",
        value="; ".join(faults) or f"{len(answers)} of {asked}",
        limit=limit,
        remedy="raise context_per_slot, or see the server's log" if faults else "",
    )


def answers_cut_off(cut_off: int, asked: int) -> Gate:
    """How many answers to questions reached the most tokens they might have: what they would have come to is not known."""
    flagged = cut_off > CUT_OFF_SHARE * asked
    return Gate(
        name="answers cut off",
        outcome="flag" if flagged else "pass",
        value=f"{cut_off} of {asked}",
        limit=f"{CUT_OFF_SHARE:.0%}",
        remedy="raise answer_tokens" if flagged else "",
    )


def released(spread_s: float, share: float) -> Gate:
    """Whether the requests of a round were sent together.

    Args:
        spread_s: from the first request sent to the last, the longest of the rounds.
        share: of the round's length, the largest.
    """
    flagged = share > RELEASE_SHARE
    return Gate(
        name="requests together",
        outcome="flag" if flagged else "pass",
        value=f"sent within {1000 * spread_s:.1f} ms, {share:.1%} of the round",
        limit=f"{RELEASE_SHARE:.0%} of the round",
        remedy="longer answers, or fewer programs beside the client" if flagged else "",
    )


def prompt_cache(answers: Sequence[RequestRecord], *, wanted: bool, each: tuple[int, int] | None = None) -> Gate:
    """Prompts were computed when that was asked for, and came from the cache when that was.

    Args:
        each: tokens of every prompt that are to come from the cache and to be computed, where a suite states the length of its prompts;
            then one request for which it was otherwise is enough.
    """
    if each is not None:
        return _cached_as_asked(answers, *each)
    cached = sum(a.cache_n for a in answers)
    computed = sum(a.prompt_n for a in answers)
    fault = cached == 0 if wanted else cached > 0
    uncounted = any(not (a.cache_n or a.prompt_n) and a.counted_from in _COUNTED_BY_THE_SERVER for a in answers)
    if uncounted and not cached:
        return _unseen(
            "prompt cache",
            "some" if wanted else "none",
            "the server does not count prompt tokens; use a newer build of it",
        )
    odd = next((a for a in answers if _more_than_its_prompt(a)), None)
    value = f"{cached} of {cached + computed} prompt tokens from cache"
    remedy = ""
    if fault:
        remedy = "the engine did not keep to what was asked; use a newer build of it"
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


def _cached_as_asked(answers: Sequence[RequestRecord], cached: int, computed: int) -> Gate:
    limit = f"{cached} from the cache, {computed} computed"
    if not any(a.cache_n or a.prompt_n for a in answers):
        return _unseen("prompt cache", limit)
    wrong = [a for a in answers if (a.cache_n, a.prompt_n) != (cached, computed)]
    value = f"{cached} from the cache and {computed} computed, in each of {len(answers)} requests"
    if wrong:
        first = wrong[0]
        value = (
            f"{first.cache_n} prompt tokens from the cache and {first.prompt_n} computed in slot {first.slot}, round {first.round}; "
            f"{len(wrong)} of {len(answers)} requests are not as asked"
        )
    return Gate(
        name="prompt cache",
        outcome="void" if wrong else "pass",
        value=value,
        limit=limit,
        remedy="use a newer build of the engine, or a model whose cache can be cut at any token" if wrong else "",
    )


def _more_than_its_prompt(answer: RequestRecord) -> bool:
    if not (answer.prompt_n and answer.prompt_ms and answer.predicted_n and answer.predicted_ms):
        return False
    step_ms = answer.predicted_ms / answer.predicted_n
    return answer.prompt_ms / answer.prompt_n > PROMPT_TOKEN_STEPS * step_ms


def achieved_batch(
    busy_slots: float,
    decode_steps: float | None,
    slots: int,
    void_below: float,
    flag_below: float,
    drain_share: float = 0.0,
) -> Gate:
    """How many slots were busy per decode step, against how many were asked for. Windows of one-token answers have none to ask about.

    Args:
        busy_slots: slots busy summed over the decode steps of the window.
        decode_steps: steps of the window; `None` when the engine does not say.
        drain_share: share of a closed loop during which slots fell idle because no question was left. They do so one
            by one, so that half of them are busy meanwhile; that much is left out of account.
    """
    limit = f"at least {flag_below:.0%} of {slots}"
    if not decode_steps:
        return Gate(
            name="achieved batch", outcome="not evaluable", value=None, limit=limit, remedy="the server has no /metrics"
        )
    achieved = busy_slots / decode_steps
    full = (achieved / slots - drain_share / 2) / (1 - drain_share) if drain_share < 1 else achieved / slots
    kind = _worst(flags=full < flag_below, voids=full < void_below)
    remedy = "" if kind == "pass" else "ask for longer answers, so that the ends of the requests weigh less"
    value = (
        f"{achieved:.4g}, of which the last {drain_share:.1%} of the time are the drain" if drain_share else achieved
    )
    return Gate(name="achieved batch", outcome=kind, value=value, limit=limit, remedy=remedy)


def has_energy(
    rails: Sequence[RailEnergy],
    counted: Sequence[str],
    failure: str,
    remedy: str = "",
    remedies: Remedies = OF_A_SUITE,
) -> Gate:
    """Every rail that counts has energy over the whole window.

    Args:
        failure: what the meter itself says is wrong, causes set apart by `; `. What its rails then lack follows from it
            and is left out.
        remedy: what to do, where the caller knows it better: a recorded trace has no meter that could be seen to.
    """
    lacking = [r for r in rails if r.rail in counted and r.energy_j is None]
    said: dict[str, list[str]] = {}
    for rail in lacking:
        said.setdefault(rail.reason, []).append(rail.rail)
    causes = failure.split("; ") if failure else [f"{', '.join(names)}: {reason}" for reason, names in said.items()]
    known = "; ".join(dict.fromkeys(rail.remedy for rail in lacking if rail.remedy))
    usual = remedies.meter if failure else known or f"{remedies.longer}, or take a source that updates more often"
    return Gate(
        name="energy",
        outcome="void" if lacking else "pass",
        value=one_line("; ".join(dict.fromkeys(causes)), _CAUSE_CHARACTERS) if lacking else "every rail read",
        limit="readings over the whole window",
        remedy=(remedy or usual) if lacking else "",
    )


def samples(
    rails: Sequence[RailEnergy],
    counted: Sequence[str],
    least: int,
    thin: int,
    *,
    thin_voids: bool,
    remedies: Remedies = OF_A_SUITE,
) -> Gate:
    """Distinct updates of the slowest rail that carries a share of the energy worth the name."""
    total_j = sum(r.energy_j or 0.0 for r in rails if r.rail in counted)
    carrying = [r for r in rails if r.rail in counted and (r.energy_j or 0.0) >= CARRIES_SHARE * total_j]
    count = min((r.updates for r in carrying), default=0)
    return updates(count, least, thin, thin_voids=thin_voids, remedies=remedies)


def updates(count: int | None, least: int, thin: int, *, thin_voids: bool, remedies: Remedies = OF_A_SUITE) -> Gate:
    """How often the sensor spoke in a window; `None` where that is not known."""
    limit = f"{least} at least, {thin} not to be thin"
    if count is None:
        return _unseen("sensor updates", limit)
    kind = _worst(flags=count < max(least, thin), voids=count < least and thin_voids)
    value = f"{count} (thin)" if kind == "flag" else str(count)
    return Gate(
        name="sensor updates", outcome=kind, value=value, limit=limit, remedy="" if kind == "pass" else remedies.longer
    )


def averaging_times(window_s: float, short: Sequence[tuple[str, float]], least: float, remedies: Remedies) -> Gate:
    """Whether the window is long against the time over which its sensors average.

    Args:
        short: (rail, averaging time) of those against which it is not.
        least: averaging times that make a window long.
    """
    said = [f"{name}: {window_s / averaging_s:.2g}, each {averaging_s:g} s" for name, averaging_s in short]
    return Gate(
        name="averaging times in the window",
        outcome="flag" if said else "pass",
        value="; ".join(said) or "enough",
        limit=f"at least {least:g}",
        remedy=remedies.longer if said else "",
    )


def edge_uncertainty(
    energy_j: float | None,
    uncertainty_j: float,
    flag_above: float,
    void_above: float,
    remedies: Remedies = OF_A_SUITE,
) -> Gate:
    """Uncertainty from edges, refresh and lag as a share of the energy."""
    limit = f"{flag_above:.0%}" + (f" flags, {void_above:.0%} voids" if math.isfinite(void_above) else "")
    if not energy_j or energy_j <= 0:
        return Gate(name="edge uncertainty", outcome="not evaluable", value=None, limit=limit)
    share = uncertainty_j / energy_j
    kind = _worst(flags=share > flag_above, voids=share > void_above)
    remedy = "" if kind == "pass" else f"{remedies.longer}: the edges then weigh less"
    return Gate(name="edge uncertainty", outcome=kind, value=f"{share:.1%}", limit=limit, remedy=remedy)


def client_cost(cpu_s: float, machine_cpu_s: float, flag_above: float) -> Gate:
    """CPU time of client and sampler as a share of all the CPU time spent in the window."""
    share = cpu_s / machine_cpu_s if machine_cpu_s > 0 else 0.0
    flagged = share > flag_above
    return Gate(
        name="client CPU",
        outcome="flag" if flagged else "pass",
        value=f"{share:.1%}",
        limit=f"{flag_above:.0%} of the CPU time",
        remedy="lower rate_hz" if flagged else "",
    )


def other_load(
    busy_cores: float | None, flag_above: float, void_above: float | None = None, cores: int | None = None
) -> Gate:
    """CPU time of programs that are neither ours nor the engine's, in cores: their energy is in the reading too.

    A little of it adds a little energy, which a flag tells. Beyond a share of the whole machine the figures are of another
    quantity: a decode step waits for its slowest thread, so a program that holds one core of two about halves the speed
    while the power stays, and energy per token is wrong by a factor that no uncertainty covers. The share is of all cores
    because the harm is: one busy core is half of a small machine and nothing to a large one.

    Args:
        flag_above: cores.
        void_above: share of all cores; `None` never voids.
        cores: how many the machine has; `None` never voids.
    """
    limit = f"{flag_above:.0%} of a core"
    most = math.inf if void_above is None or not cores else void_above * cores
    if math.isfinite(most):
        limit += f" flags, {most:.2g} of the {cores} cores voids"
    if busy_cores is None:
        return Gate(name="other load", outcome="not evaluable", value=None, limit=limit)
    kind = _worst(flags=busy_cores > flag_above, voids=busy_cores > most)
    return Gate(
        name="other load",
        outcome=kind,
        value=f"{max(0.0, busy_cores):.0%} of a core",
        limit=limit,
        remedy="" if kind == "pass" else "end other programs and measure again",
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
        value=", ".join(over) if over else f"{worst:.1%}",
        limit=limit,
        remedy="more passes, a quieter machine, or a longer warm-up" if over else "",
    )


def control_repeat(pairs: Sequence[tuple[float | None, float | None]], flag_above: float) -> Gate:
    """How far the suite's first condition, measured again at the end of a pass, is from its own window in that pass.

    The two differ by nothing but when they were measured, so that their difference is what the machine did meanwhile.

    Args:
        pairs: (P, 2) energy per token of the condition and of its repeat, by pass; `None` where a window gave none.
        flag_above: the limit of the pass spread.
    """
    limit = f"{flag_above:.0%} either way"
    shares = {i: again / own - 1 for i, (own, again) in enumerate(pairs, 1) if own is not None and again is not None}
    if not shares:
        return _unseen("control repeat", limit)
    over = {number: share for number, share in shares.items() if abs(share) > flag_above}
    shown = over or dict([max(shares.items(), key=lambda item: abs(item[1]))])
    value = ", ".join(f"{share:+.1%} in pass {number}" for number, share in shown.items())
    remedy = "the machine changed within a pass: warm up longer, or end other programs"
    return _held("control repeat", value if over else f"{value} at most", limit, remedy, flagged=bool(over))


def run_order(*passes: Sequence[float], flag_above: float = RUN_ORDER_ABOVE) -> Gate:
    """Whether the later passes differ from the earlier ones as a whole: heat, not chance.

    Args:
        passes: (P, C) energy per token of each condition in each pass. The first half of the passes is compared with the
            last half; of an odd number the middle one is left out.
        flag_above: difference of the mean that matters, as a share.

    A fall is flagged like a rise. Heat, where the rule comes from, only makes later passes dearer; but a machine that another
    program leaves, or that cools down after something before the run, makes them cheaper, and the mean of the passes is as
    wrong then.

    Two standard errors are the floor of this rule, and no test at 5 %: with few conditions the error itself is hardly known,
    and chance exceeds two of it in up to 29 % of runs. So the paired differences must also be beyond what chance does in 5 %
    of runs (Student's t with C - 1 degrees of freedom), lest every fourth verdict on a quiet machine were narrow.
    """
    limit = f"{flag_above:.0%} or what chance gives in the mean, and not all of 5 or more conditions the same way"
    half = len(passes) // 2
    earlier = [math.fsum(figures) / half for figures in zip(*passes[:half], strict=False)]
    later = [math.fsum(figures) / half for figures in zip(*passes[len(passes) - half :], strict=False)]
    count = len(earlier)
    if count < 2 or {len(one) for one in passes} != {count} or min(earlier) <= 0:
        return _unseen("run order", limit)
    ratios = [b / a - 1 for a, b in zip(earlier, later, strict=True)]
    mean = math.fsum(ratios) / count
    standard_error = math.sqrt(math.fsum((r - mean) ** 2 for r in ratios) / (count - 1) / count)
    same_way = max(sum(r > 0 for r in ratios), sum(r < 0 for r in ratios))
    errors = mean / standard_error if standard_error > 0 else math.copysign(math.inf, mean)
    chance = _chance_of(errors, count - 1) if standard_error > 0 else 0.0
    beyond_chance = abs(errors) > 2 and chance < CHANCE
    flagged = (count >= 5 and same_way == count) or (abs(mean) > flag_above and beyond_chance)
    which = "second pass" if len(passes) == 2 else "last pass" if half == 1 else f"last {half} passes"
    value = f"{which} {'lower' if mean < 0 else 'higher'} by {abs(mean):.1%} in the mean"
    if flagged:
        value += f" and at {same_way} of {count} conditions (by chance in {_rarely(chance)})"
    remedy = "a run-order effect: warm up longer, or rest between windows"
    return _held("run order", value, limit, remedy, flagged=flagged)


def drift(windows: Sequence[tuple[str, float, float]], flag_above: float, chance_below: float = CHANCE) -> Gate:
    """Whether energy per token goes up or down with time, whichever condition is measured.

    Args:
        windows: (n,) condition as text, time in seconds and energy per token of every window of the run. A control repeat
            is one more window of its condition.
        flag_above: change from the first window to the last that matters, as a share.
        chance_below: flagged only when noise alone gives such a slope in fewer runs than this.

    The logarithm of the figures is fitted with a level for each condition and one slope in time for all, so that conditions
    may differ by factors and a window's noise is a share of it. Under white noise the slope over its standard error then
    follows Student's t with n - C - 1 degrees of freedom: C levels and the slope have been fitted. A correlation with n - 2
    would take the fitted levels for known and be too sure of itself.
    """
    limit = f"{flag_above:.0%} over the run, or what chance gives in {_rarely(chance_below)}"
    seen = [(name, mono_s, math.log(figure)) for name, mono_s, figure in windows if figure > 0]
    names = [name for name, _, _ in seen]
    freedom = len(seen) - len(set(names)) - 1
    if freedom < 1:
        return _unseen("drift", limit)
    moments = [mono_s for _, mono_s, _ in seen]
    times, logs = _less_own_mean(names, moments), _less_own_mean(names, [log for _, _, log in seen])
    across = math.fsum(t * t for t in times)
    if across == 0:
        return _unseen("drift", limit)
    slope = math.fsum(t * y for t, y in zip(times, logs, strict=True)) / across
    left = math.fsum((y - slope * t) ** 2 for t, y in zip(times, logs, strict=True))
    change = math.expm1(slope * (max(moments) - min(moments)))
    # Figures without any scatter have no chance in them.
    chance = _chance_of(slope * math.sqrt(across * freedom / left), freedom) if left > 0 else float(slope == 0)
    flagged = abs(change) > flag_above and chance < chance_below
    value = f"{'falls' if change < 0 else 'rises'} by {abs(change):.1%} over the run (by chance in {_rarely(chance)})"
    remedy = "the machine changed while it measured: warm up longer, rest between windows, or end other programs"
    return _held("drift", value, limit, remedy, flagged=flagged)


def _less_own_mean(names: Sequence[str], values: Sequence[float]) -> list[float]:
    """Each value less the mean of all those with its name."""
    groups: dict[str, list[float]] = {}
    for name, value in zip(names, values, strict=True):
        groups.setdefault(name, []).append(value)
    means = {name: math.fsum(own) / len(own) for name, own in groups.items()}
    return [value - means[name] for name, value in zip(names, values, strict=True)]


def _chance_of(t: float, freedom: int) -> float:
    """How often Student's t is at least this far from 0, either way.

    The finite sums for whole degrees of freedom: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    angle = math.atan(abs(t) / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = 0.0
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= cosine**2 * k / (k + 1)
    nearer = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return max(0.0, 1.0 - nearer)


def _rarely(chance: float) -> str:
    """`12% of runs`."""
    return f"{chance:.0%} of runs" if chance >= 0.01 else "under 1% of runs"


def window_power_slope(
    first_half_w: float | None, second_half_w: float | None, flag_above: float, uncertainty: float = 0.0
) -> Gate:
    """How much power rises or falls from the start of a window to its end: a machine that is still warming up.

    Args:
        first_half_w, second_half_w: mean power of the window's halves. On a straight line their means lie half a window
            apart, so the change across the whole of it is twice their difference.
        flag_above: as a share of the mean power.
        uncertainty: half-width of the change as a share, from the edges of the halves; a change within it is no change.
    """
    limit = f"{flag_above:.0%} within the window"
    if first_half_w is None or second_half_w is None or first_half_w + second_half_w <= 0:
        return _unseen("power slope", limit)
    change = 4 * (second_half_w - first_half_w) / (first_half_w + second_half_w)
    flagged = abs(change) > flag_above + uncertainty
    known = f" (known to {uncertainty:.1%})" if uncertainty else ""
    value = f"power {'falls' if change < 0 else 'rises'} by {abs(change):.1%}{known}"
    return _held("power slope", value, limit, "warm up longer", flagged=flagged)


def temperature_rise(rise_c: float | None, flag_above_c: float) -> Gate:
    """How much warmer the chip is at the end of a window than at its start.

    Args:
        rise_c: kelvin; `None` when a sensor that is there could not be read.
    """
    limit = f"{flag_above_c:g} °C within the window"
    if rise_c is None:
        return _unseen("temperature rise", limit)
    return _held("temperature rise", f"{rise_c:+.1f} °C", limit, "warm up longer", flagged=rise_c > flag_above_c)


def throttled(reasons: Sequence[str] | None) -> Gate:
    """Whether the chip was slowed down within a window.

    Args:
        reasons: as the machine names them; empty when it was not slowed down, `None` when it could not be asked.
    """
    if reasons is None:
        return _unseen("throttling", "none")
    value = ", ".join(dict.fromkeys(reasons)) or "none"
    remedy = "cool the machine, or set a lower clock that it can hold"
    return _held("throttling", value, "none", remedy, flagged=bool(reasons))


def power_limit_saturated(share: float | None, limit_w: float | None, flag_above: float) -> Gate:
    """How long power stood at the machine's own limit: the limit then decides the figure, not the condition.

    Args:
        share: of the window's time, 0 to 1.
        limit_w: the limit in force; `None` where it is not stated.
    """
    limit = f"{flag_above:.0%} of the window at the limit"
    if share is None:
        return _unseen("power limit", limit)
    at = "the power limit" if limit_w is None else f"the power limit of {limit_w:g} W"
    remedy = "raise the limit, or state it beside the result"
    return _held("power limit", f"{share:.0%} of the window at {at}", limit, remedy, flagged=share > flag_above)


def settings_in_force(amiss: Sequence[str]) -> Gate:
    """Whether what a suite has set on the machine still read so when the window ended.

    Args:
        amiss: what read otherwise, in words.
    """
    return Gate(
        name="settings in force",
        outcome="void" if amiss else "pass",
        value=one_line("; ".join(amiss), _CAUSE_CHARACTERS) or "as set",
        limit="as set",
        remedy="end the program that sets it too, then measure again" if amiss else "",
    )


def setting_seen(basis: str) -> Gate:
    """Whether the meter can see what a setting does: an estimate from CPU time takes a capped CPU for one that works longer at full power.

    Args:
        basis: of the meter.
    """
    return _held(
        "setting seen by the meter", basis, "not estimated", "measure with a sensor; only speeds mean anything here",
        flagged=basis == "estimated",
    )  # fmt: skip


def cap_held(caps: Sequence[tuple[str, float | None, float | None, str]]) -> Gate:
    """Whether the machine kept to a limit that a suite has set, as seen from outside.

    Args:
        caps: of each, what was looked at, the most it was, the limit and the unit; `None` where it could not be read, or where the
            machine does not tell what the setting comes to.
    """
    limit = f"{CAP_TOLERANCE:.0%} over what was set"
    over = [
        (what, seen, most, unit)
        for what, seen, most, unit in caps
        if seen is not None and most is not None and seen > most * (1 + CAP_TOLERANCE)
    ]
    untold = [what for what, seen, most, _ in caps if seen is None or most is None]
    if untold and not over:
        return Gate(
            name="cap held", outcome="not evaluable", value=None, limit=limit,
            remedy=f"{', '.join(untold)} could not be compared with what was set",
        )  # fmt: skip
    shown = [f"{what} {seen:.4g} {unit} against {most:.4g} {unit} set" for what, seen, most, unit in over or caps]
    return Gate(
        name="cap held",
        outcome="void" if over else "pass",
        value="; ".join(shown),
        limit=limit,
        remedy="the machine did not keep to it; see what else sets clocks, or take another knob" if over else "",
    )


def lengths_intercept(
    intercept_j: float | None, energy_j: float | None, flag_above: float, prompt_j: float | None = None
) -> Gate:
    """What energy is left at no answer at all, on the line through windows of several answer lengths.

    A little of it is the prompt's. Much of it, of either sign, means that the windows do not lie on one line, and
    its slope is not the energy of a decoded token.

    Args:
        intercept_j: of the line through (answer tokens, energy), in joules of one window.
        energy_j: of the window with the shortest answers, where the intercept weighs most.
        prompt_j: what the prompt alone took, where it was measured; the intercept beyond that has no such reason.
    """
    limit = f"{flag_above:.0%} of the energy at the shortest answers"
    if intercept_j is None or not energy_j or energy_j <= 0:
        return _unseen("answer lengths", limit)
    beyond_j = intercept_j - (prompt_j or 0.0)
    share = beyond_j / energy_j
    value = f"{beyond_j:.3g} J beside the tokens{'' if prompt_j is None else ' and the prompt'}, {share:.0%}"
    return _held("answer lengths", value, limit, "longer answers, or a shorter prompt", flagged=abs(share) > flag_above)


def swapping(swapped_mib: float | None, flag_above_mib: float) -> Gate:
    """Memory moved to and from the disk within a window, in MiB: waiting for it costs energy and makes no tokens."""
    limit = f"{flag_above_mib:g} MiB"
    if swapped_mib is None:
        return _unseen("swapping", limit)
    remedy = "end other programs, or take a smaller model or context"
    return _held("swapping", f"{swapped_mib:.0f} MiB", limit, remedy, flagged=swapped_mib > flag_above_mib)


def other_gpu_process(names: Sequence[str] | None) -> Gate:
    """Programs beside the engine that had the GPU open; `None` when the driver does not tell."""
    if names is None:
        return _unseen("others on the GPU", "none")
    value = ", ".join(dict.fromkeys(names)) or "none"
    remedy = "end these programs and measure again"
    return _held("others on the GPU", one_line(value, _CAUSE_CHARACTERS), "none", remedy, flagged=bool(names))


def battery_charging(charging: bool | None) -> Gate:
    """Whether a battery took up energy meanwhile, which a meter of the board or the wall reads as if it were work.

    Args:
        charging: `None` when a battery that is there does not tell; a machine without one has `False`.
    """
    if charging is None:
        return _unseen("battery", "not charging")
    value = "charging" if charging else "not charging"
    return _held("battery", value, "not charging", "wait until it is full, then measure again", flagged=charging)


def _held(name: str, value: float | str, limit: str, remedy: str, *, flagged: bool) -> Gate:
    """A gate that passes or flags, the remedy only where there is something to mend."""
    return Gate(
        name=name, outcome="flag" if flagged else "pass", value=value, limit=limit, remedy=remedy if flagged else ""
    )


def _unseen(name: str, limit: str, remedy: str = "") -> Gate:
    """A gate for which there was nothing to see."""
    return Gate(name=name, outcome="not evaluable", value=None, limit=limit, remedy=remedy)


def drafted(answers: Sequence[RequestRecord], *, wanted: bool = True) -> Gate:
    """Speculative decoding really ran, or really did not: a draft that fails to load is only a line in the server's log."""
    count, accepted = sum(a.draft_n for a in answers), sum(a.draft_accepted_n for a in answers)
    remedy = (
        "see the server's log: the draft must have the model's vocabulary; or lower draft_threshold, which no token may have reached"
        if wanted
        else "the engine drafts unasked; use a program or a build that does not"
    )
    fault = wanted != (count > 0)
    return Gate(
        name="draft in use",
        outcome="void" if fault else "pass",
        value=f"{count} tokens drafted" + (f", {accepted} accepted" if count else ""),
        limit="more than none" if wanted else "none",
        remedy=remedy if fault else "",
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


def readings(
    rails: Sequence[RailEnergy], counted: Sequence[str], notes: Sequence[str] = (), remedies: Remedies = OF_A_SUITE
) -> Gate:
    """What was mended or suspicious in the readings of the rails that count, and what else is known against them."""
    said = [*notes, *(f"{rail.rail}: {flag}" for rail in rails if rail.rail in counted for flag in rail.flags)]
    return Gate(
        name="readings",
        outcome="flag" if said else "pass",
        value="; ".join(said) or "as they came",
        limit="nothing dropped, moved or standing still",
        remedy=remedies.readings if said else "",
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


def rested(power_w: float | None, idle_w: float | None, flag_above: float) -> Gate:
    """Whether a machine had come to rest before a cold window: its power against the idle baseline.

    Args:
        power_w, idle_w: mean power at the end of the rest, and of the idle baseline before the first window.
    """
    limit = f"within {flag_above:.0%} of the idle power"
    if power_w is None or not idle_w:
        return Gate(name="rested", outcome="not evaluable", value=None, limit=limit)
    flagged = power_w > (1 + flag_above) * idle_w
    return Gate(
        name="rested",
        outcome="flag" if flagged else "pass",
        value=f"{power_w:.3g} W, {idle_w:.3g} W idle",
        limit=limit,
        remedy="raise rest_s, and end other programs" if flagged else "",
    )


def bridge(before_mj: float | None, after_mj: float | None, flag_above: float) -> Gate:
    """Whether a run that was taken up again goes on as it was: one window measured on both sides of the pause.

    Args:
        before_mj, after_mj: energy per token of that window before the interruption and after it.
    """
    limit = f"within {flag_above:.0%}"
    if not before_mj or not after_mj:
        return Gate(name="bridge", outcome="not evaluable", value=None, limit=limit)
    change = after_mj / before_mj - 1
    flagged = abs(change) > flag_above
    return Gate(
        name="bridge",
        outcome="flag" if flagged else "pass",
        value=f"{before_mj:.4g} mJ per token before the interruption, {after_mj:.4g} after it",
        limit=limit,
        remedy="the two parts of the run differ; measure anew" if flagged else "",
    )
