"""A device's work in order, beside the thread that asks for it: all that is used of `torch.cuda`.

`InMemory` takes the place of a CUDA device where its kernels are interpreted: there everything is
done on return, and what was captured is done again. Must not know what is computed.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

from common.engine.device import Device
from common.errors import InvariantBroken


@contextmanager
def device_fails_for_good() -> Iterator[None]:
    """No pass can be computed by this process once its device has failed in one: InvariantBroken,
    which ends it."""
    try:
        yield
    except torch.AcceleratorError as error:
        raise InvariantBroken(f"the device has failed: {error}") from error


class Mark(Protocol):
    """A point in a stream."""

    def synchronize(self) -> None:
        """Returns when all that was asked for before it is done, and other processes can see it.
        InvariantBroken: the device has failed."""
        ...


class Graph(Protocol):
    """Work that was captured: the same kernels, with the same arguments."""

    def replay(self) -> None:
        """Ask for it, in `Stream.work`."""
        ...


class Stream(Protocol):
    @property
    def device(self) -> torch.device: ...

    def work(self) -> AbstractContextManager[object]:
        """In it, this thread asks for work on this stream."""
        ...

    def mark(self) -> Mark:
        """Where the stream is now."""
        ...

    def capture(self, work: Callable[[], object]) -> Graph:
        """`work` was done before, so that nothing has to be made ready for it. It reads and writes
        tensors that stay where they are, and asks the device for nothing that this thread has to
        wait for. Graphs share memory: one is replayed when the one before has ended."""
        ...

    @property
    def graphs_bytes(self) -> int:
        """Of the device's memory that graphs take, beside what was there before."""
        ...

    def pinned(self, n: int, dtype: torch.dtype) -> Tensor:
        """Memory [n] that the device copies from and to while this thread goes on; zeros."""
        ...


@contextmanager
def ends_before_it_fails(stream: Stream) -> Iterator[None]:
    """When an error leaves it, what had been asked for has ended: whoever is told of the error may
    use the memory that it wrote to."""
    try:
        yield
    except Exception:
        stream.mark().synchronize()
        raise


class CudaStream:
    """Implements `Stream`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device)
        self._graphs_memory: Any = None  # torch has no name for it
        self.graphs_bytes = 0

    def work(self) -> AbstractContextManager[object]:
        _go_to(self.device)
        return torch.cuda.stream(self._stream)

    def mark(self) -> Mark:
        return _Event(self.device, self._stream)

    def capture(self, work: Callable[[], object]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.empty_cache()  # as `graph` does: what that gives back is not what graphs take
        before = torch.cuda.memory_reserved(self.device)
        with torch.cuda.graph(
            graph,
            pool=self._graphs_memory,
            stream=self._stream,
            capture_error_mode="thread_local",  # other threads move pages meanwhile
        ):
            work()
        self._graphs_memory = graph.pool()
        self.graphs_bytes += max(0, torch.cuda.memory_reserved(self.device) - before)
        return graph

    def pinned(self, n: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(n, dtype=dtype, pin_memory=True)


class _Event:
    def __init__(self, device: torch.device, stream: torch.cuda.Stream) -> None:
        self._device = device
        self._event = torch.cuda.Event()
        self._event.record(stream)

    def synchronize(self) -> None:
        with device_fails_for_good():
            _go_to(self._device)
            self._event.synchronize()


def _go_to(device: torch.device) -> None:
    """Of a thread, the device is the first one until it is told another. What it asks of a stream
    elsewhere, and torch's way back from there, make a context of CUDA's on that first one: half a
    GiB of a GPU that others use."""
    torch.cuda.set_device(device)


class InMemory:
    """Implements `Stream` where tensors lie in memory."""

    device = torch.device("cpu")
    graphs_bytes = 0

    def work(self) -> AbstractContextManager[object]:
        return nullcontext()

    def mark(self) -> Mark:
        return _Done()

    def capture(self, work: Callable[[], object]) -> Graph:
        return _Again(work)

    def pinned(self, n: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(n, dtype=dtype)


class _Done:
    def synchronize(self) -> None:
        """It is."""


class _Again:
    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work

    def replay(self) -> None:
        self._work()


def open_stream(device: Device) -> Stream:
    """A stream of its own."""
    return InMemory() if device.number is None else CudaStream(device.torch)
