"""What pages of devices promise beyond what all transports do where they go by sockets: slots of
pinned memory are few, and come back whatever becomes of those who have them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import zmq

from common.errors import SetupError
from common.messages import PageRef, RegionKey
from tests.conformance.fake_cuda import FakeCuda, Gpu
from tests.conformance.transports_owner import Owner, content
from tests.conformance.transports_reader import (
    PAGE_BYTES,
    TIMEOUT_S,
    Reader,
    copies_of,
    until,
)
from transfer.api import Copy, Status
from transfer.backends.tcp_messages import PagesWanted, encoder
from transfer.cuda_memory import DevicePages
from transfer.pinned import RING_BYTES, PinnedRing
from transfer.tickets import Reason

N_PAGES = 32
IN_A_REQUEST = 2
N_SLOTS = 16
SLOW_S = 0.003


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[tuple[Reader, Reader]]:
    """Who owns pages, 32 of them written, and who pulls them."""
    with (
        Reader("tcp+pinned", tmp_path, pages=N_PAGES, timeout_s=TIMEOUT_S) as owner,
        Reader("tcp+pinned", tmp_path, pages=N_PAGES, timeout_s=TIMEOUT_S) as reader,
    ):
        write(owner, range(N_PAGES))
        yield owner, reader


def write(owner: Reader, pages: range) -> tuple[Copy, ...]:
    """A new life of them; copies to where they lie there."""
    return copies_of(Owner(owner.memory).write(list(pages)), pages)


def copies_now(owner: Reader) -> tuple[Copy, ...]:
    generations = owner.memory.generations.tolist()
    return copies_of(list(enumerate(generations)), range(N_PAGES))


def fake_of(end: Reader) -> FakeCuda:
    assert end.cuda is not None
    return end.cuda


@contextmanager
def stranger(owner: Reader) -> Iterator["zmq.Socket[bytes]"]:
    """A reader that asks for as much as its window allows, and takes nothing."""
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.RCVHWM, 1)
    socket.set(zmq.RCVBUF, 4096)
    socket.connect(owner.key.doors["tcp"])
    for number in range(N_SLOTS // 2):
        pages = copies_now(owner)[number * IN_A_REQUEST : (number + 1) * IN_A_REQUEST]
        socket.send(encoder.encode(wanted(owner.key, number, pages)))
    try:
        yield socket
    finally:
        context.destroy(linger=0)


def wanted(key: RegionKey, number: int, copies: tuple[Copy, ...]) -> PagesWanted:
    refs = tuple(PageRef(copy.remote, copy.generation) for copy in copies)
    return PagesWanted(protocol=1, request=number, owner=key.owner, region=0, pages=refs)


# --- slots come back -----------------------------------------------------------------------------


def test_readers_that_die_give_their_slots_back(ends: tuple[Reader, Reader]) -> None:
    owner, reader = ends
    for _ in range(5):
        with stranger(owner) as socket:
            assert socket.poll(5000)  # it has begun to get them
    copies = copies_now(owner)
    assert reader.pull(owner.key, copies) == (Status.DONE, "")
    assert reader.holds(copies)


def test_readers_that_take_nothing_stop_no_other(ends: tuple[Reader, Reader]) -> None:
    """Four of them have asked for twice what there are slots for. What they take later is what
    they asked for, whatever slots were used for since."""
    owner, reader = ends
    copies = copies_now(owner)
    with stranger(owner) as a, stranger(owner) as b, stranger(owner) as c, stranger(owner) as d:
        for socket in (a, b, c, d):
            assert socket.poll(5000)
        for _ in range(3):
            assert reader.pull(owner.key, copies) == (Status.DONE, "")
        assert reader.holds(copies)
        for number in range(N_SLOTS // 2):
            _, *pages = a.recv_multipart()
            for page, copy in zip(pages, copies[number * IN_A_REQUEST :], strict=False):
                assert (content(copy.remote, copy.generation, PAGE_BYTES) == bytearray(page)).all()
        owner.transport.close()  # while ZeroMQ has slots of the others
        assert fake_of(owner).n_pinned == fake_of(owner).n_events == 0


def test_cancelled_pulls_give_their_slots_back_when_nothing_is_written_any_more(
    ends: tuple[Reader, Reader],
) -> None:
    owner, reader = ends
    copies = copies_now(owner)
    assert reader.pull(owner.key, copies) == (Status.DONE, "")
    fake_of(reader).copy_s = SLOW_S
    ended: list[Status] = []
    for n in range(6):
        ticket = reader.start(owner.key, copies)
        time.sleep(n * SLOW_S)
        reader.transport.cancel(ticket)
        ended.append(reader.finish(ticket))
        reader.pages[:] = 0
        time.sleep(4 * SLOW_S)
        assert not reader.pages.any()
    assert ended.count(Status.FAILED) >= 5
    fake_of(reader).copy_s = 0.0
    assert reader.pull(owner.key, copies) == (Status.DONE, "")
    assert reader.holds(copies)


def test_a_device_may_write_for_longer_than_a_peer_may_be_silent(
    ends: tuple[Reader, Reader],
) -> None:
    """All that was asked for is here: where the link is opened anew nothing is asked for again."""
    owner, reader = ends
    copies = copies_now(owner)[:1]
    fake_of(reader).copy_s = 0.7 * TIMEOUT_S
    assert reader.pull(owner.key, copies) == (Status.DONE, "")
    assert reader.holds(copies)
    assert reader.transport.alive


def test_a_page_reused_while_the_device_copies_it_is_not_sent(ends: tuple[Reader, Reader]) -> None:
    owner, reader = ends
    copies = copies_now(owner)
    fake_of(owner).copy_s = 10 * SLOW_S
    ticket = reader.start(owner.key, copies[:IN_A_REQUEST])
    time.sleep(SLOW_S)
    owner.memory.generations[1] += 1
    assert reader.finish(ticket) is Status.FAILED
    assert reader.transport.why(ticket).startswith(Reason.STALE)
    fake_of(owner).copy_s = 0.0
    for _ in range(N_SLOTS):  # whose slots come back
        assert reader.pull(owner.key, copies[:IN_A_REQUEST])[0] is Status.FAILED
    assert reader.pull(owner.key, copies[IN_A_REQUEST:]) == (Status.DONE, "")


def test_both_ends_close_with_pulls_in_flight_and_leave_nothing(
    ends: tuple[Reader, Reader],
) -> None:
    owner, reader = ends
    copies = copies_now(owner)
    for end in ends:
        fake_of(end).copy_s = SLOW_S
    tickets = [reader.start(owner.key, copies) for _ in range(2)]
    time.sleep(4 * SLOW_S)
    for end in (reader, owner):
        end.transport.close()
        assert fake_of(end).n_pinned == fake_of(end).n_events == 0
    assert {reader.transport.poll(ticket) for ticket in tickets} == {Status.FAILED}


# --- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("failing", [0, 1], ids=["owner", "reader"])
def test_a_device_that_fails_ends_its_own_side(ends: tuple[Reader, Reader], failing: int) -> None:
    owner, reader = ends
    copies = copies_now(owner)
    fake_of(ends[failing]).has_failed = True
    status, why = reader.pull(owner.key, copies)
    assert status is Status.FAILED
    assert why.split(":")[0] == (Reason.CLOSED if failing else Reason.NO_PROGRESS)
    until(lambda: not ends[failing].transport.alive)
    assert ends[not failing].transport.alive


def test_without_pinned_memory_there_is_no_worker(tmp_path: Path) -> None:
    with Reader("auto", tmp_path, gpu=Gpu()) as reader:
        fake_of(reader).no_pinned = True
        more = DevicePages(reader.memory.device, 1, PAGE_BYTES)  # type: ignore[union-attr]
        with pytest.raises(SetupError, match="16777216 bytes of pinned memory are not to be had"):
            reader.transport.register(more)
        more.close()


# --- slots ---------------------------------------------------------------------------------------


@pytest.fixture
def memory() -> Iterator[DevicePages]:
    cuda, device = Gpu().open()
    memory = DevicePages(device, 8, 4096)
    for page in range(8):
        memory.pages[page] = np.full(4096, page, np.uint8)
    yield memory
    memory.close()
    assert cuda.n_pinned == cuda.n_events == 0


def test_a_ring_is_of_some_slots_each_of_a_page_at_least(memory: DevicePages) -> None:
    for slot_bytes, n_slots in ((2**20, 16), (2**30, 4), (0, RING_BYTES // 4096)):
        ring = PinnedRing(memory, slot_bytes) if slot_bytes < 2**30 else _of_large_pages()
        assert (ring.n_slots, ring.n_free) == (n_slots, n_slots)
        ring.close()


def _of_large_pages() -> PinnedRing:
    _, device = Gpu().open()
    return PinnedRing(DevicePages(device, 1, 8 * 2**20), 2**20)


def test_half_of_the_slots_are_never_lent(memory: DevicePages) -> None:
    ring, is_read = PinnedRing(memory, 4 * 2**20), False
    for _ in range(2):
        assert ring.may_lend
        ring.lend(ring.take(), lambda: is_read)
    assert not ring.may_lend
    kept = [ring.take() for _ in range(2)]
    assert ring.n_free == 0
    ring.give_back(kept.pop())
    assert ring.n_free == 1
    is_read = True
    assert ring.may_lend
    assert ring.n_free == 3
    ring.close()


def test_pages_go_out_and_in_wherever_they_lie(memory: DevicePages) -> None:
    ring = PinnedRing(memory, 4 * 4096)
    slot = ring.take()
    ring.begin_out([5, 6, 1, 2], slot)
    until(lambda: slot.mark.is_passed)
    assert slot.bytes.reshape(4, 4096)[:, 0].tolist() == [5, 6, 1, 2]
    ring.begin_in(slot, [0, 7, 3, 4])
    ring.finish()
    assert slot.mark.is_passed
    assert [int(memory.pages[page][4095]) for page in range(8)] == [5, 1, 2, 1, 2, 5, 6, 6]
    ring.close()
