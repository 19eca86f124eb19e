"""A made-up /sys out of a case's sys.json, changed over time by its steps.jsonl, with errors out of its faults.json.

`mount(monkeypatch, case, folder)` unpacks the tree, points JOULES_SYSFS_ROOT at it, puts the clock of the sources under the
test's hand and makes the reads of the faulty paths fail. `Sysfs.play` then reads a meter at the times of the steps.
"""

from __future__ import annotations

import base64
import errno
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_joules import places
from pytest_joules.meters import Meter, _sysfs
from pytest_joules.records import RailEnergy, Sample
from pytest_joules.trace import energy

CASES = Path(__file__).parents[1] / "cases"


class Sysfs:
    def __init__(self, folder: Path, steps: Iterable[Mapping[str, Any]] = ()) -> None:
        self.folder = folder
        self.now = 0.0
        self.reads: list[str] = []
        self.faults: dict[str, str] = {}
        self._steps = sorted(steps, key=lambda step: step["t"])

    def write(self, files: Mapping[str, Any]) -> None:
        for name, content in files.items():
            path = self.folder / name
            if name.endswith("/"):
                path.mkdir(parents=True, exist_ok=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, str):
                path.write_bytes(content.encode())
            elif "link" in content:
                path.symlink_to(content["link"])
            else:
                path.write_bytes(base64.b64decode(content["b64"]))

    def at(self, t: float) -> None:
        """Move the clock forward, with everything that changes until then."""
        self.now = t
        while self._steps and self._steps[0]["t"] <= t:
            self.write(self._steps.pop(0)["set"])

    def times(self) -> list[float]:
        return [step["t"] for step in self._steps]

    def play(self, meter: Meter, times: Iterable[float]) -> list[Sample]:
        """What the meter reads when it is read once at each of the times."""
        self.at(0.0)
        reader = meter.open(1.0)
        samples: list[Sample] = []
        for t in times:
            self.at(t)
            samples += reader.read()
        reader.close()
        return samples

    def read_bytes(self, path: Path) -> bytes:
        self.reads.append(str(path))
        for name, fault in self.faults.items():
            if os.path.realpath(path) == os.path.realpath(self.folder / name):
                if fault == "EMPTY":
                    return b""
                raise OSError(getattr(errno, fault), os.strerror(getattr(errno, fault)), str(path))
        return path.read_bytes()


def mount(monkeypatch: pytest.MonkeyPatch, folder: Path, case: str | Mapping[str, Any]) -> Sysfs:
    """A tree from a case's folder under tests/cases, or from the files given."""
    where = folder / "sys"
    if isinstance(case, str):
        given = CASES / case
        steps = given / "steps.jsonl"
        sysfs = Sysfs(where, [json.loads(line) for line in steps.read_text().splitlines()] if steps.exists() else [])
        sysfs.write(json.loads((given / "sys.json").read_text()))
        faults = given / "faults.json"
        sysfs.faults = json.loads(faults.read_text()) if faults.exists() else {}
    else:
        sysfs = Sysfs(where)
        where.mkdir(parents=True)
        sysfs.write(case)
    monkeypatch.setenv(places.ROOT_VARIABLE, str(where))
    monkeypatch.setattr(_sysfs, "now", lambda: sysfs.now)
    monkeypatch.setattr(_sysfs, "read_bytes", sysfs.read_bytes)
    return sysfs


def energies(meter: Meter, samples: Iterable[Sample], start: float, end: float) -> dict[str, RailEnergy]:
    """Energy of every rail of the meter over a window."""
    taken = list(samples)
    return {
        rail.name: energy(
            rail,
            [s.mono for s in taken if s.rail == rail.name],
            [s.value for s in taken if s.rail == rail.name],
            start,
            end,
        )
        for rail in meter.rails
    }


def joules(found: Mapping[str, RailEnergy], *rails: str) -> float:
    """The sum of these rails, of all when none is named. Fails when one has none."""
    parts = [found[name] for name in rails or found]
    missing = [f"{part.rail}: {part.reason}" for part in parts if part.energy_j is None]
    if missing:
        pytest.fail("; ".join(missing))
    return sum(part.energy_j or 0.0 for part in parts)
