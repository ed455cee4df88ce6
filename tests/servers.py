"""`baton serve` as a user starts it, seen from outside: what it says, and what it leaves behind."""

import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from os import kill
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

START_S = 120.0
STOP_S = 15.0
_SHM = Path("/dev/shm")
_PROC = Path("/proc")
_MARK = "BELONGS_TO_TEST"  # in the environment of the server, and so of all that it starts
_TAIL_CHARS = 4000


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server's process, and all that it started."""

    url: str
    port: int
    process: "subprocess.Popen[bytes]"
    log_path: Path  # stdout and stderr, its workers' too
    tmp: Path  # where its temporary files are
    mark: str = field(repr=False)
    shm_before: frozenset[str] = field(repr=False)

    def log(self) -> str:
        """All that it has said so far."""
        return self.log_path.read_text("utf-8", "replace")

    def refusal(self) -> str:
        """That, but for the line that tells where kernels are not compiled."""
        lines = self.log().splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("baton: warning: kernels: "))

    def tail(self) -> str:
        """The end of that, for a failing test's message."""
        return f"log:\n{self.log()[-_TAIL_CHARS:]}"

    def processes(self) -> list[int]:
        """Ids of the living processes that it is made of, its own first."""
        return sorted(_marked(self.mark), key=lambda pid: (pid != self.process.pid, pid))

    def workers(self, role: str) -> list[int]:
        """Ids of the processes of one pool, oldest first."""
        return [pid for pid in self.processes() if f"{role}.worker" in _command(pid)]

    def gateways(self) -> list[int]:
        """Ids of the processes that share its port, oldest first; empty: it takes connections."""
        return [pid for pid in self.processes() if "launch.gateway.process" in _command(pid)]

    def wait_until_ready(self, within_s: float = START_S) -> None:
        """Until GET /ready says 200. Fails at once if the process ends."""
        deadline = time.monotonic() + within_s
        while not self.is_ready():
            code = self.process.poll()
            assert code is None, f"it ended with {code} before it was ready; {self.tail()}"
            assert time.monotonic() < deadline, f"not ready after {within_s} s; {self.tail()}"
            time.sleep(0.1)

    def is_ready(self) -> bool:
        with suppress(URLError, OSError), urlopen(f"{self.url}/ready", timeout=5) as answer:
            return bool(answer.status == 200)
        return False

    def wait(self, within_s: float = STOP_S) -> int:
        """Its exit code."""
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it still runs after {within_s} s; {self.tail()}") from None

    def stop(self, number: signal.Signals = signal.SIGINT, within_s: float = STOP_S) -> int:
        """Tell it to stop, if it runs. Its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait(within_s)

    def assert_nothing_left(self, within_s: float = 0.0) -> None:
        """Of a server that has ended: no process, no temporary file, nothing in /dev/shm."""
        deadline = time.monotonic() + within_s
        while (left := self._left()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not left, f"left behind: {left}; {self.tail()}"

    def _left(self) -> list[str]:
        processes = [f"process {pid}: {_command(pid)}" for pid in self.processes()]
        files = [str(path) for path in self.tmp.iterdir()]
        return processes + files + self.shared_memory()

    def shared_memory(self) -> list[str]:
        """What has come into /dev/shm since its start, and nobody who lives uses."""
        shared = [f"/dev/shm/{name}" for name in _shm_names() - self.shm_before]
        others = _mapped_by_the_living() if shared else set[str]()
        return [path for path in shared if path not in others]


@contextmanager
def serving(model: Path, *args: str) -> Iterator[RunningServer]:
    """A server on a free port, from ready to gone: SIGINT, exit code 0, nothing left behind."""
    with launched(model, *args) as server:
        server.wait_until_ready()
        yield server
        code = server.stop()
        assert code == 0, f"exit code {code}; {server.tail()}"
        server.assert_nothing_left()


@contextmanager
def launched(model: Path, *args: str) -> Iterator[RunningServer]:
    """The same, neither awaited nor stopped in good order: in the end what lives is killed."""
    port = free_port()
    argv = ["serve", "--model", str(model), "--port", str(port), *args]
    with baton(argv, port=port) as server:
        yield server


@contextmanager
def baton(argv: Sequence[str], *, port: int = 0) -> Iterator[RunningServer]:
    """The command, with temporary files of its own; `port` is the one that `argv` names."""
    with tempfile.TemporaryDirectory(prefix="bt-") as home:
        tmp, log_path = Path(home, "t"), Path(home, "log")
        tmp.mkdir()
        mark = uuid.uuid4().hex
        shm_before = frozenset(_shm_names())
        with log_path.open("wb") as log:
            set_variables = ["env", f"{_MARK}={mark}", f"TMPDIR={tmp}"]
            process = subprocess.Popen(
                [*set_variables, sys.executable, "-P", "-m", "launch.cli", *argv],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        url = f"http://127.0.0.1:{port}"
        try:
            yield RunningServer(url, port, process, log_path, tmp, mark, shm_before)
        finally:
            for pid in _marked(mark):
                with suppress(ProcessLookupError):
                    kill(pid, signal.SIGKILL)
            process.wait()


def free_port() -> int:
    """One that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _marked(mark: str) -> list[int]:
    """Living processes with that mark; who has ended but was not waited for has no environment."""
    wanted = f"{_MARK}={mark}".encode()
    return [pid for pid in _pids() if wanted in _read(pid, "environ").split(b"\0")]


def _command(pid: int) -> str:
    return _read(pid, "cmdline").replace(b"\0", b" ").decode("utf-8", "replace").strip()


def _pids() -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]


def _read(pid: int, name: str) -> bytes:
    with suppress(OSError):
        return (_PROC / str(pid) / name).read_bytes()
    return b""


def _shm_names() -> set[str]:
    return {entry.name for entry in _SHM.iterdir()}


def _mapped_by_the_living() -> set[str]:
    """Files of /dev/shm that some process uses: those of other programs on this machine."""
    found: set[str] = set()
    for pid in _pids():
        for line in _read(pid, "maps").decode("utf-8", "replace").splitlines():
            if "/dev/shm/" in line:
                found.add(line[line.index("/dev/shm/") :].removesuffix(" (deleted)"))
        with suppress(OSError):
            for descriptor in (_PROC / str(pid) / "fd").iterdir():
                with suppress(OSError):
                    found.add(str(descriptor.readlink()))
    return found
