"""How a prediction stands to a run: said before it, after it, or about something else than what was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_joules.records import Run
from pytest_joules.registration import Registration
from pytest_joules.sweep import label

AFTER_DATA = "after-data"
DEVIATED = "deviated"


@dataclass(frozen=True, slots=True)
class Standing:
    """A word or two, and what they rest on.

    Attributes:
        word: `registered`, `registered, deviated`, `after-data`, `exploratory`, `unknown`, `unavailable` or `as published`.
    """

    word: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of a measurement, as the ledger tells it.

    Attributes:
        outcome: `complete` or `cut short`; empty when its end was never written, as when it was killed.
        windows: how many had closed when it ended; `None` when that was never written.
    """

    run_id: str
    utc: str
    suite: str
    machine: str
    models: Mapping[str, str]
    conditions: Sequence[Mapping[str, Any]]
    head: str
    outcome: str = ""
    windows: int | None = None
    reason: str = ""

    @property
    def saw_data(self) -> bool:
        """Whether it may have shown somebody a figure."""
        return self.windows is None or self.windows > 0


def attempts(records: Sequence[Mapping[str, Any]]) -> list[Attempt]:
    """The attempts in the entries of one ledger or several, each once, oldest first."""
    found: dict[str, Attempt] = {}
    for record in records:
        run_id = str(record.get("run_id", ""))
        if record.get("event") == "start" and run_id not in found:
            found[run_id] = Attempt(
                run_id=run_id,
                utc=str(record.get("utc", "")),
                suite=str(record.get("suite", "")),
                machine=str(record.get("machine", "")),
                models=dict(record.get("models", {})),
                conditions=tuple(record.get("conditions", ())),
                head=str(record.get("head", "")),
            )
    ends: dict[str, Mapping[str, Any]] = {}
    for record in records:
        if record.get("event") == "end" and ends.get(str(record.get("run_id")), {}).get("outcome") != "complete":
            ends[str(record.get("run_id"))] = record
    return sorted(
        (
            Attempt(
                attempt.run_id, attempt.utc, attempt.suite, attempt.machine, attempt.models, attempt.conditions, attempt.head,
                outcome=str(ends[run_id].get("outcome", "")), windows=int(ends[run_id].get("windows", 0)),
                reason=str(ends[run_id].get("reason", "")),
            )
            if run_id in ends
            else attempt
            for run_id, attempt in found.items()
        ),
        key=lambda attempt: attempt.run_id,
    )  # fmt: skip


def same_data(attempt: Attempt, run: Run) -> bool:
    """Whether an attempt measured the same model, by its hash, at any of the run's conditions, under whatever suite."""
    ours = {str(model.get("sha256", "")) for model in run.models} - {""}
    if not ours & set(attempt.models.values()):
        return False
    return any(_same(mine, theirs) for mine in run.conditions for theirs in attempt.conditions)


def _same(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Alike on every axis that both name; suites that vary nothing are of one condition."""
    shared = mine.keys() & theirs.keys()
    return all(mine[axis] == theirs[axis] for axis in shared) and (bool(shared) or not (mine or theirs))


def stand(
    registered: Registration, run: Run, known: Sequence[Attempt], contained: Callable[[str], bool | None]
) -> Standing:
    """How a prediction, as git shows it now, stands to a run.

    Args:
        registered: what git shows of the prediction as it is now.
        run: the run it is judged on, just measured or stored.
        known: every attempt that is known of on the run's machine.
        contained: whether a commit holds the prediction as it is now; `None` when that cannot be shown.
    """
    published = run.provenance.get("registration")
    if published:
        return Standing(str(published))
    if registered.word != "registered":
        return Standing(registered.word, registered.detail)
    deviations = list(run.deviations)
    ended = ", " + DEVIATED if deviations else ""
    detail = "; ".join(deviations)
    before = [
        attempt
        for attempt in known
        if attempt.run_id < run.run_id
        and attempt.saw_data
        and same_data(attempt, run)
        and contained(attempt.head) is not True
    ]
    seen = [attempt.run_id for attempt in before]
    head = str(run.provenance.get("head", ""))
    if head != registered.head and contained(head) is not True:
        seen.append(run.run_id)
    if seen:
        again = [label(c) for c in run.conditions if any(_same(c, t) for a in before for t in a.conditions)]
        some = again and len(again) < len(run.conditions)
        at = f"a condition of this suite ({'; '.join(again)})" if some else "every condition of this suite"
        said = f"said after {', '.join(dict.fromkeys(seen))} had measured the same model at {at}"
        return Standing(AFTER_DATA + ended, "; ".join(filter(None, (said, detail))))
    return Standing("registered" + ended, detail)
