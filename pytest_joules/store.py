"""What is kept: the journal of a running measurement, finished runs, and verdicts beside them.

    results/<machine>/machine.json
    results/<machine>/<suite>/<utc>-<id>.json               the run, never overwritten
    results/<machine>/<suite>/<utc>-<id>.samples.jsonl.gz   every power sample of it
    results/<machine>/<suite>/<utc>-<id>.answers.jsonl.gz   what was answered to questions, where a suite asks any
    results/<machine>/<suite>/<utc>-<id>.verdicts.jsonl     appended, once per judging
    results/<machine>/<suite>/<utc>-<id>.journal.jsonl      only while it runs, or when it was cut short

All JSON is strict: NaN and infinity are refused. A file appears whole or not at all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import errno
import glob
import gzip
import importlib.metadata
import json
import math
import os
import re
import secrets
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import psutil
from pydantic import TypeAdapter, ValidationError

from pytest_joules.errors import UsageError
from pytest_joules.records import SCHEMA_VERSION, RequestRecord, Run, Sample, Verdict, Window
from pytest_joules.words import one_line

_JOURNAL = ".journal.jsonl"
_HEAD_BYTES = 32768
_RUN, _WINDOW, _VERDICT = TypeAdapter(Run), TypeAdapter(Window), TypeAdapter(Verdict)
_RECORDED_PACKAGES = (
    "pytest-joules",
    "pytest",
    "numpy",
    "psutil",
    "aiohttp",
    "llama-cpp-python",
    "nvidia-ml-py",
    "gguf",
)


def utc_now() -> datetime.datetime:
    """The wall clock, for labels only."""
    return datetime.datetime.now(datetime.UTC)


def utc_label(moment: datetime.datetime) -> str:
    """`2026-10-25T10:15:30.123Z`."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def new_run_id() -> str:
    """`20261025T101530Z-3fa9c1`: the start in UTC, and enough chance to tell two of one second apart."""
    return f"{utc_now():%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def installed_versions() -> dict[str, str]:
    """Versions of the packages whose behaviour a result depends on, as far as they are installed."""
    versions = {}
    for package in _RECORDED_PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run and the file it is in."""

    run: Run
    path: Path

    @property
    def verdicts_path(self) -> Path:
        """Where verdicts on this run are appended."""
        return self.path.with_name(f"{self.run.run_id}.verdicts.jsonl")


class Journal:
    """One line per event of a running measurement, on the disk before the next thing is done.

    Attributes:
        made_anew: the file was taken away or replaced under way, and written again with all it had held; for the caller to
            reset.

    Raises:
        OSError: from every method but `close`, when the disk takes no more.
    """

    def __init__(self, path: Path, counters: Container[str], header: Mapping[str, Any] | None) -> None:
        """Begin a journal with its header; without one, go on with the journal that is there."""
        self.path, self._counters, self.made_anew = path, counters, False
        path.parent.mkdir(parents=True, exist_ok=True)
        # Without a buffer: what could not be written must not come back at the next line or at the close.
        self._file: FileIO = path.open("a+b" if header is None else "x+b", buffering=0)
        # A line that a crash cut off must not swallow the next one.
        self._torn = header is None
        if header is not None:
            try:
                self._write({"event": "start", **header})
            except OSError:
                self.close(remove=True)
                raise

    def window(self, window: Window, samples: Sequence[Sample]) -> None:
        """A window that has closed, with its samples."""
        self._write(
            {
                "event": "window",
                "window": _WINDOW.dump_python(window, mode="json"),
                "samples": [_sample(s, self._counters) for s in samples],
            }
        )

    def note(self, event: str, **facts: Any) -> None:
        """Anything else worth keeping."""
        self._write({"event": event, **facts})

    def close(self, *, remove: bool) -> None:
        """Close it; `remove` once the run it led to is safely written."""
        self._file.close()
        if remove:
            # One that cannot be removed now is taken away by the next run.
            with contextlib.suppress(OSError):
                self.path.unlink()

    def _write(self, record: Mapping[str, Any]) -> None:
        line = f"{_strict(record)}\n".encode()
        length = os.fstat(self._file.fileno()).st_size
        try:
            _write_whole(self._file, b"\n" + line if self._torn else line)
            os.fsync(self._file.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                # A file that was begun here is not written at its end but on from where it was left.
                self._file.seek(self._file.truncate(length))
            self._torn = True
            raise
        self._torn = False
        if self._is_away():
            self._make_anew()

    def _is_away(self) -> bool:
        """Whether the path leads elsewhere by now: written on, a deleted file would take everything along at the end."""
        mine = os.fstat(self._file.fileno())
        try:
            there = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return True
        return (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino)

    def _make_anew(self) -> None:
        self._file.seek(0)
        content = self._file.readall()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = _partial(self.path)
        _write_partial(partial, content)
        partial.replace(self.path)
        self._file.close()
        self._file = self.path.open("a+b", buffering=0)
        self.made_anew = True


@dataclass(frozen=True, slots=True)
class Interrupted:
    """What the journal of a run holds that was cut short.

    Attributes:
        header: what was asked and with what, as the journal began.
        windows: those that closed.
        samples: the meter's readings in and around them.
        events: everything else that was noted.
    """

    path: Path
    header: Mapping[str, Any]
    windows: tuple[Window, ...]
    samples: tuple[Sample, ...]
    events: tuple[Mapping[str, Any], ...]

    @property
    def run_id(self) -> str:
        """Id of the run that it would have become."""
        return str(self.header["run_id"])

    @property
    def closed(self) -> int:
        """Windows of the suite that came to their end."""
        return sum(window.role == "measured" and not window.failure for window in self.windows)


def load_journal(path: Path) -> Interrupted:
    """Read what a run that was cut short has left.

    Raises:
        UsageError: it cannot be read, or was written by another version.
    """
    header: Mapping[str, Any] = {}
    windows: list[Window] = []
    samples: list[Sample] = []
    events: list[Mapping[str, Any]] = []
    try:
        # Not splitlines(): characters that end a line there stand unescaped in JSON.
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
            try:
                record = json.loads(line)
            except ValueError:
                continue  # empty, or cut off while it was written, and so not closed
            if record["event"] == "start":
                header = record
            elif record["event"] == "window":
                windows.append(_WINDOW.validate_python(record["window"]))
                samples += [Sample(s["rail"], s["mono"], _value(s)) for s in record["samples"]]
            else:
                events.append(record)
    except (OSError, KeyError, TypeError, ValidationError) as error:
        raise UsageError(f"{path}: is no journal of this version: {one_line(str(error), 120)}") from None
    if header.get("schema_version") != SCHEMA_VERSION or "run_id" not in header:
        raise UsageError(f"{path}: has schema version {header.get('schema_version')}; this one reads {SCHEMA_VERSION}")
    return Interrupted(path, header, tuple(windows), tuple(samples), tuple(events))


class Store:
    """The results folder.

    Attributes:
        folder: usually `results/`; made only when something is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def place(self, machine_slug: str, suite: str) -> Path:
        """Folder of the runs of one suite on one machine."""
        return self.folder / machine_slug / suite

    def journal(
        self, machine_slug: str, suite: str, run_id: str, header: Mapping[str, Any], counters: Container[str]
    ) -> Journal:
        """Start the journal of a run. `counters` names the rails whose samples are joules."""
        path = self.place(machine_slug, suite) / f"{run_id}{_JOURNAL}"
        return Journal(path, counters, {"run_id": run_id, "schema_version": SCHEMA_VERSION, **header})

    def interrupted(self, machine_slug: str, suite: str) -> Interrupted | None:
        """The newest run of a suite that was cut short and has a closed window; `None` when there is none."""
        return next((found for found in self.journals(machine_slug, suite) if found.closed), None)

    def journals(self, machine_slug: str, suite: str) -> Iterator[Interrupted]:
        """The runs of a suite that were cut short, newest first; what cannot be read is passed over."""
        for path in sorted(self.place(machine_slug, suite).glob(f"*{_JOURNAL}"), reverse=True):
            if not path.with_name(f"{path.name.removesuffix(_JOURNAL)}.json").exists():
                with contextlib.suppress(UsageError):
                    yield load_journal(path)

    def tidy(self, machine_slug: str, suite: str) -> None:
        """Take away what killed runs of a suite left that nobody can use: journals without a closed window or beside their
        finished run, and files that were not written to their end.

        Only for who holds the machine: a run under way has just such files.
        """
        folder = self.place(machine_slug, suite)
        with contextlib.suppress(OSError):
            for path in (*folder.glob(".*.part"), *folder.parent.glob(".*.part")):
                if _has_ended(path.name.split(".")[-2]):
                    path.unlink()
            for path in folder.glob(f"*{_JOURNAL}"):
                if path.with_name(f"{path.name.removesuffix(_JOURNAL)}.json").exists() or _holds_nothing(path):
                    path.unlink()

    def write(self, run: Run, samples: Iterable[Sample]) -> StoredRun:
        """Keep a finished run, its samples and the answers to questions, and the machine's facts when they are new.

        Raises:
            FileExistsError: a run of this id is there already; runs are never overwritten.
            OSError: the disk takes no more.
        """
        folder = self.place(run.machine_slug, run.suite_name)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{run.run_id}.json"
        if path.exists():
            raise FileExistsError(path)
        if run.samples_file:
            # Without their run they are left of an attempt to write it that did not come to its end.
            (folder / run.samples_file).unlink(missing_ok=True)
            counters = {rail.name for rail in run.meter.rails if rail.kind == "counter"}
            packed = gzip.compress("".join(_strict(_sample(s, counters)) + "\n" for s in samples).encode(), mtime=0)
            _write_new(folder / run.samples_file, packed)
        if run.answers_file:
            (folder / run.answers_file).unlink(missing_ok=True)
            packed = gzip.compress("".join(_strict(one) + "\n" for one in _answers(run)).encode(), mtime=0)
            _write_new(folder / run.answers_file, packed)
            run = _without_texts(run)
        _write_new(path, (_strict(_RUN.dump_python(run, mode="json"), indent=1) + "\n").encode())
        machine_file = folder.parent / "machine.json"
        with contextlib.suppress(FileExistsError):
            _write_new(machine_file, (_strict(run.machine, indent=1) + "\n").encode())
        return StoredRun(run, path)

    def append_verdicts(self, stored: StoredRun, verdicts: Sequence[Verdict]) -> None:
        """Add verdicts beside their run; earlier ones stay.

        Raises:
            UsageError: they cannot be written.
        """
        lines = "".join(_strict(_VERDICT.dump_python(verdict, mode="json")) + "\n" for verdict in verdicts).encode()
        try:
            stored.path.parent.mkdir(parents=True, exist_ok=True)
            with stored.verdicts_path.open("a+b", buffering=0) as file:
                if file.seek(0, os.SEEK_END):
                    file.seek(-1, os.SEEK_END)
                    if file.read(1) != b"\n":
                        # A line that a crash cut off must not swallow the next one.
                        lines = b"\n" + lines
                _write_whole(file, lines)
                os.fsync(file.fileno())
        except OSError as error:
            raise UsageError(f"the verdicts cannot be kept: {unwritten(stored.verdicts_path, error)}") from None

    def runs(self, machine_slug: str | None = None, suite: str | None = None) -> Iterator[StoredRun]:
        """Stored runs, oldest first. Files that are no run of a known format are passed over by name only."""
        for path in self._paths(machine_slug, suite):
            yield load(path)

    def latest(self, machine_slug: str | None, suite: str | None) -> StoredRun | None:
        """The newest complete run; `None` when there is none."""
        for path in reversed(self._paths(machine_slug, suite)):
            stored = load(path)
            if stored.run.complete:
                return stored
        return None

    def find(self, run: str) -> StoredRun:
        """The run that is meant by a file, an id, a suite's name (its newest complete run) or `latest`.

        Raises:
            UsageError: there is none.
        """
        if Path(run).is_file():
            return load(Path(run))
        if not self.folder.is_dir():
            raise UsageError(
                f"there are no results in {self.folder}; run a prediction, or name the folder with --results"
            )
        by_id = sorted(self.folder.glob(f"*/*/{glob.escape(run)}.json"))
        if by_id:
            return load(by_id[0])
        suite = None if run == "latest" else run
        found = self.latest(None, suite)
        if found is None:
            cut_short = [path.stem for path in self._paths(None, suite)]
            if cut_short:
                raise UsageError(
                    f"there is no complete run in {self.folder}; those that were cut short are found by id: {', '.join(cut_short)}"
                )
            if suite is None:
                raise UsageError(
                    f"there is no run in {self.folder}; run a prediction, or name the folder with --results"
                )
            raise UsageError(f"there is no run or suite {run!r} in {self.folder}")
        return found

    def _paths(self, machine_slug: str | None, suite: str | None) -> list[Path]:
        """Files of runs, oldest first."""
        machine, name = (glob.escape(part) if part else "*" for part in (machine_slug, suite))
        return sorted(self.folder.glob(f"{machine}/{name}/*.json"), key=lambda path: path.name)


def run_files(folder: Path) -> list[Path]:
    """Files of runs in a folder and below it, oldest first."""
    return sorted(
        (path for path in folder.rglob("*.json") if re.match(r"\d{8}T\d{6}Z-", path.name)), key=lambda path: path.name
    )


def _holds_nothing(journal: Path) -> bool:
    """No window of the suite closed before the run was cut short. One of another version may hold some."""
    try:
        return not load_journal(journal).closed
    except UsageError:
        return b"\n" not in journal.read_bytes()  # cut off in its first line


def _has_ended(pid: str) -> bool:
    return pid.isdigit() and not psutil.pid_exists(int(pid))


def load(path: Path) -> StoredRun:
    """Read a run.

    Raises:
        UsageError: it cannot be read, is no run, or was written by a newer version.
    """
    try:
        text = path.read_text(encoding="utf-8")
        version = json.loads(text, parse_constant=_no_figure).get("schema_version")
    except AttributeError:
        raise UsageError(f"{path}: is no stored run: it holds no object") from None
    except ValueError as error:
        raise UsageError(f"{path}: is no stored run: it is no JSON ({error})") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    if version is None:
        raise UsageError(f"{path}: is no stored run: it states no schema_version")
    if version != SCHEMA_VERSION:
        raise UsageError(f"{path}: has schema version {version}; this pytest-joules reads {SCHEMA_VERSION}")
    try:
        return StoredRun(_RUN.validate_json(text), path)
    except ValidationError as error:
        raise UsageError(f"{path}: is no stored run: {_first(error)}") from None


def head(path: Path) -> dict[str, Any]:
    """What the file of a run says before its windows, which are most of it: enough to choose among a thousand of them.

    Raises:
        UsageError: it cannot be read, or is no run.
    """
    try:
        with path.open("rb") as file:
            start = file.read(_HEAD_BYTES)
        # As it is written, only a key of the run itself stands after one space.
        facts, found, _ = start.partition(b'\n "windows": ')
        whole = facts.rstrip().rstrip(b",") + b"}" if found else path.read_bytes()
        record = json.loads(whole)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: is no stored run: {error}") from None
    if not isinstance(record, dict):
        raise UsageError(f"{path}: is no stored run: it holds no object")
    if missing := [key for key in ("run_id", "complete") if key not in record]:
        raise UsageError(f"{path}: is no stored run: it has no {' and no '.join(missing)}")
    return record


def damaged_verdicts(stored: StoredRun) -> list[str]:
    """Lines of a run's verdicts that cannot be read, in words: a verdict that was given may be missing."""
    return [
        f"{stored.verdicts_path.name}:{number} is damaged: a verdict that was given may be missing here"
        for number, line in _verdict_lines(stored)
        if line and not _is_json(line)
    ]


def load_verdicts(stored: StoredRun) -> list[Verdict]:
    """Every verdict given on a run, oldest first; `damaged_verdicts` tells of lines that are passed over."""
    found = []
    for number, line in _verdict_lines(stored):
        if not _is_json(line):
            continue  # empty, or cut off by a crash before the verdict was given
        try:
            found.append(_VERDICT.validate_json(line))
        except ValidationError as error:
            raise UsageError(f"{stored.verdicts_path}:{number}: is no verdict: {_first(error)}") from None
    return found


def _verdict_lines(stored: StoredRun) -> list[tuple[int, str]]:
    """The lines of a run's verdicts with their numbers; none while nothing was judged."""
    if not stored.verdicts_path.exists():
        return []
    # Not splitlines(): characters that end a line there stand unescaped in JSON.
    return list(enumerate(stored.verdicts_path.read_text(encoding="utf-8").split("\n"), 1))


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def load_samples(stored: StoredRun) -> list[Sample]:
    """Every power sample of a run, in order of arrival; none where the file is not there.

    Raises:
        UsageError: the file is damaged.
    """
    if not stored.run.samples_file:
        return []
    path = stored.path.with_name(stored.run.samples_file)
    if not path.exists():
        return []
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            records = [json.loads(line) for line in file]
        return [Sample(record["rail"], record["mono"], _value(record)) for record in records]
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: is damaged: {error}") from None


def _answers(run: Run) -> Iterator[dict[str, Any]]:
    """Every answer to a question in full, with where in the run it was given."""
    for window in run.windows:
        for request in window.requests:
            if request.grade is not None:
                where = {
                    "sequence": window.sequence,
                    "role": window.role,
                    "pass_index": window.pass_index,
                    "condition": dict(window.condition),
                }
                yield {**where, **dataclasses.asdict(request.grade)}


def _without_texts(run: Run) -> Run:
    """The run less the texts that stand beside it."""

    def bare(request: RequestRecord) -> RequestRecord:
        return (
            request
            if request.grade is None
            else dataclasses.replace(request, grade=dataclasses.replace(request.grade, text=""))
        )

    windows = tuple(dataclasses.replace(w, requests=tuple(map(bare, w.requests))) for w in run.windows)
    return dataclasses.replace(run, windows=windows)


def _value(record: Mapping[str, Any]) -> float:
    value = record["power_w"] if "power_w" in record else record["energy_j"]
    return math.nan if value is None else float(value)


def _sample(sample: Sample, counters: Container[str]) -> dict[str, Any]:
    """One line of the trace format: watts, or joules when the rail is a counter; null where a reading was tried and failed."""
    unit = "energy_j" if sample.rail in counters else "power_w"
    value = round(sample.value, 6) if math.isfinite(sample.value) else None
    return {"rail": sample.rail, "mono": round(sample.mono, 6), unit: value}


def _first(error: ValidationError) -> str:
    fault = error.errors()[0]
    return f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"


def unwritten(path: Path, error: OSError) -> str:
    """Why a file could not be written, and what to do about it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        step = "make room there, then run again"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        step = "make it writable again, then run again"
    else:
        step = "see to it, then run again"
    return f"{path.parent} takes no more ({error.strerror or error}); {step}"


def _no_figure(name: str) -> None:
    raise ValueError(f"it holds {name}")


def as_record(run: Run) -> dict[str, Any]:
    """A run as the plain values of its file."""
    record: dict[str, Any] = _RUN.dump_python(run, mode="json")
    return record


def plain(record: Any) -> Any:
    """What a record is once it has been written and read again."""
    return json.loads(_strict(record))


def _strict(record: Any, indent: int | None = None) -> str:
    text = json.dumps(record, allow_nan=False, ensure_ascii=False, indent=indent)
    # A home folder names its owner; no result may. Longer names that only begin like it are other folders.
    for home in {str(Path.home()), str(Path.home().resolve())}:
        if len(home) > 1:
            text = re.sub(re.escape(json.dumps(home, ensure_ascii=False)[1:-1]) + r"(?![\w-]|\.\w)", "~", text)
    return text


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def _write_partial(path: Path, content: bytes) -> None:
    """What will be renamed when it is whole."""
    with path.open("wb", buffering=0) as file:
        _write_whole(file, content)
        os.fsync(file.fileno())


def _write_whole(file: FileIO, content: bytes) -> None:
    """All of it: a disk that fills up takes a part first, and fails only when asked again."""
    left = memoryview(content)
    while left:
        left = left[file.write(left) :]


def _write_new(path: Path, content: bytes) -> None:
    """Write a file that must not exist yet; it appears whole or not at all."""
    partial = _partial(path)
    try:
        _write_partial(partial, content)
        # A hard link fails when the name is taken, which rename would silently replace.
        try:
            os.link(partial, path)
        except FileExistsError:
            raise
        except OSError:  # file systems without hard links
            if path.exists():
                raise FileExistsError(path) from None
            partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)
