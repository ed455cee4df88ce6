"""Host memory in a whole Baton where pages are few: whatever is spilled, torn or left half-way, the
right tokens arrive and no page is held anywhere."""

import pytest

from bench.simulate.cluster import Cluster
from bench.simulate.model import generate
from bench.simulate.shape import Shape, Weather

FEW = Shape(decode_pages=20, host_pages=60)
TOO_MANY = 8  # samples of a request, of which the pool holds half


@pytest.mark.parametrize("seed", range(4))
def test_spilled_sequences_go_on_where_they_were(seed: int) -> None:
    cluster = Cluster(FEW, seed, Weather(drop=0.02, torn=0.1, raised=0.002))
    requests = [generate(f"r{i}", [i] * 9, 30, n=TOO_MANY) for i in range(6)]
    cluster.submit(*requests, every_s=0.05)
    for i, request in enumerate(requests[::3]):
        cluster.clock.at(0.3 + 0.2 * i, lambda r=request: cluster.gateway.quit(r))
    cluster.answer(requests)
    cluster.settle()
    assert cluster.network.counts["spilled"]
