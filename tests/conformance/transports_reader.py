"""The other side of `transports_owner`: starts owners, and reads from them in this process."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from common.ids import InstanceId, PageId
from common.messages import RegionKey
from common.rundir import host_id
from tests.conformance.fake_cuda import FakeCuda, Gpu
from tests.conformance.transports_owner import content
from transfer.api import Copy, Status, Ticket
from transfer.cuda_device import CudaDevice
from transfer.cuda_memory import DevicePages
from transfer.memory import SharedPages
from transfer.open import Name as Door
from transfer.open import open_transport

Name = Literal["auto", "shm", "tcp", "tcp+pinned", "cuda_ipc"]
ON_GPUS: tuple[Name, ...] = ("tcp+pinned", "cuda_ipc")  # there regions lie on one anyway

PAGE_BYTES = 368_640  # of the default model
SMALL_PAGE_BYTES = 8192
TIMEOUT_S = 0.4  # without progress, where that is what a test waits for
FINAL_S = 10.0  # more than anything here may take

_ROOT = Path(__file__).parents[2]
_SCRIPT = Path(__file__).with_name("transports_owner.py")


def door_of(name: Name) -> Door:
    return "tcp" if name == "tcp+pinned" else name


class OwnerProcess:
    """A peer in its own process, and the key of its one region."""

    def __init__(  # noqa: PLR0913  what it is told, one by one
        self,
        name: Name,
        run_dir: Path,
        *,
        instance: str = "0wner",
        pages: int = 64,
        page_bytes: int = PAGE_BYTES,
        timeout_s: float = FINAL_S / 2,
        gpu: Gpu | None = None,
    ) -> None:
        command = [sys.executable, "-P", str(_SCRIPT), "--transport", door_of(name)]
        command += ["--run-dir", str(run_dir), "--instance", instance]
        command += ["--pages", str(pages), "--page-bytes", str(page_bytes)]
        command += ["--timeout-s", str(timeout_s)]
        if gpu is None and name in ON_GPUS:
            gpu = Gpu()
        if gpu is not None:
            command += ["--gpu", msgspec.json.encode(gpu).decode()]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"},
        )
        self.key = msgspec.convert(self._hear(), RegionKey)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        try:
            if self.process.poll() is None and kind is None:
                assert self.process.stdin is not None
                self.process.stdin.close()
                assert self.process.wait(FINAL_S) == 0
        finally:
            self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(FINAL_S)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue

    def do(self, what: str, pages: Iterable[int] = (), **more: object) -> Any:  # noqa: ANN401
        """Give an order; returns its answer, as decoded."""
        assert self.process.stdin is not None
        order = msgspec.json.encode({"do": what, "pages": list(pages), **more})
        self.process.stdin.write(order.decode() + "\n")
        self.process.stdin.flush()
        return self._hear()

    def _hear(self) -> Any:  # noqa: ANN401
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


class Reader:
    """A transport in this process, with a region of its own to pull into."""

    def __init__(
        self,
        name: Name,
        run_dir: Path,
        *,
        pages: int = 64,
        page_bytes: int = PAGE_BYTES,
        timeout_s: float = FINAL_S / 2,
        gpu: Gpu | None = None,
    ) -> None:
        """`gpu`: where the region lies."""
        self.woken = threading.Event()
        self.cuda: FakeCuda | None = None
        device: CudaDevice | None = None
        if gpu is not None or name in ON_GPUS:
            self.cuda, device = (gpu or Gpu()).open()
        self.memory: SharedPages | DevicePages
        if device is None:
            self.memory = SharedPages(pages, page_bytes)
        else:
            self.memory = DevicePages(device, pages, page_bytes)
        self.transport = open_transport(
            door_of(name),
            instance=InstanceId("reader"),
            host=host_id(),
            run_dir=run_dir,
            listen_host="127.0.0.1",
            wake=self.woken.set,
            progress_timeout_s=timeout_s,
            device=device,
        )
        self.key = self.transport.register(self.memory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.transport.close()
        self.memory.close()
        if self.cuda is not None:
            self.cuda.end_process()

    @property
    def pages(self) -> NDArray[np.uint8]:
        """The region's memory, wherever it lies."""
        if isinstance(self.memory, SharedPages):
            return self.memory.pages
        assert self.cuda is not None
        return self.cuda.look(self.memory.pages.address, self.memory.pages.shape)

    def start(self, remote: RegionKey, copies: Sequence[Copy]) -> Ticket:
        return self.transport.pull(remote.owner, remote, self.key, tuple(copies))

    def finish(self, ticket: Ticket) -> Status:
        """Sleeps until woken, as a worker does."""
        deadline = time.monotonic() + FINAL_S
        while time.monotonic() < deadline:
            self.woken.clear()
            status = self.transport.poll(ticket)
            if status is not Status.PENDING:
                return status
            self.woken.wait(deadline - time.monotonic())
        raise AssertionError(f"ticket {ticket} is not final after {FINAL_S} s")

    def pull(self, remote: RegionKey, copies: Sequence[Copy]) -> tuple[Status, str]:
        """(how it ended, why it failed)"""
        ticket = self.start(remote, copies)
        return self.finish(ticket), self.transport.why(ticket)

    def connect(self, remote: RegionKey) -> None:
        """Returns when the way stands."""
        self.transport.connect(remote)
        until(lambda: self.transport.stats().peers == 1)

    def holds(self, copies: Iterable[Copy]) -> bool:
        """Are the local pages, byte for byte, what was announced?"""
        pages = self.pages
        return all(
            np.array_equal(pages[copy.local], content(copy.remote, copy.generation, pages.shape[1]))
            for copy in copies
        )


def copies_of(refs: Iterable[tuple[int, int]], local: Iterable[int]) -> tuple[Copy, ...]:
    return tuple(
        Copy(remote=PageId(page), generation=generation, local=PageId(to))
        for (page, generation), to in zip(refs, local, strict=True)
    )


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + FINAL_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
