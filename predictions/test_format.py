"""Which number format makes a token cheapest, at three sizes of model.

The claims are published ones, of another set of sizes and formats; the ratio is held within 5 points of the published one.
"""

import pytest

pytestmark = pytest.mark.joules("format", threshold="chosen after the data")


@pytest.mark.joules(primary=True)
@pytest.mark.parametrize("model", ["qwen2.5-0.5b-instruct", "qwen2.5-1.5b-instruct", "qwen2.5-7b-instruct"])
def test_q4_0_is_the_cheapest_at_every_size(sweep, model):
    """Of all formats Q4_0 has the lowest energy per token."""
    assert sweep.where(model=model).energy_per_token_mj.argmin() == "q4_0"


def test_two_bits_cost_more_than_four_on_a_7b(sweep):
    """On the 7B a two-bit token costs 18 % more energy than a four-bit one, give or take 5 points."""
    energy = sweep.where(model="qwen2.5-7b-instruct").energy_per_token_mj
    assert abs(energy["q2_k"] / energy["q4_0"] - 1.18) <= 0.05
