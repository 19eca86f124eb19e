"""Every number a table can hold: what it means, its unit, and how one window gives it. Pure.

Adding a metric means adding one entry here and one property to `Sweep` and `Row`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pytest_joules.records import PREFILL_TOKENS, Grade, IdleBaseline, Window

NOISY_IDLE = 0.05
"""Above this standard deviation over mean, the idle baseline is too unsteady to subtract."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One column of the table.

    Attributes:
        name: as a prediction reads it; it carries the unit.
        unit: of the figure, as a person writes it.
        meaning: one line for a person.
        cost: less is better, and a saving can be spoken of.
        of_window: the figure of one window; `None` where it is undefined, or comes from several windows together.
        energy_power: how the figure scales with energy per token, as an exponent.
        speed_power: how the figure scales with tokens per second, as an exponent.
    """

    name: str
    unit: str
    meaning: str
    cost: bool
    of_window: Callable[[Window, IdleBaseline | None], float | None]
    energy_power: int
    speed_power: int


def energy_per_token_mj(window: Window, idle: IdleBaseline | None = None) -> float | None:
    """Millijoules per generated token, the prompt's share inside; `None` without energy or tokens."""
    if window.energy_j is None or window.tokens == 0:
        return None
    return 1000.0 * window.energy_j / window.tokens


def net_energy_per_token_mj(window: Window, idle: IdleBaseline | None) -> float | None:
    """As `energy_per_token_mj`, less the idle power over the window. `None` without a quiet baseline, or at or under zero."""
    if idle is None or window.energy_j is None or window.tokens == 0 or idle.sd_w > NOISY_IDLE * idle.mean_w:
        return None
    net_j = window.energy_j - idle.mean_w * window.window_s
    return 1000.0 * net_j / window.tokens if net_j > 0 else None


def time_to_first_token_s(window: Window) -> float | None:
    """Mean over the requests of the seconds from sending it to its first token; `None` unless every answer was streamed."""
    waits = [a.first_token_s - a.sent_s for a in window.requests if a.first_token_s is not None]
    return math.fsum(waits) / len(waits) if waits and len(waits) == len(window.requests) else None


def inter_token_s(window: Window) -> float | None:
    """Mean over the requests of their median time between tokens; `None` unless every answer was streamed and has two tokens."""
    medians = [a.inter_token_median_s for a in window.requests if a.inter_token_median_s is not None]
    return math.fsum(medians) / len(medians) if medians and len(medians) == len(window.requests) else None


def graded(window: Window) -> list[Grade]:
    """The grades of a window's answers; none unless it asked questions."""
    return [request.grade for request in window.requests if request.grade is not None]


def _count(window: Window, is_so: Callable[[Grade], bool]) -> float | None:
    grades = graded(window)
    return float(sum(map(is_so, grades))) if grades else None


def correct(window: Window) -> float | None:
    """Right answers; `None` unless questions were asked."""
    return _count(window, lambda grade: grade.correct)


def answered(window: Window) -> float | None:
    """Answers from which something could be taken, right or wrong; `None` unless questions were asked."""
    return _count(window, lambda grade: grade.extracted is not None)


def accuracy(window: Window) -> float | None:
    """Share of right answers; `None` unless questions were asked."""
    right = correct(window)
    return None if right is None else right / len(graded(window))


def energy_per_correct_j(window: Window) -> float | None:
    """Energy of the window, wrong answers and the drain in it, per right answer; `None` without energy or without a right one."""
    right = correct(window)
    return window.energy_j / right if window.energy_j is not None and right else None


def draft_acceptance(window: Window) -> float | None:
    """Share of the drafted tokens that the model took over; `None` where nothing was drafted."""
    drafted = sum(request.draft_n for request in window.requests)
    return sum(request.draft_accepted_n for request in window.requests) / drafted if drafted else None


def tokens_per_step(window: Window) -> float | None:
    """Tokens that a sequence got from one pass over the model's weights; `None` where nothing was drafted.

    Each pass yields the drafted tokens that it accepts and one of the model's own.
    """
    if not any(request.draft_n for request in window.requests):
        return None
    generated = sum(request.predicted_n for request in window.requests)
    passes = generated - sum(request.draft_accepted_n for request in window.requests)
    return generated / passes if passes > 0 else None


def energy_per_request_j(window: Window) -> float | None:
    """Energy of one request, all that it costs inside; `None` without energy or requests."""
    return window.energy_j / len(window.requests) if window.energy_j and window.requests else None


def is_prefill(window: Window) -> bool:
    """Nothing was decoded in it: every answer is the one token that comes with the prompt."""
    return window.answer_tokens == PREFILL_TOKENS


def impossible(window: Window) -> str:
    """Why nothing can be reckoned from a window that its gates let pass, as in a file changed by hand; empty where it can."""
    if window.energy_j is not None and window.energy_j <= 0:
        return f"its energy is {window.energy_j:g} J, which no window can have"
    if window.window_s <= 0:
        return f"its length is {window.window_s:g} s"
    if window.tokens < 0 or window.prompt_tokens < 0:
        return f"it counts {window.tokens} generated and {window.prompt_tokens} prompt tokens"
    return "" if window.tokens or is_prefill(window) else "no token was generated in it"


def energy_per_prompt_token_mj(window: Window) -> float | None:
    """Millijoules per prompt token that was computed; `None` without energy, and where anything else was computed beside prompts."""
    if window.energy_j is None or window.prompt_tokens == 0 or not is_prefill(window):
        return None
    return 1000.0 * window.energy_j / window.prompt_tokens


def prompt_tokens_per_s(window: Window) -> float | None:
    """Prompt tokens computed per second, all requests together; `None` where anything else was computed beside prompts."""
    return window.prompt_tokens / window.window_s if window.prompt_tokens and is_prefill(window) else None


def prefill_share(window: Window, alone: Window) -> float | None:
    """Share of a request's energy that its prompt takes, as the two windows say it; over 1 where they contradict each other."""
    whole_j, prompt_j = energy_per_request_j(window), energy_per_request_j(alone)
    return prompt_j / whole_j if whole_j and prompt_j else None


def prefill(window: Window, alone: Window) -> dict[str, float]:
    """The figures that a window of prompts alone gives for the one measured beside it, those that are defined.

    Args:
        window: of whole requests.
        alone: of the same requests with answers of one token.
    """
    share = prefill_share(window, alone)
    found = {
        "energy_per_prompt_token_mj": energy_per_prompt_token_mj(alone),
        "prompt_tokens_per_s": prompt_tokens_per_s(alone),
        "prefill_share": share if share is not None and share <= 1 else None,
    }
    return {name: figure for name, figure in found.items() if figure is not None}


@dataclass(frozen=True, slots=True)
class Decode:
    """The line through (answer tokens, energy) of one condition's windows in one pass.

    Attributes:
        slope_mj: energy of a generated token, without what does not grow with the answer.
        intercept_j: energy of a request beside its tokens, prompt and all.
        shortest_j: energy of a request with the shortest answers, where the intercept weighs most.
    """

    slope_mj: float
    intercept_j: float
    shortest_j: float


def decode(windows: Sequence[Window]) -> Decode | None:
    """The least-squares line through windows of several answer lengths; `None` without energy at two lengths."""
    points = sorted((w.answer_tokens, w.energy_j / len(w.requests)) for w in windows if w.energy_j and w.requests)
    lengths = [float(tokens) for tokens, _ in points]
    if len(set(lengths)) < 2:
        return None
    energies = [energy_j for _, energy_j in points]
    mean_n, mean_j = math.fsum(lengths) / len(points), math.fsum(energies) / len(points)
    varied = math.fsum((n - mean_n) ** 2 for n in lengths)
    slope_j = math.fsum((n - mean_n) * (e - mean_j) for n, e in zip(lengths, energies, strict=True)) / varied
    return Decode(1000.0 * slope_j, mean_j - slope_j * mean_n, energies[0])


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("energy_per_token_mj", "mJ per token", "energy per generated token, prompt included",
               True, energy_per_token_mj, 1, 0),
        Metric("net_energy_per_token_mj", "mJ per token", "the same above the idle power", True, net_energy_per_token_mj, 1, 0),
        Metric("decode_energy_per_token_mj", "mJ per token", "energy per generated token over answers of several lengths, prompt left out",
               True, lambda *_: None, 1, 0),
        Metric("energy_per_prompt_token_mj", "mJ per prompt token", "energy per computed prompt token, from windows that are all prompt",
               True, lambda w, _: energy_per_prompt_token_mj(w), 1, 0),
        Metric("prefill_share", "share", "share of a request's energy that its prompt takes", False, lambda *_: None, 0, 0),
        Metric("energy_per_correct_j", "J per right answer", "energy per right answer, wrong answers and the drain included",
               True, lambda w, _: energy_per_correct_j(w), 1, 0),
        Metric("accuracy", "share", "share of right answers", False, lambda w, _: accuracy(w), 0, 0),
        Metric("correct", "answers", "right answers in the window", False, lambda w, _: correct(w), 0, 0),
        Metric("answered", "answers", "answers in the window from which one could be taken",
               False, lambda w, _: answered(w), 0, 0),
        Metric("tokens_per_s", "tokens/s", "generated tokens per second of window, all requests together", False,
               lambda w, _: w.tokens / w.window_s, 0, 1),
        Metric("tokens_per_s_per_request", "tokens/s", "generated tokens per second of one request", False,
               lambda w, _: w.tokens / w.window_s / w.slots, 0, 1),
        Metric("draft_acceptance", "share", "share of the drafted tokens that were accepted",
               False, lambda w, _: draft_acceptance(w), 0, 0),
        Metric("tokens_per_step", "tokens", "generated tokens of a sequence per pass over the weights, where tokens are drafted",
               False, lambda w, _: tokens_per_step(w), 0, 0),
        Metric("prompt_tokens_per_s", "tokens/s", "computed prompt tokens per second of a window that is all prompt, all requests together",
               False, lambda w, _: prompt_tokens_per_s(w), 0, 1),
        Metric("power_w", "W", "mean power over the window", True,
               lambda w, _: None if w.energy_j is None else w.energy_j / w.window_s, 1, 1),
        Metric("idle_power_w", "W", "power with the server loaded and silent, before and after the run", True,
               lambda _, idle: None if idle is None else idle.mean_w, 1, 0),
        Metric("energy_j", "J", "energy of the window", True, lambda w, _: w.energy_j, 1, 0),
        Metric("window_s", "s", "length of the window", True, lambda w, _: w.window_s, 0, -1),
        Metric("tokens", "tokens", "tokens generated in the window", False, lambda w, _: float(w.tokens), 0, 0),
        Metric("prompt_tokens", "tokens", "prompt tokens computed in the window",
               False, lambda w, _: float(w.prompt_tokens), 0, 0),
        Metric("time_to_first_token_s", "s", "seconds from sending a request to its first token, mean of the requests", True,
               lambda w, _: time_to_first_token_s(w), 0, -1),
        Metric("inter_token_s", "s", "seconds from one token of an answer to the next, mean of the requests' medians", True,
               lambda w, _: inter_token_s(w), 0, -1),
    )
}  # fmt: skip

OF_PREFILL = ("energy_per_prompt_token_mj", "prefill_share", "prompt_tokens_per_s")
"""Those that windows of prompts alone give."""

OF_DRAFTS = ("draft_acceptance", "tokens_per_step")
"""Those that come from the counts of drafted and accepted tokens."""

GRADED = frozenset({"energy_per_correct_j", "accuracy", "correct", "answered"})
"""Those that hang on which questions were asked."""
