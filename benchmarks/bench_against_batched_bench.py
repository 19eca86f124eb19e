"""What an engine costs beside llama-batched-bench: the speed of decoding through it over that of the program, in short alternating rounds.

They stand ready beside each other, so that the rounds of a pair lie a second apart, and a machine whose speed wanders does so for both. Which
goes first changes from pair to pair. Where its memory happens to lie makes a program faster or slower for as long as it runs; so all are
started anew several times, and the interval is that over the starts.

    python benchmarks/bench_against_batched_bench.py [--starts 6] [--pairs 6] [--answer-tokens 64] [--slots 1 4 8] [--engines in-process llama-server]

Ends with 1 when decoding in-process is certainly slower than 0.97 of llama-batched-bench's: the whole interval lies below.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from scipy import stats
from tabulate import tabulate

from pytest_joules import engines, models
from pytest_joules.engines import Prepared, Round, Server
from pytest_joules.models import ModelFile
from pytest_joules.protocol.load import CpuTimes
from pytest_joules.suite import Draft, Request, Setting
from pytest_joules.suite import Server as ServerSpec
from pytest_joules.workload.prompts import text_of

MODEL = ("smollm2-135m-instruct", "q4_1")
CONTEXT_PER_SLOT = 256
DIRECT = "llama-batched-bench"
LEAST = 0.97
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Timed:
    """A round: milliseconds of one decoding step, and cores that others used meanwhile."""

    step_ms: float
    others_cores: float


def started(name: str, model: ModelFile, slots: int, logs: Path, stack: contextlib.ExitStack) -> Server:
    """An engine with the model loaded."""
    setting = Setting(
        engine=name, model=MODEL[0], format=MODEL[1], request=Request(), draft=Draft(), knobs={},
        server=ServerSpec(parallel=slots, context_per_slot=CONTEXT_PER_SLOT),
    )  # fmt: skip
    return stack.enter_context(engines.find(name).serve(setting, model, None, logs, TIMEOUT_S, TIMEOUT_S))


def steps_of(name: str, answer_tokens: int) -> int:
    """Decoding steps that the time of an answer holds: all but llama-batched-bench get the first token out of the prompt's own step."""
    return answer_tokens if name == DIRECT else answer_tokens - 1


def timed(name: str, server: Server, prompts: list[list[int]], answer_tokens: int) -> Timed:
    """One round."""
    cpu = CpuTimes.now(server.pids)
    found: Round = server.run_round(prompts, answer_tokens)
    others = CpuTimes.now(server.pids).since(cpu).others_cores or 0.0
    decoding_ms = statistics.fmean(answer.predicted_ms or math.nan for answer in found.answers)
    return Timed(decoding_ms / steps_of(name, answer_tokens), others)


def mean_log(direct: list[Timed], own: list[Timed]) -> float:
    """Mean logarithm of how much faster than the program an engine is."""
    return statistics.fmean(math.log(a.step_ms / b.step_ms) for a, b in zip(direct, own, strict=True))


def ratio(logs: list[float]) -> tuple[float, float, float]:
    """Geometric mean of ratios whose logarithms these are, with its 95 % interval."""
    mean, half = statistics.fmean(logs), math.inf
    if len(logs) > 1:
        half = float(stats.t.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def alternated(
    names: list[str], model: ModelFile, slots: int, pairs: int, answer_tokens: int
) -> dict[str, list[Timed]]:
    """Rounds of every engine, in turn."""
    seen: dict[str, list[Timed]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as logs, contextlib.ExitStack() as stack:
        servers = {name: started(name, model, slots, Path(logs), stack) for name in names}
        tokenizing = next(server for name, server in servers.items() if name != DIRECT)
        prompts = tokenizing.prompts(text_of(Request()), slots)
        for server in servers.values():
            if isinstance(server, Prepared):
                server.prepare(prompts, answer_tokens)
            server.run_round(prompts, answer_tokens)
        for number in range(pairs):
            for name in names if number % 2 else reversed(names):
                seen[name].append(timed(name, servers[name], prompts, answer_tokens))
    return seen


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--starts", type=int, default=6)
    parser.add_argument("--pairs", type=int, default=6, help="rounds of each engine after a start")
    parser.add_argument("--answer-tokens", type=int, default=64)
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--engines", nargs="+", default=["in-process", "llama-server"])
    asked = parser.parse_args()
    model = models.inspect(models.find(*MODEL, models.folders((), Path.cwd()), {}))
    rows, too_slow = [], []
    for slots in asked.slots:
        starts = [
            alternated([DIRECT, *asked.engines], model, slots, asked.pairs, asked.answer_tokens)
            for _ in range(asked.starts)
        ]
        for name in asked.engines:
            each = [mean_log(seen[DIRECT], seen[name]) for seen in starts]
            mean, low, high = ratio(each)
            if name == "in-process" and high < LEAST:
                too_slow.append(slots)
            direct, own = ([one for seen in starts for one in seen[which]] for which in (DIRECT, name))
            rows.append(
                [slots, name, f"{statistics.median(one.step_ms for one in direct):.2f}", f"{statistics.median(one.step_ms for one in own):.2f}",
                 f"{mean:.3f} ({low:.3f} to {high:.3f})", f"{math.exp(min(each)):.3f} to {math.exp(max(each)):.3f}",
                 f"{statistics.median(one.others_cores for one in [*direct, *own]):.2f}"]
            )  # fmt: skip
    print(f"{asked.starts} starts of {asked.pairs} pairs of rounds in turn, {asked.answer_tokens} tokens an answer\n")
    headers = [
        "slots",
        "engine",
        f"ms a step, {DIRECT}",
        "ms a step, engine",
        "speed of decoding over it",
        "by start",
        "others' cores",
    ]
    print(tabulate(rows, headers=headers, disable_numparse=True))
    if too_slow:
        sys.exit(f"in-process decodes slower than {LEAST} of {DIRECT} at {', '.join(map(str, too_slow))} slots")


if __name__ == "__main__":
    main()
