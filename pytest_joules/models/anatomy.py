"""What a GGUF file says of the model inside: its shape, its formats, and the bytes that a decode step moves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pytest_joules import models

_EXPERTS = re.compile(r"\.ffn_(gate|up|down|gate_up)_exps\.")
_BLOCK = re.compile(r"blk\.(?P<layer>\d+)\.(?P<part>.+)")
_LOOKED_UP = ("per_layer_token_embd.weight", "position_embd.weight", "token_types.weight")
"""Tables of which a step takes single rows, beside the embedding table."""
_OWN_KEYS_AND_VALUES = re.compile(r"attn_[kv](_norm)?\.")
_RECURRENT = ("ssm_", "shortconv.", "time_mix_", "channel_mix_")
"""What the tensors of a layer begin with that keeps a state of fixed size: Mamba and delta nets, LFM2, RWKV."""
_LATENT = "attn_kv_a"
"""Tensors of multi-head latent attention. Builds of llama.cpp differ in what they cache of it."""
_GEMMA3N_OWN_KV_LAYERS = 20
"""llama.cpp has this number for gemma3n in its source, and does not ask the file."""

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
        parameters, embedding_parameters, non_embedding_parameters: all of them, those of the embedding tables and the output
            matrix, and the rest.
        kv_heads: the highest of all layers.
        head_size: length of a key.
        tensors: by format.
        weight_bytes: of all tensors.
        draft_layers: the last ones of `layers`, which only guess further tokens (multi-token prediction): no decode step runs them.
        attention_layers: that look back on earlier tokens in a decode step; `None` where the file does not show it.
        bytes_per_step: of the weights that a decode step reads, with one sequence: without tables of which it takes single rows (an
            embedding table that is the output matrix too is read), draft layers, and what makes keys and values in layers that take
            those of an earlier one; of a mixture of experts only as many as are used. The sequences' KV cache comes on top.
        parameters_per_step: as many parameters, counted likewise.
        kv_bytes_per_token: of the KV cache by its number format; with a sliding window it does not grow beyond that in every layer.
        kv_unknown: why there is no such figure; empty where there is one, or the file does not state its layers.
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
    draft_layers: int
    attention_layers: int | None
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
    parameters_per_step: int
    kv_bytes_per_token: Mapping[str, int] | None
    kv_unknown: str
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
        UsageError: as `models.opened`.
    """
    files, readers = zip(*models.opened(path), strict=True)
    fields = readers[0].fields
    tensors = [tensor for reader in readers for tensor in reader.tensors]

    def of(key: str) -> Any:
        return fields[key].contents() if key in fields else None

    architecture = of("general.architecture")
    layers, embd, heads = (
        of(f"{architecture}.{key}") for key in ("block_count", "embedding_length", "attention.head_count")
    )
    most_heads = max(_per_layer(heads, 1), default=None)
    kv_heads = of(f"{architecture}.attention.head_count_kv")
    # A model without attention states 0, which is not the same as stating nothing.
    per_layer = _per_layer(heads if kv_heads is None else kv_heads, layers)
    usual_size = embd // most_heads if embd and most_heads else None
    key_size = of(f"{architecture}.attention.key_length") or usual_size
    value_size = of(f"{architecture}.attention.value_length") or usual_size
    drafting = of(f"{architecture}.nextn_predict_layers") or 0
    own_kv = _layers_of_own_kv(architecture, layers, drafting, of(f"{architecture}.attention.shared_kv_layers"))
    experts, used = of(f"{architecture}.expert_count"), of(f"{architecture}.expert_used_count")
    sizes = {tensor.name: (int(tensor.n_elements), int(tensor.n_bytes)) for tensor in tensors}
    tied = "output.weight" not in sizes
    embedding = sum(sizes[name][0] for name in models.EMBEDDING if name in sizes)
    step = list(_read_each_step(sizes, tied, layers, drafting, own_kv))
    share = used / experts if experts and used else 1.0
    attending, kv_values, kv_unknown = None, None, ""
    if of(f"{architecture}.attention.causal") is False:
        kv_unknown = "its attention is not causal, so it does not decode"
    elif layers is not None:
        blocks = _blocks(
            {tensor.name: [int(length) for length in tensor.shape] for tensor in tensors}, layers - drafting
        )
        interval = of(f"{architecture}.full_attention_interval")
        try:
            cached = [
                _cached_values(layer, block, per_layer[layer : layer + 1], key_size, value_size, interval)
                for layer, block in enumerate(blocks[:own_kv])
            ]
        except _UnknownError as error:
            kv_unknown = str(error)
        else:
            # Those that share are all of attention: what they share is an earlier one's keys and values.
            attending = sum(map(bool, cached)) + len(blocks) - len(cached)
            kv_values = sum(cached)
            if not kv_values:
                kv_unknown = "no layer has one: the model keeps a state of fixed size for each sequence"
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
        draft_layers=drafting,
        attention_layers=attending,
        embedding_length=embd,
        heads=most_heads,
        kv_heads=max(per_layer, default=None),
        head_size=key_size,
        feed_forward_length=max(_per_layer(of(f"{architecture}.feed_forward_length"), 1), default=None),
        context=of(f"{architecture}.context_length"),
        sliding_window=of(f"{architecture}.attention.sliding_window"),
        experts=experts,
        experts_used=used,
        tensors=_by_format((tensor.tensor_type.name.lower(), *sizes[tensor.name]) for tensor in tensors),
        weight_bytes=sum(size for _, size in sizes.values()),
        bytes_per_step=round(sum(sizes[name][1] * (share if _EXPERTS.search(name) else 1.0) for name in step)),
        parameters_per_step=round(sum(sizes[name][0] * (share if _EXPERTS.search(name) else 1.0) for name in step)),
        kv_bytes_per_token={form: round(kv_values * size) for form, size in KV_BYTES.items()} if kv_values else None,
        kv_unknown=kv_unknown,
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


class _UnknownError(Exception):
    """Why it is not known what a layer caches."""


def _layers_of_own_kv(architecture: str | None, layers: int | None, drafting: int, sharing: int | None) -> int | None:
    """How many layers, from the first, cache keys and values of their own; the rest take those of an earlier one.

    Args:
        drafting, sharing: of the last layers, how many only draft, and how many share by what the file states.
    """
    if layers is None:
        return None
    if architecture == "gemma3n" and sharing is None:
        return min(layers, _GEMMA3N_OWN_KV_LAYERS)
    return max(0, layers - drafting - (sharing or 0))


def _blocks(shapes: Mapping[str, list[int]], layers: int) -> list[dict[str, list[int]]]:
    """The tensors of each layer: lengths by the name within it, that of a row first."""
    found: list[dict[str, list[int]]] = [{} for _ in range(max(0, layers))]
    for name, shape in shapes.items():
        match = _BLOCK.fullmatch(name)
        if match and int(match["layer"]) < len(found):
            found[int(match["layer"])][match["part"]] = shape
    return found


def _cached_values(
    layer: int,
    block: Mapping[str, list[int]],
    kv_heads: list[int],
    key_size: int | None,
    value_size: int | None,
    interval: int | None,
) -> int:
    """Values that a token adds to a layer's KV cache; 0 where it has none.

    What a layer caches is what its matrices of keys and values give, so their rows are counted; head counts and lengths, which the
    layers of some architectures do not share, only stand in where one matrix makes queries, keys and values together.

    Raises:
        _UnknownError: the tensors do not show it.
    """
    if any(part.startswith(_LATENT) for part in block):
        raise _UnknownError("latent attention, of which builds of llama.cpp cache different parts")
    if any(part.startswith("indexer.") for part in block):
        raise _UnknownError("an indexer with a cache of its own")
    if "attn_k.weight" in block:
        keys = block["attn_k.weight"][-1]
        # Without a matrix of values the keys are cached as values too.
        return keys + block.get("attn_v.weight", block["attn_k.weight"])[-1]
    if any(part.startswith(_RECURRENT) for part in block) or (interval and (layer + 1) % interval):
        return 0
    if "attn_qkv.weight" in block and kv_heads and key_size and value_size:
        values = kv_heads[0] * (key_size + value_size)
        if 0 < values < block["attn_qkv.weight"][-1]:
            return values
    if kv_heads == [0]:
        return 0
    raise _UnknownError(f"the tensors of layer {layer} show none of the kinds of attention that are known here")


def _read_each_step(
    names: Iterable[str], tied: bool, layers: int | None, drafting: int, own_kv: int | None
) -> Iterator[str]:
    """The tensors that one sequence's decode step reads, those of experts that it does not use among them."""
    for name in names:
        if name in _LOOKED_UP or (name == "token_embd.weight" and not tied) or name.startswith("enc."):
            continue
        match = _BLOCK.fullmatch(name)
        if match and layers is not None and own_kv is not None:
            layer = int(match["layer"])
            shared = layer >= own_kv and _OWN_KEYS_AND_VALUES.match(match["part"])
            if layer >= layers - drafting or shared:
                continue
        yield name
