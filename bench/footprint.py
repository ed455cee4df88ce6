"""What a server's processes cost: CPU seconds by who spends them, and memory. Reads /proc alone.

A worker's first thread and ZeroMQ's own threads are its control plane; the others compute or copy
pages. Of the gateway everything is.
"""

import os
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_IO_THREADS = "ZMQbg"  # as ZeroMQ names its own


@dataclass(frozen=True, slots=True)
class CpuSeconds:
    """Since the processes began."""

    gateway: float
    control: float  # of the workers
    compute: float

    def __sub__(self, earlier: "CpuSeconds") -> "CpuSeconds":
        return CpuSeconds(
            self.gateway - earlier.gateway,
            self.control - earlier.control,
            self.compute - earlier.compute,
        )

    @property
    def overhead(self) -> float:
        """The part, 0 to 1, that computes nothing."""
        total = self.gateway + self.control + self.compute
        return (self.gateway + self.control) / total if total else 0.0


def workers(gateway: int) -> dict[str, int]:
    """Process ids of a server's own workers, by role and number ("decode-0")."""
    found: dict[str, int] = {}
    for pid, command in _children(gateway):
        for role in ("prefill", "decode"):
            if f"{role}.worker" in command:
                found[f"{role}-{sum(name.startswith(role) for name in found)}"] = pid
    return found


def gateways(server: int) -> list[int]:
    """Process ids of a server's gateways: its own where it has one, else its children's."""
    return [pid for pid, command in _children(server) if "launch.gateway" in command] or [server]


def _children(parent: int) -> list[tuple[int, str]]:
    """Each one's process id, and how it was started."""
    told = (_PROC / str(parent) / "task" / str(parent) / "children").read_text()
    return [
        (int(pid), (_PROC / pid / "cmdline").read_bytes().decode(errors="replace"))
        for pid in told.split()
    ]


def cpu_seconds(gateway: int) -> CpuSeconds:
    """Of a server: the process `gateway` and its workers."""
    control = compute = 0.0
    for pid in workers(gateway).values():
        for thread in (_PROC / str(pid) / "task").iterdir():
            if int(thread.name) == pid or (thread / "comm").read_text().startswith(_IO_THREADS):
                control += _seconds(thread)
            else:
                compute += _seconds(thread)
    return CpuSeconds(process_seconds(gateway), control, compute)


def process_seconds(pid: int) -> float:
    """CPU time of one process, all its threads together."""
    return _seconds(_PROC / str(pid))


def memory_bytes(pid: int) -> dict[str, int]:
    """Of one process: `private`, and `shared` (its proportional part of what others map too)."""
    fields: dict[str, int] = {}
    for row in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()[1:]:
        name, value, *_ = row.split()
        fields[name.rstrip(":")] = int(value) * 1024
    private = fields["Private_Clean"] + fields["Private_Dirty"]
    return {"private": private, "shared": fields["Pss"] - private}


def _seconds(path: Path) -> float:
    fields = (path / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S
