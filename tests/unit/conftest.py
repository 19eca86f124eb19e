"""What the unit tests share: made-up tables, windows and runs."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psutil
import pytest

from pytest_joules.prediction import Prediction
from pytest_joules.records import MeterRecord, Rail, Run, Window
from pytest_joules.sweep import About, Cell, Sweep

BATCHES = (1, 2, 4, 8)
TOKENS_PER_SLOT = 128


def window_figures(mj: float, per_s: float, slots: int) -> dict[str, float]:
    tokens = float(TOKENS_PER_SLOT * slots)
    return {
        "energy_per_token_mj": mj,
        "tokens_per_s": per_s,
        "tokens_per_s_per_request": per_s / slots,
        "power_w": mj * per_s / 1000,
        "energy_j": mj * tokens / 1000,
        "window_s": tokens / per_s,
        "tokens": tokens,
        "prompt_tokens": 20.0 * slots,
    }


@pytest.fixture
def table() -> Callable[..., Sweep]:
    """A table over `parallel` from the energy per token of each pass; `speed` likewise, else 50 tokens/s for each slot."""

    def build(
        energy: Mapping[int, Sequence[float]],
        speed: Mapping[int, Sequence[float]] | None = None,
        void: Mapping[int, str] | None = None,
        run_id: str = "20261025T101530Z-3fa9c1",
        **cell: Any,
    ) -> Sweep:
        cells = []
        for batch, passes in energy.items():
            speeds = speed[batch] if speed else [50.0 * batch] * len(passes)
            figures = tuple(window_figures(mj, per_s, batch) for mj, per_s in zip(passes, speeds, strict=True))
            cells.append(Cell(condition={"parallel": batch}, passes=figures, **cell))
        cells += [Cell(condition={"parallel": batch}, void=reason) for batch, reason in (void or {}).items()]
        return Sweep(("parallel",), cells, About(suite="made-up", run_id=run_id, basis="measured", scope="chip"))

    return build


@pytest.fixture
def predicts() -> Callable[..., Prediction]:
    """A prediction from a function of tables."""

    def build(function: Callable[..., object], name: str = "test_made_up.py::test_claim", **keys: Any) -> Prediction:
        return Prediction(name, function, "made-up", **keys)

    return build


@pytest.fixture
def make_window() -> Callable[..., Window]:
    """A window of one condition: 10 s long from the start, at 20 W, 128 tokens for each slot."""

    def build(parallel: int = 1, pass_index: int = 0, **changes: Any) -> Window:
        usual: dict[str, Any] = {
            "condition": {"parallel": parallel},
            "pass_index": pass_index,
            "sequence": pass_index,
            "role": "measured",
            "outcome": "measured",
            "started_utc": "2026-10-25T10:15:30.000Z",
            "start_mono": 100.0,
            "end_mono": 110.0,
            "tokens": TOKENS_PER_SLOT * parallel,
            "prompt_tokens": 20 * parallel,
            "slots": parallel,
            "rounds": 1,
            "energy_j": 200.0,
        }
        return Window(**(usual | changes))

    return build


@pytest.fixture
def make_run() -> Callable[..., Run]:
    """A run over `parallel` with a counter and a power rail."""

    def build(*windows: Window, **changes: Any) -> Run:
        rails = (
            Rail(name="chip.energy", scope="chip", covers=("cpu",), kind="counter", basis="measured", unit="J", source="made up"),
            Rail(name="chip.power", scope="chip", covers=("cpu",), kind="instant", basis="measured", unit="W", source="made up",
                 role="check"),
        )  # fmt: skip
        conditions = tuple(
            {"parallel": n} for n in dict.fromkeys(w.condition["parallel"] for w in windows if w.condition)
        )
        usual: dict[str, Any] = {
            "run_id": "20261025T101530Z-3fa9c1",
            "started_utc": "2026-10-25T10:15:30.000Z",
            "finished_utc": "2026-10-25T10:25:30.000Z",
            "complete": True,
            "suite": {"question": "Where does it stop falling?", "model": "made-up-7b"},
            "suite_name": "made-up",
            "axes": ("parallel",),
            "conditions": conditions,
            "passes": max((w.pass_index for w in windows), default=0) + 1,
            "order": "reversed",
            "machine": {"chip": "Example M5", "memory_gb": 24, "os": "ExampleOS 27"},
            "machine_slug": "example-m5-24gb",
            "models": ({"name": "made-up-7b", "format": "q4_0", "sha256": "0" * 64},),
            "engine": {"llama-server": {"name": "llama-server", "build": 11669, "commit": "c1d0e7a00"}},
            "meter": MeterRecord(
                name="chip",
                basis="measured",
                scope="chip",
                covers=("cpu",),
                rate_hz=5.0,
                rails=rails,
                chosen_because="named",
            ),
            "windows": windows,
        }
        return Run(**(usual | changes))

    return build


def _there(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def gone() -> Callable[..., bool]:
    """Whether all these processes end within 15 s."""

    def wait(*pids: int) -> bool:
        deadline = time.monotonic() + 15.0
        while any(map(_there, pids)):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    return wait
