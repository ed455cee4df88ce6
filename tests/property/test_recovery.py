"""Who is to blame when workers die, and what that costs the others."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.simulate.cluster import Cluster
from bench.simulate.model import POISON, SLOW_POISON
from bench.simulate.model import generate as generate_prompt
from bench.simulate.process import Process
from bench.simulate.shape import Shape
from bench.simulate.workload import workload
from common.engine.events import PeerDown, PeerUp, Received
from common.errors import Overloaded, PeerError
from common.ids import Role, TransferId
from common.messages import Expect, Prefill, Refused
from launch.gateway.attempts import RETRY_S, Attempts
from launch.gateway.events import Crashed
from tests.unit.gateway.builders import D2, P2, Bench, D, P, generate, hello

WORKERS = (P, P2, D, D2)
EVERY_S = 0.02  # a request, for as long as its workers die


def attempts(bench: Bench) -> Attempts:
    return bench.core._attempts


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from((*WORKERS, "submit")), max_size=60))
def test_workers_that_are_killed_make_nobody_wait(deaths: list[str]) -> None:
    """Nobody waits for workers of its own: as soon as there are any, each has some."""
    bench = Bench(*WORKERS)
    for n, name in enumerate(deaths):
        worker = next((one for one in WORKERS if one == name), None)
        if worker is None:
            bench.submit(generate(f"r{n}"))
        else:
            bench.take(PeerDown(worker))
            bench.take(PeerUp(hello(worker)))
        bench.tick(RETRY_S[-1])
        assert not attempts(bench).unrouted


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from((*WORKERS, "submit")), min_size=30, max_size=60))
def test_whoever_was_there_too_often_when_workers_crashed_shares_none(crashes: list[str]) -> None:
    bench = Bench(*WORKERS)
    for n, name in enumerate(crashes):
        worker = next((one for one in WORKERS if one == name), None)
        if worker is None:
            bench.submit(generate(f"r{n}"))
        else:
            bench.take(Crashed(worker), PeerDown(worker))
            bench.take(PeerUp(hello(worker)))
        bench.tick(RETRY_S[-1])
        for one in WORKERS:
            there = attempts(bench).at(one)
            assert len(there) <= 1 or not any(t.needs_own_workers for t in there)


@pytest.mark.parametrize(("poison", "prefills"), [(POISON, 2), (SLOW_POISON, 1), (POISON, 0)])
def test_a_prompt_that_kills_its_workers_is_failed_alone_while_others_come(
    poison: int, prefills: int
) -> None:
    shape = Shape(prefills=prefills, decodes=2)
    cluster = Cluster(shape, seed=poison + prefills)
    cluster.world.deadly = True
    others = workload(0, shape, 100)
    deadly = generate_prompt("deadly", (7, poison), 8)
    cluster.submit(deadly)
    cluster.submit(*others, every_s=EVERY_S)
    cluster.answer([deadly, *others])
    assert isinstance(cluster.client(deadly).error, PeerError)
    assert all(cluster.client(one).whole for one in others)
    assert cluster.network.counts["crashed"] <= 5
    cluster.settle()


@pytest.mark.parametrize("prefills", [0, 1])
def test_whoever_was_accepted_finds_a_place_where_queues_are_full(prefills: int) -> None:
    offered: set[TransferId] = set()
    refused: list[TransferId] = []

    def watch(_process: Process, events: Sequence[Any], _actions: Sequence[Any]) -> None:
        for event in events:
            match event:
                case Received(_, Expect(recovering=True) | Prefill(recovering=True) as message):
                    offered.add(message.transfer)
                case Received(_, Refused(transfer=transfer)) if transfer in offered:
                    refused.append(transfer)
                case _:
                    pass

    shape = Shape(prefills=prefills, decodes=2, max_waiting=4, max_num_seqs=2)
    cluster = Cluster(shape, seed=1, watches=[watch])
    requests = workload(0, shape, 200)
    cluster.submit(*requests, every_s=0.005)
    for at_s in (0.3, 0.9):
        cluster.clock.at(at_s, lambda: cluster.replace(cluster.of(Role.DECODE)[0]))
    cluster.answer(requests)
    errors = [cluster.client(one).error for one in requests]
    assert sum(isinstance(error, Overloaded) for error in errors) > 50
    assert len(offered) >= 4
    assert not refused
    cluster.settle()
