"""One run of a suite: its plan, its journal, and what is left of an interrupted run."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pytest_joules import gates, knobs, ledger, machine, schedule, store
from pytest_joules.engines import Round, Server, cannot
from pytest_joules.errors import EngineError, JoulesError, MeterFrozen, UsageError
from pytest_joules.metrics import energy_per_token_mj
from pytest_joules.protocol.bench import Bench
from pytest_joules.protocol.forecast import advice, forecast, resolution
from pytest_joules.protocol.load import CpuTimes
from pytest_joules.protocol.run_gates import load_gate, run_gates, supply_gate
from pytest_joules.protocol.signals import Ended, ending_in_order
from pytest_joules.protocol.window import Windows, failed, prompts_of, silent
from pytest_joules.records import PREFILL_TOKENS, Gate, IdleBaseline, MeterRecord, Run, Window
from pytest_joules.response import LEAST_RESPONSE, Response
from pytest_joules.schedule import Step
from pytest_joules.suite import Setting, Suite
from pytest_joules.sweep import label
from pytest_joules.vitals import macmon
from pytest_joules.workload import questions

RANDOM_WEIGHTS = (
    "random weights: the speed is that of the shape, the energy is compared with no real weights', answers mean nothing"
)
"""What a reader of a run with the basis `synthetic` must know."""

LOAD_STEP_S, LOAD_STEP_REFRESHES = 2.0, 10
"""Length of the load step that shows whether the meter follows: seconds, and refreshes of the sensor at least."""


def measure(suite: Suite, bench: Bench) -> store.StoredRun:
    """Measure every condition of a suite in every pass, and keep the run; go on with `bench.resume` where there is one.

    Raises:
        UsageError: the interrupted run was of another boot, suite, model, engine or meter.
        EngineError: no server could be started for the first conditions; nothing was measured.
        MeterError: the meter died and could not be opened again; closed windows are in the journal.
        JoulesError: the results folder takes no more; closed windows are in the journal, if that is still there.
    """
    with ending_in_order():
        return _Campaign(suite, bench).run()


class _Campaign:
    """One run of a suite: its plan, its journal and what has been measured so far."""

    def __init__(self, suite: Suite, bench: Bench) -> None:
        self.suite, self.bench = suite, bench
        protocol = suite.protocol
        self.steps = schedule.plan(
            suite.conditions, protocol.passes, protocol.order, control=protocol.control_repeat, seed=protocol.seed
        )
        self.make = Windows(suite, bench)
        self.begun_mono = time.monotonic()
        self.deviations = list(bench.deviations)
        self.notes = [RANDOM_WEIGHTS] if bench.basis == "synthetic" else []
        self.failed: set[str] = set()
        self.unfit = self._unfit()
        self.gates: list[Gate] = []
        self.preflown = False
        self.facts = self._facts()
        self.run_id, self.started_utc = store.new_run_id(), store.utc_label(store.utc_now())
        self.windows: list[Window] = []
        if bench.resume is not None:
            self._take_up(bench.resume)

    def _unfit(self) -> dict[str, str]:
        """Conditions that their engine is not made for, each with the reason; the others are measured.

        Raises:
            EngineError: there are no others.
        """
        settings = {label(condition): self.suite.setting(condition) for condition in self.suite.conditions}
        reasons = {
            name: cannot(engine, setting)
            for name, setting in settings.items()
            if (engine := self.bench.engines.get(setting.engine)) is not None
        }
        found = {name: reason for name, reason in reasons.items() if reason}
        if len(found) == len(settings):
            raise EngineError(f"nothing can be measured: {'; '.join(dict.fromkeys(found.values()))}")
        return found

    def run(self) -> store.StoredRun:
        """Every step that is still to do, then the run."""
        suite, bench = self.suite, self.bench
        before = machine.power_state()
        busy = machine.heavy_processes()
        bench.store.tidy(bench.machine_slug, suite.name)
        ledgers = [bench.store.folder / bench.machine_slug / ledger.NAME, ledger.state_folder() / ledger.NAME]
        done = [index for index, step in enumerate(self.steps) if self._is_done(index, step)]
        kept = False
        outcome, reason = "cut short", ""
        self._open_journal()
        try:
            self._enter(ledgers, "resume" if bench.resume else "start", **self._about())
            for meter in bench.power.chosen.meters:
                macmon.attach(meter, bench.watch)
            bench.watch.start()
            bench.progress.begin(suite, self.steps, len(done))
            if text := resolution([len(questions.of(suite.setting(c), bench.questions)) for c in suite.conditions]):
                self.notes.append(text)
                bench.progress.say(text)
            for notice in (*bench.notices, *(f"{name} will be void: {reason}" for name, reason in self.unfit.items())):
                bench.progress.say(notice)
            self._tell_of_settings()
            todo = [(index, step) for index, step in enumerate(self.steps) if index not in done]
            if done and todo:
                self._bridge(done)
            last = next((index for index, step in reversed(todo) if label(step.condition) not in self.unfit), None)
            for index, step in todo:
                self._step(index, step, last=index == last)
            end_mono = time.monotonic()
            self.gates += [load_gate(busy), supply_gate(before, machine.power_state())]
            stored = self._write(end_mono)
            kept, outcome = True, "complete"
            return stored
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}"
            with contextlib.suppress(OSError):
                self.journal.note("cut short", reason=reason, windows=len(self.windows))
            if self._closed:
                error.add_note(self._what_is_left())
            if isinstance(error, Ended):
                error.add_note(str(error))
            raise
        finally:
            bench.watch.stop()
            # A journal without a window of the suite holds nothing that anyone could miss.
            self.journal.close(remove=kept or not self._closed)
            self._enter(ledgers, "end", run_id=self.run_id, outcome=outcome, reason=reason, windows=self._closed)
            bench.progress.end()

    # What is kept ---------------------------------------------------------------------------------------------------

    def _facts(self) -> dict[str, Any]:
        """What a run that is taken up again must agree with."""
        bench = self.bench
        return {
            "boot": machine.boot_id(),
            "suite": self.suite.record(),
            "engines": {name: dict(engine.facts()) for name, engine in bench.engines.items()},
            "models": [{"name": name, "format": form, **m.record()} for (name, form), m in bench.models.items()],
            "meter": {
                "name": bench.power.chosen.name,
                "basis": bench.basis,
                "scope": bench.power.chosen.scope,
                "covers": list(bench.power.chosen.covers),
                "rails": [rail.name for rail in bench.power.chosen.rails],
            },
            **({"questions": [found.record() for found in bench.questions.values()]} if bench.questions else {}),
        }

    def _about(self) -> dict[str, Any]:
        """The ledger's record of what is about to be measured."""
        provenance = self.bench.provenance
        return {
            "run_id": self.run_id,
            "suite": self.suite.name,
            "machine": self.bench.machine_slug,
            "models": {str(model["name"]): model.get("sha256", "") for model in self.facts["models"]},
            "conditions": [dict(condition) for condition in self.suite.conditions],
            "passes": self.suite.protocol.passes,
            "head": provenance.get("head", ""),
            "predictions": dict(provenance.get("predictions", {})),
        }

    def _enter(self, ledgers: Sequence[Any], event: str, **facts: Any) -> None:
        """Into the ledgers, on the disk before anything else happens."""
        # As plain values no path of a home folder is among them: a reason may name a file.
        record = store.plain({"event": event, "utc": store.utc_label(store.utc_now()), **facts})
        said = ledger.append(ledgers, record)
        self.notes += [f"the attempt could not be entered into {fault}" for fault in said]

    def _open_journal(self) -> None:
        counters = {rail.name for rail in self.bench.power.chosen.every_rail if rail.kind == "counter"}
        try:
            if self.bench.resume is not None:
                self.journal = store.Journal(self.bench.resume.path, counters, None)
                self.journal.note("resumed", utc=store.utc_label(store.utc_now()), windows=len(self.windows))
                return
            header = {
                **self.facts,
                "started_utc": self.started_utc,
                "machine": machine.describe().record(),
                "provenance": dict(self.bench.provenance),
            }
            self.journal = self.bench.store.journal(
                self.bench.machine_slug, self.suite.name, self.run_id, header, counters
            )
        except OSError as error:
            raise UsageError(
                f"the results folder {self.bench.store.folder} cannot be written ({error.strerror}); name another with --joules-results"
            ) from None

    def _keep(self, window: Window) -> None:
        """On the disk before anything else happens.

        Raises:
            JoulesError: the disk takes no more.
        """
        margin = self.bench.power.margin_s
        samples = self.bench.power.samples(window.start_mono - margin, window.end_mono + margin)
        try:
            self.journal.window(window, samples)
        except OSError as error:
            raise JoulesError(f"the last window is lost: {store.unwritten(self.journal.path, error)}") from None
        self.windows.append(window)
        if self.journal.made_anew:
            self.journal.made_anew = False
            said = f"{self.journal.path.name} was taken away while it was written; it was made anew with all it held"
            self.notes.append(said)
            self.bench.progress.say(said)

    def _write(self, end_mono: float) -> store.StoredRun:
        """The run, whole.

        Raises:
            JoulesError: the disk takes no more.
        """
        try:
            return self.bench.store.write(self._run(end_mono), self._samples(end_mono))
        except OSError as error:
            raise JoulesError(f"the run cannot be kept: {store.unwritten(self.journal.path, error)}") from None

    def _what_is_left(self) -> str:
        """What becomes of the windows so far."""
        windows = "1 closed window is" if self._closed == 1 else f"{self._closed} closed windows are"
        if not self.journal.path.exists():
            return f"{windows} lost: {self.journal.path.name} was taken away and could not be made anew"
        return f"{windows} kept in {self.journal.path.name}; --joules-resume goes on from there"

    def _run(self, end_mono: float) -> Run:
        suite, bench = self.suite, self.bench
        return Run(
            run_id=self.run_id,
            started_utc=self.started_utc,
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
            models=tuple(self.facts["models"]),
            engine=self.facts["engines"],
            meter=self._meter_record(end_mono),
            windows=tuple(self.windows),
            idle=self._idle(),
            gates=(*run_gates(suite, bench.power.chosen, self.windows), *self.gates),
            deviations=tuple(dict.fromkeys(self.deviations)),
            notes=tuple(dict.fromkeys(self.notes)),
            provenance=bench.provenance,
            versions=store.installed_versions(),
            samples_file=f"{self.run_id}.samples.jsonl.gz",
            questions=tuple(self.facts.get("questions", ())),
            answers_file=f"{self.run_id}.answers.jsonl.gz" if bench.questions else "",
        )

    def _samples(self, end_mono: float) -> list[Any]:
        """Every reading of the run, each once."""
        earlier = self.bench.resume.samples if self.bench.resume else ()
        own = self.bench.power.samples(self.begun_mono, end_mono + self.bench.power.margin_s)
        return list(dict.fromkeys((*earlier, *own)))

    @property
    def _closed(self) -> int:
        """Windows of the suite that came to their end."""
        return sum(window.role == "measured" and not window.failure for window in self.windows)

    # An interrupted run ---------------------------------------------------------------------------------------------

    def _take_up(self, left: store.Interrupted) -> None:
        """Go on as the run that was cut short, if nothing has changed since.

        Raises:
            UsageError: something has; a table of both halves would compare unlike things.
        """
        changed = [name for name, value in self.facts.items() if left.header.get(name) != store.plain(value)]
        if changed:
            named = {
                "boot": "the machine was started again",
                "suite": "the suite was changed",
                "engines": "the engine is another",
                "models": "a model file is another",
                "meter": "the meter is another",
                "questions": "the questions are others",
            }
            raise UsageError(
                f"{left.path.name} cannot be resumed: {'; '.join(named[name] for name in changed)}; "
                "measure anew, without --joules-resume (the journal stays)"
            )
        self.run_id, self.started_utc = left.run_id, str(left.header["started_utc"])
        self.windows = [window for window in left.windows if not window.failure]
        # A step of several lengths is measured again as a whole, or it would have some of them twice.
        whole = {index for index, step in enumerate(self.steps) if self._is_done(index, step)}
        self.windows = [window for window in self.windows if not window.condition or window.sequence in whole]
        pause_s = time.monotonic() - max(window.end_mono for window in left.windows)
        self.notes.append(f"resumed after {left.closed} windows; it lay {pause_s:.0f} s")
        before, now = (p.get("blobs", {}) for p in (left.header.get("provenance", {}), self.bench.provenance))
        if before != now:
            self.notes.append("predictions or their suite were committed anew between the two parts")

    def _is_done(self, index: int, step: Step) -> bool:
        lengths = {window.answer_tokens for window in self.windows if window.sequence == index and window.condition}
        return set(self._lengths(step)) <= lengths

    def _bridge(self, done: Sequence[int]) -> None:
        """The last closed window measured once more, to see whether both parts of the run are of one machine."""
        index = done[-1]
        step = self.steps[index]
        old = next(w for w in reversed(self.windows) if w.sequence == index and w.role in ("measured", "control"))
        with self._server(index, step) as (setting, server):
            [new] = self.make.measured(index, step, setting, server, [old.answer_tokens])
        self._keep(replace(new, role="bridge"))
        figures = energy_per_token_mj(old), energy_per_token_mj(new)
        self.gates.append(gates.bridge(*figures, self.suite.gates.spread_flag_above))

    # Steps ----------------------------------------------------------------------------------------------------------

    def _lengths(self, step: Step) -> list[int]:
        """Answer lengths of a step, every second pass the other way round; the control has the condition's own alone."""
        request = self.suite.setting(step.condition).request
        if step.role == "control":
            return [request.answer_tokens]
        prefill = [PREFILL_TOKENS] if request.prefill_windows else []
        lengths = sorted({request.answer_tokens, *request.lengths, *prefill})
        return lengths[::-1] if step.pass_index % 2 else lengths

    @contextlib.contextmanager
    def _server(self, index: int, step: Step) -> Iterator[tuple[Setting, Server]]:
        """A fresh server for a step; before the first one is used, the meter is tried out on it."""
        setting = self.suite.setting(step.condition)
        if not self.preflown and setting.protocol.warm == "cold":
            # A server that has worked is not cold: the meter is tried out on another one.
            with self._started(index, step, setting) as server:
                self._preflight(index, step, setting, server)
            self.preflown = True
        with self._started(index, step, setting) as server:
            if not self.preflown:
                self._preflight(index, step, setting, server)
                self.preflown = True
            yield setting, server

    @contextlib.contextmanager
    def _started(self, index: int, step: Step, setting: Setting) -> Iterator[Server]:
        """A server, and what it has to say of itself."""
        self.bench.progress.doing(index, step, "starting the server", None)
        limits = self.suite.protocol
        try:
            with self.bench.model_server(
                setting, ready_timeout_s=limits.ready_timeout_s, request_timeout_s=limits.request_timeout_s
            ) as server:
                self.deviations += server.deviations
                self.notes += [str(server.facts["remark"])] if server.facts.get("remark") else []
                try:
                    yield server
                finally:
                    # Some is only found out from its answers.
                    self.deviations += server.deviations
        finally:
            self._tell_of_settings()

    def _tell_of_settings(self) -> None:
        """What happened to settings of the machine that were put back, in the note and to whoever watches."""
        for said in knobs.told():
            self.notes.append(said)
            self.bench.progress.say(said)

    def _step(self, index: int, step: Step, *, last: bool) -> None:
        """One condition on a fresh server; what goes wrong voids its window and nothing else."""
        name = label(step.condition)
        if name in self.unfit:
            self._close(index, failed(index, step, self.unfit[name]))
            return
        if name in self.failed:
            self._close(index, failed(index, step, "not run again after it failed"))
            return
        started = False
        try:
            with self._server(index, step) as (setting, server):
                started = True
                # Kept before the server is stopped or left alone for the idle baseline: either takes seconds.
                for window in self.make.measured(index, step, setting, server, self._lengths(step)):
                    self._close(index, window)
                if last:
                    self._silent(self.make.idle(index, step, "idle_after"))
        except EngineError as error:
            self.failed.add(name)
            if not started:
                self._give_up_if_hopeless(error)
            self._close(index, failed(index, step, str(error)))
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

    def _silent(self, window: Window | None) -> Window | None:
        if window is not None:
            self._keep(window)
        return window

    # The meter ------------------------------------------------------------------------------------------------------

    def _preflight(self, index: int, step: Step, setting: Setting, server: Server) -> None:
        """Idle baseline, then a step to full load: shows that the meter follows the chip, and how far behind.

        Raises:
            MeterFrozen: a rail that counts did not move.
        """
        idle = self._silent(self.make.idle(index, step, "idle_before"))
        if idle is None:
            return
        power, request = self.bench.power, setting.request
        self.bench.progress.doing(index, step, "load step", power.latest_power_w())
        refresh_s = max(rail.refresh_s or rail.averaging_s or 0.0 for rail in power.chosen.rails)
        seconds = max(LOAD_STEP_S, LOAD_STEP_REFRESHES * max(refresh_s, 1.0 / power.rate_hz))
        prompts = prompts_of(setting, server, setting.server.parallel)
        started_utc, cpu = store.utc_label(store.utc_now()), CpuTimes.now(server.pids)
        rounds: list[Round] = []
        while not rounds or rounds[-1].end_mono - rounds[0].start_mono < seconds:
            rounds.append(server.run_round(prompts, request.answer_tokens, len(rounds)))
        cpu = CpuTimes.now(server.pids).since(cpu)
        start, end = rounds[0].start_mono, rounds[-1].end_mono
        reading = power.measure(start, end)
        self._keep(silent("load_step", index, step, started_utc, reading))
        responses = power.respond((idle.start_mono, idle.end_mono), (start, end))
        power.lags_s |= {response.rail: response.lag_s for response in responses if response.lag_s}
        self.gates.append(self._follows(responses, cpu.others_cores))
        periods = [rail.refresh_s for rail in reading.parts if rail.refresh_s] or [1.0 / power.rate_hz]
        self._foretell(setting, (end - start) / len(rounds) / request.answer_tokens, max(periods))

    def _foretell(self, setting: Setting, step_s: float, refresh_s: float) -> None:
        """Say which windows will be thin while there is still time to ask for longer ones."""
        wanted = max(self.suite.require.min_samples, self.suite.gates.thin_samples)
        forecasts = forecast(self.suite, setting, step_s, refresh_s, self.make.least_s, wanted)
        if text := advice(forecasts, self.bench.power.chosen.name, refresh_s, wanted):
            self.notes.append(text)
            self.bench.progress.say(text)

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

    def _idle(self) -> IdleBaseline | None:
        """Mean and spread of the power in steps of one second over the idle windows of this process."""
        idle = [w for w in self.windows if w.role in ("idle_before", "idle_after") and w.energy_j is not None]
        powers = []
        for window in idle:
            if window.start_mono < self.begun_mono:
                continue  # of the part before an interruption, whose samples the sampler no longer has
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

    def _meter_record(self, end_mono: float) -> MeterRecord:
        chosen = self.bench.power.chosen
        return MeterRecord(
            name=chosen.name, basis=self.bench.basis, scope=chosen.scope, covers=chosen.covers, rate_hz=self.bench.power.rate_hz,
            rails=chosen.every_rail, chosen_because=chosen.because, notes=chosen.notes, lags_s=self.bench.power.lags_s,
            sampling=self.bench.power.sampling(self.begun_mono, end_mono),
        )  # fmt: skip
