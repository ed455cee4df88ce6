"""Timed runs: how long a workload's requests take on a cluster, by the real cores and what passes
and copies cost there. Virtual time: the same asks, shape and seed give the same run.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from random import Random

import numpy as np
from numpy.typing import NDArray

from bench.measures import Goodput
from bench.simulate.clock import Clock
from bench.simulate.shape import Shape
from bench.simulate.timed_gateway import TimedGateway
from bench.simulate.timed_process import Exchange, TimedWorker
from common.errors import InvariantBroken
from common.ids import Role
from common.messages import Snapshot
from launch.gateway.fleet import Router

BEGINS_AT_S = 0.5  # by then everybody has met, and told what it has
LOADS_EVERY_S = 0.05
HEARTBEAT_S = inf  # nothing is lost here, so nobody needs one


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request of a workload. It says so many tokens, and states what it is owed."""

    at_s: float  # from the start
    prompt: tuple[int, ...]  # token ids: what prompts share is found
    output_tokens: int
    max_tokens: int | None = None  # that the gateway knows of; None: those
    ttft_s: float | None = None  # None: it states none
    tpot_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Served:
    """What its client saw, in seconds from its arrival. None: it had no such token."""

    ask: Ask
    ttft_s: float | None
    second_token_s: float | None
    e2e_s: float | None
    cached_tokens: int
    refused: bool

    @property
    def tpot_s(self) -> float | None:
        """0 for a single token."""
        if self.e2e_s is None or self.ttft_s is None:
            return None
        return (self.e2e_s - self.ttft_s) / max(1, self.ask.output_tokens - 1)

    def meets(self, slo: Goodput) -> bool:
        return slo.allows(self.ttft_s, self.tpot_s, self.e2e_s)


@dataclass(frozen=True, kw_only=True)
class Loads:
    """Of one worker, every `LOADS_EVERY_S` from the start, as it has told the gateway last."""

    worker: str
    role: Role
    at_s: NDArray[np.float64]
    queued_tokens: NDArray[np.int64]  # of prompts, not computed
    queued_requests: NDArray[np.int64]
    running: NDArray[np.int64]  # requests
    held_pages: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Run:
    """All that came of a workload."""

    served: tuple[Served, ...]  # in the order of the asks
    seconds: float  # virtual, from the start to the last token
    loads: tuple[Loads, ...]


def serve(asks: Sequence[Ask], shape: Shape, *, seed: int = 0, router: Router | None = None) -> Run:
    """Until every request has its answer, or was refused. Raises InvariantBroken if one never
    has; ValueError without costs. `seed`: of the transfers' ids, which break ties.
    `router`: how the gateway chooses workers; None: as the product does.
    """
    return _Cluster(shape, seed, router).serve(asks)


def attainment(run: Run, slo: Goodput) -> float:
    """As `bench.measures.attainment`, of a run; who was refused has not met it."""
    met = [one.meets(slo) for one in run.served]
    return sum(met) / len(met) if met else 0.0


@dataclass(eq=False)
class _Told:
    """The snapshots of one worker."""

    worker: str
    role: Role
    at: list[float] = field(default_factory=list[float])
    rows: list[tuple[int, int, int, int]] = field(default_factory=list[tuple[int, int, int, int]])

    def take(self, now: float, said: Snapshot) -> None:
        self.at.append(now)
        held = said.n_pages - said.free_pages
        self.rows.append((said.queued_tokens, said.waiting, said.running, held))

    def loads(self, seconds: float) -> Loads:
        at_s = np.arange(0.0, seconds, LOADS_EVERY_S)
        last = [bisect_right(self.at, BEGINS_AT_S + at) for at in at_s]
        rows = np.array([(0, 0, 0, 0), *self.rows], np.int64)[last]
        queued_tokens, queued_requests, running, held_pages = rows.T
        return Loads(
            worker=self.worker,
            role=self.role,
            at_s=at_s,
            queued_tokens=queued_tokens,
            queued_requests=queued_requests,
            running=running,
            held_pages=held_pages,
        )


class _Cluster:
    """Used once."""

    def __init__(self, shape: Shape, seed: int, router: Router | None) -> None:
        shape = replace(shape, heartbeat_s=HEARTBEAT_S)
        self._clock = Clock()
        exchange = Exchange(self._clock, shape.message_s)
        self._gateway = TimedGateway(exchange, shape, Random(seed), router)
        self._told: list[_Told] = []
        for role, count in ((Role.PREFILL, shape.prefills), (Role.DECODE, shape.decodes)):
            for number in range(count):
                told = _Told(f"{role}-{number}", role)
                worker = TimedWorker(exchange, shape, role, told.worker, told.take)
                worker.meet(self._gateway.instance)
                self._told.append(told)

    def serve(self, asks: Sequence[Ask]) -> Run:
        clock, gateway = self._clock, self._gateway
        for number, ask in enumerate(asks):
            clock.at(BEGINS_AT_S + ask.at_s, lambda n=number, ask=ask: gateway.ask(n, ask))
        while gateway.n_over < len(asks):
            if clock.next_at is None:
                raise InvariantBroken("requests wait, and nothing is to happen")
            clock.next()
        seconds = clock.now - BEGINS_AT_S if asks else 0.0
        return Run(
            served=tuple(self._served(asks)),
            seconds=seconds,
            loads=tuple(told.loads(seconds) for told in self._told),
        )

    def _served(self, asks: Sequence[Ask]) -> Iterator[Served]:
        for number, ask in enumerate(asks):
            client = self._gateway.clients[number]
            yield Served(
                ask=ask,
                ttft_s=client.first_s,
                second_token_s=client.second_s,
                e2e_s=client.last_s,
                cached_tokens=client.cached_tokens,
                refused=client.refused,
            )
