"""Settings while they are held: made, read back, and put back on every way out."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pytest_joules import ledger, machine
from pytest_joules.errors import EngineError, JoulesError, Unmeasured, UsageError
from pytest_joules.knobs import _restorer

Step = Mapping[str, Any]
"""One thing to do, as plain values that another program can do as well; see `_restorer`."""

UNCAPPED = "uncapped"
"""The value that leaves a limit as it is, so that a suite can vary between none and some."""

ROOT = "run pytest as root: sudo -E $(command -v python) -m pytest ..."
ANSWER_S = 20.0
"""The restorer answers within milliseconds; on a machine that is very busy its start takes longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One setting that a knob makes.

    Attributes:
        what: the file or the call, for messages.
        wanted: what it reads while it is held.
        steps, back: what makes it and what puts it back.
        now: what it reads at present; missing where it cannot be read back. Raises `OSError` or `JoulesError`.
    """

    what: str
    wanted: str
    steps: tuple[Step, ...]
    back: tuple[Step, ...]
    now: Callable[[], str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap:
    """What shows from outside that a setting is obeyed: a number that is not to be exceeded while it is held.

    Attributes:
        kind: `vital` is looked at with every reading of a vital of this name, `power` with the mean power of the rails under it.
        of: full name of the vital, or beginning of the rails' names.
        at_most: in `unit`; missing where this machine does not tell what the setting comes to.
    """

    kind: Literal["vital", "power"]
    of: str
    at_most: float | None
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A knob that is held."""

    knob: str
    changes: tuple[Change, ...]
    caps: tuple[Cap, ...]

    def amiss(self) -> list[str]:
        """What reads otherwise than it was set, in words."""
        found = []
        for change in self.changes:
            if change.now is None:
                continue
            try:
                reads = change.now()
            except (OSError, JoulesError) as error:
                reads = f"nothing ({error})"
            if reads != change.wanted:
                found.append(f"{change.what} was set to {change.wanted} and reads {reads}")
        return found


_ids = itertools.count(1)
_active: list[Held] = []
_told: list[str] = []


def active() -> tuple[Held, ...]:
    """The knobs that are held by this process now, the last one last."""
    return tuple(_active)


def told() -> list[str]:
    """What a person should know of settings that were put back since this was last asked."""
    said, _told[:] = list(_told), []
    return said


@contextlib.contextmanager
def held(knob: str, changes: Sequence[Change], caps: Sequence[Cap] = ()) -> Iterator[None]:
    """Make the changes, see that they took, and put all back at the end, or when this process dies, however it dies.

    Raises:
        Unmeasured: this user, or this machine, cannot make them.
        EngineError: one was refused or does not read as it was set.
    """
    one = Held(knob=knob, changes=tuple(changes), caps=tuple(caps))
    if not changes:
        _active.append(one)
        try:
            yield
        finally:
            _active.remove(one)
        return
    with at_hand() as restorer:
        pushed = next(_ids)
        back = [step for change in reversed(one.changes) for step in change.back]
        restorer.tell({"push": pushed, "knob": knob, "steps": back})
        made: list[Change] = []
        try:
            for change in one.changes:
                _make(knob, change, made)
            if amiss := one.amiss():
                raise EngineError(f"knob {knob}: {'; '.join(amiss)}; the machine does not offer this value")
            _active.append(one)
            yield
        finally:
            meddled = one.amiss() if one in _active else []
            _active[:] = [other for other in _active if other is not one]
            faults = _restorer.restore([{"knob": knob, "steps": back}] if made else [])
            if not faults:
                # Without its restorer everything is put back all the same.
                with contextlib.suppress(EngineError):
                    restorer.tell({"pop": pushed})
            _told.extend(
                f"knob {knob}: somebody else changed it meanwhile: {text}; put back all the same" for text in meddled
            )
            # What is not popped is tried once more by the restorer.
            _told.extend(f"{fault}; it could not be put back" for fault in faults)


def _make(knob: str, change: Change, made: list[Change]) -> None:
    """Do the steps of a change, and count it as made from the first one that works."""
    for step in change.steps:
        try:
            _restorer.apply(step)
        except OSError as error:
            raise refused(knob, change.what, error) from None
        except Exception as error:
            raise refused_by_nvml(knob, change.what, error) from error
        made.append(change)


def refused(knob: str, what: str, error: OSError) -> Unmeasured | EngineError:
    """What it means that the kernel did not take a setting."""
    if error.errno in (errno.EACCES, errno.EPERM):
        return Unmeasured(f"knob {knob}: {what} can be written by root only; {ROOT}")
    if error.errno == errno.EROFS:
        return Unmeasured(
            f"knob {knob}: {what} is mounted read-only, as in a container; measure on the machine itself, or start it with --privileged"
        )
    if error.errno in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
        return Unmeasured(f"knob {knob}: {what}: {error.strerror}; this machine does not have the setting")
    return EngineError(
        f"knob {knob}: {what} refuses the setting ({error.strerror or error}); see the kernel's log: sudo dmesg"
    )


def refused_by_nvml(knob: str, what: str, error: Exception) -> Unmeasured | EngineError:
    """What it means that the NVIDIA driver did not take a setting."""
    code = getattr(error, "value", None)
    if code == NO_PERMISSION:
        return Unmeasured(f"knob {knob}: {what} can be set by root only; {ROOT}")
    if code == NOT_SUPPORTED:
        return Unmeasured(
            f"knob {knob}: {what} is not supported by this GPU, as on many laptops, so it cannot be measured here"
        )
    return EngineError(f"knob {knob}: {what} was refused by the driver ({error}); run 'nvidia-smi -q -d CLOCK,POWER'")


NOT_SUPPORTED, NO_PERMISSION = 3, 4
"""NVML_ERROR_NOT_SUPPORTED and NVML_ERROR_NO_PERMISSION of nvml.h."""


# Files ------------------------------------------------------------------------------------------------------------------


def file(knob: str, path: Path, wanted: str) -> Change:
    """A setting that is one value in one file.

    Raises:
        Unmeasured: this user cannot write it, or this machine does not let it be read.
    """
    before = reading(knob, path)
    writable(knob, path)
    return Change(
        what=str(path),
        wanted=wanted,
        steps=({"path": str(path), "texts": [wanted]},),
        back=({"path": str(path), "texts": [before]},),
        now=lambda: path.read_text().strip(),
    )


def reading(knob: str, path: Path) -> str:
    """What a file of the kernel holds. Raises `Unmeasured`."""
    try:
        return path.read_text().strip()
    except OSError as error:
        raise refused(knob, str(path), error) from None


def writable(knob: str, path: Path) -> None:
    """See before anything is measured whether this user may write a file.

    Raises:
        Unmeasured: it is not so.
    """
    if not os.access(path, os.W_OK):
        read_only = os.geteuid() == 0
        raise refused(knob, str(path), OSError(errno.EROFS if read_only else errno.EACCES, ""))


def limit(knob: str, value: object, unit: str) -> float | None:
    """A limit of the suite, `None` for `uncapped`. Asked before the machine is, so that a slip shows on every machine.

    Raises:
        UsageError: it is neither a number above 0 nor `uncapped`.
    """
    if value == UNCAPPED:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise UsageError(f"knob {knob}: expected a number of {unit} above 0 or {UNCAPPED}, not {value!r}")
    return float(value)


def within(knob: str, value: float, unit: str, low: float | None, high: float | None) -> float:
    """A limit, held against what the machine allows.

    Raises:
        UsageError: it is out of range.
    """
    if (low is not None and value < low) or (high is not None and value > high):
        raise UsageError(
            f"knob {knob}: {value:g} {unit} is out of range; this machine allows {_range_in_words(unit, low, high)}"
        )
    return value


def numbers(unit: str, low: float | None, high: float | None) -> str:
    """The values of a limit that this machine takes, in words."""
    return f"{_range_in_words(unit, low, high)}, or {UNCAPPED}"


def _range_in_words(unit: str, low: float | None, high: float | None) -> str:
    if low is None:
        return f"a number of {unit}" if high is None else f"up to {high:g} {unit}"
    return f"{low:g} {unit} and more" if high is None else f"{low:g} to {high:g} {unit}"


def not_capped(knob: str, what: object, reads: float | None, highest: float | None, unit: str) -> None:
    """See that `uncapped` is true of the machine as it is.

    Raises:
        EngineError: somebody has set a cap.
    """
    if reads is not None and highest is not None and reads < highest:
        raise EngineError(
            f"knob {knob}: {UNCAPPED} is asked for and somebody has set {what} to {reads:g} {unit} of {highest:g} {unit}; lift that first"
        )


# What puts them back when this process cannot ----------------------------------------------------------------------------


@dataclass(slots=True)
class _Restorer:
    """The program that outlives this one, and how many blocks need it."""

    process: subprocess.Popen[str] | None = None
    users: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)

    def tell(self, command: Mapping[str, Any]) -> None:
        """Send one command and wait until it is kept.

        Raises:
            EngineError: it is not.
        """
        with self.lock:
            process = self.process
            if process is None or process.stdin is None:
                raise EngineError("the program that puts settings back is not running")
            try:
                process.stdin.write(json.dumps(command) + "\n")
                process.stdin.flush()
            except OSError as error:
                raise EngineError(f"the program that puts settings back has ended ({error}); run again") from None
            self._answered(process)

    def start(self) -> None:
        """Start it, with an empty state file."""
        folder = _states()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EngineError(
                f"nothing was changed: {folder}, where is kept what to put back, cannot be made ({error.strerror}); "
                f"name another place with {ledger.STATE_VARIABLE}"
            ) from None
        header = json.dumps({"boot": machine.boot_id(), "python_path": sys.path})
        state = folder / f"{os.getpid()}-{time.monotonic_ns()}.jsonl"
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", _restorer.__file__, str(state), header],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            self._answered(self.process)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Let it put back what was not popped, and end."""
        process, self.process = self.process, None
        if process is None or process.stdin is None or process.stdout is None:
            return
        with contextlib.suppress(OSError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=ANSWER_S)
        process.stdout.close()

    def _answered(self, process: subprocess.Popen[str]) -> None:
        if process.stdout is None or not select.select([process.stdout], [], [], ANSWER_S)[0]:
            raise EngineError("the program that puts settings back does not answer; nothing was changed; run again")
        answer = process.stdout.readline().strip()
        if answer != "ok":
            raise EngineError(f"nothing was changed, since it could not be put back: {answer or 'the restorer ended'}")


_RESTORER = _Restorer()


@contextlib.contextmanager
def at_hand() -> Iterator[_Restorer]:
    """One restorer for all knobs of this process, so that they are put back in one order."""
    with _RESTORER.lock:
        if _RESTORER.users == 0:
            _RESTORER.start()
        _RESTORER.users += 1
    try:
        yield _RESTORER
    finally:
        with _RESTORER.lock:
            _RESTORER.users -= 1
            if _RESTORER.users == 0:
                _RESTORER.stop()


def _states() -> Path:
    """Where the state of restorers is kept, beside this user's ledger."""
    return ledger.state_folder() / "knobs"


def put_back() -> list[str]:
    """Put back what an earlier run left behind when it and its restorer were killed.

    Returns:
        A sentence for each, which `told` tells as well.
    """
    said = []
    for path in sorted(_states().glob("*.jsonl")):
        with contextlib.suppress(OSError), path.open("r+", encoding="utf-8") as state:
            if not _restorer.locked(state.fileno()):
                continue  # a restorer watches over it
            lines = state.read().splitlines()
            left = _restorer.outstanding(lines)
            # A machine that was started again has forgotten its settings.
            same_boot = bool(lines) and json.loads(lines[0]).get("boot") == machine.boot_id()
            faults = _restorer.restore(left) if same_boot else []
            names = ", ".join(dict.fromkeys(str(one["knob"]) for one in left[::-1]))
            if faults:
                said.append(f"settings that a killed run left behind are still there: {'; '.join(faults)}; {ROOT}")
                continue
            if left and same_boot:
                said.append(f"a killed run had left {names} set; it is as it was before that run now")
            path.unlink()
    _told.extend(said)
    return said
