"""How many files this process may have open: each connection is one.

Shells give 1,024 where the system allows hundreds of times more. Must not raise what is enough.
"""

import resource

ENOUGH = 65_536


def open_files() -> int:
    """That `raise_open_files` makes of it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = ENOUGH if hard == resource.RLIM_INFINITY else min(ENOUGH, hard)
    return max(soft, most) if soft != resource.RLIM_INFINITY else ENOUGH


def raise_open_files() -> None:
    """Of this process and of those that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < open_files():
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files(), hard))
