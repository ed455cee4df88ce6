"""Pages of peers of this host, whose memory the reader maps: what shared memory and the memory of
CUDA devices have in common.

The owner only hands out a descriptor; a thread of the reader's does the rest (`mapped_mover`).
"""

import socket
import threading
from abc import ABC, abstractmethod
from pathlib import Path

from common.ids import HostId, InstanceId
from common.messages import RegionKey
from common.rundir import SHORT_INSTANCE, socket_file
from transfer import fdpass
from transfer.api import Region
from transfer.backends.commands import Command, Commanding
from transfer.backends.mapped_mover import Mover
from transfer.backends.windows import PeerMemory
from transfer.fdpass import FdDesk
from transfer.inbox import Inbox
from transfer.tickets import Tickets


class MappedBackend(Commanding, ABC):
    """Implements `transfer.transport.Backend`, and is `mapped_mover.Memory`, but for what each kind
    of memory says for itself."""

    name: str
    file_suffix: str  # of the socket
    window_bytes: int
    windows_begun: int

    def __init__(
        self,
        instance: InstanceId,
        host: HostId,
        run_dir: Path,
        tickets: Tickets,
        progress_timeout_s: float,
    ) -> None:
        """Raises SetupError: no private directory, a path too long, or in use."""
        self._instance = instance
        self._host = host
        self._path = socket_file(run_dir, f"{instance[:SHORT_INSTANCE]}.{self.file_suffix}")
        self._tickets = tickets
        self._exports: dict[int, Region] = {}
        self._inbox = Inbox[Command]()
        desk = FdDesk(fdpass.listen(self._path), instance, self._exports, tickets)
        mover = Mover(self, desk, self._inbox, tickets, progress_timeout_s)
        self._thread = threading.Thread(target=mover.run, name=f"pages-{self.name}", daemon=True)
        self._thread.start()

    @abstractmethod
    def export(self, number: int, region: Region) -> str | None: ...

    @abstractmethod
    def obstacle(self, remote: RegionKey) -> str: ...

    @abstractmethod
    def path(self, remote: RegionKey) -> str: ...

    @abstractmethod
    def map(self, fd: int, remote: RegionKey, connection: socket.socket) -> PeerMemory: ...

    @property
    def way(self) -> str:
        """See `transfer.transport.Backend`."""
        return self.name

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        self._inbox.ask_to_end()
        self._thread.join()
        self._path.unlink(missing_ok=True)
