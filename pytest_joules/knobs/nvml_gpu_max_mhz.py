"""The highest clock of NVIDIA GPUs: `nvmlDeviceSetGpuLockedClocks`, from Volta on, and `nvmlDeviceResetGpuLockedClocks`.

The lower bound is the lowest clock that the GPU has, so that only the upper one binds. NVML has no call that tells which clocks are locked:
that the cap is there shows in the clocks alone, and afterwards the lock is taken off, also one that somebody had set before.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from pytest_joules.knobs import _held, _nvml

NAME = "nvml_gpu_max_mhz"

WHAT = "the locked clock"


def takes() -> str:
    """What values this machine takes, in words. Raises `Unmeasured` as `held` does."""
    ranges = _nvml.each_gpu(NAME, WHAT, _range)
    return _held.numbers("MHz", max(low for _, low, _ in ranges), min(high for _, _, high in ranges))


def held(value: object) -> AbstractContextManager[None]:
    """Cap the clock of every GPU in use at `value` MHz inside the block.

    Raises:
        UsageError: the value is no clock between the lowest and the highest that the GPU has.
        Unmeasured: there is no NVIDIA GPU, it cannot lock its clocks, or this user is not root.
    """
    wanted = _held.limit(NAME, value, "MHz")
    changes, caps = [], []
    for index, low, high in _nvml.each_gpu(NAME, WHAT, _range):
        if wanted is None:
            continue
        mhz = round(_held.within(NAME, wanted, "MHz", low, high))
        changes.append(
            _held.Change(
                what=f"{WHAT} of GPU {index}",
                wanted=f"{mhz} MHz",
                steps=(_nvml.call("nvmlDeviceSetGpuLockedClocks", index, low, mhz),),
                back=(_nvml.call("nvmlDeviceResetGpuLockedClocks", index),),
            )
        )
        caps.append(_held.Cap(kind="vital", of=f"{_nvml.rail(index)}.clock", at_most=mhz, unit="MHz"))
    return _nvml.held(NAME, changes, caps)


def _range(nvml: Any, handle: Any, index: int) -> tuple[int, int, int]:
    """Index, lowest and highest clock of a GPU in MHz."""
    memory = max(nvml.nvmlDeviceGetSupportedMemoryClocks(handle))
    clocks = list(nvml.nvmlDeviceGetSupportedGraphicsClocks(handle, memory))
    return index, min(clocks), max(clocks)
