"""A server's processes from outside: found, struck, and looked at through /proc.

Connections of a worker are dropped by a copy of its own descriptors, which the system gives to
whoever may debug it, such as the process that started it. Must not choose whom to strike.
"""

import ctypes
import errno
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.chaos.plan import Worker

_PROC = Path("/proc")
_SHM = Path("/dev/shm")
_PIDFD_GETFD = 438  # of all architectures; Linux 5.6
_CONNECTED = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)
_NETWORKS = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
_KIB = 1024


def workers(gateway: int) -> list[Worker]:
    """Those that this server has started and that live, joined or not."""
    return [
        Worker(role, pid, command[command.index("--instance") + 1])
        for pid in _children(gateway)
        if "--instance" in (command := _command(pid))
        for role in ("prefill", "decode")
        if f"{role}.worker" in command
    ]


class Victim:
    """A worker's process, which may end meanwhile: nothing else is ever struck in its place."""

    def __init__(self, pid: int) -> None:
        """Raises ProcessLookupError where there is none."""
        self._pid = pid
        self._pidfd = os.pidfd_open(pid)

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    @property
    def can_be_cut(self) -> bool:
        """The system lets us drop its connections."""
        copy = self._copy(0)
        if copy >= 0:
            os.close(copy)
        return copy >= 0 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS)

    def drop_connections(self) -> int:
        """How many: all that it has with other processes, to which they look as ended by the other
        side. What it listens to, and pairs of sockets within it, stay."""
        return sum(map(_dropped, self._sockets()))

    def _sockets(self) -> Iterator[socket.socket]:
        for number in _descriptors(self._pid):
            with suppress(OSError):  # it is closed by now
                target = (_PROC / str(self._pid) / "fd" / str(number)).readlink()
                if str(target).startswith("socket:") and (copy := self._copy(number)) >= 0:
                    with socket.socket(fileno=copy) as own:
                        yield own

    def _copy(self, number: int) -> int:
        """Our own descriptor of what that one of the process is. Below 0: `errno` tells why not."""
        return int(_libc.syscall(_PIDFD_GETFD, self._pidfd, number, 0))

    def close(self) -> None:
        os.close(self._pidfd)


_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def victim(pid: int) -> Iterator[Victim | None]:
    """None: there is no such process any more."""
    try:
        found = Victim(pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield found
    finally:
        found.close()


def _dropped(own: socket.socket) -> bool:
    with suppress(OSError):  # it is not connected, or not any more
        listens = own.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if own.family in _NETWORKS and own.type in _CONNECTED and not listens:
            named = own.getpeername() or own.getsockname()
            if named:  # else it is half of a pair
                own.shutdown(socket.SHUT_RDWR)
                return True
    return False


# --- what is there -------------------------------------------------------------------------------


def anonymous_bytes(pid: int) -> int:
    """Memory of its own. 0: it has ended."""
    with suppress(OSError):
        for row in (_PROC / str(pid) / "status").read_text().splitlines():
            if row.startswith("RssAnon:"):
                return int(row.split()[1]) * _KIB
    return 0


def n_descriptors(pid: int) -> int:
    """Open ones. 0: it has ended."""
    return len(_descriptors(pid))


def shared_names() -> frozenset[str]:
    """Segments of shared memory that have a name."""
    return frozenset(entry.name for entry in _SHM.iterdir())


def orphans(names: frozenset[str]) -> list[str]:
    """Of named segments, those that no living process maps."""
    if not names:
        return []
    mapped = "".join(_maps(pid) for pid in _processes())
    return [f"/dev/shm/{name}" for name in sorted(names) if f"/dev/shm/{name}" not in mapped]


def started_by(gateway: int) -> list[str]:
    """Living processes that are a worker of that server, be it gone itself."""
    parent = ["--parent", str(gateway)]
    found: list[str] = []
    for pid in _processes():
        command = _command(pid)
        if command[-2:] == parent:
            found.append(f"process {pid}: {' '.join(command)}")
    return found


def _processes() -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]


def _maps(pid: int) -> str:
    with suppress(OSError):
        return (_PROC / str(pid) / "maps").read_text(errors="replace")
    return ""


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [
            int(child)
            for child in (_PROC / str(pid) / "task" / str(pid) / "children").read_text().split()
        ]
    return []


def _command(pid: int) -> list[str]:
    """Empty: it has ended, whether or not somebody has taken note."""
    with suppress(OSError):
        return (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    return []


def _descriptors(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(entry.name) for entry in (_PROC / str(pid) / "fd").iterdir()]
    return []
