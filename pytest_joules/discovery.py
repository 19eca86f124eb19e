"""Finding what belongs to a kind (meters, engines, knobs): the modules of its package, and entry points of other packages."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Broken:
    """Something that was found and cannot be imported; it takes its place in the list so that it can be named."""

    cause: str


def members(package: str, path: Iterable[str], entry_points: str, offers: str) -> dict[str, Any]:
    """Every module of a package that offers something, by its `NAME`, then the installed entry points.

    Args:
        package: dotted name of the package.
        path: its `__path__`.
        entry_points: group of entry points that outside packages use.
        offers: name that a module must define to be a member; modules whose name begins with `_` never are.

    Returns:
        The modules, or `Broken` in the place of one that cannot be imported: it must not hide the others.
    """
    found: dict[str, Any] = {}
    for info in pkgutil.iter_modules(list(path)):
        if info.name.startswith("_"):
            continue
        module = _loaded(functools.partial(importlib.import_module, f"{package}.{info.name}"))
        if isinstance(module, Broken):
            found[info.name] = module
        elif hasattr(module, offers):
            found[module.NAME] = module
    for entry in importlib.metadata.entry_points(group=entry_points):
        found.setdefault(entry.name, _loaded(entry.load))
    return found


def _loaded(load: Callable[[], Any]) -> Any:
    try:
        return load()
    except Exception as error:
        return Broken(f"{type(error).__name__}: {error}")
