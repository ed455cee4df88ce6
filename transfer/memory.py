"""Memory that holds pages and can be pulled from: a sealed memfd, mapped shared.

It has no name, so nothing of it can leak; it outlives its owner in whoever has mapped it. Layout:
`[n_pages, page_bytes]` of bytes, then `[n_pages]` generations (uint64), then zeros up to 4096.
Must not know what a page holds.
"""

import ctypes
import fcntl
import os
import threading

import numpy as np
from numpy.typing import NDArray

from common.available import available_bytes
from common.errors import InvariantBroken, SetupError
from common.huge_pages import allocate, map_file, populate
from transfer.api import Copying, PageArray

_ALIGN_BYTES = 4096
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def file_bytes(n_pages: int, page_bytes: int) -> int:
    """Length of the file behind a region of shared pages."""
    used = n_pages * (page_bytes + np.dtype(np.uint64).itemsize)
    return -(-used // _ALIGN_BYTES) * _ALIGN_BYTES


class Fence:
    """`fence()` orders all of this thread's memory accesses before it ahead of all after it.

    It releases a lock and acquires the same lock: nothing may sink below a release, nothing may
    rise above an acquire, and no machine that Python runs on swaps a release with a later acquire
    of the same word. x86 needs none of it (loads stay in order among loads, stores among stores),
    other machines do. One instance a thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def __call__(self) -> None:
        self._lock.release()
        self._lock.acquire()


class SharedPages:
    """A region for peers of the same host. Created once at start, in full, or not at all.

    Its owner raises the generations of pages, then calls `Fence`, then writes the pages.
    """

    flag = "--kv-cache-memory-bytes"  # sets how much it is

    def __init__(self, n_pages: int, page_bytes: int) -> None:
        """All bytes are zero and resident. Raises SetupError where they are not to be had."""
        if n_pages < 1 or page_bytes < 1 or page_bytes % _ALIGN_BYTES:
            raise InvariantBroken(f"{n_pages} pages of {page_bytes} bytes")
        n_bytes = file_bytes(n_pages, page_bytes)
        available = available_bytes()
        if n_bytes > available:
            raise _too_large(n_pages, page_bytes, available, self.flag)
        self._fd = os.memfd_create("pages", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            allocate(self._fd, n_bytes)
            mapping = map_file(self._fd, n_bytes, shared=True)
            populate(mapping, to_write=True)
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, SEALS)
        except (OSError, OverflowError) as error:
            os.close(self._fd)
            raise _too_large(n_pages, page_bytes, available, self.flag) from error
        self._pages, self._generations = views(mapping, n_pages, page_bytes)

    @property
    def pages(self) -> NDArray[np.uint8]:
        """[n_pages, page_bytes]; the base address never moves."""
        return self._pages

    @property
    def generations(self) -> NDArray[np.uint64]:
        """[n_pages]"""
        return self._generations

    @property
    def fd(self) -> int | None:
        return self._fd

    def close(self) -> None:
        """Give the memory back as soon as no array or tensor over it is left. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        self._pages = np.empty((0, 0), np.uint8)
        self._generations = np.empty(0, np.uint64)


class PageReader:
    """Copies out of a region that others write. One a thread."""

    def __init__(self, pages: PageArray, generations: NDArray[np.uint64]) -> None:
        """As `transfer.api.Region` has them. InvariantBroken: the pages are on a device."""
        self._pages, self._generations = in_memory(pages), generations
        self._fence = Fence()

    def copy(self, into: PageArray, runs_R3: NDArray[np.int64]) -> Copying:
        """Byte runs (offset here, offset there, length) into a contiguous array. Unvalidated.

        Measured against numpy's assignment, memoryview slices, process_vm_readv and torch on two
        cores with a busy main thread: `ctypes.memmove` is as fast as any alone, leaves the
        interpreter free while it copies, and a whole page amortises the call.
        """
        source, target = self._pages.ctypes.data, in_memory(into).ctypes.data
        for from_byte, to_byte, n_bytes in runs_R3.tolist():
            ctypes.memmove(target + to_byte, source + from_byte, n_bytes)
        return _copied

    def are_still(self, pages: list[int], generations: NDArray[np.uint64]) -> bool:
        """After a copy: were the pages, all through it, in the lives that were announced?"""
        self._fence()  # acquire: the bytes were read before the generations are
        return bool((self._generations[pages] == generations).all())


def _copied() -> None:
    """What a CPU copies is there on return."""


class PeerPages(PageReader):
    """A peer's region, mapped read-only from a descriptor that it passed."""

    lifeline: int | None = None  # it outlives its owner

    def __init__(self, fd: int, n_pages: int, page_bytes: int) -> None:
        """Does not keep `fd`. Raises ValueError if the file could not be trusted to stay whole
        (a read beyond a shrunken file kills its reader), OSError if it cannot be mapped."""
        n_bytes = file_bytes(n_pages, page_bytes)
        if os.fstat(fd).st_size != n_bytes:
            raise ValueError(f"a file of {os.fstat(fd).st_size} bytes, not {n_bytes}")
        if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise ValueError("a file that could shrink")
        mapping = map_file(fd, n_bytes, shared=True, writable=False)
        super().__init__(*views(mapping, n_pages, page_bytes))

    def close(self) -> None:
        """Unmap. Idempotent."""
        self._pages = np.empty((0, 0), np.uint8)
        self._generations = np.empty(0, np.uint64)


def _too_large(n_pages: int, page_bytes: int, available: int, flag: str) -> SetupError:
    return SetupError(
        f"{n_pages} pages of {page_bytes} bytes need {file_bytes(n_pages, page_bytes)} bytes of "
        f"memory and {available} are available: lower {flag}"
    )


def in_memory(pages: PageArray) -> NDArray[np.uint8]:
    """The array that they are. InvariantBroken: they are on a device."""
    if not isinstance(pages, np.ndarray):
        raise InvariantBroken("pages of a device, where a CPU copies")
    return pages


def views(
    mapping: memoryview, n_pages: int, page_bytes: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    """Arrays over the mapping; they, and they alone, keep it."""
    pages = np.frombuffer(mapping, np.uint8, n_pages * page_bytes).reshape(n_pages, page_bytes)
    generations = np.frombuffer(mapping, np.uint64, n_pages, offset=n_pages * page_bytes)
    return pages, generations
