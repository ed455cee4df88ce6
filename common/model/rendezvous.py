"""One file descriptor a key, made once a host and handed from process to process.

Every process that has the descriptor is a holder. One holder, owner of an exclusive lock, serves
it on a Unix socket; the others stand by for the lock, so that when the server dies, however it
dies, another serves the same descriptor. The last holder's death frees everything but two empty
lock files. Must not know what the descriptor refers to.

    <key>.lock  flock EX  held by the server, and by who makes the descriptor; names its process
    <key>.held  flock SH  held by every holder, and by who asks for the descriptor; whoever gets
                          it EX for a moment knows that there is no holder left to wait for
    <key>.sock            where the server hands the descriptor over (SCM_RIGHTS)
"""

import fcntl
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from common.errors import SetupError
from common.rundir import make_private

_MAX_PATH_BYTES = 107  # of a Unix socket's address, its ending NUL aside
_ASK_TIMEOUT_S = 2.0
_RETRY_S = 0.05  # between a newcomer's tries
_STANDBY_S = 0.25  # between a holder's looks at the lock


class Rendezvous:
    """A process's part in one key. Use once: `obtain`, then `close` (or die)."""

    def __init__(self, run_dir: Path, key: str) -> None:
        """Creates `run_dir`, mode 0700. Raises `SetupError` where that cannot be private."""
        make_private(run_dir)
        self._path = run_dir / f"{key}.sock"
        n_bytes = len(os.fsencode(self._path))
        if n_bytes > _MAX_PATH_BYTES:
            raise SetupError(
                f"{self._path}: {n_bytes} bytes are too many for a Unix socket's path "
                f"({_MAX_PATH_BYTES}): choose a shorter run directory"
            )
        self._lock = _open_lock(run_dir / f"{key}.lock")
        self._held = _open_lock(run_dir / f"{key}.held")
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._listener: socket.socket | None = None

    def obtain(self, make: Callable[[], int], waiting: Callable[[int], None]) -> int:
        """The descriptor: a holder's, or else `make()`'s, called in one process at a time.

        While another process makes it, `waiting` is called with that process's id. If it fails
        there, this one takes over; an error of `make` here is raised here: then `close`.
        """
        while True:
            fd = self._ask()
            if fd is not None:
                self._stand_by(fd)
                return fd
            if self._try_first():
                fd = make()
                self._stand_by(fd)
                return fd
            waiting(_owner(self._lock))
            time.sleep(_RETRY_S)

    def close(self) -> None:
        """Stop serving and standing by. The caller's descriptor and its mappings stay good.

        Idempotent.
        """
        if self._closing.is_set():
            return
        self._closing.set()
        if self._listener is not None:
            with suppress(OSError):  # already closed
                self._listener.shutdown(socket.SHUT_RDWR)  # ends a waiting accept()
        if self._thread is not None:
            self._thread.join()
        os.close(self._lock)
        os.close(self._held)

    def _ask(self) -> int | None:
        """The server's descriptor, holding `held` shared; None, not holding it, without server."""
        if not _flock(self._held, fcntl.LOCK_SH):
            return None  # somebody is about to become the first
        fd = _receive(self._path)
        if fd is None:
            fcntl.flock(self._held, fcntl.LOCK_UN)
        return fd

    def _try_first(self) -> bool:
        """Take the lock if nobody serves, and nobody is left who will."""
        if not _flock(self._lock, fcntl.LOCK_EX):
            return False
        if not _flock(self._held, fcntl.LOCK_EX):  # a holder has yet to notice that it must serve
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            return False
        fcntl.flock(self._held, fcntl.LOCK_SH)
        _sign(self._lock)
        return True

    def _stand_by(self, fd: int) -> None:
        own_fd = os.dup(fd)  # so that the caller may close its own
        self._thread = threading.Thread(
            target=self._serve, args=(own_fd,), name="weights-server", daemon=True
        )
        self._thread.start()

    def _serve(self, fd: int) -> None:
        try:
            while not _flock(self._lock, fcntl.LOCK_EX):  # ours already if we made it
                if self._closing.wait(_STANDBY_S):
                    return
            _sign(self._lock)
            self._path.unlink(missing_ok=True)  # left by a server that was killed
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind(os.fspath(self._path))
                listener.listen(64)
                self._listener = listener
                while not self._closing.is_set():
                    self._hand_over(listener, fd)
            self._path.unlink(missing_ok=True)
        finally:  # whatever the reason: nobody must wait for a server that is none
            os.close(fd)
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            fcntl.flock(self._held, fcntl.LOCK_UN)

    def _hand_over(self, listener: socket.socket, fd: int) -> None:
        try:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(_ASK_TIMEOUT_S)
                socket.send_fds(connection, [b"1"], [fd])
        except OSError:  # the asker is gone, close() ended the accept, or no descriptors are left
            self._closing.wait(_RETRY_S)


def _receive(path: Path) -> int | None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_ASK_TIMEOUT_S)
        try:
            connection.connect(os.fspath(path))
            _, fds, _, _ = socket.recv_fds(connection, 1, 1, socket.MSG_CMSG_CLOEXEC)
        except OSError:  # no server, or it died just now
            return None
    return fds[0] if fds else None


def _open_lock(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SetupError(f"{path}: {error.strerror}") from error


def _flock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sign(lock: int) -> None:
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)


def _owner(lock: int) -> int:
    """Process id of who signed last; 0 in the moment before it signs."""
    text = os.pread(lock, 20, 0)
    return int(text) if text.isdigit() else 0
