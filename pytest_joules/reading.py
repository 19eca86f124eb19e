"""What a meter says of one stretch of time: the energy of its rails together, and the checks on it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pytest_joules import gates, trace
from pytest_joules.records import Gate, RailEnergy, Sample, Sampling

if TYPE_CHECKING:
    from pytest_joules.suite import GateLimits

Pairs = Sequence[tuple[str, str]]
"""(energy counter, power of the same thing) by rail name."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Energy of one stretch of time: the sum over the rails of the chosen scope, and each rail.

    Attributes:
        energy_j: `None` when any rail that counts could not be determined.
        uncertainty_j: half-width, rails combined in quadrature.
        rails: every rail that was read.
        counted: names of the rails that make up the energy; where a counter gave none, the power beside it.
        pairs: counters and the power beside them, both known.
        reason: why `energy_j` is `None`.
        calibration_j: the part of `uncertainty_j` that is alike at all times; rails of one make may err alike, so their parts add.
        causes: what the meter itself says is wrong, also when the energy is known all the same.
        stood_in: for each counter that gave no energy, why, and that its power was integrated.
    """

    start_mono: float
    end_mono: float
    energy_j: float | None
    uncertainty_j: float
    rails: tuple[RailEnergy, ...]
    counted: tuple[str, ...] = ()
    pairs: tuple[tuple[RailEnergy, RailEnergy], ...] = ()
    reason: str = ""
    calibration_j: float = 0.0
    causes: str = ""
    stood_in: tuple[str, ...] = ()

    @property
    def window_s(self) -> float:
        """Length of the stretch in seconds."""
        return self.end_mono - self.start_mono

    @property
    def edges_j(self) -> float:
        """The part of the uncertainty that is this stretch's own: edges, refresh, lag, rounding."""
        return math.sqrt(max(0.0, self.uncertainty_j**2 - self.calibration_j**2))

    @property
    def power_w(self) -> float | None:
        """Mean power over the stretch."""
        return None if self.energy_j is None else self.energy_j / self.window_s

    @property
    def parts(self) -> tuple[RailEnergy, ...]:
        """The rails that make up the energy."""
        return tuple(rail for rail in self.rails if rail.rail in self.counted)


def total(
    rails: Sequence[RailEnergy],
    counted: Sequence[str],
    start_mono: float,
    end_mono: float,
    causes: str = "",
    pairs: Pairs = (),
) -> Reading:
    """The sum of the rails that count, or the reason why there is none.

    A counter that gives no energy, because it was reset or stood still, is replaced by the power beside it.
    """
    by_name: Mapping[str, RailEnergy] = {rail.rail: rail for rail in rails}
    beside = {counter: by_name[power] for counter, power in pairs}
    parts, stood_in = [], []
    for part in (by_name[name] for name in counted):
        other = beside.get(part.rail)
        if part.energy_j is None and other is not None and other.energy_j is not None:
            stood_in.append(f"{part.rail}: {part.reason}; its power is integrated instead")
            parts.append(other)
        else:
            parts.append(part)
    names = tuple(part.rail for part in parts)
    missing = [f"{part.rail}: {part.reason}" for part in parts if part.energy_j is None]
    if missing:
        reason = "; ".join([causes, *missing] if causes else missing)
        return Reading(start_mono, end_mono, None, 0.0, tuple(rails), names, reason=reason, causes=causes)
    # Edges of different rails err independently; the gains of rails of one make may err alike, so those add.
    own_j2 = sum(max(0.0, part.uncertainty_j**2 - part.calibration_j**2) for part in parts)
    calibration_j = sum(part.calibration_j for part in parts)
    return Reading(
        start_mono,
        end_mono,
        energy_j=sum(part.energy_j or 0.0 for part in parts),
        uncertainty_j=math.sqrt(own_j2 + calibration_j**2),
        rails=tuple(rails),
        counted=names,
        pairs=tuple((p, beside[p.rail]) for p in parts if p.rail in beside and beside[p.rail].energy_j is not None),
        calibration_j=calibration_j,
        causes=causes,
        stood_in=tuple(stood_in),
    )


def checks(
    reading: Reading,
    limits: GateLimits,
    averaging_s: Mapping[str, float | None],
    *,
    min_samples: int,
    thin_voids: bool,
    notes: Sequence[str] = (),
    remedies: gates.Remedies = gates.OF_A_SUITE,
) -> list[Gate]:
    """The gates on what a meter read.

    Args:
        averaging_s: averaging time by rail name.
        min_samples: distinct sensor updates without which the energy is worth nothing.
        thin_voids: whether fewer of them void the reading, or only flag it.
        notes: what else was mended or is suspicious.
        remedies: what to do, in the words of the place where the reading is shown.
    """
    found = [gates.has_energy(reading.rails, reading.counted, reading.causes, remedies=remedies)]
    mended = [replace(r, flags=tuple(f for f in r.flags if not trace.about_length(f))) for r in reading.rails]
    found.append(gates.readings(mended, reading.counted, [*reading.stood_in, *notes], remedies))
    if reading.energy_j is None:
        return found
    short = [(r.rail, averaging_s.get(r.rail) or 0.0) for r in reading.parts if any(map(trace.about_length, r.flags))]
    if short:
        found.append(gates.averaging_times(reading.window_s, short, trace.FEW_AVERAGINGS, remedies))
    found.append(
        gates.samples(
            reading.rails,
            reading.counted,
            min_samples,
            limits.thin_samples,
            thin_voids=thin_voids,
            remedies=remedies,
        )
    )
    found.append(
        gates.edge_uncertainty(
            reading.energy_j, reading.edges_j, limits.uncertainty_flag_above, limits.uncertainty_void_above, remedies
        )
    )
    for counter, power in reading.pairs:
        counter_j, power_j = counter.energy_j or 0.0, power.energy_j or 0.0
        apart = trace.disagreement(counter_j, power_j, reading.window_s, averaging_s.get(power.rail))
        found.append(
            gates.counter_check(counter_j, power_j, apart, limits.counter_flag_above, limits.counter_void_above)
        )
    return found


def evenness(mono: trace.Floats) -> Sampling:
    """Jitter and gaps of (n,) reading times, n over 2."""
    intervals = np.diff(mono)
    usual_s = float(np.median(intervals))
    late = intervals - usual_s
    return Sampling(
        readings=len(mono),
        interval_s=round(usual_s, 6),
        late_95_s=round(max(0.0, float(np.percentile(late, 95))), 6),
        late_worst_s=round(max(0.0, float(late.max())), 6),
        missed=int(np.maximum(np.round(intervals / usual_s) - 1, 0).sum()) if usual_s > 0 else 0,
    )


def group(samples: Sequence[Sample]) -> dict[str, tuple[trace.Floats, trace.Floats]]:
    """Samples by rail as (n,) arrays of time and value."""
    times: dict[str, list[float]] = {}
    values: dict[str, list[float]] = {}
    for sample in samples:
        times.setdefault(sample.rail, []).append(sample.mono)
        values.setdefault(sample.rail, []).append(sample.value)
    return {rail: (np.array(times[rail]), np.array(values[rail])) for rail in times}
