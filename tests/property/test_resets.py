"""Prefix caches that are reset while work goes on, and priorities: every answer is exact, and every
page comes back, over the real cores and links."""

from dataclasses import replace
from random import Random

import pytest

from bench.simulate.cluster import Cluster
from bench.simulate.model import Wants
from bench.simulate.shape import Shape, Weather
from bench.simulate.workload import workload
from common.engine.events import Received
from common.messages import ResetPrefixCache

EVERYTHING = Wants.ENDS | Wants.LOGPROBS | Wants.SCORES
SHAPES = {
    "two by two": Shape(prefills=2, decodes=2, prefill_pages=32, decode_pages=32),
    "colocated": Shape(prefills=0, decodes=2, decode_pages=24),
    "host memory": Shape(decodes=2, decode_pages=20, host_pages=40),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("seed", range(3))
def test_resets_and_priorities_change_no_answer(name: str, seed: int) -> None:
    shape, random = SHAPES[name], Random(seed)
    cluster = Cluster(shape, seed, Weather(drop=0.05, torn=0.05))
    requests = [
        replace(request, priority=random.randrange(-2, 3))
        for request in workload(seed, shape, 24, wants=EVERYTHING)
    ]

    def reset() -> None:
        message = ResetPrefixCache(number=0)
        for worker in cluster.workers:
            worker.post(Received(cluster.gateway.instance, message))

    cluster.submit(*requests, every_s=0.01)
    for n in range(1, 20):
        cluster.clock.at(0.02 * n, reset)
    cluster.answer(requests)
    assert [cluster.client(request).error for request in requests] == [None] * len(requests)
    cluster.settle()
