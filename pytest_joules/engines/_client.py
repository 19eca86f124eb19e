"""Requests to a model server over HTTP: released together, or some of them in flight at any time, and timed."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import contextvars
import itertools
import re
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import aiohttp

from pytest_joules.engines import ClosedLoop, Round
from pytest_joules.errors import EngineError
from pytest_joules.records import RequestRecord

DYING_S = 1.0
"""How long a server that dropped a request may take to show whether it died."""
_MOST = 1e15
"""No count or time of an answer is larger; `1e999` is valid JSON and infinite."""
_OTHER_BUILD = "use another build of the server"
_OTHERS_S = 1.0
"""After one request of a round has failed, how long the others may take to show whether they fail too."""
_EVENT_END = re.compile(rb"\r?\n\r?\n")
_UNSEEN_SHARE = 0.02
"""So many of an answer's tokens may have come without an event of their own before nothing is said of the times between them."""
_HELD_BACK = 4
"""A character has four bytes at most, and a server may hold back a token for each until it is whole."""
_T = TypeVar("_T")

_BEGUN: contextvars.ContextVar[Callable[[], None]] = contextvars.ContextVar("begun", default=lambda: None)
"""What to call when the first event of a streamed answer has arrived, for the request that a task sends."""


class Watched(Protocol):
    """The process of a server, as far as whoever asks it must know it."""

    def running(self) -> bool:
        """Whether it is still there."""
        ...

    def how_it_ended(self) -> str:
        """For a process that is no longer there."""
        ...

    def log_tail(self) -> str:
        """What its log says at its end."""
        ...


class Client(abc.ABC):
    """Requests to one server, from a thread with an event loop of its own, so that callers need none.

    Attributes:
        cache_untold: whether an answer did not say how many tokens of its prompt came from a cache.
    """

    def __init__(self, name: str, base: str, key: str, process: Watched, timeout_s: float, other_step: str) -> None:
        """Take the address of a server.

        Args:
            name: of the engine, for messages.
            base: address that the paths of requests follow.
            key: what the server wants to see; empty for none.
            process: the server's own, watched while requests are under way.
            timeout_s: how long one request may take.
            other_step: what to do where nothing better is known.
        """
        self.name, self.other_step = name, other_step
        self.cache_untold = False
        self._base, self._headers = base, {"Authorization": f"Bearer {key}"} if key else {}
        self._process, self._timeout_s = process, timeout_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="joules-client", daemon=True)
        self._thread.start()
        self._session: aiohttp.ClientSession | None = None

    def close(self) -> None:
        """Close every connection and end the thread. May be called twice."""
        if self._loop.is_closed():
            return
        with contextlib.suppress(Exception):
            self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5.0)
        self._loop.close()

    async def _end(self) -> None:
        """Give up what an interruption left under way, and close the connections."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    @abc.abstractmethod
    async def _complete(
        self, payload: bytes, stream: bool, start: float, slot: int, round_index: int
    ) -> tuple[RequestRecord, str]:
        """One answer: its counts, with times since `start`, and its text."""

    @abc.abstractmethod
    def body(self, status: int, text: str) -> dict[str, Any]:
        """The JSON object of an answer; raises `EngineError` when it is an error, or none."""

    def end(self) -> str:
        """How the server's process ended, and what to do about it."""
        return self._process.how_it_ended()

    def round(
        self, payloads: Sequence[bytes], round_index: int, *, stream: bool, decoding: Callable[[], None] | None = None
    ) -> Round:
        """Send all at one instant; `decoding` is called when the first event of every stream has arrived."""
        return self._guarded(self._round(payloads, round_index, stream, decoding), self._timeout_s)

    def closed_loop(self, payloads: Sequence[bytes], slots: int, *, stream: bool, exact: bool) -> ClosedLoop:
        """Send `slots` of them at one instant, and the next one whenever one is answered."""
        return self._guarded(self._closed_loop(payloads, slots, stream, exact), self._timeout_s)

    async def _round(
        self, payloads: Sequence[bytes], round_index: int, stream: bool, decoding: Callable[[], None] | None
    ) -> Round:
        release = _Release()
        silent = len(payloads)

        def begun() -> None:
            nonlocal silent
            silent -= 1
            if silent == 0 and decoding is not None:
                decoding()

        async def one(slot: int, payload: bytes) -> RequestRecord:
            _BEGUN.set(begun)
            start = await release.wait()
            return (await self._complete(payload, stream, start, slot, round_index))[0]

        work = [one(slot, payload) for slot, payload in enumerate(payloads)]
        answers = await self._together(work, release, len(payloads))
        return Round(release.mono, time.monotonic(), tuple(answers))

    async def _closed_loop(self, payloads: Sequence[bytes], slots: int, stream: bool, exact: bool) -> ClosedLoop:
        release = _Release()
        queue = deque(enumerate(payloads))
        found: dict[int, tuple[RequestRecord, str]] = {}
        idle: list[float] = []

        async def worker(slot: int) -> None:
            start = await release.wait()
            position = 0
            while queue:
                index, payload = queue.popleft()
                found[index] = await self._complete(payload, stream, start, slot, position)
                position += 1
            idle.append(time.monotonic())

        await self._together([worker(slot) for slot in range(slots)], release, len(payloads), queue.clear)
        end = time.monotonic()
        in_order = [found[index] for index in range(len(payloads))]
        answers, texts = tuple(answer for answer, _ in in_order), tuple(text for _, text in in_order)
        return ClosedLoop(release.mono, end, answers, drain_s=end - idle[0], exact=exact, texts=texts)

    async def _together(
        self, work: Sequence[Coroutine[Any, Any, _T]], release: _Release, requests: int, give_up: Callable[[], None] | None = None
    ) -> list[_T]:  # fmt: skip
        """Release all at one instant and wait for all, or for the first that fails; `give_up` is called then."""
        tasks = [asyncio.create_task(one) for one in work]
        watch = asyncio.create_task(self._watch())
        await asyncio.sleep(0)
        release.now()
        try:
            waiting: set[asyncio.Task[Any]] = set(tasks)
            while waiting:
                done, _ = await asyncio.wait({*waiting, watch}, return_when=asyncio.FIRST_COMPLETED)
                error = next((task.exception() for task in done & waiting if task.exception()), None)
                if isinstance(error, EngineError):
                    if give_up:
                        give_up()
                    await asyncio.wait(tasks, timeout=_OTHERS_S)
                    failed = sum(task.done() and task.exception() is not None for task in tasks)
                    raise EngineError(f"{failed} of {requests} requests failed: {error}")
                if error is not None:
                    raise error
                if watch in done:
                    raise _Ended
                waiting -= done
        finally:
            for task in (*tasks, watch):
                task.cancel()
            await asyncio.gather(*tasks, watch, return_exceptions=True)
        return [task.result() for task in tasks]

    async def _events(self, path: str, payload: bytes) -> list[tuple[float, bytes]]:
        """Every event of a streamed answer with the time at which it had arrived.

        They are looked into when all are there: what is done in between keeps the CPU awake beside the engine.
        """
        events: list[tuple[float, bytes]] = []
        async with self._request("POST", path, payload, self._timeout_s) as response:
            if response.status != 200 or response.content_type != "text/event-stream":
                self.body(response.status, (await response.read()).decode("utf-8", errors="replace"))
                raise EngineError(
                    f"{self.name}: a stream was asked for and the answer came whole; leave out stream: true, or {self.other_step}"
                )
            pending = b""
            begun = _BEGUN.get()
            async for part in response.content.iter_any():
                arrived = time.monotonic()
                # The last piece has not come to its end yet.
                *whole, pending = _EVENT_END.split(pending + part)
                if whole and not events:
                    begun()
                events += [(arrived, event) for event in whole]
        return events

    async def _watch(self) -> None:
        """Returns when the process has ended, which a hanging connection would not show."""
        while self._process.running():
            await asyncio.sleep(0.25)

    async def _ask(self, method: str, path: str, body: bytes | None, timeout_s: float) -> tuple[int, str]:
        async with self._request(method, path, body, timeout_s) as response:
            # Models give bytes that are no UTF-8; the counts stand beside them all the same.
            return response.status, (await response.read()).decode("utf-8", errors="replace")

    @contextlib.asynccontextmanager
    async def _request(
        self, method: str, path: str, body: bytes | None, timeout_s: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            # No limit: N requests must not wait for each other in the client. No connection is used twice: the server closes one
            # after a stream or a pause, perhaps in the moment in which the next request is sent on it.
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))
        headers = self._headers if body is None else {**self._headers, "Content-Type": "application/json"}
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with self._session.request(
            method, self._base + path, data=body, headers=headers, timeout=timeout, allow_redirects=False
        ) as response:
            yield response

    def _guarded(self, work: Coroutine[Any, Any, _T], timeout_s: float) -> _T:
        """The result, with failures of the connection told as what became of the server."""
        try:
            return self._run(work)
        except (aiohttp.ClientError, ConnectionError, _Ended) as error:
            # A process that dies closes its connections first.
            deadline = time.monotonic() + DYING_S
            while self._process.running() and time.monotonic() < deadline:
                time.sleep(0.05)
            if not self._process.running():
                raise EngineError(f"{self.name} died in mid-work: {self.end()}") from None
            raise EngineError(
                f"{self.name} dropped a request: {type(error).__name__}: {error}; run again, or {self.other_step}; "
                f"its log ends: {self._process.log_tail()}"
            ) from None
        except TimeoutError:
            raise EngineError(
                f"{self.name} gave no answer within {timeout_s:.0f} s; ask for shorter answers, or raise request_timeout_s; "
                f"its log ends: {self._process.log_tail()}"
            ) from None

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class _Ended(Exception):
    """The process ended while requests were under way."""


class _Release:
    """The instant at which requests may be sent."""

    def __init__(self) -> None:
        self.mono = 0.0
        self._event = asyncio.Event()

    def now(self) -> None:
        """It has come."""
        self.mono = time.monotonic()
        self._event.set()

    async def wait(self) -> float:
        """Wait for it; returns when it was."""
        await self._event.wait()
        return self.mono


def parts(
    events: Iterable[tuple[float, bytes]], body: Callable[[int, str], dict[str, Any]]
) -> Iterator[tuple[float, dict[str, Any] | None]]:
    """The JSON objects of a stream with the times at which they arrived; `None` for `[DONE]`.

    Args:
        body: reads an object, and raises `EngineError` where it is an error or none; so does an event of the kind `error`, and one with
            a field of that name, in which older builds of llama-server tell theirs.
    """
    for mono, event in events:
        fields = [line.partition(":")[::2] for line in re.split(r"\r?\n", event.decode("utf-8", errors="replace"))]
        data = "\n".join(value.strip() for name, value in fields if name == "data")
        failures = [value for name, value in fields if name == "error"]
        if ("event", "error") in [(name, value.strip()) for name, value in fields]:
            failures.append(data or '"no reason was given"')
        for failure in failures:
            body(200, f'{{"error": {failure}}}')
        if data:
            yield mono, None if data == "[DONE]" else body(200, data)


@dataclass(frozen=True, slots=True)
class Arrival:
    """How many tokens of an answer had been seen at a time; `None` where the server does not say, and sent a piece of text."""

    mono: float
    tokens: int | None


@dataclass(frozen=True, slots=True)
class Streamed:
    """A streamed answer: its final event and when that came, its text, and when its tokens came."""

    final: Mapping[str, Any]
    end_mono: float
    text: str
    arrivals: tuple[Arrival, ...]


def timed(answer: RequestRecord, streamed: Streamed, start: float) -> RequestRecord:
    """The answer with the times of its tokens: the first since `start`, and from each to the next.

    Tokens that came together, drafted ones or the parts of one character, share the time since those before them. Where the server
    does not count them as they come, a piece is a token, provided that there are as many of the one as of the other: some send
    several tokens in one piece, whose times nobody knows.
    """
    seen = streamed.arrivals
    if not seen:
        first_s = round(streamed.end_mono - start, 6) if answer.predicted_n == 1 else None
        return replace(answer, first_token_s=first_s)
    answer = replace(answer, first_token_s=round(seen[0].mono - start, 6))
    told = [one.tokens or 0 for one in seen]
    counted = told[0] > 0 and told == sorted(told)
    counts = told if counted else range(1, len(seen) + 1)
    unseen = answer.predicted_n - counts[-1]
    # The token with which a model ends an answer has no text.
    few = _HELD_BACK if counted else int(answer.stop_type == "eos")
    if abs(unseen) > max(few, _UNSEEN_SHARE * answer.predicted_n) or (counted and unseen < 0):
        return answer
    at = [(one.mono, count) for one, count in zip(seen, counts, strict=True)]
    if counted and unseen:
        at.append((streamed.end_mono, answer.predicted_n))
    gaps = [
        ((later - earlier) / (count - before), count - before)
        for (earlier, before), (later, count) in itertools.pairwise(_first_of_each(at))
    ]
    return replace(answer, inter_token_median_s=_not_exceeded(gaps, 0.5), inter_token_p99_s=_not_exceeded(gaps, 0.99))


def _first_of_each(at: Iterable[tuple[float, int]]) -> list[tuple[float, int]]:
    """Of the moments with the same count the first."""
    return [next(same) for _, same in itertools.groupby(at, key=lambda one: one[1])]


def _not_exceeded(gaps: Sequence[tuple[float, int]], share: float) -> float | None:
    """The seconds that a share of the gaps does not exceed, each given with how often it occurs; `None` without gaps."""
    needed = share * sum(count for _, count in gaps)
    for seconds, count in sorted(gaps):
        needed -= count
        if needed <= 0:
            return round(seconds, 6)
    return None


def record_of(
    name: str, body: Mapping[str, Any], stop_type: str | None, *, slot: int, round_index: int, sent_s: float, received_s: float,
    first: str = "timings",
) -> RequestRecord:  # fmt: skip
    """One answer as its server counts it: in `timings`, in fields of its own, in OpenAI's `usage`, or in several of these.

    Args:
        name: of the engine, for messages.
        first: the place that is named as the counts' own where there are several.

    Raises:
        EngineError: there is no count of generated tokens, or two counts contradict each other.
    """
    timings, usage, _ = _places(body)
    sources = {
        "timings": count_of(timings.get("predicted_n")),
        "tokens_predicted": count_of(body.get("tokens_predicted")),
        "usage": count_of(usage.get("completion_tokens")),
    }
    known = {place: count for place, count in sources.items() if count is not None}
    predicted = _agreed(name, "generated tokens", known.values())
    if predicted is None:
        raise EngineError(
            f"{name}: an answer has no count of generated tokens (no timings, tokens_predicted or usage); use a newer build"
        )
    computed, cached = _of_the_prompt(name, body)
    drafted, accepted = _drafts(name, timings)
    return RequestRecord(
        slot=slot, round=round_index, sent_s=round(sent_s, 6), received_s=round(received_s, 6), prompt_n=computed, cache_n=cached or 0,
        predicted_n=predicted, prompt_ms=figure(timings.get("prompt_ms")), predicted_ms=figure(timings.get("predicted_ms")),
        stop_type=stop_type, truncated=bool(body.get("truncated", False)), draft_n=drafted, draft_accepted_n=accepted,
        counted_from=first if first in known else next(iter(known)),
    )  # fmt: skip


def tells_of_cache(body: Mapping[str, Any]) -> bool:
    """Whether an answer says, in one way or the other, how many tokens of its prompt came from a cache."""
    return _of_the_prompt("", body)[1] is not None


def _of_the_prompt(name: str, body: Mapping[str, Any]) -> tuple[int, int | None]:
    """Tokens of the prompt that were computed, and that came from a cache (`None`: not told); 0 and `None` where none are counted.

    Raises:
        EngineError: two counts contradict each other.
    """
    timings, usage, details = _places(body)
    computed = count_of(timings.get("prompt_n"))
    whole = _agreed(name, "prompt tokens", map(count_of, (body.get("tokens_evaluated"), usage.get("prompt_tokens"))))
    cached = _agreed(
        name, "prompt tokens from the cache", map(count_of, (timings.get("cache_n"), details.get("cached_tokens")))
    )
    if whole is None:
        return computed or 0, cached
    # Builds that leave one of the two out tell the prompt's whole length beside it.
    if cached is None and computed is not None:
        cached = whole - computed
    if computed is None:
        computed = whole - (cached or 0)
    if computed < 0 or (cached or 0) < 0 or computed + (cached or 0) != whole:
        raise EngineError(
            f"{name}: an answer contradicts itself: of {whole} prompt tokens {computed} were computed and {cached} came from the cache; "
            f"{_OTHER_BUILD}"
        )
    return computed, cached


def _drafts(name: str, timings: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens that were drafted and accepted. Raises `EngineError` where only one of the two is told, or more were accepted."""
    told = timings.get("draft_n"), timings.get("draft_n_accepted")
    if told == (None, None):
        return 0, 0
    drafted, accepted = map(count_of, told)
    if drafted is None or accepted is None or accepted > drafted:
        raise EngineError(
            f"{name}: an answer has draft_n {told[0]} and draft_n_accepted {told[1]}, which is no share of accepted drafts; {_OTHER_BUILD}"
        )
    return drafted, accepted


def _places(body: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]:
    """`timings`, `usage` and its `prompt_tokens_details`; empty where an answer has something else there."""
    timings, usage = (part if isinstance(part, dict) else {} for part in (body.get("timings"), body.get("usage")))
    details = usage.get("prompt_tokens_details")
    return timings, usage, details if isinstance(details, dict) else {}


def _agreed(name: str, what: str, counts: Iterable[int | None]) -> int | None:
    """The one count of those that an answer has. Raises `EngineError` where they differ."""
    known = list(dict.fromkeys(count for count in counts if count is not None))
    if len(known) > 1:
        raise EngineError(
            f"{name}: an answer contradicts itself: it counts {' and '.join(map(str, known))} {what}; {_OTHER_BUILD}"
        )
    return known[0] if known else None


def figure(value: object) -> float | None:
    """A number an answer gives, or `None` where it gives something else."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if abs(value) < _MOST else None


def count_of(value: object) -> int | None:
    """A number of tokens, or `None` where an answer gives something else."""
    found = figure(value)
    return int(found) if found is not None and found >= 0 and found.is_integer() else None
