"""What a threshold does where the draft is as large as its model, so that every drafted token costs what a token costs.

A drafted token that is not taken over is work for nothing, and two cores gain little from checking several at once.
"""

import pytest

pytestmark = pytest.mark.joules("speculative-small")

PROMPTS = pytest.mark.parametrize("prompt", ["short", "code"])


@PROMPTS
def test_unchecked_drafts_at_least_double_the_price(sweep, prompt):
    """Drafts of 16 tokens without a threshold cost at least twice as much energy per token as plain decoding."""
    energy = sweep.where(prompt=prompt).energy_per_token_mj
    assert energy[0] >= 2 * energy["off"]


@PROMPTS
def test_a_threshold_takes_most_of_it_away(sweep, prompt):
    """A threshold of 0.5 takes away at least 30 % of what a token costs without one."""
    assert sweep.where(prompt=prompt).energy_per_token_mj.saving(0, 0.5) >= 0.30


@PROMPTS
def test_plain_decoding_stays_the_cheapest(sweep, prompt):
    """Such a draft cannot pay: plain decoding is cheapest."""
    assert sweep.where(prompt=prompt).energy_per_token_mj.argmin() == "off"


@PROMPTS
@pytest.mark.joules(threshold="chosen after the data")
def test_the_threshold_makes_drafts_better(sweep, prompt):
    """Of what is drafted with the threshold at least 40 % is accepted, and at least 1.5 times the share of what is drafted without."""
    accepted = sweep.where(prompt=prompt).draft_acceptance
    assert accepted[0.5] >= max(0.4, 1.5 * accepted[0])


@PROMPTS
def test_a_pass_yields_over_two_tokens(sweep, prompt):
    """With and without the threshold a pass over the weights yields more than two tokens."""
    per_step = sweep.where(prompt=prompt).tokens_per_step
    assert min(per_step[0], per_step[0.5]) > 2
