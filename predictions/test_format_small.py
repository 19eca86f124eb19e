"""What four and eight bits cost by the token on a CPU, where unpacking is arithmetic and the weights nearly fit a cache."""

import pytest

pytestmark = pytest.mark.joules("format-small")


def test_four_bits_are_cheaper_than_eight(sweep):
    """A token in Q4_0 costs less energy than one in Q8_0."""
    energy = sweep.energy_per_token_mj
    assert energy["smollm2-135m-instruct", "q4_0"] < energy["smollm2-135m-instruct", "q8_0"]


def test_q4_0_is_the_cheapest(sweep):
    """Of the three Q4_0 is the cheapest."""
    assert sweep.where(model="smollm2-135m-instruct").energy_per_token_mj.argmin() == "q4_0"


def test_the_saving_is_less_than_the_bytes(sweep):
    """Four bits save less than the third of the bytes that they leave out: unpacking costs something."""
    assert sweep.where(model="smollm2-135m-instruct").energy_per_token_mj.saving("q8_0", "q4_0") < 0.36
