"""Why 32 requests at once were slower than 16: the chip, or what a server does beside it.

llama-batched-bench makes the same steps with the same build and does nothing else. If its speed falls from 16 to 32 as well, the fall is the chip's: more
keys and values to read, and products that no longer fit its caches. If only the server's does, it is scheduling, sampling and HTTP.
"""

import pytest

pytestmark = pytest.mark.joules("batch-grid-tools")


@pytest.mark.joules(primary=True)
def test_the_benchmark_slows_down_too(sweep):
    """Without a server around it, total speed at 32 is lower than at 16 as well: the fall is the chip's."""
    speed = sweep.where(engine="llama-batched-bench").tokens_per_s
    assert speed[32] < speed[16]


def test_the_server_loses_no_more_at_32_than_at_16(sweep):
    """The server's share of the benchmark's speed is at 32 within five points of what it is at 16."""
    share = {
        n: sweep.at(engine="llama-server", parallel=n).tokens_per_s
        / sweep.at(engine="llama-batched-bench", parallel=n).tokens_per_s
        for n in (16, 32)
    }
    assert abs(share[32] - share[16]) <= 0.05


def test_both_find_the_minimum_within_a_step(sweep):
    """Energy per token is lowest at 16 or 20 by both."""
    for engine in ("llama-batched-bench", "llama-server"):
        assert sweep.where(engine=engine).energy_per_token_mj.argmin() in (16, 20)
