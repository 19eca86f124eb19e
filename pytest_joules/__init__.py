"""Commit a prediction about energy per token as a pytest test; run it; read the report as the note."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_joules.crossing import crossover
    from pytest_joules.sweep import Column, Row, Sweep

__version__ = "0.1.0"
__all__ = ["Column", "Row", "Sweep", "__version__", "crossover"]


def __getattr__(name: str) -> Any:
    # The table types are imported on first use: a session without predictions must not pay for numpy.
    if name in {"Column", "Row", "Sweep"}:
        from pytest_joules import sweep

        return getattr(sweep, name)
    if name == "crossover":
        from pytest_joules.crossing import crossover

        return crossover
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
