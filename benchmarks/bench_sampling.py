"""What it costs to sample, and whether the samples come on time.

    python benchmarks/bench_sampling.py [--seconds 60]

Four rails, two packages and the memory of both, are read ten times a second from a made-up /sys in a temporary folder, by the reader
and the sampler of every run. Three questions, some `--seconds` each:

    cost        CPU time of this process while it samples, less that of an equally long idle stretch, in shares of one core
    throughput  tokens per second of the quickstart's model and server with sampling on over off: in pairs whose order alternates, as
                the median ratio and its 95 % interval
    timing      spacing of the samples when every core is busy with another program, and when this very process computes in Python,
                whose threads take turns
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from scipy.stats import binom
from tabulate import tabulate

from pytest_joules import engines, models, places, suite
from pytest_joules.engines import Server
from pytest_joules.meters import Chosen, rapl
from pytest_joules.meters.estimate import busy_cpu_s
from pytest_joules.meters.sampler import Power
from pytest_joules.protocol import warm
from pytest_joules.reading import group
from pytest_joules.workload.prompts import text_of

ROOT = Path(__file__).parents[1]
SUITE = ROOT / "suites" / "quickstart.yaml"
RATE_HZ, TARGET = 10.0, 0.01
SLOTS = (1, 4)
STRETCH_S, WARMUP_S, LEAST_PAIRS = 1.0, 3.0, 6
"""How long one side of a pair takes at least. Short ones lie so close together that other work meets both sides alike."""
PROMPT_ROUNDS = 4
ZONES = {
    "intel-rapl:0": "package-0",
    "intel-rapl:0/intel-rapl:0:0": "dram",
    "intel-rapl:1": "package-1",
    "intel-rapl:1/intel-rapl:1:0": "dram",
}


@contextlib.contextmanager
def four_rails() -> Iterator[Chosen]:
    """The meter `rapl` over a made-up server with two sockets."""
    with tempfile.TemporaryDirectory() as folder:
        for number, (zone, name) in enumerate(ZONES.items(), 1):
            place = Path(folder, "class", "powercap", zone)
            place.mkdir(parents=True)
            (place / "name").write_text(f"{name}\n")
            (place / "energy_uj").write_text(f"{number * 10**9}\n")
            (place / "max_energy_range_uj").write_text("262143328850\n")
        os.environ[places.ROOT_VARIABLE] = folder
        [meter] = rapl.find()
        yield Chosen(meter, "chip", meter.rails, "")


@dataclass
class Stretch:
    """A stretch of time, with the CPU seconds that this process and all others but the engine's spent in it."""

    seconds: float = 0.0
    ours_s: float = 0.0
    others_s: float = 0.0

    @property
    def share(self) -> float:
        return self.ours_s / self.seconds

    @property
    def others(self) -> str:
        return f"{self.others_s / self.seconds:.2f} cores"


@contextlib.contextmanager
def watched(engine: Iterable[int] = ()) -> Iterator[Stretch]:
    """Fills in what it yields when the block is left."""

    def now() -> tuple[float, float, float]:
        engine_s = sum(sum(psutil.Process(pid).cpu_times()[:4]) for pid in engine)
        return time.monotonic(), time.process_time(), busy_cpu_s() - engine_s

    found, before = Stretch(), now()
    yield found
    found.seconds, found.ours_s, rest_s = (after - then for after, then in zip(now(), before, strict=True))
    found.others_s = rest_s - found.ours_s


def cost(chosen: Chosen, seconds: float) -> str:
    with watched() as idle:
        time.sleep(seconds)
    with Power(chosen, RATE_HZ) as power:
        with watched() as sampling:
            time.sleep(seconds)
        rounds = len(power.samples(-math.inf, math.inf)) / len(chosen.rails)
    if power.failure:
        raise SystemExit(f"the meter stopped: {power.failure}")
    share = sampling.share - idle.share
    rows = [
        ("idle", f"{idle.share:.3%}", "", "", idle.others),
        (
            "sampling",
            f"{sampling.share:.3%}",
            round(rounds),
            f"{sampling.ours_s / rounds * 1e3:.2f} ms",
            sampling.others,
        ),
        ("difference", f"{share:.3%}", "", "", f"{'within' if share < TARGET else 'OVER'} the target of {TARGET:.0%}"),
    ]
    return tabulate(
        rows, headers=("", "of one core", "rounds", "CPU of a round", "others at work"), disable_numparse=True
    )


def throughput(chosen: Chosen, seconds: float) -> str:
    asked = suite.load(SUITE)
    engine = engines.find(asked.engine)
    file = models.inspect(models.find(asked.model or "", asked.format, models.folders((), ROOT)))
    rows = []
    for slots in SLOTS:
        setting = asked.setting({"parallel": slots})
        limits, request = asked.protocol, setting.request
        with (
            tempfile.TemporaryDirectory() as logs,
            engine.serve(setting, file, None, Path(logs), limits.ready_timeout_s, limits.request_timeout_s) as server,
        ):
            prompts = server.prompts(text_of(request.prompt), slots * PROMPT_ROUNDS)
            warm(server, WARMUP_S, prompts=prompts[:slots], answer_tokens=request.answer_tokens)
            speeds: dict[bool, list[float]] = {True: [], False: []}
            end = time.monotonic() + seconds
            with watched(server.pids) as stretch:
                while time.monotonic() < end or len(speeds[True]) < LEAST_PAIRS:
                    for on in (True, False) if len(speeds[True]) % 2 else (False, True):
                        with Power(chosen, RATE_HZ) if on else contextlib.nullcontext():
                            speeds[on].append(tokens_per_s(server, prompts, request.answer_tokens))
        medians = (statistics.median(speeds[on]) for on in (False, True))
        rows.append((slots, len(speeds[True]), *medians, *ratio(speeds[True], speeds[False]), stretch.others))
    return tabulate(
        rows,
        headers=("slots", "pairs", "tokens/s off", "tokens/s on", "on / off", "95 % from", "to", "others at work"),
        floatfmt=("", "", ".1f", ".1f", ".4f", ".4f", ".4f", ""),
    )


def tokens_per_s(server: Server, prompts: list[list[int]], answer_tokens: int) -> float:
    batches = itertools.cycle(prompts[i : i + server.slots] for i in range(0, len(prompts), server.slots))
    began, tokens = time.monotonic(), 0
    while True:
        done = server.run_round(next(batches), answer_tokens)
        tokens += sum(answer.predicted_n for answer in done.answers)
        if done.end_mono - began >= STRETCH_S:
            return tokens / (done.end_mono - began)


def ratio(on: list[float], off: list[float]) -> tuple[float, float, float]:
    """Median ratio over the pairs, and its 95 % interval by rank, which a burst of other work in one pair cannot bend."""
    ratios = sorted(a / b for a, b in zip(on, off, strict=True))
    rank = max(1, int(binom.ppf(0.025, len(ratios), 0.5)))
    return statistics.median(ratios), ratios[rank - 1], ratios[-rank]


def timing(chosen: Chosen, seconds: float) -> str:
    def busy_cores() -> None:
        spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
        time.sleep(seconds)
        for process in spinning:
            process.kill()
            process.wait()

    loads: dict[str, Callable[[], object]] = {
        "nothing of ours": lambda: time.sleep(seconds),
        "every core, other programs": busy_cores,
        "Python in this process": lambda: spin(seconds),
    }
    rows = []
    for name, load in loads.items():
        with Power(chosen, RATE_HZ) as power:
            began = time.monotonic()
            load()
            end = time.monotonic()
            read = power.sampling(began, end)[chosen.meter.name]
            taken = group(power.samples(began, end))
        first, last = (taken[chosen.rails[i].name][0] for i in (0, -1))
        nth = np.searchsorted(last, first)
        rounds_s = last[nth[nth < len(last)]] - first[nth < len(last)]
        spacings_s = (read.interval_s, read.interval_s + read.late_95_s, read.interval_s + read.late_worst_s)
        times_ms = [1e3 * time_s for time_s in (*spacings_s, float(np.quantile(rounds_s, 0.95)))]
        rows.append((name, read.readings, read.missed, *times_ms))
    return tabulate(
        rows,
        headers=(
            "load",
            "samples",
            "missed",
            "apart: median ms",
            "95th ms",
            "worst ms",
            "all four rails within, 95th ms",
        ),
        floatfmt=("", "", "", ".1f", ".1f", ".1f", ".2f"),
    )


def spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


def main() -> None:
    parser = argparse.ArgumentParser(description="What sampling costs, and whether the samples come on time.")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each part")
    seconds = parser.parse_args().seconds
    print(f"load average at the start: {os.getloadavg()[0]:.2f} on {os.cpu_count()} CPUs")
    with four_rails() as chosen:
        for title, part in (("cost", cost), ("throughput", throughput), ("timing", timing)):
            print(f"\n{title}\n{part(chosen, seconds)}", flush=True)


if __name__ == "__main__":
    main()
