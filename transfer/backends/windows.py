"""Pulls of mapped memory, cut into windows that are copied and validated one after the other.

Where a device copies, the next window is asked for while one is under way. Must not know how memory
is mapped.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from common.errors import PeerError
from transfer.api import Copy, Copying, PageArray
from transfer.plan import runs, windows
from transfer.tickets import Pull, Reason, Tickets

Fault = tuple[Reason, str]


class PeerMemory(Protocol):
    """A peer's region, mapped. Used by one thread."""

    @property
    def lifeline(self) -> int | None:
        """A descriptor that becomes readable when the owner has died and its memory with it; None:
        the memory outlives its owner."""
        ...

    def copy(self, into: PageArray, runs_R3: NDArray[np.int64]) -> Copying:
        """Begin to copy byte runs (offset there, offset here, length), after those begun before.
        What has come is unvalidated. PeerError: the owner has died."""
        ...

    def are_still(self, pages: list[int], generations: NDArray[np.uint64]) -> bool:
        """After a copy: were the pages, all through it, in the lives that were announced?"""
        ...

    def close(self) -> None:
        """Unmap."""
        ...


@dataclass(slots=True, eq=False)
class _Moving:
    pull: Pull
    memory: PeerMemory
    ended: Callable[[Fault | None], None]
    windows: deque[tuple[Copy, ...]]  # not begun
    n_begun: int = 0  # and not waited for
    fault: Fault | None = None


class Windows:
    """In turn: no pull waits for another's last window. Used by one thread."""

    def __init__(self, window_bytes: int, n_begun: int, tickets: Tickets) -> None:
        """`n_begun`: how many windows are asked for before one is waited for."""
        self._window_bytes, self._most_begun, self._tickets = window_bytes, n_begun, tickets
        self._moving: deque[_Moving] = deque()  # those with windows to begin
        self._begun: deque[tuple[_Moving, tuple[Copy, ...], Copying]] = deque()

    @property
    def idle(self) -> bool:
        return not (self._moving or self._begun)

    def queue(self, pull: Pull, memory: PeerMemory, ended: Callable[[Fault | None], None]) -> None:
        """`ended` is called when nothing is written any more: with None, if all pages are here."""
        parts = windows(pull.copies, pull.remote.page_bytes, self._window_bytes)
        self._moving.append(_Moving(pull, memory, ended, deque(parts)))

    def step(self) -> None:
        """Begin a window, or wait for one, or both."""
        if self._moving:
            self._begin(self._moving.popleft())
        if len(self._begun) >= (self._most_begun if self._moving else 1):
            self._end(*self._begun.popleft())

    def close(self) -> None:
        """All that is left fails, when nothing of it is being written any more."""
        left = dict.fromkeys(self._moving)
        for moving, _, copied in self._begun:
            left[moving] = None
            with suppress(PeerError, RuntimeError):  # a device that has failed writes nothing
                copied()
        self._begun.clear()
        self._moving.clear()
        for moving in left:
            moving.ended(moving.fault or (Reason.CLOSED, ""))

    def _begin(self, moving: _Moving) -> None:
        pull, window = moving.pull, moving.windows.popleft()
        if pull.cancelled:
            self._stop(moving, (Reason.CANCELLED, ""))
            return
        try:
            copied = moving.memory.copy(pull.local.pages, runs(window, pull.remote.page_bytes))
        except PeerError as error:
            self._stop(moving, (Reason.UNREACHABLE, str(error)))
            return
        moving.n_begun += 1
        self._begun.append((moving, window, copied))
        if moving.windows:
            self._moving.append(moving)

    def _end(self, moving: _Moving, window: tuple[Copy, ...], copied: Copying) -> None:
        moving.n_begun -= 1
        try:
            copied()
        except PeerError as error:
            self._stop(moving, (Reason.UNREACHABLE, str(error)))
            return
        announced = np.array([copy.generation for copy in window], np.uint64)
        if not moving.memory.are_still([copy.remote for copy in window], announced):
            self._stop(moving, (Reason.STALE, f"pages of {moving.pull.remote.owner} were reused"))
            return
        self._tickets.count(pulled_bytes=len(window) * moving.pull.remote.page_bytes)
        self._finish_if_moved(moving)

    def _stop(self, moving: _Moving, fault: Fault) -> None:
        """Begin no more of it."""
        moving.fault = moving.fault or fault
        moving.windows.clear()
        with suppress(ValueError):
            self._moving.remove(moving)
        self._finish_if_moved(moving)

    def _finish_if_moved(self, moving: _Moving) -> None:
        if not moving.windows and not moving.n_begun:
            moving.ended(moving.fault)
