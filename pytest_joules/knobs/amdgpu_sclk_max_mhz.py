"""The highest shader clock of AMD graphics, by the overdrive table `pp_od_clk_voltage` of each card.

The kernel's DOC of that name (drivers/gpu/drm/amd/pm/amdgpu_pm.c) says: "First select manual using power_dpm_force_performance_level"; "s
index clock", "The index should be 0 if to set minimum clock. And 1 if to set maximum clock"; "write 'c' (commit) to the file to commit
your changes"; 'If you want to reset to the default power levels, write "r" (reset)'. What the file shows differs by chip:

- APUs (Van Gogh: swsmu/smu11/vangogh_ppt.c; Phoenix, Strix and Strix Halo: smu13 and smu14/smu_v14_0_0_ppt.c) have under `OD_SCLK:` the two
  lines `0: 600Mhz` and `1: 2900Mhz`, and under `OD_RANGE:` the line `SCLK: 600Mhz 2900Mhz`; Van Gogh adds clocks of the CPU cores. They have
  no voltages. smu_v14_0_od_edit_dpm_table() answers EINVAL unless the level is manual, and refuses a commit whose lowest clock is over the
  highest. The table is there without further ado: amdgpu_dpm_is_overdrive_supported() is `smu->od_enabled || smu->is_apu`.
- Discrete cards from Vega 20 to RDNA 3 have the same two lines, beside memory clocks and voltages, and only with overdrive switched on:
  bit 14 of amdgpu.ppfeaturemask (0x4000), at boot. Other settings in the table stay as they are, so it is not reset: `r` would take
  away somebody's undervolting. The earlier clock is written back instead.
- RDNA 4 has `OD_SCLK_OFFSET:` alone, an offset to a clock that is not told, so no cap can be set.
- Polaris, Vega 10 and older have a voltage beside each state. A cap would be a new table, which this does not write.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from pytest_joules.errors import Unmeasured, UsageError
from pytest_joules.knobs import _amdgpu, _held

NAME = "amdgpu_sclk_max_mhz"

TABLE = "pp_od_clk_voltage"

_SECTION = re.compile(r"(\w+):")
_LIMIT = re.compile(r"([01]):\s*(\d+)\s*mhz", re.IGNORECASE)
_RANGE = re.compile(r"SCLK:\s*(\d+)\s*mhz\s+(\d+)\s*mhz", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """Shader clocks of a table in MHz: the limits in force, and between which they may be set."""

    low: int
    high: int
    lowest: int
    highest: int


def parse(table: str) -> Clocks | str:
    """The clocks of a `pp_od_clk_voltage`, or why there are none to be had."""
    section, limits, allowed = "", {}, None
    for line in map(str.strip, table.splitlines()):
        if heading := _SECTION.fullmatch(line):
            section = heading[1]
        elif section == "OD_SCLK" and (limit := _LIMIT.fullmatch(line)):
            limits[limit[1]] = int(limit[2])
        elif section == "OD_RANGE" and (both := _RANGE.fullmatch(line)):
            allowed = int(both[1]), int(both[2])
        elif section == "OD_SCLK" and "mv" in line.lower():
            return "has a voltage beside every clock, as on Polaris and Vega 10, and a cap would be a new table"
    if "OD_SCLK_OFFSET:" in table:
        return "has only an offset to the clock, as on RDNA 4, and no highest clock; take amdgpu_performance_level"
    if not table.strip():
        return (
            "is empty: overdrive is switched off; boot with amdgpu.ppfeaturemask=0xffffffff (bit 0x4000 is what counts)"
        )
    if len(limits) < 2 or allowed is None:
        return "has no shader clocks that are known (OD_SCLK with two lines, and SCLK under OD_RANGE)"
    return Clocks(low=limits["0"], high=limits["1"], lowest=allowed[0], highest=allowed[1])


def takes() -> str:
    """What values this machine takes, in words. Raises `Unmeasured` as `held` does."""
    tables = [card.device / TABLE for card in _amdgpu.cards(NAME)]
    clocks = [_clocks(table) for table in tables]
    for table in tables:
        _held.writable(NAME, table)
    return _held.numbers("MHz", max(one.lowest for one in clocks), min(one.highest for one in clocks))


def held(value: object) -> AbstractContextManager[None]:
    """Cap the shader clock of every AMD card at `value` MHz inside the block.

    Raises:
        UsageError: the value is out of the table's range.
        EngineError: `uncapped` is asked for and a cap is there.
        Unmeasured: this machine has no such card or table, or this user may not write it.
    """
    wanted = _held.limit(NAME, value, "MHz")
    changes, caps = [], []
    for card in _amdgpu.cards(NAME):
        path = card.device / TABLE
        clocks = _clocks(path)
        if wanted is None:
            _held.not_capped(NAME, path, clocks.high, clocks.highest, "MHz")
            continue
        mhz = round(_held.within(NAME, wanted, "MHz", clocks.lowest, clocks.highest))
        if mhz < clocks.low:
            raise UsageError(
                f"knob {NAME}: {mhz} MHz is under the lowest clock that somebody has set in {path}, {clocks.low} MHz; lower that first"
            )
        changes += [_amdgpu.level(NAME, card, "manual"), _capped(path, clocks, mhz)]
        caps.append(_amdgpu.cap(card, mhz))
    return _held.held(NAME, changes, caps)


def _capped(path: Path, clocks: Clocks, mhz: int) -> _held.Change:
    """The change of one table, put back before the level is: not every chip lets it be written at another one."""
    _held.writable(NAME, path)
    return _held.Change(
        what=str(path),
        wanted=f"{mhz} MHz",
        steps=({"path": str(path), "texts": [f"s 1 {mhz}\n", "c\n"]},),
        back=(
            # Somebody may have changed the level meanwhile, and at another one the table is not taken.
            {"path": str(path.parent / _amdgpu.LEVEL), "texts": ["manual"]},
            {"path": str(path), "texts": [f"s 1 {clocks.high}\n", "c\n"], "instead": ["r\n", "c\n"]},
        ),
        now=lambda: _highest(path),
    )


def _highest(path: Path) -> str:
    clocks = parse(path.read_text())
    return clocks if isinstance(clocks, str) else f"{clocks.high} MHz"


def _clocks(path: Path) -> Clocks:
    if not path.exists():
        raise Unmeasured(
            f"knob {NAME}: there is no {path}: overdrive is switched off; boot with amdgpu.ppfeaturemask=0xffffffff (bit 0x4000 is what counts)"
        )
    found = parse(_held.reading(NAME, path))
    if isinstance(found, str):
        raise Unmeasured(f"knob {NAME}: {path} {found}")
    return found
