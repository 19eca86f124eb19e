"""From modules to a cell and a row: totals of figures that each carry their basis, as ranges where a figure is one. Pure.

A total is no better than the worst figure in it, and one that lacks a figure has no value: what is missing is never taken as 0.
Nothing here measures; a sheet is arithmetic on figures of modules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pytest_joules import queueing
from pytest_joules.errors import UsageError
from pytest_joules.records import Basis

BASES: tuple[Basis, ...] = ("measured", "transcribed", "transferred", "estimated", "synthetic", "placeholder")
"""From the best to the worst: what a figure says of the thing it stands for.

A sensor read it here; a sensor read it, and somebody else says so; a sensor read it, of another machine, model or
setting; a model computed it and no sensor was asked; random weights ran, whose energy is not that of a real model; nobody has
looked yet.
"""

Per = Literal["module", "cell", "row"]
Does = Literal["decode", "prefill"]

SHARE = "of wall"
"""The unit of what is a share of the power at the wall."""

CHIP_SCOPES = ("chip", "gpu", "gpu+chip")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A figure that is at least `low` and at most `high`, both 0 or more, with where it comes from.

    Attributes:
        low, high: equal where it is one number; both `None` where it is not known.
        basis: the worst of everything in it.
        sources: of everything in it.
        needs: what is to be measured in place of the placeholders in it.
    """

    low: float | None = None
    high: float | None = None
    basis: Basis = "placeholder"
    sources: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        """Whether it has a value, be it a range."""
        return self.low is not None

    @property
    def ends(self) -> tuple[float, float]:
        """(low, high) of a known one."""
        if self.low is None or self.high is None:
            raise ValueError("an unknown quantity has no ends")
        return self.low, self.high

    def worse(self, basis: Basis, source: str = "") -> Quantity:
        """The same of a basis no better than this one, and with its source."""
        more = (source,) if source else ()
        return replace(self, basis=worst((self.basis, basis)), sources=_once((*self.sources, *more)))


def exactly(value: float, basis: Basis, source: str) -> Quantity:
    """A quantity of one value."""
    return Quantity(low=value, high=value, basis=basis, sources=(source,))


def unknown(*needs: str) -> Quantity:
    """A placeholder without a value, and what is to be measured."""
    return Quantity(needs=needs)


def worst(bases: Iterable[Basis]) -> Basis:
    """The worst of several bases."""
    return max(bases, key=BASES.index, default="measured")


def _once(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))


def _made(
    of: Sequence[Quantity], low: Callable[..., float], high: Callable[..., float], divisor: str = "a divisor"
) -> Quantity:
    """A quantity computed from others: `low` from their (low, high) pairs, `high` likewise; unknown if one of them is.

    Args:
        divisor: what `low` and `high` divide by, in words.
    """
    behind = together(of)
    if not all(one.known for one in of):
        return replace(behind, basis="placeholder")
    ends = [one.ends for one in of]
    found = low(*ends), high(*ends)
    if not all(map(math.isfinite, found)):
        return replace(
            behind, basis="placeholder", needs=_once((*behind.needs, f"{divisor}: a figure that cannot be 0"))
        )
    return replace(behind, low=found[0], high=found[1])


def together(of: Sequence[Quantity]) -> Quantity:
    """No figure, but what stands behind several: their worst basis, and all sources and needs."""
    return Quantity(
        basis=worst(one.basis for one in of),
        sources=_once(source for one in of for source in one.sources),
        needs=_once(need for one in of for need in one.needs),
    )


def total(of: Sequence[Quantity]) -> Quantity:
    """The sum; 0 of none, which is exact."""
    if not of:
        return Quantity(low=0.0, high=0.0, basis="measured")
    return _made(of, lambda *ends: math.fsum(e[0] for e in ends), lambda *ends: math.fsum(e[1] for e in ends))


def scaled(one: Quantity, factor: float) -> Quantity:
    """The quantity times a number that is certain, such as a count."""
    return _made([one], lambda a: a[0] * factor, lambda a: a[1] * factor)


def product(a: Quantity, b: Quantity) -> Quantity:
    """The product of two that do not depend on each other."""
    return _made([a, b], lambda x, y: x[0] * y[0], lambda x, y: x[1] * y[1])


def ratio(a: Quantity, b: Quantity, divisor: str) -> Quantity:
    """The ratio of two that do not depend on each other; unknown where the divisor, named so, may be 0."""
    return _made(
        [a, b],
        lambda x, y: x[0] / y[1] if y[0] > 0 else math.nan,
        lambda x, y: x[1] / y[0] if y[0] > 0 else math.nan,
        divisor,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """What one decode module was measured to do by the number of requests on it.

    Attributes:
        tokens_per_s: of all its requests together.
        tokens_per_s_per_request: of one of them.
        power_w: unknown at some or all of them where it was not measured.
        void: numbers of requests whose figures may not be read, with the reason.
    """

    tokens_per_s: Mapping[int, Quantity]
    tokens_per_s_per_request: Mapping[int, Quantity]
    power_w: Mapping[int, Quantity]
    void: Mapping[int, str] = field(default_factory=dict)

    def bridged(self, slots: int) -> Mapping[int, str]:
        """The void ones over which a curve up to so many slots goes straight from one neighbour to the other."""
        end = min((n for n in self.tokens_per_s if n >= slots), default=slots)
        return {n: why for n, why in self.void.items() if n < end}


@dataclass(frozen=True, slots=True, kw_only=True)
class Modules:
    """A number of equal modules. Figures are of each of them, at full load unless the name says otherwise.

    Attributes:
        scope: what their power and energy cover.
        slots: requests that a decode module is given at once.
        tokens_per_s, tokens_per_s_per_request: of decode modules.
        prompt_tokens_per_s: of prefill modules.
        energy_per_token_mj: where it was measured, as the mean of the windows' own ratios, which is not quite the ratio of their means.
        energy_per_correct_j: energy of the module for each correct answer, where that is known.
        answer_tokens, prompt_tokens: of the requests in the windows of their figures; `None` where that is not known.
        remarks: what is to be known of where their figures come from.
        curve: of decode modules, where several batches were measured.
        inside: whose figures theirs are part of already; then they add nothing.
    """

    name: str
    does: Does
    count: int
    scope: str = "chip"
    slots: int | None = None
    tokens_per_s: Quantity = Quantity()
    tokens_per_s_per_request: Quantity = Quantity()
    prompt_tokens_per_s: Quantity = Quantity()
    power_w: Quantity = Quantity()
    idle_power_w: Quantity = Quantity()
    energy_per_token_mj: Quantity | None = None
    energy_per_correct_j: Quantity | None = None
    answer_tokens: float | None = None
    prompt_tokens: float | None = None
    remarks: tuple[str, ...] = ()
    curve: Curve | None = None
    inside: str = ""

    @property
    def most_w(self) -> Quantity:
        """The highest mean power of a module at any number of requests up to its slots; at full load where no curve tells more."""
        if self.curve is None or self.slots is None or not self.curve.power_w:
            return self.power_w
        end = min((n for n in self.curve.power_w if n >= self.slots), default=self.slots)
        powers = [power for n, power in self.curve.power_w.items() if n <= end]
        powers += [unknown(why) for why in self.curve.bridged(self.slots).values()]
        return _made(
            [self.power_w, *powers], lambda *ends: max(e[0] for e in ends), lambda *ends: max(e[1] for e in ends)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """What draws power beside the modules. One of the three figures is given, unless it is part of another's figures already.

    Attributes:
        per: there are `count` of them for each of these.
        power_w: of each.
        share: of the power at the wall (of the cell, or of the row) that goes there.
        energy_per_correct_j: energy of it for each correct answer.
        inside: whose figures its own are part of already.
    """

    name: str
    per: Per
    count: int = 1
    power_w: Quantity | None = None
    share: Quantity | None = None
    energy_per_correct_j: Quantity | None = None
    inside: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """From prefill to decode modules: seconds for each prompt token."""

    s_per_prompt_token: Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Everything a sheet is made of.

    Attributes:
        floor: tokens per second that every request is to have.
        answer_tokens, correct_share: of the answers that are counted as correct or not.
        cells: in a row; `None` where no row is asked for.
        stated: figures of the whole cell that somebody stated, shown beside ours and used in none.
    """

    name: str
    modules: tuple[Modules, ...]
    overheads: tuple[Overhead, ...] = ()
    link: Link | None = None
    floor: float | None = None
    answer_tokens: Quantity | None = None
    correct_share: Quantity | None = None
    cells: int | None = None
    stated: Mapping[str, Quantity] = field(default_factory=dict)

    @property
    def decode(self) -> tuple[Modules, ...]:
        """The modules that generate tokens."""
        return tuple(one for one in self.modules if one.does == "decode")

    @property
    def prefill(self) -> tuple[Modules, ...]:
        """The modules that read prompts."""
        return tuple(one for one in self.modules if one.does == "prefill")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a sheet. `key` is its name for programs; without a value, the remark says where it is."""

    key: str
    quantity: str
    unit: str
    value: Quantity | None
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A group of modules, the cell or the row."""

    title: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What a cell or a row comes to at full load; see `compose` for what each is."""

    tokens_per_s: Quantity
    modules_w: Quantity
    modules_most_w: Quantity
    power_w: Quantity
    most_w: Quantity
    energy_per_token_mj: Quantity
    energy_per_correct_j: Quantity
    chip_share: Quantity
    requests_held: Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A cell, composed."""

    cell: Cell
    parts: tuple[Part, ...]
    totals: Totals
    row: Totals | None
    remarks: tuple[str, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        """Every source, in the order in which the rows come to them."""
        return _once(source for value in self._values() for source in value.sources)

    @property
    def needs(self) -> tuple[str, ...]:
        """What is to be measured before nothing is a placeholder any more."""
        return _once(need for value in self._values() for need in value.needs)

    def _values(self) -> Iterable[Quantity]:
        return (row.value for part in self.parts for row in part.rows if row.value is not None)


def held(modules: Modules, floor: float) -> tuple[Quantity, str]:
    """Requests that one module holds at `floor` tokens per second for each, and a remark.

    It is the largest batch that was measured to run at the floor or above, and no more than the module has slots: between two
    measured batches nothing is claimed.
    """
    if modules.curve is None:
        return unknown(f"{modules.name}: speed per request at several batches"), ""
    speeds = {n: q for n, q in sorted(modules.curve.tokens_per_s_per_request.items()) if n <= (modules.slots or n)}

    def most(end: int) -> int:
        return max((n for n, speed in speeds.items() if speed.known and speed.ends[end] >= floor), default=0)

    behind = together(list(speeds.values()))
    if not all(speed.known for speed in speeds.values()):
        return replace(behind, basis="placeholder"), ""
    found = replace(behind, low=float(most(0)), high=float(most(1)))
    above = next((n for n in sorted(modules.curve.tokens_per_s_per_request) if n > most(1)), None)
    if above is None or above not in speeds:
        return found, "every slot" if most(0) == modules.slots else ""
    return found, f"not at {above} at once"


def compose(cell: Cell) -> Sheet:
    """The sheet of a cell, and of a row of them.

    Full load: every decode module at its condition, every other module busy. Power at the wall is that of all modules and of all
    overheads given in watts, over 1 less the sum of the shares; at the most, every module at the batch where it draws most.
    Energy per token is power at the wall over tokens per second; energy per correct answer is the sum of what each part takes for
    one, over 1 less the same shares.
    """
    correct_per_s = _correct_per_s(cell)
    own, remarks = _totals(cell, correct_per_s)
    parts = [Part(title=_title(one), rows=tuple(_module_rows(cell, one))) for one in cell.modules]
    parts.append(Part(title="the cell", rows=tuple(_cell_rows(cell, own, "cell"))))
    row = None
    if cell.cells is not None:
        row = _row_totals(cell, own, correct_per_s, cell.cells)
        title = f"the row: {cell.cells:,} cells"
        parts.append(Part(title=title, rows=tuple(_cell_rows(cell, row, "row"))))
    return Sheet(cell=cell, parts=tuple(parts), totals=own, row=row, remarks=tuple(remarks))


def _title(one: Modules) -> str:
    return f"{one.count} x {one.name}, each" if one.count > 1 else one.name


def _correct_per_s(cell: Cell) -> Quantity:
    """From what an answer is; where the file does not say, from modules whose power and energy per correct answer are known."""
    if cell.correct_share is None:
        graded = [
            scaled(ratio(d.power_w, d.energy_per_correct_j or unknown(), f"{d.name}: energy_per_correct_j"), d.count)
            for d in cell.decode
        ]
        if all(one.known for one in graded):
            return total(graded)
    tokens = cell.answer_tokens or unknown("tokens of an answer")
    share = cell.correct_share or unknown("share of correct answers on a set of questions that is named")
    return ratio(product(_tokens_per_s(cell), share), tokens, "tokens of an answer")


_CORRECT_PER_S = "correct answers per s, which are tokens per s x share of correct answers / tokens of an answer"


def _tokens_per_s(cell: Cell) -> Quantity:
    return total([scaled(one.tokens_per_s, one.count) for one in cell.decode])


def wall(cell: Cell, modules_w: Quantity) -> Quantity:
    """Power at the wall of a cell whose modules draw so much together."""
    beside = [_power(cell, one) for one in _of_cell(cell) if not one.inside and one.share is None]
    return _over_shares(total([modules_w, *beside]), _shares(_of_cell(cell)))


def _of_cell(cell: Cell) -> list[Overhead]:
    return [one for one in cell.overheads if one.per != "row"]


def _number(cell: Cell, one: Overhead) -> int:
    return one.count * (sum(modules.count for modules in cell.modules) if one.per == "module" else 1)


def _power(cell: Cell, one: Overhead, correct_per_s: Quantity | None = None) -> Quantity:
    if one.power_w is not None:
        return scaled(one.power_w, _number(cell, one))
    if one.energy_per_correct_j is not None and correct_per_s is not None:
        return product(one.energy_per_correct_j, correct_per_s)
    return unknown(f"{one.name}: its power")


def _shares(overheads: Iterable[Overhead]) -> Quantity:
    return total([scaled(one.share, one.count) for one in overheads if one.share is not None])


def _over_shares(of: Quantity, shares: Quantity) -> Quantity:
    return _made(
        [of, shares],
        lambda x, s: x[0] / (1 - s[0]),
        lambda x, s: x[1] / (1 - s[1]),
        "what the shares leave of the wall",
    )


def _totals(cell: Cell, correct_per_s: Quantity) -> tuple[Totals, list[str]]:
    counted = [one for one in cell.modules if not one.inside]
    overheads = [one for one in _of_cell(cell) if not one.inside]
    beside = [one for one in overheads if one.share is None]
    shares = _shares(overheads)
    tokens = _tokens_per_s(cell)
    modules_w = total([_modules_power(one, correct_per_s) for one in counted])
    others_w = total([_power(cell, one, correct_per_s) for one in beside])
    power_w = _over_shares(total([modules_w, others_w]), shares)
    modules_j = total([_modules_per_correct(one, correct_per_s) for one in counted])
    others_j = total(
        [one.energy_per_correct_j or ratio(_power(cell, one), correct_per_s, _CORRECT_PER_S) for one in beside]
    )
    modules_most_w = total(
        [scaled(one.most_w, one.count) if one.power_w.known else _modules_power(one, correct_per_s) for one in counted]
    )
    share = _share_of_wall(modules_w, others_w, shares)
    by_answers = _share_of_wall(modules_j, others_j, shares)
    if by_answers.known and not share.known:
        share = by_answers
    wide = [one.name for one in counted if one.scope not in CHIP_SCOPES]
    if wide:
        share = unknown(f"power of the chip alone, of {', '.join(wide)}")
    found = Totals(
        tokens_per_s=tokens,
        modules_w=modules_w,
        modules_most_w=modules_most_w,
        power_w=power_w,
        most_w=_over_shares(total([modules_most_w, others_w]), shares),
        energy_per_token_mj=scaled(ratio(power_w, tokens, "tokens per s"), 1000.0),
        energy_per_correct_j=_over_shares(total([modules_j, others_j]), shares),
        chip_share=share,
        requests_held=_held(cell),
    )
    return found, list(_remarks(cell))


def _held(cell: Cell) -> Quantity:
    if cell.floor is None:
        return unknown("a speed floor: speed_floor_tokens_per_s")
    return total([scaled(held(one, cell.floor)[0], one.count) for one in cell.decode])


def _modules_power(one: Modules, correct_per_s: Quantity) -> Quantity:
    """Of all modules of a kind together."""
    if one.power_w.known or one.energy_per_correct_j is None:
        return scaled(one.power_w, one.count)
    return product(one.energy_per_correct_j, correct_per_s)


def _modules_per_correct(one: Modules, correct_per_s: Quantity) -> Quantity:
    """Of all modules of a kind together, for each correct answer of the cell."""
    by_power = ratio(scaled(one.power_w, one.count), correct_per_s, _CORRECT_PER_S)
    return by_power if by_power.known or one.energy_per_correct_j is None else one.energy_per_correct_j


def _share_of_wall(modules: Quantity, others: Quantity, shares: Quantity) -> Quantity:
    """Rises with what the modules take and falls with all else: the ends come from opposite ends."""
    return _made(
        [modules, others, shares],
        lambda m, o, s: m[0] * (1 - s[1]) / (m[0] + o[1]) if m[0] + o[1] > 0 else math.nan,
        lambda m, o, s: m[1] * (1 - s[0]) / (m[1] + o[0]) if m[1] + o[0] > 0 else math.nan,
        "power of the modules and the overheads",
    )


def _row_totals(cell: Cell, own: Totals, correct_per_s: Quantity, cells: int) -> Totals:
    overheads = [one for one in cell.overheads if one.per == "row" and not one.inside]
    beside = [one for one in overheads if one.share is None]
    shares = _shares(overheads)
    of_row_w = [_power(cell, one, scaled(correct_per_s, cells)) for one in beside]
    power_w, most_w = (
        _over_shares(total([scaled(of_cell_w, cells), *of_row_w]), shares) for of_cell_w in (own.power_w, own.most_w)
    )
    tokens = scaled(own.tokens_per_s, cells)
    per_correct = [
        one.energy_per_correct_j or ratio(power, scaled(correct_per_s, cells), _CORRECT_PER_S)
        for one, power in zip(beside, of_row_w, strict=True)
    ]
    kept = _share_of_wall(scaled(own.power_w, cells), total(of_row_w), shares)
    by_answers = _share_of_wall(own.energy_per_correct_j, total(per_correct), shares)
    if by_answers.known and not kept.known:
        kept = by_answers
    return Totals(
        tokens_per_s=tokens,
        modules_w=scaled(own.modules_w, cells),
        modules_most_w=scaled(own.modules_most_w, cells),
        power_w=power_w,
        most_w=most_w,
        energy_per_token_mj=scaled(ratio(power_w, tokens, "tokens per s"), 1000.0),
        energy_per_correct_j=_over_shares(total([own.energy_per_correct_j, *per_correct]), shares),
        chip_share=product(own.chip_share, kept) if overheads else own.chip_share,
        requests_held=scaled(own.requests_held, cells),
    )


def _module_rows(cell: Cell, one: Modules) -> Iterable[Row]:
    if one.does == "decode":
        at = f" at {one.slots} at once" if one.slots else ""
        yield Row(key="tokens_per_s", quantity=f"tokens per s{at}", unit="tok/s", value=one.tokens_per_s)
        if one.tokens_per_s_per_request.known:
            yield Row(
                key="tokens_per_s_per_request", quantity="  of each request", unit="tok/s", value=one.tokens_per_s_per_request
            )  # fmt: skip
    else:
        yield Row(
            key="prompt_tokens_per_s", quantity="prompt tokens per s", unit="tok/s", value=one.prompt_tokens_per_s
        )
    if one.inside:
        yield Row(key="inside", quantity="power", unit="", value=None, remark=f"in the figures of {one.inside}")
        return
    yield Row(key="power_w", quantity=f"power, {one.scope}", unit="W", value=one.power_w)
    yield from _most(one.power_w, one.most_w, "most_w")
    yield Row(key="idle_power_w", quantity=f"power when idle, {one.scope}", unit="W", value=one.idle_power_w)
    if one.energy_per_correct_j is not None:
        yield Row(
            key="energy_per_correct_j", quantity="energy per correct answer", unit="J", value=one.energy_per_correct_j
        )
    if one.does == "decode":
        energy = one.energy_per_token_mj or scaled(
            ratio(one.power_w, one.tokens_per_s, f"{one.name}: tokens_per_s"), 1000.0
        )
        yield Row(key="energy_per_token_mj", quantity="energy per token", unit="mJ", value=energy)
        if cell.floor is not None:
            value, remark = held(one, cell.floor)
            yield Row(
                key="requests_held", quantity=f"requests at {cell.floor:g} tok/s each", unit="", value=value, remark=remark
            )  # fmt: skip


def _cell_rows(cell: Cell, own: Totals, of: Per) -> Iterable[Row]:
    yield from _stated(cell, of, "tokens_per_s", "tokens per s", "tok/s", own.tokens_per_s)
    yield Row(key="modules_w", quantity="power of the modules", unit="W", value=own.modules_w)
    yield from _most(own.modules_w, own.modules_most_w, "modules_most_w")
    for one in cell.overheads:
        if (one.per == "row") == (of == "row"):
            yield _overhead_row(cell, one)
    yield from _stated(cell, of, "power_w", "power at the wall", "W", own.power_w)
    yield from _most(own.power_w, own.most_w, "most_w")
    yield from _stated(cell, of, "energy_per_token_mj", "energy per token, wall", "mJ", own.energy_per_token_mj)
    yield from _stated(cell, of, "energy_per_correct_j", "energy per correct answer", "J", own.energy_per_correct_j)
    yield from _stated(cell, of, "chip_share", "chips' share of the wall", SHARE, own.chip_share)
    if cell.floor is not None:
        name = f"requests at {cell.floor:g} tok/s each"
        yield Row(key="requests_held", quantity=name, unit="", value=own.requests_held)


_NOTICED = 1.01
"""Times the power at full load: less than this over it is noise of the windows."""


def _most(full: Quantity, most: Quantity, key: str) -> Iterable[Row]:
    """Only where a module draws more when it is not full: that is what supplies are sized by."""
    more = full.known and (not most.known or any(b > a * _NOTICED for a, b in zip(full.ends, most.ends, strict=True)))
    if more:
        yield Row(key=key, quantity="  the most, at fewer requests", unit="W", value=most)


def _stated(cell: Cell, of: Per, key: str, quantity: str, unit: str, value: Quantity) -> Iterable[Row]:
    yield Row(key=key, quantity=quantity, unit=unit, value=value)
    if of == "cell" and key in cell.stated:
        yield Row(key=f"stated_{key}", quantity="  as stated elsewhere", unit=unit, value=cell.stated[key])


def _overhead_row(cell: Cell, one: Overhead) -> Row:
    number = _number(cell, one)
    name = f"  {one.name}" if number == 1 else f"  {number} x {one.name}"
    if one.inside:
        return Row(key="overhead", quantity=name, unit="", value=None, remark=f"in the figures of {one.inside}")
    if one.share is not None:
        return Row(key="overhead_share", quantity=name, unit=SHARE, value=scaled(one.share, one.count))
    if one.energy_per_correct_j is not None:
        return Row(key="overhead_per_correct_j", quantity=name, unit="J/answer", value=one.energy_per_correct_j)
    return Row(key="overhead_w", quantity=name, unit="W", value=_power(cell, one))


def _remarks(cell: Cell) -> Iterable[str]:
    for one in cell.decode:
        speed = one.tokens_per_s_per_request
        if cell.floor is not None and speed.known and speed.ends[0] < cell.floor:
            yield (
                f"{one.name}: at full load a request runs at {speed.ends[0]:.3g} tok/s, under the floor of {cell.floor:g}; "
                "the totals are those of full load"
            )
        yield from _contradictions(cell, one)
    for one in cell.modules:
        yield from (f"{one.name}: {remark}" for remark in one.remarks)
        if one.curve is not None and one.slots is not None:
            yield from (f"{why}; a simulation goes straight over it" for why in one.curve.bridged(one.slots).values())
    scopes = {one.scope for one in cell.modules if not one.inside}
    if len(scopes) > 1:
        yield f"the modules' power is of unlike scopes: {', '.join(sorted(scopes))}"


_ALIKE = 0.05
"""Two figures of the same thing that are further apart than this share cannot both be right."""


def _contradictions(cell: Cell, one: Modules) -> Iterable[str]:
    """Stated figures of a module that do not fit together."""
    if (
        one.slots is not None
        and one.curve is None
        and _apart(scaled(one.tokens_per_s_per_request, one.slots), one.tokens_per_s)
    ):
        yield f"{one.name}: tokens_per_s is not tokens_per_s_per_request times {one.slots} slots; one of them is wrong"
    if one.curve is not None and one.slots is not None and one.slots in one.curve.tokens_per_s:
        for key, stated, of_curve in (
            ("tokens_per_s", one.tokens_per_s, one.curve.tokens_per_s),
            ("power_w", one.power_w, one.curve.power_w),
        ):
            if _apart(stated, of_curve.get(one.slots, unknown())):
                yield f"{one.name}: {key} is not what its curve has at {one.slots} at once; one of them is wrong"
    if one.energy_per_correct_j is not None and cell.answer_tokens is not None and cell.correct_share is not None:
        per_s = ratio(product(one.tokens_per_s, cell.correct_share), cell.answer_tokens, "tokens of an answer")
        by_power = ratio(one.power_w, per_s, _CORRECT_PER_S)
        if _apart(by_power, one.energy_per_correct_j):
            low, high = by_power.ends
            shown = f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
            yield (
                f"{one.name}: its power and speed make {shown} J per correct answer of this length, not energy_per_correct_j; "
                "the totals follow the power; one of these figures is wrong"
            )


def _apart(a: Quantity, b: Quantity) -> bool:
    if not (a.known and b.known):
        return False
    (a_low, a_high), (b_low, b_high) = a.ends, b.ends
    return a_low > b_high * (1 + _ALIKE) or b_low > a_high * (1 + _ALIKE)


_UNLIKE = 0.1
"""Requests whose length differs by more than this share from the measured ones are not the ones that were measured."""


def unlike(cell: Cell, answer_tokens: float, prompt_tokens: float) -> Iterable[str]:
    """What sets a load apart from the requests that the decode modules' figures were measured with."""
    for one in cell.decode:
        for what, asked, measured in (
            ("answers", answer_tokens, one.answer_tokens),
            ("prompts", prompt_tokens, one.prompt_tokens if cell.prefill else None),
        ):
            if measured and abs(asked / measured - 1) > _UNLIKE:
                yield (
                    f"{one.name}: measured with {what} of {measured:.3g} tokens, simulated with {asked:.3g} at the same speed and power: "
                    "how a longer or shorter context changes them is not known here"
                )


def plant(cell: Cell, end: Literal["slow", "fast"]) -> tuple[queueing.Plant, Quantity, Quantity]:
    """What the simulation runs, with the figures that are ranges taken at one end; what its times stand on, and what its energies do.

    `slow` has the lowest speeds and the highest powers, `fast` the opposite.

    Raises:
        UsageError: a figure without which nothing can be simulated is missing.
    """
    speed, power = (0, 1) if end == "slow" else (1, 0)
    used: list[Quantity] = []
    optional: list[Quantity] = []

    def take(one: Quantity, which: int, what: str) -> float:
        if not one.known:
            raise UsageError(f"{cell.name}: cannot be simulated without {what}: {'; '.join(one.needs) or 'state it'}")
        used.append(one)
        return one.ends[which]

    def watts(one: Quantity) -> float | None:
        optional.append(one)
        return one.ends[power] if one.known else None

    curves: list[queueing.Curve] = []
    for modules in cell.decode:
        if modules.curve is None or modules.slots is None:
            raise UsageError(
                f"{cell.name}: cannot be simulated without the curve of {modules.name}: name a run, or state curve"
            )
        speeds = {
            n: take(q, speed, f"the speed of {modules.name} at {n} at once")
            for n, q in modules.curve.tokens_per_s.items()
        }
        powers = {n: watts(modules.curve.power_w.get(n, unknown())) for n in speeds}
        known = {n: w for n, w in powers.items() if w is not None}
        try:
            made = queueing.curve(
                speeds, known if len(known) == len(powers) else None, watts(modules.idle_power_w), modules.slots
            )
        except ValueError as error:
            raise UsageError(f"{cell.name}: {modules.name}: {error}; measure these batches, or lower slots") from None
        curves += [made] * modules.count
        used += [unknown(why) for why in modules.curve.bridged(modules.slots).values()]
    prefill = None
    if len(cell.prefill) > 1:
        raise UsageError(f"{cell.name}: prefill modules of several kinds cannot be simulated; leave one kind")
    for modules in cell.prefill:
        prefill = queueing.Prefill(
            modules=modules.count,
            prompt_tokens_per_s=take(modules.prompt_tokens_per_s, speed, f"prompt_tokens_per_s of {modules.name}"),
            busy_w=watts(modules.power_w),
            idle_w=watts(modules.idle_power_w),
        )
    link = take(cell.link.s_per_prompt_token, power, "the link") if cell.link else 0.0
    found = queueing.Plant(decode=tuple(curves), prefill=prefill, link_s_per_prompt_token=link)
    return found, together(used), together([*used, *optional])


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A cell under one load.

    Attributes:
        fast, slow: what was simulated with the figures that are ranges at either end; the same where none is.
        times: what the times stand on.
        modules_w, wall_w: mean power of all modules, and at the wall.
        modules_per_answer_j, wall_per_answer_j: the same over answers per second.
        wall_per_token_mj: power at the wall over tokens per second.
    """

    requests_per_s: float
    of_capacity: Quantity
    fast: queueing.Outcome
    slow: queueing.Outcome
    times: Quantity
    modules_w: Quantity
    wall_w: Quantity
    modules_per_answer_j: Quantity
    wall_per_answer_j: Quantity
    wall_per_token_mj: Quantity


_SERVABLE = "a load that the cell can serve: where a queue grows there is no mean"


def _rates(
    its: queueing.Plant, outcome: queueing.Outcome, load: queueing.Load | queueing.Trace, policy: queueing.Policy
) -> queueing.Rates | None:
    """As simulated; of a queue that grows what full modules do, and `None` where they are not what limits."""
    if outcome.growing:
        return None if isinstance(load, queueing.Trace) else queueing.saturated(its, load, policy)
    return queueing.Rates(
        answers_per_s=outcome.answered_in_window / outcome.window_s,
        tokens_per_s=outcome.tokens_in_window / outcome.window_s,
        power_w=None if outcome.energy_j is None else outcome.energy_j / outcome.window_s,
    )


def serve(cell: Cell, load: queueing.Load | queueing.Trace, policy: queueing.Policy) -> Served:
    """Simulate the cell under a load, at both ends where a figure is a range. What comes of it is estimated at best.

    Raises:
        UsageError: a figure without which nothing can be simulated is missing.
    """
    fast_plant, times, energies = plant(cell, "fast")
    slow_plant, _, _ = plant(cell, "slow")
    fast = queueing.simulate(fast_plant, load, policy)
    slow = queueing.simulate(slow_plant, load, policy) if ranged(cell) else fast
    times, energies = times.worse("estimated"), energies.worse("estimated")

    rates = [_rates(its, of, load, policy) for its, of in ((fast_plant, fast), (slow_plant, slow))]

    def between(of: Callable[[queueing.Rates], float | None], behind: Quantity) -> Quantity:
        steady = [one for one in rates if one is not None]
        if len(steady) < len(rates):
            return replace(behind, basis="placeholder", needs=(*behind.needs, _SERVABLE))
        known = [value for one in steady if (value := of(one)) is not None]
        if len(known) < len(steady):
            return replace(behind, basis="placeholder")
        return replace(behind, low=min(known), high=max(known))

    answers_per_s = between(lambda one: one.answers_per_s, times)
    tokens_per_s = between(lambda one: one.tokens_per_s, times)
    modules_w = between(lambda one: one.power_w, energies)
    wall_w = wall(cell, modules_w)
    capacity = [
        queueing.capacity_requests_per_s(one, policy, load.prompt_tokens, load.answer_tokens)
        for one in (slow_plant, fast_plant)
    ]
    return Served(
        requests_per_s=load.requests_per_s,
        of_capacity=replace(times, low=load.requests_per_s / capacity[1], high=load.requests_per_s / capacity[0]),
        fast=fast,
        slow=slow,
        times=times,
        modules_w=modules_w,
        wall_w=wall_w,
        modules_per_answer_j=ratio(modules_w, answers_per_s, "answers per s"),
        wall_per_answer_j=ratio(wall_w, answers_per_s, "answers per s"),
        wall_per_token_mj=scaled(ratio(wall_w, tokens_per_s, "tokens per s"), 1000.0),
    )  # fmt: skip


def ranged(cell: Cell) -> bool:
    """Whether a figure that the simulation uses is a range, so that both ends are to be simulated."""
    used = [cell.link.s_per_prompt_token] if cell.link else []
    for one in cell.modules:
        used += [one.prompt_tokens_per_s, one.idle_power_w, one.power_w]
        used += [*one.curve.tokens_per_s.values(), *one.curve.power_w.values()] if one.curve else []
    return any(one.known and one.ends[0] != one.ends[1] for one in used)
