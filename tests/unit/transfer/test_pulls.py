"""Pulls by a core's ticket numbers, over a real transport between two pools of this process."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.engine.events import PeerDown, PeerUp, Pull, TicketFinal
from common.ids import InstanceId, PageId, Role, TicketId
from common.messages import PROTOCOL, Hello, PageRef, Peer
from common.rundir import host_id
from transfer.memory import SharedPages
from transfer.open import open_transport
from transfer.pulls import FORGET_AFTER_S, Pulls
from transfer.transport import PageTransport

N_PAGES, PAGE_BYTES = 8, 4096


class Side:
    """A pool, its transport and its key."""

    def __init__(self, name: str, run_dir: Path) -> None:
        self.instance = InstanceId(name * 32)
        self.rung = threading.Event()
        self.memory = SharedPages(N_PAGES, PAGE_BYTES)
        self.transport: PageTransport = open_transport(
            "shm",
            instance=self.instance,
            host=host_id(),
            run_dir=run_dir,
            listen_host="127.0.0.1",
            wake=self.rung.set,
        )
        self.pulls = Pulls(self.transport, self.memory)
        self.key = self.pulls.key

    def hello(self) -> Hello:
        peer = Peer(instance=self.instance, role=Role.PREFILL, host=self.key.host, endpoints=())
        return Hello(protocol=PROTOCOL, peer=peer, model=None, limits=None, pool=self.key)

    def close(self) -> None:
        self.pulls.close()
        self.memory.close()


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[tuple[Side, Side]]:
    reader, owner = Side("r", tmp_path / "r"), Side("o", tmp_path / "r")
    yield reader, owner
    reader.close()
    owner.close()


def final(pulls: Pulls, side: Side) -> TicketFinal:
    while True:
        for event in pulls.finals(0.0):
            return event
        assert side.rung.wait(10)
        side.rung.clear()


def pull(ticket: int, owner: Side, generation: int = 0) -> Pull:
    copies = ((PageRef(PageId(3), generation), PageId(5)),)
    return Pull(TicketId(ticket), owner.instance, owner.key, copies)


def test_a_pull_ends_once_under_the_cores_number(sides: tuple[Side, Side]) -> None:
    reader, owner = sides
    owner.memory.pages[3] = 7
    pulls = reader.pulls
    pulls.start(pull(41, owner))
    assert final(pulls, reader) == TicketFinal(TicketId(41), ok=True)
    assert (reader.memory.pages[5] == 7).all()
    assert pulls.finals(0.0) == []
    assert pulls.counters()["kv_pull_bytes_total"] == PAGE_BYTES
    pulls.cancel(TicketId(41))  # late: nothing


def test_a_failure_says_why(sides: tuple[Side, Side]) -> None:
    reader, owner = sides
    pulls = reader.pulls
    pulls.start(pull(1, owner, generation=9))
    ended = final(pulls, reader)
    assert not ended.ok
    assert ended.detail
    assert pulls.counters()["kv_pull_failures_total"] == 1


def test_a_dead_peers_memory_can_be_pulled_from_and_is_given_back_later(
    sides: tuple[Side, Side],
) -> None:
    reader, owner = sides
    pulls = reader.pulls
    pulls.hear(PeerUp(owner.hello()), 0.0)
    pulls.start(pull(1, owner))
    assert final(pulls, reader).ok
    owner.transport.close()
    pulls.hear(PeerDown(owner.instance), 100.0)
    pulls.start(pull(2, owner))
    assert final(pulls, reader).ok
    assert reader.transport.stats().peers == 1
    assert pulls.finals(100.0 + FORGET_AFTER_S) == []
    deadline = time.monotonic() + 10
    while reader.transport.stats().peers:
        assert time.monotonic() < deadline
        time.sleep(0.001)
