"""Power sources: the interface, how they are found, and how one is chosen.

A source is one module of this package (or an entry point in the group `pytest_joules.meters`) with

    NAME: str                                        what `--joules-meter` calls it
    def find(argument: str | None) -> Sequence[Meter]

`find` looks at this machine and returns the meters that can be read now. It raises `MeterError`, with the
cause and the next step, when the source exists here but cannot be used, or does not exist. `argument` is what
stood behind a colon in `--joules-meter NAME:ARGUMENT`. Nothing else has to be touched to add a source.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

from pytest_joules.errors import MeterError, Unmeasured, UsageError
from pytest_joules.records import Basis, Rail, Sample, Scope
from pytest_joules.words import nearest

ENTRY_POINTS = "pytest_joules.meters"


class Reader(Protocol):
    """An opened meter. Used by one thread only, except `close`, which another thread may call.

    Attributes:
        interval_s: how long to wait between reads; `None` when `read` itself blocks until the source speaks.
    """

    interval_s: float | None

    def read(self) -> Sequence[Sample]:
        """The readings that are there now; empty when there are none. Raises `MeterError` when the source is gone."""
        ...

    def close(self) -> None:
        """Release the source. Must make a blocked `read` return or raise. May be called twice."""
        ...


class Meter(Protocol):
    """A power source that can be read on this machine.

    Attributes:
        name: as in `--joules-meter`.
        rails: what it reads. Counted rails of one meter with the same scope never overlap, so their sum is that scope.
        notes: what a reader of the note must know about this source.
    """

    name: str
    rails: tuple[Rail, ...]
    notes: tuple[str, ...]

    def open(self, rate_hz: float) -> Reader:
        """Start reading at `rate_hz` or as near to it as the source allows."""
        ...


@dataclass(frozen=True, slots=True)
class Found:
    """What looking for one source gave: meters, or the reason why there are none and what to do."""

    source: str
    meters: tuple[Meter, ...]
    reason: str = ""
    next_step: str = ""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The meter of a run, the rails that make up its energy, and why it was taken."""

    meter: Meter
    scope: Scope
    rails: tuple[Rail, ...]
    because: str

    @property
    def basis(self) -> Basis:
        """The weakest basis among the rails: a sum is as good as its worst part."""
        return "estimated" if any(rail.basis == "estimated" for rail in self.rails) else self.rails[0].basis

    @property
    def covers(self) -> tuple[str, ...]:
        """The parts the energy really covers, sorted."""
        return tuple(sorted({part for rail in self.rails for part in rail.covers}))


def sources() -> dict[str, ModuleType]:
    """Every known source by name: the modules of this package, then the installed entry points."""
    found: dict[str, ModuleType] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        if hasattr(module, "find"):
            found[module.NAME] = module
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        found.setdefault(entry.name, entry.load())
    return found


def look(only: Iterable[str] | None = None, argument: str | None = None) -> list[Found]:
    """Look for each source on this machine. Never raises: a source that breaks is reported as such."""
    known = sources()
    results = []
    for name in known if only is None else only:
        try:
            meters = tuple(known[name].find(argument))
        except MeterError as error:
            results.append(Found(name, (), str(error), error.next_step))
        except Exception as error:  # a source of a third party must not take the others with it
            results.append(Found(name, (), f"meter {name}: {type(error).__name__}: {error}"))
        else:
            results.append(Found(name, meters, "" if meters else f"meter {name}: nothing to read on this machine"))
    return results


def choose(wanted: str, *, scope: Scope | None, basis: str, without: Container[str] = ()) -> Chosen:
    """The meter to use.

    Args:
        wanted: `auto`, or a source name with an optional `:argument`.
        scope: the scope the suite requires, or `None` for any.
        basis: `measured` or `any`.
        without: sources that were tried and did not follow the chip.

    Raises:
        UsageError: `wanted` names no source.
        MeterError: the named source cannot be used here.
        Unmeasured: nothing here satisfies the suite.
    """
    if wanted != "auto":
        return _named(wanted, scope, basis)
    found = look()
    candidates = [c for f in found if f.source not in without for meter in f.meters for c in _by_scope(meter, scope)]
    fitting = [chosen for chosen in candidates if basis == "any" or chosen.basis == "measured"]
    if not fitting:
        tried = "; ".join(f.reason for f in found if f.reason) or "no source answered"
        need = f"{'a measured' if basis == 'measured' else 'a'} source of scope {scope or 'any'}"
        raise Unmeasured(f"the suite needs {need} and this machine has none ({tried})")
    best = min(fitting, key=_rank)
    others = [f"{f.source}: {f.reason}" for f in found if f.reason and f.source != best.meter.name]
    why = f"auto: the best {best.basis} source of scope {best.scope} here"
    if best.basis != "measured" and others:
        why += f" (no measured source: {'; '.join(o.split(': ', 1)[1] for o in others)})"
    return Chosen(best.meter, best.scope, best.rails, why)


def _named(wanted: str, scope: Scope | None, basis: str) -> Chosen:
    name, _, argument = wanted.partition(":")
    known = sources()
    if name not in known:
        raise UsageError(
            f"--joules-meter {wanted}: there is no meter {name!r}{nearest(name, known)}; known: {', '.join(sorted(known))}"
        )
    [found] = look([name], argument or None)
    if not found.meters:
        raise MeterError(found.reason, "")
    options = [chosen for meter in found.meters for chosen in _by_scope(meter, scope)]
    if not options:
        has = sorted({rail.scope for meter in found.meters for rail in meter.rails})
        raise Unmeasured(f"meter {name} reads scope {', '.join(has)}; the suite requires {scope}")
    best = min(options, key=_rank)
    if basis == "measured" and best.basis != "measured":
        raise Unmeasured(f"meter {name} is {best.basis}; the suite requires a measured source")
    return Chosen(best.meter, best.scope, best.rails, "named by --joules-meter")


def _by_scope(meter: Meter, scope: Scope | None) -> list[Chosen]:
    counted = [rail for rail in meter.rails if rail.role == "counted"]
    scopes = dict.fromkeys(rail.scope for rail in counted)
    return [
        Chosen(meter, s, tuple(rail for rail in counted if rail.scope == s), "") for s in scopes if scope in (None, s)
    ]


# Without a stated scope the narrowest is preferred: it holds the least that is not the model's doing.
_SCOPE_ORDER: dict[Scope, int] = {"chip": 0, "gpu": 1, "board": 2, "wall": 3}


def _rank(chosen: Chosen) -> tuple[bool, int, int]:
    return (chosen.basis != "measured", _SCOPE_ORDER[chosen.scope], -len(chosen.covers))
