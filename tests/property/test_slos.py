"""SLOs and time limits while everything goes wrong: who is refused was promised nothing, whose time
is up gets no more, and nothing of either is left behind."""

from dataclasses import replace
from random import Random

import pytest

from bench.simulate.cluster import Cluster
from bench.simulate.footprint import footprint
from bench.simulate.model import Wants
from bench.simulate.shape import Shape, Weather
from bench.simulate.workload import workload
from common.errors import Overloaded, SloHopeless, SloMissed, TimedOut
from common.ids import Role
from launch.gateway.transfers import Generate, Slo

TWO = Shape(prefills=2, decodes=2)
COLOCATED = Shape(prefills=0, decodes=2)
FOUL = Weather(drop=0.05, repeat=0.1, torn=0.05, slow=0.05, cut_every_s=2.0, kill_every_s=2.0)
LATEST_S = 0.5  # a gateway may stand still for a moment, and messages take one


def hurried(seed: int, shape: Shape, n: int) -> list[Generate]:
    """Some must begin soon, some must end soon, some both."""
    draw = Random(seed)
    return [
        replace(
            request,
            slo=Slo(ttft_s=draw.choice((None, 0.005, 0.05, 0.5)), tpot_s=draw.choice((None, 0.01))),
            timeout_s=draw.choice((None, None, 0.05, 0.3, 5.0)),
        )
        for request in workload(seed, shape, n, wants=Wants.ENDS | Wants.SCORES)
    ]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("shape", [TWO, COLOCATED], ids=["two by two", "colocated"])
def test_nobody_waits_longer_than_was_said(shape: Shape, seed: int) -> None:
    cluster = Cluster(shape, seed, FOUL)
    requests = hurried(seed, shape, 40)
    cluster.submit(*requests, every_s=0.03)
    ended: dict[str, float] = {}

    def all_over() -> bool:
        for request in requests:
            client = cluster.gateway.clients.get(request.request)
            if client is not None and client.over:
                ended.setdefault(request.request, cluster.now)
        return len(ended) == len(requests)

    cluster.clock.at(10.0, cluster.network.heal)
    cluster.run(120.0, until=all_over)
    for request in requests:
        client = cluster.client(request)
        took_s = ended[request.request] - client.asked_at
        assert request.timeout_s is None or took_s < request.timeout_s + LATEST_S
        match client.error:
            case None:
                pass
            case SloMissed():
                assert client.admitted_at is None
                assert request.slo.ttft_s is not None
            case TimedOut():
                assert request.timeout_s is not None
                assert took_s > request.timeout_s - 1e-6
            case Overloaded():
                assert client.admitted_at is None
            case other:
                raise AssertionError(other)
    assert any(isinstance(cluster.client(r).error, TimedOut) for r in requests)
    cluster.settle()


def test_who_would_be_late_is_refused_while_others_are_served() -> None:
    cluster = Cluster(TWO)
    requests = hurried(7, TWO, 60)
    cluster.submit(*requests, every_s=0.01)
    cluster.answer(requests)
    errors = [cluster.client(request).error for request in requests]
    late = [error for error in errors if isinstance(error, SloMissed)]
    assert 0 < len(late) < 40
    assert all(
        isinstance(error, SloHopeless) if error.retry_after_s is None else error.retry_after_s >= 1
        for error in late
    )
    cluster.settle()


def test_nothing_of_them_is_remembered() -> None:
    cluster = Cluster(TWO, weather=replace(FOUL, kill_every_s=0.0))
    sizes: list[dict[str, dict[str, int]]] = []
    for turn in range(3):
        requests = [
            replace(request, request=f"{request.request}-{turn}") for request in hurried(1, TWO, 30)
        ]
        cluster.submit(*requests, every_s=0.02)
        cluster.answer(requests)
        cluster.settle()
        deciding = (cluster.gateway, *cluster.of(Role.PREFILL))
        sizes.append({process.instance: footprint(process.core) for process in deciding})
    assert sizes[1] == sizes[2]
