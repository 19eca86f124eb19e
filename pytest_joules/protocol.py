"""Doing it: a suite measured once on this machine, window by window, each kept on the disk as soon as it closes.

What is measured, from which instant to which: a fresh server is started for every condition of every pass, warmed up exactly as
the suite says, then N requests are released at one instant. The window runs from just before the first request is sent to
the last answer received, over as many such rounds as the suite asks for. Loading and warm-up are outside it.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import filelock
import psutil

from pytest_joules import gates, machine, schedule, store
from pytest_joules.engines import Counters, Engine, Round, Server
from pytest_joules.errors import Busy, EngineError, JoulesError, MeterFrozen, UsageError
from pytest_joules.meters.estimate import busy_cpu_s
from pytest_joules.meters.sampler import Power
from pytest_joules.metrics import energy_per_token_mj
from pytest_joules.models import ModelFile
from pytest_joules.reading import Reading, checks
from pytest_joules.records import Gate, IdleBaseline, MeterRecord, RequestRecord, Role, Run, Window
from pytest_joules.response import LEAST_RESPONSE, Response
from pytest_joules.schedule import Step
from pytest_joules.suite import Setting, Suite
from pytest_joules.sweep import label
from pytest_joules.workload.prompts import text_of

AVERAGING_WINDOWS = 20
"""A window is at least this many averaging times of the sensor long, so that its lag cannot bend the curve."""

_PROMPT_ROUNDS = 4
"""Rounds for which distinct prompts are made; after that they come round again, which an unused cache cannot notice."""

_LOAD_STEP_S, _LOAD_STEP_REFRESHES = 2.0, 10
"""Length of the load step that shows whether the meter follows: seconds, and refreshes of the sensor at least."""

_SETTLE_S = 0.5
"""Rest between a server's start and the idle baseline."""


class ServerFactory(Protocol):
    """What starts a server for a setting."""

    def __call__(
        self, setting: Setting, *, ready_timeout_s: float = ..., request_timeout_s: float = ...
    ) -> AbstractContextManager[Server]:
        """A server that is stopped and reaped at the end of the block."""
        ...


class Warm(Protocol):
    """What runs a warm-up; `warm` is the one that comes with the package."""

    def __call__(
        self, server: Server, seconds: float = ..., *, tokens: int | None = ..., prompts: Sequence[Sequence[int]] | None = ...,
        answer_tokens: int = ...,
    ) -> float:  # fmt: skip
        """Warm up and return the seconds it took."""
        ...


class Progress(Protocol):
    """Who watches. Called from the measuring thread; must return at once."""

    def begin(self, suite: Suite, steps: Sequence[Step]) -> None:
        """The plan, before anything runs."""
        ...

    def doing(self, index: int, step: Step, what: str, power_w: float | None) -> None:
        """What is going on in the window of this index."""
        ...

    def done(self, index: int, window: Window) -> None:
        """A window has closed."""
        ...

    def end(self) -> None:
        """Nothing more will come."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Everything a campaign needs beside the suite.

    Attributes:
        model_server: starts a server for a setting.
        warm: runs the warm-up of a setting on its server.
        power: the meter, being sampled.
        models: model file by (name, format).
        engines: engine by name.
        provenance: what git showed of the predictions.
        deviations: what is already known to differ from what the suite asks.
    """

    model_server: ServerFactory
    warm: Warm
    power: Power
    store: store.Store
    machine_slug: str
    models: Mapping[tuple[str, str | None], ModelFile]
    engines: Mapping[str, Engine]
    progress: Progress
    provenance: Mapping[str, Any] = field(default_factory=dict)
    deviations: tuple[str, ...] = ()


def warm(
    server: Server,
    seconds: float = 30.0,
    *,
    tokens: int | None = None,
    prompts: Sequence[Sequence[int]] | None = None,
    answer_tokens: int = 64,
) -> float:
    """Work at the server's own batch until `seconds` have passed, or one round of `tokens`. Returns the seconds it took.

    It is fixed by the suite and never ends early because things look stable: two runs must warm up alike.
    """
    batch = prompts or server.prompts(text_of("short"), server.slots)
    start = time.monotonic()
    if tokens is not None:
        server.run_round(batch, tokens)
    else:
        while time.monotonic() - start < seconds:
            server.run_round(batch, answer_tokens)
    return time.monotonic() - start


@contextlib.contextmanager
def machine_lock(what: str, folder: Path | None = None) -> Iterator[None]:
    """Hold this machine for one measurement: two at once would measure each other.

    Raises:
        Busy: another measurement of ours holds it.
    """
    # One place for all users; the temporary folder can be each user's own.
    shared = Path("/tmp") if os.name == "posix" else Path(tempfile.gettempdir())  # noqa: S108
    place = folder or Path(os.environ.get("JOULES_LOCK_DIR") or shared)
    lock = filelock.FileLock(place / "pytest-joules.lock", mode=0o666)
    holder = place / "pytest-joules.lock.holder"
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        held_by = holder.read_text(errors="replace") if holder.exists() else "another run"
        raise Busy(f"this machine is being measured already ({held_by}); wait for it to end, then run again") from None
    except OSError as error:
        raise Busy(f"the lock {lock.lock_file} cannot be taken: {error}") from None
    try:
        with contextlib.suppress(OSError):
            holder.write_text(what)
        yield
    finally:
        with contextlib.suppress(OSError):
            holder.unlink()
        lock.release()


def measure(suite: Suite, bench: Bench) -> store.StoredRun:
    """Measure every condition of a suite in every pass, and keep the run.

    Raises:
        EngineError: no server could be started for the first conditions; nothing was measured.
        MeterError: the meter died and could not be opened again; closed windows are in the journal.
    """
    return _Campaign(suite, bench).run()


class _Campaign:
    """One run of a suite: its plan, its journal and what has been measured so far."""

    def __init__(self, suite: Suite, bench: Bench) -> None:
        self.suite, self.bench = suite, bench
        protocol = suite.protocol
        self.steps = schedule.plan(
            suite.conditions, protocol.passes, protocol.order, control=protocol.control_repeat, seed=protocol.seed
        )
        self.windows: list[Window] = []
        self.deviations = list(bench.deviations)
        self.failed: set[str] = set()
        self.engine_facts: dict[str, Any] = {}
        averaging_s = max((rail.averaging_s or 0.0 for rail in bench.power.chosen.rails), default=0.0)
        self.least_s = max(protocol.min_window_s, AVERAGING_WINDOWS * averaging_s)
        self.meter_gate: Gate | None = None

    def run(self) -> store.StoredRun:
        suite, bench = self.suite, self.bench
        run_id, started = store.new_run_id(), store.utc_now()
        begun_mono = time.monotonic()
        counters = {rail.name for rail in bench.power.chosen.every_rail if rail.kind == "counter"}
        self.engine_facts = {name: dict(engine.facts()) for name, engine in bench.engines.items()}
        before = machine.power_state()
        busy = machine.heavy_processes()
        header = {"suite": suite.record(), "machine": machine.describe().record(), "engines": self.engine_facts}
        try:
            self.journal = bench.store.journal(bench.machine_slug, suite.name, run_id, header, counters)
        except OSError as error:
            raise UsageError(
                f"the results folder {bench.store.folder} cannot be written ({error.strerror}); name another with --joules-results"
            ) from None
        bench.progress.begin(suite, self.steps)
        kept = False
        try:
            for index, step in enumerate(self.steps):
                self._step(index, step)
            end_mono = time.monotonic()
            run = Run(
                run_id=run_id,
                started_utc=store.utc_label(started),
                finished_utc=store.utc_label(store.utc_now()),
                complete=True,
                suite=suite.record(),
                suite_name=suite.name,
                axes=suite.axes,
                conditions=suite.conditions,
                passes=suite.protocol.passes,
                order=suite.protocol.order,
                machine=machine.describe().record(),
                machine_slug=bench.machine_slug,
                models=tuple(
                    {"name": name, "format": form, **model.record()} for (name, form), model in bench.models.items()
                ),
                engine=self.engine_facts,
                meter=self._meter_record(begun_mono, end_mono),
                windows=tuple(self.windows),
                idle=self._idle(),
                gates=(*self._run_gates(), _load_gate(busy), _supply_gate(before, machine.power_state())),
                deviations=tuple(dict.fromkeys(self.deviations)),
                provenance=bench.provenance,
                versions=store.installed_versions(),
                samples_file=f"{run_id}.samples.jsonl.gz",
            )
            stored = bench.store.write(run, bench.power.samples(begun_mono, end_mono + bench.power.margin_s))
            kept = True
            return stored
        except BaseException as error:
            with contextlib.suppress(OSError):
                self.journal.note("cut short", reason=f"{type(error).__name__}: {error}", windows=len(self.windows))
            if isinstance(error, JoulesError) and self._closed:
                windows = "1 closed window is" if self._closed == 1 else f"{self._closed} closed windows are"
                error.add_note(f"{windows} kept in {self.journal.path.name}")
            raise
        finally:
            # A journal without a window of the suite holds nothing that anyone could miss.
            self.journal.close(remove=kept or not self._closed)
            bench.progress.end()

    @property
    def _closed(self) -> int:
        """Windows of the suite that came to their end."""
        return sum(window.role == "measured" and not window.failure for window in self.windows)

    def _step(self, index: int, step: Step) -> None:
        """One condition on a fresh server; what goes wrong voids its window and nothing else."""
        name = label(step.condition)
        if name in self.failed:
            self._close(index, self._voided(index, step, "not run again after it failed"))
            return
        setting = self.suite.setting(step.condition)
        self.bench.progress.doing(index, step, "starting the server", None)
        started = False
        try:
            limits = self.suite.protocol
            with self.bench.model_server(
                setting, ready_timeout_s=limits.ready_timeout_s, request_timeout_s=limits.request_timeout_s
            ) as server:
                started = True
                self.deviations += server.deviations
                if index == 0:
                    self._preflight(index, step, setting, server)
                window = self._window(index, step, setting, server)
                if index == len(self.steps) - 1:
                    self._idle_window(index, step, "idle_after")
        except EngineError as error:
            self.failed.add(name)
            window = self._voided(index, step, str(error))
            if not started:
                self._give_up_if_hopeless(error)
        self._close(index, window)
        if self.bench.power.failure:
            self.bench.progress.doing(index, step, "opening the meter again", None)
            self.bench.power.restart()

    def _give_up_if_hopeless(self, error: EngineError) -> None:
        """Two conditions that cannot even start, and none that could: no later one will do better."""
        if not any(w.role == "measured" and w.outcome != "void" for w in self.windows) and len(self.failed) >= min(
            2, len(self.suite.conditions)
        ):
            raise EngineError(f"nothing could be measured: {error}")

    def _close(self, index: int, window: Window) -> None:
        self._keep(window)
        self.bench.progress.done(index, window)

    def _keep(self, window: Window) -> None:
        """On the disk before anything else happens."""
        self.windows.append(window)
        margin = self.bench.power.margin_s
        self.journal.window(window, self.bench.power.samples(window.start_mono - margin, window.end_mono + margin))

    def _window(self, index: int, step: Step, setting: Setting, server: Server) -> Window:
        """Warm up, then measure from the first request sent to the last answer received."""
        protocol, slots = self.suite.protocol, setting.server.parallel
        progress, power = self.bench.progress, self.bench.power
        answer_tokens = setting.request.answer_tokens
        text = text_of(setting.request.prompt)
        pool = server.prompts(text, slots * _PROMPT_ROUNDS, identical=setting.request.identical)
        batches = [pool[i : i + slots] for i in range(0, len(pool), slots)]
        progress.doing(index, step, "warming up", power.latest_power_w())
        warmed_s = self.bench.warm(
            server,
            protocol.warmup_seconds,
            tokens=protocol.warmup_tokens,
            prompts=batches[0],
            answer_tokens=answer_tokens,
        )
        started_utc = store.utc_label(store.utc_now())
        before, cpu = server.counters(), _CpuTimes.now(server.pids)
        rounds: list[Round] = []
        while not self._enough(rounds):
            progress.doing(index, step, "measuring", power.latest_power_w())
            rounds.append(server.run_round(batches[len(rounds) % len(batches)], answer_tokens, len(rounds)))
        cpu = _CpuTimes.now(server.pids).since(cpu)
        after = server.counters()
        start, end = rounds[0].start_mono, rounds[-1].end_mono
        reading = power.measure(start, end)
        answers = tuple(_from_window_start(answer, r.start_mono - start) for r in rounds for answer in r.answers)
        found = self._window_gates(setting, answers, len(rounds), reading, before, after, cpu)
        return Window(
            condition=step.condition,
            pass_index=step.pass_index,
            sequence=index,
            role=step.role,
            outcome=gates.outcome(found),
            started_utc=started_utc,
            start_mono=start,
            end_mono=end,
            tokens=sum(a.predicted_n for a in answers),
            prompt_tokens=sum(a.prompt_n for a in answers),
            slots=slots,
            rounds=len(rounds),
            energy_j=reading.energy_j,
            uncertainty_j=reading.uncertainty_j,
            calibration_j=reading.calibration_j,
            rails=reading.rails,
            gates=tuple(found),
            requests=answers,
            engine={**server.facts, "warmup_s": round(warmed_s, 3)},
        )

    def _enough(self, rounds: Sequence[Round]) -> bool:
        if self.suite.protocol.rounds is not None:
            return len(rounds) >= self.suite.protocol.rounds
        return bool(rounds) and rounds[-1].end_mono - rounds[0].start_mono >= self.least_s

    def _window_gates(
        self, setting: Setting, answers: Sequence[RequestRecord], rounds: int, reading: Reading,
        before: Counters | None, after: Counters | None, cpu: _CpuTimes,
    ) -> list[Gate]:  # fmt: skip
        limits, require, slots = self.suite.gates, self.suite.require, setting.server.parallel
        steps = after.decode_steps - before.decode_steps if before and after else None
        busy = after.busy_slots - before.busy_slots if before and after else 0.0
        found = [
            gates.requests_complete(answers, slots * rounds, setting.request.answer_tokens),
            gates.prompt_cache(answers, wanted=setting.request.cache_prompt),
            gates.achieved_batch(busy, steps, slots, limits.batch_void_below, limits.batch_flag_below),
            gates.client_cost(cpu.ours_s, cpu.machine_s, limits.client_cpu_flag_above),
            gates.other_load(cpu.others_cores, limits.other_load_flag_above),
        ]
        if setting.draft.draft_model:
            found.append(gates.drafted(answers))
        averaging_s = {rail.name: rail.averaging_s for rail in self.bench.power.chosen.every_rail}
        return found + checks(
            reading, limits, averaging_s, min_samples=require.min_samples, thin_voids=require.thin == "void"
        )

    def _voided(self, index: int, step: Step, failure: str) -> Window:
        now = time.monotonic()
        return Window(
            condition=step.condition, pass_index=step.pass_index, sequence=index, role=step.role, outcome="void",
            started_utc=store.utc_label(store.utc_now()), start_mono=now, end_mono=now, failure=failure,
        )  # fmt: skip

    def _preflight(self, index: int, step: Step, setting: Setting, server: Server) -> None:
        """Idle baseline, then a step to full load: shows that the meter follows the chip, and how far behind.

        Raises:
            MeterFrozen: a rail that counts did not move.
        """
        idle = self._idle_window(index, step, "idle_before")
        if idle is None:
            return
        power, request = self.bench.power, setting.request
        self.bench.progress.doing(index, step, "load step", power.latest_power_w())
        refresh_s = max(rail.refresh_s or rail.averaging_s or 0.0 for rail in power.chosen.rails)
        seconds = max(_LOAD_STEP_S, _LOAD_STEP_REFRESHES * max(refresh_s, 1.0 / power.rate_hz))
        prompts = server.prompts(text_of(request.prompt), setting.server.parallel)
        started_utc, start = store.utc_label(store.utc_now()), time.monotonic()
        cpu = _CpuTimes.now(server.pids)
        self.bench.warm(server, seconds, prompts=prompts, answer_tokens=request.answer_tokens)
        cpu = _CpuTimes.now(server.pids).since(cpu)
        end = time.monotonic()
        reading = power.measure(start, end)
        window = _silent_window("load_step", index, step, started_utc, reading)
        self._keep(window)
        responses = power.respond((idle.start_mono, idle.end_mono), (start, end))
        power.lags_s |= {response.rail: response.lag_s for response in responses if response.lag_s}
        self.meter_gate = self._follows(responses, cpu.others_cores)

    def _follows(self, responses: Sequence[Response], others_cores: float | None) -> Gate:
        """Whether the rails that count rose together when the load came.

        Raises:
            MeterFrozen: they did not, and nothing else kept the machine busy meanwhile.
        """
        idle_w, load_w = (
            sum(p for p in powers if p is not None)
            for powers in ([r.idle_w for r in responses], [r.load_w for r in responses])
        )
        name = self.bench.power.chosen.name
        gate = gates.meter_response(
            idle_w, load_w, LEAST_RESPONSE, others_cores, self.suite.gates.other_load_flag_above
        )
        if gate.outcome == "void":
            raise MeterFrozen(
                f"meter {name} does not follow the chip: {gate}", "name another source with --joules-meter"
            )
        return gate

    def _idle_window(self, index: int, step: Step, role: Role) -> Window | None:
        """Power with the server loaded and silent; `None` when the suite leaves it out."""
        seconds = self.suite.protocol.idle_s
        if seconds <= 0:
            return None
        self.bench.progress.doing(index, step, "idle baseline", self.bench.power.latest_power_w())
        time.sleep(_SETTLE_S)
        started_utc, start = store.utc_label(store.utc_now()), time.monotonic()
        time.sleep(seconds)
        window = _silent_window(role, index, step, started_utc, self.bench.power.measure(start, time.monotonic()))
        self._keep(window)
        return window

    def _idle(self) -> IdleBaseline | None:
        """Mean and spread of the power in steps of one second over both idle windows."""
        idle = [w for w in self.windows if w.role in ("idle_before", "idle_after") and w.energy_j is not None]
        powers = []
        for window in idle:
            steps = max(1, int(window.window_s))
            for i in range(steps):
                a = window.start_mono + window.window_s * i / steps
                reading = self.bench.power.measure(a, a + window.window_s / steps)
                if reading.power_w is not None:
                    powers.append(reading.power_w)
        if len(powers) < 2:
            return None
        return IdleBaseline(
            mean_w=statistics.fmean(powers), sd_w=statistics.stdev(powers), seconds=sum(w.window_s for w in idle)
        )

    def _run_gates(self) -> list[Gate]:
        by_condition: dict[str, list[float]] = {}
        for window in self.windows:
            figure = energy_per_token_mj(window)
            if window.role == "measured" and figure is not None:
                by_condition.setdefault(label(window.condition), []).append(figure)
        whole = {name: figures for name, figures in by_condition.items() if len(figures) == self.suite.protocol.passes}
        spreads = [(name, (max(f) - min(f)) / statistics.fmean(f)) for name, f in whole.items() if len(f) > 1]
        found = [gates.pass_spread(spreads, self.suite.gates.spread_flag_above)]
        found += [self.meter_gate] if self.meter_gate else []
        found += self._outer_meters()
        if self.suite.protocol.passes == 2:
            found.append(gates.run_order([f[0] for f in whole.values()], [f[1] for f in whole.values()]))
        return found

    def _outer_meters(self) -> list[Gate]:
        """Meters further out, recorded beside the one that counts, against it."""
        chosen = self.bench.power.chosen
        found = []
        for meter in chosen.beside:
            outer = [rail.name for rail in chosen.part(meter).rails]
            pairs = []
            for window in self.windows:
                beside = [rail.energy_j for rail in window.rails if rail.rail in outer and rail.energy_j is not None]
                if window.energy_j is not None and len(beside) == len(outer):
                    pairs.append((window.energy_j / window.window_s, sum(beside) / window.window_s))
            found.append(gates.wall_slope([p[0] for p in pairs], [p[1] for p in pairs], chosen.name, meter.name))
        return found

    def _meter_record(self, begun_mono: float, end_mono: float) -> MeterRecord:
        chosen = self.bench.power.chosen
        return MeterRecord(
            name=chosen.name, basis=chosen.basis, scope=chosen.scope, covers=chosen.covers, rate_hz=self.bench.power.rate_hz,
            rails=chosen.every_rail, chosen_because=chosen.because, notes=chosen.notes, lags_s=self.bench.power.lags_s,
            sampling=self.bench.power.sampling(begun_mono, end_mono),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _CpuTimes:
    """CPU seconds so far, or over a stretch: ours, the engine's, and the whole machine's."""

    mono: float
    ours_s: float
    engine_s: float | None
    machine_s: float

    @classmethod
    def now(cls, engine_pids: frozenset[int]) -> _CpuTimes:
        """As of now. `engine_s` is `None` where an engine's process cannot be seen."""
        try:
            engine_s = sum(sum(psutil.Process(pid).cpu_times()[:4]) for pid in engine_pids)
        except psutil.Error:
            engine_s = None
        return cls(time.monotonic(), time.process_time(), engine_s, busy_cpu_s())

    def since(self, earlier: _CpuTimes) -> _CpuTimes:
        """What was spent between two moments."""
        engine_s = None if self.engine_s is None or earlier.engine_s is None else self.engine_s - earlier.engine_s
        return _CpuTimes(
            self.mono - earlier.mono, self.ours_s - earlier.ours_s, engine_s, self.machine_s - earlier.machine_s
        )

    @property
    def others_cores(self) -> float | None:
        """Cores kept busy by anything else over the stretch."""
        return None if self.engine_s is None else (self.machine_s - self.ours_s - self.engine_s) / self.mono


def _silent_window(role: Role, index: int, step: Step, started_utc: str, reading: Reading) -> Window:
    """A window without requests of its own: idle, or the load step."""
    return Window(
        condition={}, pass_index=step.pass_index, sequence=index, role=role, started_utc=started_utc,
        start_mono=reading.start_mono, end_mono=reading.end_mono, outcome="void" if reading.energy_j is None else "measured",
        energy_j=reading.energy_j, uncertainty_j=reading.uncertainty_j, calibration_j=reading.calibration_j, rails=reading.rails,
        failure=reading.reason,
    )  # fmt: skip


def _from_window_start(answer: RequestRecord, offset_s: float) -> RequestRecord:
    """Times of an answer counted from the window's start instead of its round's."""
    return replace(answer, sent_s=round(answer.sent_s + offset_s, 6), received_s=round(answer.received_s + offset_s, 6))


def _load_gate(busy: Sequence[str]) -> Gate:
    return Gate(
        name="other load at the start",
        outcome="flag" if busy else "pass",
        value=", ".join(busy) or "none",
        limit="10 % of a core",
        remedy="end these programs and measure again" if busy else "",
    )


def _supply_gate(before: machine.PowerState, after: machine.PowerState) -> Gate:
    """A machine that changed its power source is two machines."""
    changed = before.on_ac != after.on_ac or before.low_power_mode != after.low_power_mode
    shown = {True: "mains", False: "battery", None: "mains or unknown"}[after.on_ac]
    low = ", low-power mode" if after.low_power_mode else ""
    return Gate(
        name="power source",
        outcome="void" if changed else "flag" if after.low_power_mode else "pass",
        value=f"changed during the run, now {shown}{low}" if changed else f"{shown}{low}",
        limit="the same throughout, no low-power mode",
        remedy="measure again on one power source" if changed or after.low_power_mode else "",
    )
