"""What a cell does under load: a discrete-event simulation of requests, prefill modules and decode slots. Pure.

A request arrives, waits for a prefill module (first come, first served), has its prompt read there, crosses the link, waits for a slot
(first come, first served), is decoded, and leaves. Requests on one decode module all go at the speed measured at that many
at once, which changes whenever one joins or leaves; the module's power is the one measured there, its idle power when it is empty.

The event loop is our own. A million requests on six modules at 88 % of their capacity take 8 s of one core and 0.6 GiB here. The
same model in simpy 4.1, with a process for each request and none of the accounts, takes 61 s and 1.2 GiB
(`benchmarks/bench_queueing.py`), and a page of plots has a dozen such runs. The tests hold one against the other.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Batching = Literal["continuous", "static"]
Placing = Literal["spread", "fill-first"]
Lengths = Literal["fixed", "exponential"]

BATCHES = 20
"""Intervals come from the means of so many equal stretches of consecutive requests, and of longer ones."""

_STUDENT = {20: 2.093, 10: 2.262, 5: 2.776}
"""97.5 % quantile of Student's t by the number of stretches. Short stretches are alike where queues last long, and long ones are few:
the widest of the three intervals is taken. At 90 % of the capacity and 20,000 requests it holds the true mean in 96 of 100 cases,
where that of 20 stretches does in 91."""

_LONG_ENOUGH = 100.0
"""Counted requests times the square of the free share of the capacity. A queue lasts for about one over that square, in requests, so
that under a hundred of its lives the widest interval is too narrow as well: at 50 it holds the true mean in 90 of 100 cases."""

_CORRELATED = 0.44
"""Twenty independent means have a larger correlation with their neighbours in under 5 % of cases (2 / sqrt(20))."""

_GROWING = 0.02
"""More than this share of the counted requests waiting at their end: the queue has grown all along."""

_CHUNK = 8192
_Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """What one decode module does by the number of requests on it; entry 0 is the empty module.

    Attributes:
        tokens_per_s: of all its requests together.
        power_w: `None` where it is not known at every number.
    """

    tokens_per_s: tuple[float, ...]
    power_w: tuple[float, ...] | None = None

    @property
    def slots(self) -> int:
        """Most requests at once."""
        return len(self.tokens_per_s) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """Modules that do nothing but read prompts, one at a time each."""

    modules: int
    prompt_tokens_per_s: float
    busy_w: float | None = None
    idle_w: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """What serves.

    Attributes:
        decode: the curve of each module.
        prefill: `None` where the decode modules read the prompts themselves: then a curve measured with prompts has their time in it.
        link_s_per_prompt_token: how long the KV cache of one prompt token is under way from prefill to decode.
    """

    decode: tuple[Curve, ...]
    prefill: Prefill | None = None
    link_s_per_prompt_token: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How requests are put onto decode modules.

    Attributes:
        placing: `spread` takes the module with the fewest requests, `fill-first` the one with the most that has a slot free.
        cap: no more requests than this on a module, whatever its slots.
        batching: with `continuous` a request joins as soon as a slot is free; with `static` an empty module takes all that wait, up to
            its slots, and nothing joins or leaves before the longest answer is done.
    """

    placing: Placing = "spread"
    cap: int | None = None
    batching: Batching = "continuous"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Poisson arrivals, which go on until the last counted request is answered.

    Attributes:
        requests: how many are counted, after those of the warm-up.
        warmup: requests before them, as a share of `requests`, which see a cell that is still filling and are left out.
        answer_lengths: all of `answer_tokens`, or exponentially distributed with that mean.
    """

    requests_per_s: float
    answer_tokens: float
    prompt_tokens: float = 0.0
    answer_lengths: Lengths = "fixed"
    requests: int = 20_000
    warmup: float = 0.1
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Arrivals as they were: (seconds, prompt tokens, answer tokens), in order of time. All are counted, to the last answer."""

    arrivals: tuple[tuple[float, float, float], ...]

    @property
    def requests_per_s(self) -> float:
        """In the mean from the first to the last."""
        return (len(self.arrivals) - 1) / (self.arrivals[-1][0] - self.arrivals[0][0])

    @property
    def prompt_tokens(self) -> float:
        """Of a prompt in the mean."""
        return math.fsum(prompt for _, prompt, _ in self.arrivals) / len(self.arrivals)

    @property
    def answer_tokens(self) -> float:
        """Of an answer in the mean."""
        return math.fsum(answer for _, _, answer in self.arrivals) / len(self.arrivals)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure of the simulation and its 95 % half-width; `None` for a trace, which is what it is, and where batches are too small."""

    value: float
    half_width: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds of the counted requests; a percentile has no half-width when a batch holds under ten requests beyond it."""

    mean: Estimate
    p50: Estimate
    p90: Estimate
    p99: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a simulated stretch of time came to.

    Attributes:
        counted: requests whose times are told.
        window_s: from the arrival of the first counted request to that of the first one after them; of a trace, to the last answer.
        arrived, answered: in the whole simulation, warm-up included; `in_system` is where the others are when it ends.
        answered_in_window, tokens_in_window: answers that were completed in the window, and their tokens.
        waiting: time in which nothing was done for a request.
        first_token: from arrival to the first token of the answer, decoded at the speed of the moment when it joins.
        total: from arrival to the whole answer.
        decode: in a slot.
        in_system_mean: requests in the cell, mean over the window.
        occupancy: share of the time at each number of requests on a decode module, all modules together.
        slots: of all modules, as many as the policy lets be taken.
        slots_busy_mean: those that are, mean over the window.
        prefill_busy: share of the prefill modules' time.
        energy_j: of all modules over the window, as the integral of their power together; `None` without power.
        energy_by_module_j: of each decode module, as power times the time it was drawn, then of all prefill modules together.
        energy_per_answer_j: energy over answers completed.
        correlated: neighbouring batches are alike, or the load is so near the capacity that they are bound to be: half-widths are
            too small.
        growing: the load is more than the cell can serve, or the queue grew all along: no time is one of a steady state.
    """

    counted: int
    window_s: float
    arrived: int
    answered: int
    in_system: int
    answered_in_window: int
    tokens_in_window: float
    waiting: Times
    first_token: Times
    total: Times
    decode: Times
    in_system_mean: float
    occupancy: tuple[float, ...]
    slots: int
    slots_busy_mean: float
    prefill_busy: float | None
    energy_j: float | None
    energy_by_module_j: tuple[float, ...]
    energy_per_answer_j: Estimate | None
    correlated: bool
    growing: bool


def curve(
    tokens_per_s: Mapping[int, float], power_w: Mapping[int, float] | None, idle_w: float | None, slots: int
) -> Curve:
    """A curve at every number of requests up to `slots`, straight between the measured ones.

    Raises:
        ValueError: one request alone, or `slots` or more of them, were not measured: nothing is extrapolated.
    """
    wanted = range(1, slots + 1)
    return Curve(
        tokens_per_s=(0.0, *_between(tokens_per_s, wanted)),
        power_w=None if power_w is None or idle_w is None else (idle_w, *_between(power_w, wanted)),
    )


def _between(points: Mapping[int, float], wanted: range) -> list[float]:
    known = sorted(points)
    if not known or known[0] > 1 or known[-1] < wanted[-1]:
        raise ValueError(
            f"a curve up to {wanted[-1]} slots needs figures at 1 and at {wanted[-1]} or more; it has {known}"
        )
    return [float(value) for value in np.interp(wanted, known, [points[n] for n in known])]


def capacity_tokens_per_s(plant: Plant, policy: Policy) -> float:
    """Tokens per second of all decode modules with every allowed slot taken, which is where a queue drives them."""
    return math.fsum(one.tokens_per_s[_cap(one, policy)] for one in plant.decode)


def capacity_requests_per_s(plant: Plant, policy: Policy, prompt_tokens: float, answer_tokens: float) -> float:
    """Requests per second above which a queue must grow: of the decode modules, or of the prefill modules if they take fewer."""
    decode = capacity_tokens_per_s(plant, policy) / answer_tokens
    if plant.prefill is None or not prompt_tokens:
        return decode
    return min(decode, plant.prefill.modules * plant.prefill.prompt_tokens_per_s / prompt_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What a plant does in the mean.

    Attributes:
        power_w: of all modules; `None` where that of one is not known.
    """

    answers_per_s: float
    tokens_per_s: float
    power_w: float | None


def saturated(plant: Plant, load: Load, policy: Policy) -> Rates | None:
    """What full decode modules do under a load that they cannot serve; `None` where they can, or prefill modules or whole batches limit.

    Then the queue has no end, but the modules have no more to do than when they are full.
    """
    decode = capacity_tokens_per_s(plant, policy) / load.answer_tokens
    coming = load.requests_per_s
    busy_w: float | None = 0.0
    if plant.prefill is not None:
        prefill, read = plant.prefill, math.inf
        if load.prompt_tokens:
            read = prefill.modules * prefill.prompt_tokens_per_s / load.prompt_tokens
        coming = min(coming, read)
        busy_w = None
        if prefill.busy_w is not None and prefill.idle_w is not None:
            busy_w = prefill.modules * (prefill.idle_w + (prefill.busy_w - prefill.idle_w) * coming / read)
    if policy.batching == "static" or coming < decode:
        return None
    powers = [None if one.power_w is None else one.power_w[_cap(one, policy)] for one in plant.decode] + [busy_w]
    known = [power for power in powers if power is not None]
    return Rates(
        answers_per_s=decode,
        tokens_per_s=decode * load.answer_tokens,
        power_w=math.fsum(known) if len(known) == len(powers) else None,
    )


def simulate(plant: Plant, load: Load | Trace, policy: Policy = Policy()) -> Outcome:
    """Run the load through the plant. The same arguments give the same outcome.

    Arrivals and lengths are drawn from streams of their own, so that two policies meet the same requests.
    """
    arrivals = _Arrivals(load)
    prefilled = _Prefilled(arrivals, plant)
    account = _Account(plant, arrivals.boundaries)
    serve = _continuous if policy.batching == "continuous" else _static
    served = serve(plant, prefilled, policy, account, arrivals.counted)
    return _outcome(plant, load, policy, arrivals, prefilled, account, served)


class _Arrivals:
    """Arrival times and lengths by index; more of a Poisson process is drawn when it is asked for."""

    def __init__(self, load: Load | Trace) -> None:
        self._load = load
        if isinstance(load, Trace):
            self.at, self.prompt, self.answer = (list(column) for column in zip(*load.arrivals, strict=True))
            self.counted = range(len(self.at))
            self.boundaries = [self.at[0]]
            return
        first = math.ceil(load.requests * load.warmup)
        self.counted = range(first, first + load.requests)
        self._gaps, self._lengths = (np.random.default_rng(seed) for seed in np.random.SeedSequence(load.seed).spawn(2))
        self.at, self.prompt, self.answer = [], [], []
        self._draw(load, self.counted.stop + 1)
        # They go on until the last counted request is answered, so that it meets what the others met. Under a load that
        # can never be served that would be for ever.
        self._end = 2 * self.counted.stop + _CHUNK
        edges = np.linspace(self.counted.start, self.counted.stop, BATCHES + 1).round().astype(int)
        self.boundaries = [self.at[index] for index in edges]

    def __getitem__(self, index: int) -> tuple[float, float, float] | None:
        """(arrival in s, prompt tokens, answer tokens), or `None` past the end."""
        if index == len(self.at):
            if isinstance(self._load, Trace) or index >= self._end:
                return None
            self._draw(self._load, _CHUNK)
        return self.at[index], self.prompt[index], self.answer[index]

    def _draw(self, load: Load, count: int) -> None:
        start = self.at[-1] if self.at else 0.0
        self.at += (start + np.cumsum(self._gaps.exponential(1.0 / load.requests_per_s, count))).tolist()
        self.prompt += [load.prompt_tokens] * count
        self.answer += (
            self._lengths.exponential(load.answer_tokens, count).tolist()
            if load.answer_lengths == "exponential"
            else [load.answer_tokens] * count
        )


class _Prefilled:
    """Requests in the order in which their prompts have been read and have crossed the link."""

    def __init__(self, arrivals: _Arrivals, plant: Plant) -> None:
        self._arrivals, self._plant = arrivals, plant
        self.drawn = 0
        self.started: list[float] = []
        self.took: list[float] = []

    def __iter__(self) -> Iterator[tuple[float, int, float]]:
        """(when it may be decoded, index, answer tokens)."""
        prefill, link = self._plant.prefill, self._plant.link_s_per_prompt_token
        free = [0.0] * (prefill.modules if prefill else 0)
        ready: list[tuple[float, int, float]] = []
        for index in itertools.count():
            found = self._arrivals[index]
            while ready and (found is None or ready[0][0] <= found[0]):
                yield heapq.heappop(ready)
            if found is None:
                return
            arrived, prompt, answer = found
            self.drawn = index + 1
            if prefill is not None:
                start = max(arrived, free[0])
                took = prompt / prefill.prompt_tokens_per_s
                heapq.heapreplace(free, start + took)
                self.started.append(start)
                self.took.append(took)
                arrived = start + took + prompt * link
            heapq.heappush(ready, (arrived, index, answer))


class _Account:
    """Time at each occupancy, and the integrals over all modules at the boundaries of the batches."""

    def __init__(self, plant: Plant, boundaries: Sequence[float]) -> None:
        known = [one.power_w for one in plant.decode if one.power_w is not None]
        self.power = (
            known if len(known) == len(plant.decode) else [(0.0,) * len(one.tokens_per_s) for one in plant.decode]
        )
        self.count = [0] * len(plant.decode)
        self.since = [0.0] * len(plant.decode)
        self.at = [[0.0] * len(one.tokens_per_s) for one in plant.decode]
        self.now = self.energy_j = self.slots_s = self.total_w = 0.0
        self.busy = 0
        self._boundaries = deque(boundaries)
        self.next = self._boundaries[0]
        self.marks: list[tuple[float, float]] = []
        self.start_s = boundaries[0]
        self.open = True
        self.window_at: list[list[float]] = []
        self.total_w = math.fsum(power[0] for power in self.power)

    def advance(self, to: float) -> None:
        """Integrate up to an event."""
        while self.next <= to:
            self._pass(self.next)
            self._boundaries.popleft()
            if not self.marks:
                self.at = [[0.0] * len(times) for times in self.at]
            self.marks.append((self.energy_j, self.slots_s))
            self.open = bool(self._boundaries)
            self.next = self._boundaries[0] if self.open else math.inf
            if not self.open:
                self.window_at = [list(times) for times in self.at]
        passed = to - self.now
        self.energy_j += self.total_w * passed
        self.slots_s += self.busy * passed
        self.now = to

    def _pass(self, to: float) -> None:
        passed = to - self.now
        self.energy_j += self.total_w * passed
        self.slots_s += self.busy * passed
        self.now = to
        for module, count in enumerate(self.count):
            self.at[module][count] += to - self.since[module]
            self.since[module] = to

    def change(self, module: int, count: int) -> None:
        """From now on the module has so many requests."""
        before, power = self.count[module], self.power[module]
        self.at[module][before] += self.now - self.since[module]
        self.since[module] = self.now
        self.count[module] = count
        self.busy += count - before
        self.total_w += power[count] - power[before]

    def close(self) -> None:
        """End the window of a trace, which ends with its last answer."""
        self._pass(self.now)
        self.marks.append((self.energy_j, self.slots_s))
        self.window_at = self.at


@dataclass(slots=True)
class _Served:
    """What became of requests, in the order of the events."""

    began: list[tuple[int, float, float]]
    done: list[tuple[int, float]]
    queue: Sequence[tuple[int, float]]


def _cap(one: Curve, policy: Policy) -> int:
    return one.slots if policy.cap is None else min(policy.cap, one.slots)


class _Free:
    """The modules with a free slot, by how many requests they have: the one to take is found without looking at all of them."""

    def __init__(self, caps: Sequence[int], placing: Placing) -> None:
        self._caps = caps
        self._by_count: list[list[int]] = [[] for _ in range(max(caps))]
        self._place = [0] * len(caps)
        self._order = range(max(caps)) if placing == "spread" else range(max(caps) - 1, -1, -1)
        for module in reversed(range(len(caps))):
            self.put(module, 0)

    def put(self, module: int, count: int) -> None:
        if count < self._caps[module]:
            self._place[module] = len(self._by_count[count])
            self._by_count[count].append(module)

    def remove(self, module: int, count: int) -> None:
        if count < self._caps[module]:
            having, place = self._by_count[count], self._place[module]
            last = having.pop()
            if last != module:
                having[place] = last
                self._place[last] = place

    def take(self) -> int | None:
        for count in self._order:
            if self._by_count[count]:
                return self._by_count[count][-1]
        return None


def _continuous(plant: Plant, prefilled: _Prefilled, policy: Policy, account: _Account, counted: range) -> _Served:
    """Every request joins as soon as a slot is free.

    All requests of a module progress alike, so each module has a clock that counts the tokens made by one slot: a request that joins
    at reading V with L tokens to go leaves at V + L, whatever joins or leaves meanwhile.
    """
    speeds = [tuple(t / n if n else 0.0 for n, t in enumerate(one.tokens_per_s)) for one in plant.decode]
    free = _Free([_cap(one, policy) for one in plant.decode], policy.placing)
    count, since, clock = account.count, [0.0] * len(speeds), [0.0] * len(speeds)
    leaving: list[list[tuple[float, int]]] = [[] for _ in speeds]
    version = [0] * len(speeds)
    due: list[tuple[float, int, int]] = []
    queue: deque[tuple[int, float]] = deque()
    began: list[tuple[int, float, float]] = []
    done: list[tuple[int, float]] = []
    left = len(counted)
    arriving = iter(prefilled)
    coming = next(arriving, None)
    while left or account.open:
        while due and due[0][1] != version[due[0][2]]:
            heapq.heappop(due)
        if coming is not None and (not due or coming[0] <= due[0][0]):
            now, index, tokens = coming
            coming = next(arriving, None)
            account.advance(now)
            found = free.take()
            if found is None:
                queue.append((index, tokens))
                continue
            module = found
            before = count[module]
            clock[module] += (now - since[module]) * speeds[module][before]
            free.remove(module, before)
            account.change(module, before + 1)
            free.put(module, before + 1)
        else:
            now, _, module = heapq.heappop(due)
            account.advance(now)
            clock[module], gone = heapq.heappop(leaving[module])
            done.append((gone, now))
            left -= gone in counted
            before = count[module]
            if queue:
                index, tokens = queue.popleft()
            else:
                free.remove(module, before)
                account.change(module, before - 1)
                free.put(module, before - 1)
                tokens = 0.0
                if before == 1:
                    clock[module] = 0.0
        since[module] = now
        speed = speeds[module][count[module]]
        if tokens:
            heapq.heappush(leaving[module], (clock[module] + tokens, index))
            began.append((index, now, 1.0 / speed))
        version[module] += 1
        if leaving[module]:
            heapq.heappush(
                due, (now + max(0.0, leaving[module][0][0] - clock[module]) / speed, version[module], module)
            )
    return _Served(began, done, queue)


def _static(plant: Plant, prefilled: _Prefilled, policy: Policy, account: _Account, counted: range) -> _Served:
    """A batch is as wide as it began until its longest answer is done; then all of it leaves."""
    caps = [_cap(one, policy) for one in plant.decode]
    empty = deque(range(len(caps)))
    on: list[list[int]] = [[] for _ in caps]
    due: list[tuple[float, int]] = []
    queue: deque[tuple[int, float]] = deque()
    began: list[tuple[int, float, float]] = []
    done: list[tuple[int, float]] = []
    left = len(counted)
    arriving = iter(prefilled)
    coming = next(arriving, None)
    while left or account.open:
        if coming is not None and (not due or coming[0] <= due[0][0]):
            now, index, tokens = coming
            coming = next(arriving, None)
            account.advance(now)
            queue.append((index, tokens))
        else:
            now, module = heapq.heappop(due)
            account.advance(now)
            done += [(index, now) for index in on[module]]
            left -= sum(index in counted for index in on[module])
            on[module] = []
            account.change(module, 0)
            empty.append(module)
        while queue and empty:
            module = empty.popleft()
            batch = [queue.popleft() for _ in range(min(len(queue), caps[module]))]
            speed = plant.decode[module].tokens_per_s[len(batch)] / len(batch)
            on[module] = [index for index, _ in batch]
            account.change(module, len(batch))
            began += [(index, now, 1.0 / speed) for index, _ in batch]
            heapq.heappush(due, (now + max(tokens for _, tokens in batch) / speed, module))
    return _Served(began, done, queue)


def _outcome(
    plant: Plant, load: Load | Trace, policy: Policy, arrivals: _Arrivals, prefilled: _Prefilled, account: _Account, served: _Served
) -> Outcome:  # fmt: skip
    if isinstance(load, Trace):
        account.close()
    counted = slice(arrivals.counted.start, arrivals.counted.stop)
    drawn = prefilled.drawn
    arrived = np.array(arrivals.at[:drawn])
    began, step, ended = (np.full(drawn, math.nan) for _ in range(3))
    index = np.array([i for i, _, _ in served.began])
    began[index], step[index] = [at for _, at, _ in served.began], [one for _, _, one in served.began]
    ended[np.array([i for i, _ in served.done])] = [at for _, at in served.done]
    here = arrived <= account.now
    handed_on = ~np.isnan(began)
    handed_on[[i for i, _ in served.queue]] = True
    link = plant.link_s_per_prompt_token * np.array(arrivals.prompt[:drawn])
    took = np.array(prefilled.took) if plant.prefill else np.zeros(drawn)
    start_s = account.start_s
    edges = np.array([*arrivals.boundaries, account.now] if isinstance(load, Trace) else arrivals.boundaries)
    end_s = float(edges[-1])
    window_s = end_s - start_s
    within = (ended >= start_s) & (ended <= end_s)
    waiting = (began - arrived - took - link)[counted]
    # An answer that waits for nothing waits 0 s and not minus a rounding error.
    waiting[waiting < 1e-9] = 0.0
    by_time = np.array([sum(times) for times in itertools.zip_longest(*account.window_at, fillvalue=0.0)])
    busy_s = _busy(prefilled, edges)
    energy = _energy(plant, account, busy_s, edges)
    per_batch = (
        _per_answer(energy, np.array([*np.histogram(ended[within], edges)[0]]))
        if energy is not None and not isinstance(load, Trace)
        else None
    )
    answered_in_window = int(within.sum())
    energy_j = None if energy is None else float(energy.sum())
    intervals = not isinstance(load, Trace)
    alike = (
        intervals
        and _neighbours([float(one.mean()) for one in np.array_split(waiting + took[counted], BATCHES)]) > _CORRELATED
    )
    return Outcome(
        counted=len(arrivals.counted),
        window_s=window_s,
        arrived=int(here.sum()),
        answered=len(served.done),
        in_system=int((here & ~handed_on).sum()) + len(served.queue) + account.busy,
        answered_in_window=answered_in_window,
        tokens_in_window=float(np.array(arrivals.answer[:drawn])[within].sum()),
        waiting=_times(waiting, intervals),
        first_token=_times((began + step - arrived)[counted], intervals),
        total=_times((ended - arrived)[counted], intervals),
        decode=_times((ended - began)[counted], intervals),
        in_system_mean=(_area(arrived, start_s, end_s) - _area(ended[~np.isnan(ended)], start_s, end_s)) / window_s,
        occupancy=tuple(float(share) for share in by_time / by_time.sum()),
        slots=sum(_cap(one, policy) for one in plant.decode),
        slots_busy_mean=(account.marks[-1][1] - account.marks[0][1]) / window_s,
        prefill_busy=float(busy_s.sum()) / window_s / plant.prefill.modules if plant.prefill else None,
        energy_j=energy_j,
        energy_by_module_j=() if energy is None else _by_module(plant, account, float(busy_s.sum()), window_s),
        energy_per_answer_j=None
        if energy_j is None or not answered_in_window
        else Estimate(energy_j / answered_in_window, per_batch),
        correlated=alike or _too_short(plant, load, policy),
        growing=_growing(plant, load, policy, len(served.queue)),
    )  # fmt: skip


def _growing(plant: Plant, load: Load | Trace, policy: Policy, waiting: int) -> bool:
    if isinstance(load, Trace):
        return False
    beyond = load.requests_per_s >= capacity_requests_per_s(plant, policy, load.prompt_tokens, load.answer_tokens)
    return beyond or waiting > max(_GROWING * load.requests, 100)


def _too_short(plant: Plant, load: Load | Trace, policy: Policy) -> bool:
    if isinstance(load, Trace):
        return False
    capacity = capacity_requests_per_s(plant, policy, load.prompt_tokens, load.answer_tokens)
    return load.requests * max(0.0, 1 - load.requests_per_s / capacity) ** 2 < _LONG_ENOUGH


def _area(events: _Vector, start_s: float, end_s: float) -> float:
    """Integral over the window of how many events there have been since the beginning."""
    past = events[events <= end_s]
    return float((end_s - np.maximum(past, start_s)).sum())


def _busy(prefilled: _Prefilled, edges: _Vector) -> _Vector:
    """Seconds of prefill work in each batch."""
    started, took = np.array(prefilled.started), np.array(prefilled.took)
    until = np.array([np.clip(edge - started, 0.0, took).sum() for edge in edges])
    return np.diff(until)


def _energy(plant: Plant, account: _Account, busy_s: _Vector, edges: _Vector) -> _Vector | None:
    """Energy of all modules in each batch, or `None` where the power of one is not known."""
    prefill = plant.prefill
    if any(one.power_w is None for one in plant.decode):
        return None
    decode = np.diff(np.array([energy_j for energy_j, _ in account.marks]))
    if prefill is None:
        return decode
    if prefill.busy_w is None or prefill.idle_w is None:
        return None
    return np.asarray(
        decode + prefill.modules * prefill.idle_w * np.diff(edges) + (prefill.busy_w - prefill.idle_w) * busy_s
    )


def _by_module(plant: Plant, account: _Account, busy_s: float, window_s: float) -> tuple[float, ...]:
    found = [
        math.fsum(power * seconds for power, seconds in zip(one, times, strict=True))
        for one, times in zip(account.power, account.window_at, strict=True)
    ]
    prefill = plant.prefill
    if prefill is not None and prefill.busy_w is not None and prefill.idle_w is not None:
        found.append(prefill.busy_w * busy_s + prefill.idle_w * (prefill.modules * window_s - busy_s))
    return tuple(found)


def _per_answer(energy_j: _Vector, answers: _Vector) -> float | None:
    """95 % half-width of energy over answers, from the residuals of the batches: a ratio of two sums."""
    if not answers.all():
        return None
    ratio = energy_j.sum() / answers.sum()
    return _half_width((energy_j - ratio * answers) / answers.mean())


def _half_width(of_batches: _Vector) -> float:
    """95 %, from figures of `BATCHES` stretches: the widest of those that they and the means of neighbours among them give."""
    merged = {count: of_batches.reshape(count, -1).mean(axis=1) for count in _STUDENT}
    return max(t * float(merged[count].std(ddof=1)) / math.sqrt(count) for count, t in _STUDENT.items())


def _neighbours(means: Sequence[float]) -> float:
    """Correlation of each batch mean with the next one."""
    off = np.array(means) - np.mean(means)
    varied = float((off**2).sum())
    return float((off[:-1] * off[1:]).sum()) / varied if varied > 0 else 0.0


def _times(seconds: _Vector, intervals: bool) -> Times:
    batches = np.array_split(seconds, BATCHES)

    def estimate(value: float, of_batches: Sequence[float]) -> Estimate:
        return Estimate(value, _half_width(np.array(of_batches)))

    def percentile(share: int) -> Estimate:
        value = float(np.percentile(seconds, share))
        if not intervals or len(batches[-1]) * (100 - share) < 1000:
            return Estimate(value)
        return estimate(value, [float(np.percentile(batch, share)) for batch in batches])

    mean = float(seconds.mean())
    return Times(
        mean=estimate(mean, [float(batch.mean()) for batch in batches])
        if intervals and len(batches[-1])
        else Estimate(mean),
        p50=percentile(50),
        p90=percentile(90),
        p99=percentile(99),
    )
