"""Power sources: the interface, how they are found, and how one is chosen.

A source is one module of this package (or an entry point in the group `pytest_joules.meters`) with

    NAME: str                                        what `--joules-meter` calls it
    def find(argument: str | None) -> Sequence[Meter]

`find` looks at this machine and returns the meters that can be read now. It raises `MeterError`, with the
cause and the next step, when the source exists here but cannot be used, or does not exist. `argument` is what
stood behind a colon in `--joules-meter NAME:ARGUMENT`. Nothing else has to be touched to add a source.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from pytest_joules import discovery
from pytest_joules.errors import MeterAbsent, MeterError, Unmeasured, UsageError
from pytest_joules.records import Basis, Rail, Sample, Scope
from pytest_joules.words import nearest

ENTRY_POINTS = "pytest_joules.meters"


class Reader(Protocol):
    """An opened meter. Used by one thread only, except `close`, which another thread may call.

    A reader may have an attribute `faults`, a mapping from rail name to why that rail gives nothing just now.

    Attributes:
        interval_s: how long to wait between reads; `None` when `read` itself blocks until the source speaks.
    """

    interval_s: float | None

    def read(self) -> Sequence[Sample]:
        """The readings that are there now; empty when there are none. Raises `MeterError` when the source is gone.

        A reading that was tried for and could not be had is a sample whose value is NaN, never 0.
        """
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
    """What looking for one source gave: meters, or the reason why there are none and what to do.

    Attributes:
        absent: this machine has no such source; otherwise it is here and shut, which can be mended.
    """

    source: str
    meters: tuple[Meter, ...]
    reason: str = ""
    next_step: str = ""
    absent: bool = False


@dataclass(frozen=True, slots=True)
class Chosen:
    """The meter of a run, the rails that make up its energy, and why it was taken.

    Attributes:
        meter: the source whose rails count.
        also: further sources whose rails are added to it; none of them covers what another does.
        beside: sources that are recorded in the same windows and not counted.
    """

    meter: Meter
    scope: Scope
    rails: tuple[Rail, ...]
    because: str
    also: tuple[Meter, ...] = ()
    beside: tuple[Meter, ...] = ()

    @property
    def name(self) -> str:
        """`nvml`, or `nvml+rapl` for a sum."""
        return "+".join(meter.name for meter in (self.meter, *self.also))

    @property
    def meters(self) -> tuple[Meter, ...]:
        """Everything that is read."""
        return (self.meter, *self.also, *self.beside)

    @property
    def every_rail(self) -> tuple[Rail, ...]:
        """All rails that are read, those that count and the others."""
        return tuple(rail for meter in self.meters for rail in meter.rails)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the note must know about the sources."""
        return tuple(note for meter in self.meters for note in meter.notes)

    @property
    def basis(self) -> Basis:
        """The weakest basis among the rails: a sum is as good as its worst part."""
        return "estimated" if any(rail.basis == "estimated" for rail in self.rails) else self.rails[0].basis

    @property
    def covers(self) -> tuple[str, ...]:
        """The parts the energy really covers, sorted."""
        return tuple(sorted({part for rail in self.rails for part in rail.covers}))

    @property
    def checks(self) -> tuple[tuple[Rail, Rail], ...]:
        """(rail that counts, rail that reads the same thing by another route) pairs: `nvml.gpu0.energy` and `nvml.gpu0.power`."""

        def thing(rail: Rail) -> tuple[str, str]:
            return rail.scope, rail.name.rpartition(".")[0]

        by_thing = {thing(rail): rail for rail in self.every_rail if rail.role == "check"}
        return tuple((rail, by_thing[thing(rail)]) for rail in self.rails if thing(rail) in by_thing)

    def part(self, meter: Meter) -> Chosen:
        """What is wanted of one of the meters: its rails that count, or all it has when it is read beside them."""
        own = tuple(rail for rail in self.rails if rail in meter.rails)
        shown = own or tuple(rail for rail in meter.rails if rail.role == "counted")
        return Chosen(meter, self.scope, shown, self.because)


class Source(Protocol):
    """What a source module offers."""

    def find(self, argument: str | None) -> Sequence[Meter]:
        """The meters that can be read on this machine now."""
        ...


@dataclass(frozen=True, slots=True)
class _BrokenSource:
    """A source that cannot be imported, and says so when it is asked for meters."""

    name: str
    cause: str

    def find(self, argument: str | None) -> Sequence[Meter]:
        raise MeterError(f"meter {self.name}: it cannot be loaded: {self.cause}")


def sources() -> dict[str, Source]:
    """Every known source by name: the modules of this package, then the installed entry points."""
    found = discovery.members(__name__, __path__, ENTRY_POINTS, offers="find")
    return {
        name: _BrokenSource(name, member.cause) if isinstance(member, discovery.Broken) else member
        for name, member in found.items()
    }


def look(only: Iterable[str] | None = None, argument: str | None = None) -> list[Found]:
    """Look for each source on this machine. Never raises: a source that breaks is reported as such."""
    known = sources()
    results = []
    for name in known if only is None else only:
        try:
            meters = tuple(known[name].find(argument))
        except MeterError as error:
            results.append(Found(name, (), str(error), error.next_step, absent=isinstance(error, MeterAbsent)))
        except Exception as error:  # a source of a third party must not take the others with it
            results.append(Found(name, (), f"meter {name}: {type(error).__name__}: {error}"))
        else:
            nothing = "" if meters else f"meter {name}: nothing to read on this machine"
            results.append(Found(name, meters, nothing, absent=not meters))
    return results


def choose(wanted: str, *, scope: Scope | None, basis: str, without: Container[str] = ()) -> Chosen:
    """The meter to use.

    Args:
        wanted: `auto`, or a source name with an optional `:argument`; `rapl/dram` counts that rail of a source alone,
            `nvml+rapl` adds two sources that do not overlap, `rapl,shelly:ADDRESS` counts the first and records the
            second in the same windows.
        scope: the scope the suite requires, or `None` for any.
        basis: `measured` or `any`.
        without: sources that were tried and did not follow the chip.

    Raises:
        UsageError: `wanted` names no source or no rail of one.
        MeterAbsent: this machine has no such source.
        MeterError: the named source cannot be used here.
        Unmeasured: nothing here satisfies the suite.
    """
    if wanted != "auto":
        first, *others = _split(wanted, ",")
        chosen = _sum(first, scope, basis)
        beside = tuple(_named(other, None, "any").meter for other in others)
        every = [rail.name for meter in (chosen.meter, *chosen.also, *beside) for rail in meter.rails]
        if twice := sorted({name for name in every if every.count(name) > 1}):
            raise UsageError(f"meter {wanted}: {', '.join(twice)} would be read twice; name each source once")
        return replace(chosen, beside=beside)
    found = look()
    candidates = [c for f in found if f.source not in without for meter in f.meters for c in _by_scope(meter, None)]
    candidates += _card_and_chip(candidates)
    fitting = [c for c in candidates if scope in (None, c.scope) and (basis == "any" or c.basis == "measured")]
    if not fitting:
        need = f"{'a measured' if basis == 'measured' else 'a'} source of scope {scope or 'any'}"
        raise Unmeasured(
            f"the suite needs {need} and this machine has none that can be read{_shut(found)}; see 'joules doctor'"
        )
    best = min(fitting, key=_rank)
    why = f"auto: the best {best.basis} source here{f' of scope {scope}' if scope else ''}"
    if best.basis != "measured":
        why += f"; no measured one can be read{_shut(found)}"
    return replace(best, because=why)


def check_names(wanted: str) -> None:
    """Refuse what names no source; looks at no hardware.

    Raises:
        UsageError: a source of that name is not known.
    """
    if wanted == "auto":
        return
    known = sources()
    for one in (name for part in _split(wanted, ",") for name in _split(part, "+")):
        name = re.split("[:/]", one, maxsplit=1)[0]
        if name not in known:
            raise UsageError(
                f"meter {wanted!r}: there is no source {name!r}{nearest(name, known)}; known: {', '.join(sorted(known))}"
            )


def several(text: str) -> bool:
    """Whether a text names more than one source."""
    return len(_split(text, ",")) > 1 or len(_split(text, "+")) > 1


def _shut(found: Iterable[Found]) -> str:
    """The sources that are here and cannot be read, with the reasons; those that are simply absent say nothing."""
    reasons = [f.reason for f in found if f.reason and not f.absent]
    return f" ({'; '.join(reasons)})" if reasons else ""


def _split(wanted: str, by: str) -> list[str]:
    """The sources between commas or plus signs; where no source name follows, the sign belongs to the argument before."""
    known = sources()
    parts: list[str] = []
    for piece in wanted.split(by):
        if parts and ":" in parts[-1] and re.split(r"[:/+,]", piece, maxsplit=1)[0] not in known:
            parts[-1] += f"{by}{piece}"
        else:
            parts.append(piece)
    return parts


def _sum(wanted: str, scope: Scope | None, basis: str) -> Chosen:
    """One source, or several joined by `+` that read different parts of the machine.

    Raises:
        UsageError: two of them cover the same part, which the sum would count twice.
    """
    names = _split(wanted, "+")
    if len(names) == 1:
        return _named(wanted, scope, basis)
    total = _named(names[0], None, basis)
    for name in names[1:]:
        part = _named(name, None, basis)
        if twice := set(total.covers) & set(part.covers):
            raise UsageError(
                f"meter {wanted}: {total.name} and {part.name} both cover {', '.join(sorted(twice))}; "
                "their sum would count it twice"
            )
        total = _added(total, part)
    if scope not in (None, total.scope):
        raise Unmeasured(f"meter {wanted} reads scope {total.scope}; the suite requires {scope}")
    return total


def _added(one: Chosen, other: Chosen) -> Chosen:
    """Two sources that read different parts, as one.

    Raises:
        UsageError: the scope of one contains that of the other.
    """
    scopes = {one.scope, other.scope}
    if len(scopes) > 1 and not scopes <= {"gpu", "chip", "gpu+chip"}:
        raise UsageError(
            f"meter {one.name}+{other.name}: scopes {', '.join(sorted(scopes))} contain each other and cannot be added"
        )
    scope: Scope = one.scope if len(scopes) == 1 else "gpu+chip"
    because = "named by --joules-meter, added"
    return Chosen(one.meter, scope, (*one.rails, *other.rails), because, also=(*one.also, other.meter, *other.also))


def _card_and_chip(candidates: Sequence[Chosen]) -> list[Chosen]:
    """The best source of a card of its own and the best of the chip beside it, added where they do not overlap."""
    cards, chips = ([c for c in candidates if c.scope == scope] for scope in ("gpu", "chip"))
    apart = [(a, b) for a in cards for b in chips if not set(a.covers) & set(b.covers)]
    return [_added(*min(apart, key=lambda pair: (_rank(pair[0]), _rank(pair[1]))))] if apart else []


def _named(wanted: str, scope: Scope | None, basis: str) -> Chosen:
    """A source that the person named, `NAME`, `NAME:ARGUMENT` or `NAME/RAIL`."""
    plain, _, argument = wanted.partition(":")
    name, _, rail = plain.partition("/")
    known = sources()
    if not name:
        raise UsageError(f"meter {wanted!r}: a source without a name; known: {', '.join(sorted(known))}")
    if name not in known:
        raise UsageError(
            f"meter {wanted}: there is no source {name!r}{nearest(name, known)}; known: {', '.join(sorted(known))}"
        )
    [found] = look([name], argument or None)
    if not found.meters:
        raise (MeterAbsent if found.absent else MeterError)(found.reason)
    every = [chosen for meter in found.meters for chosen in _by_scope(meter, None, rail)]
    if not every:
        has = [r.name.removeprefix(f"{name}.") for meter in found.meters for r in meter.rails if r.role == "counted"]
        raise UsageError(f"meter {wanted}: {name} has no rail {rail!r}{nearest(rail, has)}; it has {', '.join(has)}")
    options = [chosen for chosen in every if scope in (None, chosen.scope)]
    if not options:
        scopes = ", ".join(sorted({chosen.scope for chosen in every}))
        notes = "; ".join(note for meter in found.meters for note in meter.notes)
        raise Unmeasured(f"meter {name} reads scope {scopes}; the suite requires {scope} ({notes})")
    best = min(options, key=_rank)
    if basis == "measured" and best.basis != "measured":
        raise Unmeasured(f"meter {name} is {best.basis}; the suite requires a measured source")
    return replace(best, because="named by --joules-meter")


def _by_scope(meter: Meter, scope: Scope | None, only: str = "") -> list[Chosen]:
    """The counted rails of a meter by their scope; with `only`, those whose name is or ends in it."""
    counted = [r for r in meter.rails if r.role == "counted" and (not only or f".{r.name}".endswith(f".{only}"))]
    scopes = dict.fromkeys(rail.scope for rail in counted)
    return [
        Chosen(meter, s, tuple(rail for rail in counted if rail.scope == s), "") for s in scopes if scope in (None, s)
    ]


# Without a stated scope the part that runs the model comes first, then the narrowest, which holds the least that is
# not the model's doing. A card that the engine does not use shows no response to the load step and is passed over.
_SCOPE_ORDER: dict[Scope, int] = {"gpu": 0, "gpu+chip": 1, "chip": 2, "board": 3, "wall": 4}


def _rank(chosen: Chosen) -> tuple[bool, bool, int, int, float]:
    reads_gpu = "gpu" in chosen.covers
    # Last, the one that speaks more often: firmware's own counter before a battery's gauge.
    slowest_s = max(rail.refresh_s or math.inf for rail in chosen.rails)
    return (chosen.basis != "measured", not reads_gpu, _SCOPE_ORDER[chosen.scope], -len(chosen.covers), slowest_s)
