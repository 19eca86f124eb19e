"""Where the kernel's files are looked for."""

from __future__ import annotations

import os
from pathlib import Path

ROOT_VARIABLE = "JOULES_SYSFS_ROOT"


def root() -> Path:
    """The folder that stands for /sys: /sys, or the one that the environment variable `JOULES_SYSFS_ROOT` names."""
    return Path(os.environ.get(ROOT_VARIABLE) or "/sys")
