"""Streamed answers, closed loops and long prompts, as the real server does them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_joules import gates
from pytest_joules.engines import llama_server
from pytest_joules.engines.llama_server import LlamaServer
from pytest_joules.models import ModelFile
from pytest_joules.suite import Draft, Request, Server, Setting

SETTING = Setting(
    engine="llama-server", model="m", format=None, request=Request(stream=True), draft=Draft(), knobs={},
    # One thread: several would wait for each other wherever another program is at work.
    server=Server(parallel=2, context_per_slot=512, threads=1),
)  # fmt: skip


@pytest.fixture(scope="module")
def server(model_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    model = ModelFile(path=model_file, size_bytes=model_file.stat().st_size, sha256="0" * 64)
    engine = llama_server.find()
    with engine.serve(SETTING, model, None, tmp_path_factory.mktemp("logs"), 120.0, 120.0) as started:
        yield started


def test_a_streamed_round_counts_what_a_whole_one_does(server: LlamaServer, model_file: Path) -> None:
    prompts = server.prompts("Name three rivers.", 2)
    streamed = server.run_round(prompts, 24).answers
    whole = server.run_closed_loop(prompts, 24, stream=False).answers
    assert gates.requests_complete(streamed, 2, 24).outcome == "pass"
    for one, other in zip(streamed, whole, strict=True):
        for name in ("prompt_n", "cache_n", "predicted_n", "stop_type", "truncated", "counted_from"):
            assert getattr(one, name) == getattr(other, name)
        assert one.first_token_s is not None
        assert one.inter_token_median_s is not None
        assert one.inter_token_p99_s is not None
        assert one.sent_s < one.first_token_s < one.received_s
        assert 0 < one.inter_token_median_s <= one.inter_token_p99_s <= one.received_s - one.first_token_s
        assert other.first_token_s is None
        # The server's own times are of the same tokens, less what it took to bring them here.
        assert one.predicted_ms is not None
        assert one.inter_token_median_s * 23 < 2 * one.predicted_ms / 1000


def test_one_token_is_the_first_and_has_none_after_it(server: LlamaServer) -> None:
    [found] = server.run_round(server.prompts("Name three rivers.", 1), 1).answers
    assert found.predicted_n == 1
    assert found.first_token_s is not None
    assert found.inter_token_median_s is None


def test_a_text_of_many_bytes_a_token_is_timed_to_its_end(server: LlamaServer) -> None:
    # Characters of several tokens come late, or never whole.
    [found] = server.run_round(server.prompts("Repeat for ever: 🜁🜂🜃🜄 ᚠᚢᚦᚨᚱ 🜁🜂🜃🜄 ᚠᚢᚦᚨᚱ", 1), 48).answers
    assert found.predicted_n == 48
    assert found.first_token_s is not None
    assert found.first_token_s < found.received_s
    assert found.inter_token_median_s is not None


def test_a_closed_loop_answers_every_question_and_may_end_early(server: LlamaServer) -> None:
    prompts = server.prompts("Name one river. Answer with one word.", 6)
    done = server.run_closed_loop(prompts, 16, exact=False)
    assert len(done.answers) == len(done.texts) == 6
    assert [a.prompt_n for a in done.answers] == [len(prompt) for prompt in prompts]
    assert all(0 < a.predicted_n <= 16 for a in done.answers)
    assert {a.stop_type for a in done.answers} <= {"eos", "limit"}
    assert {a.slot for a in done.answers} == {0, 1}
    assert 0 <= done.drain_s < done.end_mono - done.start_mono
    # Greedy answers do not depend on how they are sent.
    again = server.run_closed_loop(prompts[:1], 16, stream=False, exact=False)
    assert again.texts[0] == done.texts[0]


@pytest.mark.parametrize("tokens", [16, 100, 1024, 8192])
def test_prompts_of_any_length_are_distinct_and_equally_long(server: LlamaServer, tokens: int) -> None:
    frame = len(server.prompts("river", 1)[0]) - 1
    made = server.prompts("river" + " river" * (tokens - frame - 1), 64)
    assert {len(prompt) for prompt in made} == {tokens}
    assert len({tuple(prompt) for prompt in made}) == 64
    # They part early: a cache that keeps what prompts begin with would have next to nothing to keep.
    begin = [tuple(prompt[:frame]) for prompt in made]
    assert len(set(begin)) == 64


def test_a_run_of_several_rounds_has_the_times_of_its_tokens(project) -> None:
    project.suite(
        vary={"parallel": [2]},
        request={"stream": True, "answer_tokens": 8},
        protocol={"min_window_s": None, "rounds": 2},
    )
    project.write(
        "test_real.py",
        '''
        import pytest

        pytestmark = pytest.mark.joules("real")

        def test_more_at_once_wait_longer(sweep):
            """A request waits longer for its first token beside another."""
            assert 0 < sweep.inter_token_s[2] < sweep.time_to_first_token_s[2] < 60
        ''',
    )
    project.run()
    windows = [w for w in project.stored().run.windows if w.role == "measured"]
    assert windows
    for window in windows:
        assert window.rounds == 2
        for answer in window.requests:
            assert answer.first_token_s is not None
            assert answer.sent_s < answer.first_token_s < answer.received_s
