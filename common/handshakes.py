"""Connections that end before they have begun: who has dialled with another key, and to whom.

ZeroMQ cuts such a one off and tells nobody; what its monitors see is made words of here. Must not
know what is said once a connection stands.
"""

import logging
import os
import socket as sockets
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import parse_monitor_message

from common.log import line

SOURCE_S = 60.0  # between two lines about one address
MOST_SOURCES = 1000  # that are remembered
UNKNOWN = "unknown"  # it was gone before it was looked at

_REFUSALS = (zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.EVENT_HANDSHAKE_FAILED_AUTH)
_FAILURES = (zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, *_REFUSALS)  # the other end has hung up
_CUT_OFF = (
    "the connection is cut off as it begins: --control-key-file is not the server's (both must "
    "have the same, or none), or that is not its port for workers"
)
_STRANGER = "no worker of this server's: its --control-key-file is another one, or it has none"

_log = logging.getLogger(__name__)


class Dialled:
    """A socket's attempts to connect. Belongs to that socket's thread."""

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        """To be called before it connects, and closed before it is."""
        self._socket = socket
        self._events = socket.get_monitor_socket(sum(_FAILURES))

    def failure(self) -> str:
        """Why an attempt since the last call has failed, if one has got so far; "" else."""
        has_failed = False
        while self._events.poll(0):
            told = parse_monitor_message(self._events.recv_multipart())
            has_failed |= told["event"] in _FAILURES
        return _CUT_OFF if has_failed else ""

    def close(self) -> None:
        self._socket.disable_monitor()
        self._events.close(linger=0)


@dataclass(slots=True)
class _Source:
    told_at: float = float("-inf")
    n_tries: int = 0  # since then


class Sources:
    """How often whom to tell of, so that one who tries again and again does not fill the log."""

    def __init__(self) -> None:
        self._sources: OrderedDict[str, _Source] = OrderedDict()

    def tried(self, source: str, now: float) -> int:
        """How many tries of that source's are to be told of now; 0: none."""
        known = self._sources.setdefault(source, _Source())
        self._sources.move_to_end(source)
        if len(self._sources) > MOST_SOURCES:
            self._sources.popitem(last=False)
        known.n_tries += 1
        if now - known.told_at < SOURCE_S:
            return 0
        n_tries, known.n_tries, known.told_at = known.n_tries, 0, now
        return n_tries


def tell_of_strangers(listener: "zmq.Socket[bytes]") -> None:
    """A line for each address whose connection is refused, once a minute. Not for who connects and
    hangs up, as those do who look whether the port is open. Ends with the socket."""
    wanted = sum((*_REFUSALS, zmq.EVENT_ACCEPTED, zmq.EVENT_DISCONNECTED))
    events = listener.get_monitor_socket(wanted)
    threading.Thread(target=_tell, args=(events,), name="handshakes", daemon=True).start()


def _tell(events: "zmq.Socket[bytes]") -> None:
    sources, peers, failed = Sources(), dict[int, str](), False
    try:
        while True:
            told = parse_monitor_message(events.recv_multipart())
            match told["event"]:
                case zmq.EVENT_MONITOR_STOPPED:
                    break
                case zmq.EVENT_ACCEPTED:
                    peers[told["value"]] = _peer(told["value"])
                case zmq.EVENT_DISCONNECTED:  # follows the failure, of one thread as that is
                    peer = peers.pop(told["value"], UNKNOWN)
                    # By a socket file come our own alone: one that fails has ended meanwhile.
                    n_tries = sources.tried(peer, time.monotonic()) if failed and peer else 0
                    if n_tries:
                        fields = {"source": peer, "tries": n_tries, "detail": _STRANGER}
                        _log.warning(line("stranger_cut_off", **fields))
                    failed = False
                case _:
                    failed = True
    except zmq.ContextTerminated:
        pass
    events.close(linger=0)


def _peer(descriptor: int) -> str:
    """The address at the other end of a socket that is not ours to close; "": a socket file's."""
    try:
        with sockets.socket(fileno=os.dup(descriptor)) as same:
            address = same.getpeername()
    except OSError:
        return UNKNOWN
    return "" if isinstance(address, str | bytes) else str(address[0])
