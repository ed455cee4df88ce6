"""What the wire and strangers may do to a transport, and what they may not."""

import os
import platform
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zmq

from common.errors import SetupError
from common.ids import InstanceId, PageId
from common.messages import PageRef, RegionKey
from common.rundir import host_id
from tests.conformance.transports_proxy import Proxy
from tests.conformance.transports_reader import (
    PAGE_BYTES,
    TIMEOUT_S,
    OwnerProcess,
    Reader,
    copies_of,
    until,
)
from transfer import fdpass
from transfer.api import Copy, Status
from transfer.backends.tcp_messages import (
    PagesHere,
    PageSum,
    PagesWanted,
    checksum,
    encoder,
    wanted_decoder,
)
from transfer.open import open_transport
from transfer.tickets import Reason

_MIB = 2**20


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnerProcess]:
    with OwnerProcess("tcp", tmp_path_factory.mktemp("peer")) as owner:
        owner.do("write", range(64))
        yield owner


def through(proxy: Proxy, key: RegionKey) -> RegionKey:
    return msgspec.structs.replace(key, doors={"tcp": proxy.door})


# --- the link ------------------------------------------------------------------------------------


def test_a_link_cut_under_a_pull_is_opened_anew(peer: OwnerProcess, tmp_path: Path) -> None:
    copies = copies_of(peer.do("announce", range(64)), range(64))
    with Proxy(peer.key.doors["tcp"]) as proxy, Reader("tcp", tmp_path, timeout_s=1) as reader:
        proxy.cut_at, proxy.n_cuts = 5 * _MIB, 1
        assert reader.pull(through(proxy, peer.key), copies) == (Status.DONE, "")
        assert proxy.n_cuts == 0
        assert reader.holds(copies)
        stats = reader.transport.stats()
        assert stats.retries >= 1
        assert stats.pulled_bytes == 64 * PAGE_BYTES  # what had come is not asked for again


def test_a_link_that_stays_cut_fails_the_pull_and_works_when_mended(
    peer: OwnerProcess, tmp_path: Path
) -> None:
    copies = copies_of(peer.do("announce", range(64)), range(64))
    with (
        Proxy(peer.key.doors["tcp"]) as proxy,
        Reader("tcp", tmp_path, timeout_s=TIMEOUT_S) as reader,
    ):
        proxy.cut_at, proxy.n_cuts, proxy.refuses = 5 * _MIB, 1, False
        ticket = reader.start(through(proxy, peer.key), copies)
        until(lambda: proxy.n_connections > 0)
        proxy.refuses = True
        began_s = time.monotonic()
        assert reader.finish(ticket) is Status.FAILED
        assert reader.transport.why(ticket).startswith(Reason.NO_PROGRESS)
        assert time.monotonic() - began_s < TIMEOUT_S + 1
        proxy.refuses = False
        assert reader.pull(through(proxy, peer.key), copies) == (Status.DONE, "")
        assert reader.holds(copies)


def test_a_bit_flipped_on_the_wire_is_found_and_asked_for_again(
    peer: OwnerProcess, tmp_path: Path
) -> None:
    copies = copies_of(peer.do("announce", range(8)), range(8))
    with Proxy(peer.key.doors["tcp"]) as proxy, Reader("tcp", tmp_path) as reader:
        proxy.flip_at, proxy.n_flips = 100_000, 1
        assert reader.pull(through(proxy, peer.key), copies) == (Status.DONE, "")
        assert proxy.n_flips == 0
        assert reader.holds(copies)
        assert reader.transport.stats().bad_frames == 1


def test_a_wire_that_flips_bits_for_ever_fails_the_pull(peer: OwnerProcess, tmp_path: Path) -> None:
    copies = copies_of(peer.do("announce", range(8)), range(8))
    with Proxy(peer.key.doors["tcp"]) as proxy, Reader("tcp", tmp_path) as reader:
        proxy.flip_at, proxy.n_flips = 100_000, 1_000_000
        status, why = reader.pull(through(proxy, peer.key), copies)
        assert (status, why.split(":")[0]) == (Status.FAILED, Reason.REFUSED)
        assert not reader.pages.any()


# --- who answers ---------------------------------------------------------------------------------


@contextmanager
def impostor(answer: Callable[[PagesWanted], list[bytes]]) -> Iterator[RegionKey]:
    """A page server that says what the test wants; yields the key of the region it pretends."""
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    ended = threading.Event()

    def run() -> None:
        try:
            while not ended.is_set():
                if router.poll(20):
                    reader, wanted = router.recv_multipart()
                    router.send_multipart([reader, *answer(wanted_decoder.decode(wanted))])
        finally:
            router.close(linger=0)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield RegionKey(
            owner=InstanceId("impostor"),
            host=host_id(),
            region=0,
            n_pages=64,
            page_bytes=PAGE_BYTES,
            doors={"tcp": f"tcp://127.0.0.1:{port}"},
        )
    finally:
        ended.set()
        thread.join()
        context.term()


ONE = (Copy(remote=PageId(3), generation=7, local=PageId(0)),)
GOOD = bytes(PAGE_BYTES)


def here(
    wanted: PagesWanted,
    *,
    request: int = 0,
    page: int = 0,
    generation: int = 0,
    content: bytes = GOOD,
) -> bytes:
    """An honest header, but for what is added."""
    sums = tuple(
        PageSum(ref.page + page, ref.generation + generation, checksum(memoryview(content)))
        for ref in wanted.pages
    )
    return encoder.encode(PagesHere(request=wanted.request + request, pages=sums))


@pytest.mark.parametrize(
    "answer",
    [
        lambda wanted: [here(wanted, request=1), GOOD],
        lambda wanted: [here(wanted, page=1), GOOD],
        lambda wanted: [here(wanted, generation=1), GOOD],
        lambda wanted: [here(wanted, content=GOOD[:-1]), GOOD[:-1]],
        lambda wanted: [here(wanted, content=GOOD[:1]), GOOD[:1]],
        lambda wanted: [here(wanted), GOOD, GOOD],
        lambda wanted: [here(wanted)],
        lambda wanted: [here(wanted), bytes([1]) + GOOD[1:]],
        lambda _: [b"\xff" * 1000],
        lambda _: [b""],
        lambda wanted: [here(wanted), GOOD + GOOD],
    ],
    ids=[
        *("other-request", "other-page", "other-life", "short", "one-byte", "one-more", "none"),
        *("corrupt", "garbage", "empty", "too-large"),
    ],
)
def test_what_was_not_asked_for_is_not_written(
    answer: Callable[[PagesWanted], list[bytes]], tmp_path: Path
) -> None:
    with (
        impostor(answer) as key,
        Reader("tcp", tmp_path, pages=1, timeout_s=TIMEOUT_S) as reader,
    ):
        reader.pages[:] = 9
        assert reader.pull(key, ONE)[0] is Status.FAILED
        assert (reader.pages == 9).all()


def test_the_honest_answer_is_written(tmp_path: Path) -> None:
    """Shows that the impostors above are refused for their one lie."""
    with impostor(lambda wanted: [here(wanted), GOOD]) as key, Reader("tcp", tmp_path) as reader:
        reader.pages[:] = 9
        assert reader.pull(key, ONE) == (Status.DONE, "")
        assert not reader.pages[0].any()


def test_a_reply_after_the_cancel_is_counted_and_dropped(tmp_path: Path) -> None:
    heard, go_on = threading.Event(), threading.Event()

    def answer(wanted: PagesWanted) -> list[bytes]:
        heard.set()
        go_on.wait(5)
        return [here(wanted), GOOD]

    with impostor(answer) as key, Reader("tcp", tmp_path) as reader:
        reader.pages[:] = 9
        ticket = reader.start(key, ONE)
        assert heard.wait(10)
        reader.transport.cancel(ticket)
        assert reader.finish(ticket) is Status.FAILED
        go_on.set()
        until(lambda: reader.transport.stats().late_replies == 1)
        assert (reader.pages == 9).all()


def test_a_reader_that_stood_still_blames_nobody(tmp_path: Path) -> None:
    """Its deadline passes while it is stopped; then the answer comes."""
    heard, go_on = threading.Event(), threading.Event()

    def answer(wanted: PagesWanted) -> list[bytes]:
        heard.set()
        go_on.wait(5)
        return [here(wanted), GOOD]

    with (
        impostor(answer) as key,
        OwnerProcess("tcp", tmp_path, pages=1, timeout_s=2 * TIMEOUT_S) as reader,
    ):
        ticket = reader.do("pull", remote=key, copies=[(3, 7, 0)])
        assert heard.wait(10)
        reader.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, reader.process.pid, os.WSTOPPED)
        time.sleep(3 * TIMEOUT_S)
        reader.process.send_signal(signal.SIGCONT)
        time.sleep(TIMEOUT_S / 4)
        assert reader.do("poll", ticket=ticket) == "pending"
        go_on.set()
        until(lambda: reader.do("poll", ticket=ticket) == "done")


# --- who asks ------------------------------------------------------------------------------------


def test_strangers_at_the_tcp_door_are_counted_and_harm_nobody(
    peer: OwnerProcess, tmp_path: Path
) -> None:
    rng = random.Random(3)
    before = peer.do("stats")
    host, _, port = peer.key.doors["tcp"].removeprefix("tcp://").rpartition(":")
    for _ in range(20):
        with socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(rng.randbytes(4096))
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.set(zmq.LINGER, 2000)
    dealer.connect(peer.key.doors["tcp"])
    honest = PagesWanted(
        protocol=99, request=1, owner=peer.key.owner, region=0, pages=(PageRef(PageId(0), 1),)
    )
    for frame in (b"", b"\xff" * 60_000, rng.randbytes(500), encoder.encode(honest)[:-1]):
        dealer.send(frame)
    dealer.send_multipart([b"x"] * 500)
    dealer.send(encoder.encode(honest))
    assert b"ours is 1, yours is 99" in dealer.recv()
    many = msgspec.structs.replace(honest, protocol=1, pages=(PageRef(PageId(0), 1),) * 100)
    dealer.send(encoder.encode(many))
    assert b"100 pages" in dealer.recv()
    dealer.send(bytes(64 * _MIB))  # too large a frame: the connection is cut
    dealer.close()
    context.term()
    copies = copies_of(peer.do("announce", range(64)), range(64))
    with Reader("tcp", tmp_path) as reader:
        assert reader.pull(peer.key, copies) == (Status.DONE, "")
        assert reader.holds(copies)
    after = peer.do("stats")
    assert after["alive"]
    assert after["bad_frames"] - before["bad_frames"] >= 5  # noise may look like more frames
    assert after["peak_mib"] - before["peak_mib"] < 64


def test_who_asks_and_never_listens_fills_no_memory(peer: OwnerProcess, tmp_path: Path) -> None:
    before = peer.do("stats")
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.set(zmq.RCVHWM, 1)
    dealer.connect(peer.key.doors["tcp"])
    ref = PageRef(PageId(0), peer.do("announce", [0])[0][1])
    wanted = PagesWanted(protocol=1, request=1, owner=peer.key.owner, region=0, pages=(ref, ref))
    for _ in range(500):  # 360 MB
        dealer.send(encoder.encode(wanted))
    until(lambda: peer.do("stats")["unsent_replies"] > 0)
    copies = copies_of(peer.do("announce", range(64)), range(64))
    with Reader("tcp", tmp_path) as reader:
        assert reader.pull(peer.key, copies) == (Status.DONE, "")
    dealer.close(linger=0)
    context.term()
    assert peer.do("stats")["peak_mib"] - before["peak_mib"] < 64


def test_strangers_at_the_socket_file_are_counted_and_harm_nobody(tmp_path: Path) -> None:
    with OwnerProcess("shm", tmp_path) as owner, Reader("shm", tmp_path) as reader:
        path = owner.key.doors["shm"]
        before = owner.do("stats")
        strangers = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(200)]
        for stranger in strangers:  # who hold on and say nothing
            stranger.connect(path)
        for frame in (b"\xff" * 4000, b"\x00", np.random.default_rng(0).bytes(100)):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
                stranger.connect(path)
                stranger.send(frame)
                assert stranger.recv(100) == b""
        copies = copies_of(owner.do("write", range(64)), range(64))
        assert reader.pull(owner.key, copies) == (Status.DONE, "")
        assert reader.holds(copies)
        stats = owner.do("stats")
        assert stats["alive"]
        assert stats["bad_frames"] >= 3
        assert stats["n_fds"] < before["n_fds"] + 100
        for stranger in strangers:
            stranger.close()


def test_a_reader_cannot_write_into_its_peer_s_memory(tmp_path: Path) -> None:
    """Not even by mistake: the descriptor it is given is read-only."""
    with OwnerProcess("shm", tmp_path) as owner:
        connection = fdpass.ask(owner.key.doors["shm"], owner.key)
        connection.settimeout(5)
        fd = fdpass.take(connection, owner.key)
        connection.close()
        with pytest.raises(OSError):
            os.pwrite(fd, b"x", 0)
        assert not os.get_inheritable(fd)
        os.close(fd)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc")
def test_memory_for_pages_is_not_had_anew_for_each(tmp_path: Path) -> None:
    """A fault every 4096 bytes took longer than to send them."""
    with OwnerProcess("tcp", tmp_path) as owner, Reader("tcp", tmp_path) as reader:
        copies = copies_of(owner.do("write", range(64)), range(64))
        n_faults: list[int] = []
        for _ in range(4):
            assert reader.pull(owner.key, copies) == (Status.DONE, "")
            n_faults.append(owner.do("stats")["n_faults"])
        assert n_faults[-1] - n_faults[1] < 2 * 64 * PAGE_BYTES / 4096 / 10


# --- opening -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listen_host", "says"), [("0.0.0.0", "peers are told"), ("203.0.113.7", "cannot listen")]
)
def test_an_address_that_cannot_be_offered_is_refused(
    listen_host: str, says: str, tmp_path: Path
) -> None:
    threads = threading.active_count()
    with pytest.raises(SetupError, match=says):
        open_transport(
            "auto",
            instance=InstanceId("a"),
            host=host_id(),
            run_dir=tmp_path,
            listen_host=listen_host,
            wake=lambda: None,
        )
    assert not list(tmp_path.iterdir())
    assert threading.active_count() == threads


def test_ipv6_doors_work(tmp_path: Path) -> None:
    transport = open_transport(
        "tcp",
        instance=InstanceId("six"),
        host=host_id(),
        run_dir=tmp_path,
        listen_host="::1",
        wake=lambda: None,
    )
    with Reader("tcp", tmp_path, pages=4) as reader:
        key = transport.register(reader.memory)
        assert key.doors["tcp"].startswith("tcp://[::1]:")
        assert reader.pull(key, copies_of([(1, 0)], [2])) == (Status.DONE, "")
    transport.close()
