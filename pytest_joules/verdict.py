"""How surely a prediction held or was refuted: the same rule on tables that could as well have come out. Pure.

The pass or fail is one evaluation on the table of means. It is `clear` when at least 95 % of perturbed tables and every
single pass agree, else `narrow`. The perturbation of a condition's mean is exp(t s / sqrt(n)): s is the standard deviation
of the log residuals after the condition and pass means are taken out, pooled over the conditions, not under 1 %; t is Student's
t with the pooled degrees of freedom. To it come each window's edge and lag half-width, one factor common to all conditions
that spans the pass means, and one for the stated calibration error of the meter, which cancels in ratios.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from pytest_joules.metrics import METRICS
from pytest_joules.prediction import Judgement, Prediction, judge
from pytest_joules.sweep import Cell, Sweep

TABLES = 2000
AGREE_FOR_CLEAR = 0.95
LEAST_SD = 0.01
_FARTHEST_LOG = 50.0
_PRIMARY = ("energy_per_token_mj", "tokens_per_s")
"""The two independent figures; every other metric is a product of their powers."""


@dataclass(frozen=True, slots=True)
class Robustness:
    """How a verdict fares on perturbed tables.

    Attributes:
        word: `clear` or `narrow`; empty when the verdict is neither held nor refuted.
        agreement: share of the perturbed tables that give the same verdict.
        why_narrow: what spoke against `clear`; empty when it is clear.
    """

    word: Literal["clear", "narrow", ""]
    agreement: float | None
    why_narrow: str = ""


@dataclass(frozen=True, slots=True)
class Noise:
    """Pooled noise of one primary figure.

    Attributes:
        sd: standard deviation of one pass in logarithms.
        dof: degrees of freedom behind it.
        common: lowest and highest pass mean over the grand mean, in logarithms.
    """

    sd: float
    dof: int
    common: tuple[float, float]


def pooled_noise(sweep: Sweep, metric: str) -> Noise | None:
    """The noise of a figure over the valid cells with a figure in every pass; `None` with one pass only."""
    rows = [
        [figures[metric] for figures in cell.passes]
        for cell in sweep.cells
        if not cell.void and cell.passes and all(metric in f and f[metric] > 0 for f in cell.passes)
    ]
    rows = [row for row in rows if len(row) == max(map(len, rows))]
    if not rows or len(rows[0]) < 2:
        return None
    logs = np.log(np.array(rows, dtype=float))
    conditions, passes = logs.shape
    pass_means = logs.mean(axis=0) - logs.mean()
    if conditions > 1:
        residuals = logs - logs.mean(axis=1, keepdims=True) - pass_means
        dof = (conditions - 1) * (passes - 1)
    else:
        residuals = logs - logs.mean()
        dof = passes - 1
        pass_means = np.zeros(passes)
    sd = math.sqrt(float((residuals**2).sum()) / dof)
    return Noise(max(sd, LEAST_SD), dof, (float(pass_means.min()), float(pass_means.max())))


def robustness(
    prediction: Prediction,
    verdict: Judgement,
    sweep: Sweep,
    against: Sweep | None = None,
    flags: Sequence[str] = (),
) -> Robustness:
    """Judge the prediction again on perturbed tables and on each pass alone.

    Args:
        flags: gates of the run (drift, run-order effect) that by themselves make a verdict narrow.
    """
    if verdict.word not in ("held", "refuted"):
        return Robustness("", None)
    reasons = list(flags)
    passes = max((len(cell.passes) for cell in sweep.cells), default=0)
    if any(cell.means for cell in sweep.cells):
        if not all(cell.spreads for cell in sweep.cells if cell.means):
            reasons.append("no spread over the passes was published: its noise is unknown")
    elif passes < 2:
        reasons.append("one pass: its noise is unknown")
    elif not verdict.reads.spread:
        for index in range(passes):
            single = judge(prediction, sweep.single_pass(index), against)
            if single.word != verdict.word:
                reasons.append(f"pass {index + 1} alone says {single.word}")
    agreement = _agreement(prediction, verdict.word, sweep, against)
    if agreement < AGREE_FOR_CLEAR:
        reasons.append(f"{agreement:.0%} of perturbed tables agree")
    return Robustness("narrow" if reasons else "clear", agreement, "; ".join(reasons))


def _agreement(prediction: Prediction, word: str, sweep: Sweep, against: Sweep | None) -> float:
    # The seed follows from the prediction and the run, so that judging again gives the same share.
    seed = zlib.crc32(f"{prediction.name} {sweep.about.run_id}".encode())
    rng = np.random.default_rng(seed)
    shaken = _Perturbed(sweep, rng)
    shaken_against = _Perturbed(against, rng) if against is not None else None
    same = 0
    for index in range(TABLES):
        other = shaken_against(index) if shaken_against else None
        same += judge(prediction, shaken(index), other).word == word
    return same / TABLES


def perturbations(sweep: Sweep, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """What the means of the two primary figures are multiplied by, in logarithms: (`TABLES`, cells) for each."""
    cells = sweep.cells
    count = len(cells)
    logs: dict[str, np.ndarray] = {}
    passes = max(1, max((len(cell.passes) for cell in cells), default=1))
    for metric in _PRIMARY:
        noise = pooled_noise(sweep, metric) or Noise(LEAST_SD, max(1, _published(cells) - 1), (0.0, 0.0))
        t = rng.standard_t(noise.dof, size=(TABLES, count))
        common = rng.uniform(*noise.common, size=(TABLES, 1)) if noise.common[1] > noise.common[0] else 0.0
        # With one degree of freedom t has no bounds, and exp of it no finite value.
        logs[metric] = np.clip(t * noise.sd / math.sqrt(passes) + common, -_FARTHEST_LOG, _FARTHEST_LOG)
    for metric in _PRIMARY:
        # Of a published table only the spread is known: its passes lie within half of it about the mean.
        half_spreads = [cell.spreads.get(metric, 0.0) / 2 for cell in cells]
        logs[metric] += np.log1p(rng.uniform(-1.0, 1.0, size=(TABLES, count)) * np.minimum(half_spreads, 0.9))
    # Edges and lag err differently in every window, the meter's gain alike in all.
    for half_widths, columns in (
        ([c.half_width for c in cells], count),
        ([max((c.calibration for c in cells), default=0.0)], 1),
    ):
        off = rng.uniform(-1.0, 1.0, size=(TABLES, columns)) * np.minimum(half_widths, 0.9)
        logs["energy_per_token_mj"] += np.log1p(off)
    return logs


def _published(cells: Sequence[Cell]) -> int:
    """How many cells are of a published table, where noise shows in the spreads alone."""
    return sum(bool(cell.means and cell.spreads) for cell in cells)


class _Perturbed:
    """Perturbed tables by number; all their randomness is drawn beforehand."""

    def __init__(self, sweep: Sweep, rng: np.random.Generator) -> None:
        self._sweep = sweep
        self._logs = perturbations(sweep, rng)
        # One for each figure that was printed: they were rounded one by one.
        self._digits = rng.uniform(-1.0, 1.0, size=(TABLES, len(sweep.cells), len(METRICS)))

    def __call__(self, index: int) -> Sweep:
        energy, speed = (self._logs[metric][index] for metric in _PRIMARY)
        cells = [_shaken(cell, energy[i], speed[i], self._digits[index, i]) for i, cell in enumerate(self._sweep.cells)]
        return self._sweep.fresh(cells)


def _shaken(cell: Cell, energy_log: float, speed_log: float, digits: np.ndarray) -> Cell:
    if cell.void:
        return cell
    factors: Mapping[str, float] = {
        name: math.exp(metric.energy_power * energy_log + metric.speed_power * speed_log)
        * (1.0 + digits[i] * cell.roundings.get(name, 0.0))
        for i, (name, metric) in enumerate(METRICS.items())
    }
    return replace(cell, factors=factors)
