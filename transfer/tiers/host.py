"""Host memory beside a worker's pool, for the pages of sequences that had to give way.

A spill is a pull that the tier's side makes, out of the pool into host memory; coming back is the
same pull the other way. A thread of its own copies, in pieces, and rests as long as it copied: it
takes half a core and half of the memory's speed at most from the passes that run meanwhile. Must
not choose what is moved, or when.
"""

import select
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from common.ids import HostId, InstanceId
from common.messages import RegionKey
from transfer.api import Copy, Region, Ticket
from transfer.cuda_device import CudaStream
from transfer.cuda_memory import DeviceReader, address_of
from transfer.inbox import Inbox
from transfer.memory import PageReader, SharedPages
from transfer.plan import runs, windows
from transfer.pool import device_of
from transfer.tickets import Pull, Reason, Tickets
from transfer.transport import PageTransport

_PIECE_BYTES = 2**20  # copied between two looks at cancellations and other pulls
_HERE = "here"  # a door that leads nowhere else


class HostPages(SharedPages):
    """A region of host memory."""

    flag = "--kv-host-memory-bytes"


class HostTier:
    """A pool and its host memory, and the pulls between them. Used by one thread."""

    def __init__(
        self,
        pool: Region,
        memory: Region,
        *,
        instance: InstanceId,
        host: HostId,
        wake: Callable[[], None],
    ) -> None:
        """`instance`: the tier's own, no worker's. Closes neither region."""
        tickets = Tickets(wake)
        device = device_of(pool)
        self._stream = None if device is None else CudaStream(device)
        self._instance = instance
        self.transport = PageTransport(
            instance=instance,
            host=host,
            tickets=tickets,
            backends=[LocalBackend(instance, tickets, self._stream)],
        )
        self._pool_key = self.transport.register(pool)
        self.key = self.transport.register(memory)

    def spill(self, copies: tuple[Copy, ...]) -> Ticket:
        """Pull pages out of the pool: (page of the pool, its generation, host page)."""
        return self.transport.pull(self._instance, self._pool_key, self.key, copies)

    def restore(self, copies: tuple[Copy, ...]) -> Ticket:
        """Pull pages back into the pool: (host page, its generation, page of the pool)."""
        return self.transport.pull(self._instance, self.key, self._pool_key, copies)

    def close(self) -> None:
        """Pulls in flight fail. Idempotent."""
        self.transport.close()
        if self._stream is not None:
            self._stream.close()


class LocalBackend:
    """Implements `transfer.transport.Backend` between regions of one transport.

    `stream`: what copies, where one of them lies on a device; None: this process's CPUs.
    """

    name = way = "local"

    def __init__(
        self, instance: InstanceId, tickets: Tickets, stream: CudaStream | None = None
    ) -> None:
        self._instance = instance
        self._tickets = tickets
        self._regions: dict[int, Region] = {}
        self._inbox = Inbox[Pull]()
        copier = _Copier(self._regions, self._inbox, tickets, stream)
        self._thread = threading.Thread(target=copier.run, name="pages-host", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def export(self, number: int, region: Region) -> str | None:
        self._regions[number] = region
        return _HERE

    def obstacle(self, remote: RegionKey) -> str:
        here = remote.owner == self._instance and remote.doors.get(self.name) == _HERE
        return "" if here else "memory of another process"

    def start(self, pull: Pull) -> None:
        if pull.remote.region not in self._regions:
            self._tickets.fail(pull, Reason.REFUSED, f"no region {pull.remote.region}")
        elif not self._inbox.put(pull):
            self._tickets.fail(pull, Reason.CLOSED, "")

    def nudge(self) -> None:
        """It looks between pieces anyway."""

    def connect(self, remote: RegionKey) -> None:
        """There is no way to open."""

    def forget(self, owner: InstanceId) -> None:
        """Nothing is kept for others."""

    def close(self) -> None:
        self._inbox.ask_to_end()
        self._thread.join()


@dataclass(slots=True, eq=False)
class _Moving:
    pull: Pull
    source: PageReader | DeviceReader
    pieces: deque[tuple[Copy, ...]]


class _Copier:
    """The thread. All but the regions is its own."""

    def __init__(
        self,
        regions: dict[int, Region],
        inbox: Inbox[Pull],
        tickets: Tickets,
        stream: CudaStream | None,
    ) -> None:
        self._stream = stream
        self._regions = regions
        self._inbox = inbox
        self._tickets = tickets
        self._moving: deque[_Moving] = deque()

    def run(self) -> None:
        ring = select.poll()
        ring.register(self._inbox, select.POLLIN)
        try:
            while not self._inbox.closing:
                ring.poll(0 if self._moving else None)
                self._moving += map(self._begun, self._inbox.drain())
                if self._moving:
                    began_s = time.monotonic()
                    self._move(self._moving.popleft())
                    time.sleep(time.monotonic() - began_s)
        finally:
            left = [moving.pull for moving in self._moving]
            for pull in [*left, *self._inbox.close()]:
                self._tickets.fail(pull, Reason.CLOSED, "")

    def _begun(self, pull: Pull) -> _Moving:
        region = self._regions[pull.remote.region]
        pieces = windows(pull.copies, pull.remote.page_bytes, _PIECE_BYTES)
        return _Moving(pull, self._reader(region), deque(pieces))

    def _reader(self, region: Region) -> PageReader | DeviceReader:
        if self._stream is None:
            return PageReader(region.pages, region.generations)
        return DeviceReader(address_of(region.pages), region.generations, self._stream)

    def _move(self, moving: _Moving) -> None:
        """One piece; the others' turn comes before the next."""
        pull = moving.pull
        if pull.cancelled:
            self._tickets.fail(pull, Reason.CANCELLED, "")
        elif not self._copied(moving, moving.pieces.popleft()):
            self._tickets.fail(pull, Reason.STALE, "pages were reused")
        elif not moving.pieces:
            self._tickets.done(pull)
        else:
            self._moving.append(moving)

    def _copied(self, moving: _Moving, piece: tuple[Copy, ...]) -> bool:
        """False: a page was in another life than the announced one."""
        n = moving.pull.remote.page_bytes
        copied = moving.source.copy(moving.pull.local.pages, runs(piece, n))
        copied()
        announced = np.array([copy.generation for copy in piece], np.uint64)
        if not moving.source.are_still([copy.remote for copy in piece], announced):
            return False
        self._tickets.count(pulled_bytes=len(piece) * n)
        return True
