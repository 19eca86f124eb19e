"""Small projects, measured with the real llama-server and the real model of the quickstart, each in a process of its own."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from pytest_joules import models, store
from pytest_joules.engines import llama_server
from pytest_joules.errors import Unmeasured

MODEL = ("smollm2-135m-instruct", "q4_1")
TOKEN = "JOULES_TESTS_TOKEN"
"""Environment variable by whose value the processes of one test are known, whoever their parents are by then."""

SUITE: Mapping[str, Any] = {
    "question": "Does the real thing work?",
    "model": MODEL[0],
    "format": MODEL[1],
    "vary": {"parallel": [1, 2]},
    # One thread: several would wait for each other wherever another program is at work.
    "server": {"context_per_slot": 256, "threads": 1},
    "request": {"answer_tokens": 32},
    "protocol": {
        "warmup_tokens": 4, "min_window_s": 1, "passes": 1, "order": "as_given", "idle_s": 0, "rate_hz": 10,
        "ready_timeout_s": 60, "request_timeout_s": 60,
    },
    "require": {"basis": "any", "min_samples": 2},
    # Nor is what other programs do meanwhile.
    "gates": {"uncertainty_void_above": 10, "other_load_void_above": 10},
}  # fmt: skip

PREDICTION = """
    import pytest

    pytestmark = pytest.mark.joules("real")

    def test_two_at_once(sweep):
        \"\"\"Two at once are faster than one.\"\"\"
        assert sweep.tokens_per_s[2] > sweep.tokens_per_s[1]
"""


class RealProject:
    """A folder with one suite and one prediction about it.

    Attributes:
        token: what its processes have in their environment.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder, self.token = folder, uuid.uuid4().hex
        self._environment = {**environment, TOKEN: self.token, "JOULES_STATE_DIR": str(folder / "state")}
        (folder / "pytest.ini").write_text("[pytest]\njoules_machine = bench\njoules_meter = estimate\n")
        self.suite()
        self.write("test_real.py", PREDICTION)

    def suite(self, **sections: Any) -> None:
        """The suite, with some keys of some sections other than usual; `None` leaves a key out."""
        changed = copy.deepcopy(dict(SUITE))
        for section, value in sections.items():
            merged = {**changed.get(section, {}), **value} if isinstance(value, dict) and section != "vary" else value
            changed[section] = (
                {k: v for k, v in merged.items() if v is not None} if isinstance(merged, dict) else merged
            )
        kept = {section: value for section, value in changed.items() if value is not None}
        self.write("suites/real.yaml", yaml.safe_dump(kept, sort_keys=False))

    def write(self, name: str, text: str) -> None:
        """A file of the project."""
        file = self.folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(textwrap.dedent(text))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """pytest, under way."""
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "joules", *arguments],
            cwd=self.folder, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def run(self, *arguments: str) -> pytest.RunResult:
        """pytest, to its end; standard error is among the output."""
        with self.start(*arguments) as process:
            output, _ = process.communicate(timeout=120)
        return pytest.RunResult(process.returncode, output.splitlines(), [], 0.0)

    def processes(self) -> list[psutil.Process]:
        """The processes that were started for this project and are still there."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(TOKEN) == self.token:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def server_at_work(self) -> bool:
        """A llama-server is there and has done more than load its model."""
        try:
            return any("llama-server" in p.name() and p.cpu_times().user > 0.5 for p in self.processes())
        except psutil.NoSuchProcess:
            return False

    def assert_no_orphans(self, within_s: float = 20.0) -> None:
        """All of them end."""
        deadline = time.monotonic() + within_s
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert left == []

    def stored(self) -> store.StoredRun:
        """The only stored run."""
        [found] = store.Store(self.folder / "results").runs("bench", "real")
        return found

    def journal(self) -> list[dict[str, Any]]:
        """The events in the only journal; none while there is no journal."""
        found = list((self.folder / "results").rglob("*.journal.jsonl"))
        return [json.loads(line) for line in found[0].read_text().splitlines()] if found else []


@pytest.fixture(scope="session")
def model_file() -> Path:
    """The model of the quickstart, where it and a llama-server are installed."""
    try:
        llama_server.locate(None)
        return models.find(*MODEL, models.folders((), Path.cwd()))
    except Unmeasured as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of the started processes: a lock and a cache of their own, and no plugins beside this one."""
    place = tmp_path_factory.mktemp("surroundings")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHONDONTWRITE"))}
    return {
        **kept,
        "TMPDIR": str(place),
        "XDG_CACHE_HOME": str(place),
        "PYTHONPYCACHEPREFIX": str(place / "bytecode"),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        **{f"GIT_{who}_{what}": "someone@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }


@pytest.fixture
def project(model_file: Path, environment: dict[str, str], tmp_path: Path) -> Iterator[RealProject]:
    """A project; whatever a test does to it, none of its processes is left."""
    made = RealProject(tmp_path, environment)
    yield made
    left = made.processes()
    for process in left:
        process.kill()
    assert left == []


@pytest.fixture
def until() -> Callable[[Callable[[], object]], None]:
    """Waits until something is so."""

    def wait(is_so: Callable[[], object], within_s: float = 60.0) -> None:
        deadline = time.monotonic() + within_s
        while not is_so():
            assert time.monotonic() < deadline, "it did not come about"
            time.sleep(0.05)

    return wait
