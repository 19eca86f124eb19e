"""What `joules compare` takes over many results.

A stored run is multiplied into results of many machines, written as a measurement writes them, with speed, energy and meter of
each machine its own. Then the command is started as a user starts it, and its time and the most memory it held are printed: of the
newest run of each machine, and of every run.

    python benchmarks/bench_compare.py [--runs 1000] [--machines 50] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from pytest_joules.records import Run, Window
from pytest_joules.store import Store, StoredRun, load, load_verdicts, run_files

ALLOWED_S = 2.0
SOURCE = Path(__file__).parents[1] / "results" / "amd-epyc-24gb" / "quickstart"


def made(original: Run, machine: int, number: int, chance: random.Random) -> Run:
    """A run of another machine at another date: the same record, every window with figures of its own."""
    speed, power = 0.5 + machine % 7, 0.6 + machine % 5

    def window(one: Window) -> Window:
        seconds = one.window_s / speed * chance.lognormvariate(0.0, 0.01)
        energy_j = None if one.energy_j is None else one.energy_j * power / speed * chance.lognormvariate(0.0, 0.02)
        return replace(one, end_mono=one.start_mono + seconds, energy_j=energy_j)

    covers = ("cpu",) if machine % 2 else ("cpu", "dram")
    meter = replace(
        original.meter, name="rapl", basis="measured", covers=covers,
        rails=tuple(replace(r, covers=covers, basis="measured", calibration=0.02) for r in original.meter.rails),
    )  # fmt: skip
    return replace(
        original,
        run_id=f"2027{1 + number // 28 % 12:02d}{1 + number % 28:02d}T{number % 24:02d}0000Z-{machine:03x}{number:03x}",
        machine={**original.machine, "chip": f"Made-up CPU {machine}"},
        machine_slug=f"machine-{machine:02d}-24gb",
        meter=meter,
        windows=tuple(window(one) for one in original.windows),
        samples_file="",
    )


def fill(folder: Path, runs: int, machines: int) -> int:
    """Write the results, with the verdicts of the original; returns their size in bytes."""
    chance = random.Random(1)
    original = load(run_files(SOURCE)[-1])
    verdicts = load_verdicts(original)
    kept = Store(folder)
    for number in range(runs):
        run = made(original.run, number % machines, number // machines, chance)
        stored: StoredRun = kept.write(run, ())
        kept.append_verdicts(stored, [replace(verdict, run_id=run.run_id) for verdict in verdicts])
    return sum(path.stat().st_size for path in run_files(folder))


def started(folder: Path, *arguments: str) -> tuple[float, float, float]:
    """One start of the command: seconds, seconds of CPU time, most MiB."""
    command = [sys.executable, "-m", "pytest_joules", "compare", "quickstart", f"--results={folder}", *arguments]
    start = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    took_s = time.perf_counter() - start
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {child.returncode}")
    scale = 1 if sys.platform == "darwin" else 1024
    return took_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * scale / 2**20


def measure(folder: Path, starts: int) -> None:
    """Start the command and print."""
    for name, arguments in (
        ("newest of each machine", ()),
        ("the same as JSON", ("--json",)),
        ("every run", ("--all",)),
    ):
        started(folder, *arguments)  # brings the files into memory
        took_s, cpu_s, most_mib = zip(*(started(folder, *arguments) for _ in range(starts)), strict=True)
        middle_s = statistics.median(took_s)
        print(
            f"{name:<24}{middle_s:6.2f} s median of {starts}, worst {max(took_s):.2f} s, {statistics.median(cpu_s):.2f} s of CPU time, "
            f"{max(most_mib):.0f} MiB at most"
        )
        if not arguments:
            print(f"{'':<24}{'under' if middle_s < ALLOWED_S else 'OVER'} the {ALLOWED_S:.0f} s it may take")


def main() -> None:
    """Make the results, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--machines", type=int, default=50)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="make the results here and leave them; what is there is used again")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.keep or Path(temporary)
        if not run_files(folder):
            fill(folder, asked.runs, asked.machines)
        files = run_files(folder)
        print(f"{len(files)} results, {sum(path.stat().st_size for path in files) / 2**20:.0f} MiB")
        measure(folder, asked.starts)


if __name__ == "__main__":
    main()
