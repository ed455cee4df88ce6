# ruff: noqa: N802  CuPy's names
"""A CUDA device, by the few calls of `cupy.cuda.runtime` that moving pages takes.

CuPy is imported where a device is opened and nowhere before: machines without a GPU lack it. Must
not know what a page is.
"""

from collections.abc import Iterable
from contextlib import suppress
from ctypes import c_uint8
from importlib import import_module
from typing import Protocol, cast

import numpy as np
from numpy.ctypeslib import as_array
from numpy.typing import NDArray

from common.errors import InvariantBroken, SetupError
from transfer.api import Copying

_NON_BLOCKING = 1  # cudaStreamNonBlocking: the default stream and this one do not wait for another
_ANY_WAY = 4  # cudaMemcpyDefault: addresses say on which device they are, or that on none
_UNTIMED = 2  # cudaEventDisableTiming
_PINNED = 0  # cudaHostAllocDefault
_NOT_READY = 600  # cudaErrorNotReady
_RUNS_BY_KERNEL = 8  # from there on one launch takes less than a call for each


class Runtime(Protocol):
    """What is used of `cupy.cuda.runtime`. Addresses and streams are numbers; what CUDA refuses is
    a RuntimeError. Of a thread, calls concern the device that it made current."""

    def getDeviceCount(self) -> int: ...
    def deviceGetPCIBusId(self, device: int, /) -> str: ...
    def deviceCanAccessPeer(self, device: int, peerDevice: int, /) -> int: ...
    def setDevice(self, device: int, /) -> None: ...
    def malloc(self, size: int, /) -> int: ...
    def free(self, ptr: int, /) -> None: ...
    def hostAlloc(self, size: int, flags: int, /) -> int: ...
    def freeHost(self, ptr: int, /) -> None: ...
    def ipcGetMemHandle(self, devPtr: int, /) -> bytes: ...
    def ipcOpenMemHandle(self, handle: bytes, /) -> int: ...
    def ipcCloseMemHandle(self, devPtr: int, /) -> None: ...
    def memcpyAsync(self, dst: int, src: int, size: int, kind: int, stream: int, /) -> None: ...
    def memsetAsync(self, ptr: int, value: int, size: int, stream: int, /) -> None: ...
    def streamCreateWithFlags(self, flags: int, /) -> int: ...
    def streamSynchronize(self, stream: int, /) -> None: ...
    def streamDestroy(self, stream: int, /) -> None: ...
    def eventCreateWithFlags(self, flags: int, /) -> int: ...
    def eventRecord(self, event: int, stream: int, /) -> None: ...
    def eventQuery(self, event: int, /) -> int: ...
    def eventSynchronize(self, event: int, /) -> None: ...
    def eventDestroy(self, event: int, /) -> None: ...


class RunsKernel(Protocol):
    """Copies runs of bytes between places on one device by one kernel."""

    def __call__(
        self, device: int, stream: int, source: int, destination: int, runs_R3: NDArray[np.int64], /
    ) -> None:
        """Ask the stream for it: runs (offset from `source`, offset from `destination`, length) of
        multiples of 16 bytes; those addresses are such, too."""
        ...


def cupy_runtime() -> Runtime:
    """Raises SetupError: there is no CuPy."""
    try:
        return cast("Runtime", import_module("cupy.cuda").runtime)
    except ImportError as error:
        raise SetupError(
            f"pages on a GPU need CuPy: pip install 'baton-serving[cuda]' ({error})"
        ) from error


class CudaDevice:
    """One of the devices that this process sees.

    bus_id     where it is on the PCI bus: the same in every process of the host, whatever number
               the device has there
    reachable  bus ids of the devices whose memory it can read, its own among them
    """

    def __init__(self, runtime: Runtime, number: int, runs: RunsKernel | None = None) -> None:
        """`runs`: None: each run is a copy of CUDA's. Raises SetupError: there is no such
        device."""
        try:
            n_devices = runtime.getDeviceCount()
            if not 0 <= number < n_devices:
                raise SetupError(f"there is no device cuda:{number}: {n_devices} are visible")
            self.bus_id = runtime.deviceGetPCIBusId(number)
            self.reachable = frozenset(
                runtime.deviceGetPCIBusId(other)
                for other in range(n_devices)
                if other == number or runtime.deviceCanAccessPeer(number, other)
            )
        except RuntimeError as error:
            raise SetupError(f"device cuda:{number}: {error}") from error
        self.number = number
        self.runs = runs
        self._runtime = runtime

    def current(self) -> Runtime:
        """For calls that concern this device, in this thread, now."""
        self._runtime.setDevice(self.number)
        return self._runtime


class CudaStream:
    """Copies on a device, in order, beside whatever else it computes."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._stream: int | None = device.current().streamCreateWithFlags(_NON_BLOCKING)

    def copy(self, runs: Iterable[tuple[int, int, int]]) -> None:
        """Begin to copy (to, from, bytes): addresses of memory or of any device, valid until
        `finish`."""
        runtime, stream = self._device.current(), self._open()
        for to, source, n_bytes in runs:
            runtime.memcpyAsync(to, source, n_bytes, _ANY_WAY, stream)

    def copy_runs(self, source: int, destination: int, runs_R3: NDArray[np.int64]) -> None:
        """Begin to copy runs as `RunsKernel` does, of this device's own memory."""
        kernel = self._device.runs
        if kernel is not None and len(runs_R3) >= _RUNS_BY_KERNEL:
            self._device.current()
            kernel(self._device.number, self._open(), source, destination, runs_R3)
        else:
            self.copy((destination + to, source + at, n) for at, to, n in runs_R3.tolist())

    def make_ready(self, address: int) -> None:
        """Compile what `copy_runs` takes; an address of the device's, of which nothing is copied.
        Returns when that is done."""
        if self._device.runs is not None:
            nothing = np.zeros((1, 3), np.int64)
            self._device.runs(self._device.number, self._open(), address, address, nothing)
            self.finish()

    def mark(self) -> Copying:
        """Of all that was begun. RuntimeError, of who waits: the device has failed, for good."""
        mark = CudaMark(self._device)
        self.place(mark)

        def wait() -> None:
            try:
                mark.wait()
            finally:
                mark.close()

        return wait

    def place(self, mark: "CudaMark") -> None:
        """Where the stream is now, which it passes when all that was begun is done."""
        self._device.current().eventRecord(mark.event, self._open())

    def clear(self, address: int, n_bytes: int) -> None:
        """Begin to fill it with zeros."""
        self._device.current().memsetAsync(address, 0, n_bytes, self._open())

    def finish(self) -> None:
        """Returns when all that was begun is done, and seen by whoever is told so. RuntimeError:
        the device has failed, for good."""
        self._device.current().streamSynchronize(self._open())

    def close(self) -> None:
        """When nothing is under way. Idempotent."""
        stream, self._stream = self._stream, None
        if stream is not None:
            with suppress(RuntimeError):  # the device has failed, and its streams with it
                self._device.current().streamDestroy(stream)

    def _open(self) -> int:
        if self._stream is None:
            raise InvariantBroken("a stream was used after it was closed")
        return self._stream


class CudaMark:
    """A point in a stream that can be looked at without waiting; placed as often as wanted."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self.event = device.current().eventCreateWithFlags(_UNTIMED)

    @property
    def is_passed(self) -> bool:
        """What was begun before it is done, and seen by whoever is told so. RuntimeError: the
        device has failed, for good."""
        status = self._device.current().eventQuery(self.event)  # CuPy raises nothing here
        if status not in (0, _NOT_READY):
            raise RuntimeError(f"cudaError {status}")
        return not status

    def wait(self) -> None:
        """Returns when it is passed. RuntimeError: the device has failed, for good."""
        self._device.current().eventSynchronize(self.event)

    def close(self) -> None:
        """Once."""
        with suppress(RuntimeError):  # the device has failed, and its events with it
            self._device.current().eventDestroy(self.event)


class PinnedMemory:
    """Memory of the host that a device copies from and to while threads go on."""

    def __init__(self, device: CudaDevice, n_bytes: int) -> None:
        """Its bytes are any. Raises RuntimeError where it is not to be had."""
        self._device = device
        self.address = device.current().hostAlloc(n_bytes, _PINNED)
        self.bytes = as_array((c_uint8 * n_bytes).from_address(self.address))

    def close(self) -> None:
        """Once, when neither the device nor anybody else uses it."""
        with suppress(RuntimeError):  # the device has failed: it goes when this process does
            self._device.current().freeHost(self.address)
