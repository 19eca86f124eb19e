"""Whether a second tool gives the same number.

All four run the same llama.cpp on the same file. What they do around it differs, so like is compared with like: the energy of a decoded token,
which the slope over answers of two lengths gives without the prompt, and between those whose windows hold prompt and answer, the whole.
llama-batched-bench is the reference: it does nothing but the two.
"""

import pytest

pytestmark = pytest.mark.joules("second-tool")

REFERENCE = "llama-batched-bench"
WITHIN = 0.08


@pytest.mark.parametrize("parallel", [1, 4, 8])
@pytest.mark.parametrize("engine", ["llama-server", "in-process"])
def test_decoding_costs_the_same(sweep, engine, parallel):
    """A decoded token costs within 8 % of what it costs in llama-batched-bench."""
    decode = sweep.where(parallel=parallel).decode_energy_per_token_mj
    assert abs(decode[engine] / decode[REFERENCE] - 1) <= WITHIN


@pytest.mark.parametrize("parallel", [1, 4, 8])
@pytest.mark.parametrize("engine", ["llama-server", "in-process"])
def test_prompt_and_answer_cost_the_same(sweep, engine, parallel):
    """With the prompt in it, a token costs within 8 % of what it costs in llama-batched-bench."""
    energy = sweep.where(parallel=parallel).energy_per_token_mj
    assert abs(energy[engine] / energy[REFERENCE] - 1) <= WITHIN


def test_llama_bench_decodes_as_llama_batched_bench_does(sweep):
    """One sequence alone: a token of llama-bench, whose windows are all decode, costs within 8 % of a decoded one of llama-batched-bench."""
    bench = sweep.at(engine="llama-bench", parallel=1).energy_per_token_mj
    assert abs(bench / sweep.at(engine=REFERENCE, parallel=1).decode_energy_per_token_mj - 1) <= WITHIN
