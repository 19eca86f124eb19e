"""What can be said of a prediction before anything is measured: whether it is one, whether it can fail, whether it can be decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_joules import synthetic, verdict
from pytest_joules.prediction import Prediction, refusals
from pytest_joules.suite import Suite
from pytest_joules.sweep import Sweep
from pytest_joules.workload import questions


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What was found.

    Attributes:
        errors: why it cannot be a prediction.
        warnings: what its author may not have meant.
        share_held: share of the made-up tables on which it held; `None` when it was not tried.
        tables: how many there were.
        decidable: share of the machines on which it is true whose verdict would be clear; `None` when it was not asked.
    """

    prediction: Prediction
    suite: Suite
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    share_held: float | None = None
    tables: int = 0
    decidable: float | None = None


def examine(
    prediction: Prediction,
    suite: Suite,
    other: Suite | None,
    foreign: Sequence[str],
    around: Sweep | None = None,
    *,
    thoroughly: bool = False,
) -> Examined:
    """Judge a prediction on tables that could come out.

    Args:
        other: the suite it compares with.
        foreign: what it imports from outside its repository.
        around: a stored table of the suite.
        thoroughly: also ask whether the suite's passes could decide it.
    """
    errors = list(refusals(prediction.function, tuple(prediction.params)))
    if foreign:
        errors.append(
            f"it imports {', '.join(foreign)}; a prediction imports only math, pytest, pytest_joules and files of its repository"
        )
    if errors:
        return Examined(prediction=prediction, suite=suite, errors=tuple(errors))
    compared = (other.axes, other.conditions) if other else None
    found = synthetic.search(
        prediction, suite.axes, suite.conditions, compared, suite.protocol.passes, suite.undefined,
        holds=prediction.holds, fails=prediction.fails, around=around,
    )  # fmt: skip
    warnings = []
    errors += found.examples
    if found.broken:
        errors.append(found.broken)
    elif found.cannot_fail:
        errors.append(
            "it holds on every table that could come out, so it predicts nothing; assert something that can fail"
        )
    elif found.never_holds:
        warnings.append(f"it held on none of {found.tables} made-up tables; is its threshold as meant?")
    decidable = None
    if thoroughly and not errors and not found.never_holds:
        decidable = verdict.resolution(
            prediction, suite.axes, suite.conditions, suite.protocol.passes, against=compared, undefined=suite.undefined,
            around=around, questions=_questions(suite),
        )  # fmt: skip
        if decidable == 0:
            warnings.append(
                f"it is finer than {suite.protocol.passes} passes that spread by 3 % {'and the questions ' if _questions(suite) else ''}"
                f"can resolve; ask for more {'of either' if _questions(suite) else 'passes'}, or claim less"
            )
    return Examined(
        prediction=prediction, suite=suite, errors=tuple(errors), warnings=tuple(warnings),
        share_held=None if found.broken else found.share_held, tables=found.tables, decidable=decidable,
    )  # fmt: skip


def _questions(suite: Suite) -> int:
    """How many questions the conditions of a suite ask, where they ask any: the least of them."""
    known = questions.sets(suite)
    return min((len(questions.of(suite.setting(condition), known)) for condition in suite.conditions), default=0)
