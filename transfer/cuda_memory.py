"""Pages in the memory of a CUDA device, and a peer's, opened by the handle that it passed.

The pages are one allocation, so that one handle opens them all, and behind them is a check word.
Their generations are in a memfd that goes to readers, with the card that says how to open the
pages. Nothing of CUDA's orders one process after another: an owner announces a page when its host
has seen the write complete, and a reader's host has seen the copy complete when it looks at the
generation. Must not know what a page holds.
"""

import fcntl
import os
import secrets
import select
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from common.errors import InvariantBroken, PeerError, SetupError
from common.huge_pages import allocate, map_file, populate
from transfer.api import Copying, PageArray
from transfer.cuda_device import CudaDevice, CudaStream
from transfer.memory import SEALS, Fence, in_memory

_ALIGN_BYTES = 4096
_CARD_BYTES = 4096
_CHECK_BYTES = 16
_BLOCK_BYTES = 2 << 20
"""CUDA gives memory out in blocks of that size, and a handle opens whole blocks: in blocks of their
own, pages are all that a reader sees."""


class Card(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """owner -> reader: what it takes to open the pages. `check` is what lies behind the last."""

    device: str  # its bus id
    n_bytes: int  # of the allocation
    handle: Annotated[bytes, Meta(min_length=64, max_length=64)]  # cudaIpcMemHandle_t
    check: Annotated[bytes, Meta(min_length=_CHECK_BYTES, max_length=_CHECK_BYTES)]


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """Implements `transfer.api.PageArray`: a page at a time goes through this process's memory."""

    address: int
    shape: tuple[int, int]
    stream: CudaStream

    def __getitem__(self, page: int, /) -> NDArray[np.uint8]:
        """A copy of it."""
        content = np.empty(self.shape[1], np.uint8)
        self.stream.copy([(content.ctypes.data, self._at(page), len(content))])
        self.stream.finish()
        return content

    def __setitem__(self, page: int, content: NDArray[np.uint8], /) -> None:
        """On return it is written."""
        content = np.ascontiguousarray(content, np.uint8)
        if content.shape != self.shape[1:]:
            raise ValueError(f"{content.shape} bytes for a page of {self.shape[1]}")
        self.stream.copy([(self._at(page), content.ctypes.data, len(content))])
        self.stream.finish()

    def _at(self, page: int) -> int:
        n_pages, page_bytes = self.shape
        if not 0 <= page < n_pages:
            raise IndexError(f"page {page} of {n_pages}")
        return self.address + page * page_bytes


@dataclass(frozen=True, slots=True)
class Exported:
    """A region as its owner's desk hands it out: implements `transfer.api.Region`."""

    pages: PageArray
    generations: NDArray[np.uint64]
    fd: int


class DevicePages:
    """A region on a device. Created once at start, in full, or not at all.

    Its owner raises the generations of pages, then calls `transfer.memory.Fence`, then launches
    what writes the pages; it announces them when its host has seen that complete.
    """

    flag = "--kv-cache-memory-bytes"  # sets how much it is

    def __init__(self, device: CudaDevice, n_pages: int, page_bytes: int) -> None:
        """All bytes are zero. Raises SetupError where they are not to be had."""
        if n_pages < 1 or page_bytes < 1 or page_bytes % _ALIGN_BYTES:
            raise InvariantBroken(f"{n_pages} pages of {page_bytes} bytes")
        self._device = device
        self._n_bytes = _allocation_bytes(n_pages, page_bytes)
        self._check = np.frombuffer(secrets.token_bytes(_CHECK_BYTES), np.uint8)
        try:
            address = device.current().malloc(self._n_bytes)
            self._stream = CudaStream(device)
            self._stream.clear(address, self._n_bytes)
            behind = address + n_pages * page_bytes
            self._stream.copy([(behind, self._check.ctypes.data, _CHECK_BYTES)])
            self._stream.finish()
        except RuntimeError as error:
            raise SetupError(
                f"{n_pages} pages of {page_bytes} bytes need {self._n_bytes} bytes of "
                f"cuda:{device.number}: lower {self.flag} ({error})"
            ) from error
        self._pages = DeviceArray(address, (n_pages, page_bytes), self._stream)
        self._fd = os.memfd_create("generations", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        allocate(self._fd, _file_bytes(n_pages))
        self._file = map_file(self._fd, _file_bytes(n_pages), shared=True)
        populate(self._file, to_write=True)
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, SEALS)
        self._generations = np.frombuffer(self._file, np.uint64, n_pages)
        self._is_exported = False

    @property
    def pages(self) -> DeviceArray:
        """[n_pages, page_bytes]; the base address never moves."""
        return self._pages

    @property
    def generations(self) -> NDArray[np.uint64]:
        """[n_pages], in memory"""
        return self._generations

    @property
    def fd(self) -> int | None:
        """No file backs the pages."""
        return None

    @property
    def device(self) -> CudaDevice:
        return self._device

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """By which torch and CuPy take the pages for [n_pages, page_bytes] of theirs, uncopied."""
        return {
            "version": 3,
            "shape": self._pages.shape,
            "typestr": "|u1",
            "data": (self._pages.address, False),
            "strides": None,
        }

    def exported(self) -> Exported:
        """For peers of this host. RuntimeError: this device's memory cannot be."""
        card = Card(
            device=self._device.bus_id,
            n_bytes=self._n_bytes,
            handle=self._device.current().ipcGetMemHandle(self._pages.address),
            check=self._check.tobytes(),
        )
        encoded = msgspec.json.encode(card)
        at = len(self._file) - _CARD_BYTES
        self._file[at : at + len(encoded)] = encoded
        self._is_exported = True
        return Exported(self._pages, self._generations, self._fd)

    def close(self) -> None:
        """Idempotent. What was exported may be open elsewhere, and then CUDA does not allow it to
        be freed: it goes when this process does."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        self._generations = np.empty(0, np.uint64)
        self._file = memoryview(b"")
        if not self._is_exported:
            self._device.current().free(self._pages.address)
        self._stream.close()
        self._pages = DeviceArray(0, (0, 0), self._stream)


def address_of(pages: PageArray) -> int:
    """Of the first page, in this process."""
    return pages.address if isinstance(pages, DeviceArray) else in_memory(pages).ctypes.data


class DeviceReader:
    """Copies out of a region on a device, or into one. One a thread."""

    lifeline: int | None = None  # see `transfer.backends.windows.PeerMemory`

    def __init__(
        self,
        address: int,
        generations: NDArray[np.uint64],
        stream: CudaStream,
        *,
        is_same: bool = False,
    ) -> None:
        """`address` of the pages, in this process; `stream`: that the copies are made on;
        `is_same`: the pages lie on its device."""
        self._address, self._generations, self._stream = address, generations, stream
        self._is_same = is_same
        self._fence = Fence()

    def copy(self, into: PageArray, runs_R3: NDArray[np.int64]) -> Copying:
        """Byte runs (offset there, offset here, length). Unvalidated."""
        target, source = address_of(into), self._address
        if self._is_same and isinstance(into, DeviceArray):
            self._stream.copy_runs(source, target, runs_R3)
        else:
            self._stream.copy((target + to, source + at, n) for at, to, n in runs_R3.tolist())
        return self._stream.mark()

    def are_still(self, pages: list[int], generations: NDArray[np.uint64]) -> bool:
        """After a copy: were the pages, all through it, in the lives that were announced?"""
        self._fence()  # acquire: the bytes were read before the generations are
        return bool((self._generations[pages] == generations).all())

    def close(self) -> None:
        """What is this process's own was not mapped."""


class PeerDevicePages(DeviceReader):
    """A peer's region, opened.

    CUDA promises nothing of memory whose owner has ended: it is to be closed then, and a copy
    counts only if the owner was seen alive after it.
    """

    def __init__(
        self,
        fd: int,
        shape: tuple[int, int],
        *,
        owner_pid: int,
        device: CudaDevice,
        stream: CudaStream,
    ) -> None:
        """Does not keep `fd`; `shape` [n_pages, page_bytes] is what the peer said of it.

        ValueError: the file is not what its owner would pass. OSError: it cannot be mapped, or the
        owner not be seen. PeerError: the pages cannot be opened, or what opens is not they.
        """
        generations, card = _read_card(fd, shape)
        if card.device not in device.reachable:
            raise PeerError(f"device {card.device} cannot be read from {device.bus_id}")
        self._device = device
        self._owner = os.pidfd_open(owner_pid)
        try:
            address = device.current().ipcOpenMemHandle(card.handle)
        except RuntimeError as error:
            os.close(self._owner)
            raise PeerError(f"memory of device {card.device} cannot be opened: {error}") from error
        is_same = card.device == device.bus_id
        super().__init__(address, generations, stream, is_same=is_same)
        self.lifeline = self._owner
        self._ended = select.poll()
        self._ended.register(self._owner, select.POLLIN)
        if not self._has_behind(shape, card.check):
            self.close()
            raise PeerError(f"a handle of device {card.device} opens other memory")

    def copy(self, into: PageArray, runs_R3: NDArray[np.int64]) -> Copying:
        """And raises PeerError: the owner has died."""
        self._require_owner()
        copied = super().copy(into, runs_R3)

        def wait() -> None:
            copied()
            self._require_owner()

        return wait

    def close(self) -> None:
        """Once."""
        with suppress(RuntimeError):  # the device has failed, and its mappings with it
            self._device.current().ipcCloseMemHandle(self._address)
        os.close(self._owner)
        self._generations = np.empty(0, np.uint64)

    def _require_owner(self) -> None:
        if self._ended.poll(0):
            raise PeerError("the pages' owner has ended")

    def _has_behind(self, shape: tuple[int, int], check: bytes) -> bool:
        behind = np.empty(_CHECK_BYTES, np.uint8)
        n_pages, page_bytes = shape
        there = self._address + n_pages * page_bytes
        self._stream.copy([(behind.ctypes.data, there, _CHECK_BYTES)])
        self._stream.finish()
        return behind.tobytes() == check


def _allocation_bytes(n_pages: int, page_bytes: int) -> int:
    used = n_pages * page_bytes + _CHECK_BYTES
    return -(-used // _BLOCK_BYTES) * _BLOCK_BYTES


def _file_bytes(n_pages: int) -> int:
    """Of generations and card."""
    used = n_pages * np.dtype(np.uint64).itemsize
    return -(-used // _ALIGN_BYTES) * _ALIGN_BYTES + _CARD_BYTES


def _read_card(fd: int, shape: tuple[int, int]) -> tuple[NDArray[np.uint64], Card]:
    """Generations and card of that many pages. Raises ValueError, OSError."""
    n_bytes, n_there = _file_bytes(shape[0]), os.fstat(fd).st_size
    if n_there != n_bytes:
        raise ValueError(f"a file of {n_there} bytes, not {n_bytes}")
    if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise ValueError("a file that could shrink")
    mapping = map_file(fd, n_bytes, shared=True, writable=False)
    encoded = bytes(mapping[-_CARD_BYTES:]).rstrip(b"\0")
    try:
        card = msgspec.json.decode(encoded, type=Card)
    except msgspec.DecodeError as error:
        raise ValueError(f"an undecodable card: {error}") from error
    if card.n_bytes != _allocation_bytes(*shape):
        raise ValueError(f"an allocation of {card.n_bytes} bytes for pages {shape}")
    return np.frombuffer(mapping, np.uint64, shape[0]), card
