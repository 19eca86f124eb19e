import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_joules.engines import _process
from pytest_joules.engines._process import GuardedProcess
from pytest_joules.engines.llama_server import free_port
from pytest_joules.errors import EngineError

PROGRAMS = Path(__file__).parents[1] / "cases" / "L10-server-process-life" / "bin"

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process group is all there is")


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_process, "GRACE_S", 0.3)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., GuardedProcess]]:
    """Starts a Python program, given as a path or as text, under guard."""
    started: list[GuardedProcess] = []

    def _start(program: Path | str, *arguments: str, **environment: str) -> GuardedProcess:
        command = [str(program)] if isinstance(program, Path) else ["-c", textwrap.dedent(program)]
        log = tmp_path / f"{len(started)}.log"
        started.append(
            GuardedProcess([sys.executable, "-u", "-S", *command, *arguments], log, dict(os.environ) | environment)
        )
        return started[-1]

    yield _start
    for one in started:
        one.stop()


def said(guarded: GuardedProcess, words: str) -> bool:
    """Whether the log comes to hold some words."""
    deadline = time.monotonic() + 15.0
    while words not in guarded.log_text():
        if time.monotonic() > deadline or not guarded.running():
            return words in guarded.log_text()
        time.sleep(0.02)
    return True


def ended(guarded: GuardedProcess) -> bool:
    deadline = time.monotonic() + 15.0
    while guarded.running():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def pid_in(path: Path) -> int:
    deadline = time.monotonic() + 15.0
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, "the router started no child"
        time.sleep(0.02)
    return int(path.read_text())


def test_a_program_runs_and_is_stopped_in_order(start, gone) -> None:
    guarded = start(
        """
        import os, signal, sys, time
        def bye(*_):
            print("bye"); sys.exit(0)
        signal.signal(signal.SIGTERM, bye)
        print("hello", os.environ["GREETING"], file=sys.stderr)
        time.sleep(60)
        """,
        GREETING="from here",
    )
    assert said(guarded, "hello from here")
    assert guarded.running()
    assert guarded.pid in guarded.pids
    assert len(guarded.pids) == 2
    # A session of its own: Ctrl-C in a terminal is not for the program.
    assert os.getsid(guarded.pid) == guarded.pid
    guarded.stop()
    assert not guarded.running()
    assert gone(*guarded.pids)
    assert guarded.log_text().endswith("bye\n")
    guarded.stop()


@pytest.mark.parametrize(
    ("body", "how"),
    [
        ("import sys; print('out of memory'); sys.exit(137)", "exit code 137; its log ends: out of memory"),
        ("pass", "exit code 0; its log ends: (empty)"),
        ("import os; os.kill(os.getpid(), 4)", "signal 4 (SIGILL); its log ends: (empty)"),
        ("import os; os.kill(os.getpid(), 9)", "signal 9 (SIGKILL); its log ends: (empty)"),
    ],
)
def test_how_a_program_ended_is_told_with_the_end_of_its_log(start, body: str, how: str) -> None:
    guarded = start(body)
    assert ended(guarded)
    assert guarded.how_it_ended() == how
    assert guarded.how_it_ended() == how


def test_the_last_lines_of_a_long_log(start) -> None:
    guarded = start("import sys; [print('line', i) for i in range(1000)]; sys.stdout.buffer.write(b'caf\\xe9\\n')")
    assert ended(guarded)
    tail = guarded.log_tail()
    assert tail.startswith("line 999 | ")
    assert tail.endswith("line 999 | caf\N{REPLACEMENT CHARACTER}")


@pytest.mark.parametrize("kind", ["missing", "a folder", "no program"])
def test_what_cannot_be_started_is_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "llama-server"
    if kind == "a folder":
        path.mkdir()
    elif kind == "no program":
        path.write_text("just words")
        path.chmod(0o755)
    with pytest.raises(EngineError, match=r"^cannot start .*llama-server: \w+"):
        GuardedProcess([str(path)], tmp_path / "log", {})


def test_a_server_deaf_to_sigterm_is_gone_after_the_grace(start, gone) -> None:
    guarded = start(PROGRAMS / "stubborn_server.py")
    assert said(guarded, "listening")
    begun = time.monotonic()
    guarded.stop()
    assert gone(*guarded.pids)
    assert 0.3 <= time.monotonic() - begun < 15.0
    assert guarded.how_it_ended().startswith("signal 9 (SIGKILL)")


def test_a_server_that_nobody_reads_is_not_held_up(start) -> None:
    port = free_port()
    guarded = start(PROGRAMS / "chatty_server.py", "--port", str(port))
    answers = 0
    deadline = time.monotonic() + 20.0
    while answers < 5 and time.monotonic() < deadline:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer,
        ):
            answers += answer.status == 200
    assert answers == 5
    assert len(guarded.log_text()) > 2 * 2**20


@pytest.mark.parametrize("place", ["in its group", pytest.param("apart", marks=linux_only)])
def test_a_child_that_the_server_forgets_is_gone_too(start, gone, tmp_path: Path, place: str) -> None:
    guarded = start(PROGRAMS / "router_server.py", str(tmp_path / "pid"), *([place] if place == "apart" else []))
    child = pid_in(tmp_path / "pid")
    assert said(guarded, "listening")
    guarded.stop()
    assert gone(child, *guarded.pids)


@pytest.mark.parametrize("place", ["in its group", pytest.param("apart", marks=linux_only)])
def test_a_child_is_gone_when_the_server_dies_by_itself(start, gone, tmp_path: Path, place: str) -> None:
    guarded = start(PROGRAMS / "router_server.py", str(tmp_path / "pid"), *([place] if place == "apart" else []))
    child = pid_in(tmp_path / "pid")
    os.kill(guarded.pid, signal.SIGKILL)
    assert ended(guarded)
    assert guarded.how_it_ended().startswith("signal 9 (SIGKILL)")
    assert gone(child, *guarded.pids)


PARENT = """
    import os, sys, time
    from pathlib import Path
    from pytest_joules.engines import _process
    # Longer than anybody would wait: who has no parent any more is not given that long.
    _process.GRACE_S = 60.0
    folder, programs = Path(sys.argv[1]), Path(sys.argv[2])
    deaf = _process.GuardedProcess([sys.executable, "-S", str(programs / "stubborn_server.py")], folder / "deaf.log", os.environ)
    router = _process.GuardedProcess(
        [sys.executable, "-S", str(programs / "router_server.py"), str(folder / "pid"), *sys.argv[3:]], folder / "router.log", os.environ
    )
    while "listening" not in deaf.log_text() + "" or "listening" not in router.log_text():
        time.sleep(0.02)
    print(*deaf.pids, *router.pids, flush=True)
    time.sleep(120)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_the_parent_is_killed(gone, tmp_path: Path, number: signal.Signals) -> None:
    apart = ["apart"] if sys.platform == "linux" else []
    command = [sys.executable, "-c", textwrap.dedent(PARENT), str(tmp_path), str(PROGRAMS), *apart]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
        try:
            assert parent.stdout
            pids = [int(pid) for pid in parent.stdout.readline().split()]
            assert len(pids) == 4
            pids.append(int((tmp_path / "pid").read_text()))
        finally:
            parent.send_signal(number)
        parent.wait()
    assert gone(*pids)


@linux_only
def test_the_program_does_not_outlive_its_guard(start, gone) -> None:
    guarded = start("import time\nprint('here')\ntime.sleep(60)")
    assert said(guarded, "here")
    [guard] = guarded.pids - {guarded.pid}
    os.kill(guard, signal.SIGKILL)
    assert ended(guarded)
    assert gone(guarded.pid)
    assert guarded.how_it_ended() == "an unknown cause; its log ends: here"
