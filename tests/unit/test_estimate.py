from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_joules import trace
from pytest_joules.meters import estimate
from pytest_joules.meters.estimate import (
    FALLBACK_FAMILY,
    IDLE_AND_FULL_W_PER_CPU,
    EstimateMeter,
    EstimateReader,
    busy_cpu_s,
    processor_family,
    watts_per_cpu,
)
from pytest_joules.reading import group


def cpuinfo(vendor: str, family: int, model: int, stepping: int = 1) -> str:
    return "".join(
        f"processor\t: {n}\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\n"
        f"model name\t: Example 9 7B13 64-Core Processor\nstepping\t: {stepping}\nmicrocode\t: 0xa0011d1\ncpu MHz\t\t: 2449.998\n\n"
        for n in range(2)
    )


@pytest.mark.parametrize(
    ("vendor", "family", "model", "stepping", "name"),
    [
        ("AuthenticAMD", 23, 0x01, 2, "EPYC 1st Gen"),
        ("AuthenticAMD", 23, 0x31, 0, "EPYC 2nd Gen"),
        ("AuthenticAMD", 23, 0x71, 0, FALLBACK_FAMILY),
        ("AuthenticAMD", 25, 0x01, 1, "EPYC 3rd Gen"),
        ("AuthenticAMD", 25, 0x11, 1, "EPYC 4th Gen"),
        ("AuthenticAMD", 25, 0xA0, 2, "EPYC 4th Gen"),
        ("AuthenticAMD", 25, 0x21, 0, FALLBACK_FAMILY),
        ("AuthenticAMD", 26, 0x02, 1, "EPYC 5th Gen"),
        ("GenuineIntel", 6, 0x2D, 7, "Sandy Bridge"),
        ("GenuineIntel", 6, 0x3E, 4, "Ivy Bridge"),
        ("GenuineIntel", 6, 0x3F, 2, "Haswell"),
        ("GenuineIntel", 6, 0x4F, 1, "Broadwell"),
        ("GenuineIntel", 6, 0x55, 4, "Skylake"),
        ("GenuineIntel", 6, 0x55, 5, "Cascade Lake"),
        ("GenuineIntel", 6, 0x55, 7, "Cascade Lake"),
        ("GenuineIntel", 6, 0x9E, 10, "Coffee Lake"),
        ("GenuineIntel", 6, 0x6A, 6, "Ice Lake"),
        ("GenuineIntel", 6, 0x8F, 8, "Sapphire Rapids"),
        ("GenuineIntel", 6, 0xCF, 2, "Emerald Rapids"),
        ("GenuineIntel", 6, 0xAD, 1, "Granite Rapids"),
        ("GenuineIntel", 15, 0x55, 4, FALLBACK_FAMILY),
        ("HygonGenuine", 24, 0x01, 1, FALLBACK_FAMILY),
    ],
)
def test_families_by_their_numbers(vendor: str, family: int, model: int, stepping: int, name: str) -> None:
    assert processor_family(cpuinfo(vendor, family, model, stepping)) == name


@pytest.mark.parametrize(
    "text", ["", "processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\n", "vendor_id : GenuineIntel\n"]
)
def test_a_machine_that_says_nothing_of_its_family(text: str) -> None:
    assert processor_family(text) == FALLBACK_FAMILY


def test_wattages() -> None:
    assert watts_per_cpu("EPYC 3rd Gen") == (0.456, 1.957)
    idle_w, full_w = watts_per_cpu(FALLBACK_FAMILY)
    assert (
        min(w[0] for w in IDLE_AND_FULL_W_PER_CPU.values())
        < idle_w
        < max(w[0] for w in IDLE_AND_FULL_W_PER_CPU.values())
    )
    assert (
        min(w[1] for w in IDLE_AND_FULL_W_PER_CPU.values())
        < full_w
        < max(w[1] for w in IDLE_AND_FULL_W_PER_CPU.values())
    )
    assert all(0 < idle < full for idle, full in IDLE_AND_FULL_W_PER_CPU.values())


def test_busy_time_is_what_was_worked_here_and_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    linux = namedtuple("scputimes", "user nice system idle iowait irq softirq steal guest guest_nice")
    times = linux(100.0, 5.0, 20.0, 900.0, 50.0, 2.0, 3.0, 40.0, 30.0, 1.0)
    monkeypatch.setattr(estimate.psutil, "cpu_times", lambda: times)
    # Guest time is inside user time; waiting and stolen time was not worked here.
    assert busy_cpu_s() == 130.0
    mac = namedtuple("scputimes", "user nice system idle")
    monkeypatch.setattr(estimate.psutil, "cpu_times", lambda: mac(100.0, 5.0, 20.0, 900.0))
    assert busy_cpu_s() == 125.0


class Machine:
    """A clock and a sum of busy CPU seconds that a test moves on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.busy_s = 1000.0, 5000.0
        monkeypatch.setattr(estimate, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(estimate, "busy_cpu_s", lambda: self.busy_s)

    def work(self, seconds: float, busy_cpus: float) -> None:
        self.now += seconds
        self.busy_s += seconds * busy_cpus


def test_energy_counts_from_idle_to_full_load_by_busy_time(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    reader = EstimateReader(idle_w=1.0, full_w=4.0, cpus=8, interval_s=0.2)

    def joules() -> float:
        [sample] = reader.read()
        assert (sample.rail, sample.mono) == ("estimate.cpu", machine.now)
        return sample.value

    assert joules() == 0.0
    machine.work(10.0, 0.0)
    assert joules() == pytest.approx(80.0)
    machine.work(10.0, 8.0)
    assert joules() == pytest.approx(80.0 + 320.0)
    machine.work(10.0, 2.0)
    # Eight at idle, and two of them the difference to full load more.
    assert joules() == pytest.approx(400.0 + 10 * (8 * 1.0 + 2 * 3.0))
    reader.close()


def test_nothing_is_lost_between_two_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    often, seldom = (EstimateReader(1.0, 4.0, 8, 0.2) for _ in range(2))
    for busy in (0.0, 8.0, 3.0, 1.0) * 5:
        machine.work(0.37, busy)
        last = often.read()
    assert seldom.read() == last


def test_the_energy_of_a_window_by_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    meter = EstimateMeter("Skylake", 4)
    reader = meter.open(5.0)
    assert reader.interval_s == pytest.approx(0.2)
    samples = []
    for step in range(100):
        samples += reader.read()
        machine.work(0.2, 4.0 if 25 <= step < 75 else 0.0)
    [rail] = meter.rails
    energy = trace.energy(rail, *group(samples)[rail.name], 1005.0, 1015.0)
    assert energy.energy_j == pytest.approx(10 * 4 * 4.104, rel=0.01)


@pytest.mark.parametrize(
    ("system", "machine", "family"),
    [("Linux", "aarch64", "Graviton"), ("Darwin", "arm64", FALLBACK_FAMILY), ("Linux", "riscv64", FALLBACK_FAMILY)],
)
def test_a_machine_without_cpuid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, machine: str, family: str
) -> None:
    monkeypatch.setattr(estimate, "Path", lambda _: tmp_path / "cpuinfo")
    monkeypatch.setattr(estimate, "platform", SimpleNamespace(system=lambda: system, machine=lambda: machine))
    monkeypatch.setattr(estimate.psutil, "cpu_count", lambda: 12)
    for text in (None, "processor\t: 0\nCPU implementer\t: 0x41\n"):
        if text:
            (tmp_path / "cpuinfo").write_text(text)
        [meter] = estimate.find()
        assert (meter.idle_w, meter.full_w, meter.cpus) == (*watts_per_cpu(family), 12)


def test_an_estimate_never_passes_for_a_measurement() -> None:
    [meter] = estimate.find()
    [rail] = meter.rails
    assert (rail.basis, rail.scope, rail.covers, rail.kind) == ("estimated", "chip", ("cpu",), "counter")
    assert rail.limit_w == pytest.approx(meter.full_w * meter.cpus)
    assert "only restates throughput" in meter.notes[0]
    assert "Cloud Carbon Footprint" in rail.source
