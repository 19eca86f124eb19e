"""llama-bench of llama.cpp: the generation test (`-n`), one sequence's decoding and nothing else.

One repetition is one round: `-n` steps of one random token each, after a prompt of random tokens (`-d`) that is computed before the round
and not in it. With `--progress` the program says when a repetition begins; its rows of JSON come when all of them are over, so
they are read beforehand, from a short test of its own, for what the program says it runs with.
"""

from __future__ import annotations

import re
import subprocess
from typing import Any

from pytest_joules.engines._bench_tool import FLASH_ROW, BenchTool, Heard, Shape, program, read_row, takes, threads_of
from pytest_joules.engines._in_force import in_force, layers_of
from pytest_joules.engines._process import environment
from pytest_joules.engines.llama_server import next_step
from pytest_joules.errors import EngineError
from pytest_joules.models import ModelFile
from pytest_joules.suite import Server, Setting
from pytest_joules.words import one_line

NAME = "llama-bench"

_REPETITIONS = 100_000
"""More rounds than any run has."""
_RUN = re.compile(r"llama-bench: benchmark \d+/\d+: (?P<what>\w+) run (?P<number>\d+)/\d+")
_FACTS = ("build_commit", "build_number", "cpu_info", "gpu_info", "backends", "model_type", "n_threads", "n_batch", "n_ubatch",
          "type_k", "type_v", "n_gpu_layers", "flash_attn")  # fmt: skip
"""What a row says of how it was run."""
_WITHOUT_GPU = frozenset({"CPU", "BLAS"})
"""Backends that compute on no GPU."""


def find(where: str | None = None) -> LlamaBench:
    """The engine: the program beside the llama-server that is used."""
    return LlamaBench(program(NAME, where))


class LlamaBench(BenchTool):
    """One llama-bench program."""

    name = NAME
    includes = ("decode",)
    remark = "llama-bench decodes random tokens after a prompt that is computed before the window, and samples none"
    needed = frozenset({"-n", "-p", "-r", "--progress", "-o"})

    def cannot(self, setting: Setting) -> str:
        """Why it is not made for a setting; empty when it is."""
        parallel = setting.server.parallel
        one = f"{NAME}: it decodes one sequence at a time, {parallel} were asked for; take llama-batched-bench"
        return "; ".join(filter(None, (one if parallel > 1 else "", super().cannot(setting))))

    def arguments(self, setting: Setting, model: ModelFile, shape: Shape) -> list[tuple[str, ...]]:
        """All of them as a server gets them, and the shape over and over."""
        return [
            *self._usual(setting.server, model),
            ("-n", str(shape.answer_tokens)),
            ("-d", str(shape.prompt_tokens)),
            ("-r", str(_REPETITIONS)),
            ("--progress",),
            # The first round is not measured, and warms up as the others are.
            ("--no-warmup",),
        ]

    def _usual(self, server: Server, model: ModelFile) -> list[tuple[str, ...]]:
        return [
            ("-m", str(model.path)),
            ("-p", "0"),
            ("-o", "jsonl"),
            ("-t", threads_of(server)),
            ("-ngl", str(layers_of(server))),
            ("-fa", self._flash(server.flash_attention)),
            ("-ctk", server.cache_type_k),
            ("-ctv", server.cache_type_v),
            ("-b", str(server.batch_tokens)),
            ("-ub", str(server.ubatch_tokens)),
            ("--offline",),
        ]

    def _flash(self, asked: str) -> str:
        """As this build is told it: older ones take 0 and 1, and have no `auto`."""
        return asked if asked in takes(self.help, "-fa") else {"on": "1", "off": "0"}.get(asked, "0")

    def heard(self, line: str, server: Server, shape: Shape) -> Heard | None:
        """Where one repetition begins another has ended, and so it has where its prompt is got ready."""
        if match := _RUN.match(line):
            generating = match["what"] == "generation"
            return Heard(ends=int(match["number"]) > 1 or not generating, holds=generating)
        return None

    def in_force(self, server: Server, log: str) -> tuple[dict[str, Any], list[str]]:
        """Nothing: the log of its rounds is empty, and `inquire` has read that of a run that tells all."""
        return {}, []

    def inquire(self, setting: Setting, model: ModelFile, timeout_s: float) -> tuple[dict[str, Any], list[str]]:
        """What a row of JSON and the log say of how it runs, from a test of a single token.

        Raises:
            EngineError: it gives no such row, or runs otherwise than asked.
        """
        server = setting.server
        arguments = [
            part
            for flag, *values in (*self._usual(server, model), ("-n", "1"), ("-r", "1"), ("--no-warmup",), ("-v",))
            if flag in self.flags
            for part in (flag, *values)
        ]
        try:
            done = subprocess.run(
                [self.program, *arguments], capture_output=True, text=True, errors="replace", timeout=timeout_s,
                stdin=subprocess.DEVNULL, env=environment(), check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise EngineError(
                f"{NAME} said nothing within {timeout_s:g} s while loading; raise ready_timeout_s"
            ) from None
        line = next((line for line in done.stdout.splitlines() if line.startswith("{")), "")
        if not line:
            said = one_line(" | ".join(done.stderr.strip().splitlines()[-3:])) or "it said nothing"
            raise EngineError(f"{NAME} gave no row (exit code {done.returncode}): {said}; {next_step(said)}")
        wanted: dict[str, Any] = {
            "n_gen": 1, "n_threads": int(threads_of(server)), "n_batch": server.batch_tokens, "n_ubatch": server.ubatch_tokens,
            "type_k": server.cache_type_k, "type_v": server.cache_type_v,
        }  # fmt: skip
        flash = self._flash(server.flash_attention) if "-fa" in self.flags else ""
        if flash in FLASH_ROW:
            wanted["flash_attn"] = FLASH_ROW[flash]
        if "-ngl" in self.flags:
            wanted["n_gpu_layers"] = layers_of(server)
        row, fault = read_row(line, wanted, ["n_gen"])
        if fault:
            raise EngineError(f"{NAME} gave {fault}; use another build of llama.cpp")
        says = {key: row[key] for key in _FACTS if key in row}
        # Where there is no GPU it takes any number of layers, and its log says nothing of them.
        backends = str(row.get("backends", "?")).split(",")
        facts, deviations = in_force(NAME, server, done.stderr, has_gpu=not _WITHOUT_GPU.issuperset(backends))
        if server.flash_attention == "auto" and flash in FLASH_ROW:
            deviations.append(f"this {NAME} has no auto for flash attention, which is off")
        return says | facts, deviations
