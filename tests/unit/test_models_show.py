import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from typer.testing import CliRunner

from pytest_joules import models
from pytest_joules.cli import app
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


def write(path: Path, tensors: dict[str, tuple[int, ...]], keys: dict[str, int | list[int]] | None = None) -> Path:
    """A model of half-precision tensors, named as llama.cpp names them."""
    path.parent.mkdir(exist_ok=True)
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in (keys or {}).items():
        if isinstance(value, list):
            writer.add_array(f"llama.{key}", value)
        elif key.startswith("split."):
            writer.add_uint16(key, value)
        else:
            writer.add_uint32(f"llama.{key}", value)
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
    assert found.bytes_per_step == 2 * 32 * 164
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
    found = anatomy.read(write(tmp_path / "unlike.gguf", {"token_embd.weight": (4, 32)}, keys))
    assert (found.heads, found.kv_heads, found.head_size) == (4, 2, 8)
    assert found.kv_bytes_per_token == {"f16": 3 * (8 + 16) * 2, "q8_0": round(3 * 24 * 34 / 32)}


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
