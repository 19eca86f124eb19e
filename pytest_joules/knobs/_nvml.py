"""What the knobs of NVIDIA GPUs share. Calls are those of nvml.h, of the chapter Device Commands: "Each of these requires root/admin access".

The driver forgets what was set when the last program lets go of it, unless persistence mode is on; so the driver is kept open for as
long as a knob is held.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pytest_joules.errors import MeterError, Unmeasured
from pytest_joules.knobs import _held
from pytest_joules.meters.nvml import gpus_in_use, started


def each_gpu(knob: str, what: str, ask: Callable[[Any, Any, int], Any]) -> list[Any]:
    """What a question gives for every GPU in use: those in CUDA_VISIBLE_DEVICES, else all.

    Args:
        what: what is asked about, for messages.
        ask: of the module, the handle and the index.

    Raises:
        Unmeasured: there is no NVIDIA GPU here, it does not have the setting, or this user is not root.
    """
    found: list[Any] = []
    try:
        with started() as nvml:
            for index in gpus_in_use(nvml):
                try:
                    found.append(ask(nvml, nvml.nvmlDeviceGetHandleByIndex(index), index))
                except nvml.NVMLError as error:
                    raise _held.refused_by_nvml(knob, f"{what} of GPU {index}", error) from None
    except MeterError as error:
        raise Unmeasured(f"knob {knob}: {str(error).removeprefix('meter nvml: ')}") from None
    if not found:
        raise Unmeasured(f"knob {knob}: the NVIDIA driver sees no GPU")
    if os.geteuid() != 0:
        raise Unmeasured(f"knob {knob}: {what} can be set by root only; {_held.ROOT}")
    return found


def rail(index: int) -> str:
    """How the names of a GPU's rails and vitals begin."""
    return f"nvml.gpu{index}"


def call(name: str, gpu: int, *arguments: int) -> _held.Step:
    """A step that calls NVML."""
    return {"nvml": name, "gpu": gpu, "arguments": list(arguments)}


@contextlib.contextmanager
def held(knob: str, changes: Sequence[_held.Change], caps: Sequence[_held.Cap]) -> Iterator[None]:
    """As `_held.held`, with the driver open."""
    with started(), _held.held(knob, changes, caps):
        yield
