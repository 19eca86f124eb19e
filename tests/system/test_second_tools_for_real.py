"""The benchmarks of llama.cpp and a server that runs already, with the real programs and the real model."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_joules import engines, gates
from pytest_joules.engines import llama_bench, llama_server
from pytest_joules.engines.llama_server import LlamaServer
from pytest_joules.errors import EngineError, Unmeasured
from pytest_joules.models import ModelFile
from pytest_joules.suite import Draft, Request, Server, Setting

TOKENS = 16
TEXT = "Name three rivers."

Served = Callable[..., contextlib.AbstractContextManager]


@pytest.fixture
def serve(model_file: Path, tmp_path: Path) -> Served:
    def build(name: str, parallel: int, where: str | None = None, **request) -> contextlib.AbstractContextManager:
        try:
            engine = engines.find(name, where)
        except Unmeasured as missing:
            pytest.skip(str(missing))
        # One thread: several would wait for each other wherever another program is at work.
        server = Server(parallel=parallel, context_per_slot=256, threads=1)
        setting = Setting(
            engine=name, model="smollm2-135m-instruct", format="q4_1", server=server,
            request=Request(prompt_text=TEXT, answer_tokens=TOKENS, **request),
            draft=Draft(), knobs={},
        )  # fmt: skip
        model = ModelFile(path=model_file, size_bytes=model_file.stat().st_size, sha256="0" * 64)
        return engine.serve(setting, model, None, tmp_path, 60.0, 60.0)

    return build


def test_rows_of_llama_batched_bench_are_rounds_and_its_clock_is_ours(serve) -> None:
    with serve("llama-batched-bench", 2) as server:
        prompts = server.prompts(TEXT, 2)
        before = server.counters()
        rounds = [server.run_round(prompts, TOKENS, number) for number in range(2)]
        after = server.counters()
        assert before is not None
        assert after is not None
        assert (after.busy_slots - before.busy_slots) / (after.decode_steps - before.decode_steps) == 2
        for number, done in enumerate(rounds):
            assert gates.requests_complete(done.answers, 2, TOKENS).outcome == "pass"
            assert {(a.prompt_n, a.predicted_n, a.round) for a in done.answers} == {(len(prompts[0]), TOKENS, number)}
        shortest_ms = 1000 * min(done.end_mono - done.start_mono for done in rounds)
        # What the program says its rounds took, less the time in which it was held, against what we saw of them.
        assert server.facts["apart_ms"] < 0.2 * shortest_ms
        assert server.deviations == [
            "llama-batched-bench: prompt_text has no effect but by its length: it reads no text"
        ]
        before_pids = server.pids
        server.prepare(prompts, 2 * TOKENS)
        longer = server.run_round(prompts, 2 * TOKENS)
        assert {a.predicted_n for a in longer.answers} == {2 * TOKENS}
        assert server.pids != before_pids


def test_repetitions_of_llama_bench_are_as_long_as_it_says_itself(serve, monkeypatch) -> None:
    monkeypatch.setattr(llama_bench, "_REPETITIONS", 4)
    with serve("llama-bench", 1) as server:
        prompts = server.prompts(TEXT, 1)
        seen = []
        for number in range(2):
            done = server.run_round(prompts, TOKENS, number)
            seen.append((done.end_mono - done.start_mono, done.start_mono - server._held.since_mono))
        # The last one ends with the program, which then prints how long each of them took.
        with pytest.raises(EngineError, match="llama-bench ended in mid-round: exit code 0"):
            server.run_round(prompts, TOKENS)
        log = server._held.process.log_text()
    [row] = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert (row["n_gen"], row["n_depth"], len(row["samples_ns"])) == (TOKENS, len(prompts[0]), 4)
    for (length_s, held_s), said_ns in zip(seen, row["samples_ns"][1:3], strict=True):
        assert said_ns / 1e9 - held_s == pytest.approx(length_s, rel=0.2)


def test_a_prompt_is_as_long_as_a_server_makes_it(serve) -> None:
    with serve("llama-bench", 1) as ours, serve("llama-server", 1) as theirs:
        for identical in (False, True):
            ours_n, theirs_n = (len(one.prompts(TEXT, 1, identical=identical)[0]) for one in (ours, theirs))
            assert ours_n == theirs_n > 3


def test_a_server_that_runs_already_answers_as_many_tokens_as_asked(serve, monkeypatch) -> None:
    with serve("llama-server", 2) as theirs:
        assert isinstance(theirs, LlamaServer)
        connection = theirs._connection
        monkeypatch.setenv("JOULES_API_KEY", connection._headers["Authorization"].removeprefix("Bearer "))
        with serve("openai", 2, f"{connection._base}/v1") as server:
            rounds = [server.run_round(server.prompts(TEXT, 2), TOKENS, number) for number in range(2)]
            assert server.pids <= theirs.pids
            assert server.pids
        for done in rounds:
            assert gates.requests_complete(done.answers, 2, TOKENS).outcome == "pass"
            assert gates.prompt_cache(done.answers, wanted=False).outcome == "pass"
            assert all(a.prompt_n > 3 for a in done.answers)
        # It was not ours to stop.
        assert llama_server.LlamaServer.counters(theirs) is not None


def test_a_server_that_runs_already_puts_a_question_into_the_same_template(serve, monkeypatch) -> None:
    with serve("llama-server", 2) as theirs:
        connection = theirs._connection
        monkeypatch.setenv("JOULES_API_KEY", connection._headers["Authorization"].removeprefix("Bearer "))
        with serve("openai", 2, f"{connection._base}/v1", questions="basics") as server:
            loop = server.run_closed_loop([server.chat(TEXT)] * 2, TOKENS, exact=False)
        assert {answer.prompt_n + answer.cache_n for answer in loop.answers} == {len(theirs.chat(TEXT))}
        assert all(loop.texts)


def test_engines_are_compared_in_one_run_and_what_one_cannot_do_is_void_alone(project) -> None:
    project.suite(
        vary={"engine": ["llama-bench", "llama-batched-bench"], "parallel": [1, 2]},
        request={"answer_tokens": 8},
        protocol={"min_window_s": 0.5, "warmup_tokens": None, "warmup_s": 0.1},
    )
    project.write(
        "test_real.py",
        """
        import pytest

        @pytest.mark.joules("real")
        def test_both_decode(sweep):
            alone = sweep.where(parallel=1).energy_per_token_mj
            assert alone["llama-bench"] < 5 * alone["llama-batched-bench"]

        @pytest.mark.joules("real")
        def test_what_is_void(sweep):
            assert sweep.at(engine="llama-bench", parallel=2).power_w < 1000
        """,
    )
    done = project.run()
    done.assert_outcomes(passed=1, errors=1)
    text = " ".join(done.outlines)
    why = "llama-bench: it decodes one sequence at a time, 2 were asked for; take llama-batched-bench"
    assert f"joules: engine=llama-bench, parallel=2 will be void: {why}" in text
    run = project.stored().run
    assert set(run.engine) == {"llama-bench", "llama-batched-bench"}
    assert run.engine["llama-bench"]["includes"] == ["decode"]
    [void] = [w for w in run.windows if w.outcome == "void"]
    assert void.reasons == (why,)
    assert [(w.condition["engine"], w.slots) for w in run.windows if w.tokens] == [
        ("llama-bench", 1), ("llama-batched-bench", 1), ("llama-batched-bench", 2),
    ]  # fmt: skip
    assert run.deviations == ()
    assert "the engines' windows do not hold the same" in " ".join(text.split())
    project.assert_no_orphans()
