"""What the table itself shows, each statement judged as a prediction is. Pure.

A finding is a claim made after the data. It is told with how surely it stands, by the same perturbed tables that make a
verdict clear or narrow, so that the note never says more than the figures do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pytest_joules import verdict
from pytest_joules.errors import Unmeasured, Void
from pytest_joules.note.lines import axis_name, change, figure_text, unlike
from pytest_joules.prediction import Prediction, judge
from pytest_joules.records import Run, Window
from pytest_joules.sweep import Cell, Key, Sweep, from_run, label
from pytest_joules.words import listed

ENGINE = "engine"
"""The axis along which tools are compared."""

_WIDER = ("wall", "board")
_ALIKE = 0.005
"""Figures that differ by less are told as no rise and no fall."""
_MORE_LIKELY_THAN_NOT = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One statement about the table.

    Attributes:
        text: a sentence.
        sure: `clear` or `narrow`; empty of what is no statement about figures that could have come out otherwise.
        why: what speaks against it, when it is narrow.
        shown: whether the figures rather show it than not.
        least: the figure that it says is lowest somewhere; empty of what says something else.
    """

    text: str
    sure: str = ""
    why: str = ""
    shown: bool = True
    least: str = ""

    def __str__(self) -> str:
        about = f" [{self.sure}{': ' + self.why if self.why else ''}]" if self.sure and self.shown else ""
        return f"{self.text}{about}"


def main_axis(sweep: Sweep) -> str | None:
    """The axis that the figures are looked at along: batch where it varies, else the first one of numbers, else the first."""
    numeric = [axis for axis in sweep.axes if all(_is_number(c[axis]) for c in sweep.conditions)]
    return next((axis for axis in ("parallel", *numeric, *sweep.axes) if axis in sweep.axes), None)


def telling(run: Run) -> Sweep:
    """The table of a run without the axes that have one value alone and tell nothing apart; one axis is left."""
    sweep = from_run(run)
    first = sweep.conditions[0]
    single = [axis for axis in sweep.axes if all(condition[axis] == first[axis] for condition in sweep.conditions)]
    alone = len(single) == len(sweep.axes)
    return sweep.where(**{axis: first[axis] for axis in single[alone:]}) if single[alone:] else sweep


def slices(sweep: Sweep, axis: str) -> Iterator[tuple[str, Sweep]]:
    """The table along one axis, for each combination of the others: what is fixed, in words, and what is left."""
    others = [name for name in sweep.axes if name != axis]
    fixed = [
        dict(zip(others, key, strict=True))
        for key in dict.fromkeys(tuple(c[o] for o in others) for c in sweep.conditions)
    ]
    for values in fixed:
        yield label(values), sweep.where(**values) if values else sweep


def findings(run: Run) -> list[Finding]:
    """Everything this software can state about a run."""
    sweep = telling(run)
    axis = main_axis(sweep)
    found: list[Finding] = []
    if axis is not None and not all(cell.void for cell in sweep.cells):
        flags = verdict.effects(run)
        alike = _alike(sweep)
        found += _over_all(alike, flags, run.meter.basis)
        for fixed, table in slices(alike, axis):
            found += _along(table, axis, fixed, flags, run.meter.basis)
        if ENGINE in sweep.axes:
            found += _across_engines(sweep, alike, flags)
    found += [
        finding for gate in run.gates if gate.name == "run order" and (finding := _order(gate.outcome, gate.value))
    ]
    found += _share_of_wall(run)
    return found


def _alike(sweep: Sweep) -> Sweep:
    """The table without the conditions whose windows hold no prompt, where those of others do: their tokens are not the same work."""
    whole = next((cell for cell in sweep.cells if "prefill" in cell.includes), None)
    return sweep.fresh([cell for cell in sweep.cells if whole is None or not unlike(cell, whole)])


def _over_all(sweep: Sweep, flags: Sequence[str], basis: str) -> Iterator[Finding]:
    """Where of a grid the least energy is."""
    for metric, (what, unit) in _LEAST.items():
        energy = _with_figure(sweep, metric)
        if len(sweep.axes) < 2 or len(energy) < 2:
            continue
        low = getattr(energy, metric).argmin()
        cell = next(cell for cell in energy.cells if cell.condition == energy[low].condition)
        text = f"of all conditions {what} is lowest at {label(cell.condition)}, {figure_text(cell, metric)} {unit}{_unsure(basis)}"
        yield _least(text, metric, low, energy, sweep, "", flags)


def _along(table: Sweep, axis: str, fixed: str, flags: Sequence[str], basis: str) -> Iterator[Finding]:
    """Extremes along one axis, and what the further conditions cost."""
    name, unsure = axis_name(axis), _unsure(basis)

    def told(text: str, claim: Callable[[Sweep], bool], kept: Sweep) -> Finding:
        return _told(text, claim, kept, table, fixed, flags)

    def at(key: Key, metric: str) -> str:
        return _at(table, axis, key, metric)

    energy = _with_figure(table, "energy_per_token_mj")
    keys = list(energy.energy_per_token_mj)
    low: Key = None
    if found := cheapest(table, axis, fixed, flags, basis):
        low, finding = found
        yield finding
        figures, last = energy.energy_per_token_mj, keys[-1]
        if low != last and _is_number(last) and figures[last] > (1 + _ALIKE) * figures[low]:
            yield told(
                f"at the far end, {name} {last}, a token costs {change(figures[last], figures[low])} than at {low}{unsure}",
                lambda t: t.energy_per_token_mj[last] > t.energy_per_token_mj[low],
                energy,
            )
        elif low == last and _is_number(last) and figures[last] < (1 - _ALIKE) * figures[keys[-2]]:
            before = keys[-2]
            end = (
                "the end of what was asked"
                if last == table.cells[-1].condition[axis]
                else f"{name} {last}, the last with a figure"
            )
            yield told(
                f"it was still falling at {end}, by {1 - figures[last] / figures[before]:.0%} from {before} to {last}{unsure}",
                lambda t: t.energy_per_token_mj[last] < t.energy_per_token_mj[before],
                energy,
            )
    if found := cheapest(table, axis, fixed, flags, basis, "energy_per_correct_j"):
        yield found[1]
    speed = _with_figure(table, "tokens_per_s")
    keys = list(speed.tokens_per_s)
    if len(keys) > 1:
        top = speed.tokens_per_s.argmax()
        yield told(
            f"total speed is highest at {name} {top}, {at(top, 'tokens_per_s')} tok/s",
            lambda t: t.tokens_per_s.argmax() == top,
            speed,
        )
        each = _with_figure(table, "tokens_per_s_per_request").tokens_per_s_per_request
        # What it is to be one of many is best said where energy is lowest: that is where one would run it.
        many, alone = keys[-1] if low is None else low, keys[0]
        if axis == "parallel" and many in each and alone in each and many != alone:
            where = ", where a token costs least," if many == low else ""
            yield told(
                f"a request at {name} {many}{where} runs at {at(many, 'tokens_per_s_per_request')} tok/s, "
                f"{each[many] / each[alone]:.0%} of the {at(alone, 'tokens_per_s_per_request')} it has at {alone}",
                lambda t: t.tokens_per_s_per_request[many] < t.tokens_per_s_per_request[alone],
                speed,
            )
    power = _with_figure(table, "power_w")
    if len(power) > 1 and basis != "estimated":
        least, most = power.power_w.argmin(), power.power_w.argmax()
        yield told(
            f"power is lowest at {name} {least}, {at(least, 'power_w')} W, and highest at {most}, {at(most, 'power_w')} W{unsure}",
            lambda t: t.power_w.argmin() == least and t.power_w.argmax() == most,
            power,
        )


_LEAST = {"energy_per_token_mj": ("energy per token", "mJ"), "energy_per_correct_j": ("energy per right answer", "J")}
"""Figures of which a note tells where they are lowest: what they are, and their unit."""


def cheapest(
    table: Sweep, axis: str, fixed: str, flags: Sequence[str], basis: str, metric: str = "energy_per_token_mj"
) -> tuple[Key, Finding] | None:
    """Where along one axis a token or a right answer costs least, and how surely; `None` with fewer than two figures.

    Args:
        fixed: the values of the other axes, in words.
        flags: what makes every finding on the run narrow.
    """
    energy = _with_figure(table, metric)
    if len(energy) < 2:
        return None
    figures = getattr(energy, metric)
    low, first = figures.argmin(), next(iter(figures))
    published = next(cell.change for cell in table.cells if cell.condition[axis] == low)
    saved = published if metric == "energy_per_token_mj" and first == next(iter(table.energy_per_token_mj)) else ""
    against = f", {saved or change(figures[low], figures[first])} than at {first}" if low != first else ""
    what, unit = _LEAST[metric]
    text = (
        f"{what} is lowest at {axis_name(axis)} {low}, {_at(table, axis, low, metric)} {unit}{_unsure(basis)}{against}"
    )
    return low, _least(text, metric, low, energy, table, fixed, flags)


def _least(text: str, metric: str, low: Key, kept: Sweep, table: Sweep, fixed: str, flags: Sequence[str]) -> Finding:
    """That a figure is lowest at a condition."""
    told = _told(text, lambda t: getattr(t, metric).argmin() == low, kept, table, fixed, flags)
    return replace(told, least=metric)


def _told(
    text: str, claim: Callable[[Sweep], bool], kept: Sweep, table: Sweep, fixed: str, flags: Sequence[str]
) -> Finding:
    """A claim about the conditions of a table that have a figure."""
    where = f"With {fixed}: " if fixed else ""
    left = "" if len(kept) == len(table) else f", of the {len(kept)} of {len(table)} conditions with a figure"
    return _judged(f"{where}{text}{left}.", claim, kept, flags)


def _at(table: Sweep, axis: str, key: Key, metric: str) -> str:
    return figure_text(next(cell for cell in table.cells if cell.condition[axis] == key), metric)


def _unsure(basis: str) -> str:
    return "" if basis == "measured" else f" ({basis})"


def _judged(text: str, claim: Callable[[Sweep], bool], table: Sweep, flags: Sequence[str]) -> Finding:
    def function(sweep: Sweep) -> None:
        # Not the statement: whoever switches assertions off would have every finding called clear.
        if not claim(sweep):
            raise AssertionError(text)

    as_prediction = Prediction(name=text, function=function, suite=table.about.suite)
    robust = verdict.robustness(as_prediction, judge(as_prediction, table), table, flags=flags)
    if robust.agreement is not None and robust.agreement < _MORE_LIKELY_THAN_NOT:
        return Finding(
            text=f"Not shown, since only {robust.agreement:.0%} of perturbed tables agree: {text}",
            sure="narrow",
            shown=False,
        )
    return Finding(text=text[:1].upper() + text[1:], sure=robust.word, why=robust.why_narrow)


def _with_figure(table: Sweep, metric: str) -> Sweep:
    """The table without the cells that have no such figure."""
    return table.fresh([cell for cell in table.cells if _has(cell, metric)])


def _has(cell: Cell, metric: str) -> bool:
    try:
        return math.isfinite(cell.mean(metric))
    except (Unmeasured, Void):
        return False


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _across_engines(sweep: Sweep, alike: Sweep, flags: Sequence[str]) -> Iterator[Finding]:
    """How far the tools agree, with the first one as the measure; with those whose windows hold no prompt, in a decoded token alone."""
    engines = list(dict.fromkeys(condition[ENGINE] for condition in sweep.conditions))
    kept = {condition[ENGINE] for condition in alike.conditions}
    if left_out := [name for name in engines if name not in kept]:
        yield Finding(
            text=f"The windows of {listed(left_out)} hold no prompt: a token of theirs is held against a decoded one alone."
        )
    for metric, what, table in (
        ("decode_energy_per_token_mj", "energy per decoded token", sweep),
        ("energy_per_token_mj", "energy per token", alike),
        ("tokens_per_s", "tokens per second", alike),
    ):
        for other in engines[1:]:
            ratios = [
                f"{label(fixed) or 'the only condition'} {middle:.3f} ({low:.3f} to {high:.3f})"
                for fixed, middle, low, high in ratios_between(table, metric, ENGINE, engines[0], other)
            ]
            if ratios:
                narrow = "; ".join(flags)
                yield Finding(
                    text=f"{other} over {engines[0]}, {what}, with the range in which 95 % of perturbed tables lie: {'; '.join(ratios)}.",
                    sure="narrow" if narrow else "", why=narrow,
                )  # fmt: skip


def ratios_between(
    sweep: Sweep, metric: str, axis: str, reference: Key, other: Key
) -> Iterator[tuple[dict[str, Any], float, float, float]]:
    """Ratios of a figure at two values of an axis: (the other axes' values, ratio, and its 95 % range); none where its noise is unknown.

    The range comes from the perturbed tables that verdicts come from; where the noise of a pass is unknown it spans what
    edges and calibration alone give.
    """
    rng = np.random.default_rng(0)
    known = verdict.perturbations(sweep, rng)
    logs = known[metric] if metric in known else verdict.figure_perturbations(sweep, metric, rng, verdict.TABLES)
    if logs is None:
        return
    for condition in sweep.conditions:
        wanted = {**condition, axis: other}
        if condition[axis] != reference or wanted not in sweep.conditions:
            continue
        a, b = sweep.conditions.index(condition), sweep.conditions.index(wanted)
        if not all(_has(sweep.cells[i], metric) for i in (a, b)):
            continue
        middle = sweep.cells[b].mean(metric) / sweep.cells[a].mean(metric)
        low, high = np.exp(np.quantile(logs[:, b] - logs[:, a], (0.025, 0.975)))
        yield (
            {name: value for name, value in condition.items() if name != axis},
            middle,
            middle * float(low),
            middle * float(high),
        )


def _order(outcome: str, value: object) -> Finding | None:
    if outcome == "flag":
        return Finding(text=f"The order of the conditions shows in the figures: {value}.")
    return (
        Finding(text=f"An effect of the order of the conditions is not shown: {value}.") if outcome == "pass" else None
    )


def _share_of_wall(run: Run) -> Iterator[Finding]:
    """What share of a wider scope the measured one is, where both were read in the same windows."""
    scopes = {rail.name: rail.scope for rail in run.meter.rails}
    for wider in _WIDER:
        shares = [
            share
            for window in run.windows
            if window.role == "measured" and (share := _share(window, scopes, run.meter.scope, wider)) is not None
        ]
        if shares:
            yield Finding(
                text=f"The {run.meter.scope} took {min(shares):.0%} to {max(shares):.0%} of what the {wider} took in the same windows."
            )


def _share(window: Window, scopes: Mapping[str, str], scope: str, wider: str) -> float | None:
    if scope == wider or window.energy_j is None:
        return None
    whole = [rail.energy_j for rail in window.rails if scopes.get(rail.rail) == wider]
    if not whole or any(energy is None for energy in whole):
        return None
    return window.energy_j / math.fsum(energy for energy in whole if energy is not None)
