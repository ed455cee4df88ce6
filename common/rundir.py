"""The run directory: where processes of one host and one user find each other's sockets.

Must hold only names that vanish with their owners: no data.
"""

import errno
import fcntl
import os
import re
import shutil
import socket
import stat
import tempfile
import time
import uuid
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from common.errors import SetupError
from common.ids import HostId, InstanceId

SHORT_INSTANCE = 12  # characters that `wire` and `transfer` name their sockets by, and a kind
_MAX_PATH_BYTES = 107  # of a Unix socket's address, its ending NUL aside
_PREFIX = "baton-"
_NEW_S = 60.0  # younger than that, nobody may have got to lock it yet
_SOCKET = re.compile(rf"[0-9a-f]{{{SHORT_INSTANCE}}}\.(ctl|cuda|gws|pages|sta)")
_SHARED = re.compile(rf"[0-9a-f]{{{SHORT_INSTANCE}}}\.shared")  # of gateways: see `launch.gateways`
_LEFT = re.compile(rf"{_SOCKET.pattern}|{_SHARED.pattern}|weights-[0-9a-f]+\.(held|lock|sock)")
_TEMPORARY = re.compile(rf"{_PREFIX}[a-z0-9_]{{8}}")  # as `tempfile` names it
_PRIVATE = 0o700  # mode
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def host_id() -> HostId:
    """Equal for two processes exactly if they run on one kernel, see one tree of files and are
    the same user's: then one can reach the other's socket file, and is let in."""
    try:
        boot = _BOOT_ID.read_text().strip()
        spaces = [str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in ("mnt", "user")]
    except OSError:
        return HostId(uuid.uuid4().hex)  # equal to nobody's: always right, never fast
    numbers = [space.partition("[")[2].rstrip("]") for space in spaces]
    return HostId("-".join((boot, *numbers, str(os.geteuid()))))


@contextmanager
def temporary() -> Generator[Path]:
    """One's own for as long as one lives, among the temporary files. Those of processes that were
    killed go first, where they hold just what these leave: its lock is what tells a living one's,
    and the kernel lets go of it."""
    try:
        _remove_abandoned(Path(tempfile.gettempdir()))
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
    except OSError as error:
        raise SetupError(
            f"no temporary directory can be made for sockets ({error.strerror}): give --run-dir, "
            "or the variable TMPDIR"
        ) from error
    try:
        with _locked(path):
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _remove_abandoned(parent: Path) -> None:
    for path in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another's, locked, no directory, or another was faster
            if _TEMPORARY.fullmatch(path.name) and _is_ours_and_old(path.lstat()):
                with _locked(path):
                    _remove_run_dir(path)


def _remove_run_dir(path: Path) -> None:
    """Unless it is only called like one, or more is in it: then all of it stays. Raises OSError."""
    if path.stat().st_mode & 0o777 != _PRIVATE:  # as it was made
        return
    left = list(path.iterdir())
    if not left or any(_LEFT.fullmatch(one.name) is None for one in left):
        return
    for one in left:
        if _SHARED.fullmatch(one.name):
            _remove_shared(one)
        else:
            one.unlink()
    path.rmdir()


def _is_ours_and_old(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and time.time() - found.st_mtime > _NEW_S


@contextmanager
def _locked(path: Path) -> Generator[None]:
    """Raises OSError where another process has it."""
    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(held)


def make_private(run_dir: Path) -> None:
    """Create it, mode 0700. Raises SetupError where others could get in."""
    try:
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = run_dir.stat()
    except OSError as error:
        raise SetupError(f"run directory {run_dir}: {error.strerror}") from error
    check_private(run_dir, found)


def check_private(run_dir: Path, found: os.stat_result) -> None:
    """Raises SetupError where that directory, as it was found, is not one's own, to be used, and
    closed to others."""
    if not stat.S_ISDIR(found.st_mode):
        raise SetupError(f"run directory {run_dir}: {os.strerror(errno.ENOTDIR)}")
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise SetupError(
            f"run directory {run_dir} must be yours alone (owner {found.st_uid}, mode "
            f"{found.st_mode & 0o777:o}; needed: owner {os.geteuid()}, mode 700)"
        )
    if not os.access(run_dir, os.R_OK | os.W_OK | os.X_OK):
        raise SetupError(f"run directory {run_dir}: its owner may not write there")


def check_run_dir(given: str | None) -> None:
    """Raises SetupError where a server could not use that directory (None: a temporary one), as far
    as that is known without making it."""
    try:
        run_dir = Path(given or tempfile.gettempdir(), "" if given else f"{_PREFIX}12345678")
        if run_dir.exists():
            check_private(run_dir, run_dir.stat())
        elif not os.access(next(one for one in run_dir.parents if one.exists()), os.W_OK | os.X_OK):
            raise SetupError(f"run directory {run_dir}: it cannot be made there")
    except OSError as error:
        raise SetupError(f"run directory {given or ''}: {error.strerror}") from error
    _check_length(run_dir / f"{'0' * SHORT_INSTANCE}.pages")


def make_clean(run_dir: Path) -> None:
    """One that stays when its processes have ended: made private, and what those have left in it
    that were killed is removed. Nothing is that lives, is new, or has another name than ours have.
    Raises SetupError as `make_private` does."""
    make_private(run_dir)
    living: set[str] = set()
    for path in [path for path in run_dir.iterdir() if _SOCKET.fullmatch(path.name)]:
        with suppress(OSError):  # another was faster
            found = path.lstat()
            if stat.S_ISSOCK(found.st_mode) and _is_ours_and_old(found) and not _is_bound(path):
                path.unlink()
            else:
                living.add(path.stem)
    for path in [path for path in run_dir.iterdir() if _SHARED.fullmatch(path.name)]:
        with suppress(OSError):  # the same; or there is more in it than ours, which stays
            found = path.lstat()
            if path.stem not in living and stat.S_ISDIR(found.st_mode) and _is_ours_and_old(found):
                _remove_shared(path)


def _is_bound(path: Path) -> bool:
    """Some process has that socket. No connection is made: none of ours is of the kind asked for,
    and the system tells of another kind only where there is one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
    return True


def _remove_shared(path: Path) -> None:
    for file in (path / "places", *(path / "metrics").glob("*.db")):
        file.unlink(missing_ok=True)
    (path / "metrics").rmdir()
    path.rmdir()


def remove_sockets(run_dir: Path, instance: InstanceId) -> None:
    """Those of a process that has ended, however: killed, it leaves them behind."""
    for path in run_dir.glob(f"{instance[:SHORT_INSTANCE]}.*"):
        path.unlink(missing_ok=True)


def socket_file(run_dir: Path, name: str) -> Path:
    """Where a Unix socket of that name lies. Raises SetupError: no private directory, long path."""
    make_private(run_dir)
    path = run_dir / name
    _check_length(path)
    return path


def _check_length(path: Path) -> None:
    n_bytes = len(os.fsencode(path))
    if n_bytes > _MAX_PATH_BYTES:
        raise SetupError(
            f"{path}: {n_bytes} bytes are too many for a Unix socket's path "
            f"({_MAX_PATH_BYTES}): choose a shorter run directory"
        )
