"""The owner's half of TCP: a thread that answers requests for pages, in the order of their coming.

It sends only bytes whose generation was checked after they were copied out of the pool. Frames
that it cannot use are counted and dropped. Must not queue anything but what a device copies for it:
what waits, waits in ZeroMQ's bounded queues.
"""

import time
from collections import deque
from dataclasses import dataclass

import msgspec
import zmq

from common.curve import CurveKey
from common.errors import SetupError
from common.ids import InstanceId
from common.messages import PageRef
from transfer.api import Region
from transfer.backends.tcp_messages import (
    MAX_HEADER_BYTES,
    MAX_REQUEST_PAGES,
    PAGE_PROTOCOL,
    REQUEST_BYTES,
    PagesHere,
    PagesRefused,
    PageSum,
    PagesWanted,
    Refusal,
    Reply,
    checksum,
    encoder,
    page_socket,
    wanted_decoder,
)
from transfer.backends.tcp_pages import PageSource, Reading
from transfer.inbox import Inbox
from transfer.memory import Fence
from transfer.pinned import LOOK_S
from transfer.tickets import Tickets

_BATCH = 64  # requests served between two looks at the bell
_WILDCARDS = ("", "*", "0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a request comes to: pages that are being read, or a refusal."""

    reader: bytes
    wanted: PagesWanted
    reading: Reading | None
    refusal: PagesRefused | None = None


class PageServer:
    """Made in one thread and run in another; after `run` has begun, all of it is that thread's."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        listen_host: str,
        instance: InstanceId,
        sources: dict[int, PageSource],
        tickets: Tickets,
        curve: CurveKey | None,
    ) -> None:
        """Binds. `sources` by region. Raises SetupError."""
        if listen_host in _WILDCARDS:
            raise SetupError(
                f"pages cannot be offered at {listen_host!r}: peers are told this address, so "
                "name the one that they reach this machine by"
            )
        self._instance = instance
        self._sources = sources
        self._answers: deque[_Answer] = deque()
        self._tickets = tickets
        self._fence = Fence()
        self._router = page_socket(context, zmq.ROUTER, MAX_HEADER_BYTES)
        self._router.set(zmq.ROUTER_MANDATORY, 1)
        self._router.set(zmq.IPV6, int(":" in listen_host))
        if curve is not None:
            curve.listen(self._router)
        host = f"[{listen_host}]" if ":" in listen_host else listen_host
        try:
            self._router.bind(f"tcp://{host}:*")
        except zmq.ZMQError as error:
            self._router.close()
            raise SetupError(f"cannot listen at {listen_host}: {error.strerror}") from error
        self.address = self._router.getsockopt_string(zmq.LAST_ENDPOINT)

    def run(self, bell: Inbox[None]) -> None:
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(bell.fileno(), zmq.POLLIN)
        try:
            while not bell.closing:
                if self._answers:
                    time.sleep(LOOK_S)
                    self._send_what_is_read()
                else:
                    poller.poll()
                for _ in range(_BATCH):
                    if not self._serve_one():
                        break
        finally:
            self._router.close()
            bell.close()

    def _serve_one(self) -> bool:
        """False: nobody asks, or there is no room for an answer; then some are under way."""
        if not all(source.has_room for source in tuple(self._sources.values())):
            return False
        try:
            frames = self._router.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        wanted = self._decode(frames)
        if wanted is not None:
            self._answers.append(self._answer(frames[0], wanted))
            self._send_what_is_read()
        return True

    def _send_what_is_read(self) -> None:
        while self._answers and _is_ready(self._answers[0]):
            answer = self._answers.popleft()
            if answer.reading is not None:
                self._send(answer.reader, *self._read(answer.wanted, answer.reading))
            elif answer.refusal is not None:
                self._send(answer.reader, answer.refusal, [])

    def _decode(self, frames: list[bytes]) -> PagesWanted | None:
        try:
            if len(frames) == 2:
                return wanted_decoder.decode(frames[1])
        except msgspec.DecodeError:
            pass
        self._tickets.count(bad_frames=1)
        return None

    def _answer(self, reader: bytes, wanted: PagesWanted) -> _Answer:
        source = self._sources.get(wanted.region)
        reason, detail = self._fault(wanted, None if source is None else source.region)
        if reason is not None or source is None:
            return _Answer(reader, wanted, None, _refused(wanted, reason or Refusal.REGION, detail))
        return _Answer(reader, wanted, source.read([ref.page for ref in wanted.pages]))

    def _fault(self, wanted: PagesWanted, region: Region | None) -> tuple[Refusal | None, str]:
        if wanted.protocol != PAGE_PROTOCOL:
            return Refusal.PROTOCOL, f"ours is {PAGE_PROTOCOL}, yours is {wanted.protocol}"
        if wanted.owner != self._instance:
            return Refusal.OWNER, f"this is {self._instance}"
        if region is None:
            return Refusal.REGION, f"there are {len(self._sources)} regions"
        n_pages, page_bytes = region.pages.shape
        n = len(wanted.pages)
        if n > MAX_REQUEST_PAGES or (n > 1 and n * page_bytes > REQUEST_BYTES):
            return Refusal.PAGE, f"{n} pages of {page_bytes} bytes in one request"
        for ref in wanted.pages:
            if not 0 <= ref.page < n_pages:
                return Refusal.PAGE, f"page {ref.page} of {n_pages}"
        return None, ""

    def _read(self, wanted: PagesWanted, reading: Reading) -> tuple[Reply, list[zmq.Frame]]:
        """Its bytes were read."""
        self._fence()  # acquire: and before the generations are
        stale = _first_stale(self._sources[wanted.region].region, wanted.pages)
        if stale is not None:
            reading.drop()
            self._tickets.count(stale_served=1)
            return _refused(wanted, Refusal.STALE, f"page {stale} was reused"), []
        frames = reading.frames()
        sums = tuple(
            PageSum(ref.page, ref.generation, checksum(frame.buffer))
            for ref, frame in zip(wanted.pages, frames, strict=True)
        )
        return PagesHere(request=wanted.request, pages=sums), frames

    def _send(self, reader: bytes, reply: Reply, pages: list[zmq.Frame]) -> None:
        try:
            self._router.send_multipart(
                [reader, encoder.encode(reply), *pages], zmq.NOBLOCK, copy=False
            )
        except zmq.ZMQError as error:
            # The reader has gone, or takes nothing and asks on, beyond what its window allows.
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            self._tickets.count(unsent_replies=1)
        else:
            self._tickets.count(served_bytes=sum(len(page) for page in pages))


def _is_ready(answer: _Answer) -> bool:
    return answer.reading is None or answer.reading.is_done


def _first_stale(region: Region, pages: tuple[PageRef, ...]) -> int | None:
    now = region.generations[[ref.page for ref in pages]].tolist()
    for ref, generation in zip(pages, now, strict=True):
        if ref.generation != generation:
            return ref.page
    return None


def _refused(wanted: PagesWanted, reason: Refusal, detail: str) -> PagesRefused:
    return PagesRefused(request=wanted.request, reason=reason, detail=detail)
