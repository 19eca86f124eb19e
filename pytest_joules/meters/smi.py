"""NVIDIA GPUs through the program `nvidia-smi`, where its library cannot be loaded from Python. Scope `gpu`.

The second-best route: it has no energy counter and costs a process per reading. `power.draw` is what
`nvmlDeviceGetPowerUsage` gives, so on most cards a mean over the last second.
"""

from __future__ import annotations

import csv
import functools
import math
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence

from pytest_joules import tracefile
from pytest_joules.errors import MeterAbsent, MeterError
from pytest_joules.meters import nvml
from pytest_joules.meters._helper import environment
from pytest_joules.records import Rail, Sample
from pytest_joules.words import one_line

NAME = "smi"
PROGRAM = "nvidia-smi"

_POWER = ("index", "power.draw")
_ALL = ("index", "power.draw", "name", "uuid", "pci.bus_id", "mig.mode.current", "enforced.power.limit")
_WITHOUT_MIG = tuple(column for column in _ALL if column != "mig.mode.current")

_LOOK_S, _READ_S = 10.0, 2.0
_FASTEST_S = 0.5
"""Every reading starts a process that opens the driver: more often than this it would measure itself."""

Rows = Mapping[int, Mapping[str, str]]
"""Fields by column, by GPU index."""


def watts(text: str) -> float | None:
    """A power as nvidia-smi prints it, in watts; `None` for a word, a decimal comma, a minus or an unknown unit."""
    try:
        return tracefile.watts(text)
    except ValueError:
        return None


def rows(text: str, columns: Sequence[str]) -> Rows:
    """The reply to `--query-gpu=COLUMNS --format=csv,noheader`, one row per GPU.

    A row with more or fewer fields than were asked for is left out: a decimal comma has split a number, or it is a message.

    Raises:
        MeterError: there is no row at all; says what was printed instead.
    """
    found = {}
    for fields in csv.reader(text.splitlines(), skipinitialspace=True):
        row = dict(zip(columns, (field.strip() for field in fields), strict=False))
        if len(fields) == len(columns) and row["index"].isdigit():
            found[int(row["index"])] = row
    if not found:
        raise MeterError(f"meter {NAME}: {PROGRAM} says: {one_line(text) or 'nothing'}", f"run '{PROGRAM}'")
    return found


class SmiReader:
    """Asks for the power of every GPU at once. A read takes at most `_READ_S`, so there is nothing to break off."""

    def __init__(self, gpus: Sequence[int], interval_s: float) -> None:
        self.interval_s: float | None = interval_s
        self._gpus = tuple(gpus)

    def read(self) -> Sequence[Sample]:
        """Watts of each GPU, dated at the middle of the call; not a number where it gives a word.

        Raises:
            MeterError: no GPU is listed any more.
        """
        before = time.monotonic()
        try:
            listed = rows(_query(_POWER, _READ_S), _POWER)
        except subprocess.TimeoutExpired:
            return []
        mono = (before + time.monotonic()) / 2
        values = {gpu: watts(listed[gpu]["power.draw"]) if gpu in listed else None for gpu in self._gpus}
        return [Sample(_rail_name(gpu), mono, math.nan if value is None else value) for gpu, value in values.items()]

    def close(self) -> None:
        """Nothing is held between reads."""


class SmiMeter:
    """The GPUs a model runs on, each one rail; their sum is the scope `gpu`."""

    name = NAME

    def __init__(self, gpus: Rows, notes: Sequence[str]) -> None:
        timing = nvml.draw_timing(None)
        self._gpus = tuple(gpus)
        self.notes = (f"read by {PROGRAM}, without an energy counter: the power may be a mean over 1 s", *notes)
        self.rails = tuple(
            Rail(
                name=_rail_name(gpu),
                scope="gpu",
                covers=nvml.COVERS,
                kind=timing.kind,
                basis="measured",
                unit="W",
                source=f"{PROGRAM} --query-gpu=power.draw, GPU {gpu} at {row['pci.bus_id']}",
                averaging_s=timing.averaging_s,
                limit_w=watts(row["enforced.power.limit"]),
                calibration=nvml.CALIBRATION,
            )
            for gpu, row in gpus.items()
        )

    def open(self, rate_hz: float) -> SmiReader:
        """Read `rate_hz` times a second, or every half second at the most."""
        return SmiReader(self._gpus, max(1.0 / rate_hz, _FASTEST_S))


def find(argument: str | None = None) -> Sequence[SmiMeter]:
    """One meter over the GPUs in use that have a power reading; chosen as by the meter `nvml`.

    Raises:
        MeterError: NVML can be loaded, nvidia-smi is missing or fails, or no GPU in use has a power of its own.
    """
    if shutil.which(PROGRAM) is None:
        raise MeterAbsent(
            f"meter {NAME}: there is no {PROGRAM} here", "on a machine with an NVIDIA GPU, install its driver"
        )
    if _nvml_loads():
        raise MeterAbsent(
            f"meter {NAME}: only for where NVML cannot be loaded, and here it can", "use --joules-meter nvml"
        )
    gpus = _look()
    names = [gpus[index]["name"] if index in gpus else None for index in range(max(gpus) + 1)]
    indices, notes, asked_for = nvml.in_use(names, functools.partial(_index_of, gpus), argument)
    good = {}
    for index in indices:
        refusal = _refusal(index, gpus.get(index))
        if refusal is None:
            good[index] = gpus[index]
        elif asked_for or len(indices) == 1:
            raise refusal
        else:
            notes.append(f"not counted: {refusal}")
    if not good:
        raise MeterError(f"meter {NAME}: none of {len(indices)} GPUs has a power of its own ({'; '.join(notes)})")
    return [SmiMeter(good, notes)]


def _look() -> Rows:
    """Everything about every GPU, without the partitioning on drivers that do not know it."""
    try:
        text = _query(_ALL, _LOOK_S)
        if "not a valid field" in text:
            return rows(_query(_WITHOUT_MIG, _LOOK_S), _WITHOUT_MIG)
        return rows(text, _ALL)
    except subprocess.TimeoutExpired as error:
        raise MeterError(
            f"meter {NAME}: {PROGRAM} does not answer within {_LOOK_S:.0f} s", f"run '{PROGRAM}'"
        ) from error


def _refusal(gpu: int, row: Mapping[str, str] | None) -> MeterError | None:
    if row is None:
        return MeterError(f"meter {NAME}: the row of GPU {gpu} cannot be read", f"run '{PROGRAM}'")
    if row.get("mig.mode.current") == "Enabled":
        return nvml.partitioned(f"GPU {gpu} ({row['name']})")
    if watts(row["power.draw"]) is None:
        shown = row["power.draw"] or "nothing"
        return MeterError(f"meter {NAME}: GPU {gpu} ({row['name']}) has no power reading ({PROGRAM} prints {shown})")
    return None


def _index_of(gpus: Rows, entry: str) -> int | None:
    wanted = entry.lower()
    if wanted.startswith("gpu-"):
        matching = [gpu for gpu, row in gpus.items() if row["uuid"].lower().startswith(wanted)]
    else:
        matching = [gpu for gpu, row in gpus.items() if ":" in wanted and row["pci.bus_id"].lower().endswith(wanted)]
    return matching[0] if len(matching) == 1 else None


def _nvml_loads() -> bool:
    try:
        with nvml.started():
            return True
    except MeterError as error:
        return not nvml.cannot_be_loaded(error)


def _query(columns: Sequence[str], timeout_s: float) -> str:
    """What nvidia-smi prints; its complaints, which go to stdout as well, are left to `rows`."""
    try:
        done = subprocess.run(
            [PROGRAM, f"--query-gpu={','.join(columns)}", "--format=csv,noheader"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment(),
            timeout=timeout_s,
            check=False,
        )
    except OSError as error:
        raise MeterError(f"meter {NAME}: {PROGRAM} cannot be run ({error.strerror})") from error
    return (done.stdout or done.stderr).decode("utf-8", "replace")


def _rail_name(gpu: int) -> str:
    return f"{NAME}.gpu{gpu}.power"
