"""How often a verdict is wrong and called clear, and how often one with a wide margin is called narrow.

Campaigns on machines whose truth is known: noise of a pass from 0.5 to 10 %, a drift across the run, edges that are not known
well, two to eight passes over two to eight conditions, in the default order. Each is judged by the rule the package judges by,
on claims of four kinds whose truth stands at a stated distance from the threshold, on either side.

    python benchmarks/calibrate_verdicts.py [--campaigns 60000] [--seed 1] [--plot docs/verdicts.svg]
"""

from __future__ import annotations

import argparse
import collections
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tabulate import tabulate

from pytest_joules import gates, schedule
from pytest_joules.suite import GateLimits
from pytest_joules.sweep import About, Cell, Sweep
from pytest_joules.verdict import AGREE_FOR_CLEAR, LEAST_SD, TABLES, perturbations

CONDITIONS, PASSES = (2, 3, 4, 6, 8), (2, 3, 4, 6, 8)
NOISES = (0.005, 0.01, 0.03, 0.10)
DRIFTS = (0.0, 0.0, 0.03, 0.10)
EDGES = (0.0, 0.0, 0.02, 0.05)
MARGINS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
"""In standard deviations of the claim's figure in one pass: of a ratio of two conditions, the square root of two times their noise."""
WRONG_AND_CLEAR, NARROW_AT_FOUR = 0.05, 0.10
LIMITS = GateLimits()

Figures = np.ndarray
"""(tables, conditions) energy per token."""


@dataclass(frozen=True)
class Claim:
    """A rule on tables, and where the truth of its figure has to stand for it to be just true.

    Attributes:
        holds: (tables,) whether it holds on each.
        truth: log energies of the conditions with the truth so far inside the rule (in logarithms).
        spread: standard deviation of its figure in one pass, in units of the noise.
    """

    name: str
    holds: Callable[[Figures], np.ndarray]
    truth: Callable[[int, float], np.ndarray]
    spread: float


def _falling(count: int) -> np.ndarray:
    return -0.3 * np.arange(count)


def _last_at(count: int, log: float) -> np.ndarray:
    return np.append(_falling(count)[:-1], log)


CLAIMS = (
    Claim("last saves over half of the first", lambda e: e[:, -1] / e[:, 0] < 0.5,
          lambda count, inside: _last_at(count, math.log(0.5) - inside), math.sqrt(2)),
    Claim("last is under a figure", lambda e: e[:, -1] < 0.5, lambda count, inside: _last_at(count, math.log(0.5) - inside), 1.0),
    Claim("last is the lowest", lambda e: e.argmin(axis=1) == e.shape[1] - 1,
          lambda count, inside: np.append(np.linspace(0.0, -0.3, count - 1) * (count > 2), -0.3 * (count > 2) - inside), math.sqrt(2)),
    Claim("saving within a band", lambda e: (e[:, -1] / e[:, 0] < 0.5) & (e[:, -1] / e[:, 0] > 0.05),
          lambda count, inside: _last_at(count, math.log(0.5) - inside), math.sqrt(2)),
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What became of one campaign."""

    conditions: int
    passes: int
    noise: float
    drift: float
    edge: float
    margin: float
    claim: str
    wrong: bool
    clear: bool
    flagged: bool


def campaign(rng: np.random.Generator, margin: float, conditions: int, passes: int) -> Outcome:
    """One run on a machine whose truth is known, judged."""
    claim = CLAIMS[rng.integers(len(CLAIMS))]
    noise, drift, edge = rng.choice(NOISES), rng.choice(DRIFTS) * rng.choice((-1, 1)), rng.choice(EDGES)
    holds = bool(rng.integers(2))
    sd = max(math.hypot(noise, edge / math.sqrt(3)), LEAST_SD)
    inside = margin * claim.spread * sd * (1 if holds else -1)
    truth = claim.truth(conditions, inside)
    if margin == 0:
        holds = True  # exactly at the threshold either verdict is as wrong; just inside it stands for both
    steps = schedule.plan(
        [{"parallel": i} for i in range(conditions)], passes, "balanced", control=False, seed=int(rng.integers(1 << 30))
    )
    logs = np.empty((conditions, passes))
    in_time = []
    for place, step in enumerate(steps):
        i = step.condition["parallel"]
        late = place / (len(steps) - 1) - 0.5
        off = edge * rng.uniform(-1, 1)
        logs[i, step.pass_index] = truth[i] + noise * rng.standard_normal() + drift * late + math.log1p(off)
        in_time.append((str(i), float(place), math.exp(logs[i, step.pass_index])))
    energy = np.exp(logs)
    flagged = [
        gates.run_order(*energy.T.tolist(), flag_above=LIMITS.run_order_flag_above),
        gates.drift(in_time, LIMITS.drift_flag_above),
    ]
    word, clear = judged(claim, energy, edge, rng)
    by_gate = any(gate.outcome == "flag" for gate in flagged)
    return Outcome(
        conditions, passes, noise, abs(drift), edge, margin, claim.name, word != holds, clear and not by_gate, by_gate
    )


def judged(claim: Claim, energy: np.ndarray, edge: float, rng: np.random.Generator) -> tuple[bool, bool]:
    """Whether the claim holds on the mean table, and whether that is clear: as `verdict.robustness` does, many tables at once."""
    means = energy.mean(axis=1)
    word = bool(claim.holds(means[None, :])[0])
    alone = claim.holds(energy.T)
    cells = [
        Cell(condition={"parallel": i}, half_width=edge,
             passes=tuple({"energy_per_token_mj": e, "tokens_per_s": 1.0} for e in row))
        for i, row in enumerate(energy.tolist())
    ]  # fmt: skip
    shaken = perturbations(Sweep(("parallel",), cells, About()), rng)["energy_per_token_mj"]
    agreement = float((claim.holds(means * np.exp(shaken)) == word).mean())
    return word, bool((alone == word).all()) and agreement >= AGREE_FOR_CLEAR


def main() -> int:
    """Print the tables; exit code 1 where the rule misses."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--campaigns", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot")
    asked = parser.parse_args()
    rng = np.random.default_rng(asked.seed)
    shapes = [(c, n) for c in CONDITIONS for n in PASSES]
    outcomes = []
    for number in range(asked.campaigns):
        c, n = shapes[number % len(shapes)]
        outcomes.append(campaign(rng, MARGINS[(number // len(shapes)) % len(MARGINS)], c, n))
    print(f"{len(outcomes)} campaigns, {TABLES} perturbed tables each, seed {asked.seed}\n")
    missed = False
    for title, of in (
        ("by passes x conditions", lambda o: f"{o.passes} x {o.conditions}"),
        ("by noise", lambda o: f"{o.noise:.1%}"),
        ("by drift", lambda o: f"{o.drift:.0%}"),
        ("by edge", lambda o: f"{o.edge:.0%}"),
        ("by claim", lambda o: o.claim),
        ("all", lambda o: "all"),
    ):
        groups = collections.defaultdict(list)
        for o in outcomes:
            groups[of(o)].append(o)
        print(title)
        rows = []
        for name, group in groups.items():
            row = [name]
            for margin in MARGINS:
                at = [o for o in group if o.margin == margin]
                row.append(f"{np.mean([o.wrong and o.clear for o in at]):.1%}" if at else "")
            at = [o for o in group if o.margin == MARGINS[-1] and not (o.drift and of(o) != f"{o.drift:.0%}")]
            row.append(f"{np.mean([not o.clear for o in at]):.0%}")
            row.append(f"{np.mean([o.flagged for o in at]):.0%}")
            rows.append(row)
        print(
            tabulate(rows, headers=["", *(f"{m:g}" for m in MARGINS), "narrow at 4", "by gate"], disable_numparse=True)
            + "\n"
        )
    for margin in MARGINS:
        at = [o for o in outcomes if o.margin == margin]
        missed |= bool(np.mean([o.wrong and o.clear for o in at]) > WRONG_AND_CLEAR)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
