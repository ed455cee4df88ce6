"""How much memory can still be had, asked before it is taken: whoever takes more than there is
gets some process killed; and how much of the CPUs' time. Must not be asked in a loop: it reads
files of the kernel.
"""

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path

from common.errors import SetupError

_V2 = ("memory.max", "memory.current")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")
_CPU_V2 = "cpu.max"
_CPU_V1 = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
_NO_LIMIT = 2**60  # cgroup v1 writes a number beyond this for "no limit"
_ROOT = Path("/")


def available_bytes(root: Path = _ROOT) -> int:
    """The least of what the machine has and what this process's cgroup may still take. Caches of
    files do not count as used, for they give way. `root` holds `proc` and `sys`."""
    table = _numbers((root / "proc/meminfo").read_text())
    if "MemAvailable" not in table:
        raise SetupError("the kernel does not tell how much memory is available")
    limits = [table["MemAvailable"] * 1024]
    for directory, (limit, usage) in product(_directories(root, "memory"), (_V2, _V1)):
        with suppress(OSError, ValueError):  # no such controller, or "max": no limit
            most = int((directory / limit).read_text())
            used = int((directory / usage).read_text())
            files = _numbers((directory / "memory.stat").read_text())
            if most < _NO_LIMIT:
                cached = files.get("active_file", 0) + files.get("inactive_file", 0)
                limits.append(most - used + cached)
    return max(0, min(limits))


def usable_cpus(root: Path = _ROOT) -> list[int]:
    """CPUs that this process may run on, ascending; see `within_quota`."""
    return within_quota(sorted(os.sched_getaffinity(0)), cpu_quota(root))


def within_quota(cpus: Sequence[int], quota: float | None) -> list[int]:
    """The first of them, where a cgroup gets less time than they have: more threads than that would
    stand still for a part of each period."""
    return list(cpus if quota is None else cpus[: max(1, math.ceil(quota))])


def cpu_quota(root: Path = _ROOT) -> float | None:
    """CPUs' time that this process's cgroup gets, 0.5 being half of one; None: no limit."""
    quotas: list[float] = []
    for directory in _directories(root, "cpu"):
        with suppress(OSError, ValueError):  # no such controller, or "max"
            quota, period = (directory / _CPU_V2).read_text().split()
            quotas.append(int(quota) / int(period))
        with suppress(OSError, ValueError):
            quota, period = ((directory / name).read_text() for name in _CPU_V1)
            if int(quota) > 0:  # -1: no limit
                quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _directories(root: Path, controller: str) -> list[Path]:
    """Those of cgroups that may limit this process. In a container the own group is often the root
    of what can be seen, whatever the path says."""
    mount = root / "sys/fs/cgroup"
    places = [mount, mount / controller]
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                places.append(mount / path.lstrip("/"))
            elif controller in controllers.split(","):
                places.append(mount / controller / path.lstrip("/"))
    return places


def _numbers(text: str) -> dict[str, int]:
    """The first number of each line of a kernel's table, by the line's name."""
    table: dict[str, int] = {}
    for line in text.splitlines():
        words = line.replace(":", " ").split()
        if len(words) > 1 and words[1].isdigit():
            table[words[0]] = int(words[1])
    return table
