import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from pytest_joules import knobs as package
from pytest_joules import machine
from pytest_joules.errors import EngineError, Unmeasured, UsageError
from pytest_joules.knobs import _held, _restorer, cpu_boost, cpu_max_mhz, intel_pstate_max_percent, knobs

CPU = "devices/system/cpu"
BEFORE = "4200000\n"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Mapping[str, str]], Path]]:
    """A folder that stands for /sys, with the given files; nothing is held or left to tell afterwards."""
    root = tmp_path / "sys"
    monkeypatch.setenv("JOULES_SYSFS_ROOT", str(root))
    monkeypatch.setenv("JOULES_STATE_DIR", str(tmp_path / "state"))

    def build(files: Mapping[str, str]) -> Path:
        root.mkdir(exist_ok=True)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        return root

    yield build
    assert package.active() == ()
    package.told()


@pytest.fixture
def policies(tree: Callable[[Mapping[str, str]], Path]) -> list[Path]:
    root = tree(
        {f"{CPU}/cpufreq/policy{n}/scaling_max_freq": BEFORE for n in (0, 1)}
        | {f"{CPU}/cpufreq/policy{n}/cpuinfo_max_freq": BEFORE for n in (0, 1)}
        | {f"{CPU}/cpufreq/policy{n}/cpuinfo_min_freq": "400000\n" for n in (0, 1)}
    )
    return [root / CPU / f"cpufreq/policy{n}/scaling_max_freq" for n in (0, 1)]


def read(files: list[Path]) -> list[int]:
    # A file is empty for a moment while it is written; in /sys it never is.
    return [int(file.read_text() or "0") for file in files]


def states(folder: Path) -> list[Path]:
    return list((folder / "state" / "knobs").glob("*"))


def test_a_cap_is_held_and_put_back(policies: list[Path], tmp_path: Path) -> None:
    with cpu_max_mhz.held(1800):
        assert read(policies) == [1_800_000] * 2
        assert [one.knob for one in package.active()] == ["cpu_max_mhz"]
        assert len(states(tmp_path)) == 1
    assert read(policies) == [4_200_000] * 2
    assert states(tmp_path) == []


def test_a_cap_is_put_back_when_the_block_fails(policies: list[Path]) -> None:
    with pytest.raises(ZeroDivisionError), cpu_max_mhz.held(1800):
        raise ZeroDivisionError
    assert read(policies) == [4_200_000] * 2


CHILD = textwrap.dedent("""
    import signal
    import time
    from pytest_joules.knobs import cpu_boost, cpu_max_mhz
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with cpu_max_mhz.held(1800), cpu_boost.held("off"):
        print("held", flush=True)
        time.sleep(60)
""")


@pytest.fixture
def child(policies: list[Path]) -> Iterator[subprocess.Popen[str]]:
    """A program that holds two knobs."""
    (policies[0].parents[1] / "boost").write_text("1\n")
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    assert read(policies) == [1_800_000] * 2
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def come_true(is_so: Callable[[], bool], within_s: float = 20.0) -> bool:
    deadline = time.monotonic() + within_s
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_so()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_two_knobs_are_put_back_however_the_program_dies(
    child: subprocess.Popen[str], policies: list[Path], number: signal.Signals, tmp_path: Path
) -> None:
    boost = policies[0].parents[1] / "boost"
    assert boost.read_text() == "0"
    os.kill(child.pid, number)
    child.wait()
    assert come_true(lambda: read(policies) == [4_200_000] * 2 and boost.read_text().strip() == "1")
    assert come_true(lambda: states(tmp_path) == [])


def restorer_of(child: subprocess.Popen[str]) -> int:
    ours = subprocess.run(["ps", "-o", "pid=", "--ppid", str(child.pid)], capture_output=True, text=True, check=True)
    [pid] = ours.stdout.split()
    return int(pid)


def test_what_a_killed_run_and_restorer_left_is_put_back_at_the_next_start_and_told(
    child: subprocess.Popen[str], policies: list[Path], tmp_path: Path
) -> None:
    assert package.put_back() == []  # a restorer watches over it
    restorer = restorer_of(child)
    # Stopped first: else it could be quicker than the second signal.
    os.kill(restorer, signal.SIGSTOP)
    child.kill()
    os.kill(restorer, signal.SIGKILL)
    child.wait()
    assert come_true(lambda: package.put_back() != [] or read(policies) == [4_200_000] * 2)
    assert read(policies) == [4_200_000] * 2
    assert states(tmp_path) == []


def left_behind(folder: Path, boot: str, steps: list[dict[str, object]]) -> Path:
    path = folder / "state" / "knobs" / "1-1.jsonl"
    path.parent.mkdir(parents=True)
    lines = [{"boot": boot, "python_path": []}, {"push": 1, "knob": "cpu_boost", "steps": steps}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"push": 2, "kn')
    return path


def test_a_left_over_is_told_in_words(tree: Callable[[Mapping[str, str]], Path], tmp_path: Path) -> None:
    boost = tree({"boost": "0"}) / "boost"
    left_behind(tmp_path, machine.boot_id(), [{"path": str(boost), "texts": ["1"]}])
    said = ["a killed run had left cpu_boost set; it is as it was before that run now"]
    assert package.put_back() == said
    assert package.told() == said
    assert boost.read_text() == "1"
    assert package.put_back() == []


def test_a_left_over_of_an_earlier_boot_is_forgotten(tree: Callable[[Mapping[str, str]], Path], tmp_path: Path) -> None:
    boost = tree({"boost": "0"}) / "boost"
    path = left_behind(tmp_path, "another boot", [{"path": str(boost), "texts": ["1"]}])
    assert package.put_back() == []
    assert (boost.read_text(), path.exists()) == ("0", False)


def test_a_left_over_that_cannot_be_put_back_stays_and_says_so(
    tree: Callable[[Mapping[str, str]], Path], tmp_path: Path
) -> None:
    tree({})
    path = left_behind(tmp_path, machine.boot_id(), [{"path": str(tmp_path / "gone"), "texts": ["1"]}])
    [said] = package.put_back()
    assert "still there" in said
    assert "run pytest as root" in said
    assert path.exists()
    assert not (tmp_path / "gone").exists()


def test_two_knobs_on_one_file_are_put_back_in_reverse_order(policies: list[Path]) -> None:
    with cpu_max_mhz.held(1800):
        with cpu_max_mhz.held(1200):
            assert read(policies) == [1_200_000] * 2
        assert read(policies) == [1_800_000] * 2
    assert read(policies) == [4_200_000] * 2


def test_the_restorer_puts_back_the_last_first() -> None:
    lines = [json.dumps(line) for line in ({"boot": ""}, {"push": 1}, {"push": 2}, {"pop": 1}, {"push": 3})]
    assert [one["push"] for one in _restorer.outstanding(lines)] == [3, 2]


def test_a_run_whose_restorer_was_killed_puts_everything_back_itself(policies: list[Path]) -> None:
    with cpu_max_mhz.held(1800):
        process = _held._RESTORER.process
        assert process is not None
        process.kill()
        process.wait()
    assert read(policies) == [4_200_000] * 2
    assert package.put_back() != []


def test_the_restorer_reaches_the_driver_of_a_gpu_by_the_path_it_is_given(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    (tmp_path / "pynvml.py").write_text(
        textwrap.dedent(f"""
            def nvmlInit(): pass
            def nvmlShutdown(): pass
            def nvmlDeviceGetHandleByIndex(index): return index
            def nvmlDeviceSetPowerManagementLimit(handle, limit):
                open({str(calls)!r}, "a").write(f"{{handle}} {{limit}}")
        """)
    )
    header = {"boot": "", "python_path": [str(tmp_path)]}
    step = {"nvml": "nvmlDeviceSetPowerManagementLimit", "gpu": 1, "arguments": [280_000]}
    push = {"push": 1, "knob": "nvml_power_limit_w", "steps": [step]}
    state = tmp_path / "state"
    subprocess.run(
        [sys.executable, "-I", "-S", _restorer.__file__, str(state), json.dumps(header)],
        input=json.dumps(push) + "\n", text=True, check=True, capture_output=True, timeout=30,
    )  # fmt: skip
    assert calls.read_text() == "1 280000"
    assert not state.exists()


def test_a_setting_that_somebody_else_changed_is_put_back_and_told(policies: list[Path]) -> None:
    with cpu_max_mhz.held(1800):
        policies[1].write_text("3000000")
        [one] = package.active()
        assert one.amiss() == [f"{policies[1]} was set to 1800000 and reads 3000000"]
    assert read(policies) == [4_200_000] * 2
    [said] = package.told()
    assert "somebody else changed it meanwhile" in said
    assert "reads 3000000; put back all the same" in said
    assert package.told() == []


def test_a_value_the_machine_does_not_keep_is_an_error(policies: list[Path]) -> None:
    policies[1].unlink()
    policies[1].symlink_to("/dev/null")
    with pytest.raises(EngineError, match="was set to 1800000 and reads ;"), cpu_max_mhz.held(1800):
        pass
    assert read(policies[:1]) == [4_200_000]


def test_a_setting_that_is_root_s_says_how_to_be_root(policies: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(
        Unmeasured, match=r"scaling_max_freq can be written by root only; run pytest as root: sudo -E .* -m pytest"
    ):
        cpu_max_mhz.held(1800)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(Unmeasured, match="mounted read-only, as in a container"):
        cpu_max_mhz.held(1800)


def test_a_refusal_while_it_is_set_changes_nothing(policies: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(step: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(_restorer, "apply", refuse)
    with pytest.raises(Unmeasured, match="by root only"), cpu_max_mhz.held(1800):
        pass
    assert package.told() == []
    assert read(policies) == [4_200_000] * 2


def test_nothing_is_changed_where_the_state_cannot_be_kept(
    policies: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("JOULES_STATE_DIR", str(tmp_path / "file"))
    with (
        pytest.raises(EngineError, match=r"nothing was changed: .* cannot be made .*JOULES_STATE_DIR"),
        cpu_max_mhz.held(1800),
    ):
        pass
    assert read(policies) == [4_200_000] * 2


def test_without_cpufreq_it_is_unmeasured(tree: Callable[[Mapping[str, str]], Path]) -> None:
    tree({})
    with pytest.raises(Unmeasured, match="no cpufreq"):
        cpu_max_mhz.held(1800)
    with pytest.raises(Unmeasured, match="so boost cannot be switched"):
        cpu_boost.held("off")
    with pytest.raises(Unmeasured, match="does not run the driver intel_pstate"):
        intel_pstate_max_percent.held(50)


@pytest.mark.parametrize("value", [-5, None, "1800MHz", True])
def test_a_wrong_value_is_told_on_a_machine_without_the_setting(
    tree: Callable[[Mapping[str, str]], Path], value: object
) -> None:
    tree({})
    limits = [name for name in knobs() if re.search(r"_max_|_limit_", name)]
    assert len(limits) == 5
    for name in limits:
        with pytest.raises(
            UsageError, match=f"knob {name}: expected a number of .* above 0 or uncapped, not {value!r}"
        ):
            package.check([{"cpu_max_mhz": 1800}, {name: value}])


@pytest.mark.parametrize("value", [0, -5, "fast", True, None])
def test_a_value_that_is_no_clock_is_a_usage_error(policies: list[Path], value: object) -> None:
    with pytest.raises(UsageError, match="expected a number of MHz above 0 or uncapped"):
        cpu_max_mhz.held(value)


@pytest.mark.parametrize("mhz", [399, 4201])
def test_a_clock_out_of_range_names_the_range(policies: list[Path], mhz: int) -> None:
    with pytest.raises(UsageError, match=f"{mhz} MHz is out of range; this machine allows 400 to 4200 MHz"):
        cpu_max_mhz.held(mhz)


def test_what_a_knob_takes_here_is_told_in_words(
    policies: list[Path], tree: Callable[[Mapping[str, str]], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(
        {f"{CPU}/intel_pstate/{name}": "9\n" for name in ("max_perf_pct", "min_perf_pct")}
        | {f"{CPU}/cpufreq/boost": "1\n"}
    )
    assert [knob.takes() for knob in (cpu_max_mhz, intel_pstate_max_percent, cpu_boost)] == [
        "400 to 4200 MHz, or uncapped",
        "9 to 100 %, or uncapped",
        "on or off",
    ]
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for knob in (cpu_max_mhz, intel_pstate_max_percent, cpu_boost):
        with pytest.raises(Unmeasured, match="can be written by root only"):
            knob.takes()


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(None, None, "a number of W"), (None, 350.0, "up to 350 W"), (100.0, None, "100 W and more"), (100.0, 350.0, "100 to 350 W")],
)  # fmt: skip
def test_a_range_of_which_an_end_is_not_told(low: float | None, high: float | None, said: str) -> None:
    assert _held.numbers("W", low, high) == f"{said}, or uncapped"


def test_uncapped_changes_nothing_and_is_refused_where_it_is_not_true(policies: list[Path], tmp_path: Path) -> None:
    with cpu_max_mhz.held("uncapped"):
        assert states(tmp_path) == []
        assert [(one.knob, one.changes, one.caps) for one in package.active()] == [("cpu_max_mhz", (), ())]
    policies[1].write_text("1500000\n")
    with pytest.raises(EngineError, match=r"to 1500 MHz of 4200 MHz; lift that first"):
        cpu_max_mhz.held("uncapped")


def test_percent_of_intel_pstate_is_a_share_of_the_highest_clock(
    policies: list[Path], tree: Callable[[Mapping[str, str]], Path]
) -> None:
    folder = tree({f"{CPU}/intel_pstate/max_perf_pct": "100\n", f"{CPU}/intel_pstate/min_perf_pct": "9\n"}) / CPU
    with pytest.raises(UsageError, match="this machine allows 9 to 100 %"):
        intel_pstate_max_percent.held(5)
    with intel_pstate_max_percent.held(50):
        assert (folder / "intel_pstate/max_perf_pct").read_text() == "50"
        [[cap]] = [one.caps for one in package.active()]
        assert (cap.of, cap.at_most) == ("cpu.highest_clock", 2100.0)
    assert (folder / "intel_pstate/max_perf_pct").read_text() == "100"


@pytest.mark.parametrize("value", ["off", False])
def test_boost_is_switched_by_either_file(
    policies: list[Path], tree: Callable[[Mapping[str, str]], Path], value: object
) -> None:
    turbo = tree({f"{CPU}/intel_pstate/no_turbo": "0\n"}) / CPU / "intel_pstate/no_turbo"
    with cpu_boost.held(value):
        assert turbo.read_text() == "1"
        assert [cap.at_most for one in package.active() for cap in one.caps] == [None]
    tree({f"{CPU}/cpufreq/policy0/base_frequency": "2000000\n"})
    with cpu_boost.held(value):
        assert [cap.at_most for one in package.active() for cap in one.caps] == [2000.0]
    assert turbo.read_text() == "0"
    with pytest.raises(UsageError, match="expected on or off, not 'maybe'"):
        cpu_boost.held("maybe")


def test_every_value_of_a_suite_is_asked_about_before_any_is_set(policies: list[Path]) -> None:
    package.check([{"cpu_max_mhz": "uncapped"}, {"cpu_max_mhz": 1800}])
    with pytest.raises(UsageError, match="9000 MHz is out of range"):
        package.check([{"cpu_max_mhz": "uncapped"}, {"cpu_max_mhz": {"decode": 9000}}])
    with pytest.raises(UsageError, match=r"expected a value, or \{decode: value\}"):
        package.check([{"cpu_max_mhz": {"prefill": 1800}}])
    assert read(policies) == [4_200_000] * 2


def test_knobs_are_found_by_listing_the_package() -> None:
    assert knobs()["cpu_max_mhz"] is cpu_max_mhz
    assert set(knobs()) >= {
        "amdgpu_performance_level", "amdgpu_sclk_max_mhz", "cpu_boost", "cpu_max_mhz", "intel_pstate_max_percent",
        "nvml_gpu_max_mhz", "nvml_power_limit_w",
    }  # fmt: skip
