"""What goes wrong on a real machine: each is told in words a person can act on, and leaves nothing behind."""

import re
import subprocess

import pytest

KILLS_THE_SERVER = """
    import contextlib
    import threading

    import psutil
    import pytest

    @pytest.fixture(scope="session")
    def model_server(model_server):
        @contextlib.contextmanager
        def serve(setting, **limits):
            with model_server(setting, **limits) as server:
                if setting.server.parallel == 2:
                    shoot_while_it_answers(server)
                yield server

        return serve

    def shoot_while_it_answers(server):
        guards = [p for p in psutil.Process().children() if p.pid in server.pids]
        [program] = [child for guard in guards for child in guard.children()]
        answer = server.run_round

        def run_round(prompts, answer_tokens, round_index=0):
            if answer_tokens == 32:
                threading.Timer(0.1, program.kill).start()
            return answer(prompts, answer_tokens, round_index)

        server.run_round = run_round
"""

TAKES_EVERY_PORT = """
    import contextlib
    import socket
    import threading

    from pytest_joules.engines import llama_server

    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()

    def turn_away():
        with contextlib.suppress(OSError):
            while True:
                taken.accept()[0].close()

    threading.Thread(target=turn_away, daemon=True).start()
    llama_server.free_port = lambda: taken.getsockname()[1]
"""


def said(done: pytest.RunResult) -> str:
    """The error as it stands under its heading, without the lines of progress."""
    return next(line for line in done.outlines if re.match(r"joules: (?!measuring|real \d/)|void: |ERROR: ", line))


def test_a_server_that_is_killed_in_mid_window(project) -> None:
    project.write("conftest.py", KILLS_THE_SERVER)
    project.write(
        "test_real.py",
        """
        import pytest

        pytestmark = pytest.mark.joules("real")

        def test_two_at_once(sweep):
            assert sweep.tokens_per_s[2] > sweep.tokens_per_s[1]

        def test_one_alone(sweep):
            assert sweep.power_w[1] < 1000
        """,
    )
    project.suite(protocol={"passes": 2, "order": "reversed"})
    done = project.run("-v")
    done.assert_outcomes(passed=1, errors=1)
    assert said(done).startswith(
        "void: parallel=2: pass 1: llama-server died in mid-work: signal 9 (SIGKILL); its log ends: "
    )
    windows = [(w.condition["parallel"], w.outcome == "void") for w in project.stored().run.windows]
    assert windows == [(1, False), (2, True), (2, True), (1, False)]
    project.assert_no_orphans()


def test_a_model_that_is_cut_off(project, model_file) -> None:
    with model_file.open("rb") as whole:
        (project.folder / "half.gguf").write_bytes(whole.read(2**20))
    done = project.run("--joules-model=smollm2-135m-instruct=half.gguf")
    done.assert_outcomes(errors=1)
    assert re.fullmatch(r"joules: model .*half\.gguf: the file is cut off or damaged; fetch it again", said(done))
    assert not (project.folder / "results").exists()


def test_a_port_that_is_busy(project) -> None:
    project.write("conftest.py", TAKES_EVERY_PORT)
    done = project.run()
    done.assert_outcomes(errors=1)
    assert re.match(
        r"joules: nothing could be measured: llama-server: port \d+ on 127\.0\.0\.1 was taken by another program, 3 times in a row; "
        r"see what is listening there \(ss -ltnp\), then run again\.",
        said(done),
    )
    assert [path.name for path in (project.folder / "results").rglob("*.jsonl")] == ["ledger.jsonl"]
    project.assert_no_orphans()


def test_a_meter_that_does_not_exist(project) -> None:
    done = project.run("--joules-meter=estimated")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert "there is no" in said(done)
    assert "'estimated'; did you mean 'estimate'?; known: " in said(done)
    assert not (project.folder / "results").exists()


def test_a_key_of_the_suite_that_is_misspelt(project) -> None:
    project.suite(server={"thread": 1})
    done = project.run()
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    line = (project.folder / "suites" / "real.yaml").read_text().splitlines().index("  thread: 1") + 1
    assert said(done).startswith(
        f"ERROR: suites/real.yaml:{line}: server.thread: there is no server key 'thread'; did you mean 'threads'?; known: "
    )
    assert not (project.folder / "results").exists()


def test_a_prediction_that_is_not_committed(project) -> None:
    subprocess.run(["git", "init", "-q"], cwd=project.folder, check=True)
    done = project.run()
    done.assert_outcomes(errors=1)
    assert said(done) == (
        "joules: said after the fact? test_real.py suites/real.yaml are not committed as now written: "
        "git add test_real.py suites/real.yaml && git commit -m 'predict', or measure without registration: --joules-exploratory"
    )
    assert not (project.folder / "results").exists()
