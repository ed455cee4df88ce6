"""Pages between processes of one host: the reader maps its peer's pool and copies out of it.

The owner only hands out a descriptor, so pages stay readable after its death to whoever has
mapped them. One thread serves descriptors, fetches them and copies; it never waits for one peer
while another has pages to give.
"""

import os
import selectors
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from common.errors import InvariantBroken, PeerError
from common.ids import HostId, InstanceId
from common.messages import RegionKey
from common.rundir import socket_file
from transfer import fdpass
from transfer.api import Copy, Region
from transfer.fdpass import FdDesk
from transfer.inbox import Inbox
from transfer.memory import PeerPages
from transfer.plan import runs, windows
from transfer.tickets import Pull, Reason, Tickets

_WINDOW_BYTES = 4 * 2**20  # moved between two looks at cancellations and other pulls
_ASK_AGAIN_S = 0.05  # after the owner's queue was full
_PAUSE_S = 1.0  # far more than _POLL_S
_POLL_S = 0.25  # how often deadlines are looked at while there are any


@dataclass(frozen=True, slots=True)
class _Connect:
    remote: RegionKey


@dataclass(frozen=True, slots=True)
class _Forget:
    owner: InstanceId


@dataclass(frozen=True, slots=True)
class _Nudge:
    pass


_Command = Pull | _Connect | _Forget | _Nudge


class ShmBackend:
    """Implements `transfer.transport.Backend`."""

    name = "shm"

    def __init__(
        self,
        instance: InstanceId,
        host: HostId,
        run_dir: Path,
        tickets: Tickets,
        progress_timeout_s: float,
    ) -> None:
        """Raises SetupError: no private directory, a path too long, or in use."""
        self._host = host
        self._path = socket_file(run_dir, f"{instance[:12]}.pages")
        self._tickets = tickets
        self._exports: dict[int, Region] = {}
        self._inbox = Inbox[_Command]()
        mover = _Mover(
            FdDesk(fdpass.listen(self._path), instance, self._exports, tickets),
            self._inbox,
            tickets,
            progress_timeout_s,
        )
        self._thread = threading.Thread(target=mover.run, name="pages-shm", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def export(self, number: int, region: Region) -> str | None:
        if region.fd is None:
            return None
        self._exports[number] = region
        return str(self._path)

    def reaches(self, remote: RegionKey) -> bool:
        return remote.host == self._host and self.name in remote.doors

    def start(self, pull: Pull) -> None:
        if not self._inbox.put(pull):
            self._tickets.fail(pull, Reason.CLOSED, "")

    def nudge(self) -> None:
        self._inbox.put(_Nudge())

    def connect(self, remote: RegionKey) -> None:
        self._inbox.put(_Connect(remote))

    def forget(self, owner: InstanceId) -> None:
        self._inbox.put(_Forget(owner))

    def close(self) -> None:
        self._inbox.ask_to_end()
        self._thread.join()
        self._path.unlink(missing_ok=True)


@dataclass(slots=True, eq=False)
class _Source:
    """A peer's region: being fetched (`pages` is None), or mapped."""

    remote: RegionKey
    give_up_s: float
    asked: bool = False
    connection: socket.socket | None = None
    pages: PeerPages | None = None
    waiting: list[Pull] = field(default_factory=list[Pull])
    n_moving: int = 0
    forgotten: bool = False


@dataclass(slots=True, eq=False)
class _Moving:
    pull: Pull
    source: _Source
    windows: tuple[tuple[Copy, ...], ...]
    n_moved: int = 0


class _Mover:
    """The thread. Everything here is its own."""

    def __init__(
        self, desk: FdDesk, inbox: Inbox[_Command], tickets: Tickets, progress_timeout_s: float
    ) -> None:
        self._desk = desk
        self._inbox = inbox
        self._tickets = tickets
        self._progress_timeout_s = progress_timeout_s
        self._pulls: set[Pull] = set()  # all that are not final
        self._sources: dict[tuple[InstanceId, int], _Source] = {}
        self._fetching: dict[_Source, None] = {}
        self._moving: deque[_Moving] = deque()
        self._looked_s = 0.0  # at deadlines, last
        self._selector = selectors.DefaultSelector()
        self._selector.register(inbox, selectors.EVENT_READ, lambda: None)
        self._selector.register(
            desk.listener, selectors.EVENT_READ, lambda: desk.admit(self._selector)
        )

    def run(self) -> None:
        try:
            while not self._inbox.closing:
                for key, _ in self._selector.select(self._timeout_s()):
                    key.data()
                commands = self._inbox.drain()
                self._pulls.update(command for command in commands if isinstance(command, Pull))
                for command in commands:
                    self._obey(command)
                if self._fetching or self._desk.waits:
                    self._expire(time.monotonic())
                if self._moving:
                    self._move(self._moving.popleft())
        finally:
            self._end()

    def _timeout_s(self) -> float | None:
        if self._moving:
            return 0.0
        if any(source.connection is None for source in self._fetching):
            return _ASK_AGAIN_S
        return _POLL_S if self._fetching or self._desk.waits else None

    def _obey(self, command: _Command) -> None:
        match command:
            case Pull():
                self._begin(command)
            case _Connect():
                self._source(command.remote)
            case _Forget():
                self._forget(command.owner)
            case _Nudge():
                for source in list(self._fetching):
                    self._drop_cancelled(source)

    def _fail(self, pull: Pull, reason: Reason, detail: str) -> None:
        self._pulls.discard(pull)
        self._tickets.fail(pull, reason, detail)

    # --- fetching ------------------------------------------------------------------------------

    def _source(self, remote: RegionKey) -> _Source:
        """Known, or being fetched from now on."""
        key = (remote.owner, remote.region)
        source = self._sources.get(key)
        if source is None:
            source = _Source(remote, time.monotonic() + self._progress_timeout_s)
            self._sources[key] = source
            self._fetching[source] = None
        return source

    def _ask(self, source: _Source) -> None:
        try:
            connection = fdpass.ask(source.remote.doors["shm"], source.remote)
        except BlockingIOError:  # its queue is full: asked again at the next look
            return
        except (OSError, ValueError) as error:
            self._fetch_failed(source, Reason.UNREACHABLE, str(error))
            return
        source.connection = connection
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._fetched(source))

    def _fetched(self, source: _Source) -> None:
        if source.connection is None:
            return
        try:
            fd = fdpass.take(source.connection, source.remote)
            try:
                source.pages = PeerPages(fd, source.remote.n_pages, source.remote.page_bytes)
            finally:
                os.close(fd)
        except (OSError, ValueError, PeerError) as error:
            self._fetch_failed(source, Reason.REFUSED, str(error))
            return
        self._tickets.count(peers=1)
        self._hang_up(source)
        for pull in source.waiting:
            self._queue(pull, source)
        source.waiting = []
        self._unmap_if_unused(source)

    def _fetch_failed(self, source: _Source, reason: Reason, detail: str) -> None:
        """The next pull asks again."""
        self._hang_up(source)
        self._drop(source)
        for pull in source.waiting:
            self._fail(pull, reason, detail)
        source.waiting = []

    def _hang_up(self, source: _Source) -> None:
        self._fetching.pop(source, None)
        if source.connection is not None:
            self._selector.unregister(source.connection)
            source.connection.close()
            source.connection = None

    def _drop(self, source: _Source) -> None:
        """Known no more; pulls that have it keep it."""
        key = (source.remote.owner, source.remote.region)
        if self._sources.get(key) is source:
            del self._sources[key]
        source.forgotten = True

    def _forget(self, owner: InstanceId) -> None:
        for source in [source for key, source in self._sources.items() if key[0] == owner]:
            self._drop(source)
            self._unmap_if_unused(source)

    def _drop_cancelled(self, source: _Source) -> None:
        for pull in source.waiting:
            if pull.cancelled:
                self._fail(pull, Reason.CANCELLED, "")
        source.waiting = [pull for pull in source.waiting if not pull.final]

    def _expire(self, now: float) -> None:
        self._desk.expire(self._selector, now)
        gap_s, self._looked_s = now - self._looked_s, now
        for source in list(self._fetching):
            if source.asked and gap_s > _PAUSE_S:  # this process stood still: time begins anew
                source.give_up_s += gap_s
            source.asked = True
            if now > source.give_up_s:
                self._fetch_failed(source, Reason.NO_PROGRESS, "its owner does not answer")
            elif source.connection is None:
                self._ask(source)

    # --- moving --------------------------------------------------------------------------------

    def _begin(self, pull: Pull) -> None:
        source, remote = self._source(pull.remote), pull.remote
        n_pages, page_bytes = source.remote.n_pages, source.remote.page_bytes
        if (remote.n_pages, remote.page_bytes) != (n_pages, page_bytes):
            detail = f"that region is known with {n_pages} pages of {page_bytes} bytes"
            self._fail(pull, Reason.INVALID, detail)
        elif source.pages is None:
            source.waiting.append(pull)
        else:
            self._queue(pull, source)

    def _queue(self, pull: Pull, source: _Source) -> None:
        source.n_moving += 1
        parts = windows(pull.copies, source.remote.page_bytes, _WINDOW_BYTES)
        self._moving.append(_Moving(pull, source, parts))

    def _move(self, moving: _Moving) -> None:
        """One window; the others' turn comes before the next."""
        pull = moving.pull
        if pull.cancelled:
            self._fail(pull, Reason.CANCELLED, "")
        elif not self._move_window(moving, moving.windows[moving.n_moved]):
            self._fail(pull, Reason.STALE, f"pages of {pull.remote.owner} were reused")
        elif moving.n_moved == len(moving.windows):
            self._pulls.discard(pull)
            self._tickets.done(pull)
        else:
            self._moving.append(moving)
            return
        moving.source.n_moving -= 1
        self._unmap_if_unused(moving.source)

    def _move_window(self, moving: _Moving, window: tuple[Copy, ...]) -> bool:
        """False: a page was in another life than the announced one."""
        pages, n = moving.source.pages, moving.source.remote.page_bytes
        if pages is None:
            raise InvariantBroken(f"{moving.source.remote.owner} was unmapped under a pull")
        pages.copy(
            moving.pull.local.pages,
            [(run.remote * n, run.local * n, run.n_pages * n) for run in runs(window)],
        )
        announced = np.array([copy.generation for copy in window], np.uint64)
        if not pages.are_still([copy.remote for copy in window], announced):
            return False
        moving.n_moved += 1
        self._tickets.count(pulled_bytes=len(window) * n)
        return True

    def _unmap_if_unused(self, source: _Source) -> None:
        if source.forgotten and not source.n_moving and source.pages is not None:
            source.pages.close()
            source.pages = None
            self._tickets.count(peers=-1)

    # --- ending --------------------------------------------------------------------------------

    def _end(self) -> None:
        self._pulls.update(command for command in self._inbox.close() if isinstance(command, Pull))
        for pull in list(self._pulls):
            self._fail(pull, Reason.CLOSED, "")
        for source in list(self._fetching):
            self._hang_up(source)
        for source in self._sources.values():
            if source.pages is not None:
                source.pages.close()
        self._desk.close()
        self._selector.close()
