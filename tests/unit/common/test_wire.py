"""Real sockets in temporary directories: what arrives, what is dropped, what is refused."""

import resource
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
import zmq

from common.errors import SetupError
from common.ids import InstanceId, Role, TransferId
from common.messages import End, Gone, Refused
from common.wire import ANYONE, Mailbox, Numbers

A, B, B2 = InstanceId("a" * 32), InstanceId("b" * 32), InstanceId("c" * 32)
Open = Callable[..., Mailbox]


def end(n: int) -> End:
    return End(transfer=TransferId(f"t{n}"), attempt=0)


def number(n: int) -> bytes:
    return n.to_bytes(8, "big")


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens mailboxes that are closed after the test."""
    with ExitStack() as stack:

        def open_mailbox(
            instance: InstanceId, role: Role = Role.DECODE, **options: int | str
        ) -> Mailbox:
            mailbox = Mailbox(instance, role, run_dir=tmp_path / "r", **options)  # type: ignore[arg-type]
            stack.callback(mailbox.close)
            return mailbox

        yield open_mailbox


def take(mailbox: Mailbox, n: int, within_s: float = 20.0) -> list[object]:
    """The next n messages."""
    deadline = time.monotonic() + within_s
    messages: list[object] = []
    while len(messages) < n and time.monotonic() < deadline:
        got = mailbox.receive()
        messages += [message for _, message in got]
        if not got:
            time.sleep(0.001)
    return messages


def send_first(mailbox: Mailbox, peer: InstanceId, message: End | Gone) -> None:
    """Send as soon as the link stands."""
    deadline = time.monotonic() + 20
    while not mailbox.send(peer, message):
        assert time.monotonic() < deadline
        time.sleep(0.001)


def linked(a: Mailbox, b: Mailbox, *, endpoint: int = 0) -> None:
    """From a to b, ready to send."""
    assert a.connect(B, b.endpoints[endpoint])
    send_first(a, B, end(-1))
    assert take(b, 1) == [end(-1)]


def raw_dealer(mailbox: Mailbox, name: bytes = b"stranger") -> "zmq.Socket[bytes]":
    socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.set(zmq.ROUTING_ID, name)
    socket.set(zmq.LINGER, 0)
    socket.connect(mailbox.endpoints[0])
    return socket


def test_a_burst_of_5000_arrives_whole_and_in_order(opened: Open) -> None:
    a, b = opened(A), opened(B)
    linked(a, b)
    assert all(a.send(B, end(n)) for n in range(5000))
    assert take(b, 5000) == [end(n) for n in range(5000)]


def test_the_sender_is_the_routing_id_of_the_link(opened: Open) -> None:
    a, b = opened(A), opened(B)
    assert a.connect(B, b.endpoints[0])
    send_first(a, B, end(1))
    deadline = time.monotonic() + 20
    while not (got := b.receive()) and time.monotonic() < deadline:
        time.sleep(0.001)
    assert got == [(A, end(1))]


def test_tcp_listens_where_it_is_told() -> None:
    with ExitStack() as stack:
        boxes = [Mailbox(i, Role.DECODE, listen="127.0.0.1:0") for i in (A, B)]
        for mailbox in boxes:
            stack.callback(mailbox.close)
        assert boxes[1].endpoints[0].startswith("tcp://127.0.0.1:")
        linked(boxes[0], boxes[1])


def test_a_full_link_says_so_and_loses_nothing_that_it_took(opened: Open) -> None:
    a, b = opened(A, high_water=50), opened(B, high_water=50)
    linked(a, b)
    big = Gone(transfer=TransferId("x" * 10_000), attempt=0)
    taken, blocked_before = 0, a.counts["unsent_blocked"]
    while a.send(B, big):
        taken += 1
    assert a.counts["unsent_blocked"] == blocked_before + 1
    assert take(b, taken + 1, within_s=2) == [big] * taken
    send_first(a, B, end(7))  # there is room again
    assert take(b, 1) == [end(7)]


def test_what_is_meant_for_an_earlier_life_is_dropped(opened: Open) -> None:
    a, b = opened(A), opened(B, listen="127.0.0.1:0")
    linked(a, b, endpoint=1)
    address = b.endpoints[1]
    b.close()
    again = opened(B2, listen=address.removeprefix("tcp://"))
    deadline = time.monotonic() + 20
    while not again.counts["dropped_for_another"] and time.monotonic() < deadline:
        a.send(B, end(1))  # the link comes back by itself
        assert again.receive() == []
        time.sleep(0.005)
    assert again.counts["dropped_for_another"] > 0
    assert a.connect(B2, address)
    send_first(a, B2, end(2))
    assert take(again, 1) == [end(2)]


def test_garbage_is_counted_and_the_mailbox_lives(opened: Open) -> None:
    b = opened(B)
    socket = raw_dealer(b)
    refused = Refused(transfer=TransferId("t"), attempt=0, reason="", retry_after_s=None)
    for frames in (
        [b"one frame"],
        [B.encode(), b"\xc1 is no msgpack"],
        [B.encode(), b"\x82\xa4type\xa5Hello\xa1x" + b"\x91" * 100_000 + b"\x90"],  # [[[...]]]
        [B.encode(), msgspec.msgpack.encode({"type": "End", "transfer": "t"})],
        [B.encode(), msgspec.msgpack.encode({"type": "End", "extra": 1})],
        [B.encode(), msgspec.msgpack.encode(refused)],  # is for gateways
        [b"", msgspec.msgpack.encode(end(1))],  # only a Hello may be for anyone
        [A.encode(), msgspec.msgpack.encode(end(1))],
        [B.encode(), msgspec.msgpack.encode(end(3))],  # the number is missing
        [B.encode(), msgspec.msgpack.encode(end(3)), b"no number"],
        [B.encode(), msgspec.msgpack.encode(end(3)), number(2), b"surplus"],
        [B.encode(), msgspec.msgpack.encode(end(4)), number(1)],
    ):
        socket.send_multipart(frames)
    assert take(b, 1) == [end(4)]
    socket.close()
    assert b.counts["dropped_malformed"] == 5
    assert b.counts["dropped_undecodable"] == 5
    assert b.counts["dropped_for_another"] == 1


def test_what_comes_late_or_twice_is_counted_and_dropped(opened: Open) -> None:
    b = opened(B)
    sockets = [raw_dealer(b, name) for name in (b"one", b"other")]
    for socket in sockets:  # each has numbers of its own
        for n in (1, 3, 2, 3, 7, 1, 8):
            socket.send_multipart([B.encode(), msgspec.msgpack.encode(end(n)), number(n)])
        assert take(b, 4) == [end(1), end(3), end(7), end(8)]
    assert b.counts["dropped_late"] == 6
    for socket in sockets:
        socket.close()


def test_a_link_that_is_made_anew_goes_on_counting(opened: Open) -> None:
    a, b = opened(A), opened(B)
    linked(a, b)
    a.disconnect(B)
    linked(a, b)
    assert not b.counts["dropped_late"]


def test_whoever_was_silent_longest_is_forgotten_first() -> None:
    numbers = Numbers(most_senders=2)
    assert numbers.is_news(A, 1)
    assert numbers.is_news(B, 1)
    assert numbers.is_news(A, 2)
    assert numbers.is_news(B2, 1)  # B is forgotten
    assert not numbers.is_news(A, 2)
    assert numbers.is_news(B, 1)


def test_a_sender_that_is_no_text_is_dropped(opened: Open) -> None:
    b = opened(B)
    socket = raw_dealer(b, b"\xff\xfe")
    socket.send_multipart([B.encode(), msgspec.msgpack.encode(end(1))])
    assert take(b, 1, within_s=0.3) == []
    socket.close()
    assert b.counts["dropped_malformed"] == 1


def test_too_many_bytes_are_not_sent_and_not_taken(opened: Open) -> None:
    a, b = opened(A, max_bytes=1000), opened(B, max_bytes=1000)
    linked(a, b)
    assert not a.send(B, Gone(transfer=TransferId("x" * 1000), attempt=0))
    assert a.counts["unsent_too_large"] == 1
    socket = raw_dealer(b)
    socket.send_multipart([B.encode(), bytes(2000)])
    assert a.send(B, end(5))
    assert take(b, 2, within_s=0.5) == [end(5)]
    socket.close()


def test_who_talks_back_on_a_link_of_ours_is_cut_off(opened: Open) -> None:
    """Nobody reads there, so nothing may pile up."""
    a = opened(A)
    talker = zmq.Context.instance().socket(zmq.ROUTER)
    talker.set(zmq.LINGER, 0)
    talker.set(zmq.ROUTER_MANDATORY, 1)
    port = talker.bind_to_random_port("tcp://127.0.0.1")
    assert a.connect(B, f"tcp://127.0.0.1:{port}")
    send_first(a, B, end(1))
    name, *_ = talker.recv_multipart()
    with pytest.raises(zmq.ZMQError) as caught:
        for _ in range(1000):
            talker.send_multipart([name, bytes(2**20)], zmq.NOBLOCK)
            time.sleep(0.005)
    assert caught.value.errno == zmq.EHOSTUNREACH
    talker.close()


def test_without_descriptors_there_is_no_link_and_no_crash(opened: Open) -> None:
    a = opened(A)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        assert not a.connect(B, a.endpoints[0])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert a.connect(B, a.endpoints[0])


def test_closing_waits_for_nobody_who_is_dead(opened: Open) -> None:
    a, b = opened(A), opened(B)
    linked(a, b)
    b.close()
    for n in range(1000):
        a.send(B, end(n))
    began = time.monotonic()
    a.close(linger_ms=200)
    assert time.monotonic() - began < 5


def test_many_senders_at_once_are_each_heard_whole_and_in_order(
    opened: Open, tmp_path: Path
) -> None:
    """Each socket belongs to one thread: frames of two messages never mix."""
    b = opened(B)
    names = [InstanceId(f"{n}" * 32) for n in range(8)]

    def send_all(name: InstanceId) -> None:
        box = Mailbox(name, Role.DECODE, run_dir=tmp_path / "r")
        assert box.connect(B, b.endpoints[0])
        for n in range(1000):
            send_first(box, B, end(n))
        box.close(linger_ms=20_000)

    threads = [threading.Thread(target=send_all, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    heard: dict[InstanceId, list[object]] = {name: [] for name in names}
    deadline = time.monotonic() + 60
    while sum(map(len, heard.values())) < 8000 and time.monotonic() < deadline:
        for sender, message in b.receive():
            heard[sender].append(message)
        time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert all(messages == [end(n) for n in range(1000)] for messages in heard.values())
    assert not any(reason.startswith("dropped") for reason in b.counts)


def test_nothing_is_queued_for_a_link_that_does_not_stand(opened: Open) -> None:
    a = opened(A)
    assert not a.send(B, end(0))  # never connected
    assert a.connect(B, f"ipc://{Path(a.endpoints[0][6:]).parent}/nobody.ctl")
    assert not a.send(B, end(0))
    assert a.counts == {"unsent_no_link": 1, "unsent_blocked": 1}


def test_an_address_that_is_none_is_refused(opened: Open) -> None:
    a = opened(A)
    assert not a.connect(B, "inproc://x")
    assert not a.connect(B, "tcp://no-port")


def test_a_hello_of_another_protocol_is_heard_in_outline(opened: Open) -> None:
    b = opened(B)
    socket = raw_dealer(b, A.encode())
    peer = {"instance": A, "role": "prefill", "host": "h", "endpoints": ["ipc://x"], "new": 1}
    hello = {"type": "Hello", "protocol": 999, "peer": peer, "more": [1, 2]}
    socket.send_multipart([ANYONE.encode(), msgspec.msgpack.encode(hello)])
    [heard] = take(b, 1)
    socket.close()
    assert heard.protocol == 999  # type: ignore[attr-defined]
    assert heard.peer.instance == A  # type: ignore[attr-defined]


def test_the_socket_file_is_private_and_goes_with_the_mailbox(tmp_path: Path) -> None:
    mailbox = Mailbox(A, Role.PREFILL, run_dir=tmp_path / "r")
    assert stat.S_IMODE((tmp_path / "r").stat().st_mode) == 0o700
    assert [f.name for f in (tmp_path / "r").iterdir()] == ["a" * 12 + ".ctl"]
    mailbox.close()
    mailbox.close()
    assert list((tmp_path / "r").iterdir()) == []


def test_where_it_cannot_listen_the_operator_is_told(opened: Open, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="choose a shorter run directory"):
        Mailbox(A, Role.PREFILL, run_dir=tmp_path / ("x" * 100))
    first = opened(A, listen="127.0.0.1:0")
    with pytest.raises(SetupError, match=r"cannot listen at tcp://127.0.0.1:\d+: Address already"):
        opened(B, listen=first.endpoints[1].removeprefix("tcp://"))
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(SetupError, match="must be yours alone"):
        Mailbox(A, Role.PREFILL, run_dir=tmp_path / "open")
