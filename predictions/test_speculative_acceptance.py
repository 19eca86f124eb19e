"""How many tokens a pass must yield before drafting saves energy, against plain decoding of the same prose."""

import pytest

from pytest_joules import crossover

pytestmark = pytest.mark.joules("speculative-acceptance", against="speculative")


@pytest.mark.joules(primary=True)
def test_two_to_three_tokens_a_pass_pay(sweep, against):
    """Drafts of 8 tokens cost as much as plain decoding where a pass yields between 1.5 and 3 tokens; below they cost more."""
    energy = sweep.energy_per_token_mj
    plain = against.at(prompt="short", draft_threshold="off").energy_per_token_mj
    breaks_even = crossover(energy, dict.fromkeys(energy, plain))
    assert energy[1] > plain
    assert breaks_even is not None
    assert 1.5 <= breaks_even <= 3


def test_energy_falls_as_more_is_accepted(sweep):
    """Energy per token falls with every step of acceptance."""
    energy = list(sweep.energy_per_token_mj.values())
    assert energy == sorted(energy, reverse=True)
