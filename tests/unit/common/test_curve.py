"""Sockets that let in whoever has the key, and nobody else."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
import zmq

from common.curve import CurveKey, made_from, read_key
from common.errors import SetupError
from common.ids import InstanceId, Role, TransferId
from common.messages import End
from common.wire import Mailbox

A, B = InstanceId("a" * 32), InstanceId("b" * 32)
OURS, THEIRS = made_from(b"our secret"), made_from(b"their secret")
MESSAGE = End(transfer=TransferId("t"), attempt=0)
Open = Callable[[InstanceId, CurveKey | None], Mailbox]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens mailboxes that are closed after the test."""
    with ExitStack() as stack:

        def open_mailbox(instance: InstanceId, curve: CurveKey | None) -> Mailbox:
            mailbox = Mailbox(
                instance, Role.DECODE, run_dir=tmp_path / "r", listen="127.0.0.1:0", curve=curve
            )
            stack.callback(mailbox.close)
            return mailbox

        yield open_mailbox


def arrives(sender: Mailbox, at: Mailbox, *, endpoint: int, within_s: float) -> bool:
    assert sender.connect(B, at.endpoints[endpoint])
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        sender.send(B, MESSAGE)
        if at.receive():
            return True
        time.sleep(0.002)
    return False


@pytest.mark.parametrize("endpoint", [0, 1])
def test_who_has_the_same_secret_is_heard(opened: Open, endpoint: int) -> None:
    a, b = opened(A, OURS), opened(B, made_from(b"our secret"))
    assert arrives(a, b, endpoint=endpoint, within_s=10)


@pytest.mark.parametrize("endpoint", [0, 1])
@pytest.mark.parametrize(("theirs", "ours"), [(None, OURS), (THEIRS, OURS), (OURS, None)])
def test_nobody_else_is(
    opened: Open, theirs: CurveKey | None, ours: CurveKey | None, endpoint: int
) -> None:
    a, b = opened(A, theirs), opened(B, ours)
    assert not arrives(a, b, endpoint=endpoint, within_s=0.3)
    assert a.counts["sent"] == 0


def test_the_public_key_alone_opens_nothing(opened: Open) -> None:
    b = opened(B, OURS)
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.set(zmq.LINGER, 0)
    stranger.set(zmq.ROUTING_ID, A.encode())
    own, secret = zmq.curve_keypair()
    stranger.set(zmq.CURVE_SERVERKEY, OURS.public)
    stranger.set(zmq.CURVE_PUBLICKEY, own)
    stranger.set(zmq.CURVE_SECRETKEY, secret)
    stranger.connect(b.endpoints[1])
    stranger.send_multipart([B.encode(), msgspec.msgpack.encode(MESSAGE)])
    time.sleep(0.3)
    assert b.receive() == []
    assert not b.counts
    stranger.close()
    context.term()


def test_a_key_shows_no_secret() -> None:
    assert OURS.secret.decode() not in repr(OURS)
    assert OURS != THEIRS
    assert len(OURS.public) == len(OURS.secret) == 40


def test_a_file_holds_the_secret(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"  {'a' * 32}\n")
    assert read_key(str(file)) == made_from(b"a" * 32)
    file.write_text("a" * 31)
    with pytest.raises(SetupError) as refused:
        read_key(str(file))
    assert str(refused.value) == (
        f"--control-key-file {file}: 31 bytes are too few for a secret; 32 at least, such as "
        "`openssl rand -hex 32` prints"
    )
    with pytest.raises(SetupError, match="--control-key-file /nowhere: No such file"):
        read_key("/nowhere")
