"""Projects of their own, measured on a server that follows a script; all the rest of the plugin is the real one."""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import yaml

from pytest_joules import engines, knobs, meters, store
from pytest_joules.records import Run, Verdict

SUITE: Mapping[str, Any] = {
    "question": "Does the table tell what the script says?",
    "model": "tiny",
    "format": "q4_0",
    "vary": {"parallel": [1, 2]},
    "server": {"context_per_slot": 256},
    "request": {"answer_tokens": 8},
    "protocol": {"rounds": 1, "warmup_tokens": 1, "passes": 2, "order": "reversed", "idle_s": 0, "rate_hz": 20},
    "require": {"basis": "any", "min_samples": 1},
    # Windows this short are all edge; what they are worth is not what is tested here.
    "gates": {"uncertainty_void_above": 10, "other_load_void_above": 10},
}

SCRIPTED_SERVER = '''
import contextlib
import time
from pathlib import Path

import pytest

from pytest_joules.engines import Counters, Round
from pytest_joules.errors import EngineError
from pytest_joules.records import RequestRecord

ROUND_S = 0.15
rounds = []


def starting(setting):
    """What happens when a server is started."""


def answering(server):
    """What happens before a measured round is answered."""


class ScriptedServer:
    facts, deviations, pids = {"scripted": True}, (), frozenset()

    def __init__(self, setting):
        self.setting, self.slots, self.steps = setting, setting.server.parallel, 0

    def prompts(self, text, count, first=0, *, identical=False):
        return [[1, 2, 3]] * count

    def run_round(self, prompts, answer_tokens, round_index=0):
        start = time.monotonic()
        # A round of any other length is the warm-up.
        if answer_tokens == self.setting.request.answer_tokens:
            rounds.append(self.slots)
            answering(self)
            time.sleep(ROUND_S)
        took_s = time.monotonic() - start
        self.steps += answer_tokens
        answers = [
            RequestRecord(
                slot=slot, round=round_index, sent_s=0.0, received_s=took_s, prompt_n=3, cache_n=0,
                predicted_n=answer_tokens, prompt_ms=1.0, predicted_ms=1.0, stop_type="limit",
            )
            for slot in range(len(prompts))
        ]
        return Round(start, start + took_s, tuple(answers))

    def counters(self):
        return Counters(self.steps, self.steps * self.slots)


@pytest.fixture(scope="session")
def model_server():
    @contextlib.contextmanager
    def serve(setting, **limits):
        with Path(__file__).with_name("starts.log").open("a") as log:
            log.write(f"{setting.server.parallel}\\n")
        starting(setting)
        yield ScriptedServer(setting)

    return serve
'''

INI = """
[pytest]
joules_machine = bench
joules_meter = estimate
"""

NO_OTHER_PLUGINS = "PYTEST_DISABLE_PLUGIN_AUTOLOAD"

Runner = Callable[..., pytest.RunResult]


class Project:
    """A folder with a suite, predictions and a scripted server.

    Attributes:
        run: runs pytest there with the arguments given; within this process where `project` made it.
    """

    def __init__(self, folder: Path, run: Runner | None = None) -> None:
        self.folder, self.run = folder, run or self.run_apart
        (folder / "pytest.ini").write_text(INI)
        self.script()
        self.suite()

    def run_apart(
        self, *arguments: str, python: Sequence[str] = (), plugins: Sequence[str] | None = ()
    ) -> pytest.RunResult:
        """Run pytest in a process of its own.

        Args:
            python: options of the interpreter.
            plugins: what to load beside this plugin; `None` for whatever is installed, as a user has it.
        """
        environment = {name: value for name, value in os.environ.items() if name != NO_OTHER_PLUGINS}
        environment["JOULES_STATE_DIR"] = str(self.state)
        if plugins is None:
            # The order of the tests is as written here, as it is for these tests themselves.
            arguments = ("-p", "no:randomly", *arguments)
        else:
            environment[NO_OTHER_PLUGINS] = "1"
            arguments = (*(f"-p{name}" for name in ("joules", *plugins)), *arguments)
        done = subprocess.run(
            [sys.executable, *python, "-m", "pytest", *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return pytest.RunResult(done.returncode, done.stdout.splitlines(), done.stderr.splitlines(), 0.0)

    def script(self, text: str = "") -> None:
        """The conftest: the scripted server, and what `text` puts in place of its parts."""
        (self.folder / "conftest.py").write_text(SCRIPTED_SERVER + textwrap.dedent(text))

    def suite(self, name: str = "scripted", **sections: Any) -> None:
        """A suite with some keys of some sections other than usual."""
        changed = {
            key: {**SUITE[key], **value} if isinstance(value, dict) and key in SUITE and key != "vary" else value
            for key, value in sections.items()
        }
        file = self.folder / "suites" / f"{name}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(yaml.safe_dump({**SUITE, **changed}, sort_keys=False))

    def predictions(self, text: str, mark: str = '"scripted"', name: str = "test_predictions.py") -> None:
        """A module of predictions under one mark."""
        head = f"import pytest\n\npytestmark = pytest.mark.joules({mark})\n\n"
        (self.folder / name).write_text(head + textwrap.dedent(text))

    def git(self, *arguments: str) -> None:
        """Run git in the project."""
        subprocess.run(["git", *arguments], cwd=self.folder, check=True, capture_output=True)

    def commit(self) -> None:
        """Make it a repository with everything committed."""
        self.git("init", "-q")
        (self.folder / ".gitignore").write_text("results/\nstate/\nstarts.log\n.pytest_cache/\n__pycache__/\n.cache/\n")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "predict")

    @property
    def state(self) -> Path:
        """The folder of this user's state."""
        return self.folder / "state"

    @property
    def starts(self) -> int:
        """How many servers were started."""
        log = self.folder / "starts.log"
        return len(log.read_text().splitlines()) if log.exists() else 0

    @property
    def results(self) -> Path:
        """The results folder."""
        return self.folder / "results"

    def all_stored(self, suite: str = "scripted") -> list[store.StoredRun]:
        """Every stored run of a suite, oldest first."""
        return list(store.Store(self.results).runs("bench", suite))

    def stored(self, suite: str = "scripted") -> store.StoredRun:
        """The only stored run of a suite."""
        [found] = self.all_stored(suite)
        return found

    def stored_run(self, suite: str = "scripted") -> Run:
        """The only run of a suite."""
        return self.stored(suite).run

    def verdicts(self, suite: str = "scripted") -> dict[str, Verdict]:
        """The verdicts on the only run of a suite, by the name of the function with its parameters."""
        return {v.prediction.rsplit("::", 1)[1]: v for v in store.load_verdicts(self.stored(suite))}

    def journals(self) -> list[Path]:
        """Journals that were left behind."""
        return sorted(self.results.rglob("*.journal.jsonl"))

    def assert_untouched(self) -> None:
        """Nothing was started, and no result was made."""
        assert self.starts == 0
        assert not self.results.exists()


@pytest.fixture(scope="session")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of a machine with a model, a server program, a git user and a lock of its own."""
    place = tmp_path_factory.mktemp("surroundings")
    for folder in ("models", "temporary", "cache"):
        (place / folder).mkdir()
    model = gguf.GGUFWriter(place / "models" / "tiny-q4_0.gguf", "llama")
    model.add_tensor("token_embd.weight", np.zeros((4, 8), dtype=np.float32))
    model.write_header_to_file()
    model.write_kv_data_to_file()
    model.write_tensors_to_file()
    model.close()
    program = place / "llama-server"
    program.write_text("#!/bin/sh\necho 'version: 4321 (abcdef0)'\n")
    program.chmod(0o755)
    return {
        "JOULES_MODELS": str(place / "models"),
        "JOULES_LLAMA_SERVER": str(program),
        # Other measurements on this machine hold another lock and remember other models.
        "TMPDIR": str(place / "temporary"),
        "XDG_CACHE_HOME": str(place / "cache"),
        # Compiled once for all the processes that are started.
        "PYTHONPYCACHEPREFIX": str(place / "bytecode"),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        **{f"GIT_{who}_{what}": "someone@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }


@pytest.fixture(scope="module")
def moved_there(surroundings: dict[str, str]) -> Iterator[None]:
    """This process, and those it starts, in the surroundings."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in surroundings.items():
            patch.setenv(name, value)
        patch.setattr(tempfile, "tempdir", surroundings["TMPDIR"])
        # The first two are set where these tests themselves run under pytest-xdist.
        for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_ADDOPTS", "PYTHONDONTWRITEBYTECODE"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session")
def sources_loaded() -> None:
    """Every module that a run would import, so that a run within this process does not import it anew each time."""
    importlib.import_module("pytest_joules.collecting")
    meters.sources()
    engines.engines()
    knobs.knobs()


@pytest.fixture(scope="module")
def project_apart(moved_there: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Project]:
    """Makes projects whose pytest runs in a process of its own."""
    return lambda: Project(tmp_path_factory.mktemp("project"))


@pytest.fixture
def project(
    moved_there: None, sources_loaded: None, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> Project:
    """A project whose pytest runs within this process, with this plugin alone."""
    # Every run imports its plugins anew, which would take longer than most runs.
    monkeypatch.setenv(NO_OTHER_PLUGINS, "1")
    # Watching for other load takes half a second; all it would find here is other tests.
    monkeypatch.setattr("pytest_joules.machine.heavy_processes", lambda *_, **__: [])
    # All projects have the same machine and model, and none has seen another's data.
    monkeypatch.setenv("JOULES_STATE_DIR", str(pytester.path / "state"))
    return Project(pytester.path, functools.partial(pytester.runpytest_inprocess, "-p", "joules"))
