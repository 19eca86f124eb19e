import contextlib
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from pytest_joules.errors import MeterError
from pytest_joules.meters._helper import Helper

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process group is all there is")


def there(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone_within(seconds: float, *pids: int) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(there, pids)):
        if time.monotonic() > deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return False
        time.sleep(0.01)
    return True


def first_number(helper: Helper) -> int:
    [line] = helper.lines(10.0)
    return int(line.text)


@pytest.mark.parametrize("apart", ["", pytest.param("setsid ", marks=linux_only)])
def test_a_child_that_the_program_leaves_behind_is_ended(apart: str) -> None:
    helper = Helper(["sh", "-c", f"{apart}sleep 3600 >/dev/null 2>&1 & echo $!"])
    sleeper = first_number(helper)
    with pytest.raises(MeterError, match="sh ended with exit code 0"):
        helper.lines(10.0)
    helper.close()
    assert gone_within(2.0, sleeper)


@linux_only
def test_nothing_is_left_when_its_guard_is_killed() -> None:
    helper = Helper(["sh", "-c", "trap '' TERM; sleep 3600 & echo $!; wait"])
    sleeper = first_number(helper)
    [guard] = psutil.Process().children()
    guard.kill()
    helper.close()
    assert gone_within(2.0, helper.pid, sleeper)


@linux_only
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_silent_program_ends_when_this_process_is_killed(number: signal.Signals) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"
    body = f"""
import sys, time
from pytest_joules.meters._helper import Helper
helpers = [Helper(["sleep", "3600"]), Helper([sys.executable, "-S", "-c", {deaf!r}])]
print(*(helper.pid for helper in helpers), flush=True)
time.sleep(3600)
"""
    with subprocess.Popen([sys.executable, "-c", body], stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout
            pids = [int(pid) for pid in parent.stdout.readline().split()]
            assert len(pids) == 2
            assert all(map(there, pids))
        finally:
            parent.send_signal(number)
    assert gone_within(2.0, *pids)


def test_a_program_that_is_only_slow_to_end_is_not_left_behind() -> None:
    helper = Helper(["sh", "-c", "trap '' TERM; echo $$; while :; do sleep 0.05; done"])
    pid = first_number(helper)
    assert pid == helper.pid
    begun = time.monotonic()
    helper.close()
    helper.close()
    assert time.monotonic() - begun < 2.0
    assert gone_within(0.5, pid)
