"""How a region's descriptor goes from its owner to a reader: one question, one answer, over a
Unix socket (SOCK_SEQPACKET, SCM_RIGHTS) that only processes of the same user can use.

Nothing here blocks: the sockets belong to somebody's selector. Must not map what it receives.
"""

import array
import os
import selectors
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from common.errors import PeerError, SetupError
from common.ids import InstanceId
from common.messages import Message, RegionKey
from transfer.api import Region
from transfer.tickets import Tickets

FD_PROTOCOL = 1
_MAX_MESSAGE_BYTES = 4096
_MAX_FDS = 4  # room to receive more than the one there should be, so that all are closed
_BACKLOG = 128
_MAX_ASKERS = 64  # connections that have not asked yet; the oldest makes room
_ASKER_TIMEOUT_S = 2.0
_OUT_OF_FDS_S = 0.01
_UCRED = struct.Struct("3i")  # pid, uid, gid


class FdWanted(Message, frozen=True, kw_only=True):
    """reader -> owner: give me that region"""

    protocol: int
    owner: InstanceId
    region: int


class FdGiven(Message, frozen=True, kw_only=True):
    """owner -> reader: with the descriptor"""

    owner: InstanceId
    region: int
    n_pages: int
    page_bytes: int


class FdRefused(Message, frozen=True, kw_only=True):
    """owner -> reader: with nothing"""

    detail: str


class FdNotGiven(PeerError):
    """The owner answered, and not with the region that was asked for."""


_encoder = msgspec.msgpack.Encoder()
_wanted = msgspec.msgpack.Decoder(FdWanted)
_answer: msgspec.msgpack.Decoder[FdGiven | FdRefused] = msgspec.msgpack.Decoder(FdGiven | FdRefused)


def listen(path: Path) -> socket.socket:
    """Raises SetupError. The caller unlinks the path when it is done."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    try:
        path.unlink(missing_ok=True)  # left by an owner that was killed: names are not reused
        listener.bind(os.fspath(path))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise SetupError(f"cannot listen at {path}: {error.strerror}") from error
    return listener


class FdDesk:
    """The owner's half: hands out descriptors of its regions. A bounded number of connections,
    each for a bounded time."""

    def __init__(
        self,
        listener: socket.socket,
        instance: InstanceId,
        exports: dict[int, Region],
        tickets: Tickets,
    ) -> None:
        self.listener = listener
        self._instance = instance
        self._exports = exports
        self._tickets = tickets
        self._askers: dict[socket.socket, float] = {}  # oldest first -> when to give up

    @property
    def waits(self) -> bool:
        return bool(self._askers)

    def admit(self, selector: selectors.BaseSelector) -> None:
        try:
            asker = _accept(self.listener)
        except OSError:  # no descriptors left: it stays readable, so do not ask in a circle
            time.sleep(_OUT_OF_FDS_S)
            return
        if asker is None:
            return
        if len(self._askers) >= _MAX_ASKERS:
            self._dismiss(next(iter(self._askers)), selector)
        self._askers[asker] = time.monotonic() + _ASKER_TIMEOUT_S
        selector.register(asker, selectors.EVENT_READ, lambda: self._answer(asker, selector))

    def expire(self, selector: selectors.BaseSelector, now: float) -> None:
        for asker in [asker for asker, until in self._askers.items() if until < now]:
            self._dismiss(asker, selector)

    def close(self) -> None:
        for asker in (self.listener, *self._askers):
            asker.close()

    def _answer(self, asker: socket.socket, selector: selectors.BaseSelector) -> None:
        if asker not in self._askers:  # dismissed since the selector saw it
            return
        wanted = _read_wanted(asker)
        if wanted is None:
            self._tickets.count(bad_frames=1)
        else:
            answer, fd = self._look_up(wanted)
            _give(asker, answer, fd)
        self._dismiss(asker, selector)

    def _look_up(self, wanted: FdWanted) -> tuple[FdGiven | FdRefused, int | None]:
        region = self._exports.get(wanted.region)
        if wanted.owner != self._instance or region is None or region.fd is None:
            here = f"this is {self._instance} with {len(self._exports)} regions"
            return FdRefused(detail=here), None
        n_pages, page_bytes = region.pages.shape
        given = FdGiven(
            owner=self._instance, region=wanted.region, n_pages=n_pages, page_bytes=page_bytes
        )
        return given, region.fd

    def _dismiss(self, asker: socket.socket, selector: selectors.BaseSelector) -> None:
        del self._askers[asker]
        selector.unregister(asker)
        asker.close()


def ask(door: str, remote: RegionKey) -> socket.socket:
    """A connection on which the answer will come. Raises OSError, BlockingIOError among them:
    the owner's queue is full, or ValueError: that is no path."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    try:
        connection.connect(door)
        if not _same_user(connection):
            raise PermissionError(f"{door} is another user's")
        wanted = FdWanted(protocol=FD_PROTOCOL, owner=remote.owner, region=remote.region)
        connection.send(_encoder.encode(wanted))
    except BaseException:
        connection.close()
        raise
    return connection


def take(connection: socket.socket, remote: RegionKey) -> int:
    """The descriptor of that region: the caller's to close. Raises FdNotGiven, OSError."""
    fds = array.array("i")
    # socket.recv_fds does not pass flags on, and children would inherit what it gives.
    payload, ancillary, _, _ = connection.recvmsg(
        _MAX_MESSAGE_BYTES, socket.CMSG_SPACE(_MAX_FDS * fds.itemsize), socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    try:
        _check(payload, len(fds), remote)
    except FdNotGiven:
        for fd in fds:
            os.close(fd)
        raise
    return fds[0]


def _accept(listener: socket.socket) -> socket.socket | None:
    """A connection of this user's, or None: nobody there, or somebody else. Raises OSError: no
    descriptors left."""
    try:
        connection, _ = listener.accept()
    except BlockingIOError:  # gone again
        return None
    connection.settimeout(0)
    if not _same_user(connection):
        connection.close()
        return None
    return connection


def _read_wanted(connection: socket.socket) -> FdWanted | None:
    """The question, or None: that was none."""
    try:
        wanted = _wanted.decode(connection.recv(_MAX_MESSAGE_BYTES))
    except (OSError, msgspec.DecodeError):
        return None
    return wanted if wanted.protocol == FD_PROTOCOL else None


def _give(connection: socket.socket, answer: FdGiven | FdRefused, fd: int | None) -> None:
    """Answer; a reader that has gone is nobody's loss. The reader gets a read-only descriptor."""
    payload = _encoder.encode(answer)
    with suppress(OSError):
        if fd is None:
            connection.send(payload)
            return
        read_only = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            socket.send_fds(connection, [payload], [read_only])
        finally:
            os.close(read_only)


def _check(payload: bytes, n_fds: int, remote: RegionKey) -> None:
    if not payload:
        raise FdNotGiven("the owner hung up")
    try:
        answer = _answer.decode(payload)
    except msgspec.DecodeError as error:
        raise FdNotGiven(f"undecodable answer: {error}") from error
    if isinstance(answer, FdRefused):
        raise FdNotGiven(answer.detail)
    given = (answer.owner, answer.region, answer.n_pages, answer.page_bytes)
    wanted = (remote.owner, remote.region, remote.n_pages, remote.page_bytes)
    if given != wanted or n_fds != 1:
        raise FdNotGiven(f"asked for {wanted}, was given {given} and {n_fds} descriptors")


def owner_pid(connection: socket.socket) -> int:
    """As it is numbered here; 0: it is in a namespace that this process does not see."""
    return _credentials(connection)[0]


def _same_user(connection: socket.socket) -> bool:
    return _credentials(connection)[1] == os.geteuid()


def _credentials(connection: socket.socket) -> tuple[int, int]:
    """pid, uid"""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _ = _UCRED.unpack(raw)
    return pid, uid
