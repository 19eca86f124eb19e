"""Speculative decoding for real: the model of the quickstart, drafted for by itself in another number format."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pytest_joules import models
from pytest_joules.engines import llama_server
from pytest_joules.metrics import draft_acceptance, tokens_per_step
from pytest_joules.suite import Draft, Request, Server, Setting
from pytest_joules.workload.prompts import NAMED

DRAFT = ("smollm2-135m-instruct", "q4_0")


@pytest.fixture(scope="module")
def draft_file(model_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights in four bits, where llama-quantize lies beside the server."""
    quantize = llama_server.locate(None).with_name("llama-quantize")
    if not os.access(quantize, os.X_OK):
        pytest.skip(f"there is no {quantize.name} beside llama-server")
    made = tmp_path_factory.mktemp("drafts") / f"{'-'.join(DRAFT)}.gguf"
    subprocess.run(
        [quantize, "--allow-requantize", model_file, made, DRAFT[1], "1"], check=True, capture_output=True, timeout=120
    )
    return made


def test_a_suite_measures_with_a_draft_beside_without_one(project: Any, draft_file: Path) -> None:
    project.suite(
        vary={"draft_threshold": ["off", 0.5]},
        request={"prompt": "code"},
        draft={"draft_model": DRAFT[0], "draft_format": DRAFT[1], "draft_tokens_max": 8},
    )
    project.write(
        "test_real.py",
        """
        import pytest

        pytestmark = pytest.mark.joules("real")

        def test_over_half_is_accepted(sweep):
            assert sweep.draft_acceptance[0.5] > 0.5
            assert sweep.tokens_per_step[0.5] > 1.5
        """,
    )
    result = project.run("--joules-exploratory", f"--joules-models={draft_file.parent}")
    assert result.parseoutcomes().get("passed") == 1, result.outlines
    windows = {w.condition["draft_threshold"]: w for w in project.stored().run.windows if w.role == "measured"}
    gates = {threshold: {gate.name: gate.outcome for gate in w.gates} for threshold, w in windows.items()}
    assert "draft in use" not in gates["off"]
    assert gates[0.5]["draft in use"] == "pass"
    assert draft_acceptance(windows["off"]) is None
    assert tokens_per_step(windows["off"]) is None


def serve(model_file: Path, draft_file: Path | None, folder: Path, **options: Any) -> Any:
    """A server of one slot and one thread, with a draft or without."""
    setting = Setting(
        engine="llama-server", model="m", format=None, knobs={}, request=Request(),
        server=Server(context_per_slot=256, threads=1), draft=Draft(draft_model="d" if draft_file else None, **options),
    )  # fmt: skip
    draft = models.inspect(draft_file) if draft_file else None
    return llama_server.find(None).serve(setting, models.inspect(model_file), draft, folder, 60, 60)


def test_a_greedy_answer_is_the_same_with_a_draft(model_file: Path, draft_file: Path, tmp_path: Path) -> None:
    answers = []
    for draft in (None, draft_file):
        with serve(model_file, draft, tmp_path) as server:
            answers.append(server.complete(NAMED["code"], 32))
    plain, drafted = answers
    same = next((i for i, (a, b) in enumerate(zip(plain, drafted, strict=False)) if a != b), len(plain))
    print(f"the first {same} of {len(plain)} characters are the same")
    # Sums in another order may tip a close choice late in an answer; a draft that is taken over unchecked differs at once.
    assert same >= 0.5 * len(plain), (plain, drafted)


def test_the_server_can_be_told_how_much_it_is_to_accept(model_file: Path, draft_file: Path, tmp_path: Path) -> None:
    if "--spec-synth-len" not in llama_server.find(None).flags:
        pytest.skip("this llama-server has no synthetic acceptance")
    with serve(model_file, draft_file, tmp_path, draft_synthetic_tokens=2.0) as server:
        [answer] = server.run_round(server.prompts(NAMED["short"], 1), 64).answers
    yielded = answer.predicted_n / (answer.predicted_n - answer.draft_accepted_n)
    assert yielded == pytest.approx(2.0, rel=0.3)
