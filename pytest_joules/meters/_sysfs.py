"""Reading the kernel's files under /sys, and meters whose rails are such files.

The root is that of `places`. Every byte of every source built on this module passes through `read_bytes`, and every
timestamp through `now`: one place each to look at, and one place each to stand in for.
"""

from __future__ import annotations

import errno
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_joules.errors import MeterAbsent, MeterError
from pytest_joules.places import root
from pytest_joules.records import Rail, Sample

GONE_AFTER_S = 5.0
"""A rail without a single reading for this long is taken for gone."""

FIRST_READING_TRIES = 3
FIRST_READING_PAUSE_S = 0.02

FILLERS = frozenset({2**16 - 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1})
"""All ones, or the largest signed number: what firmware leaves in a field that it does not fill."""

_PASSING = frozenset({errno.ENODATA, errno.EIO, errno.EAGAIN, errno.EBUSY, errno.ETIMEDOUT, errno.EINTR, errno.EPERM})
_CAUSES = {
    errno.EACCES: "may not be read by this user",
    errno.EPERM: "refused to be read",
    errno.ENOENT: "does not exist",
    errno.ENODATA: "holds no data",
    errno.EIO: "failed with an input/output error",
    errno.ENODEV: "belongs to a device that is gone",
    errno.EOPNOTSUPP: "is not supported by its device",
}
_SUSPENDED = ("suspended", "suspending")
_PCI_ID = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_CARD = re.compile(r"card\d+")


class ReadError(MeterError):
    """A file gave no number.

    Attributes:
        path: the file.
        cause: what is wrong, without the path.
        passing: whether the next read may well succeed, as with an empty answer or a device that was busy.
        denied: whether another user could read it.
    """

    def __init__(self, path: Path, cause: str, *, passing: bool, denied: bool = False) -> None:
        super().__init__(f"{path} {cause}")
        self.path, self.cause, self.passing, self.denied = path, cause, passing, denied


@dataclass(frozen=True, slots=True)
class Channel:
    """One rail and how it is read once: `read` returns watts or joules, or raises `ReadError`."""

    rail: Rail
    read: Callable[[], float]


class FileReader:
    """Reads its channels one after the other, each dated at the middle of its own read.

    A reading that was tried and gave none is a sample whose value is not a number: it is counted and flagged where
    energy is computed, and is never mistaken for zero.
    """

    def __init__(self, channels: Sequence[Channel], interval_s: float) -> None:
        self.interval_s: float | None = interval_s
        self._channels = tuple(channels)
        self._last_good = dict.fromkeys((channel.rail.name for channel in channels), now())

    def read(self) -> Sequence[Sample]:
        """One sample of every rail.

        Raises:
            MeterError: a file is gone or forbidden, or gave nothing for `GONE_AFTER_S`.
        """
        return [self._sample(channel) for channel in self._channels]

    def close(self) -> None:
        """Nothing is held between reads."""

    def _sample(self, channel: Channel) -> Sample:
        name = channel.rail.name
        before = now()
        try:
            value = channel.read()
        except ReadError as error:
            if not error.passing or now() - self._last_good[name] > GONE_AFTER_S:
                raise
            value = math.nan
        after = now()
        if not math.isnan(value):
            self._last_good[name] = after
        return Sample(name, (before + after) / 2, value)


class FileMeter:
    """A power source made of files that are read at a steady rate."""

    def __init__(self, name: str, channels: Sequence[Channel], notes: Sequence[str] = ()) -> None:
        self.name = name
        self.channels = tuple(channels)
        self.rails = tuple(channel.rail for channel in channels)
        self.notes = tuple(notes)

    def open(self, rate_hz: float) -> FileReader:
        """Read every file `rate_hz` times a second."""
        return FileReader(self.channels, 1.0 / rate_hz)


@dataclass(frozen=True, slots=True)
class Card:
    """A graphics card as /sys/class/drm lists it. Its number changes between boots; its PCI id does not."""

    name: str
    device: Path
    pci: str

    def check_awake(self) -> None:
        """Raise `ReadError` when the card sleeps: reading any of its sensors would wake it."""
        if optional_text(self.device / "power" / "runtime_status") in _SUSPENDED:
            raise ReadError(self.device, "is suspended, and reading it would wake it", passing=True)

    def channel(self, rail: Rail, read: Callable[[], float]) -> Channel:
        """A channel that does not wake the card once it has gone to sleep."""

        def reading() -> float:
            self.check_awake()
            return read()

        return Channel(rail, reading)

    def hwmon(self, *drivers: str) -> Path | None:
        """The card's sensor folder of one of these drivers."""
        for folder in entries(self.device / "hwmon"):
            if optional_text(folder / "name") in drivers:
                return folder
        return None


def now() -> float:
    """Seconds on the monotonic clock."""
    return time.monotonic()


def read_bytes(path: Path) -> bytes:
    """The whole content of one file. Raises `OSError`."""
    return path.read_bytes()


def content(path: Path) -> bytes:
    """The whole content of one file.

    Raises:
        ReadError: with the cause in words.
    """
    try:
        return read_bytes(path)
    except OSError as error:
        code = error.errno or 0
        cause = _CAUSES.get(code, f"cannot be read ({error.strerror or error})")
        if code == errno.ENOENT and path.is_symlink():
            cause = "is a link to nothing"
        raise ReadError(path, cause, passing=code in _PASSING, denied=code in (errno.EACCES, errno.EPERM)) from error


def text(path: Path) -> str:
    """The content of one file without surrounding space. Raises `ReadError`, also when it is empty."""
    found = content(path).decode("utf-8", errors="replace").strip()
    if not found:
        raise ReadError(path, "is empty", passing=True)
    return found


def number(path: Path) -> int:
    """The whole number in one file. Raises `ReadError`, also when it holds something else."""
    found = text(path)
    try:
        return int(found)
    except ValueError:
        raise ReadError(path, f"holds {found[:40]!r} instead of a number", passing=True) from None


def optional_text(path: Path) -> str | None:
    """The content of a file that need not be there or readable."""
    try:
        return text(path)
    except ReadError:
        return None


def optional_number(path: Path) -> int | None:
    """The number in a file that need not be there or readable."""
    try:
        return number(path)
    except ReadError:
        return None


def exists(path: Path) -> bool:
    """Whether the path leads to something, followed through links."""
    try:
        path.stat()
    except OSError:
        return False
    return True


def entries(folder: Path, pattern: str = r".*") -> list[Path]:
    """What a folder holds by full-match of the name, numbers in order; empty when there is no such folder."""
    try:
        found = [path for path in folder.iterdir() if re.fullmatch(pattern, path.name)]
    except OSError:
        return []
    return sorted(
        found, key=lambda path: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]
    )


def cards(meter: str, vendor: str, drivers: Sequence[str], argument: str | None) -> list[Card]:
    """The graphics cards of one PCI vendor (`0x1002`), connectors left out, in the order of their numbers.

    A card whose vendor cannot be read is taken when its sensor folder names one of the drivers.

    Args:
        meter: the name of the source that asks.
        argument: a PCI id with or without its domain, or a card's name, to take that card alone.

    Raises:
        MeterError: there is no such card.
    """
    found = []
    for folder in entries(root() / "class" / "drm", _CARD.pattern):
        device = folder / "device"
        card = Card(folder.name, device, _pci_id(device) or folder.name)
        made_by = optional_text(device / "vendor")
        if made_by == vendor or (made_by is None and card.hwmon(*drivers)):
            found.append(card)
    if not found:
        raise MeterAbsent(f"meter {meter}: no card of vendor {vendor} in {root() / 'class' / 'drm'}")
    if argument is None:
        return found
    wanted = argument.lower()
    chosen = [card for card in found if wanted in (card.name, card.pci) or card.pci.endswith(f":{wanted}")]
    if not chosen:
        listed = ", ".join(card.pci for card in found)
        raise MeterError(
            f"meter {meter}: no card {argument!r}; there are {listed}", f"use --joules-meter {meter}:{found[0].pci}"
        )
    return chosen


def power_w(path: Path, *, can_be_zero: bool = True) -> float:
    """Watts from a hwmon `power*` file, which holds microwatts.

    Args:
        path: the file.
        can_be_zero: False for a device that draws something whenever it can answer.

    Raises:
        ReadError: the file cannot be read, or holds a value that is no power.
    """
    microwatts = number(path)
    filler = any(microwatts == value * unit for value in FILLERS for unit in (1, 10**3, 10**6))
    if microwatts < 0 or filler or (microwatts == 0 and not can_be_zero):
        raise ReadError(path, f"holds {microwatts} uW, which is no power", passing=True)
    return microwatts * 1e-6


def energy_j(path: Path) -> float:
    """Joules from a file in microjoules. Raises `ReadError`."""
    return number(path) * 1e-6


def cap_w(folder: Path, rail: str) -> float | None:
    """The highest power that a hwmon device allows on one rail (`power1`), when it states one.

    From the kernel's Documentation/ABI/testing/sysfs-class-hwmon: `cap_max` is the highest cap that can be set, `crit`
    the critical power. `rated_max`, the design power, is no such bound: short bursts go well over it.
    """
    for suffix in ("cap_max", "crit"):
        microwatts = optional_number(folder / f"{rail}_{suffix}")
        if microwatts is not None and microwatts > 0 and microwatts not in FILLERS:
            return microwatts * 1e-6
    return None


def first_reading(read: Callable[[], float]) -> float:
    """One reading, tried again a few times when the source says that it has none just now. Raises `ReadError`."""
    for _ in range(FIRST_READING_TRIES - 1):
        try:
            return read()
        except ReadError as error:
            if not error.passing:
                raise
            time.sleep(FIRST_READING_PAUSE_S)
    return read()


def no_argument(name: str, argument: str | None) -> None:
    """Refuse what stands behind the colon of `--joules-meter` where a source takes nothing there."""
    if argument is not None:
        raise MeterError(
            f"meter {name}: it takes no argument, and {argument!r} was given", f"use --joules-meter {name}"
        )


def _pci_id(device: Path) -> str | None:
    """The PCI id of a device folder, from where it links to or from its uevent file."""
    target = device.resolve().name
    if _PCI_ID.fullmatch(target):
        return target
    match = re.search(r"^PCI_SLOT_NAME=(\S+)$", optional_text(device / "uevent") or "", re.MULTILINE)
    return match.group(1).lower() if match else None
