"""The power limit of NVIDIA GPUs: `nvmlDeviceSetPowerManagementLimit`, within `nvmlDeviceGetPowerManagementLimitConstraints`."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from typing import Any

from pytest_joules.knobs import _held, _nvml
from pytest_joules.meters.nvml import started

NAME = "nvml_power_limit_w"

WHAT = "the power limit"


def takes() -> str:
    """What values this machine takes, in words. Raises `Unmeasured` as `held` does."""
    limits = _nvml.each_gpu(NAME, WHAT, _limits)
    return _held.numbers("W", max(one[1] for one in limits), min(one[2] for one in limits))


def held(value: object) -> AbstractContextManager[None]:
    """Limit the power of every GPU in use to `value` W inside the block; each gets back the limit that it had.

    Raises:
        UsageError: the value is out of the GPU's range.
        EngineError: `uncapped` is asked for and the limit is under the default.
        Unmeasured: there is no NVIDIA GPU, its limit cannot be set, or this user is not root.
    """
    wanted = _held.limit(NAME, value, "W")
    changes, caps = [], []
    for index, low, high, default, now in _nvml.each_gpu(NAME, WHAT, _limits):
        if wanted is None:
            _held.not_capped(NAME, f"the limit of GPU {index}", now, default, "W")
            continue
        watts = _held.within(NAME, wanted, "W", low, high)
        changes.append(
            _held.Change(
                what=f"{WHAT} of GPU {index}",
                wanted=f"{watts:g} W",
                steps=(_set(index, watts),),
                back=(_set(index, now),),
                now=functools.partial(_now, index),
            )
        )
        caps.append(_held.Cap(kind="power", of=_nvml.rail(index), at_most=watts, unit="W"))
    return _nvml.held(NAME, changes, caps)


def _limits(nvml: Any, handle: Any, index: int) -> tuple[int, float, float, float, float]:
    low, high = nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
    default = nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle)
    now = nvml.nvmlDeviceGetPowerManagementLimit(handle)
    return index, low / 1000, high / 1000, default / 1000, now / 1000


def _set(index: int, watts: float) -> _held.Step:
    return _nvml.call("nvmlDeviceSetPowerManagementLimit", index, round(watts * 1000))


def _now(index: int) -> str:
    with started() as nvml:
        return f"{nvml.nvmlDeviceGetPowerManagementLimit(nvml.nvmlDeviceGetHandleByIndex(index)) / 1000:g} W"
