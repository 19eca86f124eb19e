"""Made-up tables on which a rule must be able to fail. Pure.

A prediction that holds on every table that could have come out predicts nothing. It is judged on a family of tables of the
suite's own conditions: flat, falling, rising, with a knee at each condition, and noisy, each over a wide grid of scales.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

from pytest_joules.errors import Unmeasured, Void
from pytest_joules.metrics import METRICS
from pytest_joules.prediction import Prediction, judge
from pytest_joules.records import Condition
from pytest_joules.sweep import About, Cell, Key, Sweep, label
from pytest_joules.words import nearest

TABLES = 400
"""How many tables the search draws; a rule that never fails in so many cannot fail in practice."""

Example = Mapping[str, Mapping[Key, float | Sequence[float]]]
"""An author's figures: by metric, then by condition as the table names it; one figure, or one for each pass.

Under the name `against` stands another such mapping, for the table that is compared with.
"""

_ENERGY_MJ = (0.1, 100_000.0)
_TOKENS_PER_S = (0.1, 100_000.0)
_SPREADS = (0.002, 0.01, 0.03, 0.08, 0.25, 0.8)
_SLOPES = (-1.5, -1.0, -0.7, -0.3, -0.05, 0.0, 0.05, 0.3, 1.0)
_KNEE_PENALTIES = (0.0, 0.05, 0.2, 0.8)
_NOISES = (0.0, 0.0, 0.02, 0.1, 0.5)
_SCALES = tuple(10 ** (half / 2) for half in range(-4, 5))
"""A stored run is tried at a hundredth to a hundred times its figures."""
_MOVES = (0.5, 0.7, 0.85, 0.95, 1.05, 1.2, 1.4, 2.0)
_MOVED_TOGETHER, _MOVED_ALONE = 100, 200


@dataclass(frozen=True, slots=True)
class Search:
    """What the search found.

    Attributes:
        share_held: share of the tables on which the prediction held, the author's examples among them.
        broken: the first error other than a failed assertion; empty when there was none.
        tables: how many there were.
        examples: what is wrong with the author's examples, each with its figures.
    """

    share_held: float
    broken: str = ""
    tables: int = 0
    examples: tuple[str, ...] = ()

    @property
    def cannot_fail(self) -> bool:
        """It held on every table."""
        return not self.broken and self.share_held == 1.0

    @property
    def never_holds(self) -> bool:
        """It failed on every table."""
        return not self.broken and self.share_held == 0.0


def search(
    prediction: Prediction,
    axes: Sequence[str],
    conditions: Sequence[Condition],
    against: tuple[Sequence[str], Sequence[Condition]] | None = None,
    passes: int = 2,
    undefined: Mapping[str, str] | None = None,
    *,
    holds: Example | Sequence[Example] = (),
    fails: Example | Sequence[Example] = (),
    around: Sweep | None = None,
) -> Search:
    """Judge a prediction on synthetic tables of its suite's conditions (and of the suite it compares with).

    Args:
        undefined: metrics that the suite does not measure, with the reason; reading one is an error.
        holds: the author's examples of tables on which it holds; one on which it does not is told of.
        fails: likewise of tables on which it fails.
        around: a stored run of the suite; tables near its figures are tried too.
    """
    words = []
    for table, other in pairs(axes, conditions, against, passes, undefined, around):
        judgement = judge(prediction, table, other)
        if judgement.word not in ("held", "refuted"):
            return Search(0.0, judgement.detail)
        words.append(judgement.word)
    faults: list[str] = []
    for name, word, examples in (("holds", "held", holds), ("fails", "refuted", fails)):
        several: list[Any] = list(examples) if isinstance(examples, list | tuple) else [examples]
        for number, example in enumerate(several, 1):
            called = f"`{name}` example" + (f" {number}" if len(several) > 1 else "")
            try:
                table = _of_example(example, axes, conditions, undefined or {})
                other = _of_other(example, *against) if against else None
            except (TypeError, ValueError) as error:
                faults.append(f"its {called} cannot be read: {error}")
                continue
            judgement = judge(prediction, table, other)
            if judgement.word not in ("held", "refuted"):
                faults.append(f"its {called} cannot be judged: {judgement.detail} ({_told(example)})")
                continue
            words.append(judgement.word)
            if judgement.word != word:
                said = (
                    f"it does not hold on its {called}: {judgement.detail}"
                    if name == "holds"
                    else f"it holds on its {called}"
                )
                faults.append(f"{said} ({_told(example)})")
    return Search(words.count("held") / len(words), "", len(words), tuple(faults))


def pairs(
    axes: Sequence[str],
    conditions: Sequence[Condition],
    against: tuple[Sequence[str], Sequence[Condition]] | None = None,
    passes: int = 2,
    undefined: Mapping[str, str] | None = None,
    around: Sweep | None = None,
) -> Iterator[tuple[Sweep, Sweep | None]]:
    """Every table of a search, those near a stored run first, with a table to compare it with.

    Two suites that are compared are mostly of like machines: every other time the second is like the first.
    """
    others = cycle(list(tables(*against, passes=2, seed=1))) if against else cycle([None])
    near = list(_around(around, axes, conditions, passes)) if around is not None else []
    draw = random.Random(3)
    for number, table in enumerate([*near, *tables(axes, conditions, passes)]):
        other = next(others)
        if against and number % 2 == 0:
            other = _like(table, *against, draw) or other
        yield _without(table, undefined or {}), other


def _like(table: Sweep, axes: Sequence[str], conditions: Sequence[Condition], draw: random.Random) -> Sweep | None:
    """A table of another suite on the same machine: all figures off by one factor, and each by a little of its own.

    Returns:
        `None` where the two suites have not the same conditions.
    """
    own = {label(cell.condition): cell for cell in table.cells}
    if any(label(condition) not in own for condition in conditions):
        return None
    together = [math.exp(draw.choice((0.0, draw.uniform(-0.4, 0.4)))) for _ in range(2)]
    cells = []
    for condition in conditions:
        energy, speed = (factor * math.exp(draw.gauss(0.0, 0.02)) for factor in together)
        passes = tuple(_scaled(figures, energy, speed) for figures in own[label(condition)].passes)
        cells.append(Cell(condition=condition, passes=passes))
    return Sweep(axes, cells, table.about)


def _told(example: Mapping[Any, Any]) -> str:
    """An example's figures as a person writes them."""
    return "; ".join(
        f"{metric}: {_told(column)}"
        if metric == "against"
        else f"{metric}: " + ", ".join(f"{key!r}: {figure}" for key, figure in column.items())
        for metric, column in example.items()
    )


def _of_other(example: Mapping[Any, Any], axes: Sequence[str], conditions: Sequence[Condition]) -> Sweep:
    if "against" not in example:
        raise ValueError("it compares with another suite, whose figures belong under 'against'")
    return _of_example(example["against"], axes, conditions, {})


def _of_example(
    example: Example, axes: Sequence[str], conditions: Sequence[Condition], undefined: Mapping[str, str]
) -> Sweep:
    """The table an author's figures make, with what follows from them.

    Raises:
        ValueError: a metric or condition is not there, or a figure is none.
    """
    if not isinstance(example, Mapping) or not all(isinstance(column, Mapping) for column in example.values()):
        raise ValueError(f"{example!r} is no mapping from metrics to figures by condition")
    keys = [_key(axes, condition) for condition in conditions]
    columns = {metric: column for metric, column in example.items() if metric != "against"}
    passes = 1
    for metric, column in columns.items():
        if metric not in METRICS:
            raise ValueError(f"there is no metric {metric!r}{nearest(str(metric), METRICS)}")
        for key, figure in column.items():
            if key not in keys:
                raise ValueError(f"the suite has no condition {key!r}; it has {', '.join(map(repr, keys))}")
            figures = list(figure) if isinstance(figure, list | tuple) else [figure]
            if not all(isinstance(f, int | float) and math.isfinite(f) and f > 0 for f in figures) or not figures:
                raise ValueError(f"{metric} at {key!r} is {figure!r}, which is no figure above 0")
            if len(figures) > 1 and passes not in (1, len(figures)):
                raise ValueError(f"{metric} at {key!r} has {len(figures)} passes, others have {passes}")
            passes = max(passes, len(figures))
    cells = []
    for key, condition in zip(keys, conditions, strict=True):
        given: list[dict[str, float]] = [{} for _ in range(passes)]
        for metric, column in columns.items():
            for index, figures_of_pass in enumerate(given):
                if key in column:
                    figure = column[key]
                    figures_of_pass[metric] = float(
                        figure if isinstance(figure, int | float) else figure[index % len(figure)]
                    )
        cells.append(
            Cell(
                condition=condition,
                passes=tuple(_followed(figures_of_pass, condition.get("parallel")) for figures_of_pass in given),
                undefined=dict.fromkeys(METRICS, "the example has neither it nor figures it follows from"),
            )
        )
    table = Sweep(axes, cells, About(suite="example", basis="synthetic"))
    return _without(table, undefined)


def _key(axes: Sequence[str], condition: Condition) -> Key:
    values = tuple(condition[axis] for axis in axes)
    return values[0] if len(values) == 1 else values


_PRODUCTS: tuple[tuple[float, Mapping[str, int]], ...] = (
    (1000.0, {"energy_per_token_mj": 1, "tokens_per_s": 1, "power_w": -1}),
    (1000.0, {"energy_per_token_mj": 1, "tokens": 1, "energy_j": -1}),
    (1.0, {"tokens_per_s": 1, "window_s": 1, "tokens": -1}),
    (1.0, {"power_w": 1, "window_s": 1, "energy_j": -1}),
    (1.0, {"energy_per_correct_j": 1, "correct": 1, "energy_j": -1}),
)
"""Products of powers of metrics that are what is stated, in every window."""


def _followed(known: Mapping[str, float], slots: object) -> dict[str, float]:
    """Figures of a window with all those that follow from them.

    Args:
        slots: of the condition; where it is no number, the speed of one request does not follow from that of all.
    """
    figures = dict(known)
    products = list(_PRODUCTS)
    if isinstance(slots, int) and slots > 0:
        products.append((float(slots), {"tokens_per_s": 1, "tokens_per_s_per_request": -1}))
    found = True
    while found:
        found = False
        for product, powers in products:
            unknown = [metric for metric in powers if metric not in figures]
            if len(unknown) == 1:
                others = math.prod(figures[m] ** power for m, power in powers.items() if m in figures)
                figures[unknown[0]] = (product / others) ** powers[unknown[0]]
                found = True
    return figures


def _without(table: Sweep, undefined: Mapping[str, str]) -> Sweep:
    """The table less the metrics that nothing will be measured for."""
    if not undefined:
        return table
    return table.fresh(
        [
            replace(
                cell,
                passes=tuple({k: v for k, v in figures.items() if k not in undefined} for figures in cell.passes),
                undefined={**cell.undefined, **undefined},
            )
            for cell in table.cells
        ]
    )


def _around(run: Sweep, axes: Sequence[str], conditions: Sequence[Condition], passes: int) -> Iterator[Sweep]:
    """Tables near the figures of a stored run: conditions moved by up to two, alone and together, and the whole at other scales.

    A condition that the run has no figures of gets the mean of the others. None come of a run without any.
    """
    base = _base(run, conditions)
    if not base:
        return
    draw = random.Random(2)
    count = len(conditions)
    still = [1.0] * count
    together = [
        tuple([math.exp(draw.uniform(math.log(0.5), math.log(2.0))) for _ in conditions] for _ in range(2))
        for _ in range(_MOVED_TOGETHER)
    ]
    one = [[factor if i == moved else 1.0 for i in range(count)] for moved in range(count) for factor in _MOVES]
    alone = [pair for factors in one for pair in ((factors, still), (still, factors))]
    alone = alone if len(alone) <= _MOVED_ALONE else draw.sample(alone, _MOVED_ALONE)
    scaled = [([e] * count, [s] * count) for e in _SCALES for s in _SCALES]
    for number, (energy, speed) in enumerate([*together, *alone, *scaled]):
        spread = _SPREADS[number % len(_SPREADS)]
        cells = []
        for i, condition in enumerate(conditions):
            off = [spread * (index / (passes - 1) - 0.5) if passes > 1 else 0.0 for index in range(passes)]
            figures = tuple(
                _scaled(base[i], energy[i] * (1 + o), speed[i] * (1 + draw.choice((-1, 1)) * o)) for o in off
            )
            cells.append(Cell(condition=condition, passes=figures))
        yield Sweep(axes, cells, About(suite="synthetic", basis="synthetic"))


def _scaled(figures: Mapping[str, float], energy: float, speed: float) -> dict[str, float]:
    return {
        name: figure * energy ** METRICS[name].energy_power * speed ** METRICS[name].speed_power
        for name, figure in figures.items()
    }


def _base(run: Sweep, conditions: Sequence[Condition]) -> list[dict[str, float]]:
    """All figures of every condition, as far as the run has them, the rest made up."""
    known = []
    for condition in conditions:
        figures = {}
        for cell in run.cells:
            for metric in METRICS if label(cell.condition) == label(condition) else ():
                try:
                    figures[metric] = cell.mean(metric)
                except (Void, Unmeasured):
                    continue
        known.append(_followed({m: f for m, f in figures.items() if f > 0}, condition.get("parallel")))
    usual = {}
    for metric in ("energy_per_token_mj", "tokens_per_s"):
        logs = [math.log(figures[metric]) for figures in known if metric in figures]
        if not logs:
            return []
        usual[metric] = math.exp(math.fsum(logs) / len(logs))
    base = []
    for condition, figures in zip(conditions, known, strict=True):
        mj, per_s = (figures.get(metric, mean) for metric, mean in usual.items())
        base.append(_consistent(mj, per_s, _slots(condition), 0.6, 0.9, 0.5, 0.9, 0.6, 2.0, 0.3, 0.05) | figures)
    return base


def tables(axes: Sequence[str], conditions: Sequence[Condition], passes: int = 2, seed: int = 0) -> Iterator[Sweep]:
    """`TABLES` synthetic tables, the same ones every time."""
    draw = random.Random(seed)
    ranks = _log_ranks(axes, conditions)
    for number in range(TABLES):
        energy = _shape(draw, ranks, number, _ENERGY_MJ, (-1.0, -0.05))
        speed = _shape(draw, ranks, number // 3, _TOKENS_PER_S, (0.05, 1.0))
        spread = draw.choice(_SPREADS)
        # Of another seed they are others: two suites that are compared may differ in all of it.
        of_seed = number + seed * TABLES
        cells = [
            _cell(condition, mj, per_s, spread * draw.uniform(0.5, 1.0), passes, draw, (*graded, *drafted, *prefilled))
            for condition, mj, per_s, graded, drafted, prefilled in zip(
                conditions,
                energy,
                speed,
                _graded(of_seed, len(energy)),
                _drafted(of_seed, len(energy)),
                _prefilled(of_seed, len(energy)),
                strict=True,
            )
        ]
        yield Sweep(axes, cells, About(suite="synthetic", basis="synthetic"))


def _log_ranks(axes: Sequence[str], conditions: Sequence[Condition]) -> list[dict[str, float]]:
    """Where each condition stands on each axis: the logarithm of a positive number, else its rank."""
    ranks: list[dict[str, float]] = [{} for _ in conditions]
    for axis in axes:
        values = [condition[axis] for condition in conditions]
        distinct = list(dict.fromkeys(values))
        numeric = all(isinstance(v, int | float) and not isinstance(v, bool) and v > 0 for v in values)
        for rank, value in zip(ranks, values, strict=True):
            rank[axis] = math.log(value) - math.log(min(values)) if numeric else float(distinct.index(value))
    return ranks


def _shape(
    draw: random.Random,
    ranks: Sequence[Mapping[str, float]],
    number: int,
    scale: tuple[float, float],
    usual_slopes: tuple[float, float],
) -> list[float]:
    """Figures over the conditions: a power law per axis, perhaps a knee, perhaps noise, at a random scale."""
    axes = list(ranks[0])
    # Every other table has the shape real machines show, so that rules about usual machines find tables to hold on.
    usual = number % 2 == 0
    slope = {axis: draw.uniform(*usual_slopes) if usual else draw.choice(_SLOPES) for axis in axes}
    knee = ranks[number % len(ranks)] if number % 4 < 2 else None
    penalty = draw.choice(_KNEE_PENALTIES)
    noise = draw.choice(_NOISES)
    level = math.exp(draw.uniform(math.log(scale[0]), math.log(scale[1])))
    figures = []
    for rank in ranks:
        exponent = 0.0
        for axis in axes:
            at = min(rank[axis], knee[axis]) if knee else rank[axis]
            past = rank[axis] - at
            exponent += slope[axis] * at - math.copysign(penalty, slope[axis]) * past
        figures.append(level * math.exp(exponent + draw.gauss(0.0, noise)))
    return figures


def _graded(number: int, count: int) -> list[tuple[float, float]]:
    """Over the conditions the share of right answers, now all alike, now a little apart, now anything, and of readable ones among the wrong."""
    draw = random.Random(number)
    level, apart = draw.uniform(0.05, 0.95), (0.0, 0.02, 0.1, 1.0)[number % 4]
    shares = [min(0.99, max(0.01, level + apart * draw.uniform(-1.0, 1.0))) for _ in range(count)]
    return [(share, draw.uniform(0.2, 1.0)) for share in shares]


def _drafted(number: int, count: int) -> list[tuple[float, float]]:
    """Over the conditions the share of drafted tokens that were accepted, and the tokens of a pass over the weights."""
    draw = random.Random(-1 - number)
    return [(acceptance := draw.uniform(0.02, 0.99), 1.0 + acceptance * draw.uniform(0.1, 16.0)) for _ in range(count)]


def _prefilled(number: int, count: int) -> list[tuple[float, float]]:
    """Over the conditions the prompt's share of a request's energy, and the energy of a prompt token in those of a decoded one."""
    draw = random.Random(-1_000_000 - number)
    share, dearness, apart = draw.uniform(0.02, 0.98), _log_uniform(draw, 0.002, 3.0), (0.0, 0.1, 1.0)[number % 3]
    return [
        (
            min(0.99, max(0.01, share + apart * draw.uniform(-1.0, 1.0))),
            dearness * _log_uniform(draw, 1 / 9, 9.0) ** apart,
        )
        for _ in range(count)
    ]


def _log_uniform(draw: random.Random, low: float, high: float) -> float:
    return math.exp(draw.uniform(math.log(low), math.log(high)))


def _cell(
    condition: Condition, mj: float, per_s: float, spread: float, passes: int, draw: random.Random,
    counted: tuple[float, float, float, float, float, float],
) -> Cell:  # fmt: skip
    slots = _slots(condition)
    # What is left of the energy above idle, or without the prompt: anything, lest a rule about it could not fail.
    shares = draw.uniform(0.2, 1.0), draw.uniform(0.4, 1.1), *counted
    figures = []
    for index in range(passes):
        # The passes stand symmetrically about the mean, so that the spread is what was drawn.
        off = spread * (index / (passes - 1) - 0.5) if passes > 1 else 0.0
        figures.append(_consistent(mj * (1 + off), per_s * (1 + off * draw.choice((-1, 1))), slots, *shares))
    return Cell(condition=condition, passes=tuple(figures))


def _slots(condition: Condition) -> int:
    slots = condition.get("parallel", 1)
    return slots if isinstance(slots, int) and slots > 0 else 1


_QUESTIONS = 200.0
"""How many questions a made-up window asked."""


def _consistent(
    mj: float, per_s: float, slots: int, net: float, decode: float, accuracy: float, readable: float, acceptance: float, per_step: float,
    prefill: float, dearness: float,
) -> dict[str, float]:  # fmt: skip
    """All metrics of a window that gave `per_s` tokens a second at `mj` each, and of one of questions with answers of 128 tokens."""
    tokens = 128.0 * slots
    return {
        "energy_per_token_mj": mj,
        "net_energy_per_token_mj": net * mj,
        "decode_energy_per_token_mj": decode * mj,
        "energy_per_prompt_token_mj": dearness * decode * mj,
        "prefill_share": prefill,
        # A prompt token takes about as much less time as energy.
        "prompt_tokens_per_s": per_s / dearness,
        "tokens_per_s": per_s,
        "tokens_per_s_per_request": per_s / slots,
        "draft_acceptance": acceptance,
        "tokens_per_step": per_step,
        "power_w": mj * per_s / 1000.0,
        "idle_power_w": (1.0 - net) * mj * per_s / 1000.0,
        "energy_j": mj * tokens / 1000.0,
        "window_s": tokens / per_s,
        "tokens": tokens,
        "prompt_tokens": 16.0 * slots,
        "time_to_first_token_s": 10.0 * slots / per_s,
        "inter_token_s": slots / per_s,
        "energy_per_correct_j": 128.0 * mj / 1000.0 / accuracy,
        "accuracy": accuracy,
        "correct": _QUESTIONS * accuracy,
        "answered": _QUESTIONS * (accuracy + readable * (1.0 - accuracy)),
    }
