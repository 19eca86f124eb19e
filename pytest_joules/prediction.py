"""A prediction: a plain function of a table, and what it says of one. Pure."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pytest_joules.errors import Unmeasured, Void
from pytest_joules.sweep import Reads, Sweep
from pytest_joules.words import one_line

TABLES = ("sweep", "against")
"""The arguments of a prediction that are tables; all others are parametrised values."""

Word = Literal["held", "refuted", "void", "broken", "unmeasured"]


@dataclass(frozen=True, slots=True)
class Prediction:
    """A function that asserts something of a table.

    Attributes:
        name: unique, as pytest calls it (`predictions/test_quickstart.py::test_the_knee`).
        function: called with the tables it names and its parametrised values.
        suite: name of the suite whose table it is about.
        against: name of the suite whose latest stored run it compares with, when it does.
        params: parametrised values by argument name.
        wants: which of `TABLES` it takes.
        primary: the claim that its module stands or falls with.
        decide: `clear` makes a narrow outcome void.
        threshold: what the author says of the threshold, such as `chosen after the data`.
        holds: example tables, {metric: {condition: figure}}, on which it must hold.
        fails: example tables on which it must fail.
    """

    name: str
    function: Callable[..., object]
    suite: str
    against: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    wants: tuple[str, ...] = ("sweep",)
    primary: bool = False
    decide: str = ""
    threshold: str = ""
    holds: tuple[Mapping[str, Mapping[Any, float]], ...] = ()
    fails: tuple[Mapping[str, Mapping[Any, float]], ...] = ()

    @property
    def claim(self) -> str:
        """The first line of the docstring, or the function's name as words."""
        doc = inspect.getdoc(self.function)
        if doc:
            return one_line(doc.split("\n\n", 1)[0])
        return self.function.__name__.removeprefix("test_").replace("_", " ")

    @property
    def body(self) -> str:
        """What the function does, as written and without its docstring; empty where its source cannot be read."""
        try:
            source = textwrap.dedent(inspect.getsource(self.function))
            statements = ast.parse(source).body[0].body  # type: ignore[attr-defined]
        except (OSError, TypeError, SyntaxError, AttributeError, IndexError):
            return ""
        said = statements[1:] if inspect.getdoc(self.function) and len(statements) > 1 else statements
        lines = source.splitlines()[said[0].lineno - 1 : said[-1].end_lineno]
        return textwrap.dedent("\n".join(lines)).strip()

    @property
    def asserted(self) -> str:
        """The asserted expressions as written."""
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(self.function)))
        except (OSError, TypeError, SyntaxError):
            return ""
        return "; ".join(ast.unparse(node.test) for node in ast.walk(tree) if isinstance(node, ast.Assert))


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a prediction says of one table.

    Attributes:
        word: `held`, `refuted`, `void` (it read a number that is not valid), `unmeasured` (one that was not published) or
            `broken` (any other exception).
        detail: the assertion's or exception's text, in one line.
        reads: what it looked at.
    """

    word: Word
    detail: str
    reads: Reads


def judge(prediction: Prediction, sweep: Sweep, against: Sweep | None = None) -> Judgement:
    """Evaluate a prediction once. Only an AssertionError refutes; NaN anywhere it reads breaks."""
    sweep = sweep.fresh()
    other = None if against is None else against.fresh()
    tables = {"sweep": sweep, "against": other}
    arguments = {**{name: tables[name] for name in prediction.wants}, **prediction.params}

    def judged(word: Word, detail: str = "") -> Judgement:
        return Judgement(word, one_line(detail), sweep.reads)

    def void_reads() -> list[str]:
        return [*sweep.reads.void, *(other.reads.void if other is not None else ())]

    try:
        prediction.function(**arguments)
    except AssertionError as error:
        if found := void_reads():
            return judged("void", found[0])
        return judged("refuted", _numbers_only(str(error)) or f"assert {prediction.asserted}")
    except Void as error:
        return judged("void", str(error))
    except Unmeasured as error:
        return judged("unmeasured", str(error))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # pytest.skip, pytest.fail and sys.exit are no kinds of Exception
        return judged("broken", f"{type(error).__name__}: {error.args[0] if error.args else error}")
    if found := void_reads():
        return judged("void", found[0])
    return judged("held")


def _numbers_only(introspection: str) -> str:
    """The compared numbers of a failed assertion, to four digits; where they come from stands in pytest's own report."""
    first_line = introspection.split("\n", 1)[0]
    return re.sub(r"-?\d+\.\d{4,}(?:e[-+]?\d+)?", lambda number: f"{float(number.group()):.4g}", first_line)


def refusals(function: Callable[..., object], allowed: tuple[str, ...]) -> list[str]:
    """Why a function cannot be a prediction; empty when it can.

    Args:
        function: as collected.
        allowed: argument names that parametrisation supplies.
    """
    reasons = []
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return ["it is async; a prediction is a plain function of a table"]
    if inspect.isgeneratorfunction(function):
        return ["it yields; a prediction is a plain function of a table"]
    reasons += [
        f"it takes {name!r}; a prediction takes 'sweep', 'against' and parametrised values, nothing that touches the machine"
        for name in inspect.signature(function).parameters
        if name not in (*TABLES, *allowed, "self")
    ]
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return reasons
    if any(isinstance(node, ast.Return) for node in _own_nodes(tree.body[0])):
        reasons.append("it returns; say what must hold with assert")
    return reasons


def _own_nodes(function: ast.AST) -> list[ast.AST]:
    """Nodes of a function without those of functions defined inside it."""
    nodes: list[ast.AST] = []
    todo = list(ast.iter_child_nodes(function))
    while todo:
        node = todo.pop()
        nodes.append(node)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            todo.extend(ast.iter_child_nodes(node))
    return nodes
