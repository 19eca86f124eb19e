"""Doing it: a suite measured once on this machine, window by window, each kept on the disk as soon as it closes.

What is measured, from which instant to which: a fresh server is started for every condition of every pass, warmed up exactly as
the suite says, then N requests are released at one instant. The window runs from just before the first request is sent to
the last answer received, over as many such rounds as the suite asks for. Loading and warm-up are outside it.

    campaign.py   one run of a suite: steps, journal, what is left of an interrupted run
    window.py     one window of one condition on a server that stands ready
    forecast.py   how long the windows will be and how often the sensor will speak in them, before they are measured
    settings.py   settings of the machine in one phase alone, and whether it keeps to them
    run_gates.py  checks on all windows of a run together
    load.py       who used the CPU meanwhile
    bench.py      what a campaign needs from outside
    lock.py       one measurement at a time
    signals.py    a request to end, as an interruption that leaves everything in order
"""

from pytest_joules.protocol.bench import Bench, Progress, ServerFactory, Warm, warm
from pytest_joules.protocol.campaign import measure
from pytest_joules.protocol.lock import machine_lock, process_lock
from pytest_joules.protocol.settings import check as check_settings
from pytest_joules.protocol.settings import phased

__all__ = [
    "Bench",
    "Progress",
    "ServerFactory",
    "Warm",
    "check_settings",
    "machine_lock",
    "measure",
    "phased",
    "process_lock",
    "warm",
]
