"""Shelly plugs of the second generation and later: `--joules-meter shelly:ADDRESS`.

Their interface documentation states no accuracy, so no calibration is given.
"""

from pytest_joules.meters.plug import Make, finder

NAME = "shelly"

find = finder(
    Make(
        name=NAME,
        path="/rpc/Switch.GetStatus?id=0",
        field=("apower",),
        note="read at the wall: the supply's losses and all that hangs on the same plug are in it",
    )
)
