"""Pages between processes of one host, in shared memory: the reader maps its peer's pool.

They stay readable after their owner's death to whoever has mapped them.
"""

import socket

from common.messages import RegionKey
from transfer.api import Region
from transfer.backends.mapped import MappedBackend
from transfer.memory import PeerPages


class ShmBackend(MappedBackend):
    """Implements `transfer.transport.Backend`."""

    name = "shm"
    file_suffix = "pages"
    window_bytes = 4 * 2**20
    windows_begun = 1  # this process's CPUs copy

    def export(self, number: int, region: Region) -> str | None:
        if region.fd is None:
            return None
        self._exports[number] = region
        return str(self._path)

    def obstacle(self, remote: RegionKey) -> str:
        if self.name not in remote.doors:
            return "its pages are not offered so"
        return "" if remote.host == self._host else "another host"

    def path(self, remote: RegionKey) -> str:
        return remote.doors[self.name]

    def map(self, fd: int, remote: RegionKey, connection: socket.socket) -> PeerPages:  # noqa: ARG002
        return PeerPages(fd, remote.n_pages, remote.page_bytes)
