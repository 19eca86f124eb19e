"""Prompts of a stated length, and what of them comes from the cache, on the real server and in-process."""

from pathlib import Path

import pytest

from pytest_joules import gates
from pytest_joules.engines import in_process, llama_server
from pytest_joules.models import ModelFile
from pytest_joules.suite import Draft, Request, Server, Setting
from pytest_joules.sweep import from_run

CLAIM = """
    import pytest

    pytestmark = pytest.mark.joules("real")

    def test_any(sweep):
        assert sweep.energy_per_prompt_token_mj[False] < 0.1 * sweep.decode_energy_per_token_mj[False]
"""


def test_each_slot_computes_what_was_asked_and_nothing_else(project) -> None:
    project.suite(
        vary={"cache_prompt": [False, True]},
        server={"parallel": 2},
        request={
            "prompt_tokens": 32, "shared_prefix_tokens": 24, "answer_tokens": 4, "lengths": [8], "prefill_windows": True,
        },
        protocol={"min_window_s": 0.4},
    )  # fmt: skip
    project.write("test_real.py", CLAIM)
    done = project.run()
    assert done.ret in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), done.outlines
    run = project.stored().run
    windows = [window for window in run.windows if window.condition]
    assert [(w.role, w.answer_tokens) for w in windows] == [("prefill", 1), ("measured", 4), ("length", 8)] * 2
    for window in windows:
        cached = 24 if window.condition["cache_prompt"] else 0
        assert {(a.slot, a.cache_n, a.prompt_n) for a in window.requests} == {
            (slot, cached, 32 - cached) for slot in (0, 1)
        }
        # Other tests load this machine, and may void such short windows; what was asked of the prompts they cannot change.
        assert [gate.outcome for gate in window.gates if gate.name == "prompt cache"] == ["pass"], window.reasons
        assert ("achieved batch" in {gate.name for gate in window.gates}) == (window.role != "prefill")
    for cell in (cell for cell in from_run(run).cells if not cell.void):
        assert cell.mean("energy_per_prompt_token_mj") > 0


@pytest.mark.parametrize("engine", [llama_server, in_process])
def test_a_prompt_and_its_answer_may_fill_a_slot_but_for_one_token(engine, model_file: Path, tmp_path: Path) -> None:
    request = Request(prompt_tokens=251, identical=True, cache_prompt=True)
    setting = Setting(
        engine=engine.NAME, model="m", format=None, request=request, draft=Draft(), knobs={},
        server=Server(parallel=1, context_per_slot=256, threads=1),
    )  # fmt: skip
    model = ModelFile(path=model_file, size_bytes=model_file.stat().st_size, sha256="0" * 64)
    with engine.find().serve(setting, model, None, tmp_path, 120.0, 120.0) as server:
        prompts = server.prompts_of(251, 1, identical=True)
        rounds = [server.run_round(prompts, 4).answers for _ in range(2)]
    assert [{(a.cache_n, a.prompt_n) for a in answers} for answers in rounds] == [{(0, 251)}, {(250, 1)}]
    assert all(gates.requests_complete(answers, 1, 4).outcome == "pass" for answers in rounds)
