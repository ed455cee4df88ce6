"""Pages over ZeroMQ TCP, between hosts or where no memory can be shared.

A page-server thread in the owner (`tcp_server`), a puller thread in the reader (`tcp_client`).
Control messages never come here.
"""

import threading

import numpy as np
import zmq

from common.curve import CurveKey, keep_door
from common.ids import InstanceId
from common.messages import RegionKey
from transfer.api import Region
from transfer.backends.commands import Command, Commanding
from transfer.backends.tcp_client import Puller
from transfer.backends.tcp_messages import WINDOW_BYTES
from transfer.backends.tcp_pages import PageSink, PageSource, sink_of, source_of
from transfer.backends.tcp_server import PageServer
from transfer.cuda_memory import DevicePages
from transfer.inbox import Inbox
from transfer.tickets import Tickets

_MAX_SOCKETS = 4096


class TcpBackend(Commanding):
    """Implements `transfer.transport.Backend`."""

    name = "tcp"

    def __init__(
        self,
        instance: InstanceId,
        listen_host: str,
        tickets: Tickets,
        progress_timeout_s: float,
        curve: CurveKey | None,
    ) -> None:
        """Listens at a free port of `listen_host`; with `curve`, to those who have that key alone.
        Raises SetupError where it cannot."""
        _keep_freed_memory()
        self._tickets = tickets
        self._sources: dict[int, PageSource] = {}
        self._sinks: dict[Region, PageSink] = {}
        self._context = zmq.Context(io_threads=1)
        self._context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
        if curve is not None:
            keep_door(self._context, curve)
        self._is_staged = False
        self._bell = Inbox[None]()
        self._inbox = Inbox[Command]()
        try:
            server = PageServer(self._context, listen_host, instance, self._sources, tickets, curve)
        except BaseException:
            self._bell.close()
            self._inbox.close()
            self._context.term()
            raise
        self._door = server.address
        puller = Puller(self._context, self._inbox, self._sinks, tickets, progress_timeout_s, curve)
        self._threads = (
            threading.Thread(
                target=server.run, args=(self._bell,), name="pages-tcp-server", daemon=True
            ),
            threading.Thread(target=puller.run, name="pages-tcp-puller", daemon=True),
        )
        for thread in self._threads:
            thread.start()

    @property
    def alive(self) -> bool:
        return all(thread.is_alive() for thread in self._threads)

    @property
    def way(self) -> str:
        """See `transfer.transport.Backend`."""
        return f"{self.name}+pinned" if self._is_staged else self.name

    def export(self, number: int, region: Region) -> str | None:
        """Pages on a device come and go through pinned memory. Raises SetupError where there is
        none."""
        self._is_staged |= isinstance(region, DevicePages)
        self._sinks[region] = sink_of(region)
        self._sources[number] = source_of(region)
        return self._door

    def obstacle(self, remote: RegionKey) -> str:
        return "" if self.name in remote.doors else "its pages are not offered so"

    def close(self) -> None:
        self._bell.ask_to_end()
        self._inbox.ask_to_end()
        for thread in self._threads:
            thread.join()
        self._context.term()  # after which ZeroMQ reads no slot
        while self._sinks:
            self._sinks.popitem()[1].close()
        while self._sources:
            self._sources.popitem()[1].close()


def _keep_freed_memory() -> None:
    """ZeroMQ takes memory for each page and frees it. glibc gives memory back to the system, to be
    had anew a fault every 4096 bytes, until it has seen larger blocks come and go: at a window's
    size that is over. It is 40 % of what a pull takes of CPUs in a process that frees nothing
    else of that size."""
    np.empty(WINDOW_BYTES, np.uint8)
