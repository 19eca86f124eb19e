import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from typer.testing import CliRunner

from pytest_joules import models
from pytest_joules.cli import app
from pytest_joules.cli import models as command
from pytest_joules.errors import JoulesError, UsageError
from pytest_joules.models import anatomy, catalogue, synth

TINY: dict[str, Any] = {"layers": 2, "embd": 64, "heads": 4, "kv_heads": 2, "ffn": 128, "vocab": 512, "context": 256}
TEXT = "Explain why the sky is blue"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models.platformdirs, "user_cache_dir", lambda _: str(tmp_path_factory.mktemp("cache")))


def made(folder: Path, form: str = "q8_0", seed: int = 1, **changes: Any) -> Path:
    recipe = synth.recipe("", None, {**TINY, **changes}, form, seed, [TEXT])
    return synth.write(recipe, folder, command._quantizer())


def test_the_same_recipe_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    first, again, other = (
        made(tmp_path / name, seed=seed).read_bytes() for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == again
    assert len(first) == len(other)
    assert first != other


def test_a_file_has_the_shape_that_was_asked_for(tmp_path: Path) -> None:
    found = anatomy.read(made(tmp_path, "f16", architecture="qwen2", tied=True))
    expected = catalogue.Shape(**TINY, architecture="qwen2", tied=True)
    assert (found.architecture, found.layers, found.heads, found.kv_heads, found.head_size) == ("qwen2", 2, 4, 2, 16)
    assert (found.context, found.vocabulary, found.feed_forward_length) == (256, 512, 128)
    assert found.parameters == expected.parameters
    assert found.tied
    assert set(found.tensors) == {"f16", "f32"}


def test_a_file_says_that_its_weights_are_random(tmp_path: Path) -> None:
    model = models.inspect(made(tmp_path))
    assert model.synthetic
    assert model.metadata["joules.seed"] == 1
    assert "joules.like" not in model.metadata
    recipe = synth.recipe("smollm2-135m", catalogue.read().shape("smollm2-135m"), {}, "q4_0", 1, [])
    assert (recipe.name, recipe.like) == ("synthetic-smollm2-135m", "smollm2-135m")
    smaller = synth.recipe("smollm2-135m", catalogue.read().shape("smollm2-135m"), {"layers": 2}, "q4_0", 1, [])
    assert (smaller.name, smaller.like, smaller.shape.embd) == ("synthetic-llama-2x576", "", 576)


def test_what_llama_quantize_makes_still_says_so(tmp_path: Path) -> None:
    if command._quantizer() is None:
        pytest.skip("there is no llama-quantize here")
    path = made(tmp_path, "q4_0", embd=256, ffn=256)
    assert models.inspect(path).synthetic
    [found] = models.here([tmp_path], catalogue.read())
    assert (found.synthetic, found.name, found.format, found.fault) == (True, "synthetic-llama-2x256", "q4_0", "")
    # As in any file of this format, the output matrix is kept finer.
    assert {form: tensors.count for form, tensors in anatomy.read(path).tensors.items()} == {
        "q4_0": 15,
        "q6_k": 1,
        "f32": 5,
    }
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("form", ["f16", "q8_0"])
def test_weights_neither_grow_nor_vanish(tmp_path: Path, form: str) -> None:
    tensors = {tensor.name: tensor for tensor in models.read(made(tmp_path, form)).tensors}
    for name in ("blk.0.attn_q.weight", "blk.1.ffn_down.weight", "output.weight"):
        tensor = tensors[name]
        weights = gguf.dequantize(tensor.data, tensor.tensor_type)
        assert weights.std() == pytest.approx(int(tensor.shape[0]) ** -0.5, rel=0.05)
        assert abs(weights.mean()) < 0.01
    assert np.array_equal(tensors["blk.0.attn_norm.weight"].data, np.ones(64, np.float32))


def test_the_end_of_an_answer_is_never_the_likeliest_token(tmp_path: Path) -> None:
    reader = models.read(made(tmp_path))
    output = next(tensor for tensor in reader.tensors if tensor.name == "output.weight")
    rows = gguf.dequantize(output.data, output.tensor_type)
    end = reader.fields["tokenizer.ggml.eos_token_id"].contents()
    assert not rows[end].any()
    assert np.abs(rows).sum(axis=1).astype(bool).sum() == 511


def test_words_of_the_prompts_are_one_token_and_everything_else_its_bytes() -> None:
    tokens, merges = synth.vocabulary([TEXT], 512)
    assert len(tokens) == len(set(tokens)) == 512
    assert {"Explain", "Ġwhy", "Ġblue"} <= set(tokens)
    assert len({*tokens[:256]}) == 256
    # Each merge makes a token of what is there before it.
    have = set(tokens[:256])
    for merge in merges:
        left, right = merge.split(" ")
        assert {left, right} <= have
        have.add(left + right)
    assert synth.vocabulary([], 258)[1] == ["Ā Ā"]
    assert len(synth.vocabulary([TEXT], 260)[0]) == 260


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"embd": 65}, "--embd 65 is no multiple of --heads 4"),
        ({"kv_heads": 3}, "--heads 4 is no multiple of --kv-heads 3"),
        ({"embd": 12}, "the size of a head is odd"),
        ({"vocab": 257}, "--vocab 257 is too small for every byte; 258 at least"),
        ({"ffn": None, "layers": None}, "a shape takes --layers, --ffn as well, or --like a known one"),
    ],
)
def test_sizes_that_make_no_model(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        synth.recipe("", None, {**TINY, **changes}, "q8_0", 1, [])
    assert words in str(caught.value)


def test_what_stands_in_the_way_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path)
    with pytest.raises(UsageError, match="is there already; remove it"):
        made(tmp_path)
    with pytest.raises(UsageError, match=r"q8_0 takes --embd and --ffn that are multiples of 32; choose f16"):
        made(tmp_path, embd=40)
    tiny = synth.recipe("", None, TINY, "q4_0", 1, [])
    with pytest.raises(UsageError, match=r"format q4_0 takes the program llama-quantize.*choose f16 or q8_0"):
        synth.write(tiny, tmp_path, None)
    monkeypatch.setattr(synth.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(UsageError, match=r"GB while it is made, and .* has 0.0 GB free"):
        made(tmp_path, "f16")


def test_a_format_that_llama_quantize_does_not_know(tmp_path: Path) -> None:
    if command._quantizer() is None:
        pytest.skip("there is no llama-quantize here")
    with pytest.raises(JoulesError, match=r"llama-quantize cannot make format q9_9: .*'llama-quantize --help' lists"):
        made(tmp_path, "q9_9")
    assert list(tmp_path.iterdir()) == []


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = ["--layers", "2", "--embd", "64", "--heads", "4", "--kv-heads", "2", "--ffn", "128", "--vocab", "300"]
    done = CliRunner().invoke(app, ["models", "synth", *sizes, "--format", "q8_0", "--json"])
    record = json.loads(done.stdout)
    assert record | {"size_bytes": 0} == {
        "model": "synthetic-llama-2x64", "format": "q8_0", "file": "models/synthetic-llama-2x64-q8_0.gguf", "size_bytes": 0,
        "parameters": 2 * 300 * 64 + 2 * (64 * (64 + 32 + 32 + 64) + 3 * 64 * 128) + 5 * 64, "seed": 1, "like": None,
    }  # fmt: skip
    assert models.find(record["model"], record["format"], models.folders((), tmp_path)) == tmp_path / record["file"]
