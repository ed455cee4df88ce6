# ruff: noqa: N802  CuPy's names
"""`cupy.cuda.runtime` without a GPU, as far as `transfer.cuda_device.Runtime` goes.

The memory of its devices is memory files, which a handle opens in another process. It is as
unkind as CUDA is allowed to be: memory holds rubbish at first, copies are made later than asked for
and in pieces, by the order of their stream alone; handles open only where, and while, they may;
memory whose owner has ended gives rubbish; one copy out of bounds, and all that follows fails.
"""

import ctypes
import os
import queue
import secrets
import select
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from common.huge_pages import map_file
from transfer.cuda_device import CudaDevice

_NON_BLOCKING = 1
_ANY_WAY = 4
_UNTIMED = 2
_PINNED = 0
_PIECE_BYTES = 2**16
_LATER_S = 0.0003  # after a copy was asked for
_RUBBISH = 0xDB
_HANDLE = struct.Struct("<IiII16s32x")  # pid, descriptor, device, blocks, name
_BLOCK_BYTES = 4096

INVALID_VALUE, INVALID_DEVICE, OUT_OF_MEMORY = 1, 101, 2
INVALID_CONTEXT, PEER_ACCESS_UNSUPPORTED, INVALID_HANDLE = 201, 217, 400
NOT_READY, ILLEGAL_ADDRESS, NOT_SUPPORTED = 600, 700, 801


class CudaError(RuntimeError):
    """As CuPy's."""

    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError {status}")
        self.status = status


@dataclass(eq=False)
class _Memory:
    """Of a device; a peer's, if `owner` is there."""

    view: memoryview
    device: int
    fd: int = -1  # its file's, where it was made
    name: bytes = b""
    owner: int | None = None  # a descriptor that is readable when it has ended

    @property
    def array(self) -> NDArray[np.uint8]:
        return np.frombuffer(self.view, np.uint8)

    @property
    def address(self) -> int:
        return self.array.ctypes.data

    @property
    def is_lost(self) -> bool:
        if self.owner is None:
            return False
        ended = select.poll()
        ended.register(self.owner, select.POLLIN)
        return bool(ended.poll(0))

    def close(self) -> None:
        for fd in (self.fd, self.owner):
            if fd is not None and fd >= 0:
                os.close(fd)


class FakeCuda:
    """Plain attributes, set by a test at any time, say what goes wrong.

    n_blocks       how much memory a device has, in 4096 bytes
    no_pinned      the host has no memory for it
    copy_s         what each copy takes at least
    refuses_ipc    no handle is opened
    opens_other    handles open memory of their length, but other memory
    has_failed     nothing is done any more, and that is all that anybody is told
    """

    def __init__(self, bus_ids: tuple[str, ...], peers: tuple[tuple[int, int], ...]) -> None:
        """As of `Gpu`."""
        self.n_blocks = 2**20
        self.no_pinned = False
        self.copy_s = 0.0
        self.refuses_ipc = False
        self.opens_other = False
        self.has_failed = False
        self._bus_ids = bus_ids
        self._peers = frozenset(peers)
        self._thread = threading.local()
        self._made: dict[int, _Memory] = {}  # by address
        self._opened: dict[int, _Memory] = {}
        self._streams: dict[int, _Stream] = {}
        self._n_streams = 0
        self._pinned: dict[int, NDArray[np.uint8]] = {}  # by address
        self._events: dict[int, threading.Event] = {}
        self._n_events = 0
        self.n_runs_kernels = 0

    # --- what a test sees ------------------------------------------------------------------------

    @property
    def n_opened(self) -> int:
        """Of other processes' memory."""
        return len(self._opened)

    @property
    def n_made(self) -> int:
        return len(self._made)

    @property
    def n_pinned(self) -> int:
        return len(self._pinned)

    @property
    def n_events(self) -> int:
        return len(self._events)

    def look(self, address: int, shape: tuple[int, int]) -> NDArray[np.uint8]:
        """What lies there, as an array."""
        memory = self._memory(address, shape[0] * shape[1])
        assert memory is not None
        at = address - memory.address
        return memory.array[at : at + shape[0] * shape[1]].reshape(shape)

    def end_process(self) -> None:
        """What CUDA does when one ends: its memory goes."""
        for memory in (*self._made.values(), *self._opened.values()):
            memory.close()
        self._made.clear()
        self._opened.clear()

    # --- devices ---------------------------------------------------------------------------------

    def getDeviceCount(self) -> int:
        return len(self._bus_ids)

    def deviceGetPCIBusId(self, device: int, /) -> str:
        return self._bus_ids[device]

    def deviceCanAccessPeer(self, device: int, peerDevice: int, /) -> int:
        return int((device, peerDevice) in self._peers)

    def setDevice(self, device: int, /) -> None:
        if not 0 <= device < len(self._bus_ids):
            raise CudaError(INVALID_DEVICE)
        self._thread.device = device

    # --- memory ----------------------------------------------------------------------------------

    def malloc(self, size: int, /) -> int:
        n_blocks = -(-size // _BLOCK_BYTES)
        if n_blocks > self.n_blocks:
            raise CudaError(OUT_OF_MEMORY)
        name = secrets.token_hex(8).encode()
        fd = os.memfd_create(name.decode(), os.MFD_CLOEXEC)
        os.truncate(fd, n_blocks * _BLOCK_BYTES)
        view = map_file(fd, n_blocks * _BLOCK_BYTES, shared=True)
        memory = _Memory(view, self._current(), fd, name)
        memory.array[:] = _RUBBISH
        self._made[memory.address] = memory
        return memory.address

    def free(self, ptr: int, /) -> None:
        self._check(ptr in self._made, INVALID_VALUE)
        self._made.pop(ptr).close()

    def hostAlloc(self, size: int, flags: int, /) -> int:
        self._check(flags == _PINNED, INVALID_VALUE)
        self._check(not self.no_pinned, OUT_OF_MEMORY)
        memory = np.full(size, _RUBBISH, np.uint8)
        self._pinned[memory.ctypes.data] = memory
        return memory.ctypes.data

    def freeHost(self, ptr: int, /) -> None:
        self._check(ptr in self._pinned, INVALID_VALUE)
        self._pinned.pop(ptr)[:] = _RUBBISH  # whoever still reads it shall notice

    def ipcGetMemHandle(self, devPtr: int, /) -> bytes:
        self._check(devPtr in self._made, INVALID_VALUE)
        memory = self._made[devPtr]
        n_blocks = len(memory.view) // _BLOCK_BYTES
        return _HANDLE.pack(os.getpid(), memory.fd, memory.device, n_blocks, memory.name)

    def ipcOpenMemHandle(self, handle: bytes, /) -> int:
        self._check(not self.refuses_ipc, NOT_SUPPORTED)
        pid, fd, device, n_blocks, name = _HANDLE.unpack(handle)
        self._check(pid != os.getpid(), INVALID_CONTEXT)
        here = self._current()
        self._check(device == here or (here, device) in self._peers, PEER_ACCESS_UNSUPPORTED)
        path = f"/proc/{pid}/fd/{fd}"
        try:
            owner = os.pidfd_open(pid)
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            is_it = name.decode() in Path(path).readlink().name
            self._check(is_it, INVALID_HANDLE)
            view = map_file(file, n_blocks * _BLOCK_BYTES, shared=not self.opens_other)
            os.close(file)
        except OSError as error:
            raise CudaError(INVALID_HANDLE) from error
        memory = _Memory(view, device, owner=owner)
        if self.opens_other:
            memory.array[:] = _RUBBISH
        self._opened[memory.address] = memory
        return memory.address

    def ipcCloseMemHandle(self, devPtr: int, /) -> None:
        self._check(devPtr in self._opened, INVALID_VALUE)
        self._opened.pop(devPtr).close()

    # --- streams ---------------------------------------------------------------------------------

    def streamCreateWithFlags(self, flags: int, /) -> int:
        self._check(flags == _NON_BLOCKING, INVALID_VALUE)
        self._n_streams += 1
        self._streams[self._n_streams] = _Stream()
        return self._n_streams

    def streamDestroy(self, stream: int, /) -> None:
        self._check(stream in self._streams, INVALID_HANDLE)
        self._streams.pop(stream).close()

    def streamSynchronize(self, stream: int, /) -> None:
        self._streams[stream].finish()
        self._check(not self.has_failed, ILLEGAL_ADDRESS)

    def eventCreateWithFlags(self, flags: int, /) -> int:
        self._check(flags == _UNTIMED, INVALID_VALUE)
        self._n_events += 1
        self._events[self._n_events] = threading.Event()
        self._events[self._n_events].set()  # what was never recorded is complete
        return self._n_events

    def eventRecord(self, event: int, stream: int, /) -> None:
        self._events[event] = passed = threading.Event()
        self._streams[stream].later(passed.set)

    def eventQuery(self, event: int, /) -> int:
        if self.has_failed:
            return ILLEGAL_ADDRESS
        return 0 if self._events[event].is_set() else NOT_READY

    def eventSynchronize(self, event: int, /) -> None:
        self._events[event].wait()
        self._check(not self.has_failed, ILLEGAL_ADDRESS)

    def eventDestroy(self, event: int, /) -> None:
        self._check(event in self._events, INVALID_HANDLE)
        del self._events[event]

    def memcpyAsync(self, dst: int, src: int, size: int, kind: int, stream: int, /) -> None:
        self._check(kind == _ANY_WAY, INVALID_VALUE)
        self._streams[stream].later(partial(self._unless_failed, self._copy, dst, src, size))

    def memsetAsync(self, ptr: int, value: int, size: int, stream: int, /) -> None:
        self._streams[stream].later(partial(self._unless_failed, self._fill, ptr, value, size))

    def copy_runs(
        self, device: int, stream: int, source: int, destination: int, runs_R3: NDArray[np.int64], /
    ) -> None:
        """What `transfer.page_kernel` asks of a device, in its stream's order."""
        self._check(device == self._current(), INVALID_DEVICE)
        self.n_runs_kernels += 1
        for at, to, n_bytes in runs_R3.tolist():
            copy = partial(self._copy, destination + to, source + at, n_bytes)
            self._streams[stream].later(partial(self._unless_failed, copy))

    def _unless_failed(self, work: Callable[..., None], *arguments: int) -> None:
        if not self.has_failed:
            try:
                work(*arguments)
            except CudaError:
                self.has_failed = True

    def _copy(self, dst: int, src: int, size: int) -> None:
        """An address that is no device's is taken for one in memory."""
        time.sleep(self.copy_s)
        target, source = self._memory(dst, size), self._memory(src, size)
        self._check(target is not None or source is not None, ILLEGAL_ADDRESS)
        for at in range(0, size, _PIECE_BYTES):
            n_bytes = min(_PIECE_BYTES, size - at)
            if source is not None and source.is_lost:
                ctypes.memset(dst + at, _RUBBISH, n_bytes)
            else:
                ctypes.memmove(dst + at, src + at, n_bytes)
            time.sleep(0)

    def _fill(self, ptr: int, value: int, size: int) -> None:
        self._check(self._memory(ptr, size) is not None, ILLEGAL_ADDRESS)
        ctypes.memset(ptr, value, size)

    # --- all -------------------------------------------------------------------------------------

    def _memory(self, address: int, size: int) -> _Memory | None:
        """Of a device, in which so much lies at that address; None: it is no device's."""
        for memory in (*self._made.values(), *self._opened.values()):
            at = address - memory.address
            if 0 <= at < len(memory.view):
                self._check(at + size <= len(memory.view), ILLEGAL_ADDRESS)
                return memory
        return None

    def _current(self) -> int:
        return getattr(self._thread, "device", 0)

    @staticmethod
    def _check(fine: bool, status: int) -> None:  # noqa: FBT001
        if not fine:
            raise CudaError(status)


class _Stream:
    """Does what it is given, in order, in a thread of its own, and not at once."""

    def __init__(self) -> None:
        self._work = queue.SimpleQueue[Callable[[], object] | None]()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def later(self, work: Callable[[], object]) -> None:
        self._work.put(work)

    def finish(self) -> None:
        done = threading.Event()
        self._work.put(done.set)
        done.wait()

    def close(self) -> None:
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            was_idle = self._work.empty()
            work = self._work.get()
            if work is None:
                return
            if was_idle:
                time.sleep(_LATER_S)
            work()


class Gpu(msgspec.Struct, frozen=True):
    """The device that a process's pages lie on, among those that it sees."""

    number: int = 0
    bus_ids: tuple[str, ...] = ("0000:01:00.0",)
    peers: tuple[tuple[int, int], ...] = ()  # (device, of which it can read the memory)

    def open(self) -> tuple[FakeCuda, CudaDevice]:
        cuda = FakeCuda(self.bus_ids, self.peers)
        return cuda, CudaDevice(cuda, self.number, cuda.copy_runs)
