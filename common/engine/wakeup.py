"""How threads and signals end the sleep of a loop that waits on a descriptor."""

import os
import select


class Wakeup:
    """`ring` is for any thread, and for signal handlers; the rest is for the loop's thread."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._fds = [self._fd]

    def watch(self, fd: int) -> None:
        """Wake when this descriptor is readable, too."""
        self._fds.append(fd)

    def ring(self) -> None:
        """End the sleep that is, or the next one. Not after `close`."""
        os.eventfd_write(self._fd, 1)

    def sleep(self, seconds: float) -> None:
        """Until something is readable, `ring`, or the time has passed.

        By `select`, for poll and epoll know no time shorter than a millisecond.
        """
        readable, _, _ = select.select(self._fds, (), (), max(0.0, seconds))
        if self._fd in readable:
            os.eventfd_read(self._fd)

    def close(self) -> None:
        """Nobody may ring any more."""
        os.close(self._fd)
