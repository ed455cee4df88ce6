"""Requests that end before their answer does: in each state that one can be in, by whatever ends
it; and workers that are told to leave, while they have one in each state."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum, auto
from itertools import cycle, product
from random import Random
from typing import Any

import pytest

from bench.simulate.cluster import Cluster
from bench.simulate.model import Wants
from bench.simulate.process import Process
from bench.simulate.shape import Shape, Weather
from bench.simulate.workload import workload
from common.errors import Overloaded, TimedOut
from common.ids import TransferId
from decode import state as decode_state
from decode.core import DecodeCore
from launch.gateway import transfers as gateway_state
from launch.gateway.events import Quit
from launch.gateway.transfers import Generate, RequestId
from prefill import state as prefill_state
from prefill.core import PrefillCore

LASTS_S = 2.0  # that the weather is bad
EVERY_S = 0.03  # a request
N_REQUESTS = 24


class State(StrEnum):
    """Of a request, as somebody sees it who looks into all processes."""

    QUEUED = auto()
    PREFILLING = auto()
    PULLING = auto()
    HANDED = auto()  # off, and some pages are still on their way
    DECODING = auto()
    PREEMPTED = auto()  # its pages are given up
    SPILLED = auto()  # they are in host memory, or on their way there or back
    RECOVERING = auto()  # its workers are lost, and it has no others yet


class Means(StrEnum):
    """By which it ends."""

    DISCONNECT = auto()
    STOP_STRING = auto()
    DEADLINE = auto()


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Of a cluster that is short of something."""

    shape: Shape
    weather: Weather
    most_outputs: int
    targets: tuple[State, ...]  # in which requests end
    n_lives: int  # enough to come there by every means

    def asks(self, seed: int) -> list[Generate]:
        shape, most = self.shape, self.most_outputs
        return workload(seed, shape, N_REQUESTS, wants=Wants.ENDS, most_outputs=most)


SLOW = Kind(  # to compute prompts and to pass pages
    shape=Shape(decode_pages=20, chunk_tokens=4, budget_tokens=8, max_num_seqs=4, lost_after_s=3.0),
    weather=Weather(slow=0.3, slow_s=0.1),
    most_outputs=30,
    targets=tuple(State)[:5],
    n_lives=4,
)
FULL = Kind(  # of answers some of which are longer than could be foreseen
    shape=Shape(prefill_pages=24, decode_pages=24, host_pages=40, lost_after_s=3.0),
    weather=Weather(slow=0.5, slow_s=0.1),
    most_outputs=100,
    targets=(State.SPILLED, State.PREEMPTED),
    n_lives=6,
)
DEADLY = Kind(
    shape=Shape(prefills=2, lost_after_s=3.0),
    weather=Weather(kill_every_s=0.1),
    most_outputs=60,
    targets=(State.RECOVERING,),
    n_lives=2,
)
NO_HOST = replace(FULL, shape=replace(FULL.shape, host_pages=0), targets=(State.PREEMPTED,))
ALL = (SLOW, DEADLY, FULL, NO_HOST)
KINDS = [
    pytest.param(SLOW, id="slow"),
    pytest.param(DEADLY, id="deadly"),
    pytest.param(FULL, id="full", marks=pytest.mark.full),
    pytest.param(NO_HOST, id="no host memory", marks=pytest.mark.full),
]


Ends = Counter[tuple[Means, State]]


class Watcher:
    """Sees each request's state after every step of anybody; has requests end in certain ones."""

    def __init__(self) -> None:
        self.plans: dict[RequestId, tuple[Means, State]] = {}
        self.ends: Ends = Counter()
        self.cluster: Cluster | None = None

    def watch(self, _process: Process, _events: Sequence[Any], _actions: Sequence[Any]) -> None:
        if self.cluster is None:
            return
        for request, state in states(self.cluster).items():
            means, wanted = self.plans.get(request, (None, None))
            if means is not None and state is wanted:
                del self.plans[request]
                self.ends[means, state] += 1
                end(self.cluster, request, means)


def end(cluster: Cluster, name: RequestId, means: Means) -> None:
    """At once."""
    gateway = cluster.gateway
    request = gateway.clients[name].request
    match means:
        case Means.DISCONNECT:
            gateway.quit(request)
        case Means.STOP_STRING:
            for sample in range(request.n):
                gateway.stop_sample(request, sample)
        case Means.DEADLINE:  # as if its time had been just so long
            attempts = gateway.core._attempts
            asked = attempts.requests[name]
            asked.generate = replace(request, timeout_s=max(0.0, cluster.now - asked.arrived))
            assert asked.ends_at is not None
            attempts.timeouts.add(name, asked.ends_at)
            gateway.post(Quit(RequestId("nobody")))  # it looks at the time with whatever comes


def states(cluster: Cluster) -> dict[RequestId, State]:
    """Of the requests that have been routed at least once."""
    found: dict[RequestId, State] = {}
    for transfer in cluster.gateway.core._attempts.transfers.values():
        if transfer.phase is gateway_state.Phase.UNROUTED:
            state = State.RECOVERING if transfer.attempt else None
        else:
            state = state_there(cluster, transfer.transfer, transfer.attempt)
        if state is not None:
            found[transfer.generate.request] = state
    return found


def state_there(cluster: Cluster, name: TransferId, attempt: int) -> State | None:
    """As its workers have it; None: they do not yet, or no more."""
    prompt: prefill_state.Prompt | None = None
    transfer: decode_state.Transfer | None = None
    for worker in cluster.workers:
        if isinstance(worker.core, PrefillCore):
            one = worker.core._transfers.get(name)
            prompt = one if one is not None and one.attempt == attempt else prompt
        elif isinstance(worker.core, DecodeCore):
            other = worker.core._transfers.get(name)
            transfer = other if other is not None and other.key[1] == attempt else transfer
    if transfer is None:
        return None
    match transfer.phase:
        case decode_state.Phase.QUEUED | decode_state.Phase.CALLING:
            began = prompt is not None and prompt.phase is not prefill_state.Phase.WAITING
            return State.PREFILLING if began else State.QUEUED
        case decode_state.Phase.PULLING:
            return State.PULLING
        case decode_state.Phase.HANDED:
            return State.HANDED
        case decode_state.Phase.RUNNING:
            return state_of(transfer.samples)
        case _:
            return None


def state_of(samples: Sequence[decode_state.Sample]) -> State:
    if any(sample.spilled is not None for sample in samples):
        return State.SPILLED
    if any(sample.waiting and sample.preempted for sample in samples):
        return State.PREEMPTED
    return State.DECODING if any(sample.outputs for sample in samples) else State.PREFILLING


def storm(kind: Kind, seed: int) -> Ends:
    """Requests of one life end by one means each, if they come so far. Returns how they ended."""
    watcher, draw = Watcher(), Random(seed)
    cluster = Cluster(kind.shape, seed, kind.weather, watches=[watcher.watch])
    watcher.cluster = cluster
    requests = kind.asks(seed)
    plans = list(product(Means, kind.targets))
    draw.shuffle(plans)
    watcher.plans = dict(zip((one.request for one in requests), cycle(plans), strict=False))
    cluster.submit(*requests, every_s=EVERY_S)
    cluster.clock.at(LASTS_S, cluster.network.heal)
    cluster.run(LASTS_S)
    cluster.answer(requests)
    errors = [error for one in requests if (error := cluster.client(one).error) is not None]
    assert all(isinstance(error, TimedOut) for error in errors)
    n_late = sum(n for (means, _), n in watcher.ends.items() if means is Means.DEADLINE)
    assert len(errors) <= n_late  # some had all by then
    cluster.settle()
    return watcher.ends


@pytest.mark.parametrize("kind", KINDS)
def test_in_every_state_by_every_means(kind: Kind) -> None:
    ends: Ends = sum((storm(kind, seed) for seed in range(kind.n_lives)), Counter())
    missed = {(means, state) for means in Means for state in kind.targets} - ends.keys()
    assert not missed


@pytest.mark.full
@pytest.mark.parametrize("state", [one for one in State if one is not State.RECOVERING])
def test_workers_that_are_told_to_leave_finish_what_they_have(state: State) -> None:
    """As soon as one of their requests is in that state."""
    kinds = [kind for kind in ALL if state in kind.targets]
    assert any(left(kind, seed, state) for kind in kinds for seed in range(kind.n_lives))


def left(kind: Kind, seed: int, state: State) -> bool:
    """Others are there by then. False: none of the requests ever was in that state."""
    cluster = Cluster(kind.shape, seed, replace(kind.weather, kill_every_s=0.0))
    requests, old = kind.asks(seed), list(cluster.workers)
    cluster.submit(*requests, every_s=EVERY_S)
    for worker in old:
        cluster.start(worker.role)
    cluster.run(LASTS_S, until=lambda: state in states(cluster).values())
    met = state in states(cluster).values()
    for worker in old:
        cluster.drain(worker)
    cluster.answer(requests)
    for client in map(cluster.client, requests):
        assert client.whole or isinstance(client.error, Overloaded)
        assert client.whole or client.admitted_at is None
    cluster.settle()
    assert not {worker.instance for worker in old} & cluster.world.living.keys()
    return met
