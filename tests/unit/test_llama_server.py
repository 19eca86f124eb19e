import contextlib
import gc
import itertools
import json
import math
import shlex
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from players.scripted_llama_server import HELP

from pytest_joules import gates, models
from pytest_joules.engines import ClosedLoop, Round, _client, _process, find, llama_server
from pytest_joules.engines._in_force import in_force
from pytest_joules.engines.llama_server import LlamaServer, LlamaServerEngine, locate, parse_flags, parse_version
from pytest_joules.errors import EngineError, Unmeasured, UsageError
from pytest_joules.models import ModelFile
from pytest_joules.records import RequestRecord
from pytest_joules.suite import Draft, Request, Server, Setting

CASES = Path(__file__).parents[1] / "cases"
PROGRAM = Path(__file__).parents[1] / "players" / "scripted_llama_server.py"

PROPS = {"total_slots": 1, "default_generation_settings": {"n_ctx": 1024}, "model_path": "/models/example-q4_k_m.gguf"}
MODEL = ModelFile(path=Path("/weights/example-q4_k_m.gguf"), size_bytes=1, sha256="0" * 64)
DRAFT = ModelFile(path=Path("/weights/draft.gguf"), size_bytes=1, sha256="1" * 64)
TIMINGS = {"cache_n": 0, "prompt_n": 24, "prompt_ms": 60.0, "predicted_n": 128, "predicted_ms": 3200.0}
ANSWER = {"tokens_predicted": 128, "tokens_evaluated": 24, "truncated": False, "stop_type": "limit", "timings": TIMINGS}
FINAL = {"content": "", "stop": True, **ANSWER}
PROMPT = [*range(24)]


def final(predicted: int, **changed: Any) -> dict[str, Any]:
    """The last event of a stream of so many tokens."""
    return FINAL | {"tokens_predicted": predicted, "timings": TIMINGS | {"predicted_n": predicted}} | changed


def setting(
    parallel: int = 1, context: int = 1024, draft: str | None = None, gpu_layers: Any = "all", **request: Any
) -> Setting:
    server = Server(parallel=parallel, context_per_slot=context, gpu_layers=gpu_layers)
    return Setting(
        engine="llama-server", model="m", format=None, server=server, request=Request(**request), draft=Draft(draft_model=draft), knobs={}
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_process, "GRACE_S", 0.3)
    monkeypatch.setattr(_client, "DYING_S", 0.5)
    monkeypatch.setattr(llama_server, "_POLL_S", 0.3)
    monkeypatch.delenv("JOULES_LLAMA_SERVER", raising=False)


class Scripted:
    """A scripted llama-server, and what it was asked."""

    def __init__(self, folder: Path, scenario: Mapping[str, Any]) -> None:
        script, self._requests, self._folder = folder / "scenario.json", folder / "requests.jsonl", folder
        script.write_text(json.dumps(scenario))
        program = folder / "llama-server"
        command = shlex.join([sys.executable, "-I", "-S", str(PROGRAM), str(script), str(self._requests)])
        program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        program.chmod(0o755)
        self.engine = LlamaServerEngine(program)
        if "help" not in scenario:
            self.engine.help = HELP

    def requests(self, route: str = "") -> list[dict[str, Any]]:
        lines = self._requests.read_text().splitlines() if self._requests.exists() else []
        return [record for record in map(json.loads, lines) if route in record["route"]]

    @contextlib.contextmanager
    def serve(self, asked: Setting | None = None, draft: ModelFile | None = None, ready_s: float = 20.0, answer_s: float = 20.0) -> Iterator[LlamaServer]:  # fmt: skip
        with self.engine.serve(asked or setting(), MODEL, draft, self._folder, ready_s, answer_s) as server:
            yield server


@pytest.fixture
def scripted(tmp_path: Path) -> Callable[..., Scripted]:
    """A server that plays a case (`L01-server-not-ready/slow_load`) or routes given in words."""

    def build(case: str = "", routes: Mapping[str, Any] | None = None, **keys: Any) -> Scripted:
        if case:
            scenario = json.loads((CASES / f"{case}.json").read_text())
        else:
            usual = {"GET /health": [{}], "GET /props": [{"json": PROPS}], "POST /completion": [{"json": ANSWER}]}
            scenario = {"routes": usual | dict(routes or {})}
        return Scripted(tmp_path, scenario | keys)

    return build


def answers(
    server: LlamaServer, rounds: int = 1, slots: int = 1, prompt: Sequence[int] = PROMPT
) -> list[RequestRecord]:
    return [a for number in range(rounds) for a in server.run_round([prompt] * slots, 128, number).answers]


def case_setting(parallel: int = 1, context: int = 8192, **keys: Any) -> Setting:
    """What the cases' servers say they run."""
    return setting(parallel, context, **keys)


# Readiness


def test_ready_means_health_says_so_and_nothing_else_is_asked_before(scripted) -> None:
    played = scripted("L01-server-not-ready/slow_load")
    with played.serve(case_setting()):
        assert [one["route"] for one in played.requests()] == ["GET /health"] * 7 + ["GET /props"] * 2


def test_a_server_that_still_says_loading_after_it_was_healthy_is_waited_for(scripted) -> None:
    loading = {"status": 503, "json": {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}}
    played = scripted(routes={"GET /props": [loading, loading, {"json": PROPS}]})
    with played.serve() as server:
        assert len(answers(server)) == 1
        assert [one["route"] for one in played.requests("GET")] == ["GET /health", "GET /props"] * 3 + ["GET /props"]
    assert played.requests("POST")[0]["route"] == "POST /completion"


@pytest.mark.parametrize("path", ["/health", "/props"])
def test_a_server_that_says_loading_for_ever_is_not_ready(scripted, path: str) -> None:
    loading = {"status": 503, "json": {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}}
    words = rf"not ready within 1 s \({path}: 503 .*Loading model.*\); raise ready_timeout_s"
    with pytest.raises(EngineError, match=words), scripted(routes={f"GET {path}": [loading]}).serve(ready_s=1.0):
        pass


def test_a_server_that_fails_its_health_check_for_ever_is_not_ready(scripted) -> None:
    fault = {"status": 500, "json": {"error": {"code": 500, "message": "no slots", "type": "server_error"}}}
    words = r"not ready within 1 s \(/health: 500 .*no slots.*\); raise ready_timeout_s"
    with pytest.raises(EngineError, match=words), scripted(routes={"GET /health": [fault]}).serve(ready_s=1.0):
        pass


def test_a_server_that_is_never_ready_is_ended(scripted, gone, monkeypatch) -> None:
    pids: list[int] = []
    real = _process.GuardedProcess.__init__

    def remember(self, *arguments):
        real(self, *arguments)
        pids.extend(self.pids)

    monkeypatch.setattr(_process.GuardedProcess, "__init__", remember)
    with (
        pytest.raises(
            EngineError, match=r"not ready within 1 s \(/health: 503 .*model is loading.*\); raise ready_timeout_s"
        ),
        scripted("L01-server-not-ready/never_ready").serve(ready_s=1.0),
    ):
        pass
    assert len(pids) == 2
    assert gone(*pids)


def test_a_health_check_that_hangs_is_not_waited_for(scripted) -> None:
    played = scripted(routes={"GET /health": [{"delay_s": 60}]})
    with pytest.raises(EngineError, match=r"not ready within 1 s \(/health: TimeoutError\)"), played.serve(ready_s=1.0):
        pass


def test_a_server_that_exits_while_loading(scripted) -> None:
    with (
        pytest.raises(
            EngineError,
            match=r"ended while loading: exit code 1; its log ends: error: failed to load model; check the model file, or use a build that knows it$",
        ),
        scripted("L01-server-not-ready/exits_while_loading").serve(),
    ):
        pass


def test_a_server_that_a_signal_ends_while_loading(scripted) -> None:
    played = scripted(routes={"GET /health": [{"signal": 4}]}, stderr=["loading the weights", "ggml: using AVX512"])
    with (
        pytest.raises(
            EngineError, match=r"ended while loading: signal 4 \(SIGILL\); its log ends: loading the weights \| ggml"
        ),
        played.serve(),
    ):
        pass


@pytest.mark.parametrize(
    ("reply", "log", "words"),
    [
        (
            {"exit": 1},
            ["ggml_backend_alloc: failed to allocate buffer of size 99", "error: failed to load model"],
            "exit code 1; its log ends: ggml_backend_alloc.* load model; lower parallel or context_per_slot, take a smaller model",
        ),
        (
            {"signal": 9},
            ["loading"],
            r"signal 9 \(SIGKILL\); its log ends: loading; likely killed because memory ran out: lower",
        ),
        (
            {"signal": 4},
            ["loading"],
            r"signal 4 \(SIGILL\); its log ends: loading; it was likely built for another processor",
        ),
        ({"exit": 70}, ["who knows"], "exit code 70; its log ends: who knows; try another build with --joules-server"),
    ],
    ids=["out of memory", "killed", "another processor", "unknown"],
)
def test_a_server_that_ends_while_loading_is_told_with_what_to_do(scripted, reply, log, words: str) -> None:
    with pytest.raises(EngineError, match=words) as told, scripted(routes={"GET /health": [{}], "GET /props": [reply]}, stderr=log).serve():  # fmt: skip
        pass
    assert "\n" not in str(told.value)


def test_a_server_that_exits_just_after_it_said_it_was_ready(scripted) -> None:
    played = scripted(routes={"GET /props": [{"exit": 3}]}, stderr=["terminate called"])
    with (
        pytest.raises(
            EngineError, match="ended while loading: exit code 3; its log ends: terminate called; try another build"
        ),
        played.serve(),
    ):
        pass


def test_a_program_that_was_built_for_another_processor(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\nkill -ILL $$\n")
    program.chmod(0o755)
    with pytest.raises(EngineError, match="--help died of signal 4: it was likely built for another processor"):
        LlamaServerEngine(program).flags  # noqa: B018


def test_another_program_is_told_by_its_help(scripted) -> None:
    played = scripted(help="usage: another [--verbose]\n")
    with pytest.raises(EngineError, match=r"--help does not look like llama-server's \(usage: another"), played.serve():
        pass


def test_a_program_without_its_library_says_so(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\necho 'dyld: Library not loaded: libllama.dylib' >&2\nexit 1\n")
    program.chmod(0o755)
    engine = LlamaServerEngine(program)
    with pytest.raises(EngineError, match=r"dyld: Library not loaded: libllama\.dylib"):
        engine.flags  # noqa: B018
    facts = engine.facts()
    assert (facts["build"], facts["commit"], facts["semver"]) == (None, None, None)
    assert "Library not loaded" in facts["version_text"]


@pytest.fixture
def held_port() -> Iterator[int]:
    """A port that another program holds and does not answer on."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def test_a_port_that_somebody_took_is_left_for_another(scripted, monkeypatch, held_port: int) -> None:
    free = llama_server.free_port
    ports = iter([held_port, free()])
    monkeypatch.setattr(llama_server, "free_port", lambda: next(ports))
    with scripted().serve() as server:
        assert len(answers(server)) == 1


def test_no_port_to_be_had(scripted, monkeypatch, held_port: int) -> None:
    monkeypatch.setattr(llama_server, "free_port", lambda: held_port)
    with (
        pytest.raises(
            EngineError, match=f"port {held_port} on 127.0.0.1 was taken by another program, 3 times in a row"
        ),
        scripted().serve(),
    ):
        pass


# What is in force


@pytest.mark.parametrize(
    ("case", "asked", "words"),
    [
        ("props_four", case_setting(1, 8192), "runs 4 slots, 1 were asked for; nothing was measured"),
        ("props_divided", case_setting(4, 8192), "gives 2048 tokens of context per slot, 8192 were asked for"),
    ],
)
def test_slots_and_context_are_read_back(scripted, case: str, asked: Setting, words: str) -> None:
    with pytest.raises(EngineError, match=words), scripted(f"L07-slots-and-shared-context/{case}").serve(asked):
        pass


WRONG_PROPS = (
    ({"model_path": "/models/another.gguf"}, "has loaded another.gguf, example-q4_k_m.gguf was asked for"),
    ({"total_slots": None}, "runs None slots"),
    ({"total_slots": "1"}, "runs None slots"),
    ({"default_generation_settings": {"n_ctx": 512}}, "gives 512 tokens"),
)
UNSURE_PROPS = (
    ({"default_generation_settings": {"n_ctx": 4096}}, "a slot has 4096 tokens of context, 1024 were asked for"),
    (
        {"default_generation_settings": {}},
        "this llama-server does not say what context a slot has, which could not be checked",
    ),
    (
        {"default_generation_settings": [1]},
        "this llama-server does not say what context a slot has, which could not be checked",
    ),
)


def test_what_is_not_as_asked_ends_it_and_what_is_unsure_is_a_deviation(scripted) -> None:
    replies = [{"json": PROPS | props} for props in ({}, {}, *(props for props, _ in (*WRONG_PROPS, *UNSURE_PROPS)))]
    with scripted(routes={"GET /props": replies}).serve() as server:
        assert server.deviations == []
        for _, words in WRONG_PROPS:
            with pytest.raises(EngineError, match=words):
                server.check(MODEL)
        for _ in UNSURE_PROPS:
            server.check(MODEL)
        assert server.deviations == [words for _, words in UNSURE_PROPS]


def test_a_padded_context_is_a_deviation(scripted) -> None:
    props = PROPS | {"default_generation_settings": {"n_ctx": 768}}
    with scripted(routes={"GET /props": [{"json": props}]}).serve(setting(1, 700)) as server:
        assert server.deviations == ["context_per_slot 700 is padded to 768 by the server"]
        assert server.facts["context_per_slot"] == 768


def log_lines(name: str) -> list[str]:
    return (CASES / "L08-config-not-in-force" / "logs" / f"{name}.txt").read_text().splitlines()


@pytest.mark.parametrize(
    ("log", "keys", "words"),
    [
        ("offloaded_0", {}, "put 0 of 29 layers on the GPU, all were asked for"),
        ("offloaded_0", {"gpu_layers": 99}, "put 0 of 29 layers on the GPU, 99 were asked for"),
        ("no_gpu", {"gpu_layers": 99}, r"put 0 of \? layers on the GPU, 99 were asked for"),
        ("fit_layers", {}, "put 17 of 29 layers on the GPU, all were asked for"),
        (
            "fit_layers",
            {"gpu_layers": 17},
            r"changed what was asked for to fit the memory \(params_fit: set to use 17 full GPU layers\)",
        ),
        ("fit_ctx", {}, "to fit the memory .params_fit: context size reduced from 8192 to 4096"),
        (
            "vocab",
            {"draft": "d"},
            "does not use the draft model: error: draft model vocab type must match target model",
        ),
    ],
)
def test_the_log_is_held_against_what_was_asked(scripted, log: str, keys: dict[str, Any], words: str) -> None:
    played = scripted(stderr=log_lines(log))
    with pytest.raises(EngineError, match=words), played.serve(setting(**keys), DRAFT if "draft" in keys else None):
        pass


@pytest.mark.parametrize(
    ("log", "gpu_layers", "offloaded"),
    [("offloaded_all", "all", 29), ("offloaded_all", 99, 29), ("offloaded_0", 0, 0), ("no_gpu", "all", 0), ("no_gpu", 0, 0), ("vocab", "all", 29)],
)  # fmt: skip
def test_layers_on_the_gpu_are_recorded(scripted, log: str, gpu_layers: Any, offloaded: int) -> None:
    with scripted(stderr=log_lines(log)).serve(setting(gpu_layers=gpu_layers)) as server:
        assert server.facts["offloaded_layers"] == offloaded


@pytest.mark.parametrize(
    ("log", "gpu_layers", "told"),
    [
        (["no_gpu"], "all", ["no GPU: all layers ran on the CPU"]),
        (["no_gpu", "offloaded_0"], "all", ["no GPU: all layers ran on the CPU"]),
        (["no_gpu"], 0, []),
        (["offloaded_all"], "all", []),
    ],
)
def test_a_machine_without_a_gpu_is_told_of_unless_none_was_asked_for(scripted, log, gpu_layers, told) -> None:
    lines = [line for name in log for line in log_lines(name)]
    with scripted(stderr=lines).serve(setting(gpu_layers=gpu_layers)) as server:
        assert server.deviations == []
        assert [server.facts["remark"]] == told if told else "remark" not in server.facts
        assert server.facts["offloaded_layers"] == (29 if log == ["offloaded_all"] else 0)


def offloaded(*layers: str) -> list[str]:
    return [f"load_tensors: offloaded {of} layers to GPU" for of in layers]


FORCED = "llama_init_from_model: flash_attn is not compatible with Grok - forcing off"


@pytest.mark.parametrize(
    ("asked", "log", "words"),
    [
        ({"gpu_layers": 20}, ["warning: not compiled with GPU offload support, --gpu-layers option will be ignored"],
         r"put 0 of \? layers on the GPU, 20 were asked for; free its memory, use a build for this GPU, or set gpu_layers"),
        ({"gpu_layers": 0}, offloaded("29/29"), "put 29 of 29 layers on the GPU, 0 were asked for; use another build, or set"),
        ({"gpu_layers": 10}, offloaded("29/29"), "put 29 of 29 layers on the GPU, 10 were asked for"),
        ({}, offloaded("29/29", "0/5"), r"\(draft model\) put 0 of 5 layers on the GPU, all were asked for"),
        ({"gpu_layers": 0}, offloaded("0/29", "5/5"), r"\(draft model\) put 5 of 5 layers on the GPU, 0 were asked for"),
        ({"flash_attention": "on"}, ["sched_reserve: Flash Attention was auto, set to disabled"],
         "runs with flash attention disabled, on was asked for; set flash_attention: auto, or use another build"),
        ({"flash_attention": "on"}, ["resolve_fused_ops: Flash Attention not supported, set to disabled"], "attention disabled, on"),
        ({"flash_attention": "on"}, ["llama_new_context_with_model: flash_attn = 0"], "attention disabled, on was asked"),
        ({"flash_attention": "on"}, [FORCED], "attention disabled, on was asked"),
        ({"flash_attention": "off"}, ["llama_context: flash_attn            = enabled"], "attention enabled, off was asked"),
    ],
)  # fmt: skip
def test_what_the_log_says_otherwise_than_asked_is_an_error(asked: dict[str, Any], log: list[str], words: str) -> None:
    with pytest.raises(EngineError, match=f"^llama-server .*{words}"):
        in_force("llama-server", Server(**asked), "\n".join(log))


UNTOLD = "llama-server does not say how many layers are on the GPU, which could not be checked"
NOT_COMPILED = "warning: not compiled with GPU offload support, --gpu-layers option will be ignored"


@pytest.mark.parametrize(
    ("asked", "log", "facts", "unchecked"),
    [
        ({}, [], {}, [UNTOLD]),
        ({"gpu_layers": 20}, [], {}, [UNTOLD]),
        ({"gpu_layers": 0}, [], {}, []),
        ({}, [NOT_COMPILED], {"offloaded_layers": 0, "remark": "no GPU: all layers ran on the CPU"}, []),
        # A number beyond what there is means all of them, in the draft model too.
        ({"gpu_layers": 20}, offloaded("20/29", "5/5"), {"offloaded_layers": 20, "layers": 29}, []),
        # The tools say what they were told with the same word; -1 is auto.
        ({"gpu_layers": 0}, ["llama_context: flash_attn    = auto", "main: n_batch = 2048, flash_attn = -1, n_threads = 2"], {}, []),
        ({"gpu_layers": 0}, ["llama_context: flash_attn    = auto", "resolve_fused_ops: layer 0 is assigned to device CUDA0 but Flash "
          "Attention is assigned to device CPU", "resolve_fused_ops: Flash Attention not supported, set to disabled",
          "resolve_fused_ops: fused Gated Delta Net (chunked) enabled"], {"flash_attention": "disabled"}, []),
        ({"gpu_layers": 0, "flash_attention": "on"}, ["llama_context: flash_attn    = enabled"], {"flash_attention": "enabled"}, []),
        ({"gpu_layers": 0, "flash_attention": "off"}, ["llama_context: flash_attn    = disabled"], {"flash_attention": "disabled"}, []),
    ],
)  # fmt: skip
def test_what_the_log_says_is_kept_and_what_it_leaves_out_is_told(asked, log, facts, unchecked) -> None:
    assert in_force("llama-server", Server(**asked), "\n".join(log)) == (facts, unchecked)


def test_a_server_that_says_nothing_of_layers_serves_with_a_deviation(scripted) -> None:
    with scripted(stderr=["resolve_fused_ops: Flash Attention enabled"]).serve() as server:
        assert server.deviations == [UNTOLD]
        assert server.facts["flash_attention"] == "enabled"


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        (" - 3: info\n - 4: trace (more info)\n - 5: debug\n", ["--verbosity", "4"]),
        # There 4 logs every token.
        (" - 3: info\n - 4: debug\n", []),
        ("", []),
    ],
)
def test_the_log_is_as_full_as_it_takes_to_tell_what_is_on_the_gpu(scripted, levels: str, expected: list[str]) -> None:
    text = "".join(line + "\n" for line in HELP.splitlines() if line.startswith("--")) + levels
    with scripted(help=text).serve() as server:
        arguments = server.facts["arguments"]
        place = arguments.index("--verbosity") if "--verbosity" in arguments else len(arguments)
        assert arguments[place : place + 2] == expected
        assert server.deviations == []


@pytest.mark.parametrize(("case", "outcome"), [("draft_idle", "void"), ("draft_on", "pass")])
def test_a_draft_that_does_not_draft(scripted, case: str, outcome: str) -> None:
    with scripted(f"L08-config-not-in-force/{case}").serve(case_setting(draft="d"), DRAFT) as server:
        found = answers(server)
    assert gates.drafted(found).outcome == outcome
    assert (found[0].draft_n, found[0].draft_accepted_n) == ((190, 92) if case == "draft_on" else (0, 0))


# How it is asked


def test_every_flag_is_passed_and_kept_without_folders(scripted) -> None:
    played = scripted(
        routes={"GET /props": [{"json": PROPS | {"total_slots": 4, "default_generation_settings": {"n_ctx": 512}}}]}
    )
    with played.serve(setting(4, 512, draft="d"), DRAFT) as server:
        line = " ".join(server.facts["arguments"])
    for part in (
        "--model example-q4_k_m.gguf", "--parallel 4", "--ctx-size 2048", "--no-kv-unified", "--fit off", "--gpu-layers 999",
        "--no-cache-prompt", "--cache-ram 0", "--no-cache-idle-slots", "--slot-prompt-similarity 0", "--metrics",
        "--model-draft draft.gguf", "--spec-type draft-simple", "--spec-draft-n-max 3", "--gpu-layers-draft 999",
        "--cache-type-k-draft f16", "--cache-type-v-draft f16", "--threads-draft", "--threads-batch-draft",
    ):  # fmt: skip
        assert part in line
    assert "/weights" not in line
    assert "api-key" not in line


def test_the_cache_is_left_on_where_it_is_wanted(scripted) -> None:
    with scripted().serve(setting(cache_prompt=True)) as server:
        assert not any("cache-prompt" in argument or "cache-ram" in argument for argument in server.facts["arguments"])
        answers(server)


def test_requests_are_of_fixed_length_greedy_and_uncached(scripted) -> None:
    played = scripted()
    with played.serve() as server:
        server.run_round([PROMPT], 64)
    [request] = played.requests("/completion")
    assert request["body"] == {
        "prompt": PROMPT, "n_predict": 64, "ignore_eos": True, "temperature": 0.0, "seed": 1, "cache_prompt": False, "stream": False,
    }  # fmt: skip
    keys = {one["key"] for one in played.requests()}
    assert len(keys) == 1
    assert len(keys.pop()) == len("Bearer ") + 32


def test_a_build_that_lacks_flags_deviates(scripted) -> None:
    old = "--port N  x\n-m,    --model FNAME  x\n-np,   --parallel N  x\n-c,    --ctx-size N  x\n--no-webui  x\n"
    with scripted(help=old).serve() as server:
        assert "--no-webui" in server.facts["arguments"]
        assert "this llama-server has no --fit off, which could not be pinned" in server.deviations
        assert "this llama-server has no --no-cache-prompt, which could not be pinned" in server.deviations


def test_a_draft_whose_layers_cannot_be_pinned_deviates_and_what_it_has_of_the_model_does_not(scripted) -> None:
    old = "".join(line + "\n" for line in HELP.splitlines() if "-draft VALUE" not in line or "--model-draft" in line)
    with scripted(help=old).serve(setting(draft="d", gpu_layers=0), DRAFT) as server:
        assert server.deviations == ["this llama-server has no --gpu-layers-draft 0, which could not be pinned"]


def test_synthetic_acceptance_is_passed_on_or_refused_and_never_left_out(scripted) -> None:
    asked = replace(setting(draft="d"), draft=Draft(draft_model="d", draft_synthetic_tokens=2.5))
    able = HELP + "--spec-synth-len L     target mean synthetic acceptance length\n"
    with scripted(help=able).serve(asked, DRAFT) as server:
        assert "--spec-synth-len 2.5" in " ".join(server.facts["arguments"])
    with scripted(help=able).serve(setting(draft="d"), DRAFT) as server:
        assert "--spec-synth-len" not in server.facts["arguments"]
    unable = able.replace("--spec-synth-len", "--spec-other")
    with (
        pytest.raises(EngineError, match="no --spec-synth-len for draft_synthetic_tokens"),
        scripted(help=unable).serve(asked, DRAFT),
    ):
        pass


def test_a_build_too_old_for_what_is_asked(scripted) -> None:
    old = "--port N\n--model FNAME\n"
    with pytest.raises(EngineError, match="this build has no --parallel"), scripted(help=old).serve():
        pass
    old += "--parallel N\n--ctx-size N\n"
    with (
        pytest.raises(EngineError, match="this build has no --model-draft"),
        scripted(help=old).serve(setting(draft="d"), DRAFT),
    ):
        pass


def test_flags_of_the_help_without_those_only_told_as_removed() -> None:
    text = (
        "usage: llama-server [options]\n"
        "-ngl,  --gpu-layers, --n-gpu-layers N   max. number of layers (env: LLAMA_ARG_N_GPU_LAYERS)\n"
        "                                        see --fit\n"
        "--mmap, --no-mmap                       memory-map the model\n"
        "--draft-max N                           the argument has been removed. use --spec-draft-n-max\n"
        "--defrag N                              defragment\n"
        "                                        the argument has been removed\n"
    )
    assert parse_flags(text) == {"-ngl", "--gpu-layers", "--n-gpu-layers", "--mmap", "--no-mmap"}


def test_nothing_of_our_environment_configures_the_server(monkeypatch) -> None:
    for name in ("LLAMA_ARG_PARALLEL", "LLAMA_ARG_CACHE_PROMPT", "LLAMA_API_KEY", "LLAMA_API_KEY_FILE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    environment = _process.environment()
    assert not any(name.startswith("LLAMA_") for name in environment)
    assert (environment["CUDA_VISIBLE_DEVICES"], environment["LC_ALL"]) == ("1", "C")


# What is answered


def test_a_round_is_released_together_and_timed_from_its_start(scripted) -> None:
    props = PROPS | {"total_slots": 4}
    played = scripted(routes={"GET /props": [{"json": props}], "POST /completion": [{"json": ANSWER, "delay_s": 0.3}]})
    with played.serve(setting(4)) as server:
        assert server.slots == 4
        done = server.run_round([[n] * 24 for n in range(4)], 128, 7)
    assert sorted(request["body"]["prompt"] for request in played.requests("/completion")) == [
        [n] * 24 for n in range(4)
    ]
    assert [(a.slot, a.round, a.predicted_n) for a in done.answers] == [(n, 7, 128) for n in range(4)]
    # One after the other they would take 1.2 s.
    assert 0.3 <= done.end_mono - done.start_mono < 1.1
    assert all(0 <= a.sent_s < a.received_s <= done.end_mono - done.start_mono + 1e-3 for a in done.answers)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("count", [1, 8, 32])
def test_the_requests_of_a_round_leave_together_and_the_client_then_sleeps(scripted, count: int, stream: bool) -> None:
    told = {"json": FINAL | {"tokens_evaluated": 500, "timings": TIMINGS | {"prompt_n": 500}}, "delay_s": 1.0}
    reply = {"events": [told]} if stream else told
    props = PROPS | {"total_slots": count}
    played = scripted(routes={"GET /props": [{"json": props}], "POST /completion": [reply]})
    prompts = [[n] * 500 for n in range(count)]
    with played.serve(setting(count, stream=stream)) as server:
        found = []
        for number in range(2):
            before = time.process_time()
            done = server.run_round(prompts, 128, number)
            found.append((done.release_spread_s, (time.process_time() - before) / (done.end_mono - done.start_mono)))
    came: dict[int, list[float]] = {0: [], 1: []}
    for index, request in enumerate(played.requests("/completion")):
        came[index // count].append(request["mono"])
    # On a machine that does other things too, the better of two rounds shows what the client can do.
    assert min(spread for spread, _ in found) < 0.1
    assert min(max(times) - min(times) for times in came.values()) < 0.3
    assert min(share for _, share in found) < 0.10


def test_the_spread_of_a_release_is_of_what_was_to_leave_together() -> None:
    def answer(slot: int, round_index: int, sent_s: float) -> RequestRecord:
        return replace(llama_server._answer(ANSWER, slot, round_index, sent_s, sent_s + 1), round=round_index)

    assert Round(0.0, 9.0, ()).release_spread_s == 0.0
    assert Round(0.0, 9.0, (answer(0, 0, 0.5),)).release_spread_s == 0.0
    together = answer(0, 0, 0.25), answer(1, 0, 0.5), answer(2, 0, 0.375)
    assert Round(0.0, 9.0, together).release_spread_s == 0.25
    # What a worker sends later waits for its own answer.
    assert Round(0.0, 9.0, (*together, answer(1, 1, 4.0))).release_spread_s == 0.25


# Streamed


def streaming(scripted: Callable[..., Scripted], *events: Mapping[str, Any], **reply: Any) -> Scripted:
    return scripted(routes={"POST /completion": [{"events": list(events), **reply}]})


def token(number: int, text: str = " a", **keys: Any) -> dict[str, Any]:
    return {"json": {"content": text, "stop": False, "tokens_predicted": number, "tokens_evaluated": 24}, **keys}


def test_a_streamed_answer_is_counted_as_a_whole_one_and_timed_by_token(scripted) -> None:
    last = {"json": final(4)}
    played = streaming(
        scripted, token(1, delay_s=0.3), *(token(n, delay_s=0.1) for n in (2, 3)), token(4, delay_s=0.4), last
    )
    with played.serve(setting(stream=True)) as server:
        [found] = server.run_round([PROMPT], 4).answers
    [request] = played.requests("/completion")
    assert request["body"]["stream"] is True
    whole = llama_server._answer(final(4), 0, 0, found.sent_s, found.received_s)
    assert found.first_token_s is not None
    assert found.inter_token_median_s is not None
    assert found.inter_token_p99_s is not None
    assert replace(found, first_token_s=None, inter_token_median_s=None, inter_token_p99_s=None) == whole
    assert found.sent_s + 0.3 <= found.first_token_s <= found.received_s - 0.55
    # The player sleeps at least as long as it is told to.
    assert 0.09 <= found.inter_token_median_s < 0.3
    assert 0.39 <= found.inter_token_p99_s < 1.0


def test_without_it_no_token_is_timed(scripted) -> None:
    with scripted().serve() as server:
        [found] = answers(server)
    assert (found.first_token_s, found.inter_token_median_s, found.inter_token_p99_s) == (None, None, None)


def read(*events: tuple[float, str], predicted: int = 4) -> RequestRecord:
    """An answer from events and their times."""
    last = (events[-1][0] if events else 1.0, f"data: {json.dumps(final(predicted))}")
    streamed = llama_server._read([(at, text.encode()) for at, text in (*events, last)])
    return _client.timed(llama_server._answer(streamed.final, 0, 0, 0.0, 9.0), streamed, 1.0)


def times(answer: RequestRecord) -> tuple[float | None, ...]:
    return answer.first_token_s, answer.inter_token_median_s, answer.inter_token_p99_s


def part(number: int | None, text: str = "x") -> str:
    return f"data: {json.dumps({'content': text, 'stop': False, **({} if number is None else {'tokens_predicted': number})})}"


@pytest.mark.parametrize(
    ("events", "predicted", "expected"),
    [
        ([(1.5, part(1)), (2.0, part(2)), (2.25, part(3)), (4.25, part(4))], 4, (0.5, 0.5, 2.0)),
        # Builds that do not count give one token in each event.
        ([(1.5, part(None)), (2.0, part(None)), (2.0, part(None, "")), (2.25, part(None)), (4.25, part(None))], 4, (0.5, 0.5, 2.0)),
        # Three drafted tokens were accepted at once, as one event or as three.
        ([(1.5, part(1)), (3.0, part(4))], 4, (0.5, 0.5, 0.5)),
        ([(1.5, part(1)), (3.0, part(4)), (3.0, part(4)), (3.0, part(4))], 4, (0.5, 0.5, 0.5)),
        # The last token gave no whole character and was held back until the end.
        ([(1.5, part(1)), (2.5, part(2))], 3, (0.5, 0.0, 1.0)),
        ([(1.5, part(1))], 1, (0.5, None, None)),
        ([], 1, (0.0, None, None)),
        ([], 0, (None, None, None)),
        ([(1.5, ": still here"), (2.0, part(1)), (2.5, "data: [DONE]"), (3.0, part(2)), (3.0, "")], 2, (1.0, 1.0, 1.0)),
        # Several tokens in each piece, of which the server counts none: nobody knows their times.
        ([(1.5 + n, part(None)) for n in range(8)], 32, (0.5, None, None)),
        ([(1.5, part(None))], 32, (0.5, None, None)),
        ([(1.5 + n, part(None)) for n in range(33)], 32, (0.5, None, None)),
        # One of a hundred without a piece of its own changes nothing; the last one here would have come at once with the end.
        ([(1.5 + n, part(None)) for n in range(99)], 100, (0.5, 1.0, 1.0)),
        # Counts that fall, are 0, end before the answer does, or go beyond it are no counts.
        ([(1.5, part(4)), (2.5, part(4)), (4.5, part(4))], 32, (0.5, None, None)),
        ([(1.5, part(2)), (2.5, part(1))], 32, (0.5, None, None)),
        ([(1.5, part(1)), (2.5, part(5))], 4, (0.5, None, None)),
        ([], 4, (None, None, None)),
    ],
)  # fmt: skip
def test_times_of_tokens(events, predicted: int, expected: tuple[float | None, ...]) -> None:
    assert times(read(*events, predicted=predicted)) == expected


def test_99_of_100_tokens_came_no_later() -> None:
    moments = [1.0, *(2.0 + n for n in range(99)), 200.0]
    found = read(*((at, part(n)) for n, at in enumerate(moments, 1)), predicted=101)
    assert times(found) == (0.0, 1.0, 1.0)


@pytest.mark.parametrize("at", range(1, 60, 7))
def test_events_may_be_split_anywhere_and_end_in_either_way(scripted, at: int) -> None:
    whole = f"{part(1)}\r\n\r\n{part(2)}\n\ndata: {json.dumps(FINAL)}\r\n\r\n"
    place = whole.index("\r\n\r\n") - 30 + at
    with streaming(scripted, {"text": whole[:place]}, {"text": whole[place:], "delay_s": 0.05}).serve(
        setting(stream=True)
    ) as server:
        [found] = server.run_round([PROMPT], 128).answers
    assert found.predicted_n == 128
    assert found.first_token_s is not None


ERROR = {"error": {"code": 500, "message": "failed to decode", "type": "server_error"}}


@pytest.mark.parametrize(
    ("events", "reply", "words"),
    [
        (
            [token(1), {"json": ERROR}],
            {},
            r"refused a request \(status 200, server_error\): failed to decode; try another",
        ),
        (
            [token(1), {"text": f"error: {json.dumps(ERROR['error'])}\n\n"}],
            {},
            r"refused .*server_error\): failed to decode",
        ),
        ([{"text": "error: what\n\n"}], {}, "with a body that is no JSON object"),
        (
            [token(1), {"text": 'event: error\ndata: {"message": "lost"}\n\n'}],
            {},
            r"refused .*\(status 200, error\): lost",
        ),
        ([token(1), token(2)], {}, "a stream was cut off before its final event, after 2 tokens; run again"),
        ([token(1), {"text": 'data: {"content": " a", "st'}], {}, "cut off before its final event, after 1 tokens"),
        ([], {}, "cut off before its final event, after 0 tokens"),
        (
            [token(1), token(2)],
            {"cut": True},
            "dropped a request: ClientPayloadError: .*; run again, or try another build",
        ),
        (
            [token(1), {"exit": 137}],
            {},
            "died in mid-work: exit code 137; its log ends: .*; likely killed because memory ran out",
        ),
        ([token(1), {"json": {"content": "", "stop": True}}], {}, "an answer has no count of generated tokens"),
        ([token(1), {"text": "data: {broken\n\n"}], {}, "with a body that is no JSON object: {broken; try another"),
    ],
    ids=[
        "error event",
        "error field",
        "error no JSON",
        "event of an error",
        "no final",
        "half an event",
        "nothing",
        "cut",
        "died",
        "no counts",
        "broken",
    ],
)
def test_a_stream_that_fails_says_why(scripted, events, reply, words: str) -> None:
    played = streaming(scripted, *events, **reply)
    with played.serve(setting(stream=True)) as server, pytest.raises(EngineError, match=words) as told:
        answers(server)
    assert "\n" not in str(told.value)


def test_a_request_that_is_refused_before_it_streams(scripted) -> None:
    refused = {
        "status": 400,
        "json": {"error": {"message": "the request exceeds the context size", "type": "exceed_context_size_error"}},
    }
    played = scripted(routes={"POST /completion": [refused, {"json": ANSWER}]})
    with played.serve(setting(stream=True)) as server:
        with pytest.raises(EngineError, match=r"status 400, exceed_context_size_error.*raise context_per_slot"):
            answers(server)
        with pytest.raises(
            EngineError, match="a stream was asked for and the answer came whole; leave out stream: true"
        ):
            answers(server)


def test_a_stream_that_stops_without_an_end(scripted) -> None:
    played = streaming(scripted, token(1), token(2, delay_s=60))
    with (
        played.serve(setting(stream=True), answer_s=1.0) as server,
        pytest.raises(EngineError, match="gave no answer within 1 s"),
    ):
        answers(server)


# Closed loop


def test_a_closed_loop_keeps_its_slots_busy_until_all_are_answered(scripted) -> None:
    # Whoever gets the long one: the other worker answers all the rest meanwhile.
    replies = [{"json": ANSWER, "delay_s": delay, "echo": True} for delay in (2.0, *[0.1] * 5)]
    played = scripted(routes={"GET /props": [{"json": PROPS | {"total_slots": 2}}], "POST /completion": replies})
    with played.serve(setting(2)) as server:
        done = server.run_closed_loop([[n] * 24 for n in range(6)], 128)
    assert isinstance(done, ClosedLoop)
    assert done.texts == tuple(str([n] * 24) for n in range(6))
    assert [a.predicted_n for a in done.answers] == [128] * 6
    by_worker = {slot: [a for a in done.answers if a.slot == slot] for slot in (0, 1)}
    assert sorted(len(of_one) for of_one in by_worker.values()) == [1, 5]
    for of_one in by_worker.values():
        assert [a.round for a in of_one] == list(range(len(of_one)))
        for earlier, later in itertools.pairwise(of_one):
            assert 0 <= later.sent_s - earlier.received_s < 0.2
    window_s = done.end_mono - done.start_mono
    assert window_s >= 2.0
    idle_from = min(of_one[-1].received_s for of_one in by_worker.values())
    assert done.drain_s == pytest.approx(window_s - idle_from, abs=0.2)
    assert done.drain_s > 0.5
    assert done.release_spread_s < 0.5


def test_a_closed_loop_may_let_the_model_end_its_answers_and_stream_them(scripted) -> None:
    played = streaming(scripted, token(1), {"json": final(2, stop_type="eos")})
    with played.serve() as server:
        done = server.run_closed_loop([PROMPT] * 3, 64, stream=True, exact=False)
        assert {(one["body"]["stream"], one["body"]["ignore_eos"], one["body"]["n_predict"]) for one in played.requests("/completion")} == {(True, False, 64)}  # fmt: skip
    assert (done.exact, done.texts) == (False, (" a", " a", " a"))
    assert [(a.slot, a.round, a.stop_type) for a in done.answers] == [(0, 0, "eos"), (0, 1, "eos"), (0, 2, "eos")]
    assert all(a.first_token_s is not None and a.first_token_s >= a.sent_s for a in done.answers)
    # One worker: it stands idle when all is over.
    assert done.drain_s < 0.1


@pytest.mark.parametrize("stream", [False, True])
def test_a_closed_loop_streams_where_the_suite_asks_for_it(scripted, stream: bool) -> None:
    played = streaming(scripted, {"json": FINAL}) if stream else scripted()
    with played.serve(setting(stream=stream)) as server:
        done = server.run_closed_loop([PROMPT], 128)
    assert done.exact
    body = played.requests("/completion")[0]["body"]
    assert (body["stream"], body["ignore_eos"]) == (stream, True)


def test_a_closed_loop_with_fewer_prompts_than_slots_drains_from_its_start(scripted) -> None:
    routes = {
        "GET /props": [{"json": PROPS | {"total_slots": 4}}],
        "POST /completion": [{"json": ANSWER, "delay_s": 0.5}],
    }
    with scripted(routes=routes).serve(setting(4)) as server:
        done = server.run_closed_loop([PROMPT] * 2, 128)
    assert done.drain_s == pytest.approx(done.end_mono - done.start_mono, abs=0.2)


def test_a_closed_loop_ends_with_its_first_failure(scripted) -> None:
    fault = {"status": 500, "json": {"error": {"message": "out of memory", "type": "server_error"}}}
    routes = {
        "GET /props": [{"json": PROPS | {"total_slots": 2}}],
        "POST /completion": [{"json": ANSWER}, {"json": ANSWER}, fault, {"json": ANSWER, "delay_s": 0.2}],
    }
    played = scripted(routes=routes)
    with played.serve(setting(2)) as server:
        with pytest.raises(EngineError, match=r"1 of 50 requests failed: .*out of memory; lower parallel"):
            server.run_closed_loop([PROMPT] * 50, 128)
        assert len(played.requests("/completion")) < 10


def test_repeats_of_a_prompt_that_came_from_the_cache(scripted) -> None:
    with scripted("L03-prompt-was-cached/repeats").serve(case_setting()) as server:
        found = answers(server, rounds=3, prompt=range(512))
    assert [(a.prompt_n, a.cache_n, a.predicted_n) for a in found] == [(512, 0, 128), (1, 511, 128), (1, 511, 128)]
    assert gates.prompt_cache(found[:1], wanted=False).outcome == "pass"
    assert gates.prompt_cache(found, wanted=False).outcome == "void"
    assert gates.requests_complete(found, 3, 128).outcome == "pass"


def test_an_old_build_hides_the_cache_in_the_length_of_the_prompt(scripted) -> None:
    with scripted("L03-prompt-was-cached/old_no_cache_n").serve(case_setting()) as server:
        [found] = answers(server, prompt=range(512))
    assert (found.prompt_n, found.cache_n) == (1, 511)
    gate = gates.prompt_cache([found], wanted=False)
    assert (gate.outcome, gate.value) == ("void", "511 of 512 prompt tokens from cache")


def test_an_image_costs_more_than_its_one_token(scripted) -> None:
    with scripted("L03-prompt-was-cached/image").serve(case_setting()) as server:
        found = answers(server, prompt=[1])
    gate = gates.prompt_cache(found, wanted=False)
    assert gate.outcome == "flag"
    assert "prompt_ms and prompt_n disagree" in str(gate.value)


def test_counts_without_timings(scripted) -> None:
    with scripted("L05-timings-absent-or-null/missing_keys").serve(case_setting()) as server:
        [found] = answers(server)
    assert (found.predicted_n, found.counted_from, found.prompt_n, found.prompt_ms) == (
        128,
        "tokens_predicted",
        24,
        None,
    )


def test_an_answer_of_no_tokens_is_void_and_no_division(scripted, make_window) -> None:
    with scripted("L05-timings-absent-or-null/zero_tokens").serve(case_setting()) as server:
        found = answers(server)
    assert (found[0].predicted_n, found[0].counted_from) == (0, "timings")
    assert gates.requests_complete(found, 1, 128).outcome == "void"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"timings": None, "usage": {"completion_tokens": 128, "prompt_tokens": 24}}, ("usage", 128, 24, 0)),
        ({"timings": {"predicted_n": None}, "tokens_predicted": 128}, ("tokens_predicted", 128, 0, 0)),
        (
            {"timings": {"predicted_n": 128, "prompt_n": None, "cache_n": 20}, "tokens_evaluated": 24},
            ("timings", 128, 4, 20),
        ),
        ({"timings": {"predicted_n": 128, "prompt_n": None}, "tokens_evaluated": 24}, ("timings", 128, 24, 0)),
        ({"timings": {"predicted_n": 128.0, "prompt_n": 20}, "tokens_evaluated": 24}, ("timings", 128, 20, 4)),
        ({"timings": "none", "tokens_predicted": 128, "tokens_evaluated": 24}, ("tokens_predicted", 128, 24, 0)),
    ],
)
def test_counts_come_from_the_first_place_that_has_one(body: dict[str, Any], expected: tuple[Any, ...]) -> None:
    found = llama_server._answer(body, 0, 0, 0.0, 1.0)
    assert (found.counted_from, found.predicted_n, found.prompt_n, found.cache_n) == expected


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tokens_predicted": 64}, "counts 128 and 64 generated tokens"),
        ({"usage": {"completion_tokens": 127}}, "counts 128 and 127 generated tokens"),
        ({"tokens_evaluated": 512}, "of 512 prompt tokens 24 were computed and 0 came from the cache"),
        ({"usage": {"prompt_tokens": 25}}, "counts 24 and 25 prompt tokens"),
        ({"usage": {"prompt_tokens_details": {"cached_tokens": 8}}}, "counts 0 and 8 prompt tokens from the cache"),
        ({"timings": TIMINGS | {"cache_n": None, "prompt_n": 30}}, "of 24 prompt tokens 30 were computed and -6"),
        ({"timings": TIMINGS | {"draft_n": 190}}, "draft_n 190 and draft_n_accepted None, which is no share"),
        ({"timings": TIMINGS | {"draft_n_accepted": 9}}, "draft_n None and draft_n_accepted 9"),
        ({"timings": TIMINGS | {"draft_n": 90, "draft_n_accepted": 300}}, "draft_n 90 and draft_n_accepted 300"),
        ({"timings": TIMINGS | {"draft_n": "190", "draft_n_accepted": "92"}}, "draft_n 190 and draft_n_accepted 92"),
    ],
)
def test_counts_that_contradict_each_other_are_none(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(EngineError, match=rf"^llama-server: an answer .*{words}.*use another build"):
        llama_server._answer(ANSWER | changed, 0, 0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("timings", "sent", "words"),
    [
        ({"prompt_n": 1}, 512, r"a prompt of 512 tokens was sent, and 1 are counted \(1 computed, 0 from the cache\)"),
        ({"prompt_n": 256, "cache_n": 0}, 512, "of 512 tokens was sent, and 256 are counted .*raise context_per_slot"),
        ({"prompt_n": 1, "cache_n": 24}, 24, "of 24 tokens was sent, and 25 are counted"),
    ],
)
def test_a_prompt_is_counted_as_long_as_it_was_sent(scripted, timings, sent: int, words: str) -> None:
    reply = {"json": {"stop_type": "limit", "timings": {"predicted_n": 128, **timings}}}
    with scripted(routes={"POST /completion": [reply]}).serve() as server:
        with pytest.raises(EngineError, match=words):
            server.run_round([range(sent)], 128)
        with pytest.raises(EngineError, match=words):
            server.run_closed_loop([range(sent)], 128)


def test_an_answer_that_counts_no_prompt_leaves_the_cache_unknown_and_says_so(scripted) -> None:
    untold = {"json": {"stop_type": "limit", "timings": {"predicted_n": 128}}}
    with scripted(routes={"POST /completion": [{"json": ANSWER}, untold, untold]}).serve() as server:
        assert gates.prompt_cache(answers(server), wanted=False).outcome == "pass"
        said = list(server.deviations)
        assert gates.prompt_cache(answers(server, rounds=2), wanted=False).outcome == "not evaluable"
        assert server.deviations == [*said, llama_server._CACHE_UNTOLD]


@pytest.mark.parametrize(
    ("flags", "stop"),
    [
        ({"stopped_eos": True, "stopped_word": False, "stopped_limit": False}, "eos"),
        ({"stopped_eos": False, "stopped_limit": True}, "limit"),
        ({"stopped_word": True, "stop_type": "none"}, "none"),
        ({}, None),
    ],
)
def test_older_builds_say_by_flags_why_an_answer_ended(flags: dict[str, Any], stop: str | None) -> None:
    body = {name: value for name, value in ANSWER.items() if name != "stop_type"} | flags
    assert llama_server._answer(body, 0, 0, 0.0, 1.0).stop_type == stop


@pytest.mark.parametrize("count", [None, "many", True, -1, 1.5, [128], 1e30])
def test_an_answer_without_a_usable_count_fails(count: Any) -> None:
    body = {"content": "a b c", "timings": {"predicted_n": count}, "tokens_predicted": count}
    with pytest.raises(EngineError, match="no count of generated tokens"):
        llama_server._answer(body, 0, 0, 0.0, 1.0)


def test_times_that_are_no_numbers_are_unknown(scripted) -> None:
    # What json.dumps would refuse, a server may still write.
    text = json.dumps(ANSWER).replace("60.0", "NaN").replace("3200.0", "1e999")
    with scripted(routes={"POST /completion": [{"body": text}]}).serve() as server:
        [found] = answers(server)
    assert (found.predicted_n, found.prompt_ms, found.predicted_ms) == (128, None, None)


@pytest.mark.parametrize("case", ["ctx_400", "ctx_500", "ctx_200"])
def test_an_error_in_the_body_is_a_failed_request_whatever_the_status(scripted, case: str) -> None:
    words = rf"status {case[-3:]}, exceed_context_size_error\): request too long for the slot; raise context_per_slot, or ask for fewer"
    played = scripted(f"L06-errors-in-the-body/{case}")
    with played.serve(case_setting()) as server, pytest.raises(EngineError, match=words):
        answers(server)
    assert len(played.requests("/completion")) == 1


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (
            500,
            {"error": {"code": 500, "message": "roles must alternate", "type": "server_error"}},
            r"status 500, server_error\): roles must",
        ),
        (200, {"error": "out of slots"}, r"refused a request \(status 200, error\): out of slots"),
        (200, {"error": {}, **ANSWER}, r"refused a request \(status 200"),
        (503, {"error": {"message": None, "type": None}}, r"refused a request \(status 503"),
        (502, "<html>Bad Gateway</html>", "status 502 with a body that is no JSON object: <html>"),
        (200, [ANSWER], "status 200 with a body that is no JSON object"),
        (500, ANSWER, "status 500 with a body"),
        (200, '{"timings": {"predicted_n": 12', "no JSON object"),
        (200, "[" * 100_000, "no JSON object"),
    ],
)
def test_a_failed_request_says_what_the_server_said(status: int, body: Any, words: str) -> None:
    with pytest.raises(EngineError, match=words):
        llama_server._object(status, body if isinstance(body, str) else json.dumps(body))


def test_an_answer_that_is_cut_off_fails(scripted) -> None:
    played = scripted(
        routes={"POST /completion": [{"json": ANSWER, "headers": {"Content-Length": "999999", "Connection": "close"}}]}
    )
    with played.serve() as server, pytest.raises(EngineError, match="dropped a request: ClientPayloadError"):
        answers(server)


def test_an_empty_answer_fails(scripted) -> None:
    played = scripted("L06-errors-in-the-body/empty_200")
    with (
        played.serve(case_setting()) as server,
        pytest.raises(EngineError, match=r"status 200 with .* no JSON object: \(empty\)"),
    ):
        answers(server)


def test_bytes_that_are_no_text_do_not_spoil_the_counts(scripted) -> None:
    with scripted("L06-errors-in-the-body/bad_utf8").serve(case_setting()) as server:
        [found] = answers(server)
    assert (found.predicted_n, found.prompt_n) == (128, 24)


def test_a_truncated_prompt_voids(scripted) -> None:
    with scripted("L06-errors-in-the-body/truncated_prompt").serve(case_setting()) as server:
        found = answers(server)
    gate = gates.requests_complete(found, 1, 128)
    assert (gate.outcome, gate.value) == ("void", "a prompt was truncated")


def test_a_round_in_which_some_fail_has_no_figure(scripted) -> None:
    with (
        scripted("L07-slots-and-shared-context/partial").serve(case_setting(8)) as server,
        pytest.raises(EngineError, match=r"3 of 8 requests failed: .*Context size has been exceeded"),
    ):
        answers(server, slots=8)


def test_an_error_is_not_tried_again_for_ever(scripted) -> None:
    played = scripted("L10-server-process-life/oom_500")
    with played.serve(case_setting()) as server:
        assert len(answers(server)) == 1
        with pytest.raises(EngineError, match=r"server_error.: failed to allocate buffer"):
            answers(server)
    assert len(played.requests("/completion")) == 2


def test_a_crash_in_mid_run_tells_the_exit_code(scripted) -> None:
    with scripted("L10-server-process-life/crash_midrun", stderr=["CUDA error: out of memory"]).serve(
        case_setting()
    ) as server:
        assert len(answers(server, rounds=2)) == 2
        with pytest.raises(
            EngineError, match="died in mid-work: exit code 137; its log ends: CUDA error: out of memory"
        ):
            answers(server)


def test_a_crash_while_other_requests_wait(scripted) -> None:
    routes = {
        "GET /props": [{"json": PROPS | {"total_slots": 3}}],
        "POST /completion": [{"delay_s": 60}, {"delay_s": 60}, {"signal": 9}],
    }
    with (
        scripted(routes=routes).serve(setting(3)) as server,
        pytest.raises(EngineError, match=r"died in mid-work: signal 9 \(SIGKILL\)"),
    ):
        answers(server, slots=3)


def test_a_dropped_connection_of_a_living_server(scripted) -> None:
    played = scripted(routes={"POST /completion": [{"drop": True}]}, stderr=["still here"])
    with played.serve() as server, pytest.raises(EngineError, match=r"dropped a request: .*; its log ends: still here"):
        answers(server)


def test_an_interruption_leaves_nothing_under_way(scripted, caplog) -> None:
    played = scripted(routes={"POST /completion": [{"delay_s": 60}]})
    outcome: list[BaseException] = []

    def work(server: LlamaServer) -> None:
        try:
            answers(server)
        except BaseException as error:
            outcome.append(error)

    with played.serve() as server:
        worker = threading.Thread(target=work, args=(server,))
        worker.start()
        while not played.requests("/completion"):
            time.sleep(0.01)
    worker.join(15.0)
    assert not worker.is_alive()
    assert len(outcome) == 1
    gc.collect()
    assert caplog.records == []


def test_a_request_without_an_answer(scripted) -> None:
    played = scripted(routes={"POST /completion": [{"delay_s": 60}]})
    with played.serve(answer_s=1.0) as server, pytest.raises(EngineError, match="gave no answer within 1 s"):
        answers(server)


def test_a_server_that_hangs_and_is_deaf_is_ended_all_the_same(scripted, gone) -> None:
    played = scripted(routes={"POST /completion": [{"delay_s": 600}]}, deaf=True)
    words = "gave no answer within 1 s; ask for shorter answers, or raise request_timeout_s; its log ends: "
    with played.serve(answer_s=1.0) as server, pytest.raises(EngineError, match=words):
        answers(server)
    assert gone(*server.pids)


@pytest.mark.parametrize("reply", [{"json": ANSWER}, {"signal": 9}, {"exit": 1}], ids=["stopped", "killed", "exited"])
def test_not_even_a_zombie_is_left(scripted, reply: dict[str, Any]) -> None:
    with scripted(routes={"POST /completion": [reply]}).serve() as server:
        pids = server.pids
        with contextlib.suppress(EngineError):
            answers(server)
    assert not any(map(psutil.pid_exists, pids))


def test_an_error_that_never_ends_is_told_each_time_and_the_server_ended(scripted, gone) -> None:
    fault = {"status": 500, "json": {"error": {"code": 500, "message": "compute error", "type": "server_error"}}}
    with scripted(routes={"POST /completion": [fault]}).serve() as server:
        for _ in range(3):
            with pytest.raises(
                EngineError, match=r"1 of 1 requests failed: .*compute error; try another build with --joules-server$"
            ):
                answers(server)
    assert gone(*server.pids)


@pytest.mark.parametrize("total", ["1.2.3", "-", "1e400", "NaN", "-7"])
def test_running_totals_that_are_no_numbers_are_none(scripted, total: str) -> None:
    text = f"llamacpp:n_decode_total {total}\nllamacpp:n_busy_slots_per_decode 3.5\n"
    with scripted(routes={"GET /metrics": [{"body": text}]}).serve() as server:
        assert server.counters() is None


def test_running_totals(scripted) -> None:
    text = (
        "# HELP llamacpp:n_decode_total Total number of llama_decode() calls\nllamacpp:n_decode_total 200\n"
        "llamacpp:n_busy_slots_per_decode 3.5\nllamacpp:tokens_predicted_total 1e+03\n"
    )
    with scripted(
        routes={"GET /metrics": [{"body": text}, {"body": "# nothing yet\n"}, {"status": 501, "json": {"error": {}}}]}
    ).serve() as server:
        found = server.counters()
        assert found is not None
        assert (found.decode_steps, found.busy_slots) == (200.0, 700.0)
        assert server.counters() is None
        assert server.counters() is None


def test_prompts_are_tokens_of_the_servers_own_tokenizer(scripted) -> None:
    played = scripted(routes={"POST /tokenize": [{"json": {"tokens": [1, 2, 3]}}]})
    with played.serve() as server:
        assert server.prompts("Why?", 3, identical=True) == [[1, 2, 3]] * 3
    assert played.requests("/tokenize")[0]["body"] == {"content": "Why?", "add_special": True}


def test_a_tokenizer_that_gives_nothing(scripted) -> None:
    replies = [{"json": {}}, {"json": {"tokens": []}}, {"json": {"tokens": "abc"}}]
    with scripted(routes={"POST /tokenize": replies}).serve() as server:
        for _ in replies:
            with pytest.raises(EngineError, match="/tokenize gave no tokens"):
                server.prompts("Why?", 1, identical=True)


def test_the_text_of_one_answer(scripted) -> None:
    with scripted(routes={"POST /completion": [{"json": {"content": " blue", **ANSWER}}]}).serve() as server:
        assert server.complete("The sky is", 8) == " blue"


# Which program


VERSIONS = [json.loads(line) for line in (CASES / "L09-version-strings" / "versions.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("case", VERSIONS, ids=lambda case: (case["stdout"] + case["stderr"]).split("\n")[0][:40])
def test_version_strings(case: dict[str, Any]) -> None:
    expected = {key: case[key] for key in ("build", "commit", "semver")}
    assert parse_version(case["stdout"] + case["stderr"]) == expected
    # Whichever stream they come on, and whatever else is said there.
    assert (
        parse_version(f"ggml_cuda_init: found 1 CUDA devices:\n{case['stderr']}{case['stdout']}built with GNU 12\n")
        == expected
    )


@pytest.mark.parametrize(
    ("text", "build", "commit", "semver"),
    [
        (
            "version: 123456 (0123456789abcdef0123456789abcdef01234567)\n",
            123456,
            "0123456789abcdef0123456789abcdef01234567",
            None,
        ),
        (
            "version: 0.5.0-dev (build 1, commit 0c1e570)\nbuilt with GNU 12.2.0 for Linux x86_64\n",
            None,
            "0c1e570",
            "0.5.0-dev",
        ),
        ("version: 8514 (406f4e3f6)\r\n", 8514, "406f4e3f6", None),
        ("", None, None, None),
        # Lines of libraries that are loaded.
        ("version: 12.4.131\nversion: 8514 (406f4e3f6)\n", 8514, "406f4e3f6", None),
        ("version: 0.5.0-dev (build 8514, commit 0c1e570)\nversion: 12.4.131\n", 8514, "0c1e570", "0.5.0-dev"),
        ("version: 12.4.131\nversion: 2.0.0\n", None, None, None),
        ("subversion: 8514 (406f4e3f6)", None, None, None),
    ],
)
def test_more_version_strings(text: str, build: int | None, commit: str | None, semver: str | None) -> None:
    assert parse_version(text.replace("\r\n", "\n")) == {"build": build, "commit": commit, "semver": semver}


def test_the_facts_of_a_program_name_it_without_its_folder(scripted, tmp_path: Path) -> None:
    facts = scripted(
        version="load_backend: loaded CPU\nversion: 8514 (406f4e3f6)\nbuilt with Clang 22.0.0 for Linux"
    ).engine.facts()
    assert (facts["name"], facts["build"], facts["commit"], facts["semver"]) == (
        "llama-server",
        8514,
        "406f4e3f6",
        None,
    )
    assert facts["version_text"] == "version: 8514 (406f4e3f6); built with Clang 22.0.0 for Linux"
    assert len(facts["sha256"]) == 64
    assert str(tmp_path) not in json.dumps(facts)


def test_the_program_is_looked_for_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("named", "variable", "path"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "llama-server").write_text("#!/bin/sh\n")
        (tmp_path / folder / "llama-server").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert locate(None) == tmp_path / "path" / "llama-server"
    monkeypatch.setenv("JOULES_LLAMA_SERVER", str(tmp_path / "variable" / "llama-server"))
    assert locate(None) == tmp_path / "variable" / "llama-server"
    assert locate(str(tmp_path / "named" / "llama-server")) == tmp_path / "named" / "llama-server"
    assert locate("llama-server") == tmp_path / "path" / "llama-server"
    monkeypatch.chdir(tmp_path / "named")
    assert locate("./llama-server") == tmp_path / "named" / "llama-server"
    monkeypatch.setenv("HOME", str(tmp_path / "named"))
    assert locate("~/llama-server") == tmp_path / "named" / "llama-server"


def test_a_program_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "llama-server").write_text("no program: it has no right to run")
    for named in (str(tmp_path / "llama-server"), str(tmp_path / "none"), "no-such-llama-server"):
        with pytest.raises(Unmeasured, match=r"is no program that can be run; give its path with --joules-server"):
            locate(named)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(llama_server.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(Unmeasured, match="llama-server is not on this machine: install it"):
        locate(None)


def test_engines_are_found_by_name(tmp_path: Path) -> None:
    (tmp_path / "llama-server").write_text("#!/bin/sh\n")
    (tmp_path / "llama-server").chmod(0o755)
    assert find("llama-server", str(tmp_path / "llama-server")).name == "llama-server"
    with pytest.raises(UsageError, match=r"there is no engine 'lama-server'; did you mean 'llama-server'\?; known: "):
        find("lama-server")


# The real one


@pytest.fixture
def smollm() -> ModelFile:
    path = models.find("smollm2-135m-instruct", "q4_1", models.folders([], Path("absent")))
    return ModelFile(path=path, size_bytes=path.stat().st_size, sha256="0" * 64)


def test_a_real_server_runs_as_asked(smollm: ModelFile, tmp_path: Path, gone) -> None:
    engine = LlamaServerEngine(locate(None))
    # One thread: several that wait for each other on a busy machine take minutes.
    asked = replace(setting(2, 512), server=Server(parallel=2, context_per_slot=512, threads=1))
    with engine.serve(asked, smollm, None, tmp_path, 120.0, 120.0) as server:
        before = server.counters()
        prompts = server.prompts("Why is the sky blue?", 4)
        assert len({tuple(prompt) for prompt in prompts}) == 4
        assert len({len(prompt) for prompt in prompts}) == 1
        later = server.prompts("Why is the sky blue?", 4, first=4)
        assert not {tuple(prompt) for prompt in prompts} & {tuple(prompt) for prompt in later}
        found = [a for number in (0, 1) for a in server.run_round(prompts[:2], 16, number).answers]
        after = server.counters()
        pids, deviations, facts = server.pids, server.deviations, server.facts
    assert gone(*pids)
    assert deviations == []
    # Whichever way the layers went, this build says so.
    assert facts["offloaded_layers"] == (0 if "remark" in facts else facts["layers"])
    assert (facts["slots"], facts["context_per_slot"]) == (2, 512)
    assert gates.requests_complete(found, 4, 16).outcome == "pass"
    # Both prompts were asked twice: the cache really is off.
    assert gates.prompt_cache(found, wanted=False).outcome == "pass"
    assert all(a.prompt_n == len(prompts[0]) and a.prompt_ms and a.predicted_ms for a in found)
    assert before is not None
    assert after is not None
    steps = after.decode_steps - before.decode_steps
    assert math.isclose((after.busy_slots - before.busy_slots) / steps, 2.0, rel_tol=0.2)


def test_a_real_server_tells_why_it_cannot_load(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(60))
    model = ModelFile(path=broken, size_bytes=64, sha256="0" * 64)
    engine = LlamaServerEngine(locate(None))
    with (
        pytest.raises(EngineError, match=r"ended while loading: exit code 1; its log ends: .*broken\.gguf"),
        engine.serve(setting(), model, None, tmp_path, 60.0, 60.0),
    ):
        pass
