"""The four verbs over any set of backends, nearest first.

Checks what is asked for, numbers regions and tickets, and chooses a backend a peer. Must not know
how bytes move.
"""

from collections.abc import Sequence
from typing import Protocol

from common.errors import InvariantBroken
from common.ids import HostId, InstanceId
from common.messages import RegionKey
from transfer.api import Copy, Region, Status, Ticket
from transfer.plan import local_fault, remote_fault
from transfer.tickets import Pull, Reason, Tickets, TransferStats


class Backend(Protocol):
    """One way to move pages. Called by the transport's user's thread; nothing here blocks.

    Every pull started ends in `Tickets.done` or `Tickets.fail`, even where its thread dies.
    """

    @property
    def name(self) -> str:
        """The door's name in `RegionKey.doors`."""
        ...

    @property
    def way(self) -> str:
        """What the log calls it: the name, and what is in between."""
        ...

    @property
    def alive(self) -> bool:
        """Its threads run."""
        ...

    def export(self, number: int, region: Region) -> str | None:
        """Serve the region. The door's address, or None where this kind of memory has none."""
        ...

    def obstacle(self, remote: RegionKey) -> str:
        """Why this way does not lead there, for people; empty: it does."""
        ...

    def start(self, pull: Pull) -> None:
        """Move it, in time. Pages are in range, and local pages are distinct."""
        ...

    def nudge(self) -> None:
        """A pull was cancelled."""
        ...

    def connect(self, remote: RegionKey) -> None: ...

    def forget(self, owner: InstanceId) -> None: ...

    def close(self) -> None: ...


class PageTransport:
    """Implements `transfer.api.Transport`, and what a worker's shell needs beside."""

    def __init__(
        self, *, instance: InstanceId, host: HostId, tickets: Tickets, backends: Sequence[Backend]
    ) -> None:
        self._instance = instance
        self._host = host
        self._tickets = tickets
        self._backends = tuple(backends)
        self._regions: list[Region] = []

    def register(self, region: Region) -> RegionKey:
        """Make the region reachable. Once a region."""
        if any(region is known for known in self._regions):
            raise InvariantBroken("a region was registered twice")
        number = len(self._regions)
        self._regions.append(region)
        doors = {backend.name: backend.export(number, region) for backend in self._backends}
        n_pages, page_bytes = region.pages.shape
        return RegionKey(
            owner=self._instance,
            host=self._host,
            region=number,
            n_pages=n_pages,
            page_bytes=page_bytes,
            doors={name: door for name, door in doors.items() if door is not None},
        )

    def pull(
        self, peer: InstanceId, remote: RegionKey, local: RegionKey, copies: tuple[Copy, ...]
    ) -> Ticket:
        """Start moving. `local` is a registered region of this process; never blocks, and an
        unreachable peer is a ticket that fails."""
        region = self._own(local)
        n_pages, page_bytes = region.pages.shape
        fault = local_fault(copies, n_pages)
        if fault:
            raise InvariantBroken(f"pull from {peer}: {fault}")
        pull = self._tickets.open(remote, region, copies)
        if not copies:
            self._tickets.done(pull)
            return pull.ticket
        fault = remote_fault(copies, remote, page_bytes)
        if remote.owner != peer:
            fault = f"the region is {remote.owner}'s, the peer is {peer}"
        backend = self._backend(remote)
        if fault:
            self._tickets.fail(pull, Reason.INVALID, fault)
        elif backend is None:
            self._tickets.fail(pull, Reason.UNREACHABLE, self.way(remote)[1])
        else:
            backend.start(pull)
        return pull.ticket

    def poll(self, ticket: Ticket) -> Status:
        """The only fence: reuse local pages after a final status, never before. A final ticket is
        forgotten when polled."""
        return self._tickets.poll(ticket)

    def cancel(self, ticket: Ticket) -> None:
        """Ask to stop. Idempotent. Keep polling until final."""
        if self._tickets.cancel(ticket):
            for backend in self._backends:
                backend.nudge()

    def close(self) -> None:
        """Stop threads, close sockets. Tickets in flight fail first. Idempotent."""
        for backend in self._backends:
            backend.close()

    # --- beside the verbs ----------------------------------------------------------------------

    def connect(self, remote: RegionKey) -> None:
        """Open the way there now: the first pull is faster, and over shared memory pages can be
        pulled from then on even if their owner dies. Idempotent; a failure shows in pulls."""
        backend = self._backend(remote)
        if backend is not None:
            backend.connect(remote)

    def way(self, remote: RegionKey) -> tuple[str, str]:
        """The way that pulls from there take ("": none), and why no nearer one does, for people."""
        why: list[str] = []
        for backend in self._backends:
            obstacle = backend.obstacle(remote)
            if not obstacle:
                return backend.way, "; ".join(why)
            why.append(f"{backend.name}: {obstacle}")
        return "", "; ".join(why)

    def forget(self, owner: InstanceId) -> None:
        """Give back what is kept for that instance's regions, pulls in flight first. Call it when
        the instance is gone and nothing more will be pulled: until then its memory is kept."""
        for backend in self._backends:
            backend.forget(owner)

    def why(self, ticket: Ticket) -> str:
        """Why a ticket failed, for a log line. May be asked after the last poll."""
        return self._tickets.why(ticket)

    def stats(self) -> TransferStats:
        """For metrics. From any thread."""
        return self._tickets.stats()

    @property
    def alive(self) -> bool:
        """All threads run. False for good: a worker with this must not call itself healthy."""
        return all(backend.alive for backend in self._backends)

    def _own(self, local: RegionKey) -> Region:
        if local.owner != self._instance or not 0 <= local.region < len(self._regions):
            raise InvariantBroken(f"region {local.region} of {local.owner} is not registered here")
        return self._regions[local.region]

    def _backend(self, remote: RegionKey) -> Backend | None:
        return next((way for way in self._backends if not way.obstacle(remote)), None)
