"""A server that runs already: what is refused, what is counted, and what is said to be unknown."""

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_joules import gates
from pytest_joules.engines import Templated, _client, cannot, find, llama_server, openai, unseen_model, where
from pytest_joules.engines.llama_server import free_port
from pytest_joules.engines.openai import OpenAIServer, address
from pytest_joules.errors import EngineError, Unmeasured, UsageError
from pytest_joules.protocol.load import CpuTimes
from pytest_joules.suite import Draft, Protocol, Request, Server, Setting

PROGRAM = Path(__file__).parents[1] / "players" / "scripted_llama_server.py"
MODELS = {"json": {"object": "list", "data": [{"id": "/home/someone/Example-7B.Q4_0.gguf"}, {"id": "other-1b"}]}}
USAGE = {"prompt_tokens": 20, "completion_tokens": 8, "prompt_tokens_details": {"cached_tokens": 0}}
ANSWER = {"choices": [{"text": "one two", "finish_reason": "length"}], "usage": USAGE}
KEY = "sk-very-secret"
URL = "http://127.0.0.1:8000/v1"


def setting(model: str = "example-7b", form: str | None = "q4_0", parallel: int = 2, **request: Any) -> Setting:
    asked = Request(**({"answer_tokens": 8} | request))
    return Setting(
        engine="openai",
        model=model,
        format=form,
        server=Server(parallel=parallel),
        request=asked,
        draft=Draft(),
        knobs={},
    )


class Played:
    """A scripted server that runs already.

    Attributes:
        url: its address.
        process: its own; it is ours to end, and not the engine's.
    """

    def __init__(self, folder: Path, routes: Mapping[str, Any]) -> None:
        self._requests, script, port = folder / "requests.jsonl", folder / "scenario.json", free_port()
        usual = {"GET /v1/models": [MODELS], "POST /v1/completions": [{"json": ANSWER}]}
        script.write_text(json.dumps({"routes": usual | dict(routes)}))
        command = [sys.executable, "-I", "-S", PROGRAM, script, self._requests, "--port", str(port)]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        self.url = f"http://127.0.0.1:{port}/v1"
        deadline = time.monotonic() + 20
        with contextlib.ExitStack() as probes:
            while probes.enter_context(socket.socket()).connect_ex(("127.0.0.1", port)) and time.monotonic() < deadline:
                time.sleep(0.01)

    def bodies(self) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self._requests.read_text().splitlines()]
        return [one["body"] for one in lines if one["route"].startswith("POST")]

    def keys(self) -> set[str | None]:
        return {json.loads(line)["key"] for line in self._requests.read_text().splitlines()}

    @contextlib.contextmanager
    def serve(self, asked: Setting | None = None, url: str | None = None) -> Iterator[OpenAIServer]:
        engine = find("openai", url or self.url)
        wanted = asked or setting()
        model = unseen_model(engine, wanted.model, wanted.format)
        with engine.serve(wanted, model, None, Path("/nowhere"), 5.0, 5.0) as server:
            assert isinstance(server, OpenAIServer)
            yield server


Play = Callable[..., Played]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    monkeypatch.setattr(_client, "DYING_S", 0.3)
    monkeypatch.delenv("JOULES_API_KEY", raising=False)
    started: list[Played] = []

    def build(**routes: Any) -> Played:
        named = {"models": "GET /v1/models", "completions": "POST /v1/completions", "chat": "POST /v1/chat/completions"}
        started.append(Played(tmp_path, {named.get(name, name): replies for name, replies in routes.items()}))
        return started[-1]

    yield build
    for one in started:
        one.process.kill()
        one.process.wait()


# Where it is


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (
            "http://192.0.2.7:8080/v1",
            "192.0.2.7 is another machine: power is read on this one.*run pytest where the server runs",
        ),
        ("http://nobody.invalid/v1", "nobody.invalid cannot be looked up"),
        ("llama-server", "is no address of a server; write it as in --joules-server http://127.0.0.1:8080/v1"),
        ("file:///etc/passwd", "is no address of a server"),
        ("http://127.0.0.1:99999/v1", "out of range"),
        ("http://me:word@127.0.0.1/v1", "holds no name and no password; put the key into JOULES_API_KEY"),
    ],
)
def test_an_address_that_is_none_or_of_another_machine_is_refused(where, words) -> None:
    with pytest.raises(UsageError, match=words) as error:
        address(where)
    assert "word@" not in str(error.value)


def test_every_name_of_this_machine_will_do() -> None:
    own = next(one for one in openai.own_addresses() if "." in one and not one.startswith("127."))
    for host in ("localhost", "127.0.0.1", "[::1]", own):
        assert address(f"http://{host}:8080/v1/").path == "/v1"


@pytest.mark.parametrize(
    ("given", "openai_gets", "server_gets"),
    [
        ((), None, None),
        ((URL,), URL, URL),
        ((f"openai={URL}",), URL, None),
        (("/opt/llama-server", f"openai={URL}"), URL, "/opt/llama-server"),
        ((f"openai={URL}", "llama-server=./a=b/llama-server"), URL, "./a=b/llama-server"),
        (("./a=b/llama-server",), "./a=b/llama-server", "./a=b/llama-server"),
        (("/old/llama-server", "/new/llama-server"), "/new/llama-server", "/new/llama-server"),
    ],
)
def test_each_engine_of_a_suite_can_be_told_where_it_is(given, openai_gets, server_gets) -> None:
    assert where("openai", given) == openai_gets
    assert where("llama-server", given) == server_gets


def test_without_an_address_there_is_nothing_to_measure() -> None:
    with pytest.raises(Unmeasured, match="no server is named; give the address of one on this machine"):
        find("openai")


def test_the_engine_that_starts_its_own_server_says_which_one_takes_an_address() -> None:
    with pytest.raises(UsageError, match="write engine: openai in the suite"):
        llama_server.find("http://127.0.0.1:8080/v1")


def test_nobody_there(play) -> None:
    played = play()
    with (
        pytest.raises(EngineError, match=r"nothing answers at http://127\.0\.0\.1:1/v1 .*start the server"),
        played.serve(url="http://127.0.0.1:1/v1"),
    ):
        pass


def test_a_port_that_leads_elsewhere_is_no_server_of_this_machine(play, monkeypatch) -> None:
    played = play()
    monkeypatch.setattr(psutil.Process, "name", lambda _: "ssh")
    with pytest.raises(EngineError, match="what listens there is ssh, which leads to another machine"), played.serve():
        pass


# What it is asked and counts


def test_answers_are_counted_as_the_server_counts_them(play) -> None:
    played = play()
    with played.serve() as server:
        done = server.run_round(server.prompts("Name three rivers.", 2), 8, 3)
        assert [
            (a.slot, a.round, a.prompt_n, a.cache_n, a.predicted_n, a.stop_type, a.counted_from) for a in done.answers
        ] == [(slot, 3, 20, 0, 8, "limit", "usage") for slot in (0, 1)]
        assert done.start_mono < done.end_mono
        assert server.counters() is None
    body = played.bodies()[-1]
    assert {key: body[key] for key in ("model", "max_tokens", "min_tokens", "ignore_eos", "cache_prompt", "temperature", "stream")} == {
        "model": "/home/someone/Example-7B.Q4_0.gguf", "max_tokens": 8, "min_tokens": 8, "ignore_eos": True, "cache_prompt": False,
        "temperature": 0, "stream": False,
    }  # fmt: skip


def test_the_server_goes_on_when_we_have_done_and_its_work_is_known_as_its_own(play) -> None:
    played = play()
    with played.serve() as server:
        assert server.pids == {played.process.pid}
        assert CpuTimes.now(server.pids).engine_s is not None
    assert played.process.poll() is None


def test_no_two_prompts_are_alike_unless_that_is_asked_for(play) -> None:
    played = play()
    with played.serve() as server:
        pool = server.prompts("Name three rivers.", 2)
        for _ in range(2):
            server.run_round(pool, 8)
        server.run_round(server.prompts("Same.", 2, identical=True), 8)
    *numbered, a, b = [body["prompt"] for body in played.bodies()[1:]]
    assert a == b == "Same."
    assert len(set(numbered)) == 4
    assert len({len(prompt) for prompt in numbered}) == 1
    assert all(prompt.endswith("Name three rivers.") for prompt in numbered)


def test_a_closed_loop_lets_the_model_end_when_it_may(play) -> None:
    played = play()
    with played.serve() as server:
        loop = server.run_closed_loop(server.prompts("Name one.", 5), 8, exact=False)
        assert (len(loop.answers), loop.texts[0], loop.exact) == (5, "one two", False)
    assert "ignore_eos" not in played.bodies()[-1]
    assert "min_tokens" not in played.bodies()[-1]


@pytest.mark.parametrize(
    ("changed", "outcome"), [({}, "pass"), ({"completion_tokens": 5}, "void"), ({"completion_tokens": 9}, "void")]
)
def test_an_answer_of_another_length_voids_its_window(play, changed, outcome) -> None:
    played = play(completions=[{"json": ANSWER}, {"json": ANSWER | {"usage": USAGE | changed}}])
    with played.serve() as server:
        assert gates.requests_complete(server.run_round(server.prompts("x", 1), 8).answers, 1, 8).outcome == outcome


def test_what_came_from_a_cache_is_seen_where_the_server_tells_and_else_said_to_be_unknown(play) -> None:
    told, untold = (
        USAGE | {"prompt_tokens_details": {"cached_tokens": 16}},
        {"prompt_tokens": 20, "completion_tokens": 8},
    )
    played = play(completions=[{"json": ANSWER | {"usage": usage}} for usage in (USAGE, told, untold)])
    with played.serve() as server:
        answers = server.run_round(server.prompts("x", 1), 8).answers
        assert (answers[0].prompt_n, answers[0].cache_n) == (4, 16)
        assert gates.prompt_cache(answers, wanted=False).outcome == "void"
        assert not any("cache" in line and "say" in line for line in server.deviations)
    with played.serve() as server:
        assert "openai: it does not say how many prompt tokens came from its cache" in server.deviations


def event(**part: Any) -> dict[str, Any]:
    return {"json": part}


def piece(text: str, counted: int | None = None, delay_s: float = 0.0) -> dict[str, Any]:
    usage = {} if counted is None else {"usage": USAGE | {"completion_tokens": counted}}
    return event(choices=[{"text": text, "finish_reason": None}], **usage) | {"delay_s": delay_s}


PIECES = [piece("one"), piece(" two")]
LAST, COUNTS, DONE = (
    event(choices=[{"text": "", "finish_reason": "length"}]),
    event(choices=[], usage=USAGE),
    {"text": "data: [DONE]\n\n"},
)


def test_a_stream_tells_when_its_tokens_came(play) -> None:
    slow = [piece("a"), *[piece(" a", delay_s=0.1)] * 7, LAST, COUNTS, DONE]
    played = play(completions=[{"json": ANSWER}, {"events": slow}])
    with played.serve(setting(stream=True)) as server:
        [answer] = server.run_round(server.prompts("x", 1), 8).answers
        assert (answer.predicted_n, answer.stop_type) == (8, "limit")
        assert answer.first_token_s is not None
        assert answer.inter_token_median_s is not None
        # The player sleeps at least as long as it is told to.
        assert answer.inter_token_median_s > 0.09
        assert answer.first_token_s < answer.received_s - 0.05
    assert played.bodies()[-1]["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("pieces", "least_s"),
    [
        # Four tokens in a piece, as servers that draft send them: without a count nobody knows how many.
        ([piece("a b c d"), piece(" e f g h", delay_s=0.2)], None),
        ([piece("a b c d e f g h")], None),
        ([piece("a b c d", 4), piece(" e f g h", 8, delay_s=0.2)], 0.045),
        ([piece("a b c d", 0), piece(" e f g h", 0, delay_s=0.2)], None),
    ],
)
def test_tokens_that_came_together_have_times_only_where_they_are_counted(play, pieces, least_s) -> None:
    with play(completions=[{"json": ANSWER}, {"events": [*pieces, LAST, COUNTS, DONE]}]).serve(
        setting(stream=True)
    ) as server:
        [answer] = server.run_round(server.prompts("x", 1), 8).answers
    assert answer.first_token_s is not None
    assert (answer.inter_token_median_s is None) == (least_s is None)
    assert least_s is None or least_s < (answer.inter_token_median_s or 0.0) < 4 * least_s


def test_a_stream_without_text_tells_no_time_of_its_first_token(play) -> None:
    with play(completions=[{"json": ANSWER}, {"events": [LAST, COUNTS, DONE]}]).serve(setting(stream=True)) as server:
        [answer] = server.run_round(server.prompts("x", 1), 8).answers
    assert (answer.predicted_n, answer.first_token_s) == (8, None)


CUT = [piece("a", 1), piece(" b", 8)]


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ({"events": CUT}, "a stream was cut off after 2 pieces"),
        ({"events": [*CUT, DONE]}, "an answer was cut off: it has no finish_reason, as others have"),
        ({"events": [*CUT, {"text": 'error: {"message": "ctx"}\n\n'}]}, r"the server failed \(status 200\): ctx"),
        (
            {"events": [*CUT, {"text": 'event: error\ndata: {"message": "ctx"}\n\n'}]},
            r"the server failed \(status 200\): ctx",
        ),
        ({"events": [*CUT, {"text": "event: error\n\n"}]}, "no reason was given"),
        ({"events": [*PIECES, LAST, DONE]}, r"a stream without usage.*stream_options\.include_usage; leave out stream"),
        ({"events": PIECES, "cut": True}, "dropped a request|cut off after 2 pieces"),
        ({"events": [PIECES[0], event(error={"message": "out of memory"})]}, "the server failed .*out of memory"),
        ({"json": ANSWER}, "a stream was asked for and the answer came whole"),
    ],
)
def test_a_stream_that_does_not_come_to_its_end_is_none(play, reply, words) -> None:
    with (
        pytest.raises(EngineError, match=words),
        play(completions=[{"json": ANSWER}, reply]).serve(setting(stream=True)),
    ):
        pass


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"timings": {"prompt_n": 1, "cache_n": 19, "predicted_n": 8}, "truncated": True}, (1, 19, 0, 0, True)),
        # Builds that leave out cache_n tell what they computed.
        ({"timings": {"prompt_n": 1, "predicted_n": 8}}, (1, 19, 0, 0, False)),
        ({"timings": {"draft_n": 6, "draft_n_accepted": 5}}, (20, 0, 6, 5, False)),
        ({"timings": None}, (20, 0, 0, 0, False)),
    ],
)
def test_what_a_server_of_llama_cpp_says_besides_is_heard(play, changed, found) -> None:
    told = ANSWER | {"usage": {"prompt_tokens": 20, "completion_tokens": 8}} | changed
    with play(completions=[{"json": ANSWER}, {"json": told}]).serve() as server:
        [a] = server.run_round(server.prompts("x", 1), 8).answers
    assert (a.prompt_n, a.cache_n, a.draft_n, a.draft_accepted_n, a.truncated) == found
    assert any("came from its cache" in line for line in server.deviations) == (found[1] == 0)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"timings": {"predicted_n": 4}}, "counts 4 and 8 generated tokens"),
        ({"timings": {"prompt_n": 5, "cache_n": 0}}, "of 20 prompt tokens 5 were computed and 0 came from the cache"),
        ({"usage": USAGE | {"prompt_tokens_details": {"cached_tokens": 30}}}, "of 20 prompt tokens -10 were computed"),
        ({"timings": {"draft_n": 6}}, "draft_n 6 and draft_n_accepted None"),
        ({"choices": [{"text": "a"}]}, "an answer was cut off: it has no finish_reason, as others have"),
        ({"error": {}}, r"the server failed \(status 200\)"),
    ],
)
def test_an_answer_that_contradicts_itself_or_those_before_fails(play, changed, words) -> None:
    with (
        play(completions=[{"json": ANSWER}, {"json": ANSWER | changed}]).serve() as server,
        pytest.raises(EngineError, match=rf"openai: .*{words}"),
    ):
        server.run_round(server.prompts("x", 1), 8)


def test_a_server_that_never_says_why_an_answer_ended_leaves_that_unknown(play) -> None:
    silent = ANSWER | {"choices": [{"text": "one two", "finish_reason": None}]}
    with play(completions=[{"json": silent}]).serve() as server:
        answers = server.run_closed_loop(server.prompts("x", 2), 8, exact=False).answers
        exactly = server.run_round(server.prompts("x", 1), 8).answers
    assert gates.requests_complete(answers, 2, 8, exact=False).outcome == "not evaluable"
    assert gates.requests_complete(exactly, 1, 8).outcome == "pass"


# Questions, which the server puts into the model's template


def said(text: str | None, **more: Any) -> dict[str, Any]:
    return {
        "choices": [{"message": {"role": "assistant", "content": text, **more}, "finish_reason": "stop"}],
        "usage": USAGE,
    }


def test_questions_are_put_as_a_users_and_graded_by_what_is_answered(play) -> None:
    replies = [said("38"), said("It is 38."), said(None, reasoning_content="Let me add 16 and 22.")]
    played = play(chat=[{"json": one} for one in replies])
    with played.serve(setting(questions="basics")) as server:
        assert isinstance(server, Templated)
        assert not server.in_tokens
        loop = server.run_closed_loop([server.chat("What is 16 + 22?")] * 2, 64, exact=False)
    assert sorted(loop.texts) == ["", "It is 38."]
    assert {(a.predicted_n, a.stop_type) for a in loop.answers} == {(8, "eos")}
    body = played.bodies()[-1]
    assert (body["messages"], body["max_tokens"]) == ([{"role": "user", "content": "What is 16 + 22?"}], 64)
    assert not {"prompt", "ignore_eos", "min_tokens"} & body.keys()


def test_a_streamed_chat_has_its_answer_in_pieces_and_its_thoughts_beside_it(play) -> None:
    pieces = [{"reasoning_content": "Hm."}, {"content": "3"}, {"content": "8"}]
    events = [event(choices=[{"delta": piece, "finish_reason": None}]) for piece in pieces]
    events[1]["delay_s"] = 0.1
    played = play(chat=[{"json": said("38")}, {"events": [*events, LAST, COUNTS, DONE]}])
    with played.serve(setting(questions="basics", stream=True)) as server:
        loop = server.run_closed_loop([server.chat("What is 16 + 22?")], 64, exact=False)
    [answer] = loop.answers
    assert loop.texts == ("38",)
    assert answer.first_token_s is not None
    assert answer.first_token_s < answer.received_s - 0.05


def test_a_server_that_does_not_tell_of_its_cache_may_hold_questions_that_were_asked_before(play) -> None:
    untold = said("38") | {"usage": {"prompt_tokens": 20, "completion_tokens": 8}}
    with play(chat=[{"json": untold}]).serve(setting(questions="basics")) as server:
        assert any("its cache, and every window asks the same questions" in line for line in server.deviations)


# What goes wrong


NO_EXTRAS = {"status": 400, "json": {"error": {"message": "Unrecognized request argument: ignore_eos"}}}


def test_a_server_that_knows_only_the_interface_is_asked_for_no_more(play) -> None:
    played = play(completions=[NO_EXTRAS, {"json": ANSWER}])
    with played.serve() as server:
        server.run_round(server.prompts("x", 1), 8)
        assert any("refuses ignore_eos, min_tokens and cache_prompt" in line for line in server.deviations)
        assert server.facts == {"model": "Example-7B.Q4_0.gguf", "exact_length_asked": False}
    assert "ignore_eos" in played.bodies()[0]
    assert not any({"ignore_eos", "min_tokens", "cache_prompt"} & body.keys() for body in played.bodies()[1:])


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (NO_EXTRAS, r"refused a request \(status 400\): Unrecognized request argument"),
        ({"status": 401, "json": {"error": {"message": f"Incorrect API key: {KEY}"}}}, r"wants a key \(status 401: Incorrect API key: \(the key\)\); put it into JOULES_API_KEY"),
        ({"status": 404, "json": {"detail": "no such model"}}, "status 404: no such model"),
        ({"status": 429, "json": {"error": {"message": "busy"}}}, "turned a request away.*lower parallel"),
        ({"status": 500, "json": {"error": {"message": "CUDA error"}}}, "the server failed .*CUDA error; see the server's own log"),
        ({"status": 200, "json": {"error": {"message": "model crashed"}}}, "the server failed .*model crashed"),
        ({"status": 307, "headers": {"Location": "http://192.0.2.7/"}}, "sends requests on .*give the address it sends them to"),
        ({"status": 200, "body": "<html>Hello</html>"}, "a body that is no JSON object: <html>Hello"),
        ({"json": ANSWER | {"choices": []}}, r"counts tokens and holds none"),
        ({"json": {"choices": [{"text": "x"}]}}, r"does not count its tokens .*use a server that does"),
        ({"json": ANSWER | {"usage": {"prompt_tokens": None, "completion_tokens": -1}}}, "does not count its tokens"),
        ({"drop": True}, "dropped a request"),
    ],
)  # fmt: skip
def test_what_a_server_answers_is_told_in_clear_words_and_never_the_key(play, monkeypatch, reply, words) -> None:
    played = play(completions=[reply])
    monkeypatch.setenv("JOULES_API_KEY", KEY)
    with pytest.raises(EngineError, match=f"^openai.*{words}") as error, played.serve():
        pass
    assert KEY not in str(error.value)
    assert played.keys() == {f"Bearer {KEY}"}


def test_a_server_that_dies_in_mid_round_is_told(play) -> None:
    played = play(completions=[{"json": ANSWER}, {"exit": 3}])
    with (
        played.serve() as server,
        pytest.raises(EngineError, match="died in mid-work: its process is gone; start it again"),
    ):
        server.run_round(server.prompts("x", 2), 8)


@pytest.mark.parametrize(
    ("path", "words"),
    [("", r"there is no http://127\.0\.0\.1:\d+/models \(status 404\); did you mean http://127\.0\.0\.1:\d+/v1\?"), ("/v2", "did you mean http://.*/v1")],
)  # fmt: skip
def test_a_wrong_path_is_answered_with_the_usual_one(play, path, words) -> None:
    played = play()
    with pytest.raises(EngineError, match=words), played.serve(url=played.url.removesuffix("/v1") + path):
        pass


@pytest.mark.parametrize(
    ("model", "form", "words"),
    [
        (
            "exampel-7b",
            None,
            r"has no model 'exampel-7b'.*it lists Example-7B\.Q4_0\.gguf, other-1b; write one of them",
        ),
        ("other-2b", None, "did you mean 'other-1b'"),
        ("example-7b", "q8_0", "has no model 'example-7b'"),
    ],
)
def test_a_model_that_is_not_served_is_named_with_those_that_are(play, model, form, words) -> None:
    with pytest.raises(EngineError, match=words) as error, play().serve(setting(model, form)):
        pass
    assert "someone" not in str(error.value)


def test_a_server_without_a_list_of_models_is_asked_by_the_suites_name(play) -> None:
    played = play(models=[{"status": 404}])
    with played.serve() as server:
        assert any("lists no models" in line for line in server.deviations)
    assert played.bodies()[0]["model"] == "example-7b"


def test_what_could_not_be_checked_is_said_line_by_line(play) -> None:
    with play().serve() as server:
        assert len(server.deviations) == 5
        assert all(line.startswith("openai: ") for line in server.deviations)


def test_answers_of_another_model_are_a_deviation(play) -> None:
    played = play(
        completions=[
            {"json": ANSWER | {"model": "/home/someone/Example-7B.Q4_0.gguf"}},
            {"json": ANSWER | {"model": "other"}},
        ]
    )
    with played.serve() as server:
        assert not any("of model" in line for line in server.deviations)
        for _ in range(2):
            server.run_round(server.prompts("x", 1), 8)
        assert [line for line in server.deviations if "of model" in line] == [
            "openai: answers say that they are of model other"
        ]


def test_a_process_that_cannot_be_found_leaves_the_load_of_others_unknown(play, monkeypatch) -> None:
    played = play()
    monkeypatch.setattr(openai, "listening", lambda _: None)
    with played.serve() as server:
        assert server.pids is None
        assert any("its process could not be found" in line for line in server.deviations)
        now = CpuTimes.now(server.pids)
        assert CpuTimes.now(server.pids).since(now).others_cores is None
        assert gates.other_load(None, 0.1, 0.25, 2).outcome == "not evaluable"


def test_the_facts_name_neither_machine_nor_key(play, monkeypatch) -> None:
    monkeypatch.setenv("JOULES_API_KEY", KEY)
    facts = dict(find("openai", play().url).facts())
    assert {key: facts[key] for key in ("name", "path", "includes")} == {
        "name": "openai",
        "path": "/v1",
        "includes": list(openai.INCLUDES),
    }
    assert KEY not in json.dumps(facts)
    assert unseen_model(find("openai", "http://127.0.0.1:1/v1"), "example", None).record() == {
        "path": "example",
        "metadata": {},
    }


def test_what_a_running_server_cannot_do_is_said_beforehand() -> None:
    engine, own = find("openai", "http://127.0.0.1:1/v1"), setting()
    assert cannot(engine, own) == ""
    for changed, words in (
        ({"draft": Draft(draft_model="d")}, "leave out draft"),
        ({"request": Request(prompt_tokens=64)}, "take engine: llama-server"),
        ({"protocol": Protocol(warm="cold")}, "leave out warm"),
    ):
        kept = {
            name: getattr(own, name) for name in ("engine", "model", "format", "server", "request", "draft", "knobs")
        }
        assert words in cannot(engine, Setting(**(kept | changed)))
