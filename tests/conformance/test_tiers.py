"""A tier is a region like any other: peers can pull from it, and what is reused under a pull is
never taken for what was announced."""

import random
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from common.ids import HostId, InstanceId, PageId
from common.rundir import host_id
from tests.conformance.fake_cuda import Gpu
from tests.conformance.transports_reader import PAGE_BYTES, SMALL_PAGE_BYTES, Reader
from transfer.api import Copy, Status, Ticket
from transfer.cuda_memory import DevicePages
from transfer.memory import Fence, SharedPages
from transfer.open import Name, open_transport
from transfer.tiers.host import HostPages, HostTier


@pytest.mark.parametrize("name", ["shm", "tcp"])
def test_a_peer_pulls_from_host_memory(name: Name, tmp_path: Path) -> None:
    memory = HostPages(4, PAGE_BYTES)
    memory.pages[:] = np.random.default_rng(1).integers(0, 256, memory.pages.shape)
    memory.generations[:] = 7
    owner = open_transport(
        name,
        instance=InstanceId("owner"),
        host=host_id(),
        run_dir=tmp_path,
        listen_host="127.0.0.1",
        wake=lambda: None,
    )
    key = owner.register(memory)
    with Reader(name, tmp_path) as reader:
        copies = [Copy(PageId(page), 7, PageId(60 + page)) for page in range(4)]
        assert reader.pull(key, copies) == (Status.DONE, "")
        assert (reader.pages[60:] == memory.pages).all()
    owner.close()
    memory.close()


def test_pages_that_are_reused_under_a_spill_are_never_taken_for_the_announced_ones() -> None:
    n = 256
    pool, memory = SharedPages(n, SMALL_PAGE_BYTES), HostPages(n, SMALL_PAGE_BYTES)
    woken, over = threading.Event(), threading.Event()
    announced = [0] * n
    tier = HostTier(pool, memory, instance=InstanceId("tier"), host=HostId("h"), wake=woken.set)

    def churn() -> None:
        """New lives for the lower half, as fast as can be."""
        fence, draw = Fence(), random.Random(1)
        while not over.is_set():
            page = draw.randrange(n // 2)
            pool.generations[page] += 1
            fence()
            pool.pages[page] = int(pool.generations[page]) % 256
            announced[page] = int(pool.generations[page])

    def final(ticket: Ticket) -> Status:
        while True:
            woken.clear()
            status = tier.transport.poll(ticket)
            if status is not Status.PENDING:
                return status
            assert woken.wait(10)

    churner = threading.Thread(target=churn)
    churner.start()
    ended = {Status.DONE: 0, Status.FAILED: 0}
    draw, deadline = random.Random(2), time.monotonic() + 10
    try:
        while min(ended.values()) < 20:
            assert time.monotonic() < deadline, ended
            pages = draw.sample(range(n // 2, n), 24) + draw.sample(
                range(n // 2), draw.randrange(3)
            )
            copies = tuple(
                Copy(PageId(page), announced[page], PageId(to))
                for page, to in zip(pages, draw.sample(range(n), len(pages)), strict=True)
            )
            status = final(tier.spill(copies))
            ended[status] += 1
            for copy in copies if status is Status.DONE else ():
                whole = np.unique(memory.pages[copy.local])
                assert whole.tolist() == [copy.generation % 256]
    finally:
        over.set()
        churner.join()
        tier.close()
        pool.close()
        memory.close()


def test_pages_of_a_device_go_to_host_memory_and_back() -> None:
    cuda, device = Gpu().open()
    pool, memory = DevicePages(device, 4, SMALL_PAGE_BYTES), HostPages(4, SMALL_PAGE_BYTES)
    woken = threading.Event()
    tier = HostTier(pool, memory, instance=InstanceId("tier"), host=HostId("h"), wake=woken.set)
    content = np.random.default_rng(3).integers(0, 256, pool.pages.shape, np.uint8)
    for page in range(4):
        pool.pages[page] = content[page]
    pool.generations[:], memory.generations[:] = 5, 6

    def final(ticket: Ticket) -> Status:
        while (status := tier.transport.poll(ticket)) is Status.PENDING:
            assert woken.wait(10)
            woken.clear()
        return status

    spilled = tuple(Copy(PageId(page), 5, PageId(to)) for page, to in ((1, 3), (3, 0)))
    assert final(tier.spill(spilled)) is Status.DONE
    assert (memory.pages[[3, 0]] == content[[1, 3]]).all()
    back = tuple(Copy(PageId(page), 6, PageId(to)) for page, to in ((3, 0), (0, 2)))
    assert final(tier.restore(back)) is Status.DONE
    assert (cuda.look(pool.pages.address, pool.pages.shape) == content[[1, 1, 3, 3]]).all()
    stale = (Copy(PageId(1), 4, PageId(1)),)
    assert final(tier.spill(stale)) is Status.FAILED
    tier.close()
    pool.close()
    cuda.end_process()
