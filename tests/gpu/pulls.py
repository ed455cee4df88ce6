"""How fast pages are pulled between two processes by CUDA IPC, beside plain copies of one run of as
many bytes on the same stream: the floor, at that moment."""

import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from common.ids import InstanceId, PageId
from common.messages import RegionKey
from common.rundir import host_id
from tests.gpu.rows import Row, emit, say
from transfer.api import Copy, Status
from transfer.cuda_device import CudaStream
from transfer.cuda_memory import DevicePages
from transfer.open import open_transport
from transfer.pool import make_pages
from transfer.transport import PageTransport

N_PAGES, PAGE_BYTES = 1024, 2 << 20
N_PULLED = 256
N_TIMES = 30
CHECKED = 8  # pages of which every byte is looked at


def content(page: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.full(PAGE_BYTES, page % 251 + 1, np.uint8)


def open_here(run_dir: Path, name: str, wake: threading.Event) -> tuple[DevicePages, PageTransport]:
    memory = make_pages(N_PAGES, PAGE_BYTES, 0)
    assert isinstance(memory, DevicePages)
    transport = open_transport(
        "cuda_ipc",
        instance=InstanceId(name),
        host=host_id(),
        run_dir=run_dir,
        listen_host="127.0.0.1",
        wake=wake.set,
        device=memory.device,
    )
    return memory, transport


def own(run_dir: Path) -> None:
    """The other process: offers its pages until its standard input ends."""
    pages, transport = open_here(run_dir, "owner", threading.Event())
    for page in range(N_PAGES):
        pages.pages[page] = content(page)
    say(msgspec.json.encode(transport.register(pages)).decode())
    sys.stdin.read()
    transport.close()


def measure(_found: Mapping[str, float]) -> bool:
    with tempfile.TemporaryDirectory() as run_dir:
        command = [sys.executable, "-m", "tests.gpu.pulls", run_dir]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
            assert owner.stdin is not None
            assert owner.stdout is not None
            remote = msgspec.convert(json.loads(owner.stdout.readline()), RegionKey)
            pull(Path(run_dir), remote)
            owner.stdin.close()
    return True


def pull(run_dir: Path, remote: RegionKey) -> None:
    woken, rng = threading.Event(), random.Random(0)
    memory, transport = open_here(run_dir, "reader", woken)
    local = transport.register(memory)
    stream = CudaStream(memory.device)
    pulls_s: list[float] = []
    floors_s: list[float] = []
    for _ in range(N_TIMES):
        pages, into = (rng.sample(range(N_PAGES), N_PULLED) for _ in range(2))
        copies = tuple(Copy(PageId(a), 0, PageId(b)) for a, b in zip(pages, into, strict=True))
        began_s = time.perf_counter()
        woken.clear()
        ticket = transport.pull(remote.owner, remote, local, copies)
        while (status := transport.poll(ticket)) is Status.PENDING:
            woken.wait()
            woken.clear()
        pulls_s.append(time.perf_counter() - began_s)
        assert status is Status.DONE, transport.why(ticket)
        for copy in rng.sample(copies, CHECKED):
            assert (memory.pages[copy.local] == content(copy.remote)).all()
        floors_s.append(plain_copy_s(memory, stream))
    scattered_s = [scattered_copies_s(memory, stream, rng) for _ in range(N_TIMES)]
    stream.close()
    transport.close()
    floor = statistics.median(floors_s) * 1e3
    emit(Row.of("pull", statistics.median(pulls_s) * 1e3, floor=floor))
    emit(Row(name="the slowest of those pulls", measured=max(pulls_s) * 1e3, floor=floor))
    emit(
        Row(
            name="the same bytes in this process, a copy a page",
            measured=statistics.median(scattered_s) * 1e3,
            floor=floor,
        )
    )


def scattered_copies_s(memory: DevicePages, stream: CudaStream, rng: random.Random) -> float:
    """What a pull by one copy a page could take at best: without peers, tickets and threads."""
    order = rng.sample(range(N_PAGES), 2 * N_PULLED)
    addresses = [memory.pages.address + page * PAGE_BYTES for page in order]
    to, source = addresses[:N_PULLED], addresses[N_PULLED:]
    began_s = time.perf_counter()
    stream.copy([(a, b, PAGE_BYTES) for a, b in zip(to, source, strict=True)])
    stream.finish()
    return time.perf_counter() - began_s


def plain_copy_s(memory: DevicePages, stream: CudaStream) -> float:
    n_bytes = N_PULLED * PAGE_BYTES
    address = memory.pages.address
    began_s = time.perf_counter()
    stream.copy([(address, address + n_bytes, n_bytes)])
    stream.finish()
    return time.perf_counter() - began_s


if __name__ == "__main__":
    own(Path(sys.argv[1]))
