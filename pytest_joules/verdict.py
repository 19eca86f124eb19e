"""How surely a prediction held or was refuted: the same rule on tables that could as well have come out. Pure.

The pass or fail is one evaluation on the table of means. It is `clear` when at least 95 % of perturbed tables and every
single pass agree, else `narrow`. The perturbation of a condition's mean is exp(t s / sqrt(n)): s is the standard deviation
of the log residuals after the condition and pass means are taken out, pooled over the conditions, not under 1 %; t is Student's
t with the pooled degrees of freedom. To it come each window's edge and lag half-width, one factor common to all conditions
that spans the pass means, and one for the stated calibration error of the meter, which cancels in ratios. Figures of graded answers are
multiplied besides by what other questions would have made of them, figures of drafts by what other prompts would (`items`).
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from pytest_joules import gates, items, synthetic
from pytest_joules.metrics import GRADED, METRICS, OF_DRAFTS, OF_PREFILL
from pytest_joules.prediction import Judgement, Prediction, judge
from pytest_joules.records import OF_TABLE, Band, Condition, Run
from pytest_joules.sweep import Cell, Sweep, label
from pytest_joules.words import listed

TABLES = 2000
AGREE_FOR_CLEAR = 0.95
LEAST_SD = 0.01
_FARTHEST_LOG = 50.0
_LARGEST_SHARE = 0.9
_SPANS = {2: 3.0, 3: 1.5}
"""By passes, how many times the span of the pass means is taken. Two runs whose passes differ by up to five times the noise are then
held against each other with intervals that hold the truth in 94 % or more; the span alone came to 71 % of two passes."""
_SPANS_ALONE = {2: 8.0, 3: 3.0, 4: 1.5}
"""The same of a figure by itself, which no second run's span makes up for. On such runs the span alone came to under 86 %."""
_RESOLVED, _TABLES_EACH = 30, 60
"""The resolution of a suite is a rough share: so many tables, each perturbed so many times."""
_ALIKE = 0.8
"""Share of questions that a model gets right or wrong at every condition alike, where nothing was measured yet."""
_PRIMARY = ("energy_per_token_mj", "tokens_per_s")
"""The two independent figures; every other metric is a product of their powers."""
_FEWEST_PROMPTS = 3
"""Two that agree by luck would say that all do."""
_PLACES = {metric: place for place, metric in enumerate(METRICS)}


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
    passes = passes_of(sweep)
    if any(cell.means for cell in sweep.cells):
        if not all(cell.spreads for cell in sweep.cells if cell.means):
            reasons.append("no spread over the passes was published: its noise is unknown")
    elif passes < 2:
        reasons.append("one pass: its noise is unknown")
    else:
        reasons += _dissent(prediction, verdict, sweep, against)
    if verdict.reads.metrics & GRADED:
        reasons += _unknown_items(sweep, against)
    if not verdict.reads.metrics.isdisjoint(OF_DRAFTS):
        reasons += _unknown_drafts(sweep, against)
    agreement = _agreement(prediction, verdict.word, sweep, against)
    if agreement < AGREE_FOR_CLEAR:
        reasons.append(f"{agreement:.0%} of perturbed tables agree")
    return Robustness("narrow" if reasons else "clear", agreement, "; ".join(reasons))


def passes_to_decide(
    prediction: Prediction, verdict: Judgement, sweep: Sweep, against: Sweep | None = None, most: int = 64
) -> int | None:
    """The fewest passes after which the perturbed tables would agree with a verdict like this: the same means, the same noise.

    What a pass alone would say is not simulated, nor what the gates would. So a number not above the run's own means that the
    passes or the gates, and not the means, keep the verdict narrow.

    Returns:
        `None` when `most` would not do, because edges, calibration, rounding or a step common to a whole pass keep it narrow;
        when the noise of a pass is unknown; and of a verdict that is neither held nor refuted.
    """
    own = passes_of(sweep)
    if verdict.word not in ("held", "refuted") or own < 2 or most < 2:
        return None

    def enough(passes: int) -> bool:
        return _agreement(prediction, verdict.word, sweep, against, passes) >= AGREE_FOR_CLEAR

    if not enough(most):
        return None
    too_few, will_do = 1, most
    # The run's own number first: its answer is the one that was told beside the verdict.
    trial = own if own < most else (too_few + will_do) // 2
    while will_do - too_few > 1:
        too_few, will_do = (too_few, trial) if enough(trial) else (trial, will_do)
        trial = (too_few + will_do) // 2
    return will_do


def resolution(
    prediction: Prediction,
    axes: Sequence[str],
    conditions: Sequence[Condition],
    passes: int,
    spread: float = 0.03,
    against: tuple[Sequence[str], Sequence[Condition]] | None = None,
    undefined: Mapping[str, str] | None = None,
    around: Sweep | None = None,
    questions: int = 0,
) -> float | None:
    """How often a suite could decide a rule: the share of made-up machines on which it is true whose verdict would be clear.

    Args:
        passes: of the suite.
        spread: usual spread of a condition over that many passes.
        against, undefined, around: as for `synthetic.search`.
        questions: that the suite grades.

    Returns:
        0 when the rule is finer than the suite can resolve; `None` when it holds on none of the tables.
    """
    if passes < 2:
        return 0.0
    rng = np.random.default_rng(zlib.crc32(prediction.name.encode()))
    sd = spread / _expected_range(passes)
    every = synthetic.pairs(axes, conditions, against, passes, undefined, around)
    true = list(itertools.islice((pair for pair in every if judge(prediction, *pair).word == "held"), _RESOLVED))
    if not true:
        return None
    clear = 0
    # Few tables are measured several times, so that the share has no less to stand on.
    for table, other in itertools.islice(itertools.cycle(true), _RESOLVED):
        measured = _with_noise(table, sd, rng)
        if questions:
            measured = _with_questions(measured, questions, rng)
        verdict = judge(prediction, measured, other)
        # What a claim about spreads comes to is a fact of the run; any other clear verdict would be wrong unless it held.
        right = verdict.word == "held" or (verdict.word == "refuted" and verdict.reads.spread)
        clear += (
            right
            and next(_dissent(prediction, verdict, measured, other), None) is None
            and _agreement(prediction, verdict.word, measured, other, tables=_TABLES_EACH) >= AGREE_FOR_CLEAR
        )
    return clear / _RESOLVED


def _expected_range(count: int) -> float:
    """Mean distance from the least to the greatest of so many standard normals."""
    x = np.linspace(-8.0, 8.0, 1601)
    below = np.array([0.5 * math.erfc(-at / math.sqrt(2)) for at in x])
    # The range is the integral of the chance that x lies between the least and the greatest.
    return float((1.0 - below**count - (1.0 - below) ** count).sum() * (x[1] - x[0]))


def _with_noise(table: Sweep, sd: float, rng: np.random.Generator) -> Sweep:
    """The table's means measured in as many passes as it has, each with noise of its own."""
    cells = []
    for cell in table.cells:
        count = len(cell.passes)
        means = {metric: math.fsum(f[metric] for f in cell.passes) / count for metric in cell.passes[0]}
        logs = sd * rng.standard_normal((count, len(_PRIMARY)))
        passes = tuple(
            {name: mean * _factor(name, energy, speed) for name, mean in means.items()}
            for energy, speed in logs.tolist()
        )
        cells.append(replace(cell, passes=passes))
    return table.fresh(cells)


def _with_questions(table: Sweep, count: int, rng: np.random.Generator) -> Sweep:
    """The table with graded figures as so many questions of its shares of right answers could have given them."""
    chances = rng.random(count)
    cells = []
    for cell in table.cells:
        share = cell.passes[0]["accuracy"]
        right = np.where(rng.random(count) < _ALIKE, chances, rng.random(count)) < share
        found = float(right.mean())
        passes = []
        for figures in cell.passes:
            graded = {"accuracy": found, "correct": float(right.sum()), "answered": figures["answered"]}
            if found:
                graded["energy_per_correct_j"] = figures["energy_per_correct_j"] * share / found
            passes.append({name: figure for name, figure in figures.items() if name not in GRADED} | graded)
        asked = {f"{number}": items.Item(float(one), 1.0, 1.0) for number, one in enumerate(right.tolist())}
        cells.append(replace(cell, passes=tuple(passes), items=asked))
    return table.fresh(cells)


def effects(run: Run, metrics: Collection[str] = ()) -> list[str]:
    """What makes every verdict on a run narrow; a wide spread shows in the perturbation itself.

    Args:
        metrics: that the verdict reads. Windows of other answer lengths bear on the decode figure alone.
    """
    roles = (*OF_TABLE, "length") if "decode_energy_per_token_mj" in metrics else OF_TABLE
    of_run = [str(gate) for gate in run.gates if gate.outcome == "flag" and gate.name in gates.NARROWING]
    names = {gate.name for w in run.windows if w.role in roles for gate in w.gates if gate.outcome == "flag"}
    return of_run + [f"{name} in some windows" for name in sorted(names & {*gates.NARROWING, "other load"})]


def band(prediction: Prediction, sweep: Sweep, against: Sweep | None = None) -> Band | None:
    """Where a claim holds between two figures of energy per token at one condition, all else being as measured.

    Tried is the last condition first: a claim about two is about the further one, seen from the nearer.

    Returns:
        `None` where the claim is no band: it reads no energy, it is one-sided, or a spread, which is a fact of the run.
    """
    metric = _PRIMARY[0]
    reads = judge(prediction, sweep, against).reads
    if reads.spread or metric not in reads.metrics:
        return None
    for place in reversed(range(len(sweep.cells))):
        cell = sweep.cells[place]

        def holds(log: float, place: int = place, cell: Cell = cell) -> bool:
            factors = {name: _factor(name, log, 0.0) for name in METRICS}
            cells = [*sweep.cells[:place], replace(cell, factors=factors), *sweep.cells[place + 1 :]]
            return judge(prediction, sweep.fresh(cells), against).word == "held"

        edges = _edges(holds)
        if edges is not None:
            low, high = (cell.mean(metric) * math.exp(edge) for edge in edges)
            return Band(metric=metric, condition=cell.condition, low=low, high=high)
    return None


_BAND_LOG, _BAND_STEPS = math.log(8.0), 160
"""As far as an eighth and eight times a figure, in steps under 3 %: a band that is narrower and was missed is passed over."""


def _edges(holds: Callable[[float], bool]) -> tuple[float, float] | None:
    """The two ends of the one stretch within reach in which something holds; `None` where there is no such stretch."""
    grid = [_BAND_LOG * (2 * step / _BAND_STEPS - 1) for step in range(_BAND_STEPS + 1)]
    held = [holds(at) for at in grid]
    if held[0] or held[-1] or True not in held:
        return None
    first, last = held.index(True), len(held) - 1 - held[::-1].index(True)
    if not all(held[first : last + 1]):
        return None

    def edge(outside: float, inside: float) -> float:
        for _ in range(20):
            middle = (outside + inside) / 2
            outside, inside = (outside, middle) if holds(middle) else (middle, inside)
        return (outside + inside) / 2

    return edge(grid[first - 1], grid[first]), edge(grid[last + 1], grid[last])


def passes_of(sweep: Sweep) -> int:
    """How many passes the fullest cell of a table has; 0 of a published one."""
    return max((len(cell.passes) for cell in sweep.cells), default=0)


def _dissent(prediction: Prediction, verdict: Judgement, sweep: Sweep, against: Sweep | None) -> Iterator[str]:
    """What passes say that alone give another verdict; of a claim about spreads one pass says nothing."""
    if verdict.reads.spread:
        return
    passes: dict[str, list[str]] = {}
    for index in range(passes_of(sweep)):
        single = judge(prediction, sweep.single_pass(index), against)
        if single.word != verdict.word:
            passes.setdefault(single.word, []).append(str(index + 1))
    for word, those in passes.items():
        yield f"{'pass' if len(those) == 1 else 'each of passes'} {listed(those)} alone says {word}"


def _unknown_items(*tables: Sweep | None) -> Iterator[str]:
    """Why the noise of the questions is not known."""
    cells = [cell for table in tables if table is not None for cell in table.cells if not cell.void]
    if not all(cell.items for cell in cells):
        yield "which questions were answered rightly is not in the table: their noise is unknown"
    for name in dict.fromkeys(
        label(cell.condition) for cell in cells if cell.items and not any(i.right for i in cell.items.values())
    ):
        yield f"no answer was right at {name}: how rare right ones are is unknown"


def _unknown_drafts(*tables: Sweep | None) -> Iterator[str]:
    """Why it is not known how far the acceptance of drafts could have come out otherwise."""
    cells = [cell for table in tables if table is not None for cell in table.cells if not cell.void]
    if any(
        metric in figures
        for cell in cells
        if not cell.drafts
        for figures in (cell.means, *cell.passes)
        for metric in OF_DRAFTS
    ):
        yield "how many tokens were drafted for each prompt is not in the table: the noise of drafts is unknown"
    for cell in cells:
        if 0 < len(cell.drafts) < _FEWEST_PROMPTS:
            told = "1 prompt" if len(cell.drafts) == 1 else f"{len(cell.drafts)} prompts"
            yield f"{told} at {label(cell.condition)}: too few to tell how drafts for others do"
        elif cell.drafts and not any(one.accepted for one in cell.drafts):
            yield f"no drafted token was accepted at {label(cell.condition)}: how rare accepted ones are is unknown"
        elif cell.drafts and all(one.accepted == one.drafted for one in cell.drafts):
            yield f"every drafted token was accepted at {label(cell.condition)}: how rare rejected ones are is unknown"


def _agreement(
    prediction: Prediction,
    word: str,
    sweep: Sweep,
    against: Sweep | None,
    passes: int | None = None,
    tables: int | None = None,
) -> float:
    # The seed follows from the prediction and the run, so that judging again gives the same share.
    seed = zlib.crc32(f"{prediction.name} {sweep.about.run_id}".encode())
    rng = np.random.default_rng(seed)
    count = tables or TABLES
    shaken = _Perturbed(sweep, rng, passes, count)
    shaken_against = _Perturbed(against, rng, tables=count) if against is not None else None
    same = 0
    for index in range(count):
        other = shaken_against(index) if shaken_against else None
        same += judge(prediction, shaken(index), other).word == word
    return same / count


def perturbations(
    sweep: Sweep, rng: np.random.Generator, passes: int | None = None, tables: int | None = None
) -> dict[str, np.ndarray]:
    """What the means of the two primary figures are multiplied by, in logarithms: (`tables`, cells) for each.

    Args:
        passes: as if the same noise had been found in so many; the run's own when left out.
        tables: `TABLES` when left out.
    """
    return _perturbations(sweep, rng, passes, tables or TABLES)[0]


def _perturbations(
    sweep: Sweep, rng: np.random.Generator, passes: int | None, tables: int
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """As `perturbations`, and of the energy what the passes' scatter alone makes of it."""
    noise = {metric: _noise_logs(sweep, metric, rng, passes, tables) for metric in _PRIMARY}
    logs = {metric: own + _printed_logs(sweep.cells, metric, rng, tables) for metric, own in noise.items()}
    logs["energy_per_token_mj"] += _meter_logs(sweep.cells, rng, tables)
    return logs, noise["energy_per_token_mj"]


def figure_perturbations(
    sweep: Sweep, metric: str, rng: np.random.Generator, tables: int, *, alone: bool = False
) -> np.ndarray | None:
    """What the means of one figure are multiplied by, in logarithms, for use beside another run or `alone`: as `perturbations`, by
    the noise of that very figure, the last digit of printed ones in it.

    What is common to a pass cancels within a run and not beyond it, and few passes hardly show it: hence `_SPANS`.

    Returns:
        (`tables`, cells); `None` where the noise is unknown: one pass, or a published table without the spread of this figure.
    """
    cells = sweep.cells
    if pooled_noise(sweep, metric) is None and not any(metric in cell.spreads for cell in cells):
        return None
    spans = (_SPANS_ALONE if alone else _SPANS).get(passes_of(sweep), 1.0)
    logs: np.ndarray = _noise_logs(sweep, metric, rng, None, tables, spans) + _printed_logs(cells, metric, rng, tables)
    if power := METRICS[metric].energy_power:
        logs += power * _meter_logs(cells, rng, tables)
    digits = rng.uniform(-1.0, 1.0, size=(tables, len(cells)))
    logs += np.log1p(digits * np.minimum([cell.roundings.get(metric, 0.0) for cell in cells], _LARGEST_SHARE))
    if metric in GRADED:
        logs += np.log(items.factors([cell.items for cell in cells], rng, tables)[metric])
    if metric in OF_DRAFTS:
        logs += np.log(items.draft_factors([cell.drafts for cell in cells], rng, tables)[metric])
    return logs


def _noise_logs(
    sweep: Sweep, metric: str, rng: np.random.Generator, passes: int | None, tables: int, spans: float = 1.0
) -> np.ndarray:
    """The scatter of the passes, each cell's own and the one common to all."""
    own = max(1, passes_of(sweep))
    passes = passes or own
    noise = pooled_noise(sweep, metric)
    if noise is None:
        noise = Noise(LEAST_SD, max(1, _published(sweep.cells) - 1), (0.0, 0.0))
    elif passes != own:
        # Every further pass brings as many degrees of freedom as the second did.
        noise = replace(noise, dof=noise.dof // (own - 1) * (passes - 1))
    t = rng.standard_t(noise.dof, size=(tables, len(sweep)))
    low, high = (spans * end for end in noise.common)
    common = rng.uniform(low, high, size=(tables, 1)) if high > low else 0.0
    # With one degree of freedom t has no bounds, and exp of it no finite value.
    return np.clip(t * noise.sd / math.sqrt(passes) + common, -_FARTHEST_LOG, _FARTHEST_LOG)


def _printed_logs(cells: Sequence[Cell], metric: str, rng: np.random.Generator, tables: int) -> np.ndarray:
    """Of a published table only the spread is known: its passes lie within half of it about the mean."""
    half_spreads = [cell.spreads.get(metric, 0.0) / 2 for cell in cells]
    return np.log1p(rng.uniform(-1.0, 1.0, size=(tables, len(cells))) * np.minimum(half_spreads, _LARGEST_SHARE))


def _meter_logs(cells: Sequence[Cell], rng: np.random.Generator, tables: int) -> np.ndarray:
    """Edges and lag err differently in every window, the meter's gain alike in all."""
    edges = _edge_logs(cells, rng, tables)
    gain = rng.uniform(-1.0, 1.0, size=(tables, 1)) * min(
        max((c.calibration for c in cells), default=0.0), _LARGEST_SHARE
    )
    return edges + np.log1p(gain)


def _edge_logs(cells: Sequence[Cell], rng: np.random.Generator, tables: int) -> np.ndarray:
    half_widths = np.minimum([c.half_width for c in cells], _LARGEST_SHARE)
    edges: np.ndarray = np.log1p(rng.uniform(-1.0, 1.0, size=(tables, len(cells))) * half_widths)
    return edges


def _published(cells: Sequence[Cell]) -> int:
    """How many cells are of a published table, where noise shows in the spreads alone."""
    return sum(bool(cell.means and cell.spreads) for cell in cells)


def _factor(metric: str, energy_log: float, speed_log: float) -> float:
    powers = METRICS[metric]
    return math.exp(powers.energy_power * energy_log + powers.speed_power * speed_log)


class _Perturbed:
    """Perturbed tables by number; all their randomness is drawn beforehand.

    One table stands for all of them, because a rule is judged on thousands: it is as it was last asked for.
    """

    def __init__(
        self, sweep: Sweep, rng: np.random.Generator, passes: int | None = None, tables: int | None = None
    ) -> None:
        self._logs, noise = _perturbations(sweep, rng, passes, tables or TABLES)
        # One for each figure that was printed: they were rounded one by one.
        digits = rng.uniform(-1.0, 1.0, size=(tables or TABLES, len(sweep.cells), len(METRICS)))
        energy, speed = (self._logs[metric].tolist() for metric in _PRIMARY)
        own = _own_factors(sweep, rng, passes, tables or TABLES, noise)
        self._drawn = list(zip(energy, speed, digits.tolist(), own, strict=True))
        self._factors = [_Factors(cell.roundings) for cell in sweep.cells]
        cells = [
            cell if cell.void else replace(cell, factors=factors)
            for cell, factors in zip(sweep.cells, self._factors, strict=True)
        ]
        self._table = sweep.fresh(cells)

    def __call__(self, index: int) -> Sweep:
        for factors, *drawn in zip(self._factors, *self._drawn[index], strict=True):
            factors.energy_log, factors.speed_log, factors.digits, factors.own = drawn
        return self._table


def _own_factors(
    sweep: Sweep, rng: np.random.Generator, passes: int | None, tables: int, energy_noise: np.ndarray
) -> Sequence[Sequence[Mapping[str, float]]]:
    """By table and cell, what figures with noise of their own are multiplied by beside the others."""
    drawn: dict[str, np.ndarray] = {}
    if any(cell.items for cell in sweep.cells):
        drawn |= items.factors([cell.items for cell in sweep.cells], rng, tables)
    drawn |= _prefill_factors(sweep, rng, passes, tables)
    if any(cell.drafts for cell in sweep.cells):
        drawn |= items.draft_factors([cell.drafts for cell in sweep.cells], rng, tables)
    drawn |= _decode_factors(sweep, rng, passes, tables, energy_noise)
    if not drawn:
        return [[{}] * len(sweep.cells)] * tables
    rows = zip(*(figures.tolist() for figures in drawn.values()), strict=True)
    return [[dict(zip(drawn, cell, strict=True)) for cell in zip(*row, strict=True)] for row in rows]


def _prefill_factors(sweep: Sweep, rng: np.random.Generator, passes: int | None, tables: int) -> dict[str, np.ndarray]:
    """Of the figures of windows of prompts alone, which were measured at another time, with noise and edges of their own."""
    known = [m for m in OF_PREFILL if any(m in figures for cell in sweep.cells for figures in cell.passes)]
    factors = {}
    for metric in known:
        logs = _noise_logs(sweep, metric, rng, passes, tables)
        if not METRICS[metric].speed_power:
            logs = logs + _edge_logs(sweep.cells, rng, tables)
        factors[metric] = np.exp(logs)
    return factors


def _decode_factors(
    sweep: Sweep, rng: np.random.Generator, passes: int | None, tables: int, energy_noise: np.ndarray
) -> dict[str, np.ndarray]:
    """The slope over answers of several lengths scatters more than the energies it is made of: its own noise in place of theirs."""
    metric = "decode_energy_per_token_mj"
    if not any(metric in figures for cell in sweep.cells for figures in cell.passes):
        return {}
    return {metric: np.exp(_noise_logs(sweep, metric, rng, passes, tables) - energy_noise)}


class _Factors(Mapping[str, float]):
    """What the means of one cell are multiplied by. Worked out when asked for: a rule reads one metric of twelve."""

    __slots__ = ("_roundings", "digits", "energy_log", "own", "speed_log")

    def __init__(self, roundings: Mapping[str, float]) -> None:
        self._roundings = roundings
        self.energy_log = self.speed_log = 0.0
        self.digits: Any = ()
        self.own: Mapping[str, float] = {}

    def __getitem__(self, metric: str) -> float:
        factor = _factor(metric, self.energy_log, self.speed_log)
        if metric in self.own:
            factor *= self.own[metric]
        if metric in self._roundings:
            factor *= 1.0 + self.digits[_PLACES[metric]] * self._roundings[metric]
        return factor

    def get(self, metric: str, default: Any = None) -> Any:
        """As `__getitem__`; every metric has a factor."""
        return self[metric]

    def __iter__(self) -> Iterator[str]:
        return iter(METRICS)

    def __len__(self) -> int:
        return len(METRICS)
