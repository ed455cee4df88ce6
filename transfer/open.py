"""Opens a transport by name: the one place that knows the backends' names."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal, assert_never

from common.ids import HostId, InstanceId
from transfer.backends.shm import ShmBackend
from transfer.backends.tcp import TcpBackend
from transfer.tickets import Tickets
from transfer.transport import Backend, PageTransport

Name = Literal["auto", "shm", "tcp"]


def open_transport(  # noqa: PLR0913 - a process's whole place in the world, named one by one
    name: Name,
    *,
    instance: InstanceId,
    host: HostId,
    run_dir: Path,
    listen_host: str,
    wake: Callable[[], None],
    progress_timeout_s: float = 5.0,
) -> PageTransport:
    """`host` is `common.rundir.host_id()`. `run_dir` is made private, and holds one socket file;
    `listen_host` is an address of this machine that its peers can reach. A pull fails when no
    byte of it has come for `progress_timeout_s`. Raises SetupError."""
    tickets = Tickets(wake)

    def shm() -> ShmBackend:
        return ShmBackend(instance, host, run_dir, tickets, progress_timeout_s)

    def tcp() -> TcpBackend:
        return TcpBackend(instance, listen_host, tickets, progress_timeout_s)

    backends: list[Backend] = []
    try:
        match name:
            case "auto":
                backends.append(shm())  # nearest first
                backends.append(tcp())
            case "shm":
                backends.append(shm())
            case "tcp":
                backends.append(tcp())
            case _:
                assert_never(name)
    except BaseException:
        for backend in backends:
            backend.close()
        raise
    return PageTransport(instance=instance, host=host, tickets=tickets, backends=backends)
