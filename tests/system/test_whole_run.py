"""From the first start of the server to the stored result, on the real thing."""

import hashlib
import json
import re
import subprocess

import pytest

from pytest_joules import engines, models, store
from pytest_joules.engines import llama_server
from pytest_joules.suite import Draft, Request, Server, Setting


def test_a_run_and_all_that_is_kept_of_it(project, model_file) -> None:
    project.suite(protocol={"passes": 2, "order": "reversed"})
    done = project.run("-v")
    assert done.ret in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    stored = project.stored()
    run = stored.run
    assert [w.condition["parallel"] for w in run.windows] == [1, 2, 2, 1]
    for window in run.windows:
        batch = window.condition["parallel"]
        assert window.outcome != "void", window.reasons
        assert window.window_s >= 1
        assert len(window.requests) == window.rounds * batch
        assert {(a.predicted_n, a.stop_type, a.cache_n, a.truncated) for a in window.requests} == {
            (32, "limit", 0, False)
        }
        assert window.tokens == 32 * len(window.requests)
        # Distinct prompts of one length, with more in them than their opening token.
        [prompt_tokens] = {a.prompt_n for a in window.requests}
        assert prompt_tokens > 10
        [achieved] = [gate.value for gate in window.gates if gate.name == "achieved batch"]
        assert 0.9 * batch <= achieved <= 1.01 * batch
        assert window.energy_j > 0
        assert window.engine["slots"] == batch
        assert {"--no-kv-unified", "--no-cache-prompt"} <= set(window.engine["arguments"])
    assert (run.meter.name, run.meter.basis) == ("estimate", "estimated")
    [model] = run.models
    assert model["sha256"] == hashlib.sha256(model_file.read_bytes()).hexdigest()
    assert model["size_bytes"] == model_file.stat().st_size
    assert model["metadata"]["general.architecture"] == "llama"
    engine = run.engine["llama-server"]
    assert re.fullmatch(r"[0-9a-f]{5,40}", engine["commit"])
    assert engine["sha256"] == hashlib.sha256(llama_server.locate(None).read_bytes()).hexdigest()
    samples = store.load_samples(stored)
    assert samples[0].mono < run.windows[0].start_mono < run.windows[-1].end_mono < samples[-1].mono
    assert str(model_file.parent) not in stored.path.read_text()
    [verdict] = store.load_verdicts(stored)
    assert verdict.word in ("held", "refuted")
    assert f"result: {stored.path.relative_to(project.folder)}" in done.outlines
    assert project.journal() == []
    project.assert_no_orphans()


def test_two_axes_take_no_more_than_two_lines_of_a_suite(project) -> None:
    project.suite(
        vary={"parallel": [1, 2], "answer_tokens": [8, 16]}, request={"answer_tokens": None, "prompt": "short"}
    )
    project.write(
        "test_real.py",
        """
        import pytest

        @pytest.mark.joules("real")
        def test_some_power(sweep):
            assert sweep.at(parallel=2, answer_tokens=16).power_w < 1000
        """,
    )
    done = project.run()
    done.assert_outcomes(passed=1)
    run = project.stored().run
    assert run.axes == ("parallel", "answer_tokens")
    assert {(w.condition["parallel"], w.condition["answer_tokens"]) for w in run.windows} == {
        (1, 8),
        (1, 16),
        (2, 8),
        (2, 16),
    }
    for window in run.windows:
        assert {a.predicted_n for a in window.requests} == {window.condition["answer_tokens"]}
    rows = [line.split()[:2] for line in done.outlines if re.match(r" +[12] +(8|16) ", line)]
    assert rows == [["1", "8"], ["1", "16"], ["2", "8"], ["2", "16"]]


def test_the_hardware_is_there_for_tests_that_are_no_predictions(project) -> None:
    project.write(
        "test_real.py",
        """
        import psutil
        import pytest
        from pytest_joules.errors import UsageError

        def test_a_server(model_server, warm_chip, power):
            with model_server(parallel=2, context_per_slot=256, threads=1) as server:
                assert server.slots == 2
                assert warm_chip(server, seconds=0.2, answer_tokens=4) >= 0.2
                prompts = server.prompts("Say it.", 2)
                with power.window() as window:
                    answers = server.run_round(prompts, 24).answers
            assert [answer.predicted_n for answer in answers] == [24, 24]
            assert window.energy_j > 0
            assert not any(psutil.pid_exists(pid) for pid in server.pids)

        def test_a_misspelt_key(model_server):
            with pytest.raises(UsageError, match="there is no key 'paralel'; did you mean 'parallel'"):
                model_server(paralel=2)
        """,
    )
    project.run().assert_outcomes(passed=2)
    assert not (project.folder / "results").exists()


def test_tokens_come_about_as_fast_as_the_engines_own_benchmark_makes_them(model_file, tmp_path) -> None:
    bench = llama_server.locate(None).with_name("llama-batched-bench")
    if not bench.exists():
        pytest.skip("no llama-batched-bench lies beside llama-server")
    engine, model = engines.find("llama-server"), models.inspect(model_file)
    batch, tokens = 2, 48

    def of_the_benchmark() -> float:
        options = ["-npp", "16", "-ntg", str(tokens), "-npl", str(batch), "-c", "512", "-t", "1", "-tb", "1"]
        command = [bench, "-m", model_file, *options, "--output-format", "jsonl"]
        # A session of its own, as the server has one: Linux shares the CPU among sessions before it does among processes.
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, start_new_session=True)
        [row] = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return batch * tokens / row["t"]

    def of_ours() -> float:
        setting = Setting(
            engine="llama-server", model=model_file.name, format=None, server=Server(parallel=batch, context_per_slot=256, threads=1),
            request=Request(answer_tokens=tokens), draft=Draft(), knobs={},
        )  # fmt: skip
        with engine.serve(setting, model, None, tmp_path, 60, 60) as server:
            prompts = server.prompts("Say it.", 2 * batch)
            server.run_round(prompts[:batch], 4)
            measured = server.run_round(prompts[batch:], tokens)
        assert sum(a.predicted_n for a in measured.answers) == batch * tokens
        return batch * tokens / (measured.end_mono - measured.start_mono)

    # Whatever else runs on the machine in one of the two moments shows in the ratio.
    ratios = []
    while not ratios or (len(ratios) < 3 and not 0.6 < ratios[-1] < 1.4):
        ratios.append(of_ours() / of_the_benchmark())
    assert 0.6 < ratios[-1] < 1.4, ratios
