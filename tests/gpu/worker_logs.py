"""What workers have said, as far as it helps to find a cause."""

import subprocess
from contextlib import suppress
from pathlib import Path

from tests.gpu.rows import say

TOLD = (
    "gpu_memory", "captured_graphs", "pages_come_by", "pages_come_otherwise", "warmed_up", "loaded",
    "memory", "weights_shared", "weights_not_shared",
)  # fmt: skip
LAST_LINES = 6


def say_logs(directory: Path) -> None:
    """Of the logs there: how memory was divided, how pages came, what went wrong, and the end."""
    for path in sorted(directory.glob("*.log")):
        lines = path.read_text().splitlines()
        say(f"{path.stem} said, among {len(lines)} lines:")
        for n, line in enumerate(lines):
            if _is_telling(line) or n >= len(lines) - LAST_LINES:
                say(f"  {line}")


def say_memory() -> None:
    """What the device says that each process has taken."""
    command = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
        say(f"memory by process: {'; '.join(done.stdout.splitlines())}")


def _is_telling(line: str) -> bool:
    is_told = any(f"event={event} " in line for event in TOLD)
    is_trouble = "level=warning" in line or "level=error" in line
    return is_told or is_trouble or line.startswith(("Traceback", " "))
