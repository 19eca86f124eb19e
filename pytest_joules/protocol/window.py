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
from pytest_joules.engines import ClosedLoop, Counters, Prepared, Round, Server, Templated, ToLength
from pytest_joules.errors import EngineError, Unmeasured
from pytest_joules.metrics import decode, energy_per_request_j
from pytest_joules.protocol.bench import Bench
from pytest_joules.protocol.load import CpuTimes
from pytest_joules.protocol.settings import setting_gates, switches
from pytest_joules.reading import Reading, checks
from pytest_joules.records import PREFILL_TOKENS, PROMPT_ROUNDS, Gate, Grade, RequestRecord, Role, Window
from pytest_joules.schedule import Step
from pytest_joules.suite import CLOSED_LOOP_ROUNDS, Setting, Suite
from pytest_joules.workload.grading import grade
from pytest_joules.workload.prompts import shared_tokens, text_of
from pytest_joules.workload.questions import Question, of

AVERAGING_WINDOWS = 20
"""A window is at least this many averaging times of the sensor long, so that its lag cannot bend the curve."""

SETTLE_S = 0.5
"""Rest between a server's start and the idle baseline."""

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
        if asked := of(setting, self.bench.questions):
            pool = _as_prompts(asked, setting, server)
        else:
            # Of a loop over prompts with a prefix in the cache none comes twice: the second time all of it would be in the cache.
            rounds = (
                max(PROMPT_ROUNDS, self._asked(setting) // slots) if setting.request.cached_by_count else PROMPT_ROUNDS
            )
            pool = prompts_of(setting, server, slots * rounds)
        batches = [pool[i : i + slots] for i in range(0, len(pool), slots)]
        found: list[Window] = []
        before: list[Gate] = []
        warmed_s = 0.0
        if setting.protocol.warm == "cold":
            before = [self._rest(index, step, setting.protocol.rest_s)]
        else:
            warmed_s = self._warm(index, step, setting, server, batches[0])
            if setting.request.cached_by_count:
                # The prefix is in every slot now, after prompts that the first round of the window does not repeat.
                server.run_round(batches[-1], PREFILL_TOKENS)
        done = 0
        for length in lengths:
            if isinstance(server, Prepared):
                server.prepare(batches[0], length)
            self.bench.progress.doing(index, step, "measuring", power.latest_power_w())
            # Each window goes on with the prompts where the one before it stopped: a slot never reads one prompt twice in succession.
            at = done % len(batches)
            window = self._window(index, step, setting, server, [*batches[at:], *batches[:at]], length, before)
            done += window.rounds
            found.append(replace(window, engine={**window.engine, "warmup_s": round(warmed_s, 3)}))
        if step.role == "measured" and any(window.role == "length" for window in found):
            found = [self._with_intercept(one, found) for one in found]
        return found

    def _with_intercept(self, window: Window, every: Sequence[Window]) -> Window:
        """The window of the table with a gate on how well the lengths lie on one line; the others as they are."""
        if window.role != "measured":
            return window
        line = decode([one for one in every if one.role != "prefill"])
        prompt_j = next((energy_per_request_j(one) for one in every if one.role == "prefill"), None)
        intercept_j, shortest_j = (line.intercept_j, line.shortest_j) if line else (None, None)
        checked = (
            *window.gates, gates.lengths_intercept(intercept_j, shortest_j, self.suite.gates.intercept_flag_above, prompt_j)
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
        asked = of(setting, self.bench.questions)
        if asked:
            rounds = [_graded(one, asked) for one in rounds]
        # Times of an answer count from the window's start instead of its round's.
        answers = tuple(answer.later(r.start_mono - start) for r in rounds for answer in r.answers)
        slots = setting.server.parallel
        found = [
            *before_gates,
            gates.requests_complete(answers, self._asked(setting) * len(rounds), answer_tokens, exact=not asked),
            *_cut_off(answers),
            *_release(rounds),
            gates.prompt_cache(answers, wanted=setting.request.cache_prompt, each=_asked_of_cache(setting, batches)),
            *self._gates(setting, answers, reading, cpu),
            # Where every answer is one token nothing is decoded, and a step with the prompt of one slot alone is none too few.
            *([] if answer_tokens == PREFILL_TOKENS else [self._batch(rounds, slots, before, after)]),
            *self._vital_gates(start, end, server.pids or ()),
            *setting_gates(setting, server, self.bench.watch, reading, self.bench.power.chosen.basis),
        ]
        return Window(
            condition=step.condition,
            pass_index=step.pass_index,
            sequence=index,
            role=_role(step, setting, answer_tokens),
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
            engine={
                **server.facts,
                **switches(server, start, end),
                **({"drain_share": round(_drain_share(rounds), 4)} if asked else {}),
            },
        )

    def _round(
        self,
        setting: Setting,
        server: Server,
        batches: Sequence[Sequence[Sequence[int]]],
        answer_tokens: int,
        index: int,
    ) -> Round:
        if not setting.request.loops:
            return server.run_round(batches[index % len(batches)], answer_tokens, index)
        pool = [prompt for batch in batches for prompt in batch]
        if setting.request.questions is not None:
            return server.run_closed_loop(pool, answer_tokens, exact=False)
        return server.run_closed_loop([pool[i % len(pool)] for i in range(self._asked(setting))], answer_tokens)

    def _asked(self, setting: Setting) -> int:
        """Requests of one round, or of one closed loop, which is all the rounds of a window in one, or a whole set of questions."""
        slots = setting.server.parallel
        if asked := of(setting, self.bench.questions):
            return len(asked)
        return slots * (self.suite.protocol.rounds or CLOSED_LOOP_ROUNDS) if setting.request.closed_loop else slots

    def _batch(self, rounds: Sequence[Round], slots: int, before: Counters | None, after: Counters | None) -> Gate:
        """Busy slots over the window; the end of a closed loop, where slots fall idle one by one, is told as a share."""
        limits = self.suite.gates
        steps = after.decode_steps - before.decode_steps if before and after else None
        busy = after.busy_slots - before.busy_slots if before and after else 0.0
        return gates.achieved_batch(
            busy, steps, slots, limits.batch_void_below, limits.batch_flag_below,
            drain_share=_drain_share(rounds),
        )  # fmt: skip

    def _enough(self, rounds: Sequence[Round]) -> bool:
        wanted = self.suite.protocol.rounds
        if wanted is not None:
            # A closed loop is all the rounds of a window in one, unless it is a set of questions.
            return len(rounds) >= (1 if rounds and isinstance(rounds[0], ClosedLoop) and rounds[0].exact else wanted)
        return bool(rounds) and rounds[-1].end_mono - rounds[0].start_mono >= self.least_s

    def _gates(self, setting: Setting, answers: Sequence[RequestRecord], reading: Reading, cpu: CpuTimes) -> list[Gate]:
        limits, require = self.suite.gates, self.suite.require
        found = [
            gates.client_cost(cpu.ours_s, cpu.machine_s, limits.client_cpu_flag_above),
            gates.other_load(
                cpu.others_cores, limits.other_load_flag_above, limits.other_load_void_above, machine.describe().cpus
            ),
        ]
        drafts = setting.draft.draft_model is not None
        if drafts or any(answer.draft_n for answer in answers):
            found.append(gates.drafted(answers, wanted=drafts))
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


def prompts_of(setting: Setting, server: Server, count: int) -> list[list[int]]:
    """Prompts as a suite asks for them.

    Raises:
        Unmeasured: the engine cannot make prompts of a stated length.
    """
    request = setting.request
    if request.prompt_tokens is None:
        return server.prompts(text_of(request), count, identical=request.identical)
    if not isinstance(server, ToLength):
        raise Unmeasured(
            f"engine {setting.engine} cannot make prompts of a stated length; leave out prompt_tokens, or take engine: llama-server"
        )
    return server.prompts_of(
        request.prompt_tokens, count, shared=request.shared_prefix_tokens, identical=request.identical
    )


def _asked_of_cache(setting: Setting, batches: Sequence[Sequence[Sequence[int]]]) -> tuple[int, int] | None:
    """Tokens of each prompt that are to come from the cache and to be computed; `None` where their length is not stated."""
    length = setting.request.prompt_tokens
    if length is None:
        return None
    # To choose the first token of an answer by, an engine computes at least the last one of a prompt.
    held = min(shared_tokens([prompt for batch in batches for prompt in batch]), length - 1)
    cached = held if setting.request.cache_prompt else 0
    return cached, length - cached


def _role(step: Step, setting: Setting, answer_tokens: int) -> Role:
    if step.role == "control" or answer_tokens == setting.request.answer_tokens:
        return step.role
    return "prefill" if setting.request.prefill_windows and answer_tokens == PREFILL_TOKENS else "length"


def _as_prompts(asked: Sequence[Question], setting: Setting, server: Server) -> list[list[int]]:
    """Questions as the model was taught to be asked.

    Raises:
        Unmeasured: the engine cannot apply a chat template.
        EngineError: a prompt and its answer do not fit into a slot's context.
    """
    if not isinstance(server, Templated):
        raise Unmeasured(
            f"engine {setting.engine} cannot put questions into the model's chat template; take engine: llama-server or in-process"
        )
    prompts = [server.chat(question.text) for question in asked]
    if not server.in_tokens:
        return prompts
    longest = max(range(len(prompts)), key=lambda index: len(prompts[index]))
    needed = len(prompts[longest]) + setting.request.answer_tokens
    if needed > setting.server.context_per_slot:
        raise EngineError(
            f"question {asked[longest].id} has {len(prompts[longest])} tokens, which with {setting.request.answer_tokens} of its answer do not "
            f"fit into context_per_slot {setting.server.context_per_slot}; raise it to {needed} or more"
        )
    return prompts


def _graded(loop: Round, asked: Sequence[Question]) -> Round:
    """A loop over the questions with the grade of each answer."""
    if not isinstance(loop, ClosedLoop):
        return loop
    answers = []
    for question, answer, text in zip(asked, loop.answers, loop.texts, strict=True):
        extracted, right = grade(question.kind, text, question.answer, question.choices)
        cut_off = answer.stop_type == "limit"
        answers.append(
            replace(
                answer,
                grade=Grade(question=question.id, correct=right, extracted=extracted, cut_off=cut_off, text=text),
            )
        )
    return replace(loop, answers=tuple(answers))


def _drain_share(rounds: Sequence[Round]) -> float:
    """Share of the time during which slots of a closed loop stood idle because nothing was left to send."""
    drain_s = sum(r.drain_s for r in rounds if isinstance(r, ClosedLoop))
    return drain_s / sum(r.end_mono - r.start_mono for r in rounds)


def _cut_off(answers: Sequence[RequestRecord]) -> list[Gate]:
    grades = [answer.grade for answer in answers if answer.grade is not None]
    return [gates.answers_cut_off(sum(one.cut_off for one in grades), len(grades))] if grades else []


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
