"""The transfer layer's four verbs, and what they are spoken of. Pure types, no I/O.

Whatever moves or stores KV moves whole pages as bytes and knows nothing of layers or heads (law 7).
A reader writes only its own memory. A read counts only if the generation read after the copy
equals the one its owner announced.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import NewType, Protocol

import numpy as np
from numpy.typing import NDArray

from common.ids import InstanceId, PageId
from common.messages import RegionKey

Ticket = NewType("Ticket", int)
"""A pull in progress; numbered by the transport."""


class Status(StrEnum):
    """Of a ticket. DONE and FAILED are final: never left, and nothing is written after."""

    PENDING = auto()
    DONE = auto()  # copied and validated
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class Copy:
    """One page: `generation` is the one that the remote's owner announced."""

    remote: PageId
    generation: int
    local: PageId


Copying = Callable[[], None]
"""A copy that was begun: returns when it is there. Once. PeerError: its source has died, and what
is there is worth nothing."""


class PageArray(Protocol):
    """[n_pages, page_bytes] of bytes, read and written a page at a time: an array, where this
    process's CPUs reach them, or the memory of a device."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, page: int, /) -> NDArray[np.uint8]: ...

    def __setitem__(self, page: int, content: NDArray[np.uint8], /) -> None: ...


class Region(Protocol):
    """Pages that can be pulled from or into. Holds the memory that it names."""

    @property
    def pages(self) -> PageArray:
        """[n_pages, page_bytes]; the base address never moves."""
        ...

    @property
    def generations(self) -> NDArray[np.uint64]:
        """[n_pages]; raised by the owner before the first write of a page's new life."""
        ...

    @property
    def fd(self) -> int | None:
        """The file that backs both, pages first, for peers of this host; None: private memory."""
        ...


class Transport(Protocol):
    """Non-blocking; used by one thread. `wake` (given at opening) is called, from any thread, when
    a ticket becomes final, so that its user can sleep."""

    def register(self, region: Region) -> RegionKey:
        """Make the region reachable. Once a region."""
        ...

    def pull(
        self, peer: InstanceId, remote: RegionKey, local: RegionKey, copies: tuple[Copy, ...]
    ) -> Ticket:
        """Start moving. `local` is a registered region of this process; never blocks, and an
        unreachable peer is a ticket that fails."""
        ...

    def poll(self, ticket: Ticket) -> Status:
        """The only fence: reuse local pages after a final status, never before. A final ticket is
        forgotten when polled."""
        ...

    def cancel(self, ticket: Ticket) -> None:
        """Ask to stop. Idempotent. Keep polling until final."""
        ...

    def close(self) -> None:
        """Stop threads, close sockets. Tickets in flight fail first."""
        ...
