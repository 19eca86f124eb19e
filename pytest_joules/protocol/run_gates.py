"""Checks on all windows of a run together."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from pytest_joules import gates, machine
from pytest_joules.meters import Chosen
from pytest_joules.metrics import energy_per_token_mj
from pytest_joules.records import Gate, Window
from pytest_joules.suite import Suite
from pytest_joules.sweep import label


def run_gates(suite: Suite, chosen: Chosen, windows: Sequence[Window]) -> list[Gate]:
    """Spread over the passes, run order, drift, the control repeats, and meters further out."""
    limits, passes = suite.gates, suite.protocol.passes
    known = [(w, figure) for w in windows if (figure := energy_per_token_mj(w)) is not None and w.outcome != "void"]
    table: dict[str, dict[int, float]] = {}
    controls: dict[int, float] = {}
    for window, figure in known:
        if window.role == "measured":
            table.setdefault(label(window.condition), {})[window.pass_index] = figure
        elif window.role == "control":
            controls[window.pass_index] = figure
    whole = {name: [figures[i] for i in range(passes)] for name, figures in table.items() if len(figures) == passes}
    spreads = [(name, (max(f) - min(f)) / statistics.fmean(f)) for name, f in whole.items() if len(f) > 1]
    found = [gates.pass_spread(spreads, limits.spread_flag_above)]
    if passes > 1:
        by_pass = [[figures[i] for figures in whole.values()] for i in range(passes)]
        found.append(gates.run_order(*by_pass, flag_above=limits.run_order_flag_above))
        in_time = [(label(w.condition), w.start_mono, f) for w, f in known if w.role in ("measured", "control")]
        found.append(gates.drift(in_time, limits.drift_flag_above))
    if suite.protocol.control_repeat:
        own = table.get(label(suite.conditions[0]), {})
        pairs = [(own.get(i), controls.get(i)) for i in range(passes)]
        found.append(gates.control_repeat(pairs, limits.spread_flag_above))
    return found + _outer_meters(chosen, windows)


def _outer_meters(chosen: Chosen, windows: Sequence[Window]) -> list[Gate]:
    """Meters further out, recorded beside the one that counts, against it."""
    found = []
    for meter in chosen.beside:
        outer = [rail.name for rail in chosen.part(meter).rails]
        pairs = []
        for window in windows:
            beside = [rail.energy_j for rail in window.rails if rail.rail in outer and rail.energy_j is not None]
            if window.energy_j is not None and len(beside) == len(outer):
                pairs.append((window.energy_j / window.window_s, sum(beside) / window.window_s))
        found.append(gates.wall_slope([p[0] for p in pairs], [p[1] for p in pairs], chosen.name, meter.name))
    return found


def load_gate(busy: Sequence[str]) -> Gate:
    """What else was at work when the run began."""
    return Gate(
        name="other load at the start",
        outcome="flag" if busy else "pass",
        value=", ".join(busy) or "none",
        limit="10 % of a core",
        remedy="end these programs and measure again" if busy else "",
    )


def supply_gate(before: machine.PowerState, after: machine.PowerState) -> Gate:
    """A machine that changed its power source is two machines."""
    changed = before.on_ac != after.on_ac or before.low_power_mode != after.low_power_mode
    shown = {True: "mains", False: "battery", None: "mains or unknown"}[after.on_ac]
    low = ", low-power mode" if after.low_power_mode else ""
    return Gate(
        name="power source",
        outcome="void" if changed else "flag" if after.low_power_mode else "pass",
        value=f"changed during the run, now {shown}{low}" if changed else f"{shown}{low}",
        limit="the same throughout, no low-power mode",
        remedy="measure again on one power source" if changed or after.low_power_mode else "",
    )
