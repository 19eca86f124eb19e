from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_joules.errors import Unmeasured
from pytest_joules.judging import Case, give
from pytest_joules.models import SYNTHETIC, ModelFile
from pytest_joules.prediction import Prediction
from pytest_joules.records import Run, Window
from pytest_joules.registration import Registration
from pytest_joules.standing import Standing
from pytest_joules.sweep import beside


@pytest.fixture
def real(make_run: Callable[..., Run], make_window: Callable[..., Window]) -> Run:
    return make_run(*(make_window(parallel, i) for i in (0, 1) for parallel in (1, 8)))


@pytest.fixture
def random(real: Run) -> Run:
    return replace(real, run_id="20261026T101530Z-5b5b5b", meter=replace(real.meter, basis="synthetic"))


def test_a_file_is_synthetic_when_it_says_so() -> None:
    model = ModelFile(path=Path("m.gguf"), size_bytes=1, sha256="0" * 64)
    assert not model.synthetic
    assert replace(model, metadata={SYNTHETIC: True}).synthetic
    assert not replace(model, metadata={SYNTHETIC: False}).synthetic


def test_beside_real_weights_random_ones_have_a_speed_and_no_energy(real: Run, random: Run) -> None:
    for run, other in ((real, random), (random, real)):
        table = beside(other, run)
        assert table.tokens_per_s[8] == 102.4
        for energy in (table.energy_per_token_mj, table.power_w, table.energy_j, table.energy_per_token_mj.spread):
            with pytest.raises(Unmeasured, match="has random weights, whose energy is not compared with real weights'"):
                energy[8]
    for run, other in ((real, real), (random, random)):
        assert beside(other, run).power_w[8] == 20.0


def test_a_prediction_that_compares_their_energies_is_unmeasured(
    real: Run, random: Run, predicts: Callable[..., Prediction]
) -> None:
    def cheaper(sweep, against):
        assert sweep.energy_per_token_mj[8] < 1.1 * against.energy_per_token_mj[8]

    def as_fast(sweep, against):
        assert sweep.tokens_per_s[8] < 1.1 * against.tokens_per_s[8]

    def verdict(function: Callable[..., object], run: Run, other: Run) -> str:
        prediction = predicts(function, wants=("sweep", "against"), against="other")
        standing, registered = Standing("registered", ""), Registration(word="registered")
        return give(Case(prediction=prediction, run=run, against=other, standing=standing, registered=registered)).word

    assert verdict(cheaper, real, random) == verdict(cheaper, random, real) == "unmeasured"
    assert verdict(as_fast, real, random) == "held"
    assert verdict(cheaper, random, random) == "held"
