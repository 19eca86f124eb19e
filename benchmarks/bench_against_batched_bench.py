"""What the server costs: throughput through pytest-joules against llama-batched-bench of the same build, interleaved.

Both decode the same number of tokens after prompts of the same length on the same model with the same threads. llama-batched-bench
calls the library directly, one step after the other; a window here holds the server's scheduling, sampling, HTTP and JSON as well.

    python benchmarks/bench_against_batched_bench.py [--pairs 8] [--answer-tokens 128] [--slots 1 4 8]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

from tabulate import tabulate

from pytest_joules import machine, models
from pytest_joules.engines import llama_server
from pytest_joules.engines.llama_server import LlamaServerEngine
from pytest_joules.models import ModelFile
from pytest_joules.protocol.load import CpuTimes
from pytest_joules.suite import Draft, Request, Server, Setting
from pytest_joules.workload.prompts import text_of

MODEL = ("smollm2-135m-instruct", "q4_1")
CONTEXT_PER_SLOT = 512
STUDENT = {3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 11: 2.20, 15: 2.13, 19: 2.09}


def through_server(
    engine: LlamaServerEngine, model: ModelFile, slots: int, answer_tokens: int, threads: int
) -> tuple[float, float, float, int]:
    """Tokens a second of a whole round, of its decoding alone, others' cores meanwhile, and tokens of a prompt."""
    request = Request(answer_tokens=answer_tokens)
    setting = Setting(
        engine="llama-server", model="m", format=None, request=request, draft=Draft(), knobs={},
        server=Server(parallel=slots, context_per_slot=CONTEXT_PER_SLOT, threads=threads),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as logs, engine.serve(setting, model, None, Path(logs), 120, 600) as server:
        prompts = server.prompts(text_of(request), slots)
        server.run_round(prompts, 16)
        cpu = CpuTimes.now(server.pids)
        found = server.run_round(prompts, answer_tokens)
        others = CpuTimes.now(server.pids).since(cpu).others_cores or 0.0
    whole = slots * answer_tokens / (found.end_mono - found.start_mono)
    decoding = sum(answer_tokens / (a.predicted_ms / 1000) for a in found.answers if a.predicted_ms)
    return whole, decoding, others, len(prompts[0])


def directly(
    program: Path, model: ModelFile, slots: int, prompt_tokens: int, answer_tokens: int, threads: int
) -> tuple[float, float]:
    """Tokens a second with the prompts' time inside, and of decoding alone, as llama-batched-bench gives them."""
    done = subprocess.run(
        [program, "-m", model.path, "-npp", str(prompt_tokens), "-ntg", str(answer_tokens), "-npl", str(slots), "-t", str(threads),
         "-tb", str(threads), "-c", str(CONTEXT_PER_SLOT * slots), "--output-format", "jsonl"],
        capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    row = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    return slots * answer_tokens / (row["t_pp"] + row["t_tg"]), row["speed_tg"]


def ratio(pairs: list[tuple[float, float]]) -> str:
    """Geometric mean of the ratios, with its 95 % interval."""
    logs = [math.log(a / b) for a, b in pairs]
    free = len(logs) - 1
    half = STUDENT.get(free, 2.0) * statistics.stdev(logs) / math.sqrt(len(logs)) if free else math.inf
    mean = statistics.fmean(logs)
    return f"{math.exp(mean):.3f} ({math.exp(mean - half):.3f} to {math.exp(mean + half):.3f})"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--answer-tokens", type=int, default=128)
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 4, 8])
    asked = parser.parse_args()
    path = models.find(*MODEL, models.folders((), Path.cwd()), {})
    model = models.inspect(path)
    server = llama_server.locate(None)
    program = server.with_name("llama-batched-bench")
    if not os.access(program, os.X_OK):
        raise SystemExit(f"there is no llama-batched-bench beside {server.name}; build llama.cpp with its tools")
    engine, threads = LlamaServerEngine(server), machine.describe().threads
    seen: dict[int, list[tuple[float, float, float, float, float]]] = {slots: [] for slots in asked.slots}
    for number in range(asked.pairs):
        for slots in asked.slots:
            # Which of the two goes first changes from pair to pair.
            first = number % 2 == 0
            prompt_tokens = 25
            ours = through_server(engine, model, slots, asked.answer_tokens, threads) if first else None
            prompt_tokens = ours[3] if ours else prompt_tokens
            theirs = directly(program, model, slots, prompt_tokens, asked.answer_tokens, threads)
            ours = ours or through_server(engine, model, slots, asked.answer_tokens, threads)
            seen[slots].append((ours[0], theirs[0], ours[1], theirs[1], ours[2]))
    rows = []
    for slots, pairs in seen.items():
        ours, theirs, our_decoding, their_decoding, others = (
            statistics.median(column) for column in zip(*pairs, strict=True)
        )
        rows.append(
            [slots, f"{ours:.1f}", f"{theirs:.1f}", ratio([(p[0], p[1]) for p in pairs]), f"{our_decoding:.1f}",
             f"{their_decoding:.1f}", ratio([(p[2], p[3]) for p in pairs]), f"{others:.2f}"]
        )  # fmt: skip
    print(f"{asked.pairs} interleaved pairs, {asked.answer_tokens} tokens an answer, {threads} threads\n")
    print(tabulate(rows, headers=["slots", "server tok/s", "direct tok/s", "ratio", "decoding", "direct", "ratio", "others' cores"],
                   disable_numparse=True))  # fmt: skip


if __name__ == "__main__":
    main()
