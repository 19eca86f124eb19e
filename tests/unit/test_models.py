import json
import re
from pathlib import Path

import gguf
import numpy as np
import pytest

from pytest_joules import models
from pytest_joules.errors import Unmeasured, UsageError
from pytest_joules.models import anatomy, find, folders, inspect

EMPTY_GGUF = b"GGUF" + (3).to_bytes(4, "little") + bytes(16)
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 4431390720\n".format("0" * 64)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models.platformdirs, "user_cache_dir", lambda _: str(tmp_path_factory.mktemp("cache")))
    monkeypatch.delenv("JOULES_MODELS", raising=False)


def write(
    path: Path,
    split: int | None = None,
    rows: int = 8,
    number: int | None = None,
    total: int | None = None,
    block: int = 0,
) -> Path:
    """A tiny but whole model, or a shard of one."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_token_list(["a", "b", "c"])
    if split:
        writer.add_uint16("split.count", split)
    if number is not None:
        writer.add_uint16("split.no", number)
    if total is not None:
        writer.add_int32("split.tensors.count", total)
    writer.add_tensor("output.weight" if block else "token_embd.weight", np.ones((rows, 32), dtype=np.float32))
    writer.add_tensor(f"blk.{block}.attn.weight", np.ones((4, 32), dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        inspect(path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("pointer.gguf", POINTER.encode(), "this is a Git LFS pointer, not the model; run 'git lfs pull'"),
        ("empty.gguf", b"", "the file is empty; fetch it again"),
        ("cut.gguf", EMPTY_GGUF[:10], "the file is cut off or damaged"),
        ("short.gguf", b"GG", "this is no GGUF file"),
        ("wrong_magic.gguf", b"GGML" + bytes(20), "this is no GGUF file (it starts with b'GGML')"),
        ("old.gguf", b"GGUF" + (99).to_bytes(4, "little") + bytes(16), "the file is cut off or damaged"),
    ],
)
def test_what_is_no_whole_model(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert words in refusal(tmp_path / name)
    assert name in refusal(tmp_path / name)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.gguf").endswith("none.gguf: there is no such file")
    (tmp_path / "folder.gguf").mkdir()
    assert refusal(tmp_path / "folder.gguf").endswith("folder.gguf: there is no such file")


def test_shards_must_all_be_there_and_the_first_is_named(tmp_path: Path) -> None:
    for number in (1, 3):
        (tmp_path / f"example-0000{number}-of-00003.gguf").write_bytes(EMPTY_GGUF)
    assert "shard 2 of 3 is missing: example-00002-of-00003.gguf; fetch it into the same folder" in refusal(
        tmp_path / "example-00001-of-00003.gguf"
    )
    third = tmp_path / "example-00003-of-00003.gguf"
    assert refusal(third).endswith("this is shard 3 of 3; name the first, example-00001-of-00003.gguf")
    (tmp_path / "example-00002-of-00003.gguf").write_text(POINTER)
    assert "example-00002-of-00003.gguf: this is a Git LFS pointer" in refusal(tmp_path / "example-00001-of-00003.gguf")


def test_a_model_of_which_the_first_shard_is_missing(tmp_path: Path) -> None:
    (tmp_path / "example-00002-of-00002.gguf").write_bytes(EMPTY_GGUF)
    found = find("example", None, [tmp_path])
    assert "name the first, example-00001-of-00002.gguf, which is missing here: fetch it" in refusal(found)


def test_a_model_in_one_shard(tmp_path: Path) -> None:
    path = tmp_path / "single-00001-of-00001.gguf"
    path.write_bytes(EMPTY_GGUF)
    assert inspect(path).size_bytes == len(EMPTY_GGUF)


def test_the_identity_covers_every_shard(tmp_path: Path) -> None:
    first, second = (write(tmp_path / f"m-0000{n}-of-00002.gguf", split=2, rows=8 * n, block=n - 1) for n in (1, 2))
    model = inspect(first)
    assert model.path == first
    assert model.size_bytes == first.stat().st_size + second.stat().st_size
    assert model.metadata["parameters"] == (8 * 32 + 128) + (16 * 32 + 128)
    assert model.metadata["embedding_parameters"] == 8 * 32 + 16 * 32
    write(second, split=2, rows=24, block=1)
    assert inspect(first).sha256 != model.sha256
    second.write_bytes(second.read_bytes()[:-200])
    assert "m-00002-of-00002.gguf: the file is cut off or damaged" in refusal(first)


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"split": 2, "number": 0}, "m-00002-of-00002.gguf holds shard 1 of 2; give the shards back their names"),
        ({"split": 3, "number": 1}, "m-00002-of-00002.gguf holds shard 2 of 3; give the shards back their names"),
        ({"split": 2, "number": 1}, "m-00001-of-00002.gguf and m-00002-of-00002.gguf both hold token_embd.weight"),
        ({"split": 2, "number": 1, "block": 1, "total": 9}, "its shards hold 4 tensors, and m-00002-of-00002.gguf is of a model with 9"),
    ],
    ids=["a copy", "of a larger set", "of another model", "of another number of tensors"],
)  # fmt: skip
def test_shards_that_do_not_belong_together(tmp_path: Path, second: dict[str, int], words: str) -> None:
    first = write(tmp_path / "m-00001-of-00002.gguf", split=2, number=0, total=4)
    write(tmp_path / "m-00002-of-00002.gguf", split=2, number=1, total=4, block=1)
    assert inspect(first).metadata["parameters"] == 2 * 384
    write(tmp_path / "m-00002-of-00002.gguf", **second)
    assert words in refusal(first)
    with pytest.raises(UsageError, match=re.escape(words)):
        anatomy.read(first)


@pytest.mark.parametrize("name", ["m-00001-of-00000.gguf", "m-00000-of-00002.gguf", "m-00003-of-00002.gguf"])
def test_a_shard_that_there_cannot_be(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(EMPTY_GGUF)
    assert "which there cannot be; give it back its own name" in refusal(tmp_path / name)
    [found] = models.here([tmp_path], models.known_models([]))
    assert found.fault.startswith("its name says shard")


@pytest.mark.parametrize(
    ("file_type", "form", "said"),
    [
        (3, "q8_0", "x.gguf says that it is q4_1, not q8_0"),
        (2, "q4_1", "x.gguf says that it is q4_0, not q4_1"),
        (1, "bf16", "x.gguf says that it is f16, not bf16"),
        (1024 + 15, "q5_k_m", "x.gguf says that it is q4_k_m, not q5_k_m"),
        (15, "q4_k_xl", ""),
        (15, "q4", ""),
        (25, "iq4_xs", ""),
        (1, "FP16", ""),
        (38, "mxfp4", ""),
        (999, "q8_0", ""),
        (None, "q8_0", ""),
        (3, None, ""),
    ],
)
def test_a_file_of_another_number_format_than_was_asked_for(file_type: int | None, form: str | None, said: str) -> None:
    metadata = {} if file_type is None else {"general.file_type": file_type}
    model = models.ModelFile(path=Path("/m/x.gguf"), size_bytes=1, sha256="0" * 64, metadata=metadata)
    assert models.other_format(model, form) == said


def test_a_shard_under_the_name_of_a_whole_model(tmp_path: Path) -> None:
    first, second = (write(tmp_path / f"{n}.gguf", split=2) for n in "ab")
    (tmp_path / "joined.gguf").write_bytes(first.read_bytes() + second.read_bytes())
    message = refusal(tmp_path / "joined.gguf")
    assert "joined.gguf: it holds one of 2 shards under the name of a whole model" in message
    assert "never with cat" in message


def test_a_model_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in sorted({*range(0, len(whole), 37), len(whole) - 1}):
        cut.write_bytes(whole[:length])
        assert "cut.gguf" in refusal(cut)


def test_what_a_model_is(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf")
    model = inspect(path)
    assert model.metadata["general.architecture"] == "llama"
    assert model.metadata["llama.block_count"] == 2
    assert not [key for key in model.metadata if key.startswith(("GGUF.", "tokenizer.ggml.tokens"))]
    record = model.record()
    assert record["path"] == "tiny.gguf"
    assert str(tmp_path) not in json.dumps(record)


def test_a_model_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "tiny.gguf")
    cache = tmp_path / "cache"
    monkeypatch.setattr(models.platformdirs, "user_cache_dir", lambda _: str(cache))
    reads: list[Path] = []
    real = models.digest
    monkeypatch.setattr(models, "digest", lambda shard: reads.append(shard) or real(shard))
    first = inspect(path)
    assert inspect(path) == first
    assert reads == [path]
    write(path, rows=16)
    assert inspect(path).sha256 != first.sha256
    for remembered in cache.rglob("*.json"):
        remembered.write_text("[]")
    assert inspect(path).metadata["parameters"] == 16 * 32 + 128


def test_a_cache_that_cannot_be_written_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(models.platformdirs, "user_cache_dir", lambda _: str(tmp_path / "file"))
    assert inspect(write(tmp_path / "tiny.gguf")).metadata["parameters"] == 384


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    for name in (
        "Qwen2.5-7B-Instruct-Q4_0.gguf",
        "Qwen2.5-7B-Instruct-Q4_K_M-00001-of-00002.gguf",
        "Qwen2.5-7B-Instruct-Q4_K_M-00002-of-00002.gguf",
        "deep/er/SmolLM2-135M-Instruct.Q4_1.gguf",
        "plain.gguf",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(EMPTY_GGUF)
    return folder


@pytest.mark.parametrize(
    ("name", "form", "found"),
    [
        ("qwen2.5-7b-instruct", "q4_0", "Qwen2.5-7B-Instruct-Q4_0.gguf"),
        ("Qwen2.5 7B Instruct", "Q4_0", "Qwen2.5-7B-Instruct-Q4_0.gguf"),
        ("qwen2.5-7b-instruct", "q4_k_m", "Qwen2.5-7B-Instruct-Q4_K_M-00001-of-00002.gguf"),
        ("smollm2-135m-instruct", "q4_1", "deep/er/SmolLM2-135M-Instruct.Q4_1.gguf"),
        ("qwen2.5-7b-instruct-q4_0", None, "Qwen2.5-7B-Instruct-Q4_0.gguf"),
        ("plain", None, "plain.gguf"),
        ("plain.gguf", None, "plain.gguf"),
    ],
)
def test_a_model_is_found_by_name_and_format(shelf: Path, name: str, form: str | None, found: str) -> None:
    assert find(name, form, [shelf]) == shelf / found


@pytest.mark.parametrize(
    ("name", "form", "words"),
    [
        ("qwen2.5-7b-instruct", "q8_0", "model qwen2.5-7b-instruct in format q8_0 is not on this machine"),
        ("qwen2.5-7b-instuct", "q4_0", "did you mean 'qwen2.5-7b-instruct' in format q4_0?"),
        ("qwen2.5-7b-instuct", "q4_k_m", "did you mean 'qwen2.5-7b-instruct' in format q4_k_m?"),
        ("qwen2.5", None, "did you mean 'qwen2.5-7b-instruct' in format q4_0?"),
        ("qwen2.5", None, "substitute one with --joules-model qwen2.5=PATH"),
        ("none.gguf", None, "model none.gguf: there is no such file"),
    ],
)
def test_a_model_that_is_not_here(shelf: Path, name: str, form: str | None, words: str) -> None:
    with pytest.raises(Unmeasured) as caught:
        find(name, form, [shelf])
    assert words in str(caught.value)


def test_where_was_looked_is_told_without_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for folder in ("home/models", "home2/models"):
        (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(Unmeasured) as caught:
        find("m", None, [tmp_path / "home" / "models", tmp_path / "home2" / "models", tmp_path / "absent"])
    assert f"(looked in ~/models, {tmp_path}/home2/models)" in str(caught.value)
    with pytest.raises(Unmeasured, match="looked in no folder that exists"):
        find("m", None, [tmp_path / "absent"])


def test_the_first_folder_wins_and_a_substitute_before_all(shelf: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "plain.gguf").write_bytes(EMPTY_GGUF)
    assert find("plain", None, [other, shelf]) == other / "plain.gguf"
    assert find("plain", None, [shelf, other]) == shelf / "plain.gguf"
    assert find("plain", "q4_0", [shelf], {"plain": other / "mine.gguf"}) == other / "mine.gguf"
    assert find(str(other / "plain.gguf"), None, []) == other / "plain.gguf"


def test_the_folders_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOULES_MODELS", f"{tmp_path}/a:~/b:")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    found = folders([Path("~/c")], tmp_path)
    assert found[:4] == [tmp_path / "home" / "c", tmp_path / "a", tmp_path / "home" / "b", tmp_path / "models"]


def test_the_model_of_the_quickstart_comes_with_a_package() -> None:
    path = find("smollm2-135m-instruct", "q4_1", folders([], Path("absent")))
    assert path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    with path.open("rb") as file:
        assert file.read(4) == b"GGUF"
