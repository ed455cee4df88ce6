"""One secret for all processes of a server: their sockets let in whoever has it, and nobody else.

CurveZMQ (ZeroMQ RFCs 25 and 26): who listens and who dials prove the same key pair to each other,
made from the secret, and what they say is encrypted. Must not know what is said.
"""

import hashlib
import threading
from dataclasses import dataclass, field
from pathlib import Path

import zmq
from zmq.utils import z85

from common.errors import SetupError

MIN_SECRET_BYTES = 32
FRAME_BYTES = 64
"""That a frame grows by at most when it is encrypted: a command's name, a nonce, a checksum."""

_DOMAIN = b"baton"
_ZAP_DOOR = "inproc://zeromq.zap.01"  # where ZeroMQ asks (RFC 27)
_ZAP_VERSION = b"1.0"


@dataclass(frozen=True, slots=True)
class CurveKey:
    """A key pair, Z85."""

    public: bytes
    secret: bytes = field(repr=False)

    def listen(self, socket: "zmq.Socket[bytes]") -> None:
        """To be called before it is bound, after its bounds are set. Its context needs a
        `keep_door`, or nobody gets in."""
        socket.set(zmq.ZAP_DOMAIN, _DOMAIN)
        socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)
        socket.set(zmq.CURVE_SERVER, 1)
        socket.set(zmq.CURVE_SECRETKEY, self.secret)
        _make_room(socket)

    def dial(self, socket: "zmq.Socket[bytes]") -> None:
        """To be called before it is connected, after its bounds are set."""
        socket.set(zmq.CURVE_SERVERKEY, self.public)
        socket.set(zmq.CURVE_PUBLICKEY, self.public)
        socket.set(zmq.CURVE_SECRETKEY, self.secret)
        _make_room(socket)


def read_key(path: str) -> CurveKey:
    """The key made from what a file holds, white space around it aside. Raises SetupError."""
    try:
        secret = Path(path).read_bytes().strip()
    except OSError as error:
        raise SetupError(f"--control-key-file {path}: {error.strerror}") from error
    if len(secret) < MIN_SECRET_BYTES:
        raise SetupError(
            f"--control-key-file {path}: {len(secret)} bytes are too few for a secret; "
            f"{MIN_SECRET_BYTES} at least, such as `openssl rand -hex 32` prints"
        )
    return made_from(secret)


def made_from(secret: bytes) -> CurveKey:
    """Equal secrets make equal keys."""
    digest = hashlib.blake2b(secret, digest_size=32, person=b"baton control").digest()
    own = z85.encode(digest)
    return CurveKey(public=zmq.curve_public(own), secret=own)


def _make_room(socket: "zmq.Socket[bytes]") -> None:
    """ZeroMQ's bound is of encrypted frames."""
    bound = int(socket.get(zmq.MAXMSGSIZE))
    if bound >= 0:
        socket.set(zmq.MAXMSGSIZE, bound + FRAME_BYTES)


def keep_door(context: "zmq.Context[zmq.Socket[bytes]]", key: CurveKey) -> None:
    """Answer for all sockets of a context whether whoever dials has the key. Ends with it."""
    door = context.socket(zmq.REP)
    door.set(zmq.LINGER, 0)
    door.bind(_ZAP_DOOR)
    public = z85.decode(key.public)
    threading.Thread(target=_answer_all, args=(door, public), name="door", daemon=True).start()


def _answer_all(door: "zmq.Socket[bytes]", public: bytes) -> None:
    try:
        while True:
            door.send_multipart(_answer(door.recv_multipart(), public))
    except zmq.ContextTerminated:
        door.close()  # the context waits for it


def _answer(frames: list[bytes], public: bytes) -> list[bytes]:
    """[version, request, domain, address, identity, mechanism, credentials ...] -> ZAP's own."""
    _, request, _, _, _, mechanism, *credentials = frames
    known = (mechanism, credentials) == (b"CURVE", [public])
    status = (b"200", b"OK") if known else (b"400", b"not this server's key")
    return [_ZAP_VERSION, request, *status, b"", b""]
