"""Runs a model with llama-cpp-python, in a process of its own: a native crash then takes nothing else along.

usage: python -P _in_process_child.py REQUESTS ANSWERS    serve; both are named pipes
       python -P _in_process_child.py facts               tell what library this is, as JSON

Every message is a JSON object after its length in four bytes. An object with `error` is the answer to what could not be done;
the process goes on. It ends when nobody can send any more.

Run as a program, with the standard library, numpy and llama_cpp only: nothing else is loaded beside the model.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import platform
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

FLASH = {"auto": -1, "off": 0, "on": 1}
"""enum llama_flash_attn_type."""

CACHE_TYPES = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30,
}  # fmt: skip
"""enum ggml_type; the binding lacks some of its names."""

TOP_K, TOP_P, MIN_P = 40, 0.95, 0.05
"""What llama-server samples with above temperature 0 when it is told no more."""

_DEBUG, _GOES_ON = 1, 5
"""enum ggml_log_level (which the binding numbers otherwise): of thousands of lines that a model being loaded would fill the log with, and of one that goes on."""

_LENGTH = struct.Struct(">I")


class Fault(Exception):
    """Something that went wrong in a way that is understood."""


class _Ended(Exception):
    """Whoever sent the requests has gone."""


def send(stream: BinaryIO, message: Mapping[str, Any]) -> None:
    """One message."""
    stream.write(packed(message))
    stream.flush()


def packed(message: Mapping[str, Any]) -> bytes:
    """A message as it travels."""
    body = json.dumps(message).encode()
    return _LENGTH.pack(len(body)) + body


def unpacked(data: bytes) -> tuple[dict[str, Any] | None, bytes]:
    """The first message in what has come so far, `None` while it is not whole, and what follows it."""
    if len(data) < _LENGTH.size:
        return None, data
    end = _LENGTH.size + _LENGTH.unpack_from(data)[0]
    if len(data) < end:
        return None, data
    message: dict[str, Any] = json.loads(data[_LENGTH.size : end])
    return message, data[end:]


def receive(stream: BinaryIO) -> dict[str, Any]:
    """The next message; raises when there will be none."""
    head = stream.read(_LENGTH.size)
    body = stream.read(_LENGTH.unpack(head)[0]) if len(head) == _LENGTH.size else b""
    if not body:
        raise _Ended
    message: dict[str, Any] = json.loads(body)
    return message


def facts(api: Any) -> dict[str, Any]:
    """Version, build and digests of the library, and for what processor this Python is."""
    inner = getattr(api, "llama_cpp", api)
    version = getattr(api, "llama_version", None)
    found: dict[str, Any] = {
        "version": api.__version__,
        "llama_cpp": version().decode(errors="replace") if version else None,
        "system_info": api.llama_print_system_info().decode(errors="replace").strip(),
        "gpu_offload": bool(api.llama_supports_gpu_offload()),
        "platform": _platform(),
    }
    loaded = getattr(getattr(inner, "_lib", None), "_name", None)
    if loaded:
        library = Path(loaded)
        found |= {"library": library.name, "sha256": _sha256(library)}
        # The arithmetic is in the libraries beside it, each there under several names, of which the shortest is taken.
        beside = sorted(library.parent.glob("libggml*"), key=lambda file: -len(file.name))
        by_digest = {_sha256(file): file.name for file in beside}
        found["libraries"] = {name: digest for digest, name in sorted(by_digest.items(), key=lambda item: item[1])}
    return found


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _platform() -> dict[str, str | None]:
    """What tells whether this process is translated; asked here, because the kernel answers for whoever asks."""
    found: dict[str, str | None] = {"platform.machine()": platform.machine()}
    if sys.platform == "darwin":
        for name in ("sysctl.proc_translated", "hw.optional.arm64"):
            value, size = ctypes.c_int(0), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
            failed = ctypes.CDLL(None).sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0)
            found[name] = None if failed else str(value.value)
    return found


@dataclass(slots=True)
class _Work:
    """One prompt and the answer to it so far. Times are of the monotonic clock, which all processes share."""

    index: int
    slot: int
    position: int
    prompt: Sequence[int]
    begun: float
    cached: int = 0
    computed: int = 0
    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    prefilled: float = 0.0
    stop: str = ""


@dataclass(frozen=True, slots=True)
class _Fed:
    """A token to be computed; `wanted` where the one after it is to be chosen."""

    token: int
    position: int
    slot: int
    wanted: bool


class _Batch:
    """The memory in which tokens are handed to llama.cpp, seen as arrays: a step of N tokens then costs microseconds here."""

    def __init__(self, api: Any, size: int) -> None:
        self.raw = api.llama_batch_init(size, 0, 1)
        self._token = np.ctypeslib.as_array(self.raw.token, (size,))
        self._pos = np.ctypeslib.as_array(self.raw.pos, (size,))
        self._logits = np.ctypeslib.as_array(self.raw.logits, (size,))
        self._slots = [self.raw.seq_id[i] for i in range(size)]
        np.ctypeslib.as_array(self.raw.n_seq_id, (size,))[:] = 1

    def fill(self, fed: Sequence[_Fed]) -> None:
        count = len(fed)
        self.raw.n_tokens = count
        self._token[:count] = [one.token for one in fed]
        self._pos[:count] = [one.position for one in fed]
        self._logits[:count] = [one.wanted for one in fed]
        for place, one in zip(self._slots, fed, strict=False):
            place[0] = one.slot


class Model:
    """A model with a context of several sequences.

    Attributes:
        steps, busy: decode calls so far, and the slots that had work, summed over them.
    """

    def __init__(self, api: Any, asked: Mapping[str, Any]) -> None:
        self._api = api
        self.unpinned: list[str] = []
        self.steps = self.busy = 0
        params = api.llama_model_default_params()
        params.n_gpu_layers = asked["gpu_layers"]
        self._model = api.llama_model_load_from_file(os.fsencode(asked["model"]), params)
        if not self._model:
            raise Fault("llama.cpp cannot load the model")
        self._vocab = api.llama_model_get_vocab(self._model)
        self._size = api.llama_vocab_n_tokens(self._vocab)
        self._context = api.llama_init_from_model(self._model, self._context_params(asked))
        if not self._context:
            raise Fault("llama.cpp cannot make a context of this size")
        self._memory = api.llama_get_memory(self._context)
        self._slots = int(asked["slots"])
        self._batch_size = api.llama_n_batch(self._context)
        self._batch = _Batch(api, self._batch_size)
        self._ends = np.array([t for t in range(self._size) if api.llama_vocab_is_eog(self._vocab, t)], dtype=np.intp)
        self._held: list[list[int]] = [[] for _ in range(self._slots)]
        self._samplers: dict[int, Any] = {}
        self._views: dict[tuple[int, int], Any] = {}
        self._taken: dict[str, Any] = {}
        self._raise_counters()

    def _context_params(self, asked: Mapping[str, Any]) -> Any:
        params = self._api.llama_context_default_params()
        wanted = {
            "n_ctx": asked["context"], "n_seq_max": asked["slots"], "n_batch": asked["batch"], "n_ubatch": asked["ubatch"],
            "n_threads": asked["threads"], "n_threads_batch": asked["threads"], "flash_attn_type": FLASH[asked["flash"]],
            "type_k": CACHE_TYPES[asked["type_k"]], "type_v": CACHE_TYPES[asked["type_v"]],
            # As llama-server has them: each sequence has memory of its own, and only as much as its attention reaches.
            "kv_unified": False, "swa_full": False, "no_perf": False,
        }  # fmt: skip
        for name, value in wanted.items():
            if hasattr(params, name):
                setattr(params, name, value)
            else:
                self.unpinned.append(name)
        return params

    def _raise_counters(self) -> None:
        """One step of several tokens and one of a single one: llama.cpp tells a counter of 0 as 1, which no difference shows."""
        for step in ([_Fed(0, 0, 0, False), _Fed(0, 1, 0, True)], [_Fed(0, 2, 0, True)]):
            self._decode(step)
            # Without it the two would be counted as one step.
            self._api.llama_synchronize(self._context)
        self._api.llama_memory_clear(self._memory, True)
        self.steps = self.busy = 0

    def in_force(self) -> dict[str, Any]:
        """What llama.cpp says it runs with."""
        api, context = self._api, self._context
        return {
            "context_per_slot": min(api.llama_n_ctx_seq(context), api.llama_model_n_ctx_train(self._model)),
            "slots": api.llama_n_seq_max(context),
            "batch_tokens": self._batch_size,
            "ubatch_tokens": api.llama_n_ubatch(context),
            "unpinned": self.unpinned,
        }

    def computed(self) -> int:
        """Tokens that llama.cpp says it has computed so far. What it calls prompt are the steps of several tokens."""
        self._api.llama_synchronize(self._context)
        perf = self._api.llama_perf_context(self._context)
        return int(perf.n_p_eval + perf.n_eval)

    def chat(self, text: str) -> list[int]:
        """Token ids of a prompt in which a user says `text`, by the template in the model's file."""
        template = self._api.llama_model_chat_template(self._model, None)
        if not template:
            raise Fault("the model's file has no chat template: ask prompts, no questions, or take an instruct model")
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter  # only questions need it

        ends = [
            self.text([token], special=True) if token >= 0 else ""
            for token in (self._api.llama_vocab_bos(self._vocab), self._api.llama_vocab_eos(self._vocab))
        ]
        made = Jinja2ChatFormatter(template.decode(), bos_token=ends[0], eos_token=ends[1])
        prompt = made(messages=[{"role": "user", "content": text}]).prompt
        # A template that writes the opening token itself would give it twice.
        return self.tokenize(
            prompt.removeprefix(ends[0]) if ends[0] and self._api.llama_vocab_get_add_bos(self._vocab) else prompt
        )

    def tokenize(self, text: str) -> list[int]:
        """Token ids with the model's opening token."""
        data = text.encode()
        room = len(data) + 16
        ids = (ctypes.c_int32 * room)()
        count = self._api.llama_tokenize(self._vocab, data, len(data), ids, room, True, True)
        if count < 0:
            raise Fault(f"llama_tokenize returned {count}")
        return list(ids[:count])

    def text(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """What tokens spell; ends of the answer spell nothing unless `special`."""
        pieces = []
        buffer = ctypes.create_string_buffer(512)
        for token in tokens:
            count = self._api.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, special)
            pieces.append(buffer.raw[: max(0, count)])
        return b"".join(pieces).decode("utf-8", errors="replace")

    def take(self, asked: Mapping[str, Any]) -> None:
        """Prompts to be answered at the next `go`, and how; whatever costs time is done now."""
        if not asked["keep"]:
            self._api.llama_memory_clear(self._memory, False)
            self._held = [[] for _ in self._held]
        for sampler in self._samplers.values():
            self._api.llama_sampler_free(sampler)
        self._samplers = {}
        if asked["temperature"] > 0:
            self._samplers = {slot: self._sampler(asked) for slot in range(self._slots)}
        self._taken = {**asked, "computed_before": self.computed(), "fed": 0}

    def _sampler(self, asked: Mapping[str, Any]) -> Any:
        api = self._api
        chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
        for part in (
            api.llama_sampler_init_top_k(TOP_K), api.llama_sampler_init_top_p(TOP_P, 1), api.llama_sampler_init_min_p(MIN_P, 1),
            api.llama_sampler_init_temp(asked["temperature"]), api.llama_sampler_init_dist(asked["seed"]),
        ):  # fmt: skip
            api.llama_sampler_chain_add(chain, part)
        return chain

    def go(self) -> list[_Work]:
        """Answer what was taken: a step computes one token of every sequence, prompts are computed apart from it.

        Where there are more prompts than slots, a sequence that ends is replaced by the next prompt.
        """
        queue = deque(enumerate(self._taken["prompts"]))
        done: list[_Work] = []
        active: dict[int, _Work] = {}
        positions = [0] * self._slots
        try:
            while queue or active:
                begun = time.monotonic()
                starting = []
                for slot in range(self._slots):
                    if slot not in active and queue:
                        index, prompt = queue.popleft()
                        active[slot] = _Work(index, slot, positions[slot], prompt, begun)
                        positions[slot] += 1
                        starting.append(active[slot])
                if starting:
                    fed = [one for work in starting for one in self._prefill(work)]
                else:
                    fed = [
                        _Fed(work.tokens[-1], len(work.prompt) + len(work.tokens) - 1, slot, True)
                        for slot, work in active.items()
                    ]
                self._decode(fed, active)
                for slot in [slot for slot, work in active.items() if work.stop]:
                    work = active.pop(slot)
                    # The last token was chosen and never computed.
                    self._held[slot] = [*work.prompt, *work.tokens[:-1]]
                    done.append(work)
        except Fault:
            self._api.llama_memory_clear(self._memory, False)
            self._held = [[] for _ in self._held]
            raise
        return sorted(done, key=lambda work: work.index)

    def _prefill(self, work: _Work) -> list[_Fed]:
        """The part of a prompt that has to be computed, after the rest of the slot's memory was given up."""
        held, slot = self._held[work.slot], work.slot
        keep = shared(held, work.prompt) if self._taken["keep"] else 0
        # Some models cannot give up a part of a sequence.
        if held and not self._api.llama_memory_seq_rm(self._memory, slot, keep, -1):
            self._api.llama_memory_seq_rm(self._memory, slot, -1, -1)
            keep = 0
        work.cached, work.computed = keep, len(work.prompt) - keep
        last = len(work.prompt) - 1
        return [_Fed(work.prompt[i], i, slot, i == last) for i in range(keep, last + 1)]

    def _decode(self, fed: Sequence[_Fed], active: Mapping[int, _Work] | None = None) -> None:
        """Compute these tokens, in as many calls as it takes, and choose the next one where wanted."""
        for start in range(0, len(fed), self._batch_size):
            part = fed[start : start + self._batch_size]
            self._batch.fill(part)
            code = self._api.llama_decode(self._context, self._batch.raw)
            if code != 0:
                raise Fault(f"llama_decode returned {code}")
            self.steps += 1
            self.busy += len(active or ())
            wanted = [(row, one.slot) for row, one in enumerate(part) if one.wanted]
            if active is None:
                continue
            self._taken["fed"] += len(part)
            if wanted:
                chosen = self._choose(wanted)
                now = time.monotonic()
                for (_, slot), token in zip(wanted, chosen, strict=True):
                    self._note(active[slot], token, now)

    def _choose(self, wanted: Sequence[tuple[int, int]]) -> list[int]:
        logits = self._logits(len(wanted))
        if self._taken["exact"]:
            logits[:, self._ends] = -np.inf
        if not self._samplers:
            return [int(token) for token in logits.argmax(axis=1)]
        return [self._api.llama_sampler_sample(self._samplers[slot], self._context, row) for row, slot in wanted]

    def _logits(self, rows: int) -> Any:
        """What the last step gave for each wanted token, seen in llama.cpp's own memory."""
        pointer = self._api.llama_get_logits(self._context)
        key = ctypes.addressof(pointer.contents), rows
        # To make such a view takes longer than to look through it, and the memory is nearly always the same.
        if key not in self._views:
            self._views[key] = np.ctypeslib.as_array(pointer, (rows, self._size))
        return self._views[key]

    def _note(self, work: _Work, token: int, now: float) -> None:
        if not work.tokens:
            work.prefilled = now
        work.tokens.append(token)
        work.times.append(now)
        if not self._taken["exact"] and token in self._ends:
            work.stop = "eos"
        elif len(work.tokens) >= self._taken["answer_tokens"]:
            work.stop = "limit"

    def told(self, done: Sequence[_Work]) -> dict[str, Any]:
        """What became of the prompts, and how many tokens were computed by our count and by that of llama.cpp."""
        return {
            "answers": [
                {
                    "slot": work.slot, "position": work.position, "begun": work.begun, "prefilled": work.prefilled,
                    "cached": work.cached, "computed": work.computed, "tokens": work.tokens, "times": work.times,
                    "stop": work.stop, "text": self.text(work.tokens) if self._taken["texts"] else "",
                }
                for work in done
            ],
            "fed": self._taken["fed"],
            "computed": self.computed() - self._taken["computed_before"],
        }  # fmt: skip


def shared(held: Sequence[int], prompt: Sequence[int]) -> int:
    """How many tokens at the start of a prompt need not be computed again; the last one always, to have something to choose by."""
    count = 0
    for a, b in zip(held, prompt[:-1], strict=False):
        if a != b:
            break
        count += 1
    return count


class Server:
    """Answers messages."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load
        self._api: Any = None
        self._model: Model | None = None

    def answer(self, message: Mapping[str, Any], out: BinaryIO) -> None:
        """Do what a message asks and send what came of it."""
        try:
            if message["op"] == "go":
                done = self._opened().go()
                # The parent takes the time when this comes; all that is to be told follows after it.
                send(out, {"done": True})
                send(out, self._opened().told(done))
            else:
                send(out, self._plain(message))
        except Fault as fault:
            send(out, {"error": str(fault)})
        except Exception as error:  # whatever it is, the parent must hear of it
            send(out, {"error": f"{type(error).__name__}: {error}"})

    def _plain(self, message: Mapping[str, Any]) -> dict[str, Any]:
        match message["op"]:
            case "facts":
                self._api = self._api or self._load()
                return facts(self._api)
            case "open":
                self._api = self._api or self._load()
                self._model = Model(self._api, message)
                return self._model.in_force()
            case "tokenize":
                return {"tokens": self._opened().tokenize(message["text"])}
            case "chat":
                return {"tokens": self._opened().chat(message["text"])}
            case "take":
                self._opened().take(message)
                return {"taken": len(message["prompts"])}
            case "counters":
                return {"steps": self._opened().steps, "busy": self._opened().busy}
        raise Fault(f"there is no {message['op']!r}")

    def _opened(self) -> Model:
        if self._model is None:
            raise Fault("no model is open")
        return self._model


_CALLED: list[Any] = []
"""What the library calls; kept from being collected."""


def _library() -> Any:
    """llama-cpp-python, its log written to standard error at once, so that a crash loses nothing of it."""
    import llama_cpp

    level = 0

    @llama_cpp.llama_log_callback  # type: ignore[untyped-decorator, unused-ignore]
    def log(own: int, text: bytes, _: Any) -> None:
        nonlocal level
        level = level if own == _GOES_ON else own
        if level != _DEBUG:
            os.write(2, text)

    llama_cpp.llama_log_set(log, None)
    _CALLED.append(log)
    llama_cpp.llama_backend_init()
    return llama_cpp


def main(arguments: Sequence[str]) -> int:
    """Serve, or tell the facts."""
    if arguments == ["facts"]:
        print(json.dumps(facts(_library())))
        return 0
    requests, answers = arguments
    server = Server(_library)
    # In this order: the parent opens the second one first.
    with open(requests, "rb") as source, open(answers, "wb") as out, contextlib.suppress(_Ended, BrokenPipeError):  # noqa: PTH123
        send(out, {"ready": True})
        while True:
            server.answer(receive(source), out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
