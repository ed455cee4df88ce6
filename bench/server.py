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

from bench.footprint import process_seconds, workers

START_S = 300.0
STOP_S = 30.0
_TAIL_CHARS = 2000
_PROC = Path("/proc")


class NotReady(Exception):
    """It does not start; the message is the end of its log."""


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
        """Used so far, by process: "gateway", "prefill-0", "decode-0", ..., and "client" for this
        one."""
        pids = {"client": os.getpid(), "gateway": self.pid, **workers(self.pid)}
        return {name: process_seconds(pid) for name, pid in pids.items()}


@contextmanager
def running(flags: Sequence[str], log: Path | None = None) -> Iterator[Server]:
    """From ready to gone. `log`: where to keep what it says.

    Raises NotReady where it does not become ready.
    """
    port = free_port()
    command = [sys.executable, "-P", "-m", "launch.cli", "serve", *flags, "--port", str(port)]
    with tempfile.TemporaryDirectory() as home:
        log = log or Path(home) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            url = f"http://127.0.0.1:{port}"
            if not wait_until(f"{url}/ready", process):
                raise NotReady(f"the server is not ready:\n{log.read_text()[-_TAIL_CHARS:]}")
            yield Server(url, process.pid)
        finally:
            _stop(process)


def wait_until(answers: str, process: "subprocess.Popen[bytes]") -> bool:
    """Until that URL answers 200. False: the process has ended, or `START_S` have passed."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(URLError, OSError), urlopen(answers, timeout=5) as answer:
            if answer.status == 200:
                return True
        time.sleep(0.1)
    return False


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """In good order; its workers end with it in any case."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
