"""Opens a transport by name: the one place that knows the backends' names."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, assert_never

from common.curve import CurveKey
from common.ids import HostId, InstanceId
from transfer.backends.cuda_ipc import CudaBackend
from transfer.backends.shm import ShmBackend
from transfer.backends.tcp import TcpBackend
from transfer.cuda_device import CudaDevice
from transfer.tickets import Tickets
from transfer.transport import Backend, PageTransport

Name = Literal["auto", "shm", "tcp", "cuda_ipc"]


def open_transport(  # noqa: PLR0913 - a process's whole place in the world, named one by one
    name: Name,
    *,
    instance: InstanceId,
    host: HostId,
    run_dir: Path,
    listen_host: str,
    wake: Callable[[], None],
    curve: CurveKey | None = None,
    progress_timeout_s: float = 5.0,
    device: CudaDevice | None = None,
) -> PageTransport:
    """`host` is `common.rundir.host_id()`. `run_dir` is made private, and holds one socket file;
    `listen_host` is an address of this machine that its peers can reach; those without the key
    `curve` get nothing there. A pull fails when no byte of it has come for `progress_timeout_s`.
    `device`: where the regions lie that will be registered; None: in memory. Raises SetupError."""
    tickets = Tickets(wake)

    def shm() -> ShmBackend:
        return ShmBackend(instance, host, run_dir, tickets, progress_timeout_s)

    def tcp() -> TcpBackend:
        return TcpBackend(instance, listen_host, tickets, progress_timeout_s, curve)

    def cuda() -> CudaBackend:
        return CudaBackend(device, instance, host, run_dir, tickets, progress_timeout_s)

    ways: tuple[Callable[[], Backend], ...]
    match name:
        case "auto":
            ways = (shm if device is None else cuda, tcp)  # nearest first
        case "cuda_ipc":
            ways = (cuda,)
        case "shm":
            ways = (shm,)
        case "tcp":
            ways = (tcp,)
        case _:
            assert_never(name)
    backends = _opened(ways)
    return PageTransport(instance=instance, host=host, tickets=tickets, backends=backends)


def _opened(ways: Iterable[Callable[[], Backend]]) -> list[Backend]:
    """All, or none."""
    backends: list[Backend] = []
    try:
        for way in ways:
            backends.append(way())
    except BaseException:
        for backend in backends:
            backend.close()
        raise
    return backends
