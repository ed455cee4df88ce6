"""Who is not let in is told so, and the server tells of it, without filling its log."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from common.curve import CurveKey, made_from
from common.handshakes import MOST_SOURCES, SOURCE_S, Sources
from common.ids import InstanceId, Role
from common.messages import Goodbye
from common.wire import Mailbox

OURS, THEIRS = made_from(b"our secret"), made_from(b"their secret")
GATEWAY, WORKER = InstanceId("9" * 32), InstanceId("d" * 32)


@pytest.fixture
def opened() -> Iterator[Callable[[InstanceId, Role, CurveKey | None], Mailbox]]:
    made: list[Mailbox] = []

    def open_mailbox(instance: InstanceId, role: Role, curve: CurveKey | None) -> Mailbox:
        made.append(Mailbox(instance, role, listen="127.0.0.1:0", curve=curve))
        return made[-1]

    yield open_mailbox
    for one in made:
        one.close()


def until(holds: Callable[[], bool], within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.parametrize(("theirs", "ours"), [(THEIRS, OURS), (None, OURS), (OURS, None)])
def test_both_ends_tell_of_another_key(
    opened: Callable[..., Mailbox],
    caplog: pytest.LogCaptureFixture,
    theirs: CurveKey | None,
    ours: CurveKey | None,
) -> None:
    gateway = opened(GATEWAY, Role.GATEWAY, ours)
    worker = opened(WORKER, Role.DECODE, theirs)

    def is_told() -> bool:
        """Whoever finds first that the other one's key is no key hangs up."""
        worker.connect(GATEWAY, gateway.endpoints[0], watched=True)
        until(lambda: "--control-key-file is not the server's" in worker.failure(GATEWAY))
        return "event=stranger_cut_off source=" in caplog.text

    until(is_told)
    assert worker.failure(WORKER) == ""


def test_who_looks_whether_the_port_is_open_is_told_of_by_nobody(
    opened: Callable[..., Mailbox], caplog: pytest.LogCaptureFixture
) -> None:
    host, _, port = opened(GATEWAY, Role.GATEWAY, OURS).endpoints[0][6:].rpartition(":")
    for _ in range(3):
        socket.create_connection((host, int(port))).close()
    time.sleep(0.1)
    assert caplog.text == ""


def test_who_has_the_key_is_told_of_by_nobody(
    opened: Callable[..., Mailbox], caplog: pytest.LogCaptureFixture
) -> None:
    gateway = opened(GATEWAY, Role.GATEWAY, OURS)
    worker = opened(WORKER, Role.DECODE, OURS)
    worker.connect(GATEWAY, gateway.endpoints[0], watched=True)
    until(lambda: worker.send(GATEWAY, Goodbye()))
    assert worker.failure(GATEWAY) == ""
    worker.rename(GATEWAY, WORKER)  # it is watched no more
    worker.disconnect(WORKER)
    with closing(opened(InstanceId("e" * 32), Role.DECODE, OURS)) as another:
        another.connect(GATEWAY, gateway.endpoints[0], watched=True)
        until(lambda: another.send(GATEWAY, Goodbye()))
    assert caplog.text == ""


def test_a_source_is_told_of_once_a_minute_with_all_its_tries() -> None:
    sources = Sources()
    assert sources.tried("a", 0.0) == 1
    assert [sources.tried("a", t) for t in (1.0, 2.0, SOURCE_S - 1)] == [0, 0, 0]
    assert sources.tried("b", 2.0) == 1
    assert sources.tried("a", SOURCE_S) == 4
    for n in range(MOST_SOURCES):
        sources.tried(str(n), SOURCE_S)
    assert sources.tried("a", SOURCE_S) == 1  # forgotten: the table has a bound
