"""NVIDIA GPUs through NVML, by the module `pynvml` that nvidia-ml-py provides. Scope `gpu`: the whole card.

What the readings mean, per NVIDIA's NVML reference and the measurements of arXiv:2312.02741:

- `nvmlDeviceGetTotalEnergyConsumption` counts millijoules since the driver was loaded, from Volta on. Whether a card
  has it is found out by calling it. It restarts near zero when the driver is reloaded and never wraps in practice.
- `nvmlDeviceGetPowerUsage` is a mean over the last second on Ampere (except GA100) and newer, and close to
  instantaneous on GA100 and older. Field values 185 and 186 ask for the mean and the instantaneous reading by name.
- Most cards refresh every 100 ms; on H100 and GA100 the instantaneous reading covers only 25 ms of those.
- NVIDIA's reference states +/- 5 % of the power for Fermi and Kepler and nothing for later cards. Steady loads of later cards,
  compared with a power meter in arXiv:2312.02741, are off by some per cent too, on one card by 11 %.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_joules.errors import MeterAbsent, MeterError
from pytest_joules.records import Kind, Rail, Sample

NAME = "nvml"
COVERS = ("gpu", "vram", "vrm")
VISIBLE = "CUDA_VISIBLE_DEVICES"

CALIBRATION = 0.05
"""Half-width of the gain: what NVIDIA states for its older cards, taken for all. Of counter and power alike, which are of
one sensor."""

FIELD_TOTAL_ENERGY, FIELD_POWER_AVERAGE, FIELD_POWER_INSTANT = 83, 185, 186
"""Field identifiers of nvml.h, in mJ and mW."""

_PASCAL, _VOLTA, _TURING, _AMPERE, _ADA, _HOPPER = 4, 5, 6, 7, 8, 9
_GA100_CAPABILITY = (8, 0)

_NOT_AVAILABLE = frozenset({None, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
"""All ones is how NVML says that it has no number, or does not know an architecture."""

_VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of nvmlValue_t in the order of nvmlValueType_t."""

_DRIVER_NOT_LOADED, _LIBRARY_NOT_FOUND, _VERSION_MISMATCH, _NO_PERMISSION = 9, 12, 18, 4
_GONE = frozenset({1, _DRIVER_NOT_LOADED, 15, 16})
"""Errors after which a card does not come back by itself: uninitialised, driver unloaded, GPU lost, reset required."""

_WILL_NOT_START = {
    _LIBRARY_NOT_FOUND: (
        "there is no NVIDIA driver library (libnvidia-ml) here",
        "on a machine with an NVIDIA GPU, install its driver",
    ),
    _DRIVER_NOT_LOADED: (
        "the NVIDIA kernel driver is not loaded",
        "load it ('sudo modprobe nvidia') or restart the machine, then run 'nvidia-smi'",
    ),
    _VERSION_MISMATCH: (
        "the NVIDIA library and the loaded kernel driver are of different versions, as after a driver update",
        "restart the machine",
    ),
    _NO_PERMISSION: (
        "the NVIDIA driver refuses access",
        "inside a container, pass the GPU to it ('--gpus all')",
    ),
}


@dataclass(frozen=True, slots=True)
class Timing:
    """How a power reading relates to time; periods in seconds, `None` where nobody has measured them."""

    kind: Kind
    refresh_s: float | None
    averaging_s: float | None

    @property
    def sees_everything(self) -> bool:
        """Whether one reading takes up where the one before ended."""
        return self.refresh_s is not None and self.averaging_s is not None and self.averaging_s >= self.refresh_s


_ONE_SECOND = Timing("moving_average", 0.1, 1.0)
_QUARTER_SEEN = Timing("moving_average", 0.1, 0.025)
_TENTH = Timing("moving_average", 0.1, 0.1)
_HUNDREDTH = Timing("moving_average", 0.02, 0.01)
_UNMEASURED = Timing("instant", None, None)
# Read as it comes, but not trusted over less than several seconds, since it may be the mean of one.
_PERHAPS_ONE_SECOND = Timing("instant", None, 1.0)


def draw_timing(architecture: int | None, ga100: bool = False) -> Timing:
    """The timing of `nvmlDeviceGetPowerUsage` on an architecture (NVML_DEVICE_ARCH_*; `None` when unknown)."""
    if architecture is None:
        return _PERHAPS_ONE_SECOND
    if ga100:
        return _QUARTER_SEEN
    if architecture > _HOPPER:
        return Timing("moving_average", None, 1.0)
    if architecture >= _AMPERE:
        return _ONE_SECOND
    return {_TURING: _TENTH, _VOLTA: _HUNDREDTH, _PASCAL: _HUNDREDTH}.get(architecture, _UNMEASURED)


def instant_timing(architecture: int | None, ga100: bool = False) -> Timing:
    """The timing of field value 186 on an architecture."""
    if ga100 or architecture == _HOPPER:
        return _QUARTER_SEEN
    return _TENTH if architecture in (_AMPERE, _ADA) else _UNMEASURED


@dataclass(frozen=True, slots=True)
class Route:
    """One call that reads one quantity of a card, in thousandths of a joule or watt."""

    call: str
    timing: Timing
    ask: Callable[[Any, Any], int | float]

    @property
    def is_counter(self) -> bool:
        """Whether it gives energy rather than power."""
        return self.timing.kind == "counter"


def _field(field_id: int) -> Callable[[Any, Any], int | float]:
    def ask(nvml: Any, handle: Any) -> int | float:
        [answer] = nvml.nvmlDeviceGetFieldValues(handle, [field_id])
        if answer.nvmlReturn:
            raise nvml.NVMLError(answer.nvmlReturn)
        value: int | float = getattr(answer.value, _VALUE_MEMBERS[answer.valueType])
        return value

    return ask


def _energy_call(nvml: Any, handle: Any) -> int | float:
    value: int | float = nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    return value


def _power_call(nvml: Any, handle: Any) -> int | float:
    value: int | float = nvml.nvmlDeviceGetPowerUsage(handle)
    return value


_COUNTER = Timing("counter", 0.1, None)
ENERGY_ROUTES = (
    Route("nvmlDeviceGetTotalEnergyConsumption", _COUNTER, _energy_call),
    Route(
        f"nvmlDeviceGetFieldValues({FIELD_TOTAL_ENERGY} TOTAL_ENERGY_CONSUMPTION)", _COUNTER, _field(FIELD_TOTAL_ENERGY)
    ),
)


def power_routes(architecture: int | None, ga100: bool = False) -> tuple[Route, ...]:
    """The ways to read power, best first: what sees all of the time, and then what sees the shortest stretch of it."""
    instant = Route(
        f"nvmlDeviceGetFieldValues({FIELD_POWER_INSTANT} POWER_INSTANT)",
        instant_timing(architecture, ga100),
        _field(FIELD_POWER_INSTANT),
    )
    average = Route(
        f"nvmlDeviceGetFieldValues({FIELD_POWER_AVERAGE} POWER_AVERAGE)", _ONE_SECOND, _field(FIELD_POWER_AVERAGE)
    )
    draw = Route("nvmlDeviceGetPowerUsage", draw_timing(architecture, ga100), _power_call)
    if instant.timing.sees_everything:
        return instant, average, draw
    if ga100 or (architecture is not None and architecture < _AMPERE):
        return draw, instant
    return average, draw, instant


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU and the routes by which it is read. `pci` is empty when the driver does not say."""

    index: int
    name: str
    pci: str
    limit_w: float | None
    routes: tuple[Route, ...]
    why_no_counter: str = ""

    def rails(self) -> tuple[Rail, ...]:
        """The rail that counts, then the one it is compared with."""
        where = f"GPU {self.index}" + (f" at {self.pci}" if self.pci else "")
        return tuple(
            Rail(
                name=self.rail_name(route),
                scope="gpu",
                covers=COVERS,
                kind=route.timing.kind,
                basis="measured",
                unit="mJ" if route.is_counter else "mW",
                source=f"{route.call}, {where}",
                averaging_s=route.timing.averaging_s,
                refresh_s=route.timing.refresh_s,
                limit_w=self.limit_w,
                calibration=CALIBRATION,
                role="counted" if route is self.routes[0] else "check",
            )
            for route in self.routes
        )

    def rail_name(self, route: Route) -> str:
        """`nvml.gpu0.energy` or `nvml.gpu0.power`."""
        return f"{NAME}.gpu{self.index}.{'energy' if route.is_counter else 'power'}"

    def notes(self) -> Iterator[str]:
        """What a reader of the note must know about this card's readings."""
        if not self.routes[0].is_counter:
            yield f"GPU {self.index} ({self.name}): no energy counter ({self.why_no_counter}); its power is integrated"
            if self.routes[0].timing is _PERHAPS_ONE_SECOND:
                yield f"GPU {self.index}: the driver does not name its architecture, so the power may be a mean over 1 s"


class NvmlReader:
    """Reads every route of every card. Times are taken around each call."""

    def __init__(self, cards: Sequence[Card], interval_s: float) -> None:
        self.interval_s: float | None = interval_s
        self._session = contextlib.ExitStack()
        self._nvml = self._session.enter_context(started())
        try:
            self._cards = [(card, self._nvml.nvmlDeviceGetHandleByIndex(card.index)) for card in cards]
        except self._nvml.NVMLError as error:
            self.close()
            raise MeterError(
                f"meter {NAME}: a GPU found before no longer answers ({error})", "run 'nvidia-smi'"
            ) from error

    def read(self) -> Sequence[Sample]:
        """Joules of the counters and watts of the rest; not a number where the driver refuses for once.

        Raises:
            MeterError: a GPU is gone.
        """
        return [self._sample(card, handle, route) for card, handle in self._cards for route in card.routes]

    def close(self) -> None:
        """Let go of the driver."""
        self._session.close()

    def _sample(self, card: Card, handle: Any, route: Route) -> Sample:
        before = time.monotonic()
        try:
            value = reading(route, self._nvml, handle)
        except self._nvml.NVMLError as error:
            if error_code(error) in _GONE:
                raise MeterError(f"meter {NAME}: GPU {card.index} is gone ({error})", "run 'nvidia-smi'") from error
            value = None
        mono = (before + time.monotonic()) / 2
        return Sample(card.rail_name(route), mono, math.nan if value is None else value)


class NvmlMeter:
    """The GPUs a model runs on, each one rail; their sum is the scope `gpu`."""

    name = NAME

    def __init__(self, cards: Sequence[Card], notes: Sequence[str]) -> None:
        self._cards = tuple(cards)
        self.rails = tuple(rail for card in cards for rail in card.rails())
        self.notes = (*notes, *(note for card in cards for note in card.notes()))

    def open(self, rate_hz: float) -> NvmlReader:
        """Read `rate_hz` times a second."""
        return NvmlReader(self._cards, 1.0 / rate_hz)


def find(argument: str | None = None) -> Sequence[NvmlMeter]:
    """One meter over the GPUs in use: those named in `argument`, else in CUDA_VISIBLE_DEVICES, else all.

    Args:
        argument: NVML indices, GPU UUIDs (or their beginnings) or PCI ids, separated by commas.

    Raises:
        MeterError: NVML does not start, a GPU asked for is not there, is partitioned (MIG) or has no reading.
    """
    with started() as nvml:
        handles, (indices, notes, asked_for) = _in_use(nvml, argument)
        cards, refusals = [], []
        for index in indices:
            try:
                cards.append(_card(nvml, index, handles[index]))
            except MeterError as error:
                if asked_for:
                    raise
                refusals.append(error)
        if not cards:
            raise refusals[0] if refusals else MeterError(f"meter {NAME}: the NVIDIA driver runs but sees no GPU")
        notes += [f"not counted: {refusal}" for refusal in refusals]
        if len(cards) > 1 and not asked_for:
            notes.append(
                f"all {len(cards)} GPUs are counted, whether the model uses them or not: set {VISIBLE} to count fewer"
            )
        return [NvmlMeter(cards, notes)]


def gpus_in_use(nvml: Any) -> list[int]:
    """NVML indices of the GPUs in use: those in CUDA_VISIBLE_DEVICES, else all. Raises `MeterError` as `in_use` does."""
    return _in_use(nvml, None)[1][0]


def _in_use(nvml: Any, argument: str | None) -> tuple[list[Any], tuple[list[int], list[str], bool]]:
    """A handle, or an error, for every GPU, and what `in_use` says of them."""
    handles = [_handle(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    names = [None if isinstance(handle, Exception) else _name(nvml, handle) for handle in handles]
    return handles, in_use(names, functools.partial(_index_of, nvml, len(handles)), argument)


@contextlib.contextmanager
def started() -> Iterator[Any]:
    """The module `pynvml`, initialised, and shut down afterwards.

    Raises:
        MeterError: it is missing, does not start, or fails in a way that the block does not handle.
    """
    try:
        import pynvml as nvml
    except ImportError as error:
        raise MeterError(
            f"meter {NAME}: the module pynvml cannot be imported ({error})", "pip install nvidia-ml-py"
        ) from error
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        cause, next_step = _WILL_NOT_START.get(
            error_code(error), (f"NVML does not start ({error})", "run 'nvidia-smi'")
        )
        kind = MeterAbsent if error_code(error) == _LIBRARY_NOT_FOUND else MeterError
        raise kind(f"meter {NAME}: {cause}", next_step) from error
    try:
        yield nvml
    except nvml.NVMLError as error:
        raise MeterError(f"meter {NAME}: the driver does not answer ({error})", "run 'nvidia-smi'") from error
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def cannot_be_loaded(error: MeterError) -> bool:
    """Whether `started` failed for want of a library, so that another route to the same driver may still work."""
    cause = error.__cause__
    return isinstance(cause, ImportError) or (cause is not None and error_code(cause) == _LIBRARY_NOT_FOUND)


def error_code(error: BaseException) -> int:
    """NVML's own number of an error, 0 when it has none."""
    value = getattr(error, "value", None)
    return value if isinstance(value, int) else 0


def reading(route: Route, nvml: Any, handle: Any) -> float | None:
    """Joules or watts; `None` for what NVML gives in place of a number. No powered GPU draws or has drawn nothing."""
    raw = route.ask(nvml, handle)
    return None if raw in _NOT_AVAILABLE or raw <= 0 else raw / 1000.0


def in_use(
    names: Sequence[str | None], index_of: Callable[[str], int | None], argument: str | None
) -> tuple[list[int], list[str], bool]:
    """Which GPUs count: those of the argument, else those CUDA would see, else all.

    Args:
        names: the name of each GPU by NVML index, `None` for one that does not answer.
        index_of: the index of a GPU given by UUID (or its beginning) or PCI id.
        argument: as in `find`.

    Returns:
        Indices, notes, and whether these GPUs were asked for one by one.

    Raises:
        MeterError: the choice is empty, ambiguous, or not possible.
    """
    wanted = argument if argument is not None else os.environ.get(VISIBLE)
    if wanted is None:
        return list(range(len(names))), [], False
    numbered = {str(index): index for index in range(len(names))}
    chosen: dict[int, None] = {}
    notes = []
    for entry in (part.strip() for part in wanted.split(",")):
        if entry.upper().startswith("MIG-"):
            raise partitioned("the GPU behind a MIG slice")
        index = numbered.get(entry) if entry.isdigit() else index_of(entry)
        if index is not None:
            chosen[index] = None
        elif argument is not None:
            raise MeterError(f"there is no GPU {entry!r} among the {len(names)} of this machine", "run 'nvidia-smi -L'")
        else:
            # CUDA hides a device it cannot find and every one named after it.
            notes.append(
                f"{VISIBLE} names a GPU that is not there: it and those after it are not visible and not counted"
            )
            break
    if not chosen:
        raise MeterError(f"{VISIBLE} hides every GPU", f"unset {VISIBLE}, or name a GPU in it")
    by_index = argument is None and any(part.strip().isdigit() for part in wanted.split(","))
    unlike = len({name for name in names if name is not None}) > 1
    # CUDA numbers unlike GPUs by speed unless told otherwise, NVML by PCI id: an index then names two cards.
    if by_index and unlike and len(chosen) < len(names) and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        raise MeterError(
            f"{VISIBLE} gives indices on a machine with unlike GPUs, which CUDA and NVML number differently",
            f"set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by UUID in {VISIBLE}",
        )
    return list(chosen), notes, True


def _index_of(nvml: Any, count: int, entry: str) -> int | None:
    if entry.upper().startswith("GPU-"):
        matching = [i for i in range(count) if _uuid(nvml, i).lower().startswith(entry.lower())]
        return matching[0] if len(matching) == 1 else None
    if ":" not in entry:
        return None
    try:
        index: int = nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByPciBusId(entry))
    except nvml.NVMLError:
        return None
    return index


def _handle(nvml: Any, index: int) -> Any:
    """The handle of a GPU, or the error that stands in its place."""
    try:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        return error


def _name(nvml: Any, handle: Any) -> str:
    return _text(_optional(nvml, "nvmlDeviceGetName", handle) or "unnamed")


def _uuid(nvml: Any, index: int) -> str:
    try:
        return _text(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index)))
    except nvml.NVMLError:
        return ""


def _card(nvml: Any, index: int, handle: Any) -> Card:
    """What can be read of one GPU.

    Raises:
        MeterError: the GPU does not answer, is partitioned, or has no reading.
    """
    if isinstance(handle, Exception):
        raise MeterError(f"meter {NAME}: GPU {index} cannot be opened ({handle})", "run 'nvidia-smi'") from handle
    name = _name(nvml, handle)
    mig = _optional(nvml, "nvmlDeviceGetMigMode", handle)
    if mig is not None and mig[0]:
        raise partitioned(f"GPU {index} ({name})")
    architecture = _optional(nvml, "nvmlDeviceGetArchitecture", handle)
    known = None if architecture in _NOT_AVAILABLE else architecture
    capability = _optional(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    ga100 = capability is not None and tuple(capability) == _GA100_CAPABILITY
    counter, why_no_counter = _first_that_answers(nvml, handle, ENERGY_ROUTES)
    power, why_no_power = _first_that_answers(nvml, handle, power_routes(known, ga100))
    routes = tuple(route for route in (counter, power) if route is not None)
    if not routes:
        raise MeterError(
            f"meter {NAME}: GPU {index} ({name}) has no power reading (energy: {why_no_counter}; power: {why_no_power})",
            "leave this GPU out, or measure at the wall",
        )
    limit_mw = _optional(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle)
    pci = _optional(nvml, "nvmlDeviceGetPciInfo", handle)
    return Card(
        index=index,
        name=name,
        pci="" if pci is None else _text(pci.busId),
        limit_w=limit_mw / 1000.0 if limit_mw else None,
        routes=routes,
        why_no_counter=why_no_counter,
    )


def _first_that_answers(nvml: Any, handle: Any, routes: Sequence[Route]) -> tuple[Route | None, str]:
    """The first route that gives a number, and why the first one did not."""
    reasons: list[str] = []
    for route in routes:
        try:
            if reading(route, nvml, handle) is not None:
                return route, reasons[0] if reasons else ""
            reasons.append("no number")
        except nvml.NVMLError as error:
            reasons.append(str(error))
        except AttributeError:
            reasons.append(f"this pynvml lacks {route.call}")
    return None, reasons[0]


def _optional(nvml: Any, function: str, handle: Any) -> Any:
    """What a query gives, or `None` where the card, the driver or this pynvml does not know it."""
    try:
        return getattr(nvml, function)(handle)
    except (nvml.NVMLError, AttributeError):
        return None


def partitioned(what: str) -> MeterError:
    """Why a GPU in MIG mode has no power of its own."""
    return MeterError(
        f"{what} is partitioned (MIG): its power is the whole card's, shared with whatever runs in the other slices",
        "switch MIG off ('sudo nvidia-smi -mig 0'), or measure at the wall with nothing else on the card",
    )


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
