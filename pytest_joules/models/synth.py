"""Models with the shape of real ones and random weights: for speed, where no real weights can be had.

What a decode step computes and reads depends on the shape and the number format alone, so the speed is real. Energy depends on
the values too, through how many bits change from one to the next, and is never compared with real weights'. Answers mean nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_joules import models
from pytest_joules.errors import JoulesError, UsageError
from pytest_joules.models.catalogue import Shape
from pytest_joules.words import decoded, one_line

DIRECT = ("f16", "q8_0")
"""Formats that are written without llama-quantize."""

LEAST_VOCABULARY = 258
"""One token for each byte, one for the end, and one beside them."""

_BLOCK = 32
"""Values in a block of q8_0, which has one scale."""

_UNIFORM_SD = 73.3
"""Standard deviation of the whole numbers from -127 to 127, all equally likely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides the bytes of a synthetic file.

    Attributes:
        name: what suites call it, with `synthetic` in it.
        shape: its sizes.
        format: number format of the weights, as it stands in file names.
        seed: of the weights.
        like: the shape's name in the catalogue; empty for one of the person's own.
        texts: the words of these are one token each, as common words are with a real vocabulary; of all else every byte is one.
    """

    name: str
    shape: Shape
    format: str
    seed: int = 1
    like: str = ""
    texts: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        """`synthetic-qwen2.5-1.5b-q4_0.gguf`."""
        return f"{self.name}-{self.format}.gguf"


def recipe(
    like: str, base: Shape | None, changes: dict[str, Any], form: str, seed: int, texts: Sequence[str]
) -> Recipe:
    """A recipe from a shape of the catalogue, sizes in place of its own, or both.

    Raises:
        UsageError: the sizes make no model, or some are missing.
    """
    given = {key: value for key, value in changes.items() if value is not None}
    if base is None:
        missing = [name for name in ("layers", "embd", "heads", "ffn") if name not in given]
        if missing:
            raise UsageError(
                f"a shape takes {', '.join(f'--{name}' for name in missing)} as well, or --like a known one"
            )
        shape = Shape(**{"kv_heads": given["heads"], "vocab": 1024, "context": 4096, **given})
    else:
        shape = replace(base, **given)
    _check(shape)
    named = like if base is not None and not given else f"{shape.architecture}-{shape.layers}x{shape.embd}"
    return Recipe(
        name=f"synthetic-{named}", shape=shape, format=form.lower(), seed=seed, like=like if named == like else "",
        texts=tuple(texts),
    )  # fmt: skip


def _check(shape: Shape) -> None:
    faults = [
        (
            shape.head_size is None and shape.embd % shape.heads != 0,
            f"--embd {shape.embd} is no multiple of --heads {shape.heads}",
        ),
        (shape.heads % shape.kv_heads != 0, f"--heads {shape.heads} is no multiple of --kv-heads {shape.kv_heads}"),
        (
            (shape.head_size or shape.embd // shape.heads) % 2 != 0,
            "the size of a head is odd, and its values turn in pairs",
        ),
        (
            shape.vocab < LEAST_VOCABULARY,
            f"--vocab {shape.vocab} is too small for every byte; {LEAST_VOCABULARY} at least",
        ),
    ]
    if said := [fault for wrong, fault in faults if wrong]:
        raise UsageError(said[0])


def write(made: Recipe, folder: Path, quantizer: Path | None) -> Path:
    """Write the file, tensor by tensor; the same recipe with the same versions gives the same bytes.

    Args:
        quantizer: the llama-quantize program, for all formats but `DIRECT`.

    Raises:
        UsageError: the file is there already, the disk has too little room, or llama-quantize is needed and missing.
        JoulesError: llama-quantize cannot make the format.
    """
    path = folder / made.file_name
    if path.exists():
        raise UsageError(f"{path} is there already; remove it, or name another folder with --to")
    if made.format not in DIRECT and quantizer is None:
        raise UsageError(
            f"format {made.format} takes the program llama-quantize, which is neither on PATH nor beside llama-server; "
            f"install llama.cpp, or choose {' or '.join(DIRECT)}"
        )
    smallest = _base_format(made.shape)
    if made.format == "q8_0" != smallest:
        raise UsageError(f"format q8_0 takes --embd and --ffn that are multiples of {_BLOCK}; choose {smallest}")
    folder.mkdir(parents=True, exist_ok=True)
    base = made.format if made.format in DIRECT else smallest
    _check_room(made, base, folder)
    partial, whole = (folder / f".{made.file_name}.{os.getpid()}.{word}" for word in ("base", "partial"))
    try:
        _write_base(made, base, partial)
        if made.format not in DIRECT and quantizer is not None:
            _quantize(quantizer, partial, whole, made.format)
            whole.replace(path)
        else:
            partial.replace(path)
    finally:
        for left in (partial, whole):
            left.unlink(missing_ok=True)
    return path


def _base_format(shape: Shape) -> str:
    """The smallest format that holds every matrix without llama-quantize."""
    return "f16" if any(columns % _BLOCK for _, _, columns in shape.matrices()) else "q8_0"


def _check_room(made: Recipe, base: str, folder: Path) -> None:
    own = made.shape.parameters * (2.0 if base == "f16" else 34 / _BLOCK)
    needed = own if made.format == base else 2 * own
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UsageError(
            f"{made.file_name} takes {needed / 1e9:.1f} GB while it is made, and {folder} has {free / 1e9:.1f} GB free; "
            "name another folder with --to"
        )


def _quantize(program: Path, source: Path, target: Path, form: str) -> None:
    done = subprocess.run(
        [program, "--allow-requantize", source, target, form.upper(), str(os.cpu_count() or 1)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        said = [
            line
            for line in decoded(done.stdout).splitlines()
            if re.search(r"invalid|error|fail|not ", line, re.IGNORECASE)
        ]
        raise JoulesError(
            f"llama-quantize cannot make format {form}: {one_line(said[0] if said else f'exit code {done.returncode}')}; "
            f"'{program.name} --help' lists the formats"
        )


def _write_base(made: Recipe, form: str, path: Path) -> None:
    import gguf
    import numpy as np

    shape = made.shape
    writer = gguf.GGUFWriter(path, shape.architecture)
    with contextlib.closing(writer):
        _describe(writer, made, form)
        tokens, merges = vocabulary(made.texts, shape.vocab)
        _add_tokenizer(writer, tokens, merges)
        kind = gguf.GGMLQuantizationType[form.upper()]
        for name, rows, columns in shape.matrices():
            size = rows * columns * 2 if form == "f16" else rows * columns // _BLOCK * (_BLOCK + 2)
            writer.add_tensor_info(name, (rows, columns), np.dtype(np.float16), size, kind)
        for name, length in shape.vectors():
            writer.add_tensor_info(name, (length,), np.dtype(np.float32), 4 * length)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        silent = tokens.index(_END)
        for index, (name, rows, columns) in enumerate(shape.matrices()):
            matrix = _random(made.seed, index, rows, columns, form, silent if name in models.EMBEDDING else None)
            writer.write_tensor_data(matrix)
        for name, length in shape.vectors():
            writer.write_tensor_data(np.full(length, 0.0 if name.endswith("bias") else 1.0, np.float32))


def _random(seed: int, index: int, rows: int, columns: int, form: str, silent: int | None) -> Any:
    """A matrix of random weights as it stands in the file.

    The standard deviation is one over the root of a row's length, so that what goes in and what comes out are about equally
    large and nothing overflows. The raw words of the generator are used, because only these are the same in all versions of numpy.

    Args:
        silent: row of zeros: of the token that ends an answer, so that greedy decoding never comes upon it.
    """
    import numpy as np

    scale = 1 / (_UNIFORM_SD * columns**0.5)
    words = np.random.PCG64(np.random.SeedSequence([seed, index])).random_raw(-(-rows * columns // 8))
    values = words.astype("<u8", copy=False).view(np.int8)[: rows * columns].reshape(rows, columns)
    # -128 has no counterpart, and kernels that take a sign off would fail on it.
    np.maximum(values, -127, out=values)
    if silent is not None:
        values[silent] = 0
    if form == "f16":
        table = (np.arange(256, dtype=np.uint8).view(np.int8) * np.float32(scale)).astype(np.float16)
        return table[values.view(np.uint8)]
    blocks = np.empty((rows, columns // _BLOCK, _BLOCK + 2), np.uint8)
    blocks[..., :2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    blocks[..., 2:] = values.view(np.uint8).reshape(rows, columns // _BLOCK, _BLOCK)
    return blocks


def _describe(writer: Any, made: Recipe, form: str) -> None:
    import gguf

    shape = made.shape
    writer.add_name(made.name)
    writer.add_description("random weights in the shape of a model: its speed is real, its answers mean nothing")
    writer.add_bool(models.SYNTHETIC, True)
    writer.add_uint64("joules.seed", made.seed)
    if made.like:
        writer.add_string("joules.like", made.like)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16 if form == "f16" else gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.embd)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    if shape.head_size:
        writer.add_key_length(shape.head_size)
        writer.add_value_length(shape.head_size)
        writer.add_rope_dimension_count(shape.head_size)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_vocab_size(shape.vocab)


_END = "<|end|>"


def vocabulary(texts: Iterable[str], size: int) -> tuple[list[str], list[str]]:
    """Tokens and merges of a byte-level BPE tokenizer: every byte, the end, the words of the texts and what they are merged from.

    A word is merged from left to right, byte by byte, and nothing else is merged, so that no word gets in another's way. Tokens
    that no text leads to fill the vocabulary up to its size.
    """
    letters = _byte_letters()
    tokens = [letters[byte] for byte in range(256)] + [_END]
    merges: list[str] = []
    for word in dict.fromkeys(word for text in texts for word in re.findall(r" ?[A-Za-z]+", text)):
        spelt = "".join(letters[byte] for byte in word.encode())
        for end in range(2, len(spelt) + 1):
            if len(tokens) < size and spelt[:end] not in tokens:
                merges.append(f"{spelt[: end - 1]} {spelt[end - 1]}")
                tokens.append(spelt[:end])
    # A tokenizer without merges is refused; this one leads to a word that texts hardly hold.
    if not merges:
        merges.append(f"{letters[0]} {letters[0]}")
        tokens.append(letters[0] * 2)
    # Numbers, since a server may leave out of its answer what has no text.
    tokens += [f"{letters[ord(' ')]}{index}" for index in range(size - len(tokens))]
    return tokens, merges


def _byte_letters() -> dict[int, str]:
    """The letter that stands for each byte in GPT-2's byte-level BPE: its own where it can be seen, else one from 256 on."""
    seen = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = itertools.count(256)
    return {byte: chr(byte) if byte in seen else chr(next(others)) for byte in range(256)}


def _add_tokenizer(writer: Any, tokens: Sequence[str], merges: Sequence[str]) -> None:
    import gguf

    end = tokens.index(_END)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if token == _END else gguf.TokenType.NORMAL for token in tokens])
    writer.add_token_merges(merges)
    writer.add_eos_token_id(end)
    writer.add_bos_token_id(end)
    writer.add_add_bos_token(False)
