"""The performance level of AMD graphics, such as `low`, which forces the lowest clocks. See `_amdgpu` for where it is set."""

from __future__ import annotations

from contextlib import AbstractContextManager

from pytest_joules.errors import UsageError
from pytest_joules.knobs import _amdgpu, _held
from pytest_joules.words import nearest

NAME = "amdgpu_performance_level"

LEVELS = ("auto", "low", "high", "profile_standard", "profile_min_sclk", "profile_min_mclk", "profile_peak")
"""Those of the kernel that say by themselves what the clocks will be; `manual` only lets other files be written."""

_LOWEST = ("low", "profile_min_sclk")


def takes() -> str:
    """What values this machine takes, in words. Raises `Unmeasured` as `held` does."""
    for card in _amdgpu.cards(NAME):
        _held.writable(NAME, card.device / _amdgpu.LEVEL)
    return ", ".join(LEVELS)


def held(value: object) -> AbstractContextManager[None]:
    """Hold every AMD card at a level inside the block.

    Raises:
        UsageError: there is no such level.
        Unmeasured: this machine has no such card, or this user may not write the file.
    """
    if value not in LEVELS:
        near = nearest(value, LEVELS) if isinstance(value, str) else ""
        raise UsageError(f"knob {NAME}: expected one of {', '.join(LEVELS)}, not {value!r}{near}")
    cards = _amdgpu.cards(NAME)
    caps = [_amdgpu.cap(card, _amdgpu.lowest_mhz(card)) for card in cards] if value in _LOWEST else []
    return _held.held(NAME, [_amdgpu.level(NAME, card, str(value)) for card in cards], caps)
