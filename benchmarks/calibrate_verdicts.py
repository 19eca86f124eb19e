"""How often a verdict is wrong and called clear, and how often one with a wide margin is called narrow.

Campaigns on machines whose truth is known: noise of a pass from 0.5 to 10 %, a drift across the run, edges that are not known
well, two to eight passes over two to eight conditions, in the default order. Each is judged by the rule the package judges by,
on claims of four kinds whose truth stands at a stated distance from the threshold, on either side. docs/verdicts.md holds what
came of it.

    python benchmarks/calibrate_verdicts.py [--campaigns 60000] [--seed 1] [--plot docs/verdicts.svg]
"""

from __future__ import annotations

import argparse
import collections
import math
import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

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
        conditions=conditions, passes=passes, noise=noise, drift=abs(drift), edge=edge, margin=margin, claim=claim.name,
        wrong=word != holds, clear=clear and not by_gate, flagged=by_gate,
    )  # fmt: skip


def table(energy: np.ndarray, edge: float) -> Sweep:
    """The table of one campaign from (conditions, passes) energy per token."""
    cells = [
        Cell(condition={"parallel": i}, half_width=edge,
             passes=tuple({"energy_per_token_mj": e, "tokens_per_s": 1.0} for e in row))
        for i, row in enumerate(energy.tolist())
    ]  # fmt: skip
    return Sweep(("parallel",), cells, About())


def judged(claim: Claim, energy: np.ndarray, edge: float, rng: np.random.Generator) -> tuple[bool, bool]:
    """Whether the claim holds on the mean table, and whether that is clear: as `verdict.robustness` does, many tables at once."""
    means = energy.mean(axis=1)
    word = bool(claim.holds(means[None, :])[0])
    alone = claim.holds(energy.T)
    shaken = perturbations(table(energy, edge), rng)["energy_per_token_mj"]
    agreement = float((claim.holds(means * np.exp(shaken)) == word).mean())
    return word, bool((alone == word).all()) and agreement >= AGREE_FOR_CLEAR


def campaigns(count: int, seed: int) -> list[Outcome]:
    """So many campaigns, every shape at every margin in turn."""
    rng = np.random.default_rng(seed)
    shapes = [(c, n) for c in CONDITIONS for n in PASSES]
    outcomes = []
    for number in range(count):
        conditions, passes = shapes[number % len(shapes)]
        margin = MARGINS[number // len(shapes) % len(MARGINS)]
        outcomes.append(campaign(rng, margin, conditions, passes))
    return outcomes


def wrong_and_clear(outcomes: Sequence[Outcome]) -> list[float]:
    """Share at each margin of verdicts that are wrong and called clear."""
    return [_share([o.wrong and o.clear for o in outcomes if o.margin == margin]) for margin in MARGINS]


def narrow(outcomes: Sequence[Outcome]) -> list[float]:
    """Share at each margin of verdicts that are narrow."""
    return [_share([not o.clear for o in outcomes if o.margin == margin]) for margin in MARGINS]


def steady(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Those on machines that did not drift: a drift that is found makes a verdict narrow, as it should."""
    return [o for o in outcomes if not o.drift]


def _share(hits: Sequence[bool]) -> float:
    return sum(hits) / len(hits) if hits else math.nan


def by(outcomes: Sequence[Outcome], of: Callable[[Outcome], Hashable]) -> dict[Hashable, list[Outcome]]:
    """The outcomes in groups, in the order of what they are grouped by."""
    groups: dict[Hashable, list[Outcome]] = collections.defaultdict(list)
    for outcome in outcomes:
        groups[of(outcome)].append(outcome)
    return dict(sorted(groups.items()))


GROUPS: dict[str, tuple[Callable[[Outcome], Hashable], Callable[[Hashable], str]]] = {
    "passes x conditions": (lambda o: (o.passes, o.conditions), lambda shape: f"{shape[0]} x {shape[1]}"),
    "noise": (lambda o: o.noise, lambda noise: f"{noise:.1%}"),
    "drift": (lambda o: o.drift, lambda drift: f"{drift:.0%}"),
    "edge": (lambda o: o.edge, lambda edge: f"{edge:.0%}"),
    "claim": (lambda o: o.claim, str),
    "all": (lambda _: True, lambda _: "all"),
}  # type: ignore[dict-item]


def report(outcomes: Sequence[Outcome]) -> str:
    """The tables, one for each way of grouping."""
    parts = []
    for title, (of, called) in GROUPS.items():
        rows = []
        for name, group in by(outcomes, of).items():
            quiet = group if title == "drift" else steady(group)
            row = [called(name), *(f"{share:.1%}" for share in wrong_and_clear(group))]
            row += [f"{narrow(quiet)[-1]:.0%}", f"{_share([o.flagged for o in quiet if o.margin == MARGINS[-1]]):.0%}"]
            rows.append(row)
        headers = [title, *(f"{margin:g}" for margin in MARGINS), f"narrow at {MARGINS[-1]:g}", "of it by gate"]
        parts.append(tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True))
    quiet = by(steady(outcomes), GROUPS["passes x conditions"][0])
    rows = [[f"{n} x {c}", *(f"{share:.0%}" for share in narrow(group))] for (n, c), group in quiet.items()]  # type: ignore[misc]
    headers = ["narrow, without drift", *(f"{margin:g}" for margin in MARGINS)]
    rows.append(["all", *(f"{share:.0%}" for share in narrow(steady(outcomes)))])
    parts.append(tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True))
    return "\n\n".join(parts)


COLOURS = ("#1b6ca8", "#c0392b", "#2e8b57", "#8e6bbf", "#d98e04")


def plot(outcomes: Sequence[Outcome]) -> str:
    """Two panels as SVG: wrong and clear by margin, and narrow by margin, each with its aim."""
    quiet = steady(outcomes)
    shapes = {f"{n} passes x {c} conditions": [o for o in quiet if (o.passes, o.conditions) == (n, c)]
              for n, c in ((2, 2), (2, 6), (4, 6), (8, 8))}  # fmt: skip
    noises = {f"{noise:.1%} noise": group for noise, group in by(outcomes, lambda o: o.noise).items()}
    panels = (
        _panel(0, "wrong and clear", 0.06, 0.01, WRONG_AND_CLEAR, {"all": wrong_and_clear(outcomes)}
               | {name: wrong_and_clear(group) for name, group in noises.items()}),
        _panel(460, "narrow, without drift", 1.0, 0.25, NARROW_AT_FOUR, {"all": narrow(quiet)}
               | {name: narrow(group) for name, group in shapes.items()}),
    )  # fmt: skip
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 920 330" font-family="sans-serif" font-size="12" fill="#222">\n'
        '<rect width="920" height="330" fill="#fff"/>\n' + "\n".join(panels) + "\n</svg>\n"
    )


def _panel(left: int, title: str, top: float, tick: float, aim: float, curves: dict[str, list[float]]) -> str:
    def x(margin: float) -> float:
        return round(left + 50 + 250 * margin / MARGINS[-1], 1)

    def y(share: float) -> float:
        return round(270 - 230 * share / top, 1)

    lines = [f'<text x="{left + 50}" y="24" font-size="14" font-weight="bold">{title}</text>']
    for step in range(round(top / tick) + 1):
        at = step * tick
        lines.append(f'<path d="M{x(0)} {y(at)}H{x(MARGINS[-1])}" stroke="#ddd"/>')
        lines.append(f'<text x="{left + 44}" y="{y(at) + 4}" text-anchor="end">{at:.0%}</text>')
    lines += [
        f'<text x="{x(margin)}" y="288" text-anchor="middle">{margin}</text>'
        for margin in range(round(MARGINS[-1]) + 1)
    ]
    lines.append(
        f'<text x="{x(MARGINS[-1] / 2)}" y="310" text-anchor="middle">true margin, standard deviations of one pass</text>'
    )
    lines.append(f'<path d="M{x(0)} {y(aim)}H{x(MARGINS[-1])}" stroke="#222" stroke-dasharray="5 4"/>')
    lines.append(f'<text x="{x(0) + 4}" y="{y(aim) - 5}">aim: {aim:.0%}</text>')
    for place, (name, shares) in enumerate(curves.items()):
        colour = COLOURS[place]
        points = " ".join(f"{x(margin)},{y(share)}" for margin, share in zip(MARGINS, shares, strict=True))
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{1.5 + (place == 0)}"/>')
        lines.append(f'<text x="{left + 308}" y="{48 + 16 * place}" fill="{colour}">{name}</text>')
    return "\n".join(lines)


def main() -> int:
    """Print the tables; exit code 1 where verdicts are wrong and clear more often than they may."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--campaigns", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="also draw it")
    asked = parser.parse_args()
    outcomes = campaigns(asked.campaigns, asked.seed)
    print(f"{len(outcomes)} campaigns, {TABLES} perturbed tables each, seed {asked.seed}\n")
    print(report(outcomes))
    if asked.plot:
        asked.plot.write_text(plot(outcomes), encoding="utf-8")
    return int(max(wrong_and_clear(outcomes)) > WRONG_AND_CLEAR)


if __name__ == "__main__":
    sys.exit(main())
