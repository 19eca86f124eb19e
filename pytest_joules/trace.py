"""From the samples of a rail to the joules of exactly one window. Pure; numpy only.

Four steps, each a function below, in this order:

1. `clean`, then `drop_implausible` (watts) or `mend_counter` (joules): readings in time order that can be true.
2. `_refuse_gaps`: a hole makes the energy unknown; it is never integrated across and never filled.
3. `find_updates`: a sensor read faster than it refreshes gives stairs, and one read slower gives old readings. Either
   way the readings become the sensor's own updates, each at the time it stands for.
4. The energy, by the rail's kind:

   - `instant`: trapezoids over the updates inside. From the first and the last of them to the edges their power holds,
     because windows are cut where the load changes: interpolating to a reading outside would mix the idle power in.
   - `counter` and `interval_mean`: energy is known at each update. Inside the update period that holds an edge, the mean
     power of the period and those of its neighbours say where the load stepped; that step is used.
   - `moving_average` over more than the refresh period: the reading at t is the mean over the `averaging_s` before it,
     so readings one averaging time apart tile the window exactly, whatever the power did. Tiles are laid from both edges;
     what is left in the middle, shorter than one tile, has the power of the tile around it.
   - `moving_average` over less than the refresh period is an instant reading half an averaging time old.

Every energy has a half-width that holds the truth about 95 times in 100. It combines in quadrature what the edges may
hide, the unknown phase of the sensor, the scatter of a power that is only sampled, rounding, and the stated calibration.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from pytest_joules.records import Rail, RailEnergy

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

GAP_PERIODS = 3.0
"""A hole longer than this many sensor periods inside a window makes its energy unknown."""
OVER_LIMIT = 1.2
"""Power above this multiple of the rail's own limit is no reading."""
ABSURD_W = 100e3
"""Without a stated limit, power above this is no reading: all ones in a 32-bit milliwatt field are 4.3 MW."""
OVER_TYPICAL, LEAST_CEILING_W = 20.0, 5000.0
"""Without a stated limit, a counter may rise at this multiple of its typical power, or at this power if that is more."""
TYPICAL_STEPS, LEAST_WRAP_W = 20, 500.0
"""After so many steps a counter's typical power also says how often it may have wrapped unseen. It is held to be at least
this, because several wraps in every step look like little power."""
LOST_SHARE, LEAST_LOST = 0.10, 2
"""So many dropped readings, above this share of all, are told as such."""
CONTRADICTORY_SHARE, LEAST_CONTRADICTORY = 0.10, 2
"""So many readings, above this share of all, that contradict another of the same time are those of another rail."""
DROPOUT_RUN, DROPOUT_SHARE = 2, 0.10
"""At most so many zeros in a row, and at most this share of all readings, are dropouts; more of them is a resting rail."""
STAIRS = 1.2
"""Readings per update from which on the readings are stairs."""
FEW_LEVELS = 4
"""With fewer different readings than this, they are plateaus of the power and say nothing about the sensor."""
CONFIRMS = 1.5
"""A refresh period seen within this factor of the stated one confirms it: readings that are equal by chance stretch it."""
REGULAR_SHARE = 0.8
"""Share of the changes that must keep step with one period for it to be the sensor's."""
TILED = 1.1
"""An averaging time above this multiple of the update period overlaps from one update to the next."""
FEW_AVERAGINGS = 5.0
"""A window shorter than this many averaging times is flagged."""
UNSEEN_SHARE = 0.1
"""Standard deviation, as a share of the power, that is granted to power inside one update period, where no sensor looks."""
ANYWHERE = 0.95
"""Half-width, as a share of a range in which the truth may lie anywhere, about an estimate at one end of it."""
ARRIVAL_SHARE = 0.05
"""How far an interval mean may arrive from the end of its interval, as a share of the interval."""
AVERAGING_SHARE = 0.05
"""How well the averaging time of a sensor is known, as a share of it (it is measured from outside, never stated)."""
CLOCK_SHARE = 1e-4
"""How well a computer's clock keeps a second: crystals are off by tens of parts in a million, a slewed one by more."""
STANDS_STILL_UPDATES = 20
"""So many equal updates in a row from a sensor of fine resolution are suspicious."""
FROZEN_READINGS, FROZEN_S = 20, 10.0
"""So many equal readings over so long, to a digit that always flickers, are those of a frozen sensor."""


@dataclass(frozen=True, slots=True)
class Mended:
    """Readings that were taken out or moved: what was done, and their times (NaN where the time itself was bad).

    Attributes:
        lost: something was read there and is not known; what stands twice or was only moved is not lost.
    """

    what: str
    mono: Floats
    lost: bool = True

    def within(self, start: float, end: float) -> int:
        """How many of them are of a stretch; a reading without a time may have belonged anywhere."""
        return int(np.sum(~((self.mono < start) | (self.mono > end))))


@dataclass(frozen=True, slots=True)
class Break:
    """Two readings of a counter between which nothing can be said."""

    before: float
    after: float
    why: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Readings:
    """Readings in time order, (n,) seconds and (n,) watts or joules, and what was done to get there."""

    mono: Floats
    value: Floats
    mended: tuple[Mended, ...] = ()
    breaks: tuple[Break, ...] = ()

    def without(self, bad: Mask, what: str, *, lost: bool = True) -> Readings:
        """These readings less the bad ones, which are remembered as `what`."""
        if not bad.any():
            return self
        mended = (*self.mended, Mended(what, self.mono[bad], lost))
        return replace(self, mono=self.mono[~bad], value=self.value[~bad], mended=mended)

    def lost(self, start: float, end: float) -> int:
        """How many readings of a stretch were dropped."""
        return sum(mended.within(start, end) for mended in self.mended if mended.lost)


@dataclass(frozen=True, slots=True)
class Updates:
    """What the sensor itself did: (n,) times that its updates stand for, and (n,) watts or joules.

    Attributes:
        period_s: median time between two of them; 0 with fewer than two.
        blur_s: how far their common time may be off, because the sensor's phase is not known.
    """

    mono: Floats
    value: Floats
    period_s: float
    blur_s: float

    def inside(self, start: float, end: float) -> Mask:
        """Which of them fall in the window, edges included."""
        return (self.mono >= start) & (self.mono <= end)


@dataclass(frozen=True, slots=True)
class _Estimate:
    """Joules, and independent 95 % half-widths of them."""

    energy_j: float
    halves_j: tuple[float, ...]


class _RefusedError(Exception):
    """The readings cannot carry the window; the text says why, and `remedy` what to do where it is known."""

    def __init__(self, why: str, remedy: str = "") -> None:
        super().__init__(why)
        self.remedy = remedy


def energy(
    rail: Rail,
    mono: Floats,
    value: Floats,
    start: float,
    end: float,
    lag_s: float = 0.0,
    lag_uncertainty_s: float = 0.0,
) -> RailEnergy:
    """Energy of exactly `[start, end]` of one rail.

    Args:
        rail: what the readings are; `kind`, `averaging_s`, `refresh_s`, `limit_w`, `wrap_j` and `calibration` are used.
        mono: (n,) seconds, the time each reading was taken.
        value: (n,) watts, or joules when `rail.kind` is `counter`.
        start: window start, seconds on the same clock.
        end: window end.
        lag_s: measured delay of the sensor behind the chip, over and above its own averaging and refresh.
        lag_uncertainty_s: half-width of `lag_s`.

    Returns:
        `energy_j` is `None`, with a reason, when the readings cannot carry the window.
    """
    readings = clean(np.asarray(mono, dtype=float) - lag_s, np.asarray(value, dtype=float))
    readings = mend_counter(readings, rail) if rail.kind == "counter" else drop_implausible(readings, rail)
    part = _unbroken_part(readings, start, end)
    updates = find_updates(rail, part)
    found = RailEnergy(
        rail=rail.name,
        energy_j=None,
        uncertainty_j=0.0,
        updates=int(updates.inside(start, end).sum()),
        refresh_s=updates.period_s or rail.refresh_s,
        longest_gap_s=_longest_gap(part.mono, start, end),
        flags=_flags(rail, part, updates, start, end),
    )
    try:
        _refuse_gaps(rail, readings, part, start, end)
        estimate = _estimate(rail, updates, start, end, updates.blur_s + lag_uncertainty_s)
        _refuse_over_limit(rail, estimate.energy_j / (end - start))
    except _RefusedError as why:
        return replace(found, reason=str(why), remedy=why.remedy)
    calibration_j = estimate.energy_j * (rail.calibration or 0.0)
    clock_j = CLOCK_SHARE * estimate.energy_j
    uncertainty_j = float(np.linalg.norm((*estimate.halves_j, calibration_j, clock_j)))
    return replace(found, energy_j=estimate.energy_j, uncertainty_j=uncertainty_j, calibration_j=calibration_j)


def disagreement(counter_j: float, integrated_j: float, window_s: float, averaging_s: float | None) -> float | None:
    """By how much integrated power differs from an energy counter, as a share of the counter's energy.

    Returns:
        `None` when the two cannot be compared: the window is shorter than 5 averaging times of the power reading
        (its smeared edges weigh too much), or the counter gives no energy.
    """
    if counter_j <= 0 or window_s < FEW_AVERAGINGS * (averaging_s or 0.0):
        return None
    return abs(integrated_j - counter_j) / counter_j


def refresh_period(mono: Floats, value: Floats, *, counter: bool = False) -> float | None:
    """The sensor's true refresh period in seconds, when the readings are stairs that keep step with one.

    Returns:
        `None` when it cannot be told: the sensor is read as fast as it refreshes or slower, there are too few changes,
        or the readings are so coarse that standing still may be rounding.
    """
    changed = np.flatnonzero(_moved(value)) + 1
    if len(changed) < 6:
        return None
    jumps = np.abs(np.diff(value))[changed - 1]
    if not counter and (len(_levels(value)) < FEW_LEVELS or np.median(jumps) < 3.0 * quantum(value)):
        return None
    spacing, polls = np.diff(mono[changed]), np.diff(changed)
    usual = spacing <= 2.5 * np.median(spacing)
    period_s, polls_per_update = float(spacing[usual].mean()), float(polls[usual].mean())
    in_step = np.abs(spacing - period_s) <= 1.1 * period_s / polls_per_update
    if polls_per_update < STAIRS or in_step.mean() < REGULAR_SHARE:
        return None
    return period_s


def quantum(value: Floats) -> float:
    """The step to which readings are rounded: the smallest difference seen, or by their digits where there are few levels."""
    if len(value) == 0:
        return 0.0
    levels = _levels(value)
    if len(levels) >= FEW_LEVELS:
        return float(np.diff(levels).min())
    # Readings of whole watts may still be finer; no sensor is coarser than its second digit.
    return min(min(10.0 ** -_decimals(float(level)), 0.02 * abs(float(level))) for level in levels)


def frozen(mono: Floats, value: Floats) -> bool:
    """Whether no digit of a power reading ever changed, for long enough and to a digit that flickers on a live sensor."""
    if len(value) < FROZEN_READINGS or np.ptp(mono) < FROZEN_S or np.any(value != value[0]):
        return False
    level, decimals = abs(float(value[0])), _decimals(float(value[0]))
    return decimals >= 2 and 10.0**-decimals < 1e-3 * level


def _levels(value: Floats) -> Floats:
    """The different readings there are."""
    return np.unique(np.round(value, 9))


def _moved(value: Floats) -> Mask:
    """(n - 1,) whether a reading differs from the one before by more than arithmetic does."""
    step = np.abs(np.diff(value))
    return np.asarray(step > 1e-12 * np.abs(value).max(initial=0.0))


def _decimals(number: float) -> int:
    """How many decimals a number was written with, 9 at most."""
    return next((n for n in range(9) if round(number, n) == round(number, 9)), 9)


# Readings that can be true ------------------------------------------------------------------------------------------


def clean(mono: Floats, value: Floats) -> Readings:
    """Sort by arrival time; drop what is not finite, and all but the first reading of a time."""
    readings = Readings(mono, value).without(
        ~(np.isfinite(mono) & np.isfinite(value)), "reading that is no number dropped"
    )
    late = readings.mono < np.maximum.accumulate(readings.mono) if len(readings.mono) else np.zeros(0, dtype=bool)
    if late.any():
        order = np.argsort(readings.mono, kind="stable")
        arrived = Mended("reading out of order", readings.mono[late], lost=False)
        readings = Readings(readings.mono[order], readings.value[order], (*readings.mended, arrived))
    again = np.zeros(readings.mono.shape, dtype=bool)
    again[1:] = np.diff(readings.mono) == 0
    differs = again.copy()
    differs[1:] &= np.diff(readings.value) != 0
    readings = readings.without(again & ~differs, "duplicate reading dropped", lost=False)
    return readings.without(differs[~(again & ~differs)], _CONTRADICTS)


_CONTRADICTS = "reading dropped that contradicts another of the same time"


def drop_implausible(readings: Readings, rail: Rail) -> Readings:
    """Power readings less the sentinels: negative, over the limit, or a lone zero in a busy stream."""
    ceiling_w = OVER_LIMIT * rail.limit_w if rail.limit_w else ABSURD_W
    readings = readings.without(readings.value < 0, "negative reading dropped")
    limit = f"the limit of {rail.limit_w:.6g} W (x{OVER_LIMIT:g})" if rail.limit_w else f"{ceiling_w:.6g} W"
    readings = readings.without(readings.value > ceiling_w, f"reading above {limit} dropped")
    return readings.without(_dropouts(readings.value, rail), "lone zero in a busy stream dropped")


def _dropouts(power_w: Floats, rail: Rail) -> Mask:
    """Which zeros are dropouts: rare, and between two readings of a busy rail."""
    zero = power_w == 0
    none = np.zeros(power_w.shape, dtype=bool)
    if zero.all() or not zero.any() or zero.sum() > max(1.0, DROPOUT_SHARE * len(zero)):
        return none
    live = np.flatnonzero(~zero)
    at = np.flatnonzero(zero)
    following = np.searchsorted(live, at)
    between = (following > 0) & (following < len(live))
    at, following = at[between], following[between]
    before, after = live[following - 1], live[following]
    busy_w = np.median(power_w[live])
    found = (after - before - 1 <= DROPOUT_RUN) & (np.minimum(power_w[before], power_w[after]) >= 0.5 * busy_w)
    if rail.kind == "interval_mean":
        # A mean that comes late is 0 first and then holds two intervals: nothing is missing there.
        found &= power_w[after] < 1.5 * busy_w
    none[at[found]] = True
    return none


def mend_counter(readings: Readings, rail: Rail) -> Readings:
    """A counter without its outliers and continuous over its wraps, with the places where that is not possible."""
    readings = readings.without(readings.value < 0, "negative reading dropped")
    if len(readings.mono) < 2:
        return readings
    ceiling_w, slack_s = _ceiling_w(readings, rail), rail.refresh_s or float(np.median(np.diff(readings.mono)))
    wrap_ceiling_w = _wrap_ceiling_w(readings, rail, ceiling_w)
    readings = readings.without(_outliers(readings, ceiling_w, slack_s), "dip or spike of the counter dropped")
    t, step_j = readings.mono, np.diff(readings.value)
    fell = step_j < 0
    if rail.wrap_j is not None:
        step_j = np.where(fell, step_j + rail.wrap_j, step_j)
    power_w = step_j / (_since_moved(t, step_j) + slack_s)
    often = np.diff(t) * wrap_ceiling_w >= (rail.wrap_j or np.inf)
    breaks = [
        _broken(rail, t[k : k + 2], bool(fell[k]), wrap_ceiling_w if often[k] else None, float(power_w[k]))
        for k in np.flatnonzero((step_j < 0) | (power_w > ceiling_w) | often)
    ]
    joined = readings.value[0] + np.concatenate(([0.0], np.cumsum(np.maximum(step_j, 0.0))))
    return replace(readings, value=joined, breaks=tuple(breaks))


def _broken(rail: Rail, around: Floats, fell: bool, possible_w: float | None, power_w: float) -> Break:
    """A break, with the reason.

    Args:
        around: times of the two readings.
        fell: whether the second is lower.
        possible_w: the power at which it may have wrapped more than once; `None` where it cannot have.
        power_w: the power that its step would mean.
    """
    remedy = ""
    if possible_w is not None:
        why = (
            f"between two readings the counter may have passed its range of {rail.wrap_j:.6g} J more than once "
            f"(at {possible_w:.4g} W)"
        )
        remedy = (
            "read it more often"
            if rail.limit_w
            else "state the highest power (limit_w, --limit-w), or read it more often"
        )
    elif fell and rail.wrap_j is None:
        why = "the counter fell and its range is not known: it was reset or it wrapped"
        remedy = "state its range (wrap_j, --wrap-j) if it wraps"
    elif fell:
        why = f"the counter fell, and a wrap would mean {power_w:.4g} W: it was reset"
    else:
        why = f"the counter jumped, which would mean {power_w:.4g} W"
    return Break(float(around[0]), float(around[1]), why, remedy)


def _ceiling_w(readings: Readings, rail: Rail) -> float:
    """The power above which a counter's step is no energy."""
    if rail.limit_w:
        return OVER_LIMIT * rail.limit_w
    rates_w = _rates_w(readings)
    return max(LEAST_CEILING_W, OVER_TYPICAL * float(np.median(rates_w))) if len(rates_w) else LEAST_CEILING_W


def _wrap_ceiling_w(readings: Readings, rail: Rail, ceiling_w: float) -> float:
    """The power at which a counter may have wrapped unseen: without a stated limit, by what it typically does."""
    rates_w = _rates_w(readings)
    if rail.limit_w or len(rates_w) < TYPICAL_STEPS:
        return ceiling_w
    return max(LEAST_WRAP_W, OVER_TYPICAL * float(np.median(rates_w)))


def _rates_w(readings: Readings) -> Floats:
    """The power of each step of a counter that rises."""
    rise_j, passed_s = np.diff(readings.value), np.diff(readings.mono)
    return np.asarray(rise_j[rise_j > 0] / passed_s[rise_j > 0])


def _outliers(readings: Readings, ceiling_w: float, slack_s: float) -> Mask:
    """Readings out of line with a counter that goes on before and after them as if they had not been."""
    t, j = readings.mono, readings.value
    found = np.zeros(j.shape, dtype=bool)

    def goes_on(a: int, b: int) -> bool:
        return a >= 0 and b < len(j) and bool(0 <= j[b] - j[a] <= ceiling_w * (t[b] - t[a] + slack_s))

    for k in np.flatnonzero(np.diff(j) < 0).tolist():
        back = next((m for m in (k + 2, k + 3) if goes_on(k, m)), None)
        if back is not None:
            found[k + 1 : back] = True
        elif goes_on(k - 1, k + 1):
            found[k] = True
    return found


def _since_moved(t: Floats, step_j: Floats) -> Floats:
    """For each step of a counter, the time since the step before it that was not nothing."""
    moved = np.concatenate(([True], step_j != 0))
    last_moved = np.maximum.accumulate(np.where(moved, t, -np.inf))
    return t[1:] - last_moved[:-1]


def _unbroken_part(readings: Readings, start: float, end: float) -> Readings:
    """The readings between the breaks around the window's start; all of them when there are none."""
    if not readings.breaks:
        return readings
    first = max((b.after for b in readings.breaks if b.after <= start), default=-np.inf)
    last = min((b.before for b in readings.breaks if b.before >= end), default=np.inf)
    kept = (readings.mono >= first) & (readings.mono <= last)
    return replace(readings, mono=readings.mono[kept], value=readings.value[kept])


# Holes --------------------------------------------------------------------------------------------------------------


def _refuse_gaps(rail: Rail, readings: Readings, part: Readings, start: float, end: float) -> None:
    if not end > start:
        raise _RefusedError("the window is empty")
    for broken in readings.breaks:
        if broken.after > start and broken.before < end:
            raise _RefusedError(broken.why, broken.remedy)
    t = part.mono
    kept = int(np.sum((t >= start) & (t <= end)))
    _refuse_lost(readings, kept, start, end)
    if not kept:
        raise _RefusedError(
            f"none of {len(readings.mono)} readings fall in the window: it is too short for this sensor, or the clocks differ"
        )
    gaps_s, periods_s = _gaps(rail, t, start, end)
    long = np.flatnonzero(gaps_s > GAP_PERIODS * periods_s * (1 + 1e-9))
    if len(long):
        worst = int(long[np.argmax(gaps_s[long])])
        if worst >= len(gaps_s) - 2:
            side = "begin {:.3g} s after" if worst == len(gaps_s) - 2 else "end {:.3g} s before"
            raise _RefusedError(
                f"the readings {side.format(gaps_s[worst])} the window does, where one comes every {periods_s[worst]:.3g} s"
            )
        raise _RefusedError(
            f"no reading for {gaps_s[worst]:.3g} s where one comes every {periods_s[worst]:.3g} s: "
            "the meter stalled, or the machine slept",
            "a window without the hole",
        )


def _refuse_lost(readings: Readings, kept: int, start: float, end: float) -> None:
    """Refuse readings none of which can be true, and those of two things under one name."""
    by_kind = [(mended.what, mended.within(start, end)) for mended in readings.mended if mended.lost]
    lost = readings.lost(start, end)
    if lost and not kept:
        said = "; ".join(f"{count} x {what}" for what, count in by_kind if count)
        limited = any("above the limit" in what for what, count in by_kind if count)
        remedy = "state a higher limit (limit_w, --limit-w) if this one is too low" if limited else "see to the sensor"
        raise _RefusedError(f"all {lost} readings in the window were dropped ({said})", remedy)
    double = sum(count for what, count in by_kind if what == _CONTRADICTS)
    if double >= LEAST_CONTRADICTORY and double > CONTRADICTORY_SHARE * (kept + lost):
        raise _RefusedError(
            f"{double} of {kept + lost} readings contradict another of the same time: two rails without names?",
            "name the rail of each reading",
        )


def _gaps(rail: Rail, t: Floats, start: float, end: float) -> tuple[Floats, Floats]:
    """Times without a reading in and around the window, those at its start and its end last, and the sensor's period at each.

    Where the period is not known it is taken from the spacing nearby, so that a stream that is dense in one part and
    sparse in another has no hole, and one stall among regular readings is one.
    """
    spacing = np.diff(t)
    if len(spacing) == 0:
        periods = np.array([])
        usual_s = rail.refresh_s or end - start
    elif rail.refresh_s is not None:
        usual_s = max(float(np.median(spacing)), rail.refresh_s)
        periods = np.full(spacing.shape, usual_s)
    else:
        usual_s = float(np.median(spacing))
        periods = np.median(sliding_window_view(np.pad(spacing, 3, mode="symmetric"), 7), axis=1)
    touching = (t[1:] > start) & (t[:-1] < end)
    outside_s = np.array([max(0.0, t[0] - start), max(0.0, end - t[-1])])
    return np.concatenate((spacing[touching], outside_s)), np.concatenate((periods[touching], [usual_s, usual_s]))


def _longest_gap(t: Floats, start: float, end: float) -> float:
    """Longest time inside the window without a reading, counting from the last one before it."""
    before, after = t[t <= start], t[t >= end]
    edges = ([before[-1]] if len(before) else [start], [after[0]] if len(after) else [end])
    points = np.concatenate((edges[0], t[(t > start) & (t < end)], edges[1]))
    return float(np.max(np.diff(points))) if len(points) > 1 else end - start


def _refuse_over_limit(rail: Rail, power_w: float) -> None:
    if rail.limit_w and power_w > OVER_LIMIT * rail.limit_w:
        raise _RefusedError(f"a mean of {power_w:.4g} W is over {OVER_LIMIT:g} x the limit of {rail.limit_w:.4g} W")


def _flags(rail: Rail, readings: Readings, updates: Updates, start: float, end: float) -> tuple[str, ...]:
    """What was mended or is suspicious in the window."""
    flags = []
    lost = readings.lost(start, end)
    read = lost + int(np.sum((readings.mono >= start) & (readings.mono <= end)))
    if lost >= LEAST_LOST and lost > LOST_SHARE * read:
        flags.append(f"{lost} of {read} readings in the window were dropped, over {LOST_SHARE:.0%}")
    counts = [(mended.what, mended.within(start, end)) for mended in readings.mended]
    flags += [f"{count} x {what}" for what, count in counts if count]
    if rail.kind != "counter":
        flags += _still_flags(readings, updates, start, end)
    elif rail.wrap_j and not rail.limit_w:
        near_s = updates.period_s
        inside = readings.mono[(readings.mono >= start - near_s) & (readings.mono <= end + near_s)]
        most_w = rail.wrap_j / float(np.max(np.diff(inside))) if len(inside) > 1 else np.inf
        if most_w <= LEAST_CEILING_W:
            flags.append(
                f"the counter is taken to stay below {most_w:.4g} W, or it wrapped unseen; a limit_w would tell"
            )
    if _smeared(rail, updates.period_s) and rail.averaging_s and end - start < FEW_AVERAGINGS * rail.averaging_s:
        flags.append(f"{_FEW_AVERAGINGS} ({rail.averaging_s:g} s)")
    return tuple(flags)


_FEW_AVERAGINGS = f"the window is under {FEW_AVERAGINGS:g} averaging times of the sensor"


def about_length(flag: str) -> bool:
    """Whether a flag is about the length of the window, and not about a reading."""
    return flag.startswith(_FEW_AVERAGINGS)


def _still_flags(readings: Readings, updates: Updates, start: float, end: float) -> list[str]:
    if frozen(readings.mono, readings.value):
        return [f"no digit changed in {len(readings.value)} readings: the sensor may be frozen"]
    power_w = updates.value[updates.inside(start, end)]
    moves = np.abs(np.diff(power_w))
    moved = np.flatnonzero(moves)
    if len(moved) < 6 or np.median(moves[moved]) < 3.0 * quantum(power_w):
        return []
    still = int(np.diff(np.concatenate(([-1], moved, [len(moves)]))).max())
    return [f"the reading stood still over {still} updates"] if still > STANDS_STILL_UPDATES else []


# The sensor's own updates -------------------------------------------------------------------------------------------


def find_updates(rail: Rail, readings: Readings) -> Updates:
    """The sensor's updates behind the readings, each at the time it stands for.

    A change seen at one reading happened somewhere since the one before: half-way, give or take half the time between.
    A sensor read slower than it refreshes shows a reading that is half a refresh period old, give or take that half.
    Where nothing says how often it refreshes, a reading is taken to be of its own time, give or take half the spacing.
    """
    t, v = readings.mono, readings.value
    if len(t) < 2:
        return Updates(t, v, 0.0, rail.refresh_s or 0.0)
    counter = rail.kind == "counter"
    poll_s = float(np.median(np.diff(t)))
    refresh_s = _refresh_s(rail, refresh_period(t, v, counter=counter))
    if refresh_s is not None and refresh_s >= STAIRS * poll_s:
        mono, value = _risers(t, v, refresh_s, fill=not counter)
        blur_s = poll_s / 2
    else:
        moved = np.concatenate(([True], _moved(v))) if counter else np.ones(t.shape, dtype=bool)
        age_s, blur_s = _age(rail, refresh_s, poll_s)
        mono, value = t[moved] - age_s, v[moved]
    period_s = float(np.median(np.diff(mono))) if len(mono) > 1 else 0.0
    if rail.kind == "moving_average" and _method(rail, period_s) == "points":
        mono = mono - (rail.averaging_s or 0.0) / 2
    return Updates(mono, value, period_s, blur_s)


def _refresh_s(rail: Rail, seen_s: float | None) -> float | None:
    """The refresh period to go by: what was seen, unless it does no more than confirm what the rail states."""
    if seen_s is None or rail.refresh_s is None:
        return seen_s or rail.refresh_s
    return rail.refresh_s if 1 / CONFIRMS <= seen_s / rail.refresh_s <= CONFIRMS else seen_s


def _age(rail: Rail, refresh_s: float | None, poll_s: float) -> tuple[float, float]:
    """How old a reading is when each one is an update of its own, and how far that may be off."""
    if rail.kind == "interval_mean":
        return 0.0, ARRIVAL_SHARE * poll_s
    if refresh_s is None:
        return 0.0, poll_s / 2
    return min(refresh_s, poll_s) / 2, min(refresh_s, poll_s) / 2


def _risers(t: Floats, v: Floats, refresh_s: float, *, fill: bool) -> tuple[Floats, Floats]:
    """Times and values of the updates behind stairs of readings.

    With `fill`, a run longer than the refresh period holds further updates to the same value. A counter has none.
    """
    first = np.concatenate(([0], np.flatnonzero(_moved(v)) + 1))
    at = t[first].copy()
    at[1:] = (t[first[1:] - 1] + t[first[1:]]) / 2
    if len(at) > 1:
        # The first value was there before it was first read.
        at[0] = at[1] - max(1.0, np.ceil((at[1] - t[0]) / refresh_s - 0.5) if fill else 1.0) * refresh_s
    if not fill:
        return at, v[first]
    lasts_s = np.diff(np.append(at, t[-1]))
    count = np.maximum(1, np.round(lasts_s / refresh_s)).astype(int)
    count[-1] = int(lasts_s[-1] / refresh_s) + 1
    every_s = lasts_s / count
    every_s[-1] = refresh_s
    nth = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return np.repeat(at, count) + nth * np.repeat(every_s, count), np.repeat(v[first], count)


# Energy -------------------------------------------------------------------------------------------------------------


def _method(rail: Rail, period_s: float) -> Literal["points", "knots", "tiles"]:
    """How a reading relates to time, once it is known how often there is one."""
    if rail.kind in ("counter", "interval_mean"):
        return "knots"
    if rail.kind == "instant" or not rail.averaging_s:
        return "points"
    if rail.averaging_s > TILED * period_s:
        return "tiles"
    # A mean over just about the whole period is an interval mean by another name.
    return "knots" if rail.averaging_s * TILED >= period_s else "points"


def _smeared(rail: Rail, period_s: float) -> bool:
    """Whether one reading overlaps the next, as far as is known."""
    return rail.kind in ("instant", "moving_average") and (rail.averaging_s or 0.0) > TILED * period_s


def _estimate(rail: Rail, updates: Updates, start: float, end: float, time_error_s: float) -> _Estimate:
    if not updates.inside(start, end).any():
        raise _RefusedError("the window is too short for this sensor: it did not update within it")
    if len(updates.mono) < 2:
        raise _RefusedError("one reading is not enough")
    if _smeared(rail, updates.period_s) and end - start < (rail.averaging_s or 0.0):
        raise _RefusedError(f"the window is shorter than the sensor's averaging time of {rail.averaging_s:g} s")
    method = _method(rail, updates.period_s)
    if method == "tiles":
        return _tiles(rail, updates, start, end, time_error_s)
    if method == "points":
        return _points(rail, updates, start, end, time_error_s)
    if rail.kind == "counter":
        return _between_knots(updates.mono, updates.value, start, end, time_error_s)
    reach_s = np.diff(updates.mono, prepend=updates.mono[0] - updates.period_s)
    mono = np.concatenate(([updates.mono[0] - reach_s[0]], updates.mono))
    total_j = np.concatenate(([0.0], np.cumsum(updates.value * reach_s)))
    found = _between_knots(mono, total_j, start, end, time_error_s)
    # An update that is misdated moves the border between two means, wherever it is.
    steps_w = np.diff(updates.value[updates.inside(start, end)])
    misdated_j = updates.blur_s * float(np.linalg.norm(steps_w))
    return replace(found, halves_j=(*found.halves_j, misdated_j, (end - start) * _rounding_w(updates, start, end)))


def _points(rail: Rail, updates: Updates, start: float, end: float, time_error_s: float) -> _Estimate:
    """Trapezoids over the updates inside; from the outermost of them to the edges their power holds."""
    inside = updates.inside(start, end)
    t, v = updates.mono[inside], updates.value[inside]
    before_w, after_w = updates.value[updates.mono < start][-1:], updates.value[updates.mono > end][:1]
    spacing = np.diff(np.concatenate(([start], t, [end])))
    if _smeared(rail, updates.period_s):
        time_error_s += (rail.averaging_s or 0.0) / 2
    halves_j = (
        _sampling_j(spacing, v) * float(np.sqrt(1.0 - _seen_share(rail, updates.period_s))),
        (end - start) * _rounding_w(updates, start, end),
        _hidden_j(before_w, float(v[0]), float(spacing[0])),
        _hidden_j(after_w, float(v[-1]), float(spacing[-1])),
        _swing_w(updates.mono, updates.value, start, time_error_s) * time_error_s,
        _swing_w(updates.mono, updates.value, end, time_error_s) * time_error_s,
    )
    first = int(_from_outside(before_w, v, float(spacing[0]), updates.blur_s))
    last = len(v) - int(_from_outside(after_w, v[::-1], float(spacing[-1]), updates.blur_s))
    grid = np.concatenate(([start], t[first:last], [end]))
    power_w = np.concatenate((v[first : first + 1], v[first:last], v[last - 1 : last]))
    return _Estimate(float(np.sum(np.diff(grid) * (power_w[1:] + power_w[:-1]) / 2)), halves_j)


def _from_outside(outside_w: Floats, inner_w: Floats, hidden_s: float, blur_s: float) -> bool:
    """Whether the outermost reading inside was taken outside: it may have been, and it is like the one there."""
    if hidden_s > blur_s or len(outside_w) == 0 or len(inner_w) < 3:
        return False
    return bool(abs(inner_w[0] - outside_w[0]) < abs(inner_w[0] - inner_w[1]))


def _hidden_j(outside_w: Floats, inner_w: float, hidden_s: float) -> float:
    """Half-width at one edge, because a step may lie anywhere between it and the first reading inside.

    Args:
        outside_w: the nearest reading outside, or nothing. With none, what was hidden may have been anything.
        inner_w: the nearest reading inside.
        hidden_s: from the edge to the nearest reading inside.
    """
    return ANYWHERE * hidden_s * (abs(float(outside_w[0]) - inner_w) if len(outside_w) else inner_w)


def _swing_w(t: Floats, power_w: Floats, when: float, within_s: float) -> float:
    """By how much the power changes about a moment: over the readings that may be of it, and one more on either side."""
    first = max(int(np.searchsorted(t, when - within_s)) - 1, 0)
    last = int(np.searchsorted(t, when + within_s, side="right")) + 1
    near_w = power_w[first:last]
    return float(np.ptp(near_w)) if len(near_w) else 0.0


def _sampling_j(spacing_s: Floats, power_w: Floats) -> float:
    """Half-width of the trapezoids' energy because the power is seen only now and then.

    Between two readings that differ lies a step that may be anywhere between them. Beside that, noise is what turns
    back at the next reading: the product of neighbouring changes is minus its variance.

    Args:
        spacing_s: (n + 1,) from the start over the readings to the end.
        power_w: (n,) readings.
    """
    change_w = np.diff(power_w)
    steps_j2 = float(np.sum((change_w * spacing_s[1:-1]) ** 2)) / 12.0
    holds_s2 = ((spacing_s[1:] + spacing_s[:-1]) / 2) ** 2
    free = len(power_w) - 2
    if free < 1:
        return 2.0 * float(np.sqrt(steps_j2))
    turns_j2 = float(np.sum(-change_w[1:] * change_w[:-1] * holds_s2[1:-1])) * float(
        holds_s2.sum() / holds_s2[1:-1].sum()
    )
    return _student(free) * float(np.sqrt(max(turns_j2, 0.0) + steps_j2))


def _seen_share(rail: Rail, period_s: float) -> float:
    """The share of the time between two point readings that a reading covers."""
    return min(1.0, (rail.averaging_s or 0.0) / period_s) if rail.kind == "moving_average" and period_s else 0.0


@dataclass(frozen=True, slots=True)
class _Knots:
    """A cumulative energy known at (n,) times, and the (n - 1,) mean powers between them.

    Attributes:
        scatter_w: 95 % half-width of one such power about its neighbours.
        time_error_s: how far the times may be off.
    """

    mono: Floats
    total_j: Floats
    power_w: Floats
    scatter_w: float
    time_error_s: float

    def at(self, when: float, inner: float) -> tuple[float, float]:
        """Energy up to a moment, and its half-width. `inner` is 1 where the window lies after the moment, else 0."""
        k = int(np.clip(np.searchsorted(self.mono, when, side="right") - 1, 0, len(self.power_w) - 1))
        width_s, mean_w = float(self.mono[k + 1] - self.mono[k]), float(self.power_w[k])
        share = (when - float(self.mono[k])) / width_s
        if not 0 <= share <= 1:
            beyond_s = width_s * (max(share - 1, 0.0) - min(share, 0.0))
            return float(self.total_j[k]) + share * width_s * mean_w, ANYWHERE * mean_w * beyond_s
        before_w, after_w = float(self.power_w[max(k - 1, 0)]), float(self.power_w[min(k + 1, len(self.power_w) - 1)])
        stepped_w = _step_share(before_w, mean_w, after_w, share)
        # Without a step, what is not seen is a walk tied at both ends of the period; with one, the share inside the
        # window is only as well known as the power of the neighbour there.
        inside = abs(inner - share)
        middle = (self.mono[1:] + self.mono[:-1]) / 2
        swing_w = _swing_w(middle, self.power_w, when, max(self.time_error_s, width_s / 2))
        loose = share * (1 - share) if abs(after_w - before_w) <= self.scatter_w else inside + inside**2
        halves_j = (
            width_s * (stepped_w - share * mean_w),
            width_s * float(np.hypot(self.scatter_w, 2 * UNSEEN_SHARE * mean_w) * np.sqrt(loose)),
            swing_w * self.time_error_s,
        )
        return float(self.total_j[k]) + width_s * stepped_w, float(np.linalg.norm(halves_j))


def _between_knots(t: Floats, total_j: Floats, start: float, end: float, time_error_s: float) -> _Estimate:
    """Difference at both edges of a cumulative energy that is known at (n,) times."""
    power_w = np.diff(total_j) / np.diff(t)
    whole = (t[:-1] >= start) & (t[1:] <= end)
    scatter_w, factor = _scatter(((t[1:] + t[:-1]) / 2)[whole], power_w[whole])
    knots = _Knots(t, total_j, power_w, factor * scatter_w, time_error_s)
    from_j, from_half_j = knots.at(start, 1.0)
    to_j, to_half_j = knots.at(end, 0.0)
    return _Estimate(to_j - from_j, (from_half_j, to_half_j))


def _step_share(before_w: float, mean_w: float, after_w: float, share: float) -> float:
    """Mean power times share of time up to `share` of a period that holds one step from `before_w` to `after_w`.

    The mean of the period says where the step is. Where it lies outside the two levels there was more than a step, and
    what there was is split as a step at `share` would be.
    """
    low_w, high_w = sorted((before_w, after_w))
    if low_w < high_w and low_w - 1e-9 * high_w <= mean_w <= high_w * (1 + 1e-9):
        step_at = min(max((after_w - mean_w) / (after_w - before_w), 0.0), 1.0)
        return before_w * min(share, step_at) + after_w * max(share - step_at, 0.0)
    split_w = before_w * share + after_w * (1 - share)
    return mean_w * before_w * share / split_w if split_w > 0 else mean_w * share


def _tiles(rail: Rail, updates: Updates, start: float, end: float, time_error_s: float) -> _Estimate:
    """Readings one averaging time apart tile the window from both edges; the rest lies in the middle."""
    tile_s, window_s = rail.averaging_s or 0.0, end - start
    tiles = int(window_s / tile_s * (1 + 1e-9))
    ahead = (tiles + 1) // 2
    tops = np.concatenate((start + tile_s * np.arange(1, ahead + 1), end - tile_s * np.arange(tiles - ahead)))
    left_s = window_s - tiles * tile_s
    around = min(start + ahead * tile_s + (left_s + tile_s) / 2, end)

    def mean_w(until: float | Floats) -> Floats:
        return np.asarray(np.interp(until, updates.mono, updates.value))

    middle_w = float(mean_w(around))
    joules = tile_s * float(mean_w(tops).sum()) + left_s * middle_w
    inside = updates.inside(start + tile_s, end)
    scatter_w = float(np.std(updates.value[inside])) if inside.sum() > 2 else middle_w
    # A step at an edge is smeared over one tile after it.
    into_w = _swing_w(updates.mono, updates.value, start + tile_s / 2, tile_s / 2 + time_error_s)
    reaches = updates.mono[-1] > end + tile_s / 2
    out_of_w = (
        _swing_w(updates.mono, updates.value, end + tile_s / 2, tile_s / 2 + time_error_s) if reaches else middle_w
    )
    # The kink at the end of a smear is cut by up to a quarter of a refresh period.
    shift_s = time_error_s + updates.period_s / 4
    # A tile is read between two updates, each of which may be misdated.
    moves_w = np.diff(updates.value[inside])
    between = float(np.hypot(updates.blur_s / updates.period_s, 0.25)) if updates.period_s else 1.0
    read_w = 2 / 3**0.5 * between * float(np.sqrt(np.mean(moves_w**2))) if len(moves_w) else 0.0
    halves_j = (
        read_w * tile_s * tiles**0.5,
        _unseen_j(2 * scatter_w, middle_w, tile_s, left_s / tile_s),
        into_w * shift_s,
        out_of_w * shift_s,
        into_w * AVERAGING_SHARE * tile_s,
        middle_w * max(0.0, end - float(updates.mono[-1])),
        window_s * _rounding_w(updates, start, end),
    )
    return _Estimate(joules, halves_j)


def _unseen_j(scatter_w: float, level_w: float, length_s: float, share: float) -> float:
    """Half-width of the energy of a share of a stretch whose total is known: that of a random walk tied at both ends."""
    return float(np.hypot(scatter_w, 2 * UNSEEN_SHARE * level_w) * length_s * np.sqrt(max(share * (1 - share), 0.0)))


def _scatter(t: Floats, power_w: Floats) -> tuple[float, float]:
    """Standard deviation of a power about a straight line through its neighbours, and the factor to 95 %."""
    if len(t) < 3:
        return (float(np.ptp(power_w)) if len(t) == 2 else float(np.abs(power_w).sum())), 2.0
    ahead = (t[2:] - t[1:-1]) / (t[2:] - t[:-2])
    off_w = power_w[1:-1] - (ahead * power_w[:-2] + (1 - ahead) * power_w[2:])
    scatter_w = float(np.sqrt(np.mean(off_w**2 / (1 + ahead**2 + (1 - ahead) ** 2))))
    return scatter_w, _student(len(off_w))


def _student(free: int) -> float:
    """Student's t at 97.5 %, by its expansion in the degrees of freedom."""
    return 1.96 + 2.37 / free + 2.82 / free**2 + 2.56 / free**3


def _rounding_w(updates: Updates, start: float, end: float) -> float:
    """Half-width of the mean power over the window from the rounding of its readings.

    Roundings are independent where the power moves by more than a step between updates, else they may be all alike.
    """
    power_w = updates.value[updates.inside(start, end)]
    step_w = quantum(updates.value)
    independent = len(power_w) if np.std(power_w) > step_w / 2 else 1
    return float(2 * step_w / np.sqrt(12 * max(independent, 1)))
