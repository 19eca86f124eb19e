"""What a GGUF file says of the model inside: its shape, its formats, and the bytes that a decode step moves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pytest_joules import models

_EXPERTS = re.compile(r"\.ffn_(gate|up|down|gate_up)_exps\.")

KV_BYTES = {"f16": 2.0, "q8_0": 34 / 32}
"""Bytes of a value in the KV cache; q8_0 has a scale of two bytes for 32 values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensors:
    """The tensors of one format."""

    count: int = 0
    parameters: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """A model as its file describes it; what the file does not say is `None`.

    Attributes:
        file, files: name of the first part, names of all.
        size_bytes: of all parts together.
        parameters, embedding_parameters, non_embedding_parameters: all of them, those of the embedding table and the output
            matrix, and the rest.
        kv_heads: the highest of all layers.
        head_size: length of a key.
        tensors: by format.
        weight_bytes: of all tensors.
        bytes_per_step: of the weights that a decode step reads, with one sequence: all but the embedding table, unless that is the
            output matrix too; of a mixture of experts only as many as are used. What the sequences' KV cache adds comes on top.
        kv_bytes_per_token: of the KV cache by its number format; with a sliding window it does not grow beyond that in every layer.
        tied: the embedding table is the output matrix.
        vocabulary: number of tokens.
        synthetic: its weights are random.
    """

    file: str
    files: tuple[str, ...]
    size_bytes: int
    name: str | None
    architecture: str | None
    licence: str | None
    parameters: int
    embedding_parameters: int
    non_embedding_parameters: int
    layers: int | None
    embedding_length: int | None
    heads: int | None
    kv_heads: int | None
    head_size: int | None
    feed_forward_length: int | None
    context: int | None
    sliding_window: int | None
    experts: int | None
    experts_used: int | None
    tensors: Mapping[str, Tensors]
    weight_bytes: int
    bytes_per_step: int
    kv_bytes_per_token: Mapping[str, int] | None
    tied: bool
    tokenizer: str | None
    vocabulary: int | None
    chat_template: bool
    synthetic: bool

    def record(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def read(path: Path) -> Anatomy:
    """Read the description of a model, without its weights.

    Raises:
        UsageError: as `models.parts`, or a file is cut off.
    """
    files = models.parts(path)
    readers = [models.read(file) for file in files]
    fields = readers[0].fields
    tensors = [tensor for reader in readers for tensor in reader.tensors]

    def of(key: str) -> Any:
        return fields[key].contents() if key in fields else None

    architecture = of("general.architecture")
    layers, embd, heads = (
        of(f"{architecture}.{key}") for key in ("block_count", "embedding_length", "attention.head_count")
    )
    per_layer = _per_layer(of(f"{architecture}.attention.head_count_kv") or heads, layers)
    key_size = of(f"{architecture}.attention.key_length") or (
        embd // max(_per_layer(heads, 1)) if embd and heads else None
    )
    value_size = of(f"{architecture}.attention.value_length") or key_size
    experts, used = of(f"{architecture}.expert_count"), of(f"{architecture}.expert_used_count")
    sizes = {tensor.name: (int(tensor.n_elements), int(tensor.n_bytes)) for tensor in tensors}
    tied = "output.weight" not in sizes
    embedding = sum(sizes[name][0] for name in models.EMBEDDING if name in sizes)
    kv_values = sum(per_layer) * (key_size + value_size) if per_layer and key_size else None
    return Anatomy(
        file=files[0].name,
        files=tuple(file.name for file in files),
        size_bytes=sum(file.stat().st_size for file in files),
        name=of("general.name"),
        architecture=architecture,
        licence=of("general.license"),
        parameters=sum(count for count, _ in sizes.values()),
        embedding_parameters=embedding,
        non_embedding_parameters=sum(count for count, _ in sizes.values()) - embedding,
        layers=layers,
        embedding_length=embd,
        heads=max(_per_layer(heads, 1), default=None),
        kv_heads=max(per_layer, default=None),
        head_size=key_size,
        feed_forward_length=max(_per_layer(of(f"{architecture}.feed_forward_length"), 1), default=None),
        context=of(f"{architecture}.context_length"),
        sliding_window=of(f"{architecture}.attention.sliding_window"),
        experts=experts,
        experts_used=used,
        tensors=_by_format((tensor.tensor_type.name.lower(), *sizes[tensor.name]) for tensor in tensors),
        weight_bytes=sum(size for _, size in sizes.values()),
        bytes_per_step=_read_each_step({name: size for name, (_, size) in sizes.items()}, tied, experts, used),
        kv_bytes_per_token={form: round(kv_values * size) for form, size in KV_BYTES.items()} if kv_values else None,
        tied=tied,
        tokenizer=of("tokenizer.ggml.model"),
        vocabulary=len(fields["tokenizer.ggml.tokens"].data) if "tokenizer.ggml.tokens" in fields else None,
        chat_template="tokenizer.chat_template" in fields,
        synthetic=bool(of(models.SYNTHETIC)),
    )


def _per_layer(value: Any, layers: int | None) -> list[int]:
    """A figure of every layer; some architectures state one for all, some a list."""
    if value is None:
        return []
    return [int(one) for one in value] if isinstance(value, list) else [int(value)] * (layers or 1)


def _by_format(tensors: Iterable[tuple[str, int, int]]) -> dict[str, Tensors]:
    found: dict[str, Tensors] = {}
    for form, count, size in tensors:
        so_far = found.get(form, Tensors())
        found[form] = Tensors(count=so_far.count + 1, parameters=so_far.parameters + count, bytes=so_far.bytes + size)
    return dict(sorted(found.items(), key=lambda pair: -pair[1].bytes))


def _read_each_step(sizes: Mapping[str, int], tied: bool, experts: int | None, used: int | None) -> int:
    """Bytes of weights that one sequence's decode step reads."""
    share = used / experts if experts and used else 1.0
    return round(
        sum(
            size * (share if _EXPERTS.search(name) else 1.0)
            for name, size in sizes.items()
            if tied or name != "token_embd.weight"
        )
    )
