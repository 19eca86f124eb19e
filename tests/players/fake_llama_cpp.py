"""Stands in for llama_cpp, as far as the child of the in-process engine uses it. The token after N is N + 1, of 100 there are.

What is to happen is JSON in $JOULES_FAKE_LLAMA, all keys optional:

    codes     what llama_decode returns, by the number of the call; the first two are made when the model is loaded
    signal    by which number the process dies in which call: [call, number]
    hang      call that never returns
    gpu       true: built for a GPU
    log       lines that loading writes
    slots     how many sequences it really has
    trained   context that the model was made for
    lost      tokens that its counters do not count
    refuses   "model" or "context": that cannot be made
    lacks     true: the context has no kv_unified
    whole     true: a part of a sequence cannot be given up
"""

import ctypes
import json
import os
import time
from types import SimpleNamespace
from typing import Any

__version__ = "0.0.test"

VOCABULARY, END = 100, 99
SCRIPT: dict[str, Any] = json.loads(os.environ.get("JOULES_FAKE_LLAMA", "{}"))

llama_log_callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.POINTER(ctypes.c_float)),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]  # fmt: skip


class _State:
    """Sequences as they are held, what was computed, and the calls so far."""

    def __init__(self) -> None:
        self.log: Any = None
        self.calls = self.counted = 0
        self.chains: list[Any] = []
        self.kept: list[Any] = []
        self.sequences: dict[int, list[int]] = {}
        self.rows: dict[int, int] = {}
        self.params: Any = None


state = _State()


def llama_log_set(log: Any, _: Any) -> None:
    state.log = log


def llama_backend_init() -> None: ...


def llama_supports_gpu_offload() -> bool:
    return bool(SCRIPT.get("gpu"))


def llama_print_system_info() -> bytes:
    return b"CPU : MADE_UP = 1 | "


def llama_model_default_params() -> Any:
    return SimpleNamespace(n_gpu_layers=0)


def llama_context_default_params() -> Any:
    names = "n_ctx n_seq_max n_batch n_ubatch n_threads n_threads_batch flash_attn_type type_k type_v swa_full no_perf"
    unified = [] if SCRIPT.get("lacks") else ["kv_unified"]
    return SimpleNamespace(**dict.fromkeys([*names.split(), *unified], 0))


def llama_model_load_from_file(path: bytes, params: Any) -> Any:
    for line in SCRIPT.get("log", []):
        state.log(2, f"{line}\n".encode(), None)
    state.log(1, b"of no interest, ", None)
    state.log(5, b"nor is this\n", None)
    return None if SCRIPT.get("refuses") == "model" else 1


def llama_init_from_model(model: Any, params: Any) -> Any:
    state.params = params
    return None if SCRIPT.get("refuses") == "context" else 1


def llama_model_get_vocab(model: Any) -> Any:
    return 1


def llama_vocab_n_tokens(vocab: Any) -> int:
    return VOCABULARY


def llama_vocab_is_eog(vocab: Any, token: int) -> bool:
    return token == END


def llama_get_memory(context: Any) -> Any:
    return 1


def llama_n_batch(context: Any) -> int:
    return state.params.n_batch


def llama_n_ubatch(context: Any) -> int:
    return state.params.n_ubatch


def llama_n_seq_max(context: Any) -> int:
    return SCRIPT.get("slots", state.params.n_seq_max)


def llama_n_ctx_seq(context: Any) -> int:
    return state.params.n_ctx // state.params.n_seq_max


def llama_model_n_ctx_train(model: Any) -> int:
    return SCRIPT.get("trained", 1 << 20)


def llama_synchronize(context: Any) -> None: ...


def llama_memory_clear(memory: Any, data: bool) -> None:
    state.sequences.clear()


def llama_memory_seq_rm(memory: Any, slot: int, start: int, end: int) -> bool:
    if start > 0 and SCRIPT.get("whole"):
        return False
    del state.sequences.setdefault(slot, [])[max(0, start) :]
    return True


def llama_perf_context(context: Any) -> Any:
    return SimpleNamespace(n_p_eval=state.counted - SCRIPT.get("lost", 0) * (state.calls > 2), n_eval=1)


def llama_batch_init(size: int, embd: int, sequences: int) -> Batch:
    ids = [(ctypes.c_int32 * sequences)() for _ in range(size)]
    pointers = (ctypes.POINTER(ctypes.c_int32) * size)(*(ctypes.cast(i, ctypes.POINTER(ctypes.c_int32)) for i in ids))
    parts = [(kind * size)() for kind in (ctypes.c_int32, ctypes.c_int32, ctypes.c_int32, ctypes.c_int8)]
    state.kept += [ids, pointers, parts]
    token, pos, count, logits = (ctypes.cast(part, ctypes.POINTER(part._type_)) for part in parts)
    return Batch(
        0, token, None, pos, count, ctypes.cast(pointers, ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))), logits
    )


def llama_decode(context: Any, batch: Batch) -> int:
    state.calls += 1
    if state.calls == SCRIPT.get("hang"):
        time.sleep(3600)
    if SCRIPT.get("signal", [0])[0] == state.calls:
        os.kill(os.getpid(), SCRIPT["signal"][1])
    if code := SCRIPT.get("codes", {}).get(str(state.calls), 0):
        return int(code)
    if batch.n_tokens > state.params.n_batch:
        os.abort()
    state.rows = {}
    for i in range(batch.n_tokens):
        held = state.sequences.setdefault(batch.seq_id[i][0], [])
        if batch.pos[i] != len(held) or batch.n_seq_id[i] != 1:
            return -1
        if len(held) >= llama_n_ctx_seq(context):
            return 1
        held.append(batch.token[i])
        if batch.logits[i]:
            state.rows[i] = batch.token[i]
    state.counted += batch.n_tokens
    return 0


def llama_get_logits(context: Any) -> Any:
    rows = list(state.rows.values())
    state.kept = [*state.kept[:3], (ctypes.c_float * (VOCABULARY * len(rows)))()]
    for row, token in enumerate(rows):
        state.kept[-1][row * VOCABULARY + (token + 1) % VOCABULARY] = 2.0
        state.kept[-1][row * VOCABULARY + (token + 2) % VOCABULARY] = 1.0
    return ctypes.cast(state.kept[-1], ctypes.POINTER(ctypes.c_float))


def llama_tokenize(vocab: Any, text: bytes, size: int, ids: Any, room: int, special: bool, parse: bool) -> int:
    words = text.split()
    for i, word in enumerate(words):
        ids[i] = 1 + sum(word) % 90
    return -1 if b"untellable" in words else len(words)


def llama_token_to_piece(vocab: Any, token: int, buffer: Any, size: int, strip: int, special: bool) -> int:
    buffer.value = f" {token}".encode()
    return 0 if token == END else len(buffer.value)


def llama_sampler_chain_default_params() -> Any:
    return None


def llama_sampler_chain_init(params: Any) -> Any:
    state.chains.append([])
    return state.chains[-1]


def llama_sampler_chain_add(chain: Any, part: Any) -> None:
    chain.append(part)


def llama_sampler_init_top_k(k: int) -> Any:
    return ("top_k", k)


def llama_sampler_init_top_p(p: float, least: int) -> Any:
    return ("top_p", p)


def llama_sampler_init_min_p(p: float, least: int) -> Any:
    return ("min_p", p)


def llama_sampler_init_temp(t: float) -> Any:
    return ("temp", t)


def llama_sampler_init_dist(seed: int) -> Any:
    return ("dist", seed)


def llama_sampler_sample(chain: Any, context: Any, row: int) -> int:
    return (state.rows[row] + 2) % VOCABULARY


def llama_sampler_free(chain: Any) -> None:
    state.chains.remove(chain)
