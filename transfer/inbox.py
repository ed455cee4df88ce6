"""How other threads reach a thread that waits on file descriptors.

Must not lose a command: what is put is drained, or given back by `close`.
"""

import os
import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """Commands for one thread, and a descriptor that is readable while there may be some.

    Any thread may `put`; the others are for the thread it belongs to.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._commands: deque[T] = deque()
        self._closing = False
        self._fd: int = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        return self._fd

    @property
    def closing(self) -> bool:
        """Somebody asked this thread to end."""
        return self._closing

    def put(self, command: T) -> bool:
        """False: the thread has ended or is about to; it will not see this."""
        with self._lock:
            if self._closing:
                return False
            self._commands.append(command)
            os.eventfd_write(self._fd, 1)
        return True

    def ask_to_end(self) -> None:
        """From any thread. Idempotent."""
        with self._lock:
            self._closing = True
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def drain(self) -> list[T]:
        with self._lock:
            try:
                os.eventfd_read(self._fd)
            except BlockingIOError:  # nobody rang
                return []
            commands = list(self._commands)
            self._commands.clear()
        return commands

    def close(self) -> list[T]:
        """What nobody will do now. Later puts are refused."""
        with self._lock:
            self._closing = True
            os.close(self._fd)
            self._fd = -1
            commands = list(self._commands)
            self._commands.clear()
        return commands
