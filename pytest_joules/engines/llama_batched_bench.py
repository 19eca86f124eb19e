"""llama-batched-bench of llama.cpp: N prompts at once, then N tokens in each step, as the library does them without a server.

One row is one round: N prompts of random tokens are computed, then `-ntg` steps follow, each of one random token of every sequence. Nothing is
sampled. The program prints a row with the times of both parts when the round is over.
"""

from __future__ import annotations

from typing import Any

from pytest_joules.engines._bench_tool import FLASH_ROW, BenchTool, Heard, Shape, program, read_row, threads_of
from pytest_joules.engines._in_force import layers_of
from pytest_joules.engines.llama_server import VERBOSE_LEVEL, padded
from pytest_joules.models import ModelFile
from pytest_joules.suite import Server, Setting

NAME = "llama-batched-bench"

_LENGTHS, _BATCHES = 100, 1_000
"""How often length and batch are named: 100,000 rounds, more than any run has. It does one row for each pair of them."""


def find(where: str | None = None) -> BatchedBench:
    """The engine: the program beside the llama-server that is used."""
    return BatchedBench(program(NAME, where))


class BatchedBench(BenchTool):
    """One llama-batched-bench program."""

    name = NAME
    includes = ("prefill", "decode")
    remark = "llama-batched-bench computes random tokens of the suite's lengths and samples none"
    needed = frozenset({"-npp", "-ntg", "-npl", "--output-format"})

    def arguments(self, setting: Setting, model: ModelFile, shape: Shape) -> list[tuple[str, ...]]:
        """All of them as a server gets them, and the shape over and over."""
        server = setting.server
        threads = threads_of(server)
        level = VERBOSE_LEVEL.search(self.help)
        return [
            ("--model", str(model.path)),
            ("-npp", str(shape.prompt_tokens)),
            ("-ntg", ",".join([str(shape.answer_tokens)] * _LENGTHS)),
            ("-npl", ",".join([str(shape.parallel)] * _BATCHES)),
            ("--output-format", "jsonl"),
            ("--ctx-size", str(padded(server.context_per_slot) * server.parallel)),
            ("--no-kv-unified",),
            ("--threads", threads),
            ("--threads-batch", threads),
            ("--gpu-layers", str(layers_of(server))),
            ("--flash-attn", server.flash_attention),
            ("--cache-type-k", server.cache_type_k),
            ("--cache-type-v", server.cache_type_v),
            ("--batch-size", str(server.batch_tokens)),
            ("--ubatch-size", str(server.ubatch_tokens)),
            ("--offline",),
            *((("--verbosity", level[1]),) if level else ()),
        ]

    def heard(self, line: str, server: Server, shape: Shape) -> Heard | None:
        """A row is the end of a round and the beginning of the next."""
        if not line.startswith("{"):
            return None
        threads = int(threads_of(server))
        wanted: dict[str, Any] = {
            "pp": shape.prompt_tokens, "tg": shape.answer_tokens, "pl": shape.parallel, "is_pp_shared": 0,
            "n_batch": server.batch_tokens, "n_ubatch": server.ubatch_tokens, "n_threads": threads, "n_threads_batch": threads,
        }  # fmt: skip
        if "--gpu-layers" in self.flags:
            wanted["n_gpu_layers"] = layers_of(server)
        if "--flash-attn" in self.flags and server.flash_attention in FLASH_ROW:
            wanted["flash_attn"] = FLASH_ROW[server.flash_attention]
        row, fault = read_row(line, wanted, ["pp", "tg", "pl"])
        times = [row.get("t_pp"), row.get("t_tg")]
        if not fault and not all(isinstance(t, int | float) and 0 < t < float("inf") for t in times):
            fault = f"a row without its times (t_pp, t_tg): {line[:80]}"
        if fault:
            return Heard(ends=True, holds=True, fault=fault)
        says = {key: row[key] for key in ("n_kv_max", *wanted) if key in row}
        return Heard(ends=True, holds=True, prompt_s=times[0], decode_s=times[1], says=says)
