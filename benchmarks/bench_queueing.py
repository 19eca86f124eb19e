"""What a simulated request costs in processor time: our own event loop, and the same model in simpy.

Six decode modules of sixteen slots with the published curve of a 7B, one prefill module, Poisson arrivals at 88 % of what the cell can
serve (static batches: 25 %). The model in simpy has one process for each request and one for each decode module, which is woken whenever a request
joins; it is also what `tests/unit/test_queueing.py` holds ours against.

    python benchmarks/bench_queueing.py [--requests 1000000] [--simpy-requests 100000]
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Generator
from typing import Any

import numpy as np
import simpy

from pytest_joules.queueing import Curve, Load, Plant, Policy, Prefill, Trace, curve, simulate

SPEEDS = {1: 55.6, 2: 94.5, 4: 163.6, 8: 293.2, 16: 338.8}
POWERS = {1: 29.7, 2: 45.8, 4: 41.6, 8: 40.3, 16: 37.5}
RATE, STATIC_RATE, ALLOWED_S = 14.0, 4.0, 60.0


def plant(modules: int = 6) -> Plant:
    """The cell that is simulated."""
    prefill = Prefill(modules=1, prompt_tokens_per_s=6000.0, busy_w=40.0, idle_w=10.0)
    return Plant(decode=(curve(SPEEDS, POWERS, 10.0, 16),) * modules, prefill=prefill)


class Module:
    """A decode module in simpy: the tokens that are left of each request on it."""

    def __init__(self, env: simpy.Environment, its: Curve) -> None:
        self.env, self.its = env, its
        self.left: dict[int, float] = {}
        self.done: dict[int, simpy.Event] = {}
        self.since = self.energy_j = 0.0
        self.joined = env.event()
        env.process(self.run())

    def pass_time(self) -> None:
        """Take off what was decoded since the last look."""
        count, passed = len(self.left), self.env.now - self.since
        if self.its.power_w is not None:
            self.energy_j += passed * self.its.power_w[count]
        for index in self.left:
            self.left[index] -= passed * self.its.tokens_per_s[count] / count
        self.since = self.env.now

    def join(self, index: int, tokens: float) -> simpy.Event:
        """Start a request; the event is its end."""
        self.pass_time()
        self.left[index] = tokens
        self.done[index] = self.env.event()
        self.joined.succeed()
        self.joined = self.env.event()
        return self.done[index]

    def run(self) -> Generator[simpy.Event, Any, None]:
        """Wait for the next request to end, or for one to join, whichever is first."""
        while True:
            if not self.left:
                yield self.joined
                continue
            first = min(self.left, key=self.left.__getitem__)
            count = len(self.left)
            ends = self.env.timeout(max(0.0, self.left[first]) * count / self.its.tokens_per_s[count])
            joined = self.joined
            yield ends | joined
            if not joined.triggered:
                self.pass_time()
                del self.left[first]
                self.done.pop(first).succeed()


def in_simpy(
    its: Plant, arrivals: list[tuple[float, float, float]], policy: Policy
) -> tuple[list[float], list[float], float]:
    """(seconds of each request from arrival to its last token, seconds in a slot, energy of the decode modules in J)."""
    env = simpy.Environment()
    modules = [Module(env, one) for one in its.decode]
    slots = [min(policy.cap or one.slots, one.slots) for one in its.decode]
    room = simpy.Resource(env, capacity=sum(slots))
    reader = simpy.Resource(env, capacity=its.prefill.modules if its.prefill else 1)
    took, decoded = [0.0] * len(arrivals), [0.0] * len(arrivals)

    def request(index: int, at: float, prompt: float, answer: float) -> Generator[simpy.Event, Any, None]:
        yield env.timeout(at)
        if its.prefill is not None:
            with reader.request() as turn:
                yield turn
                yield env.timeout(prompt / its.prefill.prompt_tokens_per_s)
            yield env.timeout(prompt * its.link_s_per_prompt_token)
        with room.request() as turn:
            yield turn
            sign = 1 if policy.placing == "spread" else -1
            free = [m for m, limit in zip(modules, slots, strict=True) if len(m.left) < limit]
            began = env.now
            yield min(free, key=lambda m: sign * len(m.left)).join(index, answer)
            took[index], decoded[index] = env.now - at, env.now - began

    for index, (at, prompt, answer) in enumerate(arrivals):
        env.process(request(index, at, prompt, answer))
    env.run()
    for module in modules:
        module.pass_time()
    return took, decoded, sum(module.energy_j for module in modules)


def drawn(count: int, requests_per_s: float, seed: int = 1) -> list[tuple[float, float, float]]:
    """Poisson arrivals with exponential lengths."""
    chance = np.random.default_rng(seed)
    at = np.cumsum(chance.exponential(1 / requests_per_s, count)).tolist()
    return [(t, 400.0, answer) for t, answer in zip(at, chance.exponential(128.0, count).tolist(), strict=True)]


def main() -> None:
    """Time both and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--simpy-requests", type=int, default=100_000)
    asked = parser.parse_args()
    for policy in (Policy(), Policy(placing="fill-first"), Policy(batching="static", cap=8)):
        load = Load(
            requests_per_s=RATE if policy.batching == "continuous" else STATIC_RATE, answer_tokens=128.0, prompt_tokens=400.0,
            answer_lengths="exponential", requests=asked.requests,
        )  # fmt: skip
        start = time.process_time()
        outcome = simulate(plant(), load, policy)
        took_s = time.process_time() - start
        print(
            f"{policy.placing}, {policy.batching}: {took_s:.1f} s for {outcome.arrived:,} requests, "
            f"{'under' if took_s < ALLOWED_S else 'OVER'} {ALLOWED_S:.0f} s"
        )
    scale = 2**30 if sys.platform == "darwin" else 2**20
    print(f"most memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale:.1f} GiB")
    arrivals = drawn(asked.simpy_requests, RATE)
    start = time.process_time()
    in_simpy(plant(), arrivals, Policy())
    simpy_s = time.process_time() - start
    start = time.process_time()
    simulate(plant(), Trace(arrivals=tuple(arrivals)), Policy())
    own_s = time.process_time() - start
    print(
        f"{len(arrivals):,} of the same requests: simpy {simpy_s:.1f} s, ours {own_s:.2f} s; "
        f"simpy would take {simpy_s * 1e6 / len(arrivals):.0f} s for a million"
    )


if __name__ == "__main__":
    main()
