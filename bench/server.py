"""A `baton serve` of this checkout, started and stopped around a measurement.

Knows its command line, its HTTP and its processes alone. Must not measure.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

START_S = 120.0
STOP_S = 30.0
_TAIL_CHARS = 2000
_PROC = Path("/proc")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Server:
    """One that is running on this host."""

    url: str
    pid: int  # of the gateway, whose children the workers are

    def pin_gateway(self, cpus: Collection[int]) -> None:
        """Its workers are pinned by their own flags."""
        for thread in (_PROC / str(self.pid) / "task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), cpus)

    def cpu_seconds(self) -> dict[str, float]:
        """Used so far, by process: "gateway", "prefill.worker", "decode.worker", and "client" for
        this one. Of several workers of a role, the last."""
        pids = {"client": os.getpid(), "gateway": self.pid, **self._workers()}
        return {name: _cpu_seconds(pid) for name, pid in pids.items()}

    def _workers(self) -> dict[str, int]:
        children = _PROC / str(self.pid) / "task" / str(self.pid) / "children"
        found: dict[str, int] = {}
        for pid in map(int, children.read_text().split()):
            command = (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace")
            for role in ("prefill", "decode"):
                if f"{role}.worker" in command:
                    found[f"{role}.worker"] = pid
        return found


@contextmanager
def running(flags: Sequence[str]) -> Iterator[Server]:
    """From ready to gone.

    Raises RuntimeError, with the end of its log, where it does not become ready.
    """
    port = _free_port()
    command = [sys.executable, "-P", "-m", "launch.cli", "serve", *flags, "--port", str(port)]
    with tempfile.TemporaryDirectory() as home:
        log = Path(home) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(url, process, log)
            yield Server(url, process.pid)
        finally:
            _stop(process)


def _wait_until_ready(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(URLError, OSError), urlopen(f"{url}/ready", timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.1)
    raise RuntimeError(f"the server is not ready:\n{log.read_text()[-_TAIL_CHARS:]}")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """In good order; its workers end with it in any case."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _cpu_seconds(pid: int) -> float:
    fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S
