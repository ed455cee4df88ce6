"""A pool and its host memory: pages go and come back byte for byte, or the pull fails."""

import os
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from common.errors import InvariantBroken, SetupError
from common.ids import HostId, InstanceId, PageId
from transfer.api import Copy, Status, Ticket
from transfer.memory import SharedPages, file_bytes
from transfer.tiers.host import HostPages, HostTier

N_PAGES, PAGE_BYTES = 8, 368_640


class Both:
    """Pages with content of their own in the pool, none in host memory."""

    def __init__(self) -> None:
        self.pool = SharedPages(N_PAGES, PAGE_BYTES)
        self.memory = HostPages(N_PAGES, PAGE_BYTES)
        self.woken = threading.Event()
        self.tier = HostTier(
            self.pool,
            self.memory,
            instance=InstanceId("tier"),
            host=HostId("h"),
            wake=self.woken.set,
        )
        self.pool.pages[:] = np.random.default_rng(1).integers(0, 256, self.pool.pages.shape)
        self.pool.generations[:] = range(10, 10 + N_PAGES)
        self.memory.generations[:] = range(20, 20 + N_PAGES)

    def spill(self, pages: Sequence[int], to: Sequence[int]) -> Ticket:
        return self.tier.spill(copies(pages, 10, to))

    def restore(self, pages: Sequence[int], to: Sequence[int]) -> Ticket:
        return self.tier.restore(copies(pages, 20, to))

    def final(self, ticket: Ticket) -> Status:
        while True:
            self.woken.clear()
            status = self.tier.transport.poll(ticket)
            if status is not Status.PENDING:
                return status
            assert self.woken.wait(10)

    def close(self) -> None:
        self.tier.close()
        self.pool.close()
        self.memory.close()


@pytest.fixture
def both() -> Iterator[Both]:
    made = Both()
    yield made
    made.close()


def copies(pages: Sequence[int], generation: int, to: Sequence[int]) -> tuple[Copy, ...]:
    pairs = zip(pages, to, strict=True)
    return tuple(Copy(PageId(page), generation + page, PageId(local)) for page, local in pairs)


def test_pages_go_and_come_back(both: Both) -> None:
    before = both.pool.pages.copy()
    assert both.final(both.spill((1, 2, 7), (5, 0, 3))) is Status.DONE
    both.pool.pages[:] = 0
    assert both.final(both.restore((3, 5, 0), (0, 6, 4))) is Status.DONE
    assert (both.pool.pages[[6, 4, 0]] == before[[1, 2, 7]]).all()
    assert not both.pool.pages[[1, 2, 3, 5, 7]].any()
    assert both.tier.transport.stats().pulled_bytes == 6 * PAGE_BYTES


def test_a_page_in_another_life_fails_the_pull_either_way(both: Both) -> None:
    both.pool.generations[2] += 1
    spilled, restored = both.spill((1, 2), (0, 1)), both.restore((0,), (0,))
    both.memory.generations[7] += 1
    stale = both.restore((7,), (1,))
    ended = [both.final(ticket) for ticket in (spilled, restored, stale)]
    assert ended == [Status.FAILED, Status.DONE, Status.FAILED]
    assert both.tier.transport.why(spilled).startswith("stale")


def test_nothing_is_written_after_a_cancelled_pull_is_final(both: Both) -> None:
    tickets = [both.spill(range(N_PAGES), range(N_PAGES)) for _ in range(4)]
    for ticket in tickets:
        both.tier.transport.cancel(ticket)
    assert Status.FAILED in [both.final(ticket) for ticket in tickets]
    both.memory.pages[:] = 0
    assert both.final(both.restore((0,), (0,))) is Status.DONE
    assert not both.memory.pages.any()


def test_close_fails_what_is_in_flight(both: Both) -> None:
    tickets = [both.spill(range(N_PAGES), range(N_PAGES)) for _ in range(8)]
    both.tier.close()
    late = both.spill((0,), (0,))
    ended = [both.tier.transport.poll(ticket) for ticket in (*tickets, late)]
    assert Status.PENDING not in ended
    assert ended[-1] is Status.FAILED
    assert not both.tier.transport.alive


def test_host_memory_is_taken_in_full_and_given_back() -> None:
    memory = HostPages(3, 8192)
    assert memory.fd is not None
    assert os.fstat(memory.fd).st_blocks * 512 >= file_bytes(3, 8192)
    pages = memory.pages
    memory.close()
    memory.close()
    pages[2] = 5
    assert int(pages.sum()) == 5 * 8192


def test_host_memory_that_is_not_to_be_had() -> None:
    with pytest.raises(SetupError, match="lower --kv-host-memory-bytes"):
        HostPages(2**24, 65_536)
    with pytest.raises(InvariantBroken):
        HostPages(0, 4096)
