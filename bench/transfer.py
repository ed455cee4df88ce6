"""How fast pages are pulled, beside how fast this machine copies memory at the same moment.

    python -m bench.transfer [--transports shm tcp tcp+curve] [--pages 1 24 128]
        [--page-bytes 368640]

Owner and reader are two processes; pages lie at random places on both sides. Pulls and plain
copies of as many bytes alternate, so both see the same machine. `tcp+curve`: with a key, so that
all is encrypted. The last line is JSON. Drives `transfer.open` only.
"""

import argparse
import ctypes
import json
import random
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import msgspec

from bench.flag_types import Parser, positive
from bench.program import exit_status
from common.curve import MIN_SECRET_BYTES, read_key
from common.ids import InstanceId, PageId
from common.messages import RegionKey
from common.rundir import host_id
from transfer.api import Copy, Status
from transfer.memory import SharedPages
from transfer.open import Name, open_transport
from transfer.transport import PageTransport

TRANSPORTS = ("shm", "tcp", "tcp+curve")
_WITH_KEY = "+curve"
_KEY_FILE = "key"  # in the run directory, of both
_N_PAGES = 512  # far beyond any cache
_MIN_S = 1.0  # a measurement goes on until it has lasted this long
_N_WARM = 20  # pulls before it: connections, page tables, buffers


@dataclass(frozen=True, slots=True)
class Row:
    """Times are of single pulls, from the call until woken; rates are of the medians."""

    transport: str
    pages: int
    n_pulls: int
    first_us: float  # with its way there opened, its peer's pages untouched
    p50_us: float
    p99_us: float
    gb_per_s: float
    memcpy_gb_per_s: float
    over_floor: float  # p50 over the median time of the plain copy


class Reader:
    """This process's side: one transport, one region, one peer."""

    def __init__(self, name: str, run_dir: Path, remote: RegionKey, memory: SharedPages) -> None:
        self.woken = threading.Event()
        self.name = name
        self.remote = remote
        self.memory = memory
        self.transport = open_here(name, run_dir, "reader", self.woken.set)
        self.local = self.transport.register(memory)
        self.rng = random.Random(0)
        self.transport.connect(remote)
        while not self.transport.stats().peers:
            time.sleep(0.001)

    def measure(self, n_pages: int) -> Row:
        first_s = self.pull(self.draw(n_pages))
        for _ in range(_N_WARM):
            self.pull(self.draw(n_pages))
        pulls_s: list[float] = []
        copies_s: list[float] = []
        while sum(pulls_s) < _MIN_S:
            copies = self.draw(n_pages)
            pulls_s.append(self.pull(copies))
            copies_s.append(self.copy(copies))
        p50_s, floor_s = statistics.median(pulls_s), statistics.median(copies_s)
        n_gb = n_pages * self.remote.page_bytes / 1e9
        return Row(
            transport=self.name,
            pages=n_pages,
            n_pulls=len(pulls_s),
            first_us=first_s * 1e6,
            p50_us=p50_s * 1e6,
            p99_us=statistics.quantiles(pulls_s, n=100)[-1] * 1e6,
            gb_per_s=n_gb / p50_s,
            memcpy_gb_per_s=n_gb / floor_s,
            over_floor=p50_s / floor_s,
        )

    def draw(self, n_pages: int) -> tuple[Copy, ...]:
        """Random pages of the peer into random pages of the first half."""
        remote = self.rng.sample(range(_N_PAGES), n_pages)
        local = self.rng.sample(range(_N_PAGES // 2), n_pages)
        return tuple(
            Copy(remote=PageId(page), generation=0, local=PageId(to))
            for page, to in zip(remote, local, strict=True)
        )

    def pull(self, copies: tuple[Copy, ...]) -> float:
        """Seconds."""
        began_s = time.perf_counter()
        self.woken.clear()
        ticket = self.transport.pull(self.remote.owner, self.remote, self.local, copies)
        while (status := self.transport.poll(ticket)) is Status.PENDING:
            self.woken.wait()
            self.woken.clear()
        took_s = time.perf_counter() - began_s
        if status is not Status.DONE:
            raise SystemExit(f"a pull failed: {self.transport.why(ticket)}")
        return took_s

    def copy(self, copies: tuple[Copy, ...]) -> float:
        """Seconds that the plain copy of as many pages takes, out of the other half."""
        base, n = self.memory.pages.ctypes.data, self.remote.page_bytes
        half = base + _N_PAGES // 2 * n
        began_s = time.perf_counter()
        for copy in copies:
            ctypes.memmove(base + copy.local * n, half + copy.remote // 2 * n, n)
        return time.perf_counter() - began_s


def open_here(name: str, run_dir: Path, instance: str, wake: Callable[[], None]) -> PageTransport:
    plain = cast("Name", name.removesuffix(_WITH_KEY))
    return open_transport(
        plain,
        instance=InstanceId(instance),
        host=host_id(),
        run_dir=run_dir,
        listen_host="127.0.0.1",
        wake=wake,
        curve=None if name == plain else read_key(str(run_dir / _KEY_FILE)),
    )


def own(name: str, run_dir: Path, page_bytes: int) -> None:
    """The other process: offers its pages until its standard input ends."""
    memory = SharedPages(_N_PAGES, page_bytes)
    memory.pages[:] = 1
    transport = open_here(name, run_dir, "owner", lambda: None)
    print(msgspec.json.encode(transport.register(memory)).decode(), flush=True)
    sys.stdin.read()
    transport.close()


def measure(name: str, memory: SharedPages, sizes: list[int]) -> list[Row]:
    page_bytes = memory.pages.shape[1]
    with tempfile.TemporaryDirectory() as run_dir:
        (Path(run_dir) / _KEY_FILE).write_text(secrets.token_hex(MIN_SECRET_BYTES))
        command = [sys.executable, "-m", "bench.transfer", "--own", run_dir]
        command += ["--transports", name, "--page-bytes", str(page_bytes)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
            if owner.stdout is None or owner.stdin is None:
                raise SystemExit("the owner has no pipes")
            remote = msgspec.json.decode(owner.stdout.readline(), type=RegionKey)
            reader = Reader(name, Path(run_dir), remote, memory)
            rows = [reader.measure(n_pages) for n_pages in sizes]
            reader.transport.close()
            owner.stdin.close()
    return rows


def main(argv: Sequence[str]) -> int:
    """Pull pages by each transport."""
    parser = Parser(prog="python -m bench.transfer", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--transports", nargs="+", default=list(TRANSPORTS), choices=TRANSPORTS)
    parser.add_argument("--pages", nargs="+", type=positive, default=[1, 24, 128])
    parser.add_argument("--page-bytes", type=positive, default=368_640)
    parser.add_argument("--own", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_all(argv)
    if args.own is not None:
        own(args.transports[0], args.own, args.page_bytes)
        return 0
    memory = SharedPages(_N_PAGES, args.page_bytes)
    rows = [row for name in args.transports for row in measure(name, memory, args.pages)]
    for row in rows:
        print(
            f"{row.transport:9}{row.pages:5} pages: {row.p50_us:8.0f} us median, "
            f"{row.p99_us:8.0f} us p99, {row.first_us:8.0f} us first; {row.gb_per_s:6.2f} GB/s, "
            f"memcpy {row.memcpy_gb_per_s:6.2f} GB/s: {row.over_floor:5.2f} x the floor"
        )
    results = [asdict(row) for row in rows]
    print(json.dumps({"bench": "transfer", "page_bytes": args.page_bytes, "results": results}))
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main, sys.argv[1:]))
