"""One window of one condition, on a server that stands ready."""

from __future__ import annotations

import itertools
import math
import os
import statistics
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from pytest_joules import gates, machine, store
from pytest_joules.engines import ClosedLoop, Counters, Round, Server
from pytest_joules.metrics import decode
from pytest_joules.protocol.bench import Bench
from pytest_joules.protocol.load import CpuTimes
from pytest_joules.reading import Reading, checks
from pytest_joules.records import Gate, RequestRecord, Role, Window
from pytest_joules.schedule import Step
from pytest_joules.suite import CLOSED_LOOP_ROUNDS, Setting, Suite
from pytest_joules.workload.prompts import text_of

AVERAGING_WINDOWS = 20
"""A window is at least this many averaging times of the sensor long, so that its lag cannot bend the curve."""

SETTLE_S = 0.5
"""Rest between a server's start and the idle baseline."""

_PROMPT_ROUNDS = 4
"""Rounds for which distinct prompts are made; after that they come round again, which an unused cache cannot notice."""

SLOPE_PARTS, STUDENT = 8, 2.45
"""Stretches of a window whose powers tell a slope from noise, and Student's t at 95 % for them less two means."""

_RESTED_S = 5.0
"""The end of a rest, over which the power is compared with the idle baseline."""


@dataclass(slots=True)
class Windows:
    """Makes the windows of one campaign.

    Attributes:
        idle_w: power with a server loaded and silent, once it is known.
    """

    suite: Suite
    bench: Bench
    idle_w: float | None = None

    @property
    def least_s(self) -> float:
        """Shortest window where the suite fixes no rounds."""
        rails = self.bench.power.chosen.rails
        averaging_s = max((rail.averaging_s or 0.0 for rail in rails), default=0.0)
        return max(self.suite.protocol.min_window_s, AVERAGING_WINDOWS * averaging_s)

    def measured(
        self, index: int, step: Step, setting: Setting, server: Server, lengths: Sequence[int]
    ) -> list[Window]:
        """Warm up or rest, then one window for each answer length, in this order."""
        slots, power = setting.server.parallel, self.bench.power
        pool = server.prompts(text_of(setting.request), slots * _PROMPT_ROUNDS, identical=setting.request.identical)
        batches = [pool[i : i + slots] for i in range(0, len(pool), slots)]
        found: list[Window] = []
        before: list[Gate] = []
        warmed_s = 0.0
        if setting.protocol.warm == "cold":
            before = [self._rest(index, step, setting.protocol.rest_s)]
        else:
            warmed_s = self._warm(index, step, setting, server, batches[0])
        for length in lengths:
            self.bench.progress.doing(index, step, "measuring", power.latest_power_w())
            window = self._window(index, step, setting, server, batches, length, before)
            found.append(replace(window, engine={**window.engine, "warmup_s": round(warmed_s, 3)}))
        if len(lengths) > 1 and step.role == "measured":
            found = [self._with_intercept(one, found) for one in found]
        return found

    def _with_intercept(self, window: Window, every: Sequence[Window]) -> Window:
        """The window of the table with a gate on how well the lengths lie on one line; the others as they are."""
        if window.role != "measured":
            return window
        line = decode(every)
        intercept_j, shortest_j = (line.intercept_j, line.shortest_j) if line else (None, None)
        checked = (
            *window.gates, gates.lengths_intercept(intercept_j, shortest_j, self.suite.gates.intercept_flag_above)
        )  # fmt: skip
        return replace(window, gates=checked, outcome=gates.outcome(checked))

    def _warm(self, index: int, step: Step, setting: Setting, server: Server, batch: Sequence[Sequence[int]]) -> float:
        self.bench.progress.doing(index, step, "warming up", self.bench.power.latest_power_w())
        protocol = setting.protocol
        return self.bench.warm(
            server,
            protocol.warmup_seconds,
            tokens=protocol.warmup_tokens,
            prompts=batch,
            answer_tokens=setting.request.answer_tokens,
        )

    def _rest(self, index: int, step: Step, rest_s: float) -> Gate:
        """Leave the machine alone, and see whether it has come to rest."""
        self.bench.progress.doing(index, step, "resting", self.bench.power.latest_power_w())
        time.sleep(rest_s)
        now = time.monotonic()
        at_end = self.bench.power.measure(now - min(_RESTED_S, rest_s), now).power_w if rest_s > 0 else None
        return gates.rested(at_end, self.idle_w, self.suite.gates.rest_flag_above)

    def _window(
        self, index: int, step: Step, setting: Setting, server: Server,
        batches: Sequence[Sequence[Sequence[int]]], answer_tokens: int, before_gates: Sequence[Gate],
    ) -> Window:  # fmt: skip
        """From the first request sent to the last answer received."""
        started_utc = store.utc_label(store.utc_now())
        before, cpu = server.counters(), CpuTimes.now(server.pids)
        self.bench.watch.read_now()
        rounds: list[Round] = []
        while not self._enough(rounds):
            rounds.append(self._round(setting, server, batches, answer_tokens, len(rounds)))
        cpu = CpuTimes.now(server.pids).since(cpu)
        after = server.counters()
        self.bench.watch.read_now()
        start, end = rounds[0].start_mono, rounds[-1].end_mono
        reading = self.bench.power.measure(start, end)
        # Times of an answer count from the window's start instead of its round's.
        answers = tuple(answer.later(r.start_mono - start) for r in rounds for answer in r.answers)
        slots = setting.server.parallel
        found = [
            *before_gates,
            gates.requests_complete(answers, self._asked(setting) * len(rounds), answer_tokens),
            *_release(rounds),
            *self._gates(setting, answers, reading, cpu),
            self._batch(rounds, slots, before, after),
            *self._vital_gates(start, end, server.pids),
        ]
        own_length = answer_tokens == setting.request.answer_tokens
        return Window(
            condition=step.condition,
            pass_index=step.pass_index,
            sequence=index,
            role=step.role if own_length or step.role == "control" else "length",
            outcome=gates.outcome(found),
            started_utc=started_utc,
            start_mono=start,
            end_mono=end,
            tokens=sum(a.predicted_n for a in answers),
            prompt_tokens=sum(a.prompt_n for a in answers),
            answer_tokens=answer_tokens,
            slots=slots,
            rounds=len(rounds),
            energy_j=reading.energy_j,
            uncertainty_j=reading.uncertainty_j,
            calibration_j=reading.calibration_j,
            rails=reading.rails,
            gates=tuple(found),
            requests=answers,
            vitals=self.bench.watch.between(start, end),
            engine=dict(server.facts),
        )

    def _round(
        self,
        setting: Setting,
        server: Server,
        batches: Sequence[Sequence[Sequence[int]]],
        answer_tokens: int,
        index: int,
    ) -> Round:
        if not setting.request.closed_loop:
            return server.run_round(batches[index % len(batches)], answer_tokens, index)
        pool = [prompt for batch in batches for prompt in batch]
        return server.run_closed_loop([pool[i % len(pool)] for i in range(self._asked(setting))], answer_tokens)

    def _asked(self, setting: Setting) -> int:
        """Requests of one round, or of one closed loop, which is all the rounds of a window in one."""
        slots = setting.server.parallel
        return slots * (self.suite.protocol.rounds or CLOSED_LOOP_ROUNDS) if setting.request.closed_loop else slots

    def _batch(self, rounds: Sequence[Round], slots: int, before: Counters | None, after: Counters | None) -> Gate:
        """Busy slots over the window; the end of a closed loop, where slots fall idle one by one, is told as a share."""
        limits = self.suite.gates
        drain_s = sum(r.drain_s for r in rounds if isinstance(r, ClosedLoop))
        steps = after.decode_steps - before.decode_steps if before and after else None
        busy = after.busy_slots - before.busy_slots if before and after else 0.0
        return gates.achieved_batch(
            busy, steps, slots, limits.batch_void_below, limits.batch_flag_below,
            drain_share=drain_s / sum(r.end_mono - r.start_mono for r in rounds),
        )  # fmt: skip

    def _enough(self, rounds: Sequence[Round]) -> bool:
        wanted = self.suite.protocol.rounds
        if wanted is not None:
            # A closed loop is all the rounds of a window in one.
            return len(rounds) >= (1 if rounds and isinstance(rounds[0], ClosedLoop) else wanted)
        return bool(rounds) and rounds[-1].end_mono - rounds[0].start_mono >= self.least_s

    def _gates(self, setting: Setting, answers: Sequence[RequestRecord], reading: Reading, cpu: CpuTimes) -> list[Gate]:
        limits, require = self.suite.gates, self.suite.require
        found = [
            gates.prompt_cache(answers, wanted=setting.request.cache_prompt),
            gates.client_cost(cpu.ours_s, cpu.machine_s, limits.client_cpu_flag_above),
            gates.other_load(
                cpu.others_cores, limits.other_load_flag_above, limits.other_load_void_above, machine.describe().cpus
            ),
        ]
        if setting.draft.draft_model:
            found.append(gates.drafted(answers))
        if reading.energy_j:
            found += self._slope(reading)
        averaging_s = {rail.name: rail.averaging_s for rail in self.bench.power.chosen.every_rail}
        return found + checks(
            reading, limits, averaging_s, min_samples=require.min_samples, thin_voids=require.thin == "void"
        )

    def _vital_gates(self, start: float, end: float, engine_pids: Collection[int]) -> list[Gate]:
        """Heat, throttling, limits, neighbours, swap and battery, where this machine shows them."""
        watch, limits = self.bench.watch, self.suite.gates
        rails = [rail.name for rail in self.bench.power.chosen.rails]
        # Cards that do not run the model may do what they like.
        used = [
            vital.name
            for vital in watch.vitals
            if not vital.name.startswith("nvml.") or any(r.startswith(vital.name.rpartition(".")[0]) for r in rails)
        ]
        found = [gates.battery_charging(watch.charging(start, end))]
        if watch.sees("temperature", used):
            rise_c = watch.temperature_rise_c(start, end, used)
            found.append(gates.temperature_rise(rise_c, limits.temperature_rise_flag_above_c))
        if watch.sees("throttle", used):
            found.append(gates.throttled(watch.throttled(start, end, used)))
            share = watch.power_limited_share(start, end, used)
            if share is not None:
                limit_w = min(watch.power_limits_w(start, end, used).values(), default=None)
                found.append(gates.power_limit_saturated(share, limit_w, limits.power_limit_flag_above))
        if watch.sees("programs", used):
            ours = {*engine_pids, os.getpid()}
            found.append(gates.other_gpu_process(watch.others_on_gpu(start, end, ours, used)))
        if watch.sees("swap"):
            found.append(gates.swapping(watch.swapped_mib(start, end), limits.swapped_flag_above_mib))
        return found

    def _slope(self, reading: Reading) -> list[Gate]:
        """Whether the power rose or fell within the window; nothing where the sensor spoke too seldom to tell."""
        parts = SLOPE_PARTS
        if min(rail.updates for rail in reading.parts) < 2 * parts:
            return []
        at = [reading.start_mono + reading.window_s * i / parts for i in range(parts + 1)]
        powers = [self.bench.power.measure(*edges).power_w for edges in itertools.pairwise(at)]
        known = [power for power in powers if power is not None]
        if len(known) < parts:
            return []
        halves = known[: parts // 2], known[parts // 2 :]
        scatter_w = math.sqrt(statistics.fmean(statistics.variance(half) for half in halves))
        # Student's t at 95 % for the parts less two means; on a straight line the change is twice the halves' difference.
        uncertainty = STUDENT * 2 * scatter_w * math.sqrt(4 / parts) / statistics.fmean(known)
        means = [statistics.fmean(half) for half in halves]
        return [gates.window_power_slope(means[0], means[1], self.suite.gates.power_slope_flag_above, uncertainty)]

    def idle(self, index: int, step: Step, role: Role) -> Window | None:
        """Power with the server loaded and silent; `None` when the suite leaves it out."""
        seconds = self.suite.protocol.idle_s
        if seconds <= 0:
            return None
        self.bench.progress.doing(index, step, "idle baseline", self.bench.power.latest_power_w())
        time.sleep(SETTLE_S)
        started_utc, start = store.utc_label(store.utc_now()), time.monotonic()
        time.sleep(seconds)
        window = silent(role, index, step, started_utc, self.bench.power.measure(start, time.monotonic()))
        if self.idle_w is None and window.energy_j is not None:
            self.idle_w = window.energy_j / window.window_s
        return window


def _release(rounds: Sequence[Round]) -> list[Gate]:
    """Whether the requests of a round went out together; a closed loop sends them one by one."""
    together = [r for r in rounds if not isinstance(r, ClosedLoop)]
    shares = [r.release_spread_s / (r.end_mono - r.start_mono) for r in together]
    return [gates.released(max(r.release_spread_s for r in together), max(shares))] if together else []


def silent(role: Role, index: int, step: Step, started_utc: str, reading: Reading) -> Window:
    """A window without requests of its own: idle, or the load step."""
    return Window(
        condition={}, pass_index=step.pass_index, sequence=index, role=role, started_utc=started_utc,
        start_mono=reading.start_mono, end_mono=reading.end_mono, outcome="void" if reading.energy_j is None else "measured",
        energy_j=reading.energy_j, uncertainty_j=reading.uncertainty_j, calibration_j=reading.calibration_j, rails=reading.rails,
        failure=reading.reason,
    )  # fmt: skip


def failed(index: int, step: Step, failure: str) -> Window:
    """A window that could not be measured."""
    now = time.monotonic()
    return Window(
        condition=step.condition, pass_index=step.pass_index, sequence=index, role=step.role, outcome="void",
        started_utc=store.utc_label(store.utc_now()), start_mono=now, end_mono=now, failure=failure,
    )  # fmt: skip
