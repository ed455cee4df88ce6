"""The run directory: where processes of one host and one user find each other's sockets.

Must hold only names that vanish with their owners: no data.
"""

import os
from pathlib import Path

from common.errors import SetupError

_MAX_PATH_BYTES = 107  # of a Unix socket's address, its ending NUL aside


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
