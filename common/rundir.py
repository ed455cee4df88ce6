"""The run directory: where processes of one host and one user find each other's sockets.

Must hold only names that vanish with their owners: no data.
"""

import os
import uuid
from pathlib import Path

from common.errors import SetupError
from common.ids import HostId, InstanceId

SHORT_INSTANCE = 12  # characters that `wire` and `transfer` name their sockets by, and a kind
_MAX_PATH_BYTES = 107  # of a Unix socket's address, its ending NUL aside
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


def make_private(run_dir: Path) -> None:
    """Create it, mode 0700. Raises SetupError where others could get in."""
    try:
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        stat = run_dir.stat()
    except OSError as error:
        raise SetupError(f"run directory {run_dir}: {error.strerror}") from error
    if stat.st_uid != os.geteuid() or stat.st_mode & 0o077:
        raise SetupError(
            f"run directory {run_dir} must be yours alone (owner {stat.st_uid}, mode "
            f"{stat.st_mode & 0o777:o}; needed: owner {os.geteuid()}, mode 700)"
        )


def remove_sockets(run_dir: Path, instance: InstanceId) -> None:
    """Those of a process that has ended, however: killed, it leaves them behind."""
    for path in run_dir.glob(f"{instance[:SHORT_INSTANCE]}.*"):
        path.unlink(missing_ok=True)


def socket_file(run_dir: Path, name: str) -> Path:
    """Where a Unix socket of that name lies. Raises SetupError: no private directory, long path."""
    make_private(run_dir)
    path = run_dir / name
    n_bytes = len(os.fsencode(path))
    if n_bytes > _MAX_PATH_BYTES:
        raise SetupError(
            f"{path}: {n_bytes} bytes are too many for a Unix socket's path "
            f"({_MAX_PATH_BYTES}): choose a shorter run directory"
        )
    return path
