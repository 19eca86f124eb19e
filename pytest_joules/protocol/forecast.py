"""How long each window will be and how often the sensor will speak in it, before anything is measured. Pure.

A short look at one condition gives the time of a decode step. More slots never make a step shorter, so the length that
follows for the other conditions is the least they can have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_joules import items
from pytest_joules.records import Condition
from pytest_joules.suite import Setting, Suite
from pytest_joules.sweep import label


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a window of one condition will be at least.

    Attributes:
        window_s: its length.
        updates: how often the sensor will speak in it.
        answer_tokens_needed: length of the answers with which it would not be thin; `None` when it is not.
    """

    condition: Condition
    window_s: float
    updates: int
    answer_tokens_needed: int | None


def forecast(
    suite: Suite, seen: Setting, step_s: float, refresh_s: float, least_s: float, updates_wanted: int
) -> list[Forecast]:
    """Forecasts for the conditions that run the model that was looked at.

    Args:
        seen: the condition that was looked at.
        step_s: seconds of one decode step there.
        refresh_s: seconds between two updates of the slowest rail that counts.
        least_s: shortest window where the suite fixes no rounds.
        updates_wanted: with fewer of them a window is thin.
    """
    found = []
    for condition in suite.conditions:
        setting = suite.setting(condition)
        if setting.request.questions is not None:
            continue  # the model ends its answers, so that their length is not known
        if _about(setting) != _about(seen):
            continue
        slots_share = min(1.0, setting.server.parallel / seen.server.parallel)
        token_s = step_s * slots_share
        shortest = min(setting.request.answer_tokens, *(setting.request.lengths or (math.inf,)))
        round_s = shortest * token_s
        rounds = suite.protocol.rounds
        window_s = round_s * rounds if rounds is not None else max(least_s, round_s)
        updates = int(window_s / refresh_s)
        needed = math.ceil(updates_wanted * refresh_s / (token_s * (rounds or 1))) if updates < updates_wanted else None
        found.append(Forecast(condition, window_s, updates, needed))
    return found


def _about(setting: Setting) -> tuple[object, ...]:
    """What a step that was looked at must agree with to tell of another: the prompt is a part of it where it is long."""
    request = setting.request
    prompt = (request.prompt_tokens, request.shared_prefix_tokens, request.cache_prompt)
    return setting.engine, setting.model, setting.format, setting.knobs, prompt


def advice(forecasts: Sequence[Forecast], meter: str, refresh_s: float, updates_wanted: int) -> str:
    """What to say of the windows that will be thin; empty when none will."""
    thin = [f for f in forecasts if f.answer_tokens_needed is not None]
    if not thin:
        return ""
    names = "; ".join(f"{label(f.condition) or 'the only condition'}: {f.window_s:.2g} s, {f.updates}" for f in thin)
    needed = max(f.answer_tokens_needed or 0 for f in thin)
    return (
        f"thin windows ahead ({meter} speaks every {refresh_s:.2g} s, {updates_wanted} times in a window that is not thin): "
        f"{names}; answer_tokens {needed}, more rounds or min_window_s would mend it"
    )


def resolution(counts: Sequence[int]) -> str:
    """What a graded suite can tell apart, in words; empty when it asks no questions.

    Args:
        counts: of questions, by condition.
    """
    if not any(counts):
        return ""
    count = min(filter(None, counts))
    points, share = items.resolved(count)
    return (
        f"{count} questions resolve a difference in accuracy of about {100 * points:.0f} points at 50 %, and in energy per right answer of "
        f"about {share:.0%}; less between conditions that get mostly the same ones right"
    )
