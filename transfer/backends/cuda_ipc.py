"""Pages between the GPU memory of processes of one host, by CUDA IPC: the reader opens its peer's
pool and copies out of it, on a stream of its own.

Where that cannot be, the next transport is taken: its device is not visible here, or cannot be
read from ours, or CUDA opens no handles between the two processes. Pages are gone when their owner
dies.
"""

import logging
import socket
from pathlib import Path

from common.errors import PeerError, SetupError
from common.ids import HostId, InstanceId
from common.log import line
from common.messages import RegionKey
from transfer import fdpass
from transfer.api import Region
from transfer.backends.mapped import MappedBackend
from transfer.cuda_device import CudaDevice, CudaStream
from transfer.cuda_memory import DevicePages, DeviceReader, PeerDevicePages
from transfer.tickets import Pull, Reason, Tickets

_log = logging.getLogger(__name__)

_BETWEEN = "@"  # in a door, the device's bus id and the socket's path


class CudaBackend(MappedBackend):
    """Implements `transfer.transport.Backend`."""

    name = "cuda_ipc"
    file_suffix = "cuda"
    window_bytes = 256 * 2**20  # a tenth of a millisecond on the device, ten between two by PCIe
    windows_begun = 2  # while one is copied, the next is asked for

    def __init__(
        self,
        device: CudaDevice | None,
        instance: InstanceId,
        host: HostId,
        run_dir: Path,
        tickets: Tickets,
        progress_timeout_s: float,
    ) -> None:
        """Regions to be pulled into lie on `device`. Raises SetupError."""
        if device is None:
            raise SetupError("pages in memory do not travel by CUDA IPC")
        self._device = device
        self._stream = CudaStream(device)
        self._own: dict[int, DevicePages] = {}
        self._closed_doors: dict[tuple[InstanceId, int], str] = {}  # why; never opened again
        try:
            super().__init__(instance, host, run_dir, tickets, progress_timeout_s)
        except BaseException:
            self._stream.close()
            raise

    def export(self, number: int, region: Region) -> str | None:
        if not isinstance(region, DevicePages):
            return None
        try:
            self._exports[number] = region.exported()
        except RuntimeError:  # a device, or a system, without CUDA IPC
            return None
        self._own[number] = region
        self._stream.make_ready(region.pages.address)
        return f"{region.device.bus_id}{_BETWEEN}{self._path}"

    def obstacle(self, remote: RegionKey) -> str:
        if self.name not in remote.doors:
            return "its pages are not offered so"
        if remote.host != self._host:
            return "another host"
        bus_id, _, _ = remote.doors[self.name].partition(_BETWEEN)
        if bus_id not in self._device.reachable:
            return f"device {bus_id} cannot be read from {self._device.bus_id}"
        return self._closed_doors.get((remote.owner, remote.region), "")

    def path(self, remote: RegionKey) -> str:
        return remote.doors[self.name].partition(_BETWEEN)[2]

    def map(self, fd: int, remote: RegionKey, connection: socket.socket) -> DeviceReader:
        if remote.owner == self._instance:  # CUDA opens no handle in the process that it is of
            own = self._own[remote.region]
            return DeviceReader(own.pages.address, own.generations, self._stream, is_same=True)
        try:
            return PeerDevicePages(
                fd,
                (remote.n_pages, remote.page_bytes),
                owner_pid=fdpass.owner_pid(connection),
                device=self._device,
                stream=self._stream,
            )
        except (OSError, ValueError, PeerError) as error:
            self._closed_doors[remote.owner, remote.region] = str(error)
            _log.warning(
                line("pages_come_otherwise", peer=remote.owner, not_by=f"cuda_ipc: {error}")
            )
            raise

    def start(self, pull: Pull) -> None:
        if isinstance(pull.local, DevicePages) and pull.local.device is self._device:
            super().start(pull)
        else:
            self._tickets.fail(pull, Reason.INVALID, "its pages would not come to this device")

    def forget(self, owner: InstanceId) -> None:
        for key in list(self._closed_doors):
            if key[0] == owner:
                del self._closed_doors[key]
        super().forget(owner)

    def close(self) -> None:
        super().close()
        self._stream.close()
