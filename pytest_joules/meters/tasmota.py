"""Plugs that run Tasmota: `--joules-meter tasmota:ADDRESS`."""

from pytest_joules.meters.plug import Make, finder

NAME = "tasmota"

find = finder(
    Make(
        name=NAME,
        path="/cm?cmnd=Status%2010",
        field=("StatusSNS", "ENERGY", "Power"),
        note="read at the wall, mostly in whole watts: the supply's losses and all that hangs on the same plug are in it",
    )
)
