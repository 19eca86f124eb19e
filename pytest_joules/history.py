"""Every other attempt at the data of a run, from the ledgers and from what the results folder still holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from pytest_joules import ledger, store
from pytest_joules.records import Run
from pytest_joules.standing import Attempt, attempts, same_data


def known(results: store.Store, machine_slug: str) -> list[Attempt]:
    """Every start of a measurement that is known of on a machine: beside its results, and of this user whatever the folder."""
    beside = ledger.read(results.folder / machine_slug / ledger.NAME).records
    own = ledger.read(ledger.state_folder() / ledger.NAME).records
    return attempts([*beside, *(record for record in own if record.get("machine") in (machine_slug, None))])


def others(results: store.Store, run: Run, would_have_said: Callable[[Attempt], str] = lambda _: "") -> list[str]:
    """Every other attempt at the data of a run on its machine, in words: what came of it, or would have.

    Args:
        would_have_said: of one that was cut short, what can be added.
    """
    if run.published:
        return []
    entered = known(results, run.machine_slug)
    # Runs that came in another way than by measuring here, as with a merge, are in no ledger of this machine.
    kept = [_as_attempt(stored.run) for stored in results.runs(run.machine_slug, run.suite_name)]
    every = {attempt.run_id: attempt for attempt in (*kept, *entered)}
    found = [a for _, a in sorted(every.items()) if a.run_id != run.run_id and same_data(a, run)]
    return [f"{attempt.run_id} ({attempt.suite}): {_became(results, attempt, would_have_said)}" for attempt in found]


def _as_attempt(run: Run) -> Attempt:
    return Attempt(
        run_id=run.run_id, utc=run.started_utc, suite=run.suite_name, machine=run.machine_slug,
        models={str(m["name"]): str(m.get("sha256", "")) for m in run.models}, conditions=run.conditions,
        head=str(run.provenance.get("head", "")), outcome="complete" if run.complete else "cut short", windows=len(run.windows),
    )  # fmt: skip


def _became(results: store.Store, attempt: Attempt, would_have_said: Callable[[Attempt], str]) -> str:
    path = results.place(attempt.machine, attempt.suite) / f"{attempt.run_id}.json"
    if path.exists():
        given = {v.prediction: v for v in store.load_verdicts(store.load(path))}
        words = Counter(v.word for v in given.values())
        return ", ".join(f"{count} {word}" for word, count in words.items()) or "complete, never judged"
    if attempt.outcome == "complete":
        return "complete, and its result is not in the results folder"
    windows = "an unknown number of" if attempt.windows is None else str(attempt.windows)
    ended = f" ({attempt.reason})" if attempt.reason else ""
    return f"cut short after {windows} windows{ended}{would_have_said(attempt)}"
