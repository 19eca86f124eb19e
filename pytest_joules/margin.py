"""How far the compared numbers of a prediction stood from their thresholds. Pure.

A prediction is a plain function, so a copy of it can be made in which every asserted comparison tells what it compared: the
operands of `assert a <= x <= b` are evaluated as written, in the function's own globals and closures, and noted on the way.
"""

from __future__ import annotations

import ast
import inspect
import math
import numbers
import operator
import textwrap
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_joules.prediction import TABLES, Prediction, judge
from pytest_joules.sweep import Sweep
from pytest_joules.words import one_line

_OPERATORS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_SEE, _OPERAND = "_joules_see", "_joules_operand"


@dataclass(frozen=True, slots=True)
class Compared:
    """One asserted comparison of numbers, evaluated once.

    Attributes:
        text: the comparison as written, a chain as a whole.
        left: number on the left; of a chain, in the link with the smallest margin.
        right: number on the right, likewise.
        threshold: the one of the two that does not depend on a table, else the right one.
        held: whether it held.
        margin: distance to the threshold as a share of it, positive on the side asserted; `None` at a threshold of 0.
    """

    text: str
    left: float
    right: float
    threshold: float
    held: bool
    margin: float | None


@dataclass(frozen=True, slots=True)
class _Link:
    """Two neighbours of a comparison."""

    of: int
    place: int
    text: str
    operator: type[ast.cmpop]
    threshold_left: bool


def margins(prediction: Prediction, sweep: Sweep, against: Sweep | None = None) -> list[Compared]:
    """Every asserted comparison of figures, in the order in which the function came to it.

    Seen are comparisons by size of numbers that are not both whole, chains of them, and `and` between them; not what stands under `not`, `or` or a call. Of an
    assertion that fails, what comes after it was not evaluated. The list is empty where the function cannot be rewritten,
    where what refuted it is no such comparison, and where the verdict is neither held nor refuted.
    """
    seen: list[tuple[_Link, float, float, bool]] = []
    watched = _watched(prediction.function, seen)
    if watched is None:
        return []
    word = judge(prediction, sweep, against).word
    seen.clear()
    # Where the copy says something else, its source is no longer what was compiled, and its numbers are not the verdict's.
    if word not in ("held", "refuted") or judge(replace(prediction, function=watched), sweep, against).word != word:
        return []
    found = _by_comparison(seen)
    if word == "refuted" and all(compared.held for compared in found):
        return []
    return found


def nearest(compared: Sequence[Compared]) -> Compared | None:
    """The comparison that decides: the one that failed, else the one with the smallest margin."""
    failed = [one for one in compared if not one.held]
    return failed[-1] if failed else min(compared, key=lambda one: _size(one.margin), default=None)


def _size(margin: float | None) -> float:
    return math.inf if margin is None else margin


def _by_comparison(seen: Sequence[tuple[_Link, float, float, bool]]) -> list[Compared]:
    """The links of each chain together, by the one that decides."""
    groups: list[list[tuple[_Link, float, float, bool]]] = []
    for one in seen:
        link = one[0]
        same = groups and groups[-1][-1][0].of == link.of and groups[-1][-1][0].place < link.place
        groups[-1].append(one) if same else groups.append([one])
    found = []
    for links in groups:
        each = [_compared(*one) for one in links]
        decisive = nearest(each)
        if decisive is not None:
            found.append(decisive)
    return found


def _compared(link: _Link, left: float, right: float, held: bool) -> Compared:
    threshold = left if link.threshold_left else right
    distance = abs(left - right)
    wrong_side = link.operator is ast.Eq or (link.operator is not ast.NotEq and not held)
    if wrong_side and distance:
        distance = -distance
    margin = distance / abs(threshold) if threshold and math.isfinite(distance / threshold) else None
    return Compared(link.text, left, right, threshold, held, margin)


def _watched(
    function: Callable[..., object], seen: list[tuple[_Link, float, float, bool]]
) -> Callable[..., object] | None:
    """A copy of the function that notes every asserted comparison; `None` where there can be none."""
    if isinstance(function, types.MethodType):
        copy = _watched(function.__func__, seen)
        return None if copy is None else types.MethodType(copy, function.__self__)
    if not isinstance(function, types.FunctionType) or hasattr(function, "__wrapped__"):
        return None
    try:
        source = textwrap.dedent(inspect.getsource(function))
        definition = ast.parse(source).body[0]
    except (OSError, TypeError, SyntaxError):
        return None
    if not isinstance(definition, ast.FunctionDef):
        return None
    watcher = _Watcher(source, definition)
    definition = watcher.visit(definition)
    try:
        code = _compiled(definition, function.__code__)
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        cells[_SEE] = types.CellType(_note(watcher.links, seen))
        copy = types.FunctionType(
            code,
            function.__globals__,
            function.__name__,
            function.__defaults__,
            tuple(cells[name] for name in code.co_freevars),
        )
    except (SyntaxError, ValueError, KeyError, StopIteration):
        return None
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _note(links: Sequence[_Link], seen: list[tuple[_Link, float, float, bool]]) -> Callable[[int, Any, Any], Any]:
    def see(number: int, left: Any, right: Any) -> Any:
        link = links[number]
        result = _OPERATORS[link.operator](left, right)
        # Figures are never whole by type: what compares whole numbers alone speaks of conditions, and of no distance.
        whole = isinstance(left, numbers.Integral) and isinstance(right, numbers.Integral)
        if _is_number(left) and _is_number(right) and not whole:
            seen.append((link, float(left), float(right), bool(result)))
        return result

    return see


def _is_number(value: object) -> bool:
    return type(value) is not bool and isinstance(value, numbers.Real) and math.isfinite(value)


def _compiled(definition: ast.FunctionDef, original: types.CodeType) -> types.CodeType:
    """The code of a rewritten function, whose free variables stay free."""
    # Decorators, annotations and defaults were evaluated once, when the function was defined.
    definition.decorator_list, definition.returns = [], None
    arguments = definition.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
        if argument is not None:
            argument.annotation = None
    arguments.defaults = [ast.Constant(None) for _ in arguments.defaults]
    arguments.kw_defaults = [default and ast.Constant(None) for default in arguments.kw_defaults]
    outer = ast.parse(f"def outer({', '.join([*original.co_freevars, _SEE])}): pass")
    outer.body[0].body = [definition]  # type: ignore[attr-defined]
    module = compile(ast.fix_missing_locations(outer), original.co_filename, "exec", dont_inherit=True, optimize=0)
    within = next(const for const in module.co_consts if isinstance(const, types.CodeType))
    return next(
        const for const in within.co_consts if isinstance(const, types.CodeType) and const.co_name == definition.name
    )


class _Watcher(ast.NodeTransformer):
    """Rewrites the comparisons of assertions so that each link is told of as it is evaluated."""

    def __init__(self, source: str, definition: ast.FunctionDef) -> None:
        self._source = source
        # The function's other parameters are parametrised values and globals are constants: neither depends on a table.
        self._measured = set(TABLES)
        for node in ast.walk(definition):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._measured.add(node.id)
            elif isinstance(node, ast.FunctionDef | ast.Lambda) and node is not definition:
                self._measured |= {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)}
        self._comparisons = 0
        self.links: list[_Link] = []

    def visit_Assert(self, node: ast.Assert) -> ast.Assert:
        # The message is of no use here, and need not be able to come about.
        return ast.Assert(test=self._watched(node.test), msg=None)

    def _watched(self, test: ast.expr) -> ast.expr:
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            return ast.BoolOp(op=ast.And(), values=[self._watched(value) for value in test.values])
        if not isinstance(test, ast.Compare) or not all(type(op) in _OPERATORS for op in test.ops):
            return test
        self._comparisons += 1
        text = one_line(ast.get_source_segment(self._source, test) or ast.unparse(test))
        links: list[ast.expr] = []
        operands = [test.left, *test.comparators]
        for place, op in enumerate(test.ops):
            left, right = operands[place], operands[place + 1]
            threshold_left = self._depends(right) and not self._depends(left)
            number = len(self.links)
            self.links.append(_Link(self._comparisons, place, text, type(op), threshold_left))
            links.append(
                ast.Call(
                    func=ast.Name(_SEE, ast.Load()),
                    # Held in a variable, so that a link further on finds what this one compared.
                    args=[ast.Constant(number), self._kept(left, place), self._kept(right, place + 1, new=True)],
                    keywords=[],
                )
            )
        return links[0] if len(links) == 1 else ast.BoolOp(op=ast.And(), values=links)

    def _kept(self, operand: ast.expr, place: int, *, new: bool = False) -> ast.expr:
        name = f"{_OPERAND}{self._comparisons}_{place}"
        if place and not new:
            return ast.Name(name, ast.Load())
        return ast.NamedExpr(target=ast.Name(name, ast.Store()), value=operand)

    def _depends(self, operand: ast.expr) -> bool:
        """Whether an operand may depend on a table: it calls, looks up, or names a variable of the function."""
        return any(
            isinstance(node, ast.Call | ast.Subscript | ast.Attribute)
            or (isinstance(node, ast.Name) and node.id in self._measured)
            for node in ast.walk(operand)
        )
