import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_joules import engines, gates, machine
from pytest_joules.engines import ClosedLoop, _in_process_child, _process, in_process
from pytest_joules.engines.in_process import InProcessServer, check_gpu, decode_fault, prompt_counts, translated
from pytest_joules.errors import EngineError, Unmeasured
from pytest_joules.models import ModelFile
from pytest_joules.records import RequestRecord
from pytest_joules.suite import Draft, Request, Server, Setting

CASES = Path(__file__).parents[1] / "cases"
PREFIX_HIT, BUILD = CASES / "P01-llamacpp-python-prefix-hit", CASES / "P02-llamacpp-python-build-and-decode"
PLAYER = Path(__file__).parents[1] / "players" / "fake_llama_cpp.py"
MODEL = ModelFile(path=Path("/weights/example-q4_k_m.gguf"), size_bytes=1, sha256="0" * 64)

Serve = Callable[..., contextlib.AbstractContextManager[InProcessServer]]


def setting(
    parallel: int = 1, draft: str | None = None, request: dict[str, Any] | None = None, **server: Any
) -> Setting:
    keys = {"context_per_slot": 256, "threads": 1, "batch_tokens": 64} | server
    return Setting(
        engine="in-process", model="m", format=None, server=Server(parallel=parallel, **keys), request=Request(**request or {}),
        draft=Draft(draft_model=draft), knobs={},
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_process, "GRACE_S", 0.3)


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """A server whose library is the player; keys that are none of the setting's tell it what to do."""
    shutil.copy(PLAYER, tmp_path / "llama_cpp.py")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    @contextlib.contextmanager
    def build(
        asked: Setting | None = None, ready_s: float = 30.0, answer_s: float = 30.0, **script: Any
    ) -> Iterator[InProcessServer]:
        monkeypatch.setenv("JOULES_FAKE_LLAMA", json.dumps(script))
        with in_process.InProcessEngine().serve(
            asked or setting(), MODEL, None, tmp_path, ready_s, answer_s
        ) as started:
            yield started

    return build


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The player, loaded into this process."""

    def load(**script: Any) -> Any:
        monkeypatch.setenv("JOULES_FAKE_LLAMA", json.dumps(script))
        spec = importlib.util.spec_from_file_location("made_up_llama_cpp", PLAYER)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.llama_log_set(lambda *_: None, None)
        return module

    return load


def model(api: Any, slots: int = 2, batch: int = 64, context: int = 256) -> _in_process_child.Model:
    asked = {"model": "m.gguf", "gpu_layers": 999, "context": context * slots, "slots": slots, "batch": batch, "ubatch": batch,
             "threads": 1, "flash": "auto", "type_k": "f16", "type_v": "bf16"}  # fmt: skip
    return _in_process_child.Model(api, asked)


def answered(
    of: _in_process_child.Model, prompts: list[list[int]], answer_tokens: int = 4, **keys: Any
) -> dict[str, Any]:
    of.take({"prompts": prompts, "answer_tokens": answer_tokens, "exact": True, "texts": True, "keep": False, "temperature": 0,
             "seed": 1} | keys)  # fmt: skip
    return of.told(of.go())


# The engine as it is found


def test_it_is_found_by_its_name_and_names_its_package_when_that_is_missing(monkeypatch) -> None:
    assert engines.engines()["in-process"] is in_process
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unmeasured, match=r"not installed: pip install 'pytest-joules\[embedded\]'"):
        engines.find("in-process", "/usr/bin/llama-server")


def test_the_library_is_not_loaded_into_this_process() -> None:
    code = "import sys; from pytest_joules import engines; engines.find('in-process').facts(); sys.exit('llama_cpp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_facts_tell_version_build_and_digests(serve) -> None:
    engine = in_process.InProcessEngine()
    facts = engine.facts()
    assert facts["name"] == "in-process"
    assert facts["version"] == "0.0.test"
    assert facts["system_info"] == "CPU : MADE_UP = 1 |"
    assert facts["gpu_offload"] is False
    assert "remark" not in facts


def test_digests_are_of_the_library_and_of_those_beside_it_once_each(tmp_path: Path, library) -> None:
    for name in ("libllama.so", "libggml.so", "libggml.so.0"):
        (tmp_path / name).write_text(name[:7])
    (tmp_path / "libggml-cpu.so").write_text("other")
    api = library()
    api.llama_cpp = types.SimpleNamespace(_lib=types.SimpleNamespace(_name=str(tmp_path / "libllama.so")))
    facts = _in_process_child.facts(api)
    assert facts["library"] == "libllama.so"
    assert len(facts["sha256"]) == 64
    assert list(facts["libraries"]) == ["libggml-cpu.so", "libggml.so"]


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("raise OSError('libllama.so: wrong ELF class')", r"cannot be loaded: OSError: libllama.so.*; install it anew"),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGILL)",
            r"died of signal 4 .* another processor; build it here",
        ),
    ],
)
def test_a_library_that_cannot_be_loaded(serve, tmp_path: Path, program: str, words: str) -> None:
    (tmp_path / "llama_cpp.py").write_text(program)
    with pytest.raises(EngineError, match=words):
        in_process.InProcessEngine().facts()
    with pytest.raises(EngineError, match=words), serve():
        pass


# Case P01: a prompt that was there from the call before


def case_llama(mode: str = "prefix") -> Any:
    module = types.ModuleType("case_llama_cpp")
    exec((PREFIX_HIT / "fake_llama_cpp" / "llama_cpp.txt").read_text(), module.__dict__)
    module.MODE = mode
    return module


@pytest.mark.parametrize("reset", [True, False])
def test_usage_is_no_count_of_what_was_computed(reset: bool) -> None:
    calls = json.loads((PREFIX_HIT / "calls.json").read_text())
    llama = case_llama().Llama(n_ctx=calls["n_ctx"], verbose=False)
    prompt = " ".join(["word"] * calls["prompt_words"])
    counts, outcomes = [], []
    for number in range(calls["repeats"]):
        if reset:
            llama.reset()
        usage = llama.create_completion(prompt, max_tokens=calls["max_tokens"])["usage"]
        assert usage["prompt_tokens"] == 812
        prompt_n, cache_n = prompt_counts(usage["prompt_tokens"], llama.evaluated[-1])
        counts.append(prompt_n)
        answer = RequestRecord(
            slot=0, round=number, sent_s=0.0, received_s=1.0, prompt_n=prompt_n, cache_n=cache_n,
            predicted_n=usage["completion_tokens"], prompt_ms=None, predicted_ms=None, stop_type="limit",
        )  # fmt: skip
        outcomes.append(gates.prompt_cache([answer], wanted=False).outcome)
    assert counts == calls[f"evaluated_{'with' if reset else 'without'}_reset"]
    # More than a flag: prompts from a cache that nobody asked for are no measurement.
    assert outcomes == (["pass"] * 3 if reset else ["pass", "void", "void"])


def test_every_repeat_is_computed_in_full_here(serve) -> None:
    with serve(setting(2)) as server:
        for number in range(3):
            found = server.run_round([[5, 6, 7, 8]] * 2, 4, number).answers
            assert [(a.prompt_n, a.cache_n, a.predicted_n, a.round) for a in found] == [(4, 0, 4, number)] * 2
            assert gates.prompt_cache(found, wanted=False).outcome == "pass"


# Case P02: decode errors, and builds for another machine


@pytest.mark.parametrize(
    ("mode", "words"),
    [("decode1", "raise context_per_slot, or lower parallel"), ("decode_neg", "the computation failed")],
)
def test_a_decode_error_is_told_with_its_cause(mode: str, words: str) -> None:
    with pytest.raises(RuntimeError) as refused:
        case_llama(mode).Llama(n_ctx=2048).create_completion("word " * 8)
    fault = decode_fault(str(refused.value))
    assert fault is not None
    assert words in "; ".join(fault)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (1, r"llama_decode returned 1: no room in the KV cache for the slots' tokens; raise context_per_slot, or lower parallel"),
        (2, r"llama_decode returned 2: it was aborted; run again"),
        (-1, r"llama_decode returned -1: the batch was not valid; raise batch_tokens"),
        (-3, r"llama_decode returned -3: the computation failed; see the log above; lower parallel"),
    ],
)  # fmt: skip
def test_a_decode_error_ends_the_round_and_nothing_else(serve, gone, code: int, words: str) -> None:
    with serve(setting(2), codes={"5": code}) as server:
        with pytest.raises(EngineError, match=rf"^in-process engine: {words}"):
            server.run_round([[5, 6], [7, 8]], 8)
        # What the failed round left behind is not in the way of the next.
        assert [a.predicted_n for a in server.run_round([[5, 6], [7, 8]], 8).answers] == [8, 8]
    assert gone(*server.pids)


def test_a_gpu_cannot_be_asked_of_a_build_without_one(serve) -> None:
    facts = _in_process_child.facts(case_llama("no_gpu"))
    assert facts["gpu_offload"] is False
    with pytest.raises(EngineError, match=r"30 layers .* built without GPU support \(NEON = 0 .*set gpu_layers: 0"):
        check_gpu(30, facts)
    check_gpu(0, facts)
    check_gpu("all", facts)
    check_gpu(30, _in_process_child.facts(case_llama()))
    with pytest.raises(EngineError, match="built without GPU support"), serve(setting(gpu_layers=30)):
        pass


def test_without_a_gpu_all_layers_are_on_the_cpu_and_that_is_said(serve, monkeypatch) -> None:
    with serve() as server:
        assert server.facts["offloaded_layers"] == 0
        assert server.facts["remark"] == "no GPU: all layers ran on the CPU"
        assert server.deviations == []
    known = machine.describe()
    monkeypatch.setattr(machine, "describe", lambda: types.SimpleNamespace(threads=known.threads, gpus=("Card 9000",)))
    with serve() as server:
        assert server.deviations == ["in-process engine cannot use a GPU as it was built: Card 9000 was not used"]


def test_a_translated_python_is_flagged(serve, monkeypatch) -> None:
    about = json.loads((BUILD / "platform.json").read_text())
    assert "Rosetta translates on Apple silicon" in translated(about)
    assert translated({"platform.machine()": "x86_64", "sysctl.proc_translated": None, "hw.optional.arm64": None}) == ""
    assert translated({"platform.machine()": "arm64", "sysctl.proc_translated": "0", "hw.optional.arm64": "1"}) == ""
    engine = in_process.InProcessEngine()
    engine._facts = {**engine._facts, "platform": about}
    assert "install a Python for arm64" in engine.facts()["remark"]
    with engine.serve(setting(), MODEL, None, Path(os.environ["PYTHONPATH"]), 30.0, 30.0) as server:
        assert any("Rosetta" in one for one in server.deviations)


# What is asked for is in force


def test_what_is_asked_for_is_handed_over_and_kept(serve) -> None:
    with serve(setting(3, context_per_slot=300, flash_attention="on", cache_type_k="q8_0")) as server:
        asked = server.facts["parameters"]
        assert asked["context"] == 512 * 3
        assert (asked["slots"], asked["threads"], asked["flash"], asked["type_k"], asked["gpu_layers"]) == (
            3, 1, "on", "q8_0", 999,
        )  # fmt: skip
        assert (server.facts["slots"], server.facts["context_per_slot"]) == (3, 512)
        assert server.facts["model"] == MODEL.path.name
        assert server.deviations == ["context_per_slot 300 is padded to 512 by llama.cpp"]
        assert not any(str(MODEL.path.parent) in str(value) for value in server.facts.values())


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ({"slots": 1}, r"runs 1 sequences, 2 were asked for"),
        ({"trained": 128}, r"128 tokens of context per slot, 256 were asked for; ask for what the model was made for"),
        ({"refuses": "model", "log": ["llama_model_load: error loading model: invalid magic"]},
         r"cannot load the model; check the model file.*; its log ends: .*invalid magic"),
        ({"refuses": "context"}, r"cannot make a context of this size; lower parallel or context_per_slot"),
        ({"refuses": "model", "log": ["ggml: failed to allocate 9 GiB"]}, r"cannot load the model; lower parallel"),
        ({"gpu": True, "log": ["load_tensors: offloaded 7/31 layers to GPU"]}, r"put 7 of 31 layers on the GPU, all were asked"),
        ({"log": ["llama_context: flash_attn            = enabled"], "flash_attention": "off"}, r"runs with flash attention enabled, off was"),
        ({"signal": [1, 4]}, r"died while loading the model: signal 4 \(SIGILL\).*built for another processor"),
        ({"signal": [1, 9]}, r"died while loading the model: signal 9 \(SIGKILL\).*likely killed because memory ran out"),
    ],
)  # fmt: skip
def test_what_is_not_in_force_is_an_error(serve, script: dict[str, Any], words: str) -> None:
    flash = script.pop("flash_attention", "auto")
    asked = setting(2, flash_attention=flash)
    with pytest.raises(EngineError, match=rf"^in-process engine:?(?: llama.cpp)? {words}"), serve(asked, **script):
        pass


def test_layers_on_the_gpu_and_flash_attention_are_read_from_the_log(serve) -> None:
    log = ["load_tensors: offloaded 31/31 layers to GPU", "resolve: Flash Attention was auto, set to disabled"]
    with serve(gpu=True, log=log, lacks=True) as server:
        assert (server.facts["offloaded_layers"], server.facts["layers"]) == (31, 31)
        assert server.facts["flash_attention"] == "disabled"
        assert server.deviations == ["this llama-cpp-python has no kv_unified, which could not be pinned"]
        assert "of no interest" not in server._child.process.log_text()
    with serve(setting(gpu_layers=7), gpu=True, log=["load_tensors: offloaded 7/31 layers to GPU"]):
        pass
    with serve(
        gpu=True, log=["ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected"]
    ) as server:
        assert "offloaded_layers" not in server.facts
        assert server.deviations == [
            "in-process engine does not say how many layers are on the GPU, which could not be checked"
        ]


def test_drafting_is_refused(tmp_path: Path) -> None:
    engine = in_process.InProcessEngine()
    assert engine.cannot(setting()) == ""
    for draft in (None, MODEL):
        with (
            pytest.raises(EngineError, match="no draft models; leave out draft, or take engine: llama-server"),
            engine.serve(setting(draft="small"), MODEL, draft, tmp_path, 9.0, 9.0),
        ):
            pass


# Rounds and closed loops


def test_a_round_is_one_step_for_all_sequences(serve) -> None:
    with serve(setting(4)) as server:
        before = server.counters()
        started = time.monotonic()
        found = server.run_round([[10 * n, 10 * n + 1] for n in range(1, 5)], 6, 3)
        after = server.counters()
        assert before is not None
        assert after is not None
        # The prompts in one step of their own, the first token being chosen there, then one for each further token.
        assert after.decode_steps - before.decode_steps == 6
        assert after.busy_slots - before.busy_slots == 24
        assert started <= found.start_mono < found.end_mono <= time.monotonic()
        assert found.release_spread_s == 0.0
        assert gates.requests_complete(found.answers, 4, 6).outcome == "pass"
        for number, a in enumerate(found.answers):
            assert (a.slot, a.round, a.prompt_n, a.cache_n, a.predicted_n) == (number, 3, 2, 0, 6)
            assert (a.stop_type, a.truncated, a.counted_from) == ("limit", False, "engine")
            assert a.prompt_ms is not None
            assert a.predicted_ms is not None
            assert a.first_token_s is not None
            assert a.inter_token_median_s is not None
            assert a.inter_token_p99_s is not None
            assert 0 <= a.sent_s < a.first_token_s < a.received_s <= found.end_mono - found.start_mono
            assert a.inter_token_median_s <= a.inter_token_p99_s
            assert a.sent_s * 1000 + a.prompt_ms + a.predicted_ms == pytest.approx(a.received_s * 1000, abs=0.1)
        assert server.generate([[10, 11]], 3) == [[12, 13, 14]]


def test_one_token_has_none_after_it(serve) -> None:
    with serve() as server:
        [found] = server.run_round([[5]], 1).answers
        assert (found.prompt_n, found.predicted_n, found.predicted_ms) == (1, 1, 0.0)
        assert found.inter_token_median_s is None


def test_a_closed_loop_puts_the_next_prompt_where_one_has_ended(serve) -> None:
    with serve(setting(2)) as server:
        # The token after 98 ends an answer.
        prompts = [[96], [50], [97], [60], [98]]
        done = server.run_closed_loop(prompts, 6, exact=False)
        assert isinstance(done, ClosedLoop)
        assert [a.predicted_n for a in done.answers] == [3, 6, 2, 6, 1]
        assert [a.stop_type for a in done.answers] == ["eos", "limit", "eos", "limit", "eos"]
        assert [(a.slot, a.round) for a in done.answers] == [(0, 0), (1, 0), (0, 1), (0, 2), (1, 1)]
        assert done.texts == (" 97 98", " 51 52 53 54 55 56", " 98", " 61 62 63 64 65 66", "")
        assert 0 < done.drain_s < done.end_mono - done.start_mono
        assert all(a.sent_s < a.received_s for a in done.answers)
        exact = server.run_closed_loop(prompts, 6)
        assert [a.predicted_n for a in exact.answers] == [6] * 5
        assert exact.texts[-1] == " 0 1 2 3 4 5"
        alone = server.run_closed_loop(prompts[:1], 6)
        assert alone.drain_s == alone.end_mono - alone.start_mono


def test_prompts_longer_than_a_batch_are_computed_in_parts(serve) -> None:
    with serve(setting(2, batch_tokens=8)) as server:
        found = server.run_round([[1] * 21, [2] * 21], 3).answers
        assert [(a.prompt_n, a.predicted_n) for a in found] == [(21, 3)] * 2


def test_a_prompt_longer_than_a_pipe_holds_gets_through(serve) -> None:
    with serve(setting(1, context_per_slot=60_000, batch_tokens=2048)) as server:
        assert server.run_round([[1] * 50_000], 2).answers[0].prompt_n == 50_000


def test_a_batch_smaller_than_the_slots_is_several_calls(library) -> None:
    small = model(library(), slots=3, batch=2)
    found = answered(small, [[10], [20], [30]])
    assert [a["tokens"] for a in found["answers"]] == [[n, n + 1, n + 2, n + 3] for n in (11, 21, 31)]
    assert found["fed"] == found["computed"] == 12


@pytest.mark.parametrize("whole", [False, True])
def test_a_cache_that_is_asked_for_is_used_and_told(serve, whole: bool) -> None:
    with serve(setting(2, request={"cache_prompt": True}), whole=whole) as server:
        prompts = [[10, 11, 12, 13], [20, 21, 22, 23]]
        assert [a.cache_n for a in server.run_round(prompts, 4).answers] == [0, 0]
        again = server.run_round([prompts[0], [20, 21, 5, 6]], 4).answers
        assert [(a.prompt_n, a.cache_n) for a in again] == ([(4, 0), (4, 0)] if whole else [(1, 3), (2, 2)])
        assert gates.prompt_cache(again, wanted=True).outcome == ("void" if whole else "pass")


def test_above_temperature_0_each_slot_has_a_sampler_of_its_own(library) -> None:
    api = library()
    warm = model(api)
    found = answered(warm, [[10], [20]], temperature=0.7, seed=5)
    assert [a["tokens"] for a in found["answers"]] == [[12, 14, 16, 18], [22, 24, 26, 28]]
    assert api.state.chains == [[("top_k", 40), ("top_p", 0.95), ("min_p", 0.05), ("temp", 0.7), ("dist", 5)]] * 2
    answered(warm, [[10]])
    assert api.state.chains == []


def test_prompts_are_made_with_the_model_s_own_tokenizer(serve) -> None:
    with serve() as server:
        assert len({tuple(p) for p in server.prompts("two words", 5)}) == 5
        assert {len(p) for p in server.prompts("two words", 5, 5)} == {4}
        first, second = server.prompts("two words", 2, identical=True)
        assert first == second
        with pytest.raises(EngineError, match=r"llama_tokenize returned -1"):
            server.prompts("untellable", 1, identical=True)
        with pytest.raises(EngineError, match=r"gave no tokens"):
            server.prompts("", 1, identical=True)


# What goes wrong


def test_what_does_not_fit_is_refused_before_it_is_run(serve) -> None:
    with serve() as server:
        with pytest.raises(
            EngineError, match=r"prompt of 200 tokens and 57 .* 256 tokens .*raise context_per_slot to 512"
        ):
            server.run_round([[1] * 200], 57)
        with pytest.raises(EngineError, match=r"2 requests at once, and 1 slots; raise parallel"):
            server.run_round([[1], [2]], 4)
        for prompts in ([], [[]]):
            with pytest.raises(EngineError, match="a prompt has no tokens"):
                server.run_round(prompts, 4)
        assert server.run_round([[1] * 200], 56).answers[0].predicted_n == 56


def test_counts_that_the_library_does_not_confirm_are_no_counts(serve) -> None:
    words = r"5 tokens were handed over, and llama.cpp's counters \(llama_perf_context\) say 3 were computed"
    with serve(lost=2) as server, pytest.raises(EngineError, match=words):
        server.run_round([[1, 2]], 4)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_a_crash_is_told_and_nothing_else_is_lost(serve, gone, number: signal.Signals) -> None:
    words = rf"^in-process engine died in mid-work: signal {number.value} \({number.name}\); its log ends: .*last words"
    with serve(signal=[6, number.value], log=["last words"]) as server:
        assert server.run_round([[1]], 3).answers[0].predicted_n == 3
        with pytest.raises(EngineError, match=words):
            server.run_round([[1]], 3)
        with pytest.raises(EngineError, match=r"cannot go on: it died before"):
            server.counters()
    assert gone(*server.pids)


def test_an_answer_that_does_not_come_is_not_waited_for(serve, gone) -> None:
    with serve(setting(2), answer_s=0.3, hang=4) as server:
        with pytest.raises(EngineError, match=r"gave no answer within 0.3 s; .*raise request_timeout_s; its log ends:"):
            server.run_round([[1], [2]], 9)
        with pytest.raises(EngineError, match=r"cannot go on: it gave no answer"):
            server.run_round([[1]], 1)
    assert gone(*server.pids)


def test_a_model_that_is_not_loaded_in_time_is_not_waited_for(serve, tmp_path: Path) -> None:
    with (
        pytest.raises(EngineError, match=r"was not ready within 1.5 s; raise ready_timeout_s"),
        serve(ready_s=1.5, hang=1),
    ):
        pass
    (tmp_path / "llama_cpp.py").unlink()
    (tmp_path / "numpy.py").write_text("import time; time.sleep(60)")
    with pytest.raises(EngineError, match=r"did not start in time; raise ready_timeout_s"):
        in_process._Child(tmp_path, 0.5)
    (tmp_path / "numpy.py").write_text("raise SystemExit(3)")
    with pytest.raises(EngineError, match=r"ended while loading: exit code 3"):
        in_process._Child(tmp_path, 30.0)


def test_a_child_that_closes_its_pipes_and_stays(serve, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(in_process, "_DYING_S", 0.2)
    player = (tmp_path / "llama_cpp.py").read_text()
    (tmp_path / "llama_cpp.py").write_text(f"{player}\ndef llama_tokenize(*_): os.closerange(3, 99); time.sleep(60)\n")
    with serve() as server:
        with pytest.raises(EngineError, match=r"closed its pipes in mid-work"):
            server.prompts("a", 1)
        assert all(psutil.pid_exists(pid) for pid in server.pids)


def test_messages_that_cannot_be_answered_are_told(serve) -> None:
    with serve() as server:
        with pytest.raises(EngineError, match=r"there is no 'nonsense'"):
            server._child.ask({"op": "nonsense"}, 9.0)
        with pytest.raises(EngineError, match=r"KeyError"):
            server._child.ask({"op": "take"}, 9.0)
    with pytest.raises(_in_process_child.Fault, match="no model is open"):
        _in_process_child.Server(lambda: None)._opened()


def test_no_pipe_is_left_on_the_disk_and_no_file_open(serve, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = psutil.Process().num_fds()
    with serve() as server:
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith("joules-")] == []
        server.run_round([[1]], 2)
    assert psutil.Process().num_fds() == before


def test_a_message_may_come_in_pieces_and_with_the_next() -> None:
    packed = _in_process_child.packed({"a": 1})
    assert _in_process_child.unpacked(packed[:3]) == (None, packed[:3])
    assert _in_process_child.unpacked(packed[:-1]) == (None, packed[:-1])
    assert _in_process_child.unpacked(packed + packed[:5]) == ({"a": 1}, packed[:5])
