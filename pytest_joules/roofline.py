"""What a machine could decode at most: bytes and FLOP of a decode step, the roofs over tokens per second, and what they say of a run.

A decode step makes one token for each of `batch` slots. It reads the weights once, and every slot's own KV cache; it multiplies every
weight once for each slot. A roof is the speed at which one of the two takes all the time, so it is never reached and only bounds.
Docs: `docs/roofline.md`. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from pytest_joules.errors import UsageError
from pytest_joules.words import nearest

if TYPE_CHECKING:
    from pytest_joules.models.anatomy import Anatomy
    from pytest_joules.models.catalogue import Shape

SheetBasis = Literal["measured", "transcribed", "published", "estimated", "placeholder"]
"""Where a figure of a sheet comes from, best first: measured by its owner; somebody's measurement, as printed; stated by the maker of
the machine; worked out from something else; a number that only holds the place of one."""

FIGURES: Mapping[str, str] = {
    "bandwidth_gb_s": "memory bandwidth, GB/s",
    "peak_tflop_s": "peak, dense TFLOP/s",
    "memory_gb": "memory, GB",
    "idle_w": "idle power, W",
    "limit_w": "power limit, W",
    "cache_mb": "last-level cache, MB",
}
"""Every figure a sheet can hold, with its unit. GB and MB are 10^9 and 10^6 bytes."""

NUMBER_TYPES = ("fp16", "bf16", "tf32", "fp32", "fp8", "int8", "fp6", "fp4", "int4")
"""Number types of a peak; the first that a sheet has is taken where none is asked for: most engines multiply weights as 16-bit numbers."""

CONVENTIONS: Mapping[str, str] = {
    "read": "the weights a step reads and multiplies",
    "all": "every weight of the file",
    "non-embedding": "weights without embedding table and output matrix",
}
"""What may be counted as the weights of a model. The roofs count `read`; published figures often count one of the others."""

CACHE_NOTED_ABOVE = 0.05
"""A last-level cache of more than this share of what a step reads is told of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A figure with its origin."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}
    value: float
    basis: SheetBasis
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """What is known of a machine; what is not is `None`, and never a guess.

    Attributes:
        chips: names under which results know it: of the graphics card where it is one, else of the chip.
        peak_tflop_s: dense, by number type.
        cache_mb: the last cache before memory, which may hold a part of the weights from one step to the next.
        absent: by figure, why there is none and what would give it.
        remarks: what must be known beside the figures.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}
    name: str
    chips: tuple[str, ...] = ()
    bandwidth_gb_s: Quantity | None = None
    peak_tflop_s: Mapping[str, Quantity] = field(default_factory=dict)
    memory_gb: Quantity | None = None
    idle_w: Quantity | None = None
    limit_w: Quantity | None = None
    cache_mb: Quantity | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def why_absent(self, figure: str) -> str:
        """Why a figure is not there."""
        return self.absent.get(figure, "not stated in the sheet")

    def peak(self, number_type: str | None) -> tuple[str, Quantity] | None:
        """The peak of a number type, or of the first there is in the order of `NUMBER_TYPES`; `None` where the sheet has none.

        Raises:
            UsageError: the sheet has peaks, and not this one.
        """
        if number_type is None:
            number_type = next((name for name in NUMBER_TYPES if name in self.peak_tflop_s), None)
        if number_type is None:
            return None
        if number_type not in self.peak_tflop_s:
            there = f"it has {', '.join(self.peak_tflop_s)}" if self.peak_tflop_s else self.why_absent("peak_tflop_s")
            near = "" if number_type in NUMBER_TYPES else nearest(number_type, NUMBER_TYPES)
            raise UsageError(f"--peak {number_type}: sheet {self.name} has no such peak{near}; {there}")
        return number_type, self.peak_tflop_s[number_type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a decode step of a model reads and multiplies.

    Attributes:
        weight_bytes, parameters: of the whole file.
        step_bytes, step_parameters: of what a step reads and multiplies: all but an embedding table that is not the output matrix
            too, of which a step looks up one row for each slot.
        non_embedding_parameters: without the embedding table and the output matrix.
        kv_bytes_per_token: bytes of the KV cache that one token of one slot takes, by the cache's number type.
        attention_flop: FLOP of one new token for each token that its slot holds: 4 for each layer, head and value of a head.
        window: tokens that a layer with a sliding window looks back on; `None` where there is none.
    """

    name: str
    basis: SheetBasis
    source: str
    weight_bytes: int
    step_bytes: int
    parameters: int
    step_parameters: int
    non_embedding_parameters: int
    kv_bytes_per_token: Mapping[str, float]
    attention_flop: int
    window: int | None = None

    def counted(self, convention: str) -> tuple[int | None, int]:
        """Bytes and parameters by one of `CONVENTIONS`; bytes are `None` where the file does not tell them apart."""
        if convention == "all":
            return self.weight_bytes, self.parameters
        if convention == "read":
            return self.step_bytes, self.step_parameters
        return None, self.non_embedding_parameters

    def held(self, depth_tokens: float) -> float:
        """Tokens that are at least read of a slot which holds so many."""
        return depth_tokens if self.window is None else min(depth_tokens, self.window)

    def bytes_of_step(self, batch: int, depth_tokens: float, cache_type: str) -> float:
        """Bytes that a decode step reads at least: the weights once, and the KV cache of every slot."""
        return self.step_bytes + batch * self.held(depth_tokens) * self.kv_bytes_per_token[cache_type]

    def flop_of_step(self, batch: int, depth_tokens: float) -> float:
        """FLOP of a decode step: two for each multiplied weight and slot, and the attention of every slot."""
        return batch * (2.0 * self.step_parameters + self.held(depth_tokens) * self.attention_flop)


def of_file(model: Anatomy) -> Load:
    """The load of a model file.

    Raises:
        UsageError: the file does not say enough, or it is a mixture of experts.
    """
    if model.experts:
        raise UsageError(
            f"{model.file}: a mixture of experts has no roof here: which experts a step reads depends on its tokens"
        )
    unsaid = [
        name
        for name, value in (
            ("layers", model.layers), ("heads", model.heads), ("size of a head", model.head_size),
            ("heads of the KV cache", model.kv_bytes_per_token), ("embedding length", model.embedding_length),
        )
        if not value
    ]  # fmt: skip
    if model.kv_unknown:
        raise UsageError(f"{model.file}: its KV cache has no known size ({model.kv_unknown}), so there is no roof")
    if unsaid or model.kv_bytes_per_token is None:
        raise UsageError(f"{model.file}: the file does not say its {', '.join(unsaid)}; name another one of the model")
    layers, heads, head_size = model.attention_layers or 0, model.heads or 0, model.head_size or 0
    return Load(
        name=model.file,
        basis="measured",
        source=f"counted in the tensors of {model.file}",
        weight_bytes=model.weight_bytes,
        step_bytes=model.bytes_per_step,
        parameters=model.parameters,
        step_parameters=model.parameters_per_step,
        non_embedding_parameters=model.non_embedding_parameters,
        kv_bytes_per_token=dict(model.kv_bytes_per_token),
        attention_flop=4 * layers * heads * head_size,
        window=model.sliding_window,
    )


def of_shape(
    name: str, shape: Shape, form: str, sizes: Mapping[str, tuple[int, int]], kv_bytes: Mapping[str, float]
) -> Load:
    """The load of a model whose shape is known and whose file is not here: as llama-quantize makes it without an importance matrix.

    Args:
        form: format as it stands in file names.
        sizes: values in a block and bytes of it, by tensor type in capital letters.
        kv_bytes: bytes of a value in the KV cache by its number type.

    Raises:
        UsageError: it is not known which types llama-quantize gives the tensors in this format.
    """
    total = table = embedding = 0
    for tensor, rows, columns in shape.matrices():
        kind = _tensor_type(tensor, columns, form, shape)
        block, size = sizes[kind]
        taken = rows * columns // block * size
        total += taken
        if tensor in ("token_embd.weight", "output.weight"):
            embedding += rows * columns
        if tensor == "token_embd.weight" and not shape.tied:
            table = taken
    total += 4 * sum(length for _, length in shape.vectors())
    table_parameters = 0 if shape.tied else shape.vocab * shape.embd
    head_size = shape.head_size or shape.embd // shape.heads
    return Load(
        name=f"{name} {form}",
        basis="estimated",
        source=f"from the shape of {name} and the tensor types that llama-quantize gives it in {form}; the file is not here",
        weight_bytes=total,
        step_bytes=total - table,
        parameters=shape.parameters,
        step_parameters=shape.parameters - table_parameters,
        non_embedding_parameters=shape.parameters - embedding,
        kv_bytes_per_token={
            kind: 2 * shape.layers * shape.kv_heads * head_size * size for kind, size in kv_bytes.items()
        },
        attention_flop=4 * shape.layers * shape.heads * head_size,
    )


_UNIFORM = {"f32": "F32", "f16": "F16", "bf16": "BF16", "q8_0": "Q8_0"}
_ONE_OUTPUT = {
    **{name: name.upper() for name in ("q4_0", "q4_1", "q5_0", "q5_1", "q6_k")},
    "q4_k_m": "Q4_K", "q5_k_m": "Q5_K", "q5_k_s": "Q5_K",
}  # fmt: skip
"""Formats in which the output matrix is Q6_K; in those that end in _m the values and the second feed-forward matrix partly too."""


def _tensor_type(tensor: str, columns: int, form: str, shape: Shape) -> str:
    """The type of a tensor, by the rules of llama.cpp's `llama_tensor_get_type`."""
    if form in _UNIFORM:
        return _UNIFORM[form]
    k_quant = form.endswith(("_k", "_k_m", "_k_s"))
    if form not in _ONE_OUTPUT or (k_quant and columns % 256):
        raise UsageError(
            f"format {form}: the size of its weights is not known without the file{' for rows that 256 does not divide' if k_quant else ''}; "
            f"name a .gguf file with --model, or one of {', '.join((*_UNIFORM, *_ONE_OUTPUT))}"
        )
    if tensor == ("token_embd.weight" if shape.tied else "output.weight"):
        return "Q8_0" if columns % 256 else "Q6_K"
    if form.endswith("_m") and tensor.endswith(("attn_v.weight", "ffn_down.weight")):
        layer, eighth = int(tensor.split(".")[1]), shape.layers // 8
        if layer < eighth or layer >= 7 * shape.layers // 8 or (layer - eighth) % 3 == 2:
            return "Q6_K"
    return _ONE_OUTPUT[form]


def kv_batch(load: Load, depth_tokens: float, cache_type: str) -> float | None:
    """The batch at which the slots' KV caches are as many bytes of a step as the weights; `None` where slots hold nothing."""
    each = load.held(depth_tokens) * load.kv_bytes_per_token[cache_type]
    return load.step_bytes / each if each else None


def batch_floor(
    load: Load, bandwidth_gb_s: float, peak_tflop_s: float, depth_tokens: float, cache_type: str
) -> float | None:
    """The batch at which a step computes for as long as it reads: from there on the weights' traffic is paid for.

    `None` where the KV cache of a slot alone takes longer to read than its token to compute, so that no batch is large enough.
    """
    weights_s = load.step_bytes / (1e9 * bandwidth_gb_s)
    slot_read_s = load.held(depth_tokens) * load.kv_bytes_per_token[cache_type] / (1e9 * bandwidth_gb_s)
    slot_computed_s = load.flop_of_step(1, depth_tokens) / (1e12 * peak_tflop_s)
    return weights_s / (slot_computed_s - slot_read_s) if slot_computed_s > slot_read_s else None


def most_slots(load: Load, memory_gb: float, context_tokens: int, cache_type: str) -> int:
    """Slots whose whole context fits beside the weights; 0 where the weights alone do not fit with one."""
    left = 1e9 * memory_gb - load.weight_bytes
    return max(0, math.floor(left / (context_tokens * load.kv_bytes_per_token[cache_type])))


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A batch that is looked at, and what was measured there.

    Attributes:
        fixed: the values of other axes than the batch, in words.
        depth_tokens: tokens that each slot holds on average while it decodes.
        tokens_per_s: `None` where nothing was measured; `why_none` then says why, if anything was asked for.
        passes: of each pass alone.
    """

    batch: int
    depth_tokens: float
    cache_type: str
    fixed: str = ""
    tokens_per_s: float | None = None
    why_none: str = ""
    passes: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The roofs at one batch, and what of them was reached.

    Attributes:
        memory_tokens_per_s, compute_tokens_per_s: the roofs; `None` where the sheet lacks the figure.
        roof_tokens_per_s: the lower one of those that there are.
        fits: whether so many slots fit into memory with their whole context; `None` where the sheet states no memory.
        share: measured speed over the roof; `None` where it is over it, or a cache may hold all that a step reads.
        useful_gb_s: bytes that the measured speed needs at least, in GB/s.
        useful_tflop_s: FLOP of the measured speed, attention included, in TFLOP/s.
        idle_mj, limit_mj: energy of a token at the roof at the sheet's idle power and at its limit.
    """

    point: Point
    fits: bool | None
    memory_tokens_per_s: float | None
    compute_tokens_per_s: float | None
    roof_tokens_per_s: float | None
    share: float | None
    over: float | None
    useful_gb_s: float | None
    useful_tflop_s: float | None
    idle_mj: float | None
    limit_mj: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """One convention: weights alone, no KV cache, at the batch with the highest measured speed, else the largest.

    Attributes:
        passes_per_s: times a second that the weights can be read.
        tokens_per_s: that times the batch.
        useful_tflop_s: two FLOP a parameter times the measured speed.
    """

    convention: str
    weight_bytes: int | None
    parameters: int
    batch: int
    passes_per_s: float | None
    tokens_per_s: float | None
    useful_tflop_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The batch floor at one depth. `batch` is `None` where no batch is large enough."""

    depth_tokens: float
    batch: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Everything that is said of a model on a machine.

    Attributes:
        basis: the worst of all figures that the roofs rest on.
        energy_bases: by figure of the sheet, `idle_w` and `limit_w`, the worst that the energies at it rest on.
        least_shares: one of the two roofs is not known and may be the lower one, so that a share is at least what is told.
        peak: number type and dense peak of the compute roof.
        context_tokens: that memory is reserved for in each slot.
        kv_batch: see `kv_batch`, at the first point's depth.
        floors: empty where the sheet lacks a figure.
        missing: what could not be said, why, and what it needs.
    """

    load: Load
    sheet: Sheet
    basis: SheetBasis
    energy_bases: Mapping[str, SheetBasis]
    least_shares: bool
    peak: tuple[str, Quantity] | None
    context_tokens: int
    rows: tuple[Row, ...]
    counted: tuple[Counted, ...]
    kv_batch: float | None
    floors: tuple[Floor, ...]
    slots: int | None
    missing: tuple[str, ...]
    remarks: tuple[str, ...]


def worst(bases: Iterable[SheetBasis]) -> SheetBasis:
    """The basis that is the least sure."""
    return max(bases, key=get_args(SheetBasis).index)


def roofline(
    load: Load, sheet: Sheet, points: Sequence[Point], context_tokens: int, number_type: str | None = None
) -> Roofline:
    """The roofs of a machine over a model, and what of them was reached.

    Raises:
        UsageError: the sheet has no peak of this number type, or the model no size for a KV cache of a type.
    """
    for cache_type in dict.fromkeys(point.cache_type for point in points):
        if cache_type not in load.kv_bytes_per_token:
            raise UsageError(
                f"a KV cache of {cache_type} has no known size here; known: {', '.join(load.kv_bytes_per_token)}"
            )
    peak = sheet.peak(number_type)
    used = [figure for figure in (sheet.bandwidth_gb_s, peak and peak[1]) if figure]
    rows = tuple(_row(load, sheet, peak, point, context_tokens) for point in points)
    basis = worst([load.basis, *(figure.basis for figure in used)])
    powers = {"idle_w": sheet.idle_w, "limit_w": sheet.limit_w}
    first = points[0]
    floors: tuple[Floor, ...] = ()
    if sheet.bandwidth_gb_s and peak:
        floors = tuple(
            Floor(
                depth_tokens=depth,
                batch=batch_floor(load, sheet.bandwidth_gb_s.value, peak[1].value, depth, first.cache_type),
            )
            for depth in dict.fromkeys((0.0, first.depth_tokens))
        )
    return Roofline(
        load=load,
        sheet=sheet,
        basis=basis,
        energy_bases={name: worst([basis, power.basis]) for name, power in powers.items() if power},
        least_shares=len(used) == 1,
        peak=peak,
        context_tokens=context_tokens,
        rows=rows,
        counted=tuple(_counted(load, sheet, rows)),
        kv_batch=kv_batch(load, first.depth_tokens, first.cache_type),
        floors=floors,
        slots=most_slots(load, sheet.memory_gb.value, context_tokens, first.cache_type) if sheet.memory_gb else None,
        missing=tuple(_missing(sheet, peak)),
        remarks=tuple(_remarks(load, sheet, rows)),
    )


def _row(load: Load, sheet: Sheet, peak: tuple[str, Quantity] | None, point: Point, context_tokens: int) -> Row:
    read = load.bytes_of_step(point.batch, point.depth_tokens, point.cache_type)
    flop = load.flop_of_step(point.batch, point.depth_tokens)
    memory = 1e9 * sheet.bandwidth_gb_s.value / read * point.batch if sheet.bandwidth_gb_s else None
    compute = 1e12 * peak[1].value / flop * point.batch if peak else None
    # A cache that may hold all of a step leaves memory without a say.
    bounding = [None if _cached(sheet, read) else memory, compute]
    roof = min((bound for bound in bounding if bound is not None), default=None)
    memory_gb, speed = sheet.memory_gb, point.tokens_per_s
    reached = speed / roof if speed is not None and roof else None
    return Row(
        point=point,
        fits=None
        if memory_gb is None
        else most_slots(load, memory_gb.value, context_tokens, point.cache_type) >= point.batch,
        memory_tokens_per_s=memory,
        compute_tokens_per_s=compute,
        roof_tokens_per_s=roof,
        share=reached if reached is not None and reached <= 1 else None,
        over=reached if reached is not None and reached > 1 else None,
        useful_gb_s=read * speed / point.batch / 1e9 if speed is not None else None,
        useful_tflop_s=flop * speed / point.batch / 1e12 if speed is not None else None,
        idle_mj=1000 * sheet.idle_w.value / roof if sheet.idle_w and roof else None,
        limit_mj=1000 * sheet.limit_w.value / roof if sheet.limit_w and roof else None,
    )


def _cached(sheet: Sheet, read_bytes: float) -> bool:
    return sheet.cache_mb is not None and read_bytes <= 1e6 * sheet.cache_mb.value


def _counted(load: Load, sheet: Sheet, rows: Sequence[Row]) -> Iterator[Counted]:
    points = [row.point for row in rows]
    top = max(points, key=lambda point: (point.tokens_per_s or 0.0, point.batch))
    for convention in CONVENTIONS:
        size, parameters = load.counted(convention)
        passes = 1e9 * sheet.bandwidth_gb_s.value / size if sheet.bandwidth_gb_s and size else None
        yield Counted(
            convention=convention,
            weight_bytes=size,
            parameters=parameters,
            batch=top.batch,
            passes_per_s=passes,
            tokens_per_s=None if passes is None else passes * top.batch,
            useful_tflop_s=None if top.tokens_per_s is None else 2 * parameters * top.tokens_per_s / 1e12,
        )


def _missing(sheet: Sheet, peak: tuple[str, Quantity] | None) -> Iterator[str]:
    lacks = {
        "bandwidth_gb_s": "memory roof, weight passes and batch floor" if not sheet.bandwidth_gb_s else "",
        "peak_tflop_s": "compute roof and batch floor" if peak is None else "",
        "memory_gb": "most slots" if not sheet.memory_gb else "",
        "idle_w": "energy of a token at idle power" if not sheet.idle_w else "",
        "limit_w": "energy of a token at the power limit" if not sheet.limit_w else "",
    }
    for figure, unsaid in lacks.items():
        if unsaid:
            yield f"{unsaid}: the sheet has no {figure}"


def _remarks(load: Load, sheet: Sheet, rows: Sequence[Row]) -> Iterator[str]:
    if beyond := [str(row.point.batch) for row in rows if row.fits is False and row.point.tokens_per_s]:
        yield (
            f"measured with more slots than fit into the memory of the sheet (batch {', '.join(beyond)}): it is too small there, or "
            "something lay elsewhere"
        )
    if over := [row for row in rows if row.over]:
        which = ", ".join(f"{row.over:.2f} times at {row.point.batch}" for row in over)
        cache = (
            f"the {sheet.cache_mb.value:g} MB of last-level cache may hold a part of the weights"
            if sheet.cache_mb
            else "a cache whose size the sheet does not state may hold a part of the weights"
        )
        yield (
            f"measured over the roof ({which}), which no share can be told of: {cache}, or the bandwidth of the sheet is too low, "
            "or other weights were read than are counted here"
        )
    read = min(load.bytes_of_step(row.point.batch, row.point.depth_tokens, row.point.cache_type) for row in rows)
    if sheet.cache_mb and sheet.cache_mb.value * 1e6 >= read:
        yield (
            f"a step reads {read / 1e6:.3g} MB and the last-level cache holds {sheet.cache_mb.value:g} MB: the memory roof does not "
            "bound such a step and no share of it is told"
        )
    elif sheet.cache_mb and sheet.bandwidth_gb_s and sheet.cache_mb.value * 1e6 >= CACHE_NOTED_ABOVE * read:
        left = read - 1e6 * sheet.cache_mb.value
        yield (
            f"the last-level cache ({sheet.cache_mb.value:g} MB) may hold {1e6 * sheet.cache_mb.value / read:.0%} of what a step reads "
            f"({read / 1e6:.3g} MB); were only the rest read from memory, the memory roof would be {read / left:.2f} times as high"
        )
    if load.window is not None and any(row.point.depth_tokens > load.window for row in rows):
        yield f"KV traffic is counted to the sliding window of {load.window} tokens in every layer, the least it can be"
    if load.basis == "estimated" and any(row.point.tokens_per_s for row in rows):
        yield "the size of the weights is worked out from the model's shape: the file that was measured may differ by some percent"
    if any(row.point.tokens_per_s for row in rows):
        yield "measured speed is of the whole window, prompts read in it too, so decoding alone is somewhat nearer to the roof"
    yield from sheet.remarks
