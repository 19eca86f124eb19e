"""Kills pytest without a word (SIGKILL) at random moments of a measurement, again and again, and looks at what is left.

After each kill: no process that it had started may be there 3 s later; every window that had been told as closed must be readable;
`--joules-resume` must complete the table, leave nothing beside it, and give a result of the same shape as an undisturbed run.

    python benchmarks/trial_kills.py [--kills 50] [--seed 1] [--quickstart]

With --quickstart the suite is that of the quickstart, with its own lengths; without it a small one. Ends with 1 on any fault.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pytest_joules import ledger, models, store
from pytest_joules.engines import llama_server
from pytest_joules.records import Run

ROOT = Path(__file__).parents[1]
TOKEN = "JOULES_TRIAL_TOKEN"
"""Environment variable by whose value the processes of one trial are known, whoever their parents are by then."""

GONE_WITHIN_S, LONGEST_S = 3.0, 900.0
SHORTLY_S = 0.3
"""Every fourth kill comes within this time after a window has closed."""
SMALL_VARY = {"parallel": [1, 2]}
SMALL_REQUEST = {"answer_tokens": 16}
SMALL_PROTOCOL = {
    "warmup_s": None, "warmup_tokens": 8, "min_window_s": 0.3, "passes": 2, "order": "reversed", "idle_s": 0, "rate_hz": 20,
}  # fmt: skip

PREDICTION = '''
import pytest

@pytest.mark.joules("trial")
def test_one_alone_needs_some_power(sweep):
    """One request at a time needs under 10 kW."""
    assert sweep.power_w[1] < 10_000
'''

PHASES = """
import contextlib

import pytest

def enter(phase):
    with open("phases.log", "a") as file:
        file.write(phase + "\\n")

@pytest.fixture(scope="session")
def model_server(model_server):
    @contextlib.contextmanager
    def serve(setting, **limits):
        enter("loading")
        with model_server(setting, **limits) as server:
            enter("ready")
            yield server
            enter("stopping")
        enter("between")

    return serve

@pytest.fixture(scope="session")
def warm_chip(warm_chip):
    def warm(*arguments, **options):
        enter("warm")
        took_s = warm_chip(*arguments, **options)
        enter("measuring")
        return took_s

    return warm
"""


@dataclass
class Trial:
    """One project in which pytest is killed once.

    Attributes:
        told_before: windows that had been told as closed when pytest was killed.
        faults: what was not as it should be.
    """

    folder: Path
    quickstart: bool
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    told_before: int = 0
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        suite = yaml.safe_load((ROOT / "suites" / "quickstart.yaml").read_text())
        if not self.quickstart:
            suite |= {"vary": SMALL_VARY, "server": {"context_per_slot": 256, "threads": 1}, "request": SMALL_REQUEST}
            protocol = {**suite["protocol"], **SMALL_PROTOCOL}
            suite["protocol"] = {key: value for key, value in protocol.items() if value is not None}
        # What windows are worth beside whatever else runs on the machine is not what is tried here.
        suite |= {
            "require": {"basis": "any", "min_samples": 1},
            "gates": {"uncertainty_void_above": 10, "other_load_void_above": 1},
        }
        for name, text in {
            "suites/trial.yaml": yaml.safe_dump(suite, sort_keys=False),
            "test_trial.py": PREDICTION,
            "conftest.py": PHASES,
            "pytest.ini": "[pytest]\njoules_machine = trial\njoules_meter = estimate\n",
        }.items():
            (self.folder / name).parent.mkdir(exist_ok=True)
            (self.folder / name).write_text(text)
        self.own("temporary").mkdir()
        self.store = store.Store(self.own("results"))

    def own(self, name: str) -> Path:
        return self.folder / name

    def start(self, *options: str) -> subprocess.Popen[str]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        environment |= {
            TOKEN: self.token,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "TMPDIR": str(self.own("temporary")),
            "JOULES_LOCK_DIR": str(self.own("temporary")),
            "JOULES_STATE_DIR": str(self.own("state")),
            "JOULES_MODELS": os.environ.get("JOULES_MODELS", str(ROOT / "models")),
            "GIT_CEILING_DIRECTORIES": str(self.folder.parent),
        }
        with self.own("said.log").open("a") as said:
            return subprocess.Popen(
                [sys.executable, "-m", "pytest", "-p", "joules", *options],
                cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip

    def ours(self) -> list[int]:
        """Processes with the token, which children inherit and which stays when their parents are gone."""
        mark, found = f"{TOKEN}={self.token}".encode(), []
        for place in Path("/proc").iterdir():
            with suppress(OSError):
                if place.name.isdigit() and mark in (place / "environ").read_bytes().split(b"\0"):
                    found.append(int(place.name))
        return found

    def survivors(self) -> tuple[list[str], float]:
        """Names of those still there after `GONE_WITHIN_S`, or the seconds until none was."""
        begun = time.monotonic()
        while (left := self.ours()) and time.monotonic() - begun < GONE_WITHIN_S:
            time.sleep(0.02)
        names = []
        for pid in left:
            with suppress(OSError):
                names.append(Path(f"/proc/{pid}/comm").read_text().strip())
        return names, time.monotonic() - begun

    def told(self) -> int:
        """Windows that a line of progress has called closed."""
        return len(re.findall(r"^joules: trial \d+/\d+: ", self.own("said.log").read_text(), re.MULTILINE))

    def phase(self) -> str:
        if self.runs():
            return "judging"
        with suppress(OSError):
            return self.own("phases.log").read_text().split()[-1]
        return "starting"

    def runs(self) -> list[Path]:
        return sorted(self.own("results").glob("trial/trial/*.json"))

    def journals(self) -> list[Path]:
        return sorted(self.own("results").rglob("*.journal.jsonl"))

    def in_journal(self) -> int:
        """Whole lines of the suite's windows, counted without the package's own reader; idle ones alone hold nothing to go on with."""
        closed = 0
        for journal in self.journals():
            for line in journal.read_bytes().split(b"\n"):
                with suppress(ValueError):
                    record = json.loads(line)
                    closed += record["event"] == "window" and bool(record["window"]["condition"])
        return closed

    def readable(self) -> int:
        """Windows that the package reads from the run, or else from the journal."""
        if self.runs():
            return sum(bool(w.condition) for w in store.load(self.runs()[-1]).run.windows)
        left = self.store.interrupted("trial", "trial")
        return sum(bool(w.condition) for w in left.windows) if left else 0

    def complete(self) -> Run | None:
        """The table after `--joules-resume`."""
        process = self.start("--joules-resume")
        try:
            ended = process.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            process.kill()
            self.faults.append("the resumed run did not end")
            return None
        if ended not in (0, 1) or not self.runs():
            last = [line for line in self.own("said.log").read_text().splitlines() if line.strip()][-3:]
            self.faults.append(f"the resumed run ended with {ended}: {' | '.join(last)}")
            return None
        return store.load(self.runs()[-1]).run

    def stale(self) -> list[str]:
        """What the second run should have used or taken away."""
        found = [*self.journals(), *self.own("results").rglob(".*")]
        # A second run without a window left to measure starts no server, and leaves the logs to the next that does.
        if self.told() > self.told_before:
            found += self.own("temporary").glob("joules-logs-*")
        found += self.own("temporary").glob("*.holder")
        samples = {run.name.replace(".json", ".samples.jsonl.gz") for run in self.runs()}
        found += [path for path in self.own("results").rglob("*.gz") if path.name not in samples]
        return [path.name for path in found]


def shape(run: Run) -> Mapping[str, Any]:
    """What must not depend on whether the run was cut short."""
    plain = json.loads(store._strict(store._RUN.dump_python(run, mode="json")))
    windows = [window for window in plain["windows"] if window["role"] != "bridge"]
    silent = {"idle_before", "idle_after", "load_step"}
    return {
        "keys": sorted(plain),
        "keys of windows": sorted({key for window in windows for key in window}),
        "conditions": plain["conditions"],
        "passes": plain["passes"],
        "windows": [
            (w["sequence"], w["condition"], w["pass_index"], w["role"], w["answer_tokens"], len(w["requests"]) > 0, w["failure"])
            for w in windows
            if w["role"] not in silent
        ],
        # Each part of a run looks at the silent machine for itself.
        "silent windows": sorted({w["role"] for w in windows if w["role"] in silent}),
    }  # fmt: skip


@contextmanager
def trial(quickstart: bool) -> Iterator[Trial]:
    """A project in a folder of its own, of which no process is left."""
    folder = Path(tempfile.mkdtemp(prefix="joules-trial-"))
    made = Trial(folder, quickstart)
    try:
        yield made
    finally:
        for pid in made.ours():
            with suppress(OSError):
                os.kill(pid, 9)
        if made.faults:
            print(f"    kept for a look: {folder}", flush=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def killed(
    number: int, at_s: float, after: int, quickstart: bool, whole: Mapping[str, Any]
) -> tuple[str, list[str]] | None:
    """One kill, `at_s` seconds after the start or after so many windows have closed.

    Returns:
        The phase it hit and the faults found; `None` when pytest had ended before.
    """
    with trial(quickstart) as here:
        begun = time.monotonic()
        process = here.start()
        while here.told() < after and process.poll() is None:
            time.sleep(0.002)
        time.sleep(at_s)
        at_s = time.monotonic() - begun
        if process.poll() is not None:
            return None
        process.kill()
        process.wait()
        left, gone_s = here.survivors()
        phase, told, in_journal, readable = here.phase(), here.told(), here.in_journal(), here.readable()
        if left:
            here.faults.append(f"still there: {', '.join(left)}")
        if readable < told or (not here.runs() and in_journal and readable < in_journal):
            here.faults.append(f"{told} windows told, {in_journal} in the journal, {readable} readable")
        kept = store.load_journal(here.journals()[-1]).windows if readable and not here.runs() else ()
        finished_before = bool(here.runs())
        here.told_before = told
        run = here.complete()
        if run is not None:
            got = shape(run)
            here.faults += [f"{name}: {got[name]} is not {whole[name]}" for name in whole if got[name] != whole[name]]
            if lost := [window for window in kept if not window.failure and window not in run.windows]:
                here.faults.append(f"{len(lost)} closed windows are not in the result")
            bridged = sum(window.role == "bridge" for window in run.windows)
            if kept and not bridged and len(kept) < len(whole["windows"]):
                here.faults.append("resumed without a bridging window")
            here.faults += [f"{name} was left" for name in here.stale()]
            here.faults += ledger.read(here.own("results") / "trial" / ledger.NAME).faults
        if still := here.ours():
            here.faults.append(f"{len(still)} processes left by the second run")
        done = "stored before" if finished_before else "yes" if run else "NO"
        print(
            f"{number:>4}  {at_s:>7.2f}  {phase:<10} {told:>4} {in_journal:>8} {readable:>9}  {len(left):>9} {gone_s:>7.2f}  {done:<13} "
            f"{'; '.join(here.faults)}",
            flush=True,
        )
        return phase, here.faults


def main() -> int:
    """Kill, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quickstart", action="store_true", help="the suite of the quickstart, with its own lengths")
    options = parser.parse_args()
    llama_server.locate(None)
    os.environ.setdefault("JOULES_MODELS", str(ROOT / "models"))
    models.find("smollm2-135m-instruct", "q4_1", models.folders((), ROOT))
    draw = random.Random(options.seed)
    with trial(options.quickstart) as whole:
        begun = time.monotonic()
        run = whole.complete()
        took_s = time.monotonic() - begun
        if run is None:
            print("; ".join(whole.faults))
            return 1
        wanted = shape(run)
    print(f"undisturbed: {took_s:.1f} s, {len(wanted['windows'])} windows\n")
    print("kill     at s  phase      told  journal  readable  survivors  gone s  resumed       faults", flush=True)
    phases: collections.Counter[str] = collections.Counter()
    faulty = late = 0
    while phases.total() < options.kills:
        number = phases.total() + 1
        # Moments in which files are written are short, and would hardly be hit.
        after = draw.randint(1, len(wanted["windows"])) if number % 4 == 0 else 0
        at_s = draw.uniform(0.0, SHORTLY_S if after else took_s)
        found = killed(number, at_s, after, options.quickstart, wanted)
        if found is None:
            late += 1
            continue
        phases[found[0]] += 1
        faulty += bool(found[1])
    hit = ", ".join(f"{count} {phase}" for phase, count in phases.most_common())
    print(f"\n{phases.total()} kills ({hit}; {late} came too late and do not count), {faulty} with faults")
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())
