import importlib.util
import math
import sys
import xml.etree.ElementTree as ET
import zlib
from pathlib import Path

import numpy as np
import pytest

from pytest_joules.prediction import Prediction, judge
from pytest_joules.verdict import robustness

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "calibrate_verdicts.py"


@pytest.fixture(scope="module")
def calibration():
    spec = importlib.util.spec_from_file_location("calibrate_verdicts", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def saves_over_half(sweep):
    energy = sweep.energy_per_token_mj
    assert energy.saving(0, len(energy) - 1) > 0.5


def under_a_figure(sweep):
    assert list(sweep.energy_per_token_mj.values())[-1] < 0.5


def last_is_lowest(sweep):
    assert sweep.energy_per_token_mj.argmin() == len(sweep) - 1


def saving_in_a_band(sweep):
    energy = sweep.energy_per_token_mj
    assert 0.05 < energy[len(energy) - 1] / energy[0] < 0.5


AS_WRITTEN = (saves_over_half, under_a_figure, last_is_lowest, saving_in_a_band)


@pytest.mark.parametrize("number", range(30))
def test_many_tables_at_once_are_judged_as_the_package_judges(calibration, number: int) -> None:
    rng = np.random.default_rng(number)
    conditions, passes = int(rng.integers(2, 9)), int(rng.integers(2, 9))
    noise, edge, margin = rng.choice((0.005, 0.03, 0.1)), rng.choice((0.0, 0.05)), rng.uniform(-1, 2)
    place = number % len(AS_WRITTEN)
    claim = calibration.CLAIMS[place]
    energy = np.exp(
        claim.truth(conditions, margin * noise)[:, None] + noise * rng.standard_normal((conditions, passes))
    )
    prediction = Prediction("claim", AS_WRITTEN[place], "made-up")
    sweep = calibration.table(energy, edge)
    verdict = judge(prediction, sweep)
    found = robustness(prediction, verdict, sweep)
    # The package draws from the name of the prediction and of the run.
    seeded = np.random.default_rng(zlib.crc32(b"claim "))
    assert calibration.judged(claim, energy, edge, seeded) == (verdict.word == "held", found.word == "clear")


@pytest.fixture(scope="module")
def outcomes(calibration):
    return calibration.campaigns(2000, seed=1)


def test_a_wrong_verdict_is_seldom_clear_at_any_margin(calibration, outcomes) -> None:
    shares = calibration.wrong_and_clear(outcomes)
    at_each = 2000 / len(calibration.MARGINS)
    allowed = calibration.WRONG_AND_CLEAR + 2 * math.sqrt(0.05 * 0.95 / at_each)
    assert len(shares) == len(calibration.MARGINS)
    assert max(shares) <= allowed
    assert shares[-1] == 0.0


def test_the_claims_are_as_true_as_they_say(calibration) -> None:
    for claim in calibration.CLAIMS:
        for conditions in calibration.CONDITIONS:
            for inside, holds in ((0.001, True), (-0.001, False), (0.3, True), (-0.3, False)):
                assert claim.holds(np.exp(claim.truth(conditions, inside))[None, :])[0] == holds


def test_a_wide_margin_is_narrow_only_where_little_is_known(calibration, outcomes) -> None:
    narrow = calibration.narrow(calibration.steady([o for o in outcomes if (o.passes, o.conditions) != (2, 2)]))
    # Right at the threshold nearly every verdict is narrow; far from it, few.
    assert narrow[0] > 0.9
    assert narrow[-1] < 0.2


def test_the_tables_name_what_they_group(calibration, outcomes) -> None:
    text = calibration.report(outcomes)
    shapes = [f"{o.passes} x {o.conditions}" for o in outcomes]
    text, told_narrow = text.split("| narrow, without drift")
    assert (
        told_narrow.splitlines()[-1].split("|")[-2].strip()
        == f"{calibration.narrow(calibration.steady(outcomes))[-1]:.0%}"
    )
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    for called in ("2 x 3", "3 x 2", "8 x 6", "6 x 8"):
        (row,) = [row for row in rows if row.startswith(f"| {called} ")]
        passes, conditions = map(int, called.split(" x "))
        group = [o for o in outcomes if (o.passes, o.conditions) == (passes, conditions)]
        assert len(group) == shapes.count(called) == 80
        assert row.split("|")[2].strip() == f"{calibration.wrong_and_clear(group)[0]:.1%}"
    assert [row.split("|")[1].strip() for row in rows[1:6]] == ["2 x 2", "2 x 3", "2 x 4", "2 x 6", "2 x 8"]


def test_the_program_draws_a_picture_and_tells_of_a_miss(calibration, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["calibrate_verdicts.py", "--campaigns", "200", "--plot", str(tmp_path / "v.svg")])
    monkeypatch.setattr(calibration, "WRONG_AND_CLEAR", 1.0)
    assert calibration.main() == 0
    assert capsys.readouterr().out.startswith("200 campaigns, 2000 perturbed tables each, seed 1\n")
    picture = ET.parse(tmp_path / "v.svg").getroot()
    lines = picture.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 10
    assert all(len(line.get("points").split()) == len(calibration.MARGINS) for line in lines)
    monkeypatch.setattr(calibration, "WRONG_AND_CLEAR", -1.0)
    assert calibration.main() == 1
