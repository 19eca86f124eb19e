"""The engine without a server, with the real library and the real model."""

import contextlib
import importlib.util
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pytest_joules import gates
from pytest_joules.engines import in_process, llama_server
from pytest_joules.engines.in_process import InProcessServer
from pytest_joules.errors import EngineError
from pytest_joules.models import ModelFile
from pytest_joules.suite import Draft, Request, Server, Setting

TOKENS = 32

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed"
)

Serve = Callable[..., contextlib.AbstractContextManager[InProcessServer]]


def setting(parallel: int, engine: str = "in-process") -> Setting:
    # One thread: several would wait for each other wherever another program is at work.
    server = Server(parallel=parallel, context_per_slot=256, threads=1)
    return Setting(engine=engine, model="m", format=None, server=server, request=Request(), draft=Draft(), knobs={})


@pytest.fixture(scope="module")
def model(model_file: Path) -> ModelFile:
    return ModelFile(path=model_file, size_bytes=model_file.stat().st_size, sha256="0" * 64)


@pytest.fixture
def serve(model: ModelFile, tmp_path: Path) -> Serve:
    @contextlib.contextmanager
    def build(parallel: int) -> Iterator[InProcessServer]:
        with in_process.find().serve(setting(parallel), model, None, tmp_path, 60.0, 60.0) as started:
            yield started

    return build


def test_one_slot_answers_as_llama_server_does(serve: Serve, model: ModelFile, tmp_path: Path) -> None:
    with serve(1) as ours:
        prompts = ours.prompts("Name three rivers.", 2)
        found = [tokens for prompt in prompts for tokens in ours.generate([prompt], TOKENS)]
    engine = llama_server.find()
    with engine.serve(setting(1, "llama-server"), model, None, tmp_path, 60.0, 60.0) as theirs:
        assert theirs.prompts("Name three rivers.", 2) == prompts
        body = {"n_predict": TOKENS, "ignore_eos": True, "temperature": 0, "cache_prompt": False, "return_tokens": True}
        answers = [theirs._connection.post_json("/completion", {**body, "prompt": prompt}) for prompt in prompts]
    assert [answer["tokens"] for answer in answers] == found


def test_two_slots_count_what_llama_cpp_counts(serve: Serve) -> None:
    with serve(2) as server:
        assert (server.facts["slots"], server.facts["context_per_slot"], server.deviations) == (2, 256, [])
        prompts = server.prompts("Name three rivers.", 2)
        before = server.counters()
        done = server.run_round(prompts, TOKENS)
        after = server.counters()
        assert before is not None
        assert after is not None
        assert after.decode_steps - before.decode_steps == TOKENS
        assert after.busy_slots - before.busy_slots == 2 * TOKENS
        assert gates.requests_complete(done.answers, 2, TOKENS).outcome == "pass"
        assert gates.prompt_cache(done.answers, wanted=False).outcome == "pass"
        assert [a.prompt_n for a in done.answers] == [len(prompt) for prompt in prompts]
        for a in done.answers:
            assert a.first_token_s is not None
            assert a.inter_token_median_s is not None
            assert 0 <= a.sent_s < a.first_token_s < a.received_s <= done.end_mono - done.start_mono
            assert a.inter_token_median_s > 0
        questions = server.prompts("Name one river. Answer with one word.", 5)
        loop = server.run_closed_loop(questions, 12, exact=False)
        assert len(loop.texts) == len(loop.answers) == 5
        assert all(0 < a.predicted_n <= 12 for a in loop.answers)
        assert {a.stop_type for a in loop.answers} <= {"eos", "limit"}
        assert 0 <= loop.drain_s < loop.end_mono - loop.start_mono


def test_a_context_that_is_too_small_is_told_by_llama_cpp_s_own_code(serve: Serve) -> None:
    with serve(1) as server:
        server._context = 1 << 20  # as if nobody had looked beforehand
        with pytest.raises(
            EngineError, match=r"llama_decode returned 1: no room in the KV cache .*raise context_per_slot"
        ):
            server.run_round([[1000] * 300], 4)
        assert server.run_round([[1000] * 30], 4).answers[0].predicted_n == 4


def test_a_crash_in_mid_round_is_told_and_leaves_nothing(serve: Serve) -> None:
    with serve(1) as server:
        pids = server.pids
        [prompt] = server.prompts("Name three rivers.", 1)
        threading.Timer(0.3, os.kill, (server._child.process.pid, signal.SIGSEGV)).start()
        words = r"^in-process engine died in mid-work: signal 11 \(SIGSEGV\); its log ends:"
        with pytest.raises(EngineError, match=words):
            server.run_round([prompt], 200)
    assert not any(psutil.pid_exists(pid) for pid in pids)


def ours(project) -> list[psutil.Process]:
    """Children of the engine that have done more than load the model."""
    found = []
    for process in project.processes():
        with contextlib.suppress(psutil.Error):
            command = process.cmdline()
            # The guard has the same words among its own.
            if "_in_process_child.py" in " ".join(command[:3]) and process.cpu_times().user > 1.0:
                found.append(process)
    return found


def test_a_suite_is_measured_and_a_crash_voids_its_window_alone(project, until) -> None:
    project.suite(engine="in-process", request={"answer_tokens": 64}, protocol={"min_window_s": 1.5})
    process = project.start()
    until(lambda: ours(project))
    ours(project)[0].send_signal(signal.SIGSEGV)
    output, _ = process.communicate(timeout=60)
    assert "in-process engine died in mid-work: signal 11 (SIGSEGV)" in output
    project.assert_no_orphans()
    windows = [w for w in project.stored().run.windows if w.role == "measured"]
    # Which of the two it hits is the machine's business.
    [hit], [spared] = ([w for w in windows if bool(w.failure) == crashed] for crashed in (True, False))
    assert hit.outcome == "void"
    assert "SIGSEGV" in hit.failure
    assert spared.tokens > 0
    assert all(answer.counted_from == "engine" for answer in spared.requests)
    assert project.stored().run.engine["in-process"]["name"] == "in-process"
