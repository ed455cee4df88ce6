"""Pulls in progress and how they end: shared by a transport's user and its threads.

A ticket ends once. Must not touch pages.
"""

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum, auto

from common.errors import InvariantBroken
from common.messages import RegionKey
from transfer.api import Copy, Region, Status, Ticket

_REASONS_KEPT = 1024


class Reason(StrEnum):
    """Why a pull failed; a label in metrics."""

    CANCELLED = auto()
    STALE = auto()  # a page was in another life than the announced one
    REFUSED = auto()  # the owner, or what answers in its place, will not give them
    UNREACHABLE = auto()  # no way there
    NO_PROGRESS = auto()  # bytes stopped coming
    INVALID = auto()  # pages that the region cannot have
    CLOSED = auto()  # this transport is


@dataclass(frozen=True, slots=True)
class TransferStats:
    """Totals since the start, but for `peers`."""

    pulls_done: int = 0
    pull_seconds: float = 0.0  # of pulls done, from asked for to final, summed
    pulled_bytes: int = 0  # copied and validated, pulls that failed later included
    failed: dict[Reason, int] = field(default_factory=dict[Reason, int])
    retries: int = 0  # links opened anew and pages asked for again
    bad_frames: int = 0  # heard from anybody, undecodable, unasked for or corrupt; dropped
    late_replies: int = 0  # pages that came after their pull had ended; dropped
    served_bytes: int = 0  # sent to readers by this process (mapped memory is not counted)
    unsent_replies: int = 0  # their reader had gone, or asked beyond its window and took nothing
    stale_served: int = 0  # requests refused because a page was in another life
    peers: int = 0  # regions mapped and links open now


class Pull:
    """One ticket. Belongs to the backend that moves it, but for `cancelled`."""

    __slots__ = ("cancelled", "copies", "local", "remote", "started_s", "status", "ticket")

    def __init__(
        self, ticket: Ticket, remote: RegionKey, local: Region, copies: tuple[Copy, ...]
    ) -> None:
        self.ticket = ticket
        self.remote = remote
        self.local = local
        self.copies = copies
        self.started_s = time.monotonic()
        self.status = Status.PENDING
        self.cancelled = False  # set by the user; the backend looks between windows

    @property
    def final(self) -> bool:
        return self.status is not Status.PENDING


class Tickets:
    """The table of pulls. A ticket stays until polled final: its user bounds their number."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._pulls: dict[Ticket, Pull] = {}
        self._why: OrderedDict[Ticket, str] = OrderedDict()
        self._n_opened = 0
        self._stats = TransferStats()
        self._failed: Counter[Reason] = Counter()

    def open(self, remote: RegionKey, local: Region, copies: tuple[Copy, ...]) -> Pull:
        with self._lock:
            self._n_opened += 1
            pull = Pull(Ticket(self._n_opened), remote, local, copies)
            self._pulls[pull.ticket] = pull
        return pull

    def done(self, pull: Pull) -> None:
        """Everything is copied and validated."""
        with self._lock:
            self._end(pull, Status.DONE)
            self._add(pulls_done=1, pull_seconds=time.monotonic() - pull.started_s)
        self._wake()

    def fail(self, pull: Pull, reason: Reason, detail: str) -> None:
        """No later write to local memory is possible."""
        with self._lock:
            self._end(pull, Status.FAILED)
            self._failed[reason] += 1
            self._why[pull.ticket] = f"{reason}: {detail}" if detail else str(reason)
            if len(self._why) > _REASONS_KEPT:
                self._why.popitem(last=False)
        self._wake()

    def poll(self, ticket: Ticket) -> Status:
        with self._lock:
            pull = self._pulls.get(ticket)
            if pull is None:
                raise InvariantBroken(f"ticket {ticket} is not open, or was polled when final")
            if pull.final:
                del self._pulls[ticket]
            return pull.status

    def cancel(self, ticket: Ticket) -> bool:
        """False: it is final, or forgotten."""
        with self._lock:
            pull = self._pulls.get(ticket)
            if pull is None or pull.final:
                return False
            pull.cancelled = True
            return True

    def why(self, ticket: Ticket) -> str:
        """Of a failed ticket, polled or not; empty for others, and for the very old."""
        with self._lock:
            return self._why.get(ticket, "")

    def count(self, **more: float) -> None:
        """Add to the named totals of `TransferStats`."""
        with self._lock:
            self._add(**more)

    def stats(self) -> TransferStats:
        with self._lock:
            return replace(self._stats, failed=dict(self._failed))

    def _end(self, pull: Pull, status: Status) -> None:
        if pull.final:
            raise InvariantBroken(f"ticket {pull.ticket} was {pull.status}, now {status}")
        pull.status = status

    def _add(self, **more: float) -> None:
        was = self._stats
        self._stats = replace(was, **{name: getattr(was, name) + n for name, n in more.items()})
