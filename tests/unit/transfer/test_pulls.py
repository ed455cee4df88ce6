"""Pulls by a core's ticket numbers, over a real transport between two pools of this process."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from common.engine.events import PeerDown, PeerUp, Pull, Spill, TicketFinal
from common.errors import InvariantBroken
from common.ids import HostId, InstanceId, PageId, Role, TicketId
from common.messages import PROTOCOL, Hello, PageRef, Peer
from common.rundir import host_id
from transfer.memory import SharedPages
from transfer.open import open_transport
from transfer.pulls import FORGET_AFTER_S, Pulls
from transfer.tiers.host import HostPages, HostTier
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


def test_a_thread_that_died_ends_the_worker(sides: tuple[Side, Side]) -> None:
    reader, _ = sides
    reader.transport.close()
    with pytest.raises(InvariantBroken, match="thread"):
        reader.pulls.finals(0.0)


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


def test_pages_are_spilled_and_pulled_back_under_the_cores_numbers(tmp_path: Path) -> None:
    side = Side("r", tmp_path)
    memory = HostPages(N_PAGES, PAGE_BYTES)
    tier = HostTier(
        side.memory,
        memory,
        instance=InstanceId("tier"),
        host=host_id(),
        wake=side.rung.set,
    )
    transport = open_transport(
        "shm",
        instance=InstanceId("w" * 32),
        host=host_id(),
        run_dir=tmp_path,
        listen_host="127.0.0.1",
        wake=side.rung.set,
    )
    pulls = Pulls(transport, side.memory, tier)
    key = pulls.host_key
    assert key is not None
    side.memory.pages[3] = 7
    pulls.start(Spill(TicketId(1), ((PageRef(PageId(3), 0), PageId(6)),)))
    assert final(pulls, side) == TicketFinal(TicketId(1), ok=True)
    back = ((PageRef(PageId(6), 0), PageId(4)),)
    pulls.start(Pull(TicketId(2), key.owner, key, back))
    assert final(pulls, side) == TicketFinal(TicketId(2), ok=True)
    assert (side.memory.pages[4] == 7).all()
    pulls.start(Pull(TicketId(3), key.owner, key, ((PageRef(PageId(6), 9), PageId(4)),)))
    assert not final(pulls, side).ok
    counters = pulls.counters()
    assert (counters["kv_spills_total"], counters["kv_restores_total"]) == (1, 1)
    assert counters["kv_spill_bytes_total"] == counters["kv_restore_bytes_total"] == PAGE_BYTES
    assert (counters["kv_host_pull_failures_total"], counters["kv_pulls_total"]) == (1, 0)
    pulls.close()
    memory.close()
    side.close()


def test_how_pages_come_is_told_when_a_peer_does(
    sides: tuple[Side, Side], caplog: pytest.LogCaptureFixture
) -> None:
    reader, owner = sides
    elsewhere = replace(owner.hello(), pool=replace(owner.key, host=HostId("another")))
    with caplog.at_level("INFO"):
        reader.pulls.hear(PeerUp(owner.hello()), 0.0)
        reader.pulls.hear(PeerUp(elsewhere), 0.0)
    assert [record.message for record in caplog.records] == [
        f"event=pages_come_by way=shm peer={owner.instance}",
        f'event=pages_come_by way="" peer={owner.instance} not_by="shm: another host"',
    ]
