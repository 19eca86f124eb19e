"""What llama.cpp's log says of layers and flash attention, held against what was asked: the same lines in every program that has the library."""

from __future__ import annotations

import re
from typing import Any

from pytest_joules import machine
from pytest_joules.errors import EngineError
from pytest_joules.suite import Server

_OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")
_NO_GPU = re.compile(r"no usable GPU found|not compiled with GPU offload support")
_FLASH = re.compile(
    r"(?:Flash Attention (?:[\w ,]*set to )?|flash_attn\s*= |flash_attn\b.*forcing )(enabled|disabled|off|[01]\b)"
)
"""What was given or came of `auto`; a given `auto` itself (also told as -1) is passed over."""
_FLASH_WORDS = {"0": "disabled", "1": "enabled", "off": "disabled"}


def in_force(name: str, asked: Server, log: str, *, has_gpu: bool = True) -> tuple[dict[str, Any], list[str]]:
    """Layers on the GPU and flash attention, with a remark where none is used; and what is otherwise than whoever has a GPU expects.

    Args:
        name: of the engine, for the messages.
        log: of a program that has loaded its models, the draft model last.
        has_gpu: False where the engine tells by other means that it can use none.

    Raises:
        EngineError: they are not as asked.
    """
    facts: dict[str, Any] = {}
    deviations: list[str] = []
    without = not has_gpu or bool(_NO_GPU.search(log))
    loaded: list[tuple[int, int | None]] = [(int(n), int(of)) for n, of in _OFFLOADED.findall(log)]
    if without and not loaded:
        loaded = [(0, None)]
    if loaded:
        offloaded, layers = loaded[0]
        facts = {"offloaded_layers": offloaded} | ({} if layers is None else {"layers": layers})
    elif asked.gpu_layers != 0:
        deviations.append(f"{name} does not say how many layers are on the GPU, which could not be checked")
    if without and asked.gpu_layers == "all":
        # On such a machine all layers that can be on a GPU are: none. The figures are of the CPU, which must be said.
        facts["remark"] = "no GPU: all layers ran on the CPU"
        if gpus := machine.describe().gpus:
            deviations.append(f"{name} cannot use a GPU as it was built: {gpus[0]} was not used")
    else:
        for number, (offloaded, layers) in enumerate(loaded):
            _check_layers(f"{name} (draft model)" if number else name, asked.gpu_layers, offloaded, layers)
    if flash := [_FLASH_WORDS.get(word, word) for word in _FLASH.findall(log)]:
        facts["flash_attention"] = flash[0]
    unwanted = {"on": "disabled", "off": "enabled"}.get(asked.flash_attention)
    if unwanted in flash:
        raise EngineError(
            f"{name} runs with flash attention {unwanted}, {asked.flash_attention} was asked for; set flash_attention: auto, or use "
            "another build"
        )
    return facts, deviations


def _check_layers(name: str, asked: int | str, offloaded: int, layers: int | None) -> None:
    wanted = layers if isinstance(asked, str) else min(asked, layers or asked)
    if wanted is None or offloaded == wanted:
        return
    step = "free its memory, use a build for this GPU" if offloaded < wanted else "use another build"
    raise EngineError(
        f"{name} put {offloaded} of {layers or '?'} layers on the GPU, {asked} were asked for; {step}, or set gpu_layers"
    )


def layers_of(server: Server) -> int:
    """Layers on the GPU as llama.cpp is told: 999 is more than any model has."""
    return 999 if server.gpu_layers == "all" else server.gpu_layers
