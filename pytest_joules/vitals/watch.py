"""Looking at the vitals all the time, slowly, and what any stretch of that time says."""

from __future__ import annotations

import bisect
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from pytest_joules import discovery
from pytest_joules.records import VitalSummary
from pytest_joules.vitals import (
    POWER_LIMIT,
    Value,
    Vital,
    What,
    believable,
    platforms,
    rise,
    summary,
    words_of,
)

RATE_HZ = 1.0

STUCK_S = 2.0
"""A read that takes longer than this is given up, and its vital with it."""

FINDING_S = 10.0
"""Looking for one platform's vitals may take this long: a driver that has to start needs a few seconds."""

FAILURES = 5
"""A vital that gives no reading this many times in a row is dropped."""

SLACK_ROUNDS = 3
"""A reading this many rounds outside a stretch can still stand in for one at its edge."""

STOPPING_S = STUCK_S + 1.0


class _Stuck(Exception):
    """A call has not come back."""


class _Hand:
    """A thread that makes one call after the other, and can be left behind in one that never returns."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[object, Exception | None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="joules-vitals-read", daemon=True).start()

    def call(self, function: Callable[[], object], timeout_s: float) -> object:
        """What the function returns.

        Raises:
            _Stuck: it did not return in time; this hand is of no more use.
            Exception: what the function raised.
        """
        self._asked.put(function)
        try:
            result, error = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            self.let_go()
            raise _Stuck(f"did not answer within {timeout_s:g} s") from None
        if error is not None:
            raise error
        return result

    def let_go(self) -> None:
        """Have the thread end when it comes back."""
        self._asked.put(None)

    def _run(self) -> None:
        while (function := self._asked.get()) is not None:
            try:
                self._answers.put((function(), None))
            except Exception as error:  # told to whoever asked
                self._answers.put((None, error))


@dataclass(slots=True)
class _Series:
    """The readings of one vital: monotonic seconds and values, in the order of time."""

    vital: Vital
    monos: list[float] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    failed: int = 0

    def stretch(self, start_mono: float, end_mono: float, slack_s: float) -> list[Value]:
        """The readings in a stretch, and those just outside where they are needed.

        A counter is told by the last reading before and the first one after. Other vitals take these only where they have
        less than two readings inside.
        """
        low, high = bisect.bisect_left(self.monos, start_mono), bisect.bisect_right(self.monos, end_mono)
        if self.vital.kind == "counter" or high - low < 2:
            slack_s *= self.vital.every
            if low > 0 and self.monos[low - 1] >= start_mono - slack_s:
                low -= 1
            if high < len(self.monos) and self.monos[high] <= end_mono + slack_s:
                high += 1
        return self.values[low:high]


class Watch:
    """A thread that reads every vital of this machine at a slow, steady rate until stopped.

    Nothing that a vital does comes out of here or holds up another: one that is stuck, or gives nothing several times in
    a row, is dropped and its reason kept.

    Args:
        rate_hz: rounds a second.
        vitals: what to read; all that is found on this machine unless told.
    """

    def __init__(self, rate_hz: float = RATE_HZ, vitals: Sequence[Vital] | None = None) -> None:
        self._period_s = 1.0 / rate_hz
        self._given = vitals
        self._series: dict[str, _Series] = {}
        self._faults: dict[str, str] = {}
        self._lock = threading.Lock()
        self._stop, self._wake, self._ready = threading.Event(), threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._hand: _Hand

    def start(self, timeout_s: float = FINDING_S) -> None:
        """Find the vitals and read each once; returns when that is done or `timeout_s` have passed.

        Raises nothing, and does nothing the second time: a watch runs once.
        """
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name="joules-vitals", daemon=True)
        self._thread.start()
        self._ready.wait(timeout_s)

    def stop(self) -> None:
        """Stop reading; what was read stays. Does nothing when it is not running."""
        if self._thread is None:
            return
        self._stop.set()
        self._wake.set()
        self._thread.join(STOPPING_S)

    def read_now(self) -> None:
        """Begin a round at once, beside the steady ones, so that a stretch has a reading at its edge. Does not wait."""
        self._wake.set()

    def feed(self, vitals: Iterable[Vital], values: Mapping[str, Value], mono: float) -> None:
        """Take readings that another reader got at `mono`, by vital name, at most two in a period; call from any thread."""
        with self._lock:
            for vital in vitals:
                series = self._series.setdefault(vital.name, _Series(vital))
                value = values.get(vital.name)
                late_enough = not series.monos or mono - series.monos[-1] >= self._period_s / 2
                if value is not None and late_enough and believable(vital, value):
                    series.monos.append(mono)
                    series.values.append(value)

    @property
    def vitals(self) -> tuple[Vital, ...]:
        """What was found, dropped ones included."""
        with self._lock:
            return tuple(series.vital for series in self._series.values())

    @property
    def faults(self) -> dict[str, str]:
        """Why a vital or a whole platform is not read any more, by its name."""
        with self._lock:
            return dict(self._faults)

    def sees(self, what: What, of: Collection[str] = ()) -> bool:
        """Whether this machine has such a vital, readable or not.

        Args:
            of: beginnings of names, such as `nvml.gpu0`, to ask of those alone; here and below.
        """
        return any(True for _ in self._of(what, of))

    def between(self, start_mono: float, end_mono: float) -> tuple[VitalSummary, ...]:
        """Every vital that has a reading in the stretch; times as `time.monotonic()` gives them."""
        return tuple(
            summary(vital, values) for vital, values in self._stretches(start_mono, end_mono, None, ()) if values
        )

    def readings(self, name: str, start_mono: float, end_mono: float) -> list[float]:
        """The numbers that one vital read strictly within a stretch; none of those beside it stands in."""
        found = []
        for series in self._of(None, (name,)):
            with self._lock:
                low, high = bisect.bisect_left(series.monos, start_mono), bisect.bisect_right(series.monos, end_mono)
                found += series.values[low:high]
        return _numbers(found)

    def temperature_rise_c(self, start_mono: float, end_mono: float, of: Collection[str] = ()) -> float | None:
        """The largest rise of a temperature, in kelvin; `None` where none can be told. See `vitals.rise`."""
        rises = [rise(_numbers(values)) for _, values in self._stretches(start_mono, end_mono, "temperature", of)]
        return max((risen for risen in rises if risen is not None), default=None)

    def throttled(self, start_mono: float, end_mono: float, of: Collection[str] = ()) -> tuple[str, ...] | None:
        """What slowed the chip down, in words; empty when nothing did, `None` when that cannot be told."""
        reasons: dict[str, None] = {}
        untold = not self.sees("throttle", of)
        for vital, values in self._stretches(start_mono, end_mono, "throttle", of):
            found = summary(vital, values) if values else None
            if found is None or (vital.kind == "counter" and found.increase is None):
                untold = True
            elif vital.kind == "counter":
                reasons |= {vital.word: None} if found.increase else {}
            else:
                reasons |= dict.fromkeys(found.seen)
        return None if untold and not reasons else tuple(reasons)

    def power_limited_share(self, start_mono: float, end_mono: float, of: Collection[str] = ()) -> float | None:
        """At what share of the readings a power limit held the chip back, 0 to 1; the highest of several chips.

        `None` where nothing tells of such limits.
        """
        shares = [
            sum(any(word.startswith(POWER_LIMIT) for word in words_of(value)) for value in values) / len(values)
            for vital, values in self._stretches(start_mono, end_mono, "throttle", of)
            if vital.kind == "words" and values
        ]
        return max(shares, default=None)

    def power_limits_w(self, start_mono: float, end_mono: float, of: Collection[str] = ()) -> dict[str, float]:
        """The lowest power limit in force by vital name, in watts."""
        stretches = self._stretches(start_mono, end_mono, "power_limit", of)
        return {vital.name: min(_numbers(values)) for vital, values in stretches if values}

    def swapped_mib(self, start_mono: float, end_mono: float) -> float | None:
        """Memory moved to and from the disk, in MiB; `None` when that cannot be told."""
        found = [
            summary(v, values) if values else None for v, values in self._stretches(start_mono, end_mono, "swap", ())
        ]
        moved = [part.increase for part in found if part is not None and part.increase is not None]
        return sum(moved) if moved and len(moved) == len(found) else None

    def others_on_gpu(
        self, start_mono: float, end_mono: float, own_pids: Collection[int], of: Collection[str] = ()
    ) -> tuple[str, ...] | None:
        """Names of programs that had a GPU open beside those given; `None` when the driver does not tell.

        Args:
            own_pids: process ids of the engine and of whatever else is meant to be there.
        """
        stretches = list(self._stretches(start_mono, end_mono, "programs", of))
        names = {
            name: None
            for _, values in stretches
            for value in values
            if isinstance(value, Mapping)
            for pid, name in value.items()
            if pid not in own_pids
        }
        untold = not stretches or any(not values for _, values in stretches)
        return None if untold and not names else tuple(names)

    def charging(self, start_mono: float, end_mono: float) -> bool | None:
        """Whether a battery took up energy; `None` when one that is there does not tell, `False` without a battery."""
        stretches = list(self._stretches(start_mono, end_mono, "charging", ()))
        if any(any(_numbers(values)) for _, values in stretches):
            return True
        told = all(values for _, values in stretches) and self._ready.is_set() and "battery" not in self.faults
        return False if told else None

    def _of(self, what: What | None, of: Collection[str]) -> Iterator[_Series]:
        with self._lock:
            every = list(self._series.values())
        for series in every:
            name = series.vital.name
            if what in (None, series.vital.what) and (
                not of or any(name == beginning or name.startswith(f"{beginning}.") for beginning in of)
            ):
                yield series

    def _stretches(
        self, start_mono: float, end_mono: float, what: What | None, of: Collection[str]
    ) -> Iterator[tuple[Vital, list[Value]]]:
        for series in self._of(what, of):
            with self._lock:
                values = series.stretch(start_mono, end_mono, SLACK_ROUNDS * self._period_s)
            yield series.vital, values

    def _run(self) -> None:
        self._hand = _Hand()
        alive = [series for series in self._found() if series.vital.read]
        due = time.monotonic()
        turn, wanted = 0, True
        while not self._stop.is_set():
            alive = [s for s in alive if not (wanted or turn % s.vital.every == 0) or self._read(s)]
            self._ready.set()
            if not wanted or turn == 0:
                turn += 1
                due = max(due + self._period_s, time.monotonic())
            wanted = self._wake.wait(max(0.0, due - time.monotonic()))
            self._wake.clear()
        for close in dict.fromkeys(series.vital.close for series in self._of(None, ())):
            if close:
                self._safely("closing", close, STUCK_S)
        self._hand.let_go()
        self._ready.set()

    def _found(self) -> list[_Series]:
        """The vitals to read."""
        vitals: list[Vital] = list(self._given or ())
        if self._given is None:
            for name, platform in platforms().items():
                if self._stop.is_set():
                    break
                if isinstance(platform, discovery.Broken):
                    self._drop(name, f"cannot be loaded: {platform.cause}")
                    continue
                found = self._safely(name, platform.find, FINDING_S)
                vitals += found if isinstance(found, list | tuple) else ()
        with self._lock:
            found_series = {vital.name: _Series(vital) for vital in vitals}
            self._series |= found_series
        return list(found_series.values())

    def _read(self, series: _Series) -> bool:
        """Read a vital once; False when it has just been dropped."""
        vital = series.vital
        before = time.monotonic()
        try:
            value: object = self._hand.call(partial(_call, vital), STUCK_S)
        except _Stuck as stuck:
            self._hand = _Hand()
            self._drop(vital.name, str(stuck))
            return False
        except Exception as error:  # whatever a sensor does, it costs no more than itself
            return self._failed(series, _said(error), lasting=not getattr(error, "passing", True))
        mono = (before + time.monotonic()) / 2
        if value is None:
            return True
        if not isinstance(value, int | float | frozenset | Mapping) or not believable(vital, value):
            return self._failed(series, f"gives {value} {vital.unit}, which cannot be", lasting=False)
        with self._lock:
            series.monos.append(mono)
            series.values.append(value)
            series.failed = 0
        return True

    def _failed(self, series: _Series, reason: str, *, lasting: bool) -> bool:
        series.failed += 1
        if not lasting and series.failed < FAILURES:
            return True
        self._drop(series.vital.name, reason)
        return False

    def _safely(self, name: str, function: Callable[[], object], timeout_s: float) -> object:
        """What a function returns, or `None` and a fault under this name."""
        try:
            return self._hand.call(function, timeout_s)
        except _Stuck as stuck:
            self._hand = _Hand()
            self._drop(name, str(stuck))
        except Exception as error:  # one platform that breaks must not take the others with it
            self._drop(name, _said(error))
        return None

    def _drop(self, name: str, reason: str) -> None:
        with self._lock:
            self._faults[name] = reason


def _call(vital: Vital) -> Value | None:
    return vital.read() if vital.read else None


def _numbers(values: Iterable[Value]) -> list[float]:
    return [float(value) for value in values if isinstance(value, int | float)]


def _said(error: Exception) -> str:
    return str(error) if hasattr(error, "passing") else f"{type(error).__name__}: {error}"
