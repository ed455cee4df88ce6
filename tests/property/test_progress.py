"""Where nothing is lost, nothing waits for a heartbeat, and nobody is idle while there is work."""

from dataclasses import replace
from itertools import pairwise

import pytest

from bench.simulate.cluster import Cluster
from bench.simulate.model import Wants
from bench.simulate.shape import Shape
from bench.simulate.worker import WorkerProcess
from bench.simulate.workload import full_house, workload
from common.engine.events import Launch, Pull
from launch.gateway.transfers import Generate

EVERYTHING = Wants.ENDS | Wants.LOGPROBS | Wants.SCORES
NEVER_S = 1e9
IDLE_S = 0.1  # the longest pass takes 0.01, as does the longest pull

SHAPES = {
    "one by one": Shape(lost_after_s=NEVER_S),
    "two by two": Shape(prefills=2, decodes=2, lost_after_s=NEVER_S),
    "small pools": Shape(decodes=2, prefill_pages=24, decode_pages=20, lost_after_s=NEVER_S),
    "no cache": Shape(caching=False, lost_after_s=NEVER_S),
    "colocated": Shape(prefills=0, decodes=2, decode_pages=24, lost_after_s=NEVER_S),
    "tiny": Shape(prefill_pages=8, decode_pages=8, lost_after_s=NEVER_S),
    "little credit": Shape(credit_tokens=4, lost_after_s=NEVER_S),
    "pages of one token": Shape(
        page_tokens=1, prefill_pages=32, decode_pages=32, lost_after_s=NEVER_S
    ),
}


def at_once(shape: Shape, requests: list[Generate], monkeypatch: pytest.MonkeyPatch) -> None:
    active_at: list[float] = []
    act = WorkerProcess.act

    def marked(worker: WorkerProcess, action: object) -> None:
        if isinstance(action, Launch | Pull):
            active_at.append(worker.world.clock.now)
        act(worker, action)  # pyright: ignore[reportArgumentType] as it came

    monkeypatch.setattr(WorkerProcess, "act", marked)
    cluster = Cluster(replace(shape, heartbeat_s=NEVER_S))
    began = cluster.now
    cluster.submit(*requests)
    cluster.answer(requests, seconds=60.0)
    assert all(cluster.client(request).error is None for request in requests)
    times = [began, *active_at, cluster.now]
    assert max(b - a for a, b in pairwise(times)) < IDLE_S
    cluster.run(1.0)
    cluster.check_idle()


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("seed", range(2))
def test_a_crowd(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = SHAPES[name]
    at_once(shape, workload(seed, shape, 16, wants=EVERYTHING), monkeypatch)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("seed", range(2))
def test_prompts_that_fill_the_pool(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = SHAPES[name]
    at_once(shape, full_house(seed, shape, 12), monkeypatch)
