"""How much memory can still be had, asked before it is taken: whoever takes more than there is
gets some process killed. Must not be asked in a loop: it reads files of the kernel.
"""

from contextlib import suppress
from pathlib import Path

from common.errors import SetupError

_V2 = ("memory.max", "memory.current")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")
_NO_LIMIT = 2**60  # cgroup v1 writes a number beyond this for "no limit"
_ROOT = Path("/")


def available_bytes(root: Path = _ROOT) -> int:
    """The least of what the machine has and what this process's cgroup may still take. Caches of
    files do not count as used, for they give way. `root` holds `proc` and `sys`."""
    table = _numbers((root / "proc/meminfo").read_text())
    if "MemAvailable" not in table:
        raise SetupError("the kernel does not tell how much memory is available")
    limits = [table["MemAvailable"] * 1024]
    for directory, (limit, usage) in _cgroups(root):
        with suppress(OSError, ValueError):  # no such controller, or "max": no limit
            most = int((directory / limit).read_text())
            used = int((directory / usage).read_text())
            files = _numbers((directory / "memory.stat").read_text())
            if most < _NO_LIMIT:
                cached = files.get("active_file", 0) + files.get("inactive_file", 0)
                limits.append(most - used + cached)
    return max(0, min(limits))


def _cgroups(root: Path) -> list[tuple[Path, tuple[str, str]]]:
    """Directories that may limit this process, each with the names of its two files. In a
    container the own group is often the root of what can be seen, whatever the path says."""
    mount = root / "sys/fs/cgroup"
    places = [(mount, _V2), (mount / "memory", _V1)]
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                places.append((mount / path.lstrip("/"), _V2))
            elif "memory" in controllers.split(","):
                places.append((mount / "memory" / path.lstrip("/"), _V1))
    return places


def _numbers(text: str) -> dict[str, int]:
    """The first number of each line of a kernel's table, by the line's name."""
    table: dict[str, int] = {}
    for line in text.splitlines():
        words = line.replace(":", " ").split()
        if len(words) > 1 and words[1].isdigit():
            table[words[0]] = int(words[1])
    return table
