"""What page servers and pullers say to each other, on what sockets, and the bounds of both.

A frame on the wire is [one of these structs, pages ...]: `PagesHere` is followed by one frame of
`page_bytes` for each of its pages. Change one: raise `PAGE_PROTOCOL`.
"""

from enum import StrEnum, auto

import msgspec
import xxhash
import zmq

from common.ids import InstanceId
from common.messages import Message, PageRef, Part

PAGE_PROTOCOL = 1

REQUEST_BYTES = 2**20
"""Pages asked for in one request, together; or one page, where a page is larger."""

WINDOW_BYTES = 8 * 2**20
"""Pages that a reader has asked one owner for and not received; or one request, where larger."""

QUEUED_REPLIES = 32
"""High-water mark of replies, per reader and direction: above WINDOW_BYTES / REQUEST_BYTES, so
that no reply to a reader that keeps its window is ever dropped."""

MAX_REQUEST_PAGES = REQUEST_BYTES // 4096
MAX_HEADER_BYTES = 64 * 1024


class PageSum(Part, frozen=True):
    """A page as it was sent. `checksum` is the XXH3-64 of its bytes."""

    page: int
    generation: int
    checksum: int


class PagesWanted(Message, frozen=True, kw_only=True):
    """reader -> owner: send these pages, if they are still in these lives"""

    protocol: int
    request: int  # ascending per connection; answered in order
    owner: InstanceId
    region: int
    pages: tuple[PageRef, ...]


class PagesHere(Message, frozen=True, kw_only=True):
    """owner -> reader: whole answer to one request"""

    request: int
    pages: tuple[PageSum, ...]


class Refusal(StrEnum):
    """Why pages were not sent."""

    PROTOCOL = auto()
    OWNER = auto()  # another instance lives here now
    REGION = auto()
    PAGE = auto()  # out of range, or too many
    STALE = auto()


class PagesRefused(Message, frozen=True, kw_only=True):
    """owner -> reader: whole answer to one request"""

    request: int
    reason: Refusal
    detail: str


Reply = PagesHere | PagesRefused

encoder = msgspec.msgpack.Encoder()
wanted_decoder = msgspec.msgpack.Decoder(PagesWanted)
reply_decoder: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def page_socket(
    context: "zmq.Context[zmq.Socket[bytes]]", kind: int, max_bytes: int
) -> "zmq.Socket[bytes]":
    """Bounded both ways; nothing lingers. Who sends a larger frame is cut off by ZeroMQ."""
    socket = context.socket(kind)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.SNDHWM, QUEUED_REPLIES)
    socket.set(zmq.RCVHWM, QUEUED_REPLIES)
    socket.set(zmq.MAXMSGSIZE, max_bytes)
    # Readers that are gone, and links that a network forgot, end though nobody says so.
    socket.set(zmq.TCP_KEEPALIVE, 1)
    socket.set(zmq.TCP_KEEPALIVE_IDLE, 10)
    socket.set(zmq.TCP_KEEPALIVE_INTVL, 5)
    socket.set(zmq.TCP_KEEPALIVE_CNT, 3)
    return socket


def checksum(page: memoryview) -> int:
    return xxhash.xxh3_64_intdigest(page)
