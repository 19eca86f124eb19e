"""Whether a server changes what a batch gains, with a model so small that what a server does is a visible share of a step."""

import pytest

pytestmark = pytest.mark.joules("batch-grid-tools-small")


def test_the_server_is_slower_by_at_most_a_tenth(sweep):
    """At every batch the server has at least 90 % of the benchmark's speed."""
    shares = [
        sweep.at(engine="llama-server", parallel=n).tokens_per_s
        / sweep.at(engine="llama-batched-bench", parallel=n).tokens_per_s
        for n in (8, 12, 16)
    ]
    assert min(shares) >= 0.90


@pytest.mark.parametrize("engine", ["llama-batched-bench", "llama-server"])
def test_twelve_at_once_are_cheaper_than_eight(sweep, engine):
    """A token costs less at twelve than at eight, with and without a server."""
    energy = sweep.where(engine=engine).energy_per_token_mj
    assert energy[12] < energy[8]
