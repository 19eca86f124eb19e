"""Apple silicon through `macmon pipe`, which reads IOReport's "Energy Model" and the SMC without root.

From the sources of macmon 0.8.2 (vladkens/macmon): `cpu_power`, `gpu_power`, `ane_power`, `ram_power` and `gpu_ram_power` are
watts over the interval since the line before. `all_power` is the CPU, GPU and ANE alone: memory is not in it, so it is
not used. `sys_power` is the SMC's PSTR lifted to `all_power` where it is lower, and 0.0 where PSTR cannot be read, so a
value equal to `all_power` to the last digit is no reading. The length of an interval is not printed and an interval under
100 ms is quietly served at 100 ms: the time between arrivals is what counts.

macOS 27 moves the CPU, ANE and DRAM counters only about every two seconds, so short intervals show 0 W and then
double; on some machines the CPU and DRAM counters stand still altogether.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_joules.errors import MeterAbsent, MeterError
from pytest_joules.meters import Meter
from pytest_joules.meters._helper import Helper, ask
from pytest_joules.meters._sysfs import no_argument
from pytest_joules.records import Rail, Sample, Scope

NAME = "macmon"
PROGRAM_VARIABLE = "JOULES_MACMON"

SHORTEST_INTERVAL_MS = 100
"""macmon serves any shorter interval at this one."""

FIRST_LINE_S = 4.0
"""How long to wait for the first line before the program is taken for stuck, for example at a password prompt."""

PROBE_S = 2.5
"""How long to look for a first sign of a channel that reads 0.0 at the start: longer than one batch of macOS 27."""

SYSTEM_LINES = 5
"""How many lines must all lack a system reading before that rail is given up."""

BUSY_RATIO = 0.02
"""Cores active for this share of the time draw milliwatts, which every counter resolves: 0.0 W means a dead channel."""

DEAD_AFTER_S = 5.0
"""A busy channel at 0.0 W for longer than this, more than two batches of macOS 27, is dead."""

VERSION_S = 1.0
BATCHING_MACOS = 27
BATCH_S = 2.0

Reading = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Channel:
    """One field of a line, and the activity that must not go with 0.0 W."""

    rail: str
    field: str
    scope: Scope
    covers: tuple[str, ...]
    activity: Callable[[Reading], float | None] | None = None


def _first(reading: Reading, *names: str) -> float | None:
    return next((value for name in names if (value := number(reading, name)) is not None), None)


def _legacy(reading: Reading, *names: str) -> float | None:
    """The highest ratio among fields that hold `[MHz, ratio]`, as versions before 0.8 print them."""
    pairs = [reading.get(name) for name in names]
    ratios = [
        pair[1] for pair in pairs if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[1], int | float)
    ]
    return max(ratios, default=None)


def _cpu_activity(reading: Reading) -> float | None:
    combined = _first(reading, "cpu_active_ratio", "cpu_usage_ratio", "cpu_scaled_ratio", "cpu_usage_pct")
    return combined if combined is not None else _legacy(reading, "ecpu_usage", "pcpu_usage")


def _gpu_activity(reading: Reading) -> float | None:
    combined = _first(reading, "gpu_active_ratio", "gpu_usage_ratio", "gpu_scaled_ratio")
    return combined if combined is not None else _legacy(reading, "gpu_usage")


def _any_activity(reading: Reading) -> float | None:
    known = [ratio for ratio in (_cpu_activity(reading), _gpu_activity(reading)) if ratio is not None]
    return max(known, default=None)


CPU, GPU, DRAM, SYSTEM = "macmon.cpu", "macmon.gpu", "macmon.dram", "macmon.system"
_CHANNELS = (
    _Channel(CPU, "cpu_power", "chip", ("cpu",), _cpu_activity),
    _Channel(GPU, "gpu_power", "chip", ("gpu",), _gpu_activity),
    _Channel("macmon.ane", "ane_power", "chip", ("ane",)),
    _Channel(DRAM, "ram_power", "chip", ("dram",), _any_activity),
    _Channel("macmon.gpu_ram", "gpu_ram_power", "chip", ("gpu_sram",)),
    _Channel(SYSTEM, "sys_power", "board", ("mac",)),
)


def _no_json(constant: str) -> None:
    raise ValueError(constant)


def parse(line: bytes) -> Reading | None:
    """One line as an object, or `None` when it is anything else; JSON has no NaN and no Infinity."""
    try:
        found = json.loads(line, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def number(reading: Reading, name: str) -> float | None:
    """A field as a finite number that is not negative, or `None`."""
    value = reading.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        return None
    return float(value)


def system_w(reading: Reading) -> float | None:
    """The whole machine's watts, or `None` where `sys_power` is missing, 0.0 or only `all_power` again."""
    value = number(reading, "sys_power")
    return None if value in (None, 0.0, number(reading, "all_power")) else value


@dataclass(slots=True)
class Decoder:
    """Turns lines with their arrival times into samples. Knows what it must of the lines before.

    A line that is no object, and a field that is no number, become samples whose value is not a number. A zero of a busy
    channel is not given out: either the next batch makes up for it, and then becomes the mean since the last sample, or
    the channel is dead after `DEAD_AFTER_S`, and no window gets an energy without it.

    Attributes:
        rails: the names of the rails to give.
        broken: how many lines were no objects.
        faults: what is wrong, by rail, for rails that give no samples.
    """

    rails: frozenset[str]
    broken: int = 0
    faults: dict[str, str] = field(default_factory=dict)
    _line_mono: float | None = None
    _given_mono: dict[str, float] = field(default_factory=dict)
    _zero_since_mono: dict[str, float] = field(default_factory=dict)

    @property
    def doubtful(self) -> bool:
        """Whether a busy channel reads 0.0 W and may turn out to be dead."""
        return bool(self._zero_since_mono)

    def feed(self, text: bytes, mono: float) -> list[Sample]:
        """The samples of one line, which arrived at `mono`."""
        if not text.strip():
            return []
        reading = parse(text)
        if reading is None:
            self.broken += 1
            reading = {}
        samples: list[Sample] = []
        for channel in _CHANNELS:
            if channel.rail not in self.rails:
                continue
            value = system_w(reading) if channel.rail == SYSTEM else number(reading, channel.field)
            sample = Sample(channel.rail, mono, math.nan if value is None else value)
            samples += self._admit(channel, sample, channel.activity(reading)) if channel.activity else [sample]
        self._line_mono = mono
        return samples

    def _admit(self, channel: _Channel, sample: Sample, activity: float | None) -> list[Sample]:
        """What a reading of a channel that is never at rest on busy cores is worth."""
        name, mono = channel.rail, sample.mono
        # Without any word on activity a zero is doubtful too: macmon itself runs on a core.
        if sample.value == 0 and (self._doubts(name) or activity is None or activity >= BUSY_RATIO):
            self._doubt(channel, mono, activity)
            return []
        if sample.value > 0:
            self.faults.pop(name, None)
            if self._zero_since_mono.pop(name, None) is not None:
                sample = self._batch(sample)
        if not math.isnan(sample.value):
            self._given_mono[name] = mono
        return [sample]

    def _doubts(self, name: str) -> bool:
        """Whether a rail's zeros are not taken for power."""
        return name in self._zero_since_mono or name in self.faults

    def _doubt(self, channel: _Channel, mono: float, activity: float | None) -> None:
        name = channel.rail
        if name in self.faults:
            return
        if mono - self._zero_since_mono.setdefault(name, mono) >= DEAD_AFTER_S:
            del self._zero_since_mono[name]
            share = "unknown activity" if activity is None else f"activity {activity:.0%}"
            self.faults[name] = (
                f"{channel.field} has read 0.0 W for {DEAD_AFTER_S:.0f} s at {share}: "
                f"this channel is dead on {_os_version()}"
            )

    def _batch(self, sample: Sample) -> Sample:
        """The mean since the last sample given, of a batch that came after zeros."""
        since_mono, line_mono = self._given_mono.get(sample.rail), self._line_mono
        if since_mono is None or line_mono is None:
            # When this batch began is not known.
            return Sample(sample.rail, sample.mono, math.nan)
        share = (sample.mono - line_mono) / (sample.mono - since_mono)
        return Sample(sample.rail, sample.mono, sample.value * share)


Listener = Callable[[bytes, float], None]


class MacmonReader:
    """A running `macmon pipe`."""

    def __init__(self, helper: Helper, rails: Sequence[Rail], listeners: Sequence[Listener] = ()) -> None:
        self.interval_s: float | None = None
        self._helper, self._listeners = helper, listeners
        self._decoder = Decoder(frozenset(rail.name for rail in rails))

    @property
    def faults(self) -> Mapping[str, str]:
        """Why rails give no samples although the program runs, by rail."""
        return self._decoder.faults

    def read(self) -> Sequence[Sample]:
        """Wait for the next line. Raises `MeterError` when the program has ended."""
        lines = self._helper.lines()
        for listener in self._listeners:
            for line in lines:
                listener(line.text, line.mono)
        return [sample for line in lines for sample in self._decoder.feed(line.text, line.mono)]

    def close(self) -> None:
        """End the program."""
        self._helper.close()


class MacmonMeter:
    """The power of an Apple chip by its parts, and of the machine where the SMC tells.

    Attributes:
        listeners: called with every line and its arrival time: there is more in it than power, and one macmon is enough.
    """

    def __init__(self, program: Sequence[str], rails: Sequence[Rail], notes: Sequence[str]) -> None:
        self.name = NAME
        self.rails = tuple(rails)
        self.notes = tuple(notes)
        self.listeners: list[Listener] = []
        self._program = tuple(program)

    def open(self, rate_hz: float) -> MacmonReader:
        """Start the program at `rate_hz` lines a second, ten at most."""
        helper = _start(self._program, max(SHORTEST_INTERVAL_MS, round(1000 / rate_hz)))
        return MacmonReader(helper, self.rails, self.listeners)


def find(argument: str | None = None) -> Sequence[Meter]:
    """The meter of this machine, after a look at the first lines that the program prints.

    Raises:
        MeterError: there is no such program, it ends or prints nothing, or nothing that it prints is a reading.
    """
    no_argument(NAME, argument)
    program = _program()
    try:
        with contextlib.closing(_start(program, SHORTEST_INTERVAL_MS)) as helper:
            readings, faults = _probe(helper)
    except MeterError as error:
        raise MeterError(
            f"meter {NAME}: {error}", f"run {shlex.join([*program, 'pipe', '-s', '1'])!r} to see it fail"
        ) from error
    present = _present(readings, faults)
    notes = [_version(program), *faults.values(), *_notes(present, readings)]
    if not present:
        raise MeterError(f"meter {NAME}: no power in what it prints ({'; '.join(notes)})", "update macmon")
    return [MacmonMeter(program, [_rail(channel) for channel in present], notes)]


def _program() -> list[str]:
    """The command line of the program."""
    named = os.environ.get(PROGRAM_VARIABLE, "").strip()
    if named:
        try:
            return shlex.split(named)
        except ValueError as error:
            raise MeterError(f"meter {NAME}: {PROGRAM_VARIABLE}={named} is no command line: {error}") from error
    found = shutil.which("macmon")
    if found:
        return [found]
    if platform.system() == "Darwin":
        raise MeterError(f"meter {NAME}: there is no program 'macmon' on PATH", "run 'brew install macmon'")
    raise MeterAbsent(f"meter {NAME}: it reads Apple silicon, and this is {platform.system()} on {platform.machine()}")


def _start(program: Sequence[str], interval_ms: int) -> Helper:
    return Helper([*program, "pipe", "-i", str(interval_ms)])


def _probe(helper: Helper) -> tuple[list[Reading], Mapping[str, str]]:
    """The first readings, as many as it takes to know every channel, and the channels found dead."""
    decoder = Decoder(frozenset(channel.rail for channel in _CHANNELS))
    readings: list[Reading] = []
    begun = time.monotonic()
    while True:
        waited = time.monotonic() - begun
        limit = FIRST_LINE_S if not readings else DEAD_AFTER_S + 1.0 if decoder.doubtful else PROBE_S
        try:
            lines = helper.lines(limit - waited)
        except MeterError:
            if readings:
                return readings, decoder.faults
            raise
        if not lines:
            if readings:
                return readings, decoder.faults
            raise MeterError(f"it printed no power within {FIRST_LINE_S:.0f} s")
        for line in lines:
            decoder.feed(line.text, line.mono)
            reading = parse(line.text)
            if reading is not None and any(channel.field in reading for channel in _CHANNELS):
                if not readings:
                    begun = line.mono
                readings.append(reading)
        if _settled(readings) or (decoder.faults and not decoder.doubtful):
            return readings, decoder.faults


def _settled(readings: Sequence[Reading]) -> bool:
    """Whether the readings show of every channel whether it works."""
    if not readings:
        return False
    alive = all(
        name not in readings[0] or any(number(reading, name) for reading in readings)
        for name in ("cpu_power", "ram_power")
    )
    system = "sys_power" not in readings[0] or _has_system(readings) or len(readings) >= SYSTEM_LINES
    return alive and system


def _has_system(readings: Sequence[Reading]) -> bool:
    """Whether most readings hold one of the whole machine."""
    return sum(system_w(reading) is not None for reading in readings) * 2 > len(readings)


def _present(readings: Sequence[Reading], faults: Mapping[str, str]) -> list[_Channel]:
    """The channels that are there and work. Without a working CPU or GPU there is no chip to speak of."""

    def given(channel: _Channel) -> bool:
        if channel.rail == SYSTEM:
            return _has_system(readings)
        if channel.rail == DRAM and any(number(reading, "cpu_power") for reading in readings):
            return any(number(reading, channel.field) for reading in readings)
        return any(number(reading, channel.field) is not None for reading in readings)

    present = [channel for channel in _CHANNELS if channel.rail not in faults and given(channel)]
    if not {CPU, GPU} <= {channel.rail for channel in present}:
        present = [channel for channel in present if channel.scope != "chip"]
    return present


def _notes(present: Sequence[_Channel], readings: Sequence[Reading]) -> list[str]:
    """What a reader must know about what is counted and what is not."""
    names = [channel.field for channel in present if channel.scope == "chip"]
    notes = [f"chip is {' + '.join(names)}"] if names else ["no chip power: it would lack the CPU or the GPU"]
    if names and "ram_power" not in names:
        notes.append("memory power is not in the chip figure: ram_power is missing or always 0.0")
    if all(channel.rail != SYSTEM for channel in present):
        printed = sorted({str(reading.get("sys_power", "missing")) for reading in readings})
        notes.append(f"no system power: sys_power is missing, 0.0 or all_power again ({', '.join(printed[:3])})")
    if _macos_major() >= BATCHING_MACOS:
        notes.append(f"{_os_version()} moves the CPU, ANE and DRAM counters about every {BATCH_S:.0f} s")
    return notes


def _rail(channel: _Channel) -> Rail:
    """The rail of a channel."""
    return Rail(
        name=channel.rail,
        scope=channel.scope,
        covers=channel.covers,
        kind="interval_mean",
        basis="measured",
        unit="W",
        source=f"macmon pipe: {channel.field}",
    )


def _version(program: Sequence[str]) -> str:
    return ask([*program, "--version"], VERSION_S) or "macmon of unknown version"


def _macos_major() -> int:
    major = platform.mac_ver()[0].split(".")[0]
    return int(major) if major.isdigit() else 0


def _os_version() -> str:
    version = platform.mac_ver()[0]
    return f"macOS {version}" if version else f"{platform.system()} {platform.release()}"
