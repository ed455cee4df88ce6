"""The reader's half of TCP: a thread that asks owners for pages and writes them into local memory.

Only this thread writes, or has a device write, and only pages whose checksum is right and whose
pull is not final. A ticket that it fails is final at once: what the device was asked for it waits
for. Must not have more in flight than the window.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress

import zmq

from common.curve import CurveKey
from common.errors import PeerError
from common.ids import InstanceId
from common.messages import RegionKey
from transfer.api import Region
from transfer.backends.commands import Command, Connect, Forget, Nudge
from transfer.backends.tcp_link import Link
from transfer.backends.tcp_pages import PageSink
from transfer.inbox import Inbox
from transfer.pinned import LOOK_S
from transfer.tickets import Pull, Reason, Tickets

_LinkKey = tuple[InstanceId, str, int]  # owner, door, page_bytes


class Puller:
    """Made in one thread and run in another; after `run` has begun, all of it is that thread's."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        inbox: Inbox[Command],
        sinks: Mapping[Region, PageSink],
        tickets: Tickets,
        progress_timeout_s: float,
        curve: CurveKey | None,
    ) -> None:
        """`sinks`: of all regions that are pulled into."""
        self._context = context
        self._sinks = sinks
        self._curve = curve
        self._inbox = inbox
        self._tickets = tickets
        self._progress_timeout_s = progress_timeout_s
        self._links: dict[_LinkKey, Link] = {}
        self._forgotten: set[_LinkKey] = set()
        self._unclaimed: list[Pull] = []  # taken from the inbox, on no link yet

    def run(self) -> None:
        now = time.monotonic()
        try:
            while not self._inbox.closing:
                busy = self._wait()
                last, now = now, time.monotonic()  # no other clock reading: a pause shows
                if busy and now - last > self._progress_timeout_s / 4:
                    for link in self._links.values():
                        link.excuse(now)
                commands = self._inbox.drain()
                self._unclaimed = [command for command in commands if isinstance(command, Pull)]
                for command in commands:
                    self._obey(command, now)
                self._unclaimed = []
                for key, link in list(self._links.items()):
                    self._attend(key, link, now)
        finally:
            self._end()

    def _wait(self) -> bool:
        """Whether pulls were in flight, so that it was not for long."""
        if any(link.is_writing for link in self._links.values()):
            time.sleep(LOOK_S)
            return True
        poller = zmq.Poller()
        poller.register(self._inbox.fileno(), zmq.POLLIN)
        for link in self._links.values():
            poller.register(link.socket, zmq.POLLIN)
        busy = any(link.busy for link in self._links.values())
        poller.poll(max(1, int(self._progress_timeout_s * 1000 / 16)) if busy else None)
        return busy

    def _obey(self, command: Command, now: float) -> None:
        match command:
            case Pull():
                link = self._link(command.remote, lambda detail: self._unreachable(command, detail))
                if link is not None:
                    link.add(command, now)
            case Connect():
                self._link(command.remote, lambda _: None)
            case Forget():
                self._forgotten.update(key for key in self._links if key[0] == command.owner)
            case Nudge():
                for link in self._links.values():
                    link.drop_cancelled()

    def _link(self, remote: RegionKey, failed: Callable[[str], None]) -> Link | None:
        key = (remote.owner, remote.doors["tcp"], remote.page_bytes)
        self._forgotten.discard(key)
        link = self._links.get(key)
        if link is None:
            try:
                link = Link(self._context, remote, self._sinks, self._tickets, self._curve)
            except PeerError as error:
                failed(str(error))
                return None
            self._links[key] = link
            self._tickets.count(peers=1)
        return link

    def _unreachable(self, pull: Pull, detail: str) -> None:
        self._tickets.fail(pull, Reason.UNREACHABLE, detail)

    def _attend(self, key: _LinkKey, link: Link, now: float) -> None:
        link.receive(now)
        link.ask_more()
        if not link.judge(now, self._progress_timeout_s) or (
            key in self._forgotten and not link.busy
        ):
            self._close_link(key)

    def _close_link(self, key: _LinkKey) -> None:
        self._links.pop(key).close()
        self._forgotten.discard(key)
        self._tickets.count(peers=-1)

    def _end(self) -> None:
        left = [command for command in self._inbox.close() if isinstance(command, Pull)]
        for key, link in list(self._links.items()):
            with suppress(RuntimeError):  # the device has failed, and writes nothing more
                link.finish()
            link.fail_all(Reason.CLOSED, "")
            self._close_link(key)
        for pull in (*self._unclaimed, *left):
            if not pull.final:
                self._tickets.fail(pull, Reason.CLOSED, "")
