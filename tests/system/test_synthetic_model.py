"""Models with random weights, made here and served by the real llama-server: what they do, and what is said of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_joules.models import catalogue, synth
from pytest_joules.workload.prompts import NAMED

SHAPE = catalogue.Shape(layers=2, embd=64, heads=4, kv_heads=2, ffn=128, vocab=1024, context=512)
TEXTS = ("Zwölf Boxkämpfer jagen Viktor", "日本語 \x00\t\r\n ~", " Question 457. Why?  <|end|", NAMED["short"])

FAST = """
    import pytest

    pytestmark = pytest.mark.joules("real")

    def test_fast(sweep):
        \"\"\"All are fast.\"\"\"
        assert sweep.tokens_per_s.min() > 100
"""

LONG: Mapping[str, Any] = {"answer_tokens": 192}
"""Answers that take this small a model a moment, since every request takes this program one too."""

LOOSE: Mapping[str, Any] = {"batch_void_below": 0}
"""Even so, other programs may hold up the end of a round for longer than it takes."""


def made(folder: Path, name: str = "synthetic-tiny") -> Path:
    recipe = synth.Recipe(name=name, shape=SHAPE, format="q8_0", texts=(NAMED["short"],))
    return synth.write(recipe, folder, None)


def test_text_becomes_tokens_and_the_same_text_again(tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    model = llama_cpp.Llama(str(made(tmp_path)), vocab_only=True, verbose=False)
    for text in TEXTS:
        tokens = model.tokenize(text.encode(), add_bos=False, special=False)
        assert model.detokenize(tokens) == text.encode()
    words = len(NAMED["short"].split())
    assert words <= len(model.tokenize(NAMED["short"].encode(), add_bos=False)) <= words + 3
    model.close()


def test_a_run_with_eight_slots_is_called_synthetic(project) -> None:
    made(project.folder / "models")
    project.write("test_real.py", FAST)
    project.suite(model="synthetic-tiny", format="q8_0", vary={"parallel": [8]}, request=LONG, gates=LOOSE)
    said = project.run("--joules-exploratory")
    run = project.stored().run
    assert (run.meter.basis, run.deviations) == ("synthetic", ())
    assert {window.outcome for window in run.windows} <= {"measured", "flagged"}
    assert {request.stop_type for window in run.windows for request in window.requests} == {"limit"}
    assert run.models[0]["metadata"]["joules.synthetic"] is True
    said.stdout.fnmatch_lines(["Synthetic energy of the chip*", "- random weights: *"])


def test_one_in_place_of_a_real_model_and_of_its_draft_is_a_deviation(project) -> None:
    target, draft = made(project.folder, "synthetic-target"), made(project.folder, "synthetic-draft")
    project.write("test_real.py", FAST)
    project.suite(
        model="qwen2.5-7b-instruct",
        format="q4_0",
        vary={"parallel": [2]},
        request=LONG,
        draft={"draft_model": "qwen2.5-0.5b-instruct", "draft_format": "q4_0"},
    )
    instead = [f"--joules-model=qwen2.5-7b-instruct={target}", f"--joules-model=qwen2.5-0.5b-instruct={draft}"]
    project.run("--joules-exploratory", *instead)
    run = project.stored().run
    assert run.meter.basis == "synthetic"
    assert [line for line in run.deviations if line.startswith("model ")] == [
        "model qwen2.5-7b-instruct: synthetic-target-q8_0.gguf was used instead",
        "model qwen2.5-0.5b-instruct: synthetic-draft-q8_0.gguf was used instead",
        "model qwen2.5-7b-instruct: synthetic-target-q8_0.gguf says that it is q8_0, not q4_0",
        "model qwen2.5-0.5b-instruct: synthetic-draft-q8_0.gguf says that it is q8_0, not q4_0",
        "model qwen2.5-7b-instruct: synthetic-target-q8_0.gguf has random weights",
        "model qwen2.5-0.5b-instruct: synthetic-draft-q8_0.gguf has random weights",
    ]
    assert all(r.draft_n > 0 for window in run.windows for r in window.requests)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"model": "synthetic-tiny", "require": {"basis": "measured"}}, "*requires basis: measured, and synthetic-tiny-q8_0.gguf has random weights*"),
        ({"model": None, "vary": {"model": ["smollm2-135m-instruct", "synthetic-tiny"]}}, "*has random weights and other conditions have real ones*"),
    ],
)  # fmt: skip
def test_its_energy_is_not_taken_for_a_models(
    project, model_file: Path, sections: dict[str, object], words: str
) -> None:
    made(project.folder / "models")
    project.write("test_real.py", FAST)
    if "vary" in sections:
        (project.folder / "models" / "smollm2-135m-instruct-q8_0.gguf").symlink_to(model_file)
    project.suite(format="q8_0", **sections)
    said = project.run("--joules-exploratory", "-rs", "--joules-meter=estimate")
    said.assert_outcomes(skipped=1)
    said.stdout.fnmatch_lines([f"*unmeasured: suite real*{words}"])
