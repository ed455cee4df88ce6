"""The control sockets: they carry the messages of `common/messages.py`, and nothing else.

A process hears on one ROUTER, and speaks to each peer on a DEALER whose routing id is its own
instance id. A message is [instance it is meant for, msgpack, number]: numbers ascend, and what
comes after a later one, or again, is dropped. Page bytes never come here. A socket belongs to the
thread that made the mailbox. Must not know what a message means, nor keep, repeat or reorder any:
what a link loses, digests make up for.
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import zmq

from common.curve import CurveKey, keep_door
from common.errors import SetupError
from common.handshakes import Dialled, tell_of_strangers
from common.ids import HostId, InstanceId, Role
from common.log import line
from common.messages import (
    PROTOCOL,
    AnyMessage,
    Hello,
    HelloRefused,
    Peer,
    ToDecode,
    ToGateway,
    ToPrefill,
)
from common.rundir import socket_file

HIGH_WATER_MESSAGES = 10_000  # per peer and direction; a burst of 5,000 must fit
MAX_MESSAGE_BYTES = 64 * 2**20
RECEIVE_BATCH = 1000  # messages taken in one call, so that one talker cannot hold the loop
ANYONE = InstanceId("")  # addressee of a Hello to an address whose instance is not known

UNNUMBERED = (Hello, HelloRefused)  # whose frames are the same in any protocol
MOST_SENDERS = 10_000  # whose last number is remembered

_NUMBER_BYTES = 8
_HEARTBEAT_MS = 5_000  # ZMTP's own: finds half-open TCP connections; liveness is not judged by it
_HEARTBEAT_TIMEOUT_MS = 15_000
_MAX_SOCKETS = 4096
_MAX_ANSWER_BYTES = 4096  # of a peer's end of a link of ours: ZMTP's own, it has nothing to say
_UNDECODABLE = (msgspec.DecodeError, RecursionError)  # the latter: nested deeper than Python allows

_log = logging.getLogger(__name__)


class _OutlinePeer(msgspec.Struct, frozen=True):
    instance: InstanceId
    role: Role
    host: HostId
    endpoints: tuple[str, ...]


class _Outline(msgspec.Struct, frozen=True, tag="Hello"):
    """The part of a Hello that no protocol changes, so that any other one can be refused by name
    (as HelloRefused, which does not change either)."""

    protocol: int
    peer: _OutlinePeer


class Numbers:
    """The last number of each sender, those forgotten that were silent longest."""

    def __init__(self, most_senders: int = MOST_SENDERS) -> None:
        self._most_senders = most_senders
        self._last: OrderedDict[InstanceId, int] = OrderedDict()

    def is_news(self, sender: InstanceId, number: int) -> bool:
        """It is beyond all that came from there before; from now on, so must the next be."""
        if number <= self._last.get(sender, -1):
            return False
        self._last[sender] = number
        self._last.move_to_end(sender)
        if len(self._last) > self._most_senders:
            self._last.popitem(last=False)
        return True


class Mailbox:
    """One process's control sockets. All calls come from the thread that made it; none blocks.

    `fd` becomes readable when something may have come, and is edge-triggered: after it fired, and
    once after making the mailbox, call `receive` until it returns nothing before waiting on it.
    """

    def __init__(  # noqa: PLR0913 - where it listens, for whom, and two bounds
        self,
        instance: InstanceId,
        role: Role,
        *,
        run_dir: Path | None = None,
        listen: str | None = None,
        curve: CurveKey | None = None,
        high_water: int = HIGH_WATER_MESSAGES,
        max_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        """Binds a socket file in `run_dir` (made, mode 0700) and, at `listen` ("host:port", port
        0: any), TCP. With `curve` it speaks to those alone who have that key. Raises SetupError
        where it cannot."""
        self._instance = instance
        self._curve = curve
        self._high_water = high_water
        self._max_bytes = max_bytes
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(_heard_by(role))
        self._outline = msgspec.msgpack.Decoder(_Outline)
        self._encoder = msgspec.msgpack.Encoder()
        self._context = zmq.Context(io_threads=1)
        self._context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
        self._peers: dict[InstanceId, zmq.Socket[bytes]] = {}
        self._watched: dict[InstanceId, Dialled] = {}
        self._file: Path | None = None
        self._n_sent = 0
        self._heard = Numbers()
        self.counts: Counter[str] = Counter()
        """Of messages: sent, received, and what became of the others, by reason."""
        self._router = self._open(zmq.ROUTER)
        self._router.set(zmq.ROUTER_MANDATORY, 1)
        self._router.set(zmq.ROUTER_HANDOVER, 1)  # a peer that reconnects replaces its old link
        self._router.set(zmq.MAXMSGSIZE, max_bytes)  # ZeroMQ cuts off whoever sends more
        if curve is not None:
            keep_door(self._context, curve)
            curve.listen(self._router)
        if role is Role.GATEWAY and listen is not None:
            tell_of_strangers(self._router)
        try:
            self.endpoints = tuple(self._bind(run_dir, listen))
        except BaseException:
            self.close()
            raise
        self.fd = int(self._router.get(zmq.FD))

    # --- peers -------------------------------------------------------------------------------

    def connect(self, peer: InstanceId, endpoint: str, *, watched: bool = False) -> bool:
        """Open the one link to this peer, replacing an earlier one. False: no such address, or no
        descriptors are left.

        Nothing can be sent before the link stands, which takes a moment. Why one that is `watched`
        does not stand, `failure` tells until the peer is named or the link closed.
        """
        self.disconnect(peer)
        if not endpoint.startswith(("ipc://", "tcp://")):
            return False
        try:
            socket = self._open(zmq.DEALER)
        except zmq.ZMQError as error:  # no descriptors are left
            _log.error(line("no_socket", peer=peer[:64], detail=error.strerror))
            return False
        socket.set(zmq.ROUTING_ID, self._instance.encode())
        socket.set(zmq.IMMEDIATE, 1)  # nothing is queued for a link that does not stand
        socket.set(zmq.IPV6, 1)
        socket.set(zmq.RECONNECT_IVL, 20)
        socket.set(zmq.RECONNECT_IVL_MAX, 1000)
        # Nobody reads here: what would come fills no memory.
        socket.set(zmq.RCVHWM, 1)
        socket.set(zmq.MAXMSGSIZE, _MAX_ANSWER_BYTES)
        if self._curve is not None:
            self._curve.dial(socket)
        if watched:
            self._watched[peer] = Dialled(socket)
        self._peers[peer] = socket
        try:
            socket.connect(endpoint)
        except zmq.ZMQError:
            self.disconnect(peer)
            return False
        return True

    def failure(self, peer: InstanceId) -> str:
        """Why an attempt to reach it has failed since the last call; "": none is known to have."""
        return self._watched[peer].failure() if peer in self._watched else ""

    def rename(self, old: InstanceId, new: InstanceId) -> None:
        """The process at the end of `old`'s link has told its name."""
        self.disconnect(new)
        self._unwatch(old)
        self._peers[new] = self._peers.pop(old)

    def disconnect(self, peer: InstanceId) -> None:
        """Close the link; what it has not delivered is lost. Idempotent."""
        self._unwatch(peer)
        socket = self._peers.pop(peer, None)
        if socket is not None:
            socket.close(linger=0)

    def _unwatch(self, peer: InstanceId) -> None:
        if peer in self._watched:
            self._watched.pop(peer).close()

    # --- messages ----------------------------------------------------------------------------

    def send(self, peer: InstanceId, message: AnyMessage, *, to: InstanceId | None = None) -> bool:
        """True: it is on its way. False, and counted: no link, a full one, or too many bytes.

        `to` is the addressee where it is not the link's name.
        """
        socket = self._peers.get(peer)
        if socket is None:
            return self._unsent("unsent_no_link")
        payload = self._encoder.encode(message)
        if len(payload) > self._max_bytes:
            _log.error(line("message_too_large", bytes=len(payload), peer=peer))
            return self._unsent("unsent_too_large")
        addressee = peer if to is None else to
        frames = [addressee.encode(), payload]
        if not isinstance(message, UNNUMBERED):
            self._n_sent += 1
            frames.append(self._n_sent.to_bytes(_NUMBER_BYTES, "big"))
        try:
            socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return self._unsent("unsent_blocked")
        self.counts["sent"] += 1
        return True

    def receive(self, limit: int = RECEIVE_BATCH) -> list[tuple[InstanceId, AnyMessage]]:
        """Up to `limit` messages, each with its sender; empty: there is none.

        What is meant for another instance, cannot be decoded, is not for this role, or comes late
        or twice, is counted in `counts` and dropped.
        """
        messages: list[tuple[InstanceId, AnyMessage]] = []
        while len(messages) < limit:
            try:
                frames = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            message = self._decode(frames)
            if message is not None and self._is_due(frames, message):
                self.counts["received"] += 1
                messages.append((_sender(frames), message))
        return messages

    @property
    def has_unread(self) -> bool:
        """There is something to receive. If not, `fd` will tell of the next."""
        return bool(int(self._router.get(zmq.EVENTS)) & zmq.POLLIN)

    def close(self, *, linger_ms: int = 0) -> None:
        """Close all sockets; what is not delivered `linger_ms` from now is lost. Idempotent."""
        for peer in list(self._watched):
            self._unwatch(peer)
        for socket in self._peers.values():
            socket.close(linger=linger_ms)
        self._peers.clear()
        self._router.close(linger=0)
        self._context.term()
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def _decode(self, frames: Sequence[bytes]) -> AnyMessage | None:
        if not 3 <= len(frames) <= 4 or not frames[0].isascii():
            return self._dropped("dropped_malformed", frames)
        addressee, payload = frames[1:3]
        if addressee not in (self._instance.encode(), b""):
            return self._dropped("dropped_for_another", frames)
        try:
            message = self._decoder.decode(payload)
        except _UNDECODABLE as error:
            return self._other_protocol(payload) or self._dropped(
                "dropped_undecodable", frames, str(error)
            )
        if not addressee and not isinstance(message, Hello):
            return self._dropped("dropped_malformed", frames)
        return message

    def _is_due(self, frames: Sequence[bytes], message: AnyMessage) -> bool:
        """Neither late nor a repetition, as its number tells."""
        number = b"".join(frames[3:])
        if isinstance(message, UNNUMBERED) and not number:
            return True
        if len(number) != _NUMBER_BYTES or isinstance(message, UNNUMBERED):
            self._dropped("dropped_malformed", frames)
        elif not self._heard.is_news(_sender(frames), int.from_bytes(number, "big")):
            self._dropped("dropped_late", frames, type(message).__name__)
        else:
            return True
        return False

    def _other_protocol(self, payload: bytes) -> Hello | None:
        """The Hello of a protocol that is not ours, cut down to what lets us refuse it."""
        try:
            outline = self._outline.decode(payload)
        except _UNDECODABLE:
            return None
        if outline.protocol == PROTOCOL:
            return None
        peer = Peer(
            instance=outline.peer.instance,
            role=outline.peer.role,
            host=outline.peer.host,
            endpoints=outline.peer.endpoints,
        )
        return Hello(protocol=outline.protocol, peer=peer, model=None, limits=None, pool=None)

    def _dropped(self, reason: str, frames: Sequence[bytes], detail: str = "") -> None:
        self.counts[reason] += 1
        if self.counts[reason].bit_count() == 1:  # the 1st, 2nd, 4th, 8th ...: a flood stays short
            sender = frames[0][:64].decode("ascii", "backslashreplace")
            _log.warning(line(reason, times=self.counts[reason], sender=sender, detail=detail))

    def _unsent(self, reason: str) -> bool:
        self.counts[reason] += 1
        return False

    # --- sockets -----------------------------------------------------------------------------

    def _open(self, kind: int) -> "zmq.Socket[bytes]":
        socket = self._context.socket(kind)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.SNDHWM, self._high_water)
        socket.set(zmq.RCVHWM, self._high_water)
        socket.set(zmq.TCP_KEEPALIVE, 1)
        socket.set(zmq.TCP_KEEPALIVE_IDLE, 10)
        socket.set(zmq.TCP_KEEPALIVE_INTVL, 5)
        socket.set(zmq.TCP_KEEPALIVE_CNT, 3)
        socket.set(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        socket.set(zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_TIMEOUT_MS)
        return socket

    def _bind(self, run_dir: Path | None, listen: str | None) -> list[str]:
        endpoints: list[str] = []
        if run_dir is not None:
            self._file = socket_file(run_dir, f"{self._instance[:12]}.ctl")
            endpoints.append(self._bind_one(f"ipc://{self._file}"))
        if listen is not None:
            endpoints.append(self._bind_one(f"tcp://{listen}"))
        return endpoints

    def _bind_one(self, address: str) -> str:
        # An IPv6 socket would tell an IPv4 address in a form that not all understand.
        self._router.set(zmq.IPV6, int("[" in address))
        try:
            self._router.bind(address)
        except zmq.ZMQError as error:
            raise SetupError(f"cannot listen at {address}: {error.strerror}") from error
        return self._router.getsockopt_string(zmq.LAST_ENDPOINT)


def _sender(frames: Sequence[bytes]) -> InstanceId:
    return InstanceId(frames[0].decode("ascii"))


def _heard_by(role: Role) -> Any:  # noqa: ANN401 - a union has no type of its own
    match role:
        case Role.PREFILL:
            return ToPrefill
        case Role.DECODE:
            return ToDecode
        case Role.GATEWAY:
            return ToGateway
