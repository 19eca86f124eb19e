"""The benchmarks as engines: what they are not made for, and every way in which such a program can fail."""

import contextlib
import json
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_joules import gates
from pytest_joules.engines import Prepared, _bench_tool, _process, cannot, engines
from pytest_joules.engines._bench_tool import BenchTool, ToolServer, program, takes
from pytest_joules.engines.llama_batched_bench import BatchedBench
from pytest_joules.engines.llama_bench import LlamaBench
from pytest_joules.errors import EngineError, Unmeasured
from pytest_joules.models import ModelFile
from pytest_joules.suite import Draft, Protocol, Request, Server, Setting

PROGRAM = Path(__file__).parents[1] / "players" / "scripted_bench.py"
MODEL = ModelFile(path=Path("/weights/example-q4_k_m.gguf"), size_bytes=1, sha256="0" * 64)
PROMPT, ANSWER = 5, 8
"""Tokens that `_guess` makes of the prompt, and tokens asked."""

BATCHED_FLAGS = (
    "--model", "-npp", "-ntg", "-npl", "--output-format", "--ctx-size", "--no-kv-unified", "--threads", "--threads-batch", "--gpu-layers",
    "--flash-attn", "--cache-type-k", "--cache-type-v", "--batch-size", "--ubatch-size", "--offline",
)  # fmt: skip
BENCH_FLAGS = (
    "-m", "-p", "-n", "-d", "-r", "-o", "-t", "-ngl", "-ctk", "-ctv", "-b", "-ub", "--offline", "--progress", "--no-warmup", "-v",
)  # fmt: skip
BENCH_ROW = {
    "build_commit": "0c1e570", "backends": "CPU", "n_threads": 1, "n_batch": 2048, "n_ubatch": 512, "type_k": "f16", "type_v": "f16",
    "n_prompt": 0, "n_gen": 1,
}  # fmt: skip


def help_of(flags: Sequence[str]) -> str:
    return "usage:\n" + "".join(f"  {flag} VALUE   as scripted\n" for flag in flags)


def setting(parallel: int = 2, context: int = 256, **keys: Any) -> Setting:
    usual: dict[str, Any] = {
        "server": Server(parallel=parallel, context_per_slot=context, threads=1),
        "request": Request(prompt_text="Name three rivers.", answer_tokens=ANSWER, identical=True),
        "draft": Draft(),
    }
    return Setting(engine="x", model="m", format=None, knobs={}, **(usual | keys))


def row(parallel: int = 2, **changed: Any) -> str:
    said = {"pp": PROMPT, "tg": ANSWER, "pl": parallel, "is_pp_shared": 0, "n_batch": 2048, "n_ubatch": 512, "n_threads": 1,
            "n_threads_batch": 1, "t_pp": 0.01, "t_tg": 0.04}  # fmt: skip
    return json.dumps({key: value for key, value in (said | changed).items() if value is not None}) + "\n"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_process, "GRACE_S", 0.3)


class Scripted:
    """A scripted benchmark."""

    def __init__(self, tool: type[BenchTool], folder: Path, scenario: Mapping[str, Any]) -> None:
        script = folder / "scenario.json"
        script.write_text(json.dumps(scenario))
        found = folder / tool.name
        found.write_text(
            f'#!/bin/sh\nexec {shlex.join([sys.executable, "-I", "-S", str(PROGRAM), str(script)])} "$@"\n'
        )
        found.chmod(0o755)
        self.engine, self._folder = tool(found), folder  # type: ignore[call-arg]
        self.engine.help = scenario["help"]

    @contextlib.contextmanager
    def serve(
        self, asked: Setting | None = None, ready_s: float = 20.0, answer_s: float = 20.0
    ) -> Iterator[ToolServer]:
        with self.engine.serve(asked or setting(), MODEL, None, self._folder, ready_s, answer_s) as server:
            yield server


Build = Callable[..., Scripted]


@pytest.fixture
def batched(tmp_path: Path) -> Build:
    def build(*steps: Mapping[str, Any], flags: Sequence[str] = BATCHED_FLAGS) -> Scripted:
        return Scripted(BatchedBench, tmp_path, {"help": help_of(flags), "steps": steps})

    return build


@pytest.fixture
def bench(tmp_path: Path) -> Build:
    def build(*steps: Mapping[str, Any], row: str = json.dumps(BENCH_ROW), help: str = "", **keys: Any) -> Scripted:  # noqa: A002
        text = help or help_of(BENCH_FLAGS) + "  -fa, --flash-attn <on|off|auto>   as scripted\n"
        return Scripted(
            LlamaBench, tmp_path, {"help": text, "once": "-v", "steps": [{"out": f"{row}\n"} | keys], "then": steps}
        )

    return build


def prompts(server: ToolServer) -> list[list[int]]:
    return server.prompts("Name three rivers.", server.slots, identical=True)


def ask(server: ToolServer, tokens: int = ANSWER) -> Any:
    return server.run_round(prompts(server), tokens)


def stands_still(process: psutil.Process) -> bool:
    """Whether it is held; a program that waits for a CPU takes notice when it gets one."""
    deadline = time.monotonic() + 10
    while process.status() != psutil.STATUS_STOPPED and time.monotonic() < deadline:
        time.sleep(0.01)
    return process.status() == psutil.STATUS_STOPPED


ROUND = {"work_s": 0.05}


# Rounds


def test_a_program_that_works_by_itself_stands_still_between_the_rounds_that_are_asked_for(batched) -> None:
    with batched(*[ROUND, {"out": row()}] * 6, {"sleep_s": 60}).serve() as server:
        worker = next(
            p for pid in server.pids if "scripted_bench" in " ".join((p := psutil.Process(pid)).cmdline()[:4])
        )
        assert stands_still(worker)
        first = ask(server)
        assert stands_still(worker)
        time.sleep(0.2)
        second = ask(server)
        assert isinstance(server, Prepared)
        for done in (first, second):
            assert [(a.slot, a.prompt_n, a.cache_n, a.predicted_n) for a in done.answers] == [
                (0, 5, 0, 8),
                (1, 5, 0, 8),
            ]
            # No row was taken that had come while nobody asked.
            assert done.end_mono - done.start_mono > 0.03
            assert gates.requests_complete(done.answers, 2, ANSWER).outcome == "pass"
            assert gates.prompt_cache(done.answers, wanted=False).outcome == "pass"
            assert done.answers[0].predicted_ms == 40
        assert second.start_mono - first.end_mono > 0.15
        counters = server.counters()
        assert counters.busy_slots / counters.decode_steps == 2
    assert not worker.is_running()


def test_a_round_that_was_over_before_the_hold_took_effect_is_not_taken_for_the_next(batched) -> None:
    with batched({"out": row() + row() + row()}, ROUND, {"out": row()}, {"sleep_s": 60}).serve() as server:
        done = ask(server)
        assert done.end_mono - done.start_mono > 0.03


def test_rounds_of_another_length_are_another_program(batched) -> None:
    rows = row(tg=ANSWER) + row(tg=ANSWER)
    played = batched({"out": rows}, {"sleep_s": 60})
    with played.serve() as server:
        before = server.pids
        server.prepare(prompts(server), ANSWER)
        assert server.pids == before
        with pytest.raises(EngineError, match="gave it does not run as asked: tg is 8 instead of 9"):
            server.prepare(prompts(server), ANSWER + 1)
        assert server.pids.isdisjoint(before)


def test_what_the_program_says_of_itself_is_kept_and_its_path_is_not(batched) -> None:
    with batched(
        {"out": "llama_load: offloaded 25/25 layers to GPU\n" + row(n_kv_max=512)}, {"sleep_s": 60}
    ).serve() as server:
        assert server.facts["offloaded_layers"] == 25
        assert server.facts["n_kv_max"] == 512
        assert server.facts["arguments"][:6] == ["--model", "example-q4_k_m.gguf", "-npp", "5", "-ntg", "8 (100 times)"]
        assert "random tokens" in server.facts["remark"]
        assert any("prompt_text has no effect but by its length" in d for d in server.deviations)
        assert any("a guess" in d for d in server.deviations)


# Failures


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        pytest.param([{"out": row()}, {"sleep_s": 0.1, "exit": 3}], r"ended in mid-round: exit code 3", id="crash in mid-row"),
        pytest.param([{"out": row()}, {"sleep_s": 0.1, "signal": signal.SIGKILL}], r"signal 9 \(SIGKILL\).*memory ran out", id="killed"),
        pytest.param([{"out": row()}, {"sleep_s": 0.1, "out": ""}, {"out": row()[:60]}], r'ended in mid-round: exit code 0; its log ends: \{"pp": 5', id="cut row"),
        pytest.param([{"out": row() + row()[:60] + "\n"}, {"sleep_s": 60}], "gave a row that is no JSON", id="half a row"),
        pytest.param([{"out": row() + row(t_tg=None)}, {"sleep_s": 60}], "gave a row without its times", id="no times"),
        pytest.param([{"out": row() + row(t_pp=float("nan"))}, {"sleep_s": 60}], "gave a row without its times", id="no number"),
        pytest.param([{"out": row() + row(pl=1)}, {"sleep_s": 60}], "does not run as asked: pl is 1 instead of 2", id="other batch"),
        pytest.param([{"out": row() + row(pl=None)}, {"sleep_s": 60}], r"gave a row without pl: \{", id="nothing of the batch"),
        pytest.param([{"out": row() + row(n_gpu_layers=0)}, {"sleep_s": 60}], "n_gpu_layers is 0 instead of 999", id="other layers"),
        pytest.param([{"out": row()}, *[{"work_s": 0.1}, {"out": row(t_tg=40.0)}] * 9, {"sleep_s": 60}], r"says that its round took 40\.\d\d s, and it took 0\.\d\d s", id="times of another"),
        pytest.param([{"out": row()}, {"sleep_s": 60}], r"said nothing within 0\.3 s in mid-round.*request_timeout_s", id="hang"),
        pytest.param([{"err": "noise\n", "out": "more\n"}, {"exit": 0}], "ended while loading: exit code 0; its log ends: ", id="no row at all"),
        pytest.param([{"err": "error: unable to load model\n", "exit": 1}], r"ended while loading: exit code 1; its log ends: error: unable", id="no model"),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_told_with_its_cause_and_leaves_nothing(batched, steps, words, gone) -> None:
    pids: set[int] = set()

    def three_rounds() -> None:
        # Long enough for a busy machine, where nothing is to hang.
        with batched(*steps).serve(answer_s=0.3 if "said nothing" in words else 10) as server:
            pids.update(server.pids)
            for _ in range(3):
                ask(server)

    with pytest.raises(EngineError, match=f"^llama-batched-bench .*{words}"):
        three_rounds()
    assert gone(*pids)


def test_a_prompt_that_was_begun_after_the_hold_is_as_long_as_the_row_says(batched) -> None:
    rounds = [{"work_s": 0.1}, {"out": row(t_pp=0.06)}] * 3
    with batched(*rounds, {"sleep_s": 60}).serve() as server:
        time.sleep(0.3)
        done = ask(server)
        assert done.answers[0].prompt_ms == 60
        assert server.facts["apart_ms"] < 300


@pytest.mark.parametrize(
    ("said", "words"),
    [(1, ""), (True, ""), (None, ""), (0, "flash_attn is 0 instead of 1"), (False, "is False instead of 1")],
)
def test_flash_attention_is_what_was_asked_in_numbers_or_in_words(batched, said: Any, words: str) -> None:
    asked = setting(server=Server(parallel=2, context_per_slot=256, threads=1, flash_attention="on"))
    expected = pytest.raises(EngineError, match=words) if words else contextlib.nullcontext()
    with expected, batched({"out": row(flash_attn=said)}, {"sleep_s": 60}).serve(asked):
        pass


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 5", r"\(exit code 0\): 5; use another build"),
        ("echo '{\"a\": 1}'", r'\(exit code 0\): \{"a": 1\}'),
        ("echo '[1, true]'", r"\[1, true\]"),
        ("echo '[1, 2]'; exit 3", r"\(exit code 3\): \[1, 2\]"),
        ("echo 'no vocabulary' >&2; exit 1", r"\(exit code 1\): no vocabulary"),
        ("", "it said nothing"),
    ],
)
def test_tokens_that_cannot_be_counted_are_told(batched, tmp_path: Path, script: str, words: str) -> None:
    played = batched()
    executable(tmp_path / "llama-tokenize").write_text(f"#!/bin/sh\n{script}\n")
    with (
        pytest.raises(EngineError, match=f"^llama-tokenize cannot count the prompt's tokens .*{words}"),
        played.serve(),
    ):
        pass


def test_lines_that_mean_nothing_are_its_log(batched) -> None:
    noise = {"err": "warning: something\n", "out": "|  PP |  TG |\n", "sleep_s": 0.02}
    with batched({"out": row()}, noise, {"out": row()}, noise, {"exit": 4}).serve() as server:
        assert len(ask(server).answers) == 2
        with pytest.raises(EngineError, match=r"ended in mid-round: exit code 4; its log ends: .*PP"):
            ask(server)
        with pytest.raises(EngineError):
            ask(server)


def test_a_build_that_lacks_what_it_takes_is_refused_and_one_that_lacks_less_is_told_of(batched) -> None:
    older = [flag for flag in BATCHED_FLAGS if flag != "--output-format"]
    with (
        pytest.raises(EngineError, match="this build has no --output-format; use a newer"),
        batched(flags=older).serve(),
    ):
        pass
    older = [flag for flag in BATCHED_FLAGS if flag != "--no-kv-unified"]
    with batched({"out": row()}, {"sleep_s": 60}, flags=older).serve() as server:
        assert "this llama-batched-bench has no --no-kv-unified, which could not be pinned" in server.deviations


def test_a_context_in_which_a_row_has_no_room_would_be_passed_over_in_silence(batched) -> None:
    long = setting(request=Request(answer_tokens=252, prompt_text="Name three rivers.", identical=True))
    with pytest.raises(EngineError, match="do not fit context_per_slot 256; raise it to 512"), batched().serve(long):
        pass


def test_rounds_of_fewer_prompts_cannot_be_had(batched) -> None:
    with (
        batched({"out": row()}, {"sleep_s": 60}).serve() as server,
        pytest.raises(EngineError, match="1 prompts; its rounds are of 2"),
    ):
        server.run_round(prompts(server)[:1], ANSWER)


# llama-bench


def progress(number: int, what: str = "generation") -> str:
    return f"llama-bench: benchmark 1/1: {what} run {number}/100000{' (cached)' if what == 'depth' and number > 1 else ''}\n"


def rounds(count: int) -> list[dict[str, Any]]:
    return [{"err": progress(number, "depth") + progress(number), "work_s": 0.05} for number in range(1, count + 1)]


def test_a_repetition_runs_from_its_line_to_the_next(bench) -> None:
    with bench(*rounds(6), {"sleep_s": 60}).serve(setting(1)) as server:
        first, second = ask(server), ask(server)
        for done in (first, second):
            [answer] = done.answers
            assert (answer.prompt_n, answer.predicted_n, answer.prompt_ms) == (0, ANSWER, None)
            assert done.end_mono - done.start_mono > 0.03
        # Nothing but a token of one sequence in each step.
        counters = server.counters()
        assert (counters.decode_steps, counters.busy_slots) == (2 * ANSWER, 2 * ANSWER)
        assert server.facts["build_commit"] == "0c1e570"
        assert "no GPU" in server.facts["remark"]
        assert server.facts["arguments"][-8:] == ["-n", "8", "-d", "5", "-r", "100000", "--progress", "--no-warmup"]


def test_without_a_prompt_before_it_one_repetition_follows_the_other(bench) -> None:
    flags = [flag for flag in BENCH_FLAGS if flag != "-d"]
    steps = [{"err": progress(number), "work_s": 0.05} for number in range(1, 6)]
    with bench(*steps, {"sleep_s": 60}, help=help_of(flags)).serve(setting(1)) as server:
        assert ask(server).answers[0].received_s > 0.03
        assert "this llama-bench has no -d 5, which could not be pinned" in server.deviations


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            {"row": "", "err": "error: failed to load model 'x'\n", "exit": 1},
            r"gave no row \(exit code 1\): error: failed to load model",
        ),
        ({"row": "{"}, "gave a row that is no JSON"),
        ({"row": json.dumps(BENCH_ROW | {"n_threads": 8})}, "does not run as asked: n_threads is 8 instead of 1"),
        (
            {"err": "offloaded 3/25 layers to GPU\n", "row": json.dumps(BENCH_ROW | {"backends": "CUDA"})},
            r"llama-bench put 3 of 25 layers",
        ),
        ({"row": "{}"}, r"gave a row without n_gen: \{\}"),
        ({"row": json.dumps(BENCH_ROW | {"n_gpu_layers": 0})}, "n_gpu_layers is 0 instead of 999"),
        ({"sleep_s": 60}, r"said nothing within 0\.5 s while loading"),
    ],
)
def test_a_row_that_says_something_else_is_no_start(bench, keys, words) -> None:
    with pytest.raises(EngineError, match=words), bench(**keys).serve(setting(1), ready_s=0.5):
        pass


@pytest.mark.parametrize("backends", ["CPU", "BLAS"])
def test_without_a_gpu_a_number_of_layers_is_refused_and_all_are_a_remark(bench, backends: str) -> None:
    said = json.dumps(BENCH_ROW | {"backends": backends})
    some = setting(1, server=Server(context_per_slot=256, threads=1, gpu_layers=20))
    with (
        pytest.raises(EngineError, match=r"llama-bench put 0 of \? layers on the GPU, 20 were asked"),
        bench(row=said).serve(some),
    ):
        pass
    with bench(*rounds(3), {"sleep_s": 60}, row=said).serve(setting(1)) as server:
        assert server.facts["remark"].endswith("no GPU: all layers ran on the CPU")
        assert not any("GPU" in deviation for deviation in server.deviations)


def test_an_older_build_may_say_nothing_of_layers_and_have_no_auto(bench) -> None:
    said = json.dumps(BENCH_ROW | {"backends": "CUDA", "flash_attn": False})
    text = help_of(BENCH_FLAGS) + "  -fa, --flash-attn <0|1>   as scripted\n"
    with bench(*rounds(3), {"sleep_s": 60}, row=said, help=text).serve(setting(1)) as server:
        assert server.deviations[-2:] == [
            "llama-bench does not say how many layers are on the GPU, which could not be checked",
            "this llama-bench has no auto for flash attention, which is off",
        ]
    flashing = json.dumps(BENCH_ROW | {"flash_attn": True})
    with (
        pytest.raises(EngineError, match="flash_attn is True instead of 0"),
        bench(row=flashing, help=text).serve(setting(1)),
    ):
        pass


def test_older_builds_are_told_of_flash_attention_in_their_own_words() -> None:
    newer, older = "-fa, --flash-attn <on|off|auto>  (default: auto)", "  -fa, --flash-attn <0|1>   (default: 0)"
    assert takes(newer, "-fa") == {"on", "off", "auto"}
    tool = LlamaBench(Path("/bin/llama-bench"))
    for text, told in ((newer, {"on": "on", "auto": "auto"}), (older, {"on": "1", "off": "0", "auto": "0"})):
        tool.help = text
        assert {asked: tool._flash(asked) for asked in told} == told


# What they are not made for


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"request": Request(stream=True)}, "it sends nothing, so nothing can be streamed; leave out stream"),
        ({"request": Request(closed_loop=True)}, "no closed loop; leave out closed_loop"),
        ({"request": Request(questions="maths")}, "it answers no questions; leave out questions"),
        ({"request": Request(cache_prompt=True)}, "no prompt cache; leave out cache_prompt"),
        ({"draft": Draft(draft_model="d")}, "no draft models; leave out draft"),
        ({"protocol": Protocol(warm="cold")}, "no window is cold"),
    ],
)
def test_what_a_benchmark_cannot_do_is_said_before_anything_is_started(keys, words, tmp_path) -> None:
    for tool in (BatchedBench(tmp_path / "absent"), LlamaBench(tmp_path / "absent")):
        assert cannot(tool, setting(1)) == ""
        assert words in cannot(tool, setting(1, **keys))
        with pytest.raises(EngineError, match=words), tool.serve(setting(1, **keys), MODEL, None, tmp_path, 1.0, 1.0):
            pass


def test_one_sequence_is_all_that_llama_bench_decodes() -> None:
    assert "one sequence at a time, 4 were asked for; take llama-batched-bench" in cannot(
        LlamaBench(Path("x")), setting(4)
    )
    assert cannot(BatchedBench(Path("x")), setting(4)) == ""
    assert cannot(engines()["in-process"].InProcessEngine(), setting(4)) == ""


# Where they are


def executable(place: Path) -> Path:
    place.parent.mkdir(exist_ok=True)
    place.write_text("#!/bin/sh\n")
    place.chmod(0o755)
    return place


def test_the_program_lies_beside_the_server_of_the_same_build(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("JOULES_LLAMA_SERVER", raising=False)
    server, tool = executable(tmp_path / "a" / "llama-server"), executable(tmp_path / "a" / "llama-bench")
    alone = executable(tmp_path / "b" / "llama-server")
    link = tmp_path / "c"
    link.symlink_to(server)
    monkeypatch.setenv("PATH", f"{server.parent}:/usr/bin")
    for where in (str(server), str(tool), str(link), "http://127.0.0.1:8080/v1", None):
        assert program("llama-bench", where) == tool
    with pytest.raises(Unmeasured, match="llama-bench does not lie beside llama-server: build llama"):
        program("llama-bench", str(alone))
    monkeypatch.setattr(_bench_tool, "locate", lambda _: (_ for _ in ()).throw(Unmeasured("none")))
    assert program("llama-bench", None) == tool
    monkeypatch.setenv("PATH", "/usr/bin")
    with pytest.raises(Unmeasured, match="llama-bench is not on this machine: install it"):
        program("llama-bench", None)
