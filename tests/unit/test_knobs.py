import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from pytest_joules.errors import EngineError, Unmeasured, UsageError
from pytest_joules.knobs import cpu_max_mhz, knobs


@pytest.fixture
def policies(tmp_path, monkeypatch):
    files = []
    for number in (0, 1):
        folder = tmp_path / f"devices/system/cpu/cpufreq/policy{number}"
        folder.mkdir(parents=True)
        files.append(folder / "scaling_max_freq")
        files[-1].write_text("4200000\n")
    monkeypatch.setenv("JOULES_SYSFS_ROOT", str(tmp_path))
    return files


def test_a_cap_is_held_and_put_back(policies):
    with cpu_max_mhz.held(1800):
        assert [f.read_text() for f in policies] == ["1800000"] * 2
    assert [f.read_text() for f in policies] == ["4200000\n"] * 2


def test_a_cap_is_put_back_when_the_block_fails(policies):
    with pytest.raises(ZeroDivisionError), cpu_max_mhz.held(1800):
        raise ZeroDivisionError
    assert [f.read_text() for f in policies] == ["4200000\n"] * 2


def test_a_cap_is_put_back_after_kill_9(policies):
    code = textwrap.dedent("""
        import time
        from pytest_joules.knobs import cpu_max_mhz
        with cpu_max_mhz.held(1800):
            print("held", flush=True)
            time.sleep(60)
    """)
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "held\n"
    assert [f.read_text() for f in policies] == ["1800000"] * 2
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    deadline = time.monotonic() + 20
    while [f.read_text() for f in policies] != ["4200000\n"] * 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [f.read_text() for f in policies] == ["4200000\n"] * 2


def test_a_value_the_machine_does_not_keep_is_an_error(policies, monkeypatch):
    policies[1].unlink()
    policies[1].symlink_to("/dev/null")
    with pytest.raises(EngineError, match="was set to 1800000 and reads"), cpu_max_mhz.held(1800):
        pass
    assert policies[0].read_text() == "4200000\n"


def test_without_cpufreq_it_is_unmeasured(tmp_path, monkeypatch):
    monkeypatch.setenv("JOULES_SYSFS_ROOT", str(tmp_path))
    with pytest.raises(Unmeasured, match="no cpufreq"):
        cpu_max_mhz.held(1800)


@pytest.mark.parametrize("value", [0, -5, "fast", True, None])
def test_a_value_that_is_no_clock_is_a_usage_error(policies, value):
    with pytest.raises(UsageError, match="expected a clock in MHz"):
        cpu_max_mhz.held(value)


def test_knobs_are_found_by_listing_the_package():
    assert knobs()["cpu_max_mhz"] is cpu_max_mhz
