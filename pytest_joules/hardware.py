"""Hardware sheets: what is stated or was measured of machines, from the package's own file or one of the person's."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import TypeAdapter, ValidationError

from pytest_joules.errors import UsageError
from pytest_joules.records import Run
from pytest_joules.roofline import FIGURES, NUMBER_TYPES, Quantity, Sheet, SheetBasis
from pytest_joules.suite import mapping_of
from pytest_joules.words import nearest

BUILT_IN = Path(__file__).with_name("sheets.yaml")
_KEYS = tuple(f.name for f in dataclasses.fields(Sheet) if f.name != "name")
_QUANTITY = tuple(f.name for f in dataclasses.fields(Quantity))
_SHEET = TypeAdapter(Sheet)

_Places = Mapping[tuple[str | int, ...], str]


def read(path: Path = BUILT_IN) -> dict[str, Sheet]:
    """The sheets of a file by name.

    Raises:
        UsageError: the file cannot be read, has a key that is not known, or a figure that is none.
    """
    data, places = mapping_of(
        path, "a file of sheets holds NAME: {bandwidth_gb_s: ...}; docs/roofline.md shows the keys"
    )
    if not data:
        raise UsageError(f"{path}: there is no sheet in it; docs/roofline.md shows the keys")
    if faults := list(_faults(data, places)):
        raise UsageError("; ".join(faults))
    found = {}
    for name, sheet in data.items():
        try:
            found[name] = _SHEET.validate_json(json.dumps({"name": name, **sheet}), strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            place = (name, *first["loc"])
            raise UsageError(
                f"{places.get(place, places[(name,)])}: {'.'.join(map(str, place))}: {first['msg'].removeprefix('Input ')}, "
                f"not {first['input']!r}"
            ) from None
    return found


def _faults(data: Mapping[str, Any], places: _Places) -> Iterator[str]:
    for name, sheet in data.items():
        if not isinstance(sheet, dict):
            yield f"{places[name,]}: {name}: a sheet is a mapping of {', '.join(_KEYS)}"
            continue
        for key in sheet:
            if key not in _KEYS:
                yield f"{places[name, key]}: {name}: there is no figure {key!r}; units are part of the name: {_known(key, _KEYS)}"
        for key in FIGURES:
            value = sheet.get(key)
            if value is None or key == "peak_tflop_s":
                continue
            yield from _quantity_faults(value, key, (name, key), places)
        peaks = sheet.get("peak_tflop_s", {})
        if not isinstance(peaks, dict):
            yield f"{places[name, 'peak_tflop_s']}: {name}: peak_tflop_s holds a figure for each number type: {', '.join(NUMBER_TYPES)}"
            peaks = {}
        for kind, value in peaks.items():
            if kind not in NUMBER_TYPES:
                yield f"{places[name, 'peak_tflop_s', kind]}: {name}: {kind!r} is no number type: {_known(kind, NUMBER_TYPES)}"
            else:
                yield from _quantity_faults(value, "peak_tflop_s", (name, "peak_tflop_s", kind), places)
        idle_w, limit_w = (_number(sheet.get(key)) for key in ("idle_w", "limit_w"))
        if idle_w is not None and limit_w is not None and idle_w > limit_w:
            yield f"{places[name, 'idle_w']}: {name}: idle_w ({idle_w:g} W) is above limit_w ({limit_w:g} W); one of the two is wrong"
        absent = sheet.get("absent", {})
        for key in absent if isinstance(absent, dict) else ():
            if key not in FIGURES:
                yield f"{places[name, 'absent', key]}: {name}: absent: there is no figure {key!r}: {_known(key, FIGURES)}"
            elif sheet.get(key):
                yield f"{places[name, 'absent', key]}: {name}: {key} is said to be absent, and stands at {places[name, key]}"


def _number(quantity: Any) -> float | None:
    """The value of a figure, where it has one."""
    value = quantity.get("value") if isinstance(quantity, dict) else None
    return value if isinstance(value, int | float) else None


def _quantity_faults(value: Any, figure: str, at: tuple[str, ...], places: _Places) -> Iterator[str]:
    place, named = places[at], ".".join(at)
    if not isinstance(value, dict):
        yield f"{place}: {named}: expected {{value: NUMBER, basis: ..., source: ...}}, not {value!r}"
        return
    for key in value:
        if key not in _QUANTITY:
            yield f"{places[(*at, key)]}: {named}: there is no {key!r}: {_known(key, _QUANTITY)}"
    for key in _QUANTITY:
        if key not in value:
            yield f"{place}: {named}: {key} is missing"
    number = value.get("value", 1)
    if isinstance(number, bool) or not isinstance(number, int | float) or number <= 0:
        yield f"{place}: {named}: value is a number above zero ({FIGURES[figure]}), without its unit, not {number!r}"
    if "basis" in value and value["basis"] not in get_args(SheetBasis):
        yield f"{place}: {named}: there is no basis {value['basis']!r}: {_known(str(value['basis']), get_args(SheetBasis))}"


def _known(word: str, names: Any) -> str:
    return f"{', '.join(names)}{nearest(word, names)}"


def named(sheets: Mapping[str, Sheet], name: str) -> Sheet:
    """The sheet of this name.

    Raises:
        UsageError: there is none.
    """
    if name not in sheets:
        raise UsageError(
            f"there is no sheet {name!r}{nearest(name, sheets)}; there are {', '.join(sheets)}; --sheet FILE takes one of your own"
        )
    return sheets[name]


def decoded_on(run: Run) -> str:
    """The part of a machine that a run decoded on, as the results call it: its first graphics card, else its chip."""
    no_layer_on_card = run.suite.get("server", {}).get("gpu_layers") == 0
    cards = () if no_layer_on_card else run.machine.get("gpus", ())
    return str(next(iter(cards), run.machine.get("chip")))


def is_of(sheet: Sheet, part: str) -> bool:
    """Whether a sheet is of this card or chip."""
    return part.casefold() in (chip.casefold() for chip in sheet.chips)


def dumped(sheet: Sheet) -> str:
    """A sheet as a file that `read` takes; figures it does not have are left out."""
    data = {
        key: value for key, value in dataclasses.asdict(sheet).items() if key != "name" and value not in (None, (), {})
    }
    plain = json.loads(json.dumps({sheet.name: data}))
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120)
