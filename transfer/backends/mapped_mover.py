"""The thread of a backend that maps its peers' memory: it hands out descriptors, fetches them, and
copies out of what they lead to.

It never waits for one peer while another has pages to give. Must not know what kind of memory it
copies.
"""

import os
import selectors
import socket
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from common.errors import InvariantBroken, PeerError
from common.ids import InstanceId
from common.messages import RegionKey
from transfer import fdpass
from transfer.backends.commands import Command, Connect, Forget, Nudge
from transfer.backends.windows import Fault, PeerMemory, Windows
from transfer.fdpass import FdDesk
from transfer.inbox import Inbox
from transfer.tickets import Pull, Reason, Tickets

_ASK_AGAIN_S = 0.05  # after the owner's queue was full
_PAUSE_S = 1.0  # far more than _POLL_S
_POLL_S = 0.25  # how often deadlines are looked at while there are any


class Memory(Protocol):
    """What a kind of memory says for itself."""

    @property
    def window_bytes(self) -> int:
        """Copied between two looks at cancellations and other pulls."""
        ...

    @property
    def windows_begun(self) -> int:
        """How many are asked for before one is waited for."""
        ...

    def path(self, remote: RegionKey) -> str:
        """Of the socket at which its owner hands out the descriptor."""
        ...

    def map(self, fd: int, remote: RegionKey, connection: socket.socket) -> PeerMemory:
        """What the descriptor, which is not kept, leads to; it came by the connection.

        Raises OSError, ValueError or PeerError: it leads to nothing that can be read.
        """
        ...


@dataclass(slots=True, eq=False)
class _Source:
    """A peer's region: being fetched (`memory` is None), or mapped."""

    remote: RegionKey
    give_up_s: float
    asked: bool = False
    connection: socket.socket | None = None
    memory: PeerMemory | None = None
    lifeline: int | None = None  # while it is watched
    waiting: list[Pull] = field(default_factory=list[Pull])
    n_moving: int = 0
    forgotten: bool = False


class Mover:
    """Made in one thread and run in another; after `run` has begun, all of it is that thread's."""

    def __init__(
        self,
        kind: Memory,
        desk: FdDesk,
        inbox: Inbox[Command],
        tickets: Tickets,
        progress_timeout_s: float,
    ) -> None:
        self._kind = kind
        self._desk = desk
        self._inbox = inbox
        self._tickets = tickets
        self._progress_timeout_s = progress_timeout_s
        self._pulls: set[Pull] = set()  # all that are not final
        self._sources: dict[tuple[InstanceId, int], _Source] = {}
        self._fetching: dict[_Source, None] = {}
        self._windows = Windows(kind.window_bytes, kind.windows_begun, tickets)
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
                if not self._windows.idle:
                    self._windows.step()
        finally:
            self._end()

    def _timeout_s(self) -> float | None:
        if not self._windows.idle:
            return 0.0
        if any(source.connection is None for source in self._fetching):
            return _ASK_AGAIN_S
        return _POLL_S if self._fetching or self._desk.waits else None

    def _obey(self, command: Command) -> None:
        match command:
            case Pull():
                self._begin(command)
            case Connect():
                self._source(command.remote)
            case Forget():
                self._forget(command.owner)
            case Nudge():
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
            connection = fdpass.ask(self._kind.path(source.remote), source.remote)
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
                source.memory = self._kind.map(fd, source.remote, source.connection)
            finally:
                os.close(fd)
        except (OSError, ValueError, PeerError) as error:
            self._fetch_failed(source, Reason.REFUSED, str(error))
            return
        self._tickets.count(peers=1)
        self._hang_up(source)
        self._watch(source, source.memory.lifeline)
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

    def _watch(self, source: _Source, lifeline: int | None) -> None:
        if lifeline is not None:
            source.lifeline = lifeline
            self._selector.register(lifeline, selectors.EVENT_READ, lambda: self._died(source))

    def _died(self, source: _Source) -> None:
        """Pulls that are under way learn it from their next copy."""
        self._unwatch(source)
        self._drop(source)
        self._unmap_if_unused(source)

    def _unwatch(self, source: _Source) -> None:
        if source.lifeline is not None:
            self._selector.unregister(source.lifeline)
            source.lifeline = None

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
        elif source.memory is None:
            source.waiting.append(pull)
        else:
            self._queue(pull, source)

    def _queue(self, pull: Pull, source: _Source) -> None:
        if source.memory is None:
            raise InvariantBroken(f"{source.remote.owner} is not mapped")
        source.n_moving += 1
        self._windows.queue(pull, source.memory, partial(self._moved, pull, source))

    def _moved(self, pull: Pull, source: _Source, fault: Fault | None) -> None:
        if fault is None:
            self._pulls.discard(pull)
            self._tickets.done(pull)
        else:
            self._fail(pull, *fault)
            if fault[0] is Reason.UNREACHABLE:
                self._drop(source)
        source.n_moving -= 1
        self._unmap_if_unused(source)

    def _unmap_if_unused(self, source: _Source) -> None:
        if source.forgotten and not source.n_moving:
            self._unmap(source)

    def _unmap(self, source: _Source) -> None:
        if source.memory is not None:
            self._unwatch(source)
            source.memory.close()
            source.memory = None
            self._tickets.count(peers=-1)

    # --- ending --------------------------------------------------------------------------------

    def _end(self) -> None:
        self._pulls.update(command for command in self._inbox.close() if isinstance(command, Pull))
        self._windows.close()
        for pull in list(self._pulls):
            self._fail(pull, Reason.CLOSED, "")
        for source in list(self._fetching):
            self._hang_up(source)
        for source in list(self._sources.values()):
            self._unmap(source)
        self._desk.close()
        self._selector.close()
