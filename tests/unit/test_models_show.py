import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from typer.testing import CliRunner

from pytest_joules import models, roofline
from pytest_joules.cli.models import app
from pytest_joules.errors import Unmeasured, UsageError
from pytest_joules.models import anatomy, catalogue, synth

SMOLLM2 = {
    "architecture": "llama", "licence": "apache-2.0", "parameters": 134_515_008, "embedding_parameters": 28_311_552, "layers": 30,
    "embedding_length": 576, "heads": 9, "kv_heads": 3, "head_size": 64, "feed_forward_length": 1536, "context": 8192, "tied": True,
    "tokenizer": "gpt2", "vocabulary": 49152, "chat_template": True, "synthetic": False, "experts": None, "sliding_window": None,
    # 30 layers x 3 heads x (64 + 64) values, of 2 bytes each or 34 bytes for 32
    "kv_bytes_per_token": {"f16": 23040, "q8_0": 12240},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _own_surroundings(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models.platformdirs, "user_cache_dir", lambda _: str(tmp_path_factory.mktemp("cache")))
    monkeypatch.delenv("JOULES_MODELS", raising=False)
    monkeypatch.chdir(tmp_path)


def asked(*arguments: str) -> Any:
    done = CliRunner().invoke(app, ["models", *arguments, "--json"], catch_exceptions=False)
    return json.loads(done.stdout)


def write(
    path: Path,
    tensors: dict[str, tuple[int, ...]],
    keys: dict[str, int | list[int]] | None = None,
    architecture: str = "llama",
) -> Path:
    """A model of half-precision tensors, named as llama.cpp names them; a tensor's rows come first."""
    path.parent.mkdir(exist_ok=True)
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (keys or {}).items():
        if isinstance(value, list):
            writer.add_array(f"{architecture}.{key}", value)
        elif key.startswith("split."):
            writer.add_uint16(key, value)
        else:
            writer.add_uint32(f"{architecture}.{key}", value)
    for name, shape in tensors.items():
        writer.add_tensor(name, np.ones(shape, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_model_of_the_quickstart_is_as_its_makers_say() -> None:
    record = asked("show", "smollm2-135m-instruct")
    assert SMOLLM2.items() <= record.items()
    assert record["non_embedding_parameters"] == 134_515_008 - 28_311_552
    assert sum(tensors["parameters"] for tensors in record["tensors"].values()) == 134_515_008
    assert sum(tensors["bytes"] for tensors in record["tensors"].values()) == record["weight_bytes"]
    assert record["bytes_per_step"] == record["weight_bytes"]  # the embedding table is the output matrix too
    assert record["sha256"] is None


def test_the_lines_for_people(tmp_path: Path) -> None:
    shape = catalogue.Shape(layers=2, embd=64, heads=4, kv_heads=2, ffn=128, vocab=1200, context=256)
    made = synth.Recipe(name="synthetic-x", shape=shape, format="f16")
    synth.write(made, tmp_path / "models", None)
    shown = CliRunner().invoke(app, ["models", "show", "synthetic-x"]).stdout
    for words in (
        "random weights: speed is real", f"{shape.parameters:,}", "2 of keys and values, size 16", "256 B at f16, 136 B at q8_0",
        "1,200 tokens, chat template absent", "table and output matrix",
    ):  # fmt: skip
        assert words in shown


def test_an_embedding_table_that_is_not_the_output_matrix_is_not_read_in_a_step(tmp_path: Path) -> None:
    sizes = {"token_embd.weight": (100, 32), "output.weight": (100, 32), "blk.0.ffn_up.weight": (64, 32)}
    found = anatomy.read(write(tmp_path / "untied.gguf", sizes))
    assert found.weight_bytes == 2 * 32 * 264
    assert found.bytes_per_step == 2 * found.parameters_per_step == 2 * 32 * 164
    assert found.embedding_parameters == 6400
    assert not found.tied
    assert (found.layers, found.kv_heads, found.kv_bytes_per_token, found.context) == (None, None, None, None)


def test_of_a_mixture_of_experts_only_those_used_are_read(tmp_path: Path) -> None:
    sizes = {
        "token_embd.weight": (100, 32),
        "blk.0.ffn_up_exps.weight": (8, 16, 32),
        "blk.0.ffn_up_shexp.weight": (16, 32),
    }
    found = anatomy.read(write(tmp_path / "moe.gguf", sizes, {"expert_count": 8, "expert_used_count": 2}))
    assert found.bytes_per_step == 2 * 32 * (100 + 2 * 16 + 16)


def test_layers_may_have_unlike_numbers_of_heads(tmp_path: Path) -> None:
    keys = {
        "block_count": 3, "embedding_length": 32, "attention.head_count": [4, 4, 2], "attention.head_count_kv": [2, 0, 1],
        "attention.key_length": 8, "attention.value_length": 16,
    }  # fmt: skip
    tensors = {"blk.0.attn_k.weight": (16, 32), "blk.0.attn_v.weight": (32, 32), "blk.2.attn_qkv.weight": (40, 32)}
    found = anatomy.read(write(tmp_path / "unlike.gguf", tensors, keys))
    assert (found.heads, found.kv_heads, found.head_size, found.attention_layers) == (4, 2, 8, 2)
    assert found.kv_bytes_per_token == {"f16": 3 * (8 + 16) * 2, "q8_0": round(3 * 24 * 34 / 32)}


SHAPE: dict[str, int | list[int]] = {
    "block_count": 4, "embedding_length": 32, "attention.head_count": 4, "attention.head_count_kv": 2,
}  # fmt: skip
"""Four layers whose keys and values are 16 long."""


def attention(*layers: int) -> dict[str, tuple[int, ...]]:
    return {f"blk.{layer}.attn_{part}.weight": (16, 32) for layer in layers for part in ("k", "v")}


def test_a_table_of_each_layers_own_embeddings_is_looked_up_and_layers_that_share_a_cache_add_none(
    tmp_path: Path,
) -> None:
    tensors = {
        "token_embd.weight": (64, 32), "per_layer_token_embd.weight": (64, 4096), **attention(0, 1, 2, 3),
        "blk.3.attn_k_norm.weight": (1, 16), "blk.3.attn_q.weight": (32, 32),
    }  # fmt: skip
    keys = SHAPE | {"attention.shared_kv_layers": 2, "attention.sliding_window": 512}
    found = anatomy.read(write(tmp_path / "g.gguf", tensors, keys, "gemma3n"))
    # The embedding table as output matrix, keys and values of two layers, and the queries.
    assert found.parameters_per_step == 64 * 32 + 2 * 2 * 16 * 32 + 32 * 32
    assert found.bytes_per_step == 2 * found.parameters_per_step
    assert found.embedding_parameters == 64 * (32 + 4096)
    assert found.kv_bytes_per_token == {"f16": 2 * (16 + 16) * 2, "q8_0": 2 * 32 * 34 / 32}
    assert found.attention_layers == 4
    assert roofline.of_file(found).step_parameters == found.parameters_per_step


def test_layers_that_only_draft_are_neither_read_nor_cached(tmp_path: Path) -> None:
    tensors = {"token_embd.weight": (64, 32), "output.weight": (64, 32), **attention(0, 1, 2, 3)}
    tensors["blk.3.nextn.eh_proj.weight"] = (32, 64)
    found = anatomy.read(write(tmp_path / "m.gguf", tensors, SHAPE | {"nextn_predict_layers": 1}, "glm4moe"))
    assert (found.layers, found.draft_layers, found.attention_layers) == (4, 1, 3)
    assert found.bytes_per_step == 2 * (64 * 32 + 3 * 2 * 16 * 32)
    assert found.kv_bytes_per_token == {"f16": 3 * 32 * 2, "q8_0": 3 * 32 * 34 / 32}


def test_of_a_hybrid_only_layers_with_attention_have_a_cache(tmp_path: Path) -> None:
    tensors = {"token_embd.weight": (64, 32), **attention(3)}
    for layer in range(3):
        tensors |= {f"blk.{layer}.attn_qkv.weight": (64, 32), f"blk.{layer}.ssm_out.weight": (32, 32)}
    path = write(tmp_path / "models/h-f16.gguf", tensors, SHAPE | {"full_attention_interval": 4}, "qwen3next")
    found = anatomy.read(path)
    assert (found.attention_layers, found.kv_bytes_per_token) == (1, {"f16": 64, "q8_0": 34})
    assert roofline.of_file(found).attention_flop == 4 * 1 * 4 * 8
    assert "4  (1 with attention)" in CliRunner().invoke(app, ["models", "show", "h"]).stdout
    # A layer with both, as in Falcon-H1, has a cache.
    both = {"blk.0.ssm_out.weight": (32, 32), **attention(0, 1, 2, 3)}
    assert anatomy.read(write(tmp_path / "both.gguf", both, SHAPE, "falcon-h1")).kv_bytes_per_token["f16"] == 4 * 64


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ({f"blk.{n}.ssm_out.weight": (32, 32) for n in range(4)}, "no layer has one: the model keeps a state of fixed size"),
        ({f"blk.{n}.attn_kv_a_mqa.weight": (576, 32) for n in range(4)}, "latent attention"),
        ({f"blk.{n}.attn_else.weight": (16, 32) for n in range(4)}, "the tensors of layer 0 show none of the kinds of attention"),
        ({f"blk.{n}.attn_qkv.weight": (32, 32) for n in range(4)}, "the tensors of layer 0 show none of the kinds of attention"),
    ],
    ids=["recurrent", "latent", "unknown", "fused, too few rows"],
)  # fmt: skip
def test_what_is_not_known_to_be_cached_has_a_reason_and_no_figure(
    tmp_path: Path, tensors: dict[str, tuple[int, ...]], why: str
) -> None:
    found = anatomy.read(write(tmp_path / "models/m-f16.gguf", {"token_embd.weight": (64, 32), **tensors}, SHAPE))
    assert found.kv_bytes_per_token is None
    assert found.kv_unknown.startswith(why)
    assert found.kv_unknown in CliRunner().invoke(app, ["models", "show", "m"]).stdout
    with pytest.raises(UsageError, match="its KV cache has no known size"):
        roofline.of_file(found)


def test_a_model_without_heads_of_keys_is_not_taken_for_one_that_states_none(tmp_path: Path) -> None:
    tensors = {f"blk.{n}.ssm_out.weight": (32, 32) for n in range(4)}
    keys = SHAPE | {"attention.head_count": 0, "attention.head_count_kv": 0}
    found = anatomy.read(write(tmp_path / "mamba.gguf", tensors, keys, "mamba"))
    assert (found.heads, found.kv_heads, found.head_size, found.kv_bytes_per_token) == (0, 0, None, None)


def test_a_split_model_is_one_model(tmp_path: Path) -> None:
    for number in (1, 2):
        write(tmp_path / f"models/m-q4_0-0000{number}-of-00002.gguf", {f"blk.{number}.ffn_up.weight": (64, 32)})
    record = asked("show", "m", "--digest")
    assert record["files"] == ["m-q4_0-00001-of-00002.gguf", "m-q4_0-00002-of-00002.gguf"]
    assert record["parameters"] == 2 * 64 * 32
    assert record["sha256"] == models.inspect(tmp_path / "models" / record["file"]).sha256
    [listed] = [one for one in asked("list")["files"] if one["name"] == "m"]
    assert (listed["format"], listed["files"], listed["fault"]) == ("q4_0", 2, "")
    (tmp_path / "models/m-q4_0-00001-of-00002.gguf").unlink()
    [listed] = [one for one in asked("list")["files"] if one["name"] == "m"]
    assert "name the first, m-q4_0-00001-of-00002.gguf, which is missing here" in listed["fault"]


def test_which_file_is_meant_must_be_clear(tmp_path: Path) -> None:
    for form in ("q4_0", "q8_0"):
        write(tmp_path / f"models/m-{form}.gguf", {"token_embd.weight": (4, 32)})
    with pytest.raises(UsageError, match="model m is here in q4_0, q8_0; choose with --format"):
        asked("show", "m")
    assert asked("show", "m", "--format", "q8_0")["file"] == "m-q8_0.gguf"
    assert asked("show", "models/m-q4_0.gguf")["file"] == "m-q4_0.gguf"
    with pytest.raises(Unmeasured, match=r"model qwen2.5-7b-instruct is not on this machine"):
        asked("show", "qwen2.5-7b-instruct")
    (tmp_path / "models/m-q4_0.gguf").write_bytes(b"GGUF" + bytes(3))
    with pytest.raises(UsageError, match=r"m-q4_0.gguf: the file is cut off or damaged"):
        asked("show", "m", "--format", "q4_0")


def test_the_list_says_what_each_suite_would_find(tmp_path: Path) -> None:
    write(tmp_path / "models/qwen2.5-0.5b-instruct-fp16.gguf", {"token_embd.weight": (4, 32)})
    (tmp_path / "suites").mkdir()
    suite = "question: Q?\nmodel: qwen2.5-0.5b-instruct\nvary: {format: [f16, q8_0]}\ndraft: {draft_model: absent}\n"
    (tmp_path / "suites" / "s.yaml").write_text(suite)
    (tmp_path / "suites" / "wrong.yaml").write_text("model: m\n")
    (tmp_path / "suites" / "models.yaml").write_text("models: {}\n")
    record = asked("list")
    assert set(record) == {"folders", "files", "suites", "known"}
    found = {(one["suite"], one["model"], one["format"]): one for one in record["suites"]}
    assert set(found) == {
        ("s", "qwen2.5-0.5b-instruct", "f16"),
        ("s", "qwen2.5-0.5b-instruct", "q8_0"),
        ("s", "absent", None),
        ("wrong", None, None),
    }
    assert found["s", "qwen2.5-0.5b-instruct", "f16"]["file"].endswith("qwen2.5-0.5b-instruct-fp16.gguf")
    assert (
        "joules models get qwen2.5-0.5b-instruct --format q8_0" in found["s", "qwen2.5-0.5b-instruct", "q8_0"]["reason"]
    )
    assert found["wrong", None, None]["fault"].startswith("suites/wrong.yaml")
    shown = CliRunner().invoke(app, ["models", "list"]).stdout
    assert "s: qwen2.5-0.5b-instruct f16 is here" in shown
    assert "s: absent is not here" in shown


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("costs.yaml", "costs.yaml: is no .gguf file; name a .gguf file, or a model as 'joules models list' prints it"),
        ("/etc", "/etc: is a folder"),
        ("some/where", "some/where: is not there"),
    ],
)
def test_a_path_of_something_else_is_told_as_what_it_is(tmp_path: Path, named: str, said: str) -> None:
    (tmp_path / "costs.yaml").write_text("a: 1")
    done = CliRunner().invoke(app, ["models", "show", named])
    assert isinstance(done.exception, UsageError)
    assert str(done.exception).startswith(said)


@pytest.mark.parametrize("named", ["smollm2", "SmolLM2_135M"])
def test_the_beginning_of_a_name_is_answered_with_the_name_that_the_list_prints(named: str) -> None:
    done = CliRunner().invoke(app, ["models", "show", named])
    assert isinstance(done.exception, Unmeasured)
    assert "did you mean 'smollm2-135m-instruct' in format q4_1?" in str(done.exception)


def test_a_folder_that_is_not_there_is_told_and_named_as_pytest_does(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    assert str(tmp_path / "elsewhere") in asked("list", "--joules-models", str(tmp_path / "elsewhere"))["folders"]
    with pytest.raises(UsageError, match="--models nosuchdir: there is no such folder"):
        asked("list", "--models", "nosuchdir")
