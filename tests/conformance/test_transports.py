"""The same promises, kept by every transport, between real processes."""

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from common.errors import InvariantBroken
from common.ids import InstanceId
from common.messages import RegionKey
from tests.conformance.transports_reader import (
    PAGE_BYTES,
    SMALL_PAGE_BYTES,
    TIMEOUT_S,
    Name,
    OwnerProcess,
    Reader,
    copies_of,
    until,
)
from transfer.api import Copy, Status
from transfer.tickets import Reason

NAMES: tuple[Name, ...] = ("shm", "tcp", "auto", "cuda_ipc", "tcp+pinned")
SOCKET_FILES = {
    "shm": ["0wner.pages"],
    "tcp": [],
    "tcp+pinned": [],
    "auto": ["0wner.pages"],
    "cuda_ipc": ["0wner.cuda"],
}


@pytest.fixture(params=NAMES, scope="module")
def name(request: pytest.FixtureRequest) -> Name:
    return request.param


@pytest.fixture(scope="module")
def peer(name: Name, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnerProcess]:
    """One owner for all tests that leave it as they found it, 64 pages written."""
    with OwnerProcess(name, tmp_path_factory.mktemp("peer"), instance="peer") as owner:
        owner.do("write", range(64))
        yield owner


def test_pulled_pages_are_what_their_owner_wrote(
    name: Name, peer: OwnerProcess, tmp_path: Path
) -> None:
    rng = random.Random(1)
    with Reader(name, tmp_path) as reader:
        refs = peer.do("announce", rng.sample(range(64), 40))
        copies = copies_of(refs, rng.sample(range(64), 40))
        assert reader.pull(peer.key, copies) == (Status.DONE, "")
        assert reader.holds(copies)
        others = set(range(64)) - {copy.local for copy in copies}
        assert not reader.pages[sorted(others)].any()
        stats = reader.transport.stats()
        assert (stats.pulls_done, stats.pulled_bytes, stats.peers) == (1, 40 * PAGE_BYTES, 1)
        assert stats.failed == {}
        assert 0 < stats.pull_seconds < 5


def test_adjacent_pages_and_the_last_one_arrive(
    name: Name, peer: OwnerProcess, tmp_path: Path
) -> None:
    with Reader(name, tmp_path) as reader:
        copies = copies_of(peer.do("announce", range(64)), range(64))
        assert reader.pull(peer.key, copies) == (Status.DONE, "")
        assert reader.holds(copies)


def test_a_pull_of_no_pages_is_done_even_from_the_dead(name: Name, tmp_path: Path) -> None:
    with OwnerProcess(name, tmp_path) as owner, Reader(name, tmp_path) as reader:
        owner.kill()
        ticket = reader.start(owner.key, ())
        assert reader.woken.is_set()
        assert reader.transport.poll(ticket) is Status.DONE


def test_a_page_in_another_life_fails_the_pull(
    name: Name, peer: OwnerProcess, tmp_path: Path
) -> None:
    with Reader(name, tmp_path) as reader:
        old = peer.do("write", range(8))
        peer.do("write", [5])
        status, why = reader.pull(peer.key, copies_of(old, range(8)))
        assert status is Status.FAILED
        assert why.startswith("stale")
        assert reader.transport.stats().failed == {Reason.STALE: 1}
        fresh = copies_of(peer.do("announce", range(8)), range(8))
        assert reader.pull(peer.key, fresh) == (Status.DONE, "")
        assert reader.holds(fresh)


def test_pages_that_cannot_be_fail_the_pull(name: Name, tmp_path: Path) -> None:
    with Reader(name, tmp_path) as reader:
        remote = msgspec.structs.replace(reader.key, owner=InstanceId("somebody"))
        for ref in ((64, 1), (-1, 1), (2**70, 1), (0, -1), (0, 2**64)):
            status, why = reader.pull(remote, copies_of([ref], [0]))
            assert (status, why.split(":")[0]) == (Status.FAILED, Reason.INVALID)


def test_what_is_not_what_it_was_said_to_be_fails_the_pull(
    name: Name, peer: OwnerProcess, tmp_path: Path
) -> None:
    with Reader(name, tmp_path) as reader:
        copies = copies_of(peer.do("announce", [0]), [0])
        replace = msgspec.structs.replace
        for remote, reason in (
            (replace(peer.key, page_bytes=PAGE_BYTES * 2), Reason.INVALID),
            (replace(peer.key, region=7), Reason.REFUSED),
            (replace(peer.key, owner=InstanceId("another")), Reason.REFUSED),
            (replace(peer.key, doors={"pigeon": "roof"}), Reason.UNREACHABLE),
            (replace(peer.key, doors=dict.fromkeys(peer.key.doors, "/")), Reason.UNREACHABLE),
        ):
            status, why = reader.pull(remote, copies)
            assert (status, why.split(":")[0]) == (Status.FAILED, reason)
        assert reader.pull(peer.key, copies) == (Status.DONE, "")
        ticket = reader.transport.pull(InstanceId("other"), peer.key, reader.key, copies)
        assert reader.finish(ticket) is Status.FAILED


def test_our_own_mistakes_raise(name: Name, tmp_path: Path) -> None:
    with Reader(name, tmp_path) as reader:
        remote = msgspec.structs.replace(reader.key, owner=InstanceId("somebody"))
        with pytest.raises(InvariantBroken):
            reader.transport.register(reader.memory)
        for refs, local in (([(0, 1)], [64]), ([(0, 1), (1, 1)], [3, 3])):
            with pytest.raises(InvariantBroken):
                reader.start(remote, copies_of(refs, local))
        with pytest.raises(InvariantBroken):
            reader.transport.pull(remote.owner, remote, remote, ())
        ticket = reader.start(remote, ())
        reader.transport.poll(ticket)
        with pytest.raises(InvariantBroken):
            reader.transport.poll(ticket)


def test_one_page_can_be_pulled_twice_at_once(
    name: Name, peer: OwnerProcess, tmp_path: Path
) -> None:
    with Reader(name, tmp_path) as reader:
        refs = peer.do("announce", range(16))
        first, second = copies_of(refs, range(16)), copies_of(refs, range(20, 36))
        tickets = [reader.start(peer.key, copies) for copies in (first, second)]
        assert [reader.finish(ticket) for ticket in tickets] == [Status.DONE] * 2
        assert reader.holds(first + second)


def test_a_process_can_pull_from_itself_and_from_many(name: Name, tmp_path: Path) -> None:
    with (
        OwnerProcess(name, tmp_path, instance="a" * 32) as a,
        OwnerProcess(name, tmp_path, instance="b" * 32) as b,
        Reader(name, tmp_path) as reader,
    ):
        first = copies_of(a.do("write", range(20)), range(20))
        second = copies_of(b.do("write", range(20)), range(20, 40))
        own = copies_of([(0, 0)], [41])
        tickets = [reader.start(a.key, first), reader.start(b.key, second)]
        assert [reader.finish(ticket) for ticket in tickets] == [Status.DONE] * 2
        assert reader.holds(first + second)
        assert reader.pull(reader.key, own) == (Status.DONE, "")
        assert (reader.pages[41] == reader.pages[0]).all()


def test_an_owner_that_is_dead_or_never_lived_fails_the_pull(name: Name, tmp_path: Path) -> None:
    with (
        OwnerProcess(name, tmp_path) as owner,
        Reader(name, tmp_path, timeout_s=TIMEOUT_S) as reader,
    ):
        copies = copies_of(owner.do("write", [0]), [0])
        owner.kill()
        began_s = time.monotonic()
        assert reader.pull(owner.key, copies)[0] is Status.FAILED
        assert time.monotonic() - began_s < TIMEOUT_S + 1


def test_an_owner_killed_after_connecting(name: Name, tmp_path: Path) -> None:
    """Mapped memory outlives its owner; a socket and a device's memory do not."""
    with (
        OwnerProcess(name, tmp_path) as owner,
        Reader(name, tmp_path, timeout_s=TIMEOUT_S) as reader,
    ):
        copies = copies_of(owner.do("write", range(64)), range(64))
        reader.connect(owner.key)
        owner.kill()
        if name in ("tcp", "tcp+pinned", "cuda_ipc"):
            assert reader.pull(owner.key, copies)[0] is Status.FAILED
        else:
            assert reader.pull(owner.key, copies) == (Status.DONE, "")
            assert reader.holds(copies)


def test_an_owner_killed_under_a_pull_ends_it(name: Name, tmp_path: Path) -> None:
    for delay_s in (0.0, 0.002, 0.005):
        with (
            OwnerProcess(name, tmp_path) as owner,
            Reader(name, tmp_path, timeout_s=TIMEOUT_S) as reader,
        ):
            copies = copies_of(owner.do("write", range(64)), range(64))
            ticket = reader.start(owner.key, copies)
            time.sleep(delay_s)
            owner.kill()
            if reader.finish(ticket) is Status.DONE:
                assert reader.holds(copies)


def test_a_new_life_at_an_old_address_gives_nothing_for_the_old(name: Name, tmp_path: Path) -> None:
    """Both have the same socket file, and the new TCP door is taken for the old one."""
    with OwnerProcess(name, tmp_path, instance="0" * 12 + "1") as old:
        copies = copies_of(old.do("write", [0]), [0])
        old.kill()
        with (
            OwnerProcess(name, tmp_path, instance="0" * 12 + "2") as new,
            Reader(name, tmp_path) as reader,
        ):
            new.do("write", [0])
            remote = msgspec.structs.replace(old.key, doors=new.key.doors)
            status, why = reader.pull(remote, copies)
            assert (status, why.split(":")[0]) == (Status.FAILED, Reason.REFUSED)
            assert reader.pull(new.key, copies) == (Status.DONE, "")


def test_an_owner_that_stands_still_fails_the_pull_and_may_go_on(
    name: Name, tmp_path: Path
) -> None:
    with (
        OwnerProcess(name, tmp_path) as owner,
        Reader(name, tmp_path, timeout_s=TIMEOUT_S) as reader,
    ):
        copies = copies_of(owner.do("write", [0]), [0])
        owner.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, owner.process.pid, os.WSTOPPED)
        began_s = time.monotonic()
        status, why = reader.pull(owner.key, copies)
        assert (status, why.split(":")[0]) == (Status.FAILED, Reason.NO_PROGRESS)
        assert time.monotonic() - began_s < TIMEOUT_S + 1
        owner.process.send_signal(signal.SIGCONT)
        assert reader.pull(owner.key, copies) == (Status.DONE, "")
        assert reader.holds(copies)


def test_nothing_is_written_after_a_cancelled_pull_is_final(
    name: Name, peer: OwnerProcess, tmp_path: Path
) -> None:
    with Reader(name, tmp_path) as reader:
        copies = copies_of(peer.do("announce", range(64)), range(64))
        reader.connect(peer.key)
        ended: list[Status] = []
        for delay_s in (*[0.0] * 12, 0.0005, 0.001, 0.002, 0.004):
            ticket = reader.start(peer.key, copies)
            if delay_s:
                time.sleep(delay_s)
            reader.transport.cancel(ticket)
            reader.transport.cancel(ticket)
            ended.append(reader.finish(ticket))
            reader.pages[:] = 0
            time.sleep(0.05)
            assert not reader.pages.any()
            reader.transport.cancel(ticket)
        assert Status.FAILED in ended  # one may be done before it can be cancelled
        assert reader.transport.stats().failed == {Reason.CANCELLED: ended.count(Status.FAILED)}
        assert reader.pull(peer.key, copies) == (Status.DONE, "")
        assert reader.holds(copies)


def test_close_fails_what_is_in_flight_and_leaves_nothing_behind(
    name: Name, tmp_path: Path
) -> None:
    with OwnerProcess(name, tmp_path) as owner:
        copies = copies_of(owner.do("write", range(64)), range(64))
        unheard = msgspec.structs.replace(owner.key, owner=InstanceId("nobody"))
        fds, threads = _fds(), threading.active_count()
        for _ in range(3):
            _close_in_flight(name, tmp_path, (owner.key, unheard), copies)
        until(lambda: _fds() <= fds)
        assert threading.active_count() == threads
        assert [path.name for path in tmp_path.iterdir()] == SOCKET_FILES[name]


def test_a_forgotten_owner_s_memory_is_given_back(
    name: Name, peer: OwnerProcess, tmp_path: Path
) -> None:
    with Reader(name, tmp_path) as reader:
        copies = copies_of(peer.do("announce", range(64)), range(64))
        fds = _fds()
        for _ in range(2):
            ticket = reader.start(peer.key, copies)
            reader.transport.forget(peer.key.owner)  # what is in flight may finish
            assert reader.finish(ticket) is Status.DONE
            assert reader.holds(copies)
            until(lambda: reader.transport.stats().peers == 0)
            until(lambda: _fds() <= fds)


def test_reused_pages_are_never_taken_for_the_announced_ones(name: Name, tmp_path: Path) -> None:
    """Ten thousand pages, under an owner that reuses some of them as fast as it can."""
    n, n_hot, small = 512, 32, SMALL_PAGE_BYTES
    rng = random.Random(2)
    with (
        OwnerProcess(name, tmp_path, pages=n, page_bytes=small) as owner,
        Reader(name, tmp_path, pages=n, page_bytes=small) as reader,
    ):
        owner.do("write", range(n))
        owner.do("churn", range(n_hot))
        ended = {Status.DONE: 0, Status.FAILED: 0}
        n_pulled = 0
        while n_pulled < 10_000:
            # Mostly pages that rest; a few of those that are rewritten all the time.
            pages = rng.sample(range(n_hot, n), 96) + rng.sample(range(n_hot), rng.randrange(4))
            copies = copies_of(owner.do("announce", pages), rng.sample(range(n), len(pages)))
            tickets = [reader.start(owner.key, part) for part in (copies[0::2], copies[1::2])]
            for ticket, part in zip(tickets, (copies[0::2], copies[1::2]), strict=True):
                status = reader.finish(ticket)
                ended[status] += 1
                assert status is Status.FAILED or reader.holds(part)
            n_pulled += len(copies)
        assert reader.transport.stats().failed == {Reason.STALE: ended[Status.FAILED]}
        assert ended[Status.DONE] > 20
        assert ended[Status.FAILED] > 20
        owner.do("calm")
        copies = copies_of(owner.do("announce", range(n)), range(n))
        assert reader.pull(owner.key, copies) == (Status.DONE, "")
        assert reader.holds(copies)


def _close_in_flight(
    name: Name, run_dir: Path, keys: tuple[RegionKey, RegionKey], copies: tuple[Copy, ...]
) -> None:
    """Of the two keys, the first is an owner's that answers, the second nobody's."""
    with Reader(name, run_dir) as reader:
        assert reader.pull(keys[0], copies) == (Status.DONE, "")
        assert reader.transport.alive
        tickets = [reader.start(key, copies) for key in keys * 4]
        reader.transport.close()
        assert not reader.transport.alive
        ended = [reader.transport.poll(ticket) for ticket in tickets]
        assert Status.PENDING not in ended
        assert ended[-1] is Status.FAILED
        late = reader.start(keys[0], copies)
        assert reader.transport.poll(late) is Status.FAILED


def _fds() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
