"""Prompts of a stated length: their tokens, the keys that ask for them, the gate on the cache, and what their windows tell."""

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_joules import gates
from pytest_joules.engines.llama_server import LlamaServer, LlamaServerEngine
from pytest_joules.errors import UsageError, Void
from pytest_joules.models import ModelFile
from pytest_joules.note import lines
from pytest_joules.prediction import judge
from pytest_joules.protocol.window import _asked_of_cache, _role, prompts_of
from pytest_joules.records import RequestRecord
from pytest_joules.schedule import Step
from pytest_joules.suite import Suite, load
from pytest_joules.sweep import from_run
from pytest_joules.verdict import Robustness, robustness
from pytest_joules.workload.prompts import of_length, shared_tokens

VOCABULARY: dict[str, int] = {}


def by_word(text: str) -> list[int]:
    """One token a word."""
    return [VOCABULARY.setdefault(word, 10 + len(VOCABULARY)) for word in text.split()]


def opened(text: str) -> list[int]:
    """The same after a token that stands at the start of every text."""
    return [1, *by_word(text)]


@pytest.mark.parametrize("tokenize", [by_word, opened])
@pytest.mark.parametrize(("length", "shared"), [(8, 0), (8, 7), (300, 0), (300, 260), (2000, 512)])
def test_prompts_have_the_length_and_the_prefix_asked_for_and_no_more_in_common(tokenize, length, shared) -> None:
    prompts = of_length(tokenize, length, 100, shared=shared)
    assert {len(prompt) for prompt in prompts} == {length}
    common = max(shared, len(tokenize("")))
    assert all(shared_tokens(pair) == common for pair in itertools.combinations(prompts, 2))


def test_identical_prompts_are_one_prompt() -> None:
    prompts = of_length(by_word, 40, 5, identical=True)
    assert prompts == [prompts[0]] * 5
    assert shared_tokens(prompts) == 40


def test_prompts_beyond_the_words_of_the_text_still_differ_from_those_before_them() -> None:
    prompts = of_length(by_word, 60, 1000)
    assert len({tuple(prompt) for prompt in prompts}) == 1000
    assert all(shared_tokens(pair) == 0 for pair in itertools.pairwise(prompts))


@pytest.fixture
def asking(tmp_path: Path) -> Callable[..., Suite]:
    """A suite with such requests."""

    def build(request: str, more: str = "") -> Suite:
        path = tmp_path / "asks.yaml"
        path.write_text(f"question: What does a prompt cost?\nmodel: m\nrequest: {{{request}}}\n{more}")
        return load(path)

    return build


FAULTS = {
    "too long": ("prompt_tokens: 1000", "", r"asks\.yaml:3: request\.prompt_tokens: a prompt of 1000 tokens and 128 of its answer need 1129 tokens of context at the suite, context_per_slot is 1024; raise it to 1129 or more"),
    "too long with the longest answer": ("prompt_tokens: 512, lengths: [512]", "", "need 1025 tokens of context"),
    "too long on an axis": ("answer_tokens: 8", "vary: {prompt_tokens: [512, 2048]}", r"asks\.yaml:4: vary\.prompt_tokens: .*need 2057 tokens of context at prompt_tokens=2048"),
    "a prefix of nothing": ("shared_prefix_tokens: 8", "", "shared_prefix_tokens: it is a part of prompts of a stated length; state prompt_tokens"),
    "a prefix as long as the prompt": ("prompt_tokens: 64", "vary: {shared_prefix_tokens: [32, 64]}", r"asks\.yaml:4: vary\.shared_prefix_tokens: 64 is no part .*at shared_prefix_tokens=64"),
    "identical and shared": ("prompt_tokens: 64, shared_prefix_tokens: 8, identical: true", "", "identical: identical prompts share all"),
    "a text beside": ("prompt_tokens: 64, prompt_text: Why", "", "prompt_text: prompts of prompt_tokens have a text of their own"),
    "questions beside": ("prompt_tokens: 64, questions: basics", "", "prompt_tokens: it has no meaning beside questions"),
    "a cache of prompts of their own": ("prompt_tokens: 64", "vary: {cache_prompt: [false, true]}", r"asks\.yaml:4: vary\.cache_prompt: no two of these prompts begin alike, .*at cache_prompt=True"),
    "a cache of a text behind numbers": ("prompt: code, cache_prompt: true", "", r"asks\.yaml:3: request\.cache_prompt: no two of these prompts begin alike"),
    "a named prompt beside a length": ("prompt: code, prompt_tokens: 64", "", "prompt: prompt_tokens takes its place; remove one of them"),
    "a named prompt beside a text": ("prompt_text: Why", "vary: {prompt: [short, code]}", r"vary\.prompt: prompt_text takes its place"),
    "a short closed loop": ("closed_loop: true", "protocol: {rounds: 4}", r"protocol\.rounds: a closed loop sends at least 8 requests to each slot"),
    "a cold cache": ("prompt_tokens: 64, identical: true, cache_prompt: true", "protocol: {warm: cold}", "cache_prompt: a cold server has no prompt in its cache"),
    "cold windows of prompts": ("prefill_windows: true", "protocol: {warm: cold}", "prefill_windows: only the first window of a server is cold"),
    "answers that are prefill already": ("prefill_windows: true, answer_tokens: 1", "", "prefill_windows: answers of one token are prefill alone"),
    "a length that is prefill": ("prefill_windows: true, lengths: [1]", "", "lengths: answers of one token are what prefill_windows measures"),
    "quantised without flash attention": ("answer_tokens: 8", "server: {flash_attention: off}\nvary: {cache_type: [f16, q8_0]}", "flash_attention: a V cache of q8_0 needs it"),
    "a cache type twice": ("answer_tokens: 8", "vary: {cache_type: [f16], cache_type_k: [f16, q8_0]}", r"vary\.cache_type: it sets cache_type_k, which varies"),
    "a cache type fixed": ("answer_tokens: 8", "server: {cache_type_v: f16}\nvary: {cache_type: [f16]}", r"cache_type varies and is also fixed by server\.cache_type_v"),
    "no cache type": ("answer_tokens: 8", "vary: {cache_type: [f16, q9]}", r"vary\.cache_type: .*not 'q9'"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_what_does_not_go_together_is_told_before_anything_runs(asking, fault: str) -> None:
    request, more, message = FAULTS[fault]
    with pytest.raises(UsageError, match=message):
        asking(request, more)


def test_a_prompt_and_its_answer_fit_with_one_token_to_spare(asking) -> None:
    assert asking("prompt_tokens: 895").setting({}).request.prompt_tokens == 895
    with pytest.raises(UsageError, match="need 1025 tokens"):
        asking("prompt_tokens: 896")


def test_one_axis_sets_both_halves_of_the_cache(asking) -> None:
    suite = asking("answer_tokens: 8", "vary: {cache_type: [f16, q8_0]}")
    servers = [suite.setting(condition).server for condition in suite.conditions]
    assert [(server.cache_type_k, server.cache_type_v) for server in servers] == [("f16", "f16"), ("q8_0", "q8_0")]


def test_figures_of_prompts_are_undefined_unless_their_windows_are_asked_for(asking) -> None:
    names = {"energy_per_prompt_token_mj", "prompt_tokens_per_s", "prefill_share"}
    assert names <= asking("answer_tokens: 8").undefined.keys()
    assert names & asking("answer_tokens: 1").undefined.keys() == {"prefill_share"}
    assert not names & asking("prefill_windows: true").undefined.keys()


class Counting:
    """A server that can make prompts of a length."""

    def prompts_of(self, length: int, count: int, *, shared: int = 0, identical: bool = False) -> list[list[int]]:
        return of_length(opened, length, count, shared=shared, identical=identical)


@pytest.mark.parametrize(
    ("request_", "more", "cached"),
    [
        ("shared_prefix_tokens: 48, cache_prompt: true", "", 48),
        ("shared_prefix_tokens: 48", "", 0),
        ("cache_prompt: true, identical: true", "", 63),
        # The token at the start of every text is in the cache whatever else is; how long the prefix is may vary down to none.
        ("cache_prompt: true", "vary: {shared_prefix_tokens: [0, 48]}", 1),
    ],
)
def test_what_must_come_from_the_cache_follows_from_the_prompts(asking, request_: str, more: str, cached: int) -> None:
    suite = asking(f"prompt_tokens: 64, {request_}", more)
    setting = suite.setting(suite.conditions[0])
    prompts = prompts_of(setting, Counting(), 8)
    assert _asked_of_cache(setting, [prompts[:4], prompts[4:]]) == (cached, 64 - cached)


def test_prompts_whose_length_is_not_stated_have_no_count_to_keep_to(asking) -> None:
    assert _asked_of_cache(asking("cache_prompt: true, identical: true").setting({}), [[[1, 2, 3]]]) is None


ANSWER = RequestRecord(
    slot=0, round=0, sent_s=0.0, received_s=1.0, prompt_n=128, cache_n=512, predicted_n=1, prompt_ms=40.0, predicted_ms=0.0,
    stop_type="limit",
)  # fmt: skip


def test_one_request_that_the_cache_served_otherwise_voids_the_window() -> None:
    asked = [replace(ANSWER, slot=slot) for slot in range(4)]
    gate = gates.prompt_cache(asked, wanted=True, each=(512, 128))
    assert (gate.outcome, gate.value) == ("pass", "512 from the cache and 128 computed, in each of 4 requests")
    gate = gates.prompt_cache(
        [*asked, replace(ANSWER, slot=2, round=3, cache_n=0, prompt_n=640)], wanted=True, each=(512, 128)
    )
    assert str(gate).startswith(
        "prompt cache: 0 prompt tokens from the cache and 640 computed in slot 2, round 3; 1 of 5 requests are not as asked "
        "(limit: 512 from the cache, 128 computed); "
    )
    assert gate.outcome == "void"
    # llama-bench puts prompts into its context outside of the window, and tells of none.
    untold = [replace(ANSWER, cache_n=0, prompt_n=0)] * 2
    assert gates.prompt_cache(untold, wanted=False, each=(0, 640)).outcome == "not evaluable"


def test_slots_are_named_only_where_what_they_hold_is_counted(asking, tmp_path: Path, monkeypatch) -> None:
    program = tmp_path / "llama-server"
    program.write_bytes(b"")
    engine = LlamaServerEngine(program)
    known = ("--model", "--parallel", "--ctx-size", "--cache-ram", "--no-cache-prompt", "--slot-prompt-similarity")
    engine.__dict__ |= {"help": "", "flags": frozenset(known)}
    model = ModelFile(path=tmp_path / "m.gguf", size_bytes=1, sha256="0")
    given = {
        request: [
            flag in engine._arguments(asking(request).setting({}), model, None)[0]
            for flag in ("--no-cache-prompt", "--cache-ram")
        ]
        for request in (
            "seed: 1",
            "cache_prompt: true, identical: true",
            "cache_prompt: true, prompt_tokens: 64, shared_prefix_tokens: 8",
        )
    }
    assert list(given.values()) == [[True, True], [False, False], [False, True]]
    sent = {}
    for request in given:
        server = LlamaServer(asking(request).setting({}), SimpleNamespace(pids=frozenset()), None, [], [])
        sent[request] = [
            json.loads(body).get("id_slot") for body in server._payloads([[1], [2]], 1, stream=False, placed=True)
        ]
    assert list(sent.values()) == [[None, None], [None, None], [0, 1]]
    # In a closed loop whichever slot is free takes the next one: all of them hold the prefix.
    assert all("id_slot" not in json.loads(body) for body in server._payloads([[1], [2]], 1, stream=False))


def test_a_window_of_one_token_is_prefill_where_it_was_asked_for_as_such(asking) -> None:
    beside = asking("prefill_windows: true, answer_tokens: 8, lengths: [16]").setting({})
    step = Step(0, {})
    assert [_role(step, beside, tokens) for tokens in (1, 8, 16)] == ["prefill", "measured", "length"]
    assert _role(step, asking("answer_tokens: 8, lengths: [1]").setting({}), 1) == "length"
    assert _role(step, asking("answer_tokens: 1").setting({}), 1) == "measured"
    assert _role(replace(step, role="control"), beside, 8) == "control"


@pytest.fixture
def windows(make_window):
    """Two passes of one condition: requests that cost 10 J, 4 J of it for 512 prompt tokens, then a tenth more."""

    def build(**changes):
        found = []
        for index, times in enumerate((1.0, 1.1)):
            usual = {"requests": (ANSWER,) * 4, "pass_index": index, "slots": 4, "prompt_tokens": 2048}
            found += [
                make_window(
                    role="prefill", answer_tokens=1, tokens=4, **({"energy_j": 16.0 * times} | usual | changes)
                ),
                make_window(answer_tokens=64, energy_j=40.0 * times, tokens=256, **usual),
            ]
        return found

    return build


def test_windows_of_prompts_alone_price_a_prompt_token(windows, make_run) -> None:
    sweep = from_run(make_run(*windows(), passes=2))
    [cell] = sweep.cells
    assert [f["energy_per_prompt_token_mj"] for f in cell.passes] == pytest.approx(
        [1000 * 16 / 2048, 1000 * 17.6 / 2048]
    )
    assert [f["prefill_share"] for f in cell.passes] == pytest.approx([0.4, 0.4])
    assert cell.mean("prompt_tokens_per_s") == pytest.approx(204.8)
    # The line over answer lengths is of answers.
    with pytest.raises(Void, match=r"state request\.lengths"):
        cell.mean("decode_energy_per_token_mj")
    headings, rows = lines.cells(sweep)
    assert headings[1:5] == ["prompt tok/s", "mJ per prompt token", "prefill share", "mJ per token"]
    assert rows[0][3] == "40.0%"
    assert max(map(len, lines.table(sweep))) <= 80


def test_a_void_window_of_prompts_leaves_their_figures_undefined_and_no_others(windows, make_run) -> None:
    [cell] = from_run(make_run(*windows(outcome="void", failure="it died"), passes=2)).cells
    assert cell.mean("energy_per_token_mj") > 0
    with pytest.raises(Void, match="prefill_share is undefined: pass 1, prompts alone: it died"):
        cell.mean("prefill_share")
    assert "energy_per_prompt_token_mj" not in cell.passes[0]


def test_a_prompt_that_took_more_than_its_whole_request_is_no_share_of_it(windows, make_run) -> None:
    *first, alone, whole = windows()
    [cell] = from_run(make_run(*first, replace(alone, energy_j=66.0), whole, passes=2)).cells
    with pytest.raises(
        Void, match=r"pass 2: prompts alone took 1\.5 times the energy of whole requests; measure longer windows"
    ):
        cell.mean("prefill_share")
    assert cell.mean("energy_per_prompt_token_mj") > 0


def test_nothing_computed_or_no_energy_is_no_figure(windows, make_run) -> None:
    [cell] = from_run(make_run(*windows(prompt_tokens=0), passes=2)).cells
    with pytest.raises(
        Void, match="energy_per_prompt_token_mj is undefined: no energy was measured, or no prompt token computed"
    ):
        cell.mean("energy_per_prompt_token_mj")
    assert cell.mean("prefill_share") == pytest.approx(0.4)
    [cell] = from_run(make_run(*windows(energy_j=None), passes=2)).cells
    assert "prefill_share" not in cell.passes[0]
    assert cell.mean("prompt_tokens_per_s") > 0


def test_answers_of_one_token_are_windows_of_prompts_themselves(make_window, make_run) -> None:
    window = make_window(answer_tokens=1, tokens=1, prompt_tokens=512, energy_j=4.0)
    sweep = from_run(make_run(window, passes=1))
    assert sweep.energy_per_prompt_token_mj[1] == pytest.approx(4000 / 512)
    with pytest.raises(Void, match="whole requests were not measured; raise answer_tokens"):
        sweep.prefill_share[1]
    assert lines.cells(sweep)[0][1:4] == ["prompt tok/s", "W", "mJ per prompt token"]
    with pytest.raises(Void, match=r"prompts alone were not measured; state request\.prefill_windows: true"):
        from_run(make_run(make_window(), passes=1)).energy_per_prompt_token_mj[1]


def test_what_the_prompt_took_is_no_fault_of_the_line_over_answer_lengths() -> None:
    assert gates.lengths_intercept(4.0, 10.0, 0.1).outcome == "flag"
    gate = gates.lengths_intercept(4.0, 10.0, 0.1, prompt_j=4.2)
    assert (gate.outcome, gate.value) == ("pass", "-0.2 J beside the tokens and the prompt, -2%")


def test_noise_of_the_windows_of_prompts_makes_a_verdict_on_them_narrow(windows, make_run, predicts) -> None:
    def a_third_of_a_request(sweep):
        assert sweep.prefill_share[1] > 0.38

    def apart(prompt_j: float) -> Robustness:
        """How surely it holds where the prompts of the second pass took that much in place of 17.6 J."""
        *others, alone, whole = windows()
        sweep = from_run(make_run(*others, replace(alone, energy_j=prompt_j), whole, passes=2))
        prediction = predicts(a_third_of_a_request)
        return robustness(prediction, judge(prediction, sweep), sweep)

    assert apart(17.6).word == "clear"
    # The energy of whole requests is as steady as before, and each pass alone says the same.
    assert apart(24.0).word == "narrow"
