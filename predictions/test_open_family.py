"""An open question: whether any of this holds for another family of models."""

import pytest

pytestmark = pytest.mark.joules("open-family")


@pytest.mark.joules(primary=True)
def test_eight_slots_save_as_much(sweep):
    """In Q4_0 eight requests at once save between 60 and 80 % of the energy per token, as with Qwen2.5."""
    assert 0.60 <= sweep.where(format="q4_0").energy_per_token_mj.saving(1, 8) <= 0.80


@pytest.mark.parametrize("parallel", [1, 8])
def test_q4_0_is_the_cheapest(sweep, parallel):
    """Q4_0 is the cheapest of the three formats."""
    assert sweep.where(parallel=parallel).energy_per_token_mj.argmin() == "q4_0"
