"""Plugs that run Tasmota: `--joules-meter tasmota:ADDRESS`.

Tuya, whose boards most of these plugs are, states 5 % for those that count the pulses of a BL0937 or HLW8012 and 3 % for
those that talk to a BL0942 or HLW8032 (developer documentation, "Energy Metering"). A plug does not say which chip it has,
nor whether its owner has calibrated it: the wider of the two is taken.
"""

from pytest_joules.meters.plug import Make, finder

NAME = "tasmota"

find = finder(
    Make(
        name=NAME,
        path="/cm?cmnd=Status%2010",
        field=("StatusSNS", "ENERGY", "Power"),
        note="read at the wall, mostly in whole watts: the supply's losses and all that hangs on the same plug are in it",
        calibration=0.05,
    )
)
