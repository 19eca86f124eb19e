"""Where energy per token stops falling as the batch grows, on a 7B model.

These claims were published with the note whose figures stand in results/; the model that was measured had another format.
"""

import pytest

pytestmark = pytest.mark.joules("decode-batch")


@pytest.mark.joules(threshold="chosen after the data")
def test_a_steep_fall_from_1_to_8(sweep):
    """The fall from batch 1 to 8 is steep: more than half."""
    assert sweep.energy_per_token_mj.saving(1, 8) > 0.50


def test_a_further_saving_from_8_to_16(sweep):
    """Sixteen saves a further 15 to 30 % over eight."""
    assert 0.15 <= sweep.energy_per_token_mj.saving(8, 16) <= 0.30


def test_flat_from_16_to_32(sweep):
    """From 16 to 32 the curve is flat: less than 10 % either way."""
    assert -0.10 < sweep.energy_per_token_mj.saving(16, 32) < 0.10


def test_each_request_at_under_half_speed_by_16(sweep):
    """By 16 each request runs at under half the speed it has alone."""
    speed = sweep.tokens_per_s_per_request
    assert speed[16] < 0.5 * speed[1]


def test_passes_within_5_percent(sweep):
    """The passes agree within 5 % at every batch."""
    assert sweep.energy_per_token_mj.spread.max() <= 0.05
