"""Runs that cap the CPU's clock, on a made-up /sys whose clocks do not care about it."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from players.sysfs_player import Sysfs

FREE, CLOCK = 4_200_000, 2_000_000
CPU = "devices/system/cpu"


class Capped:
    """The files of one CPU."""

    def __init__(self, folder: Path) -> None:
        policy = f"{CPU}/cpufreq/policy0"
        Sysfs(folder).write(
            {
                f"{policy}/scaling_max_freq": f"{FREE}\n",
                f"{policy}/cpuinfo_max_freq": f"{FREE}\n",
                f"{CPU}/cpu0/cpufreq/scaling_cur_freq": f"{CLOCK}\n",
            }
        )
        self.cap = folder / policy / "scaling_max_freq"

    def khz(self) -> int:
        return int(self.cap.read_text() or "0")


@pytest.fixture
def capped(project: Any, tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Capped:
    made = Capped(tmp_path / "sys")
    monkeypatch.setitem(environment, "JOULES_SYSFS_ROOT", str(tmp_path / "sys"))
    project._environment["JOULES_SYSFS_ROOT"] = str(tmp_path / "sys")
    project.write(
        "test_real.py",
        """
        import pytest

        pytestmark = pytest.mark.joules("real")

        def test_the_lower_cap_costs_speed(sweep):
            speed = sweep.tokens_per_s
            assert speed[1500] < speed[2500]
        """,
    )
    return made


def test_a_cap_that_the_machine_does_not_keep_voids_its_window_alone(project: Any, capped: Capped) -> None:
    project.suite(vary={"cpu_max_mhz": [2500, 1500]})
    result = project.run("--joules-exploratory")
    run = project.stored().run
    gates = {w.condition["cpu_max_mhz"]: {g.name: g for g in w.gates} for w in run.windows if w.role == "measured"}
    assert {cap: found["settings in force"].outcome for cap, found in gates.items()} == dict.fromkeys(gates, "pass")
    assert gates[2500]["cap held"].outcome == "pass"
    assert gates[1500]["cap held"].outcome == "void"
    result.stdout.fnmatch_lines("*cpu.highest_clock 2000 MHz against 1500 MHz set (limit: 3% over what was set)*")
    assert capped.khz() == FREE


def test_kill_9_in_a_capped_window_lifts_the_cap(project: Any, capped: Capped, until: Any) -> None:
    project.suite(vary={"cpu_max_mhz": [2500, 1500]}, protocol={"min_window_s": 60})
    process = project.start("--joules-exploratory")
    until(lambda: process.poll() is not None or (capped.khz() == 2_500_000 and project.server_at_work()))
    assert process.poll() is None, process.communicate()[0]
    os.kill(process.pid, signal.SIGKILL)
    killed = time.monotonic()
    until(lambda: capped.khz() == FREE)
    print(f"the cap was gone {time.monotonic() - killed:.3f} s after kill -9")
    process.communicate(timeout=30)
    project.assert_no_orphans()


def test_a_cap_in_decode_alone_is_switched_in_every_round_and_recorded(project: Any, capped: Capped) -> None:
    project.suite(
        vary={"parallel": [2]}, knobs={"cpu_max_mhz": {"decode": 2500}}, request={"stream": True, "answer_tokens": 64}
    )
    project.write(
        "test_real.py",
        """
        import pytest

        pytestmark = pytest.mark.joules("real")

        def test_two_at_once(sweep):
            assert sweep.tokens_per_s[2] > 1
        """,
    )
    project.run("--joules-exploratory")
    [window] = [w for w in project.stored().run.windows if w.role == "measured"]
    switches = window.engine["switches"]
    assert len(switches) == window.rounds
    for index, times in enumerate(switches):
        last_first = max(answer.first_token_s for answer in window.requests if answer.round == index)
        assert last_first <= times["first_tokens_s"] <= times["held_s"] <= times["lifting_s"] <= times["lifted_s"]
        assert times["first_tokens_s"] < max(a.received_s for a in window.requests if a.round == index)
    assert capped.khz() == FREE
