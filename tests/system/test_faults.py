"""What breaks in mid-run: nothing of ours survives it, the windows that had closed stay, and one line says what to do."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from pytest_joules import ledger, store
from pytest_joules.engines import llama_server
from pytest_joules.records import SCHEMA_VERSION

SCRIPTED = Path(__file__).parents[1] / "players" / "scripted_llama_server.py"

PREDICTION = """
    import pytest

    pytestmark = pytest.mark.joules("real")

    def test_one_alone(sweep):
        assert sweep.power_w[1] < 1000
"""

IN_THE_SECOND_CONDITION = """
    import contextlib
    import os
    import resource
    import shutil
    import signal
    import time
    from pathlib import Path

    import psutil
    import pytest

    FAULTY = Path("faulty").exists()

    def program_of(server):
        guards = [process for process in psutil.Process().children() if process.pid in server.pids]
        [program] = [child for guard in guards for child in guard.children()]
        return program

    def journal():
        [found] = Path("results").rglob("*.journal.jsonl")
        return found

    def full(path, bytes_left):
        # A file size limit takes a part of a write and fails at the rest, as a full disk does.
        limit = path.stat().st_size + bytes_left
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    def in_window(server):
        pass

    def after_window():
        pass

    @pytest.fixture(scope="session")
    def model_server(model_server):
        @contextlib.contextmanager
        def serve(setting, **limits):
            with model_server(setting, **limits) as server:
                if not FAULTY or setting.server.parallel != 2:
                    yield server
                    return
                answer = server.run_round

                def run_round(prompts, answer_tokens, round_index=0):
                    if answer_tokens == 12:
                        in_window(server)
                    return answer(prompts, answer_tokens, round_index)

                server.run_round = run_round
                yield server
                after_window()

        return serve
"""

METER = """
    import sys
    import time
    from pathlib import Path

    while not Path("dead").exists():
        print('{"power_w": %.3f}' % (20 + time.monotonic() % 1), flush=True)
        time.sleep(0.02)
        if Path("die").exists():
            Path("die").rename("died")
            break
    sys.exit("the socket was pulled")
"""


def said(done: pytest.RunResult) -> str:
    """The error as it stands under its heading, without the lines of progress."""
    return next(line for line in done.outlines if re.match(r"joules: (?!measuring|real \d/)|void: |ERROR: ", line))


def assert_no_traceback_of_ours(done: pytest.RunResult) -> None:
    shown = [line for line in done.outlines if "Traceback (most" in line or re.search(r"pytest_joules/.*\.py:\d", line)]
    assert shown == [], "\n".join(done.outlines)


class Faulty:
    """A project of which something breaks in the window of `parallel: 2`, on the real server unless told otherwise."""

    def __init__(self, project: Any) -> None:
        self.project, self.folder = project, project.folder
        self.results = self.folder / "results"
        project.write("test_real.py", PREDICTION)
        self.suite()

    def suite(self, *, vary: Any = None, **protocol: Any) -> None:
        quick = {"min_window_s": None, "rounds": 1, "warmup_tokens": 4, "rate_hz": 20, **protocol}
        self.project.suite(
            vary=vary or {"parallel": [1, 2]}, request={"answer_tokens": 12}, protocol=quick,
            gates={"other_load_void_above": 1, "uncertainty_void_above": 10},
        )  # fmt: skip

    def breaks(self, text: str) -> None:
        """What happens in the window, or after it, until `mended`."""
        self.project.write("conftest.py", textwrap.dedent(IN_THE_SECOND_CONDITION) + textwrap.dedent(text))
        (self.folder / "faulty").touch()

    def mended(self) -> None:
        (self.folder / "faulty").unlink()

    def program(self, text: str) -> str:
        """A shell script in place of llama-server, that knows `$REAL` and answers --help and --version as it does."""
        real = shlex.quote(str(llama_server.locate(None)))
        script = self.folder / "llama-server"
        script.write_text(f'#!/bin/sh\nREAL={real}\ncase "$1" in --help|--version) exec "$REAL" "$1";; esac\n{text}\n')
        script.chmod(0o755)
        return f"--joules-server={script}"

    def run(self, *arguments: str) -> pytest.RunResult:
        """pytest to its end; nothing it started survives it."""
        done = self.project.run(*arguments)
        print("\n".join(done.outlines))
        self.project.assert_no_orphans(within_s=8.0)
        assert not any("Traceback (most" in line for line in done.outlines), "\n".join(done.outlines)
        return done

    def journals(self) -> list[Path]:
        return sorted(self.results.rglob("*.journal.jsonl"))

    def closed(self) -> list[int]:
        """Batches of the windows in the only journal."""
        [journal] = self.journals()
        return [window.condition["parallel"] for window in store.load_journal(journal).windows]

    def left_by_killed_runs(self) -> list[Path]:
        """Files as SIGKILL leaves them at its worst moments, of a process that is long gone."""
        place, temporary = self.results / "bench" / "real", Path(os.environ["TMPDIR"])
        header = json.dumps({"event": "start", "run_id": "x", "schema_version": SCHEMA_VERSION})
        made = {
            place / "20260101T000000Z-000001.journal.jsonl": header[:20],
            place / "20260101T000000Z-000002.journal.jsonl": f"{header}\n",
            place / ".20260101T000000Z-000003.json.999999999.part": '{"schema_ver',
            temporary / "joules-logs-999999999-abcdef" / "llama-server-1.log": "srv  llama_server: loading model\n",
            Path(os.environ["JOULES_LOCK_DIR"]) / "pytest-joules.lock.holder": "suite real, process 999999999",
        }
        for path, text in made.items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return list(made)

    def assert_goes_on(self) -> None:
        """Once nothing is broken any more, the run is completed with what it had and leaves nothing beside it."""
        done = self.run("--joules-resume")
        done.assert_outcomes(passed=1)
        measured = [w for w in self.project.stored().run.windows if w.role == "measured" and w.outcome != "void"]
        assert [w.condition["parallel"] for w in measured] == [1, 2]
        self.assert_tidy()

    def assert_tidy(self) -> None:
        assert self.journals() == []
        assert list(self.results.rglob(".*")) == []
        assert list(Path(os.environ["TMPDIR"]).glob("joules-logs-*")) == []


@pytest.fixture
def faulty(project, environment, monkeypatch) -> Faulty:
    monkeypatch.setenv("TMPDIR", environment["TMPDIR"])
    return Faulty(project)


def test_a_server_that_hangs(faulty) -> None:
    faulty.suite(request_timeout_s=2)
    faulty.breaks(
        """
        def in_window(server):
            program_of(server).suspend()
        """
    )
    done = faulty.run()
    done.assert_outcomes(passed=1)
    [void] = [w for w in faulty.project.stored().run.windows if w.outcome == "void"]
    assert void.condition == {"parallel": 2}
    assert void.failure.startswith(
        "llama-server gave no answer within 2 s; ask for shorter answers, or raise request_timeout_s; its log ends: "
    )
    assert any(
        line.startswith("joules: real 2/2: parallel=2, pass 1: void: llama-server gave no") for line in done.outlines
    )
    faulty.assert_tidy()


def test_a_server_with_helpers_that_it_forgets(faulty) -> None:
    # One has ended and is never waited for, the other is in a session of its own.
    program = faulty.program('true &\nsetsid sleep 600 &\nsleep 0.1\nexec "$REAL" "$@"')
    faulty.run(program).assert_outcomes(passed=1)
    faulty.assert_tidy()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            "kill -ILL $$",
            "signal 4 (SIGILL); its log ends: (empty); it was likely built for another processor: build it here, or name another "
            "with --joules-server",
        ),
        (
            "echo 'ggml_backend_cuda_buffer_type_alloc_buffer: allocating 91000.00 MiB on device 0: cudaMalloc failed: out of memory' >&2\n"
            "exit 1",
            "; lower parallel or context_per_slot, take a smaller model, or free memory",
        ),
    ],
    ids=["illegal instruction", "out of memory"],
)
def test_a_server_that_dies_while_loading(faulty, script: str, words: str) -> None:
    done = faulty.run(faulty.program(script))
    done.assert_outcomes(errors=1)
    assert said(done).startswith("joules: nothing could be measured: llama-server ended while loading: ")
    assert said(done).endswith(words)
    faulty.assert_tidy()


def test_a_server_that_loads_for_too_long(faulty) -> None:
    faulty.suite(ready_timeout_s=1)
    done = faulty.run(faulty.program("echo loading tensors >&2\nsleep 600"))
    done.assert_outcomes(errors=1)
    assert re.fullmatch(
        r"joules: nothing could be measured: llama-server was not ready within 1 s \(/health: \w+\); raise ready_timeout_s, "
        r"or see its log: loading tensors",
        said(done),
    )
    faulty.assert_tidy()


def test_a_server_that_has_nothing_but_errors(faulty) -> None:
    trouble = {"error": {"code": 500, "message": "CUDA error: misaligned address", "type": "server_error"}}
    ready = {
        "GET /health": [{"json": {"status": "ok"}}],
        "GET /props": [{"json": {"total_slots": 1, "default_generation_settings": {"n_ctx": 256}}}],
    }
    (faulty.folder / "scenario.json").write_text(
        json.dumps({"routes": ready, "default": {"status": 500, "json": trouble}})
    )
    script = faulty.folder / "scripted"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -S {SCRIPTED} scenario.json requests.jsonl "$@"\n')
    script.chmod(0o755)
    faulty.project.suite(vary={"answer_tokens": [8, 16]}, request={"answer_tokens": None}, server={"parallel": 1})
    faulty.project.write("test_real.py", PREDICTION.replace("power_w[1]", "power_w[8]"))
    done = faulty.run(f"--joules-server={script}")
    done.assert_outcomes(errors=1)
    assert said(done).startswith("void: answer_tokens=8: pass 1: llama-server")
    assert "CUDA error: misaligned address" in said(done)
    assert [window.outcome for window in faulty.project.stored().run.windows] == ["void", "void"]
    faulty.assert_tidy()


def test_a_model_that_is_something_else(faulty) -> None:
    (faulty.folder / "page.gguf").write_text("<!doctype html><title>404</title>")
    done = faulty.run("--joules-model=smollm2-135m-instruct=page.gguf")
    done.assert_outcomes(errors=1)
    assert re.match(r"joules: model .*page\.gguf: this is no GGUF file", said(done))
    assert not faulty.results.exists()


@pytest.fixture
def meter(faulty) -> str:
    faulty.project.write("meter.py", METER)
    faulty.suite(idle_s=0)
    return f"--joules-meter=command:{sys.executable} -S meter.py"


def test_a_meter_that_dies_and_comes_back(faulty, meter) -> None:
    faulty.breaks(
        """
        def in_window(server):
            Path("die").touch()
            while not Path("died").exists():
                time.sleep(0.01)
        """
    )
    faulty.suite(vary={"parallel": [2, 1]})
    faulty.run(meter).assert_outcomes(passed=1)
    windows = faulty.project.stored().run.windows
    assert [(w.condition["parallel"], w.outcome == "void") for w in windows] == [(2, True), (1, False)]
    assert "ended with exit code 1: the socket was pulled" in "; ".join(windows[0].reasons)
    faulty.assert_tidy()


def test_a_meter_that_dies_for_good(faulty, meter) -> None:
    faulty.breaks(
        """
        def in_window(server):
            Path("dead").touch()
        """
    )
    done = faulty.run(meter)
    done.assert_outcomes(errors=1)
    assert re.fullmatch(
        r"joules: meter command: .* ended with exit code 1: the socket was pulled; .*; "
        r"2 closed windows are kept in \S+\.journal\.jsonl; --joules-resume goes on from there",
        said(done),
    )
    assert_no_traceback_of_ours(done)
    assert faulty.closed() == [1, 2]


def test_a_disk_that_fills_up_in_mid_run(faulty) -> None:
    faulty.breaks(
        """
        def in_window(server):
            full(journal(), 100)
        """
    )
    done = faulty.run()
    done.assert_outcomes(errors=1)
    assert re.fullmatch(
        r"joules: the last window is lost: \S+/results/bench/real takes no more \(File too large\); make room there, then run again; "
        r"1 closed window is kept in \S+\.journal\.jsonl; --joules-resume goes on from there",
        said(done),
    )
    assert_no_traceback_of_ours(done)
    faulty.mended()
    faulty.assert_goes_on()
    assert ledger.read(faulty.results / "bench" / ledger.NAME).faults == ()


def test_a_disk_that_fills_up_at_the_end(faulty) -> None:
    faulty.breaks(
        """
        def after_window():
            full(journal(), 100)
        """
    )
    done = faulty.run()
    done.assert_outcomes(errors=1)
    assert re.fullmatch(
        r"joules: the run cannot be kept: \S+/results/bench/real takes no more \(File too large\); make room there, then run again; "
        r"2 closed windows are kept in \S+\.journal\.jsonl; --joules-resume goes on from there",
        said(done),
    )
    assert_no_traceback_of_ours(done)
    faulty.mended()
    before = faulty.closed()
    faulty.assert_goes_on()
    # Nothing was left to measure, not even once more.
    assert [window.condition["parallel"] for window in faulty.project.stored().run.windows] == before


def test_results_that_are_deleted_in_mid_run(faulty) -> None:
    faulty.suite(passes=2)
    faulty.breaks(
        """
        def in_window(server):
            if Path("deleted").exists():
                signal.raise_signal(signal.SIGTERM)
            shutil.move("results", "deleted")
        """
    )
    done = faulty.run()
    assert done.ret == pytest.ExitCode.INTERRUPTED
    [made_anew] = [line for line in done.outlines if "was taken away" in line]
    assert re.fullmatch(
        r"joules: \S+\.journal\.jsonl was taken away while it was written; it was made anew with all it held", made_anew
    )
    [kept] = [line for line in done.outlines if line.startswith("cut short: ")]
    assert re.match(
        r"cut short: 3 closed windows are kept in \S+\.journal\.jsonl; --joules-resume goes on from there", kept
    )
    assert faulty.closed() == [1, 2, 1]


def test_results_that_are_replaced_by_a_file(faulty) -> None:
    faulty.breaks(
        """
        def in_window(server):
            shutil.rmtree("results")
            Path("results").touch()
        """
    )
    done = faulty.run()
    done.assert_outcomes(errors=1)
    assert re.fullmatch(
        r"joules: the last window is lost: \S+/results/bench/real takes no more \(\w[\w ]+\); see to it, then run again; "
        r"1 closed window is lost: \S+\.journal\.jsonl was taken away and could not be made anew",
        said(done),
    )
    assert_no_traceback_of_ours(done)


def test_results_that_cannot_be_written(faulty, monkeypatch) -> None:
    faulty.results.mkdir(mode=0o555)
    if os.geteuid() == 0:
        # Permissions bind root too, once it has no leave to pass over them.
        drop, override, search = 24, 1, 2
        libc, start = ctypes.CDLL(None), subprocess.Popen
        monkeypatch.setattr(
            subprocess, "Popen",
            lambda *a, **k: start(*a, **k, preexec_fn=lambda: [libc.prctl(drop, right, 0, 0, 0) for right in (override, search)]),
        )  # fmt: skip
    done = faulty.project.run()
    done.assert_outcomes(errors=1)
    assert re.fullmatch(
        r"joules: the results folder \S+/results cannot be written \(Permission denied\); name another with --joules-results",
        said(done),
    )
    assert list(faulty.results.iterdir()) == []


def test_a_time_limit_on_the_test(faulty) -> None:
    # As if the time of the limit had come just now.
    faulty.breaks(
        """
        def in_window(server):
            signal.raise_signal(signal.SIGALRM)
        """
    )
    done = faulty.run("-p", "pytest_timeout", "--timeout=60", "--timeout-method=signal")
    done.assert_outcomes(errors=1)
    assert any("Timeout (>60.0s) from pytest-timeout" in line for line in done.outlines)
    assert any(line.startswith("cut short: 1 closed window is kept in ") for line in done.outlines)
    assert faulty.closed() == [1]


def test_a_time_limit_that_ends_pytest_itself(faulty) -> None:
    faulty.breaks(
        """
        import threading

        def in_window(server):
            [limit] = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
            limit.function(*limit.args)
        """
    )
    done = faulty.run("-p", "pytest_timeout", "--timeout=60", "--timeout-method=thread")
    assert done.ret == 1
    assert faulty.closed() == [1]
    faulty.mended()
    stale = faulty.left_by_killed_runs()
    begun_anew = faulty.run()
    begun_anew.assert_outcomes(passed=1)
    at = begun_anew.outlines.index("joules: measuring real, 2 windows")
    assert re.fullmatch(
        r"joules: a run of this suite that was cut short after 1 windows? is kept; this one begins anew "
        r"\(--joules-resume goes on with it\)",
        begun_anew.outlines[at + 1],
    )
    assert [path for path in stale if path.exists()] == []
    assert faulty.closed() == [1]


def test_a_test_that_ends_the_process(faulty) -> None:
    faulty.project.write(
        "test_that_is_no_prediction.py",
        """
        import os

        def test_that_ends_it_all(model_server):
            with model_server(parallel=1, context_per_slot=256, threads=1):
                os._exit(3)
        """,
    )
    assert faulty.run("test_real.py", "test_that_is_no_prediction.py").ret == 3
    assert [w.condition["parallel"] for w in faulty.project.stored().run.windows] == [1, 2]
    assert faulty.journals() == []


def test_a_fixture_that_fails_after_measuring(faulty) -> None:
    faulty.project.write(
        "test_real.py",
        """
        import pytest

        @pytest.mark.joules("real")
        def test_one_alone(sweep):
            assert sweep.power_w[1] < 1000

        @pytest.fixture
        def broken(model_server):
            with model_server(parallel=1, context_per_slot=256, threads=1):
                raise RuntimeError("not today")

        def test_another(broken):
            pass
        """,
    )
    done = faulty.run()
    done.assert_outcomes(passed=1, errors=1)
    assert f"result: {faulty.project.stored().path.relative_to(faulty.folder)}" in done.outlines
    assert_no_traceback_of_ours(done)
    faulty.assert_tidy()
