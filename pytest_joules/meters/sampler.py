"""Reading a meter all the time, and the energy of any stretch of that time."""

from __future__ import annotations

import bisect
import contextlib
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from pytest_joules import gates, trace
from pytest_joules.errors import MeterError, Void
from pytest_joules.meters import Chosen
from pytest_joules.reading import Reading, checks, evenness, group, total
from pytest_joules.records import Gate, Sample, Sampling
from pytest_joules.response import Response, step_response

STUCK_AFTER_S = 10.0
"""A meter that gives no reading for this long is taken for dead."""


LEAST_UPDATES = 5
"""Distinct sensor updates that a window of a block of code should hold."""

OF_A_BLOCK = gates.Remedies(
    longer="measure a longer block, or the same work several times",
    readings="see what the source gives: 'joules meters'",
)


class Sampler:
    """A thread that reads a meter until stopped and keeps every sample.

    The time of each reading is taken by the reader around the read itself, so a delayed thread spreads the
    samples but never misdates them.
    """

    def __init__(self, chosen: Chosen, rate_hz: float) -> None:
        self._chosen, self._rate_hz = chosen, rate_hz
        self._samples: list[Sample] = []
        self._latest_mono: list[float] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._news = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self.failure: str = ""

    def start(self, timeout_s: float = STUCK_AFTER_S) -> None:
        """Open the meter and wait for its first reading.

        Raises:
            MeterError: it cannot be opened, or no reading came within `timeout_s`.
        """
        self._stop.clear()
        self.failure = ""
        self._reader = self._chosen.meter.open(self._rate_hz)
        self._thread = threading.Thread(target=self._run, name=f"joules-{self._chosen.meter.name}", daemon=True)
        self._thread.start()
        if not self.wait_past(time.monotonic(), timeout_s):
            self.stop()
            cause = self.failure or "; ".join(self.faults.values()) or f"no reading within {timeout_s:.0f} s"
            raise MeterError(f"meter {self._chosen.meter.name}: {cause}", "run 'joules meters' to see what it gives")

    def stop(self) -> None:
        """Stop reading and release the meter. Does nothing when it is not running."""
        if self._thread is None:
            return
        self._stop.set()
        self._reader.close()
        self._thread.join(timeout=2.0)
        self._thread = None

    @property
    def faults(self) -> Mapping[str, str]:
        """Why a rail gives nothing just now, by rail name, as far as the source says."""
        said: Mapping[str, str] = getattr(self._reader, "faults", {})
        return said

    def samples(self, start_mono: float, end_mono: float) -> list[Sample]:
        """The samples taken in `[start_mono, end_mono]`, in order of arrival."""
        with self._lock:
            # Every sample before the first that brought the clock past the start is older than the start.
            recent = self._samples[bisect.bisect_left(self._latest_mono, start_mono) :]
        return [s for s in recent if start_mono <= s.mono <= end_mono]

    def latest_power_w(self) -> float | None:
        """Power over the last second or so, summed over the rails that count; `None` before two readings."""
        total = 0.0
        now = time.monotonic()
        recent = self.samples(now - max(1.0, 3.0 / self._rate_hz), now)
        for rail in self._chosen.rails:
            mine = [s for s in recent if s.rail == rail.name and math.isfinite(s.value)]
            if len(mine) < 2:
                return None
            if rail.kind == "counter":
                total += (mine[-1].value - mine[0].value) / (mine[-1].mono - mine[0].mono)
            else:
                total += sum(s.value for s in mine) / len(mine)
        return total

    def wait_past(self, mono: float, timeout_s: float) -> bool:
        """Wait until every rail that counts has a reading after `mono`; False when time ran out or the meter died."""
        names = {rail.name for rail in self._chosen.rails}
        deadline = time.monotonic() + timeout_s
        with self._news:
            while True:
                recent = self._samples[-8 * len(names) - 8 :]
                newest = {s.rail: s.mono for s in recent if math.isfinite(s.value)}
                if all(newest.get(name, -np.inf) > mono for name in names):
                    return True
                left = deadline - time.monotonic()
                if left <= 0 or self.failure:
                    return False
                self._news.wait(min(left, 0.5))

    def _run(self) -> None:
        reader = self._reader
        interval = reader.interval_s
        due = time.monotonic()
        while not self._stop.is_set():
            try:
                fresh = reader.read()
            except Exception as error:  # nothing may leave this thread: the window it spoils is told why
                if not self._stop.is_set():
                    with self._news:
                        self.failure = (
                            str(error) if isinstance(error, MeterError) else f"{type(error).__name__}: {error}"
                        )
                        self._news.notify_all()
                return
            self._take(fresh)
            if interval is not None:
                due += interval
                delay = due - time.monotonic()
                if delay > 0:
                    self._stop.wait(delay)
                else:
                    due = time.monotonic()

    def _take(self, fresh: Sequence[Sample]) -> None:
        """Keep what was read, and for each sample the newest time seen up to it."""
        with self._news:
            newest = self._latest_mono[-1] if self._latest_mono else -math.inf
            for sample in fresh:
                newest = max(newest, sample.mono)
                self._samples.append(sample)
                self._latest_mono.append(newest)
            self._news.notify_all()


class PowerWindow:
    """What `power.window()` yields; its figures can be read once the block has been left.

    Attributes:
        chosen: the meter, with scope and basis.
        gates: the checks on the window, once it is closed.
    """

    def __init__(self, chosen: Chosen) -> None:
        self.chosen = chosen
        self.gates: tuple[Gate, ...] = ()
        self._reading: Reading | None = None

    def close(self, reading: Reading) -> None:
        """Set the figures and check them. Called by `Power.window`."""
        from pytest_joules.suite import GateLimits  # brings pydantic, for which a meter need not wait

        # Whoever measures a block of code knows how short it is: what that costs is told, and takes nothing away.
        limits = GateLimits(uncertainty_void_above=math.inf)
        averaging_s = {rail.name: rail.averaging_s for rail in self.chosen.every_rail}
        self.gates = tuple(
            checks(reading, limits, averaging_s, min_samples=LEAST_UPDATES, thin_voids=False, remedies=OF_A_BLOCK)
        )
        self._reading = reading

    @property
    def flags(self) -> tuple[str, ...]:
        """What speaks against the figures, each with what is allowed and what to do."""
        return tuple(str(gate) for gate in self.gates if gate.outcome != "pass")

    @property
    def reading(self) -> Reading:
        """Everything known about the window.

        Raises:
            Void: the block has not been left yet.
        """
        __tracebackhide__ = True
        if self._reading is None:
            raise Void("the power window is still open; read it after the with block")
        return self._reading

    @property
    def energy_j(self) -> float:
        """Joules over the block.

        Raises:
            Void: the meter's readings cannot carry the window.
        """
        __tracebackhide__ = True
        energy_j = self.reading.energy_j
        if energy_j is None or self._void:
            raise Void(f"no energy for this window: {self._void or self.reading.reason}")
        return energy_j

    @property
    def power_w(self) -> float:
        """Mean watts over the block."""
        __tracebackhide__ = True
        return self.energy_j / self.window_s

    @property
    def _void(self) -> str:
        """Why there is no energy; empty where there is."""
        return "; ".join(str(gate).removeprefix("energy: ") for gate in self.gates if gate.outcome == "void")

    @property
    def window_s(self) -> float:
        """Length of the block in seconds."""
        __tracebackhide__ = True
        return self.reading.end_mono - self.reading.start_mono

    def __repr__(self) -> str:
        by = f"{self.chosen.name}, {self.chosen.scope}, {self.chosen.basis}"
        if self._reading is None:
            return f"<power window, open, {by}>"
        if self._reading.energy_j is None or self._void:
            return f"<power window, void: {self._reading.reason or self._void}, {by}>"
        flagged = ", flagged" if self.flags else ""
        return f"<power window: {self.energy_j:.4g} J in {self.window_s:.3g} s, {by}{flagged}>"


class Power:
    """The power of this machine as one chosen meter sees it, sampled while the block is open.

    Attributes:
        lags_s: measured delay by rail name, taken into account by `measure`.
    """

    def __init__(self, chosen: Chosen, rate_hz: float) -> None:
        self.chosen = chosen
        self.rate_hz = rate_hz
        self.lags_s: dict[str, float] = {}
        self._samplers = [Sampler(chosen.part(meter), rate_hz) for meter in chosen.meters]

    def __enter__(self) -> Power:
        try:
            for sampler in self._samplers:
                sampler.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for sampler in self._samplers:
            sampler.stop()

    @property
    def _counted(self) -> list[Sampler]:
        """Those whose rails make up the energy; the others are only recorded."""
        return self._samplers[: len(self._samplers) - len(self.chosen.beside)]

    @property
    def failure(self) -> str:
        """Why a meter that counts stopped answering; empty while all of them work."""
        return "; ".join(sampler.failure for sampler in self._counted if sampler.failure)

    @property
    def margin_s(self) -> float:
        """How long to sample past a window's end so that its edge can be interpolated."""
        lags = [self.lags_s.get(rail.name, 0.0) for rail in self.chosen.rails]
        late = [
            (rail.refresh_s or 0.0) + (rail.averaging_s or 0.0) + lag
            for rail, lag in zip(self.chosen.rails, lags, strict=True)
        ]
        return 2.0 * max(1.0 / self.rate_hz, *late)

    def latest_power_w(self) -> float | None:
        """Power just now, for a person to look at."""
        powers = [sampler.latest_power_w() for sampler in self._counted]
        known = [power for power in powers if power is not None]
        return sum(known) if len(known) == len(powers) else None

    def samples(self, start_mono: float, end_mono: float) -> list[Sample]:
        """The raw samples of a stretch of time, for the record; in order of arrival within each meter."""
        return [sample for sampler in self._samplers for sample in sampler.samples(start_mono, end_mono)]

    def restart(self) -> None:
        """Open the meters that died again; what they gave before is kept."""
        for sampler in self._samplers:
            if sampler.failure:
                sampler.stop()
                sampler.start()

    def measure(self, start_mono: float, end_mono: float) -> Reading:
        """Energy of exactly `[start_mono, end_mono]`; waits for the margin after the end when need be."""
        self._wait_past(end_mono + self.margin_s)
        by_rail = self._arrays(start_mono, end_mono)
        rails = [
            trace.energy(rail, *by_rail[rail.name], start_mono, end_mono, self.lags_s.get(rail.name, 0.0))
            for rail in self.chosen.every_rail
        ]
        silent = "; ".join(fault for sampler in self._counted for fault in sampler.faults.values())
        causes = "; ".join(cause for cause in (self.failure, silent) if cause)
        pairs = [(rail.name, check.name) for rail, check in self.chosen.checks]
        return total(rails, [rail.name for rail in self.chosen.rails], start_mono, end_mono, causes, pairs)

    def _wait_past(self, mono: float) -> None:
        """Wait until every meter has spoken after `mono`, or has had time enough to."""
        deadline = mono + self.margin_s + STUCK_AFTER_S
        for sampler in self._samplers:
            sampler.wait_past(mono, max(0.0, deadline - time.monotonic()))

    def sampling(self, start_mono: float, end_mono: float) -> dict[str, Sampling]:
        """How evenly each meter was read over a stretch, by its name; without those read fewer than three times."""
        found = {}
        for meter, sampler in zip(self.chosen.meters, self._samplers, strict=True):
            monos = np.array([s.mono for s in sampler.samples(start_mono, end_mono) if s.rail == meter.rails[0].name])
            if len(monos) > 2:
                found[meter.name] = evenness(monos)
        return found

    def respond(self, idle: tuple[float, float], load: tuple[float, float]) -> list[Response]:
        """How the rails that count followed a step from an idle stretch to a loaded one."""
        self._wait_past(load[1])
        by_rail = self._arrays(idle[0], load[1])
        return [step_response(rail, *by_rail[rail.name], idle, load) for rail in self.chosen.rails]

    def _arrays(self, start_mono: float, end_mono: float) -> dict[str, tuple[trace.Floats, trace.Floats]]:
        """Samples of every rail over a stretch and its edges, as arrays; empty ones for a silent rail."""
        by_rail = group(self.samples(start_mono - 4 * self.margin_s, end_mono + 4 * self.margin_s))
        return {rail.name: by_rail.get(rail.name, (np.empty(0), np.empty(0))) for rail in self.chosen.every_rail}

    @contextlib.contextmanager
    def window(self) -> Iterator[PowerWindow]:
        """Measure the energy of a block of code.

        Example:
            with power.window() as w:
                work()
            assert w.energy_j < 200
        """
        opened = PowerWindow(self.chosen)
        self._wait_past(time.monotonic() - self.margin_s)
        start = time.monotonic()
        try:
            yield opened
        finally:
            opened.close(self.measure(start, time.monotonic()))
