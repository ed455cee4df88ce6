"""Memory files mapped in huge pages: a core streams what lies in 4 KiB pages at two thirds of the
speed, since it waits for their translations.

A memfd gets huge pages by no setting that a distribution ships with: its first byte of every 2 MiB
is allocated, then the kernel is asked to collapse the rest around it (Linux 6.1; older: the pages
stay small). Must not decide what is stored.
"""

import ctypes
import mmap
import os
import weakref
from contextlib import suppress

HUGE_BYTES = 2 << 20

_MADV_POPULATE_READ = 22  # Linux 5.14
_MADV_POPULATE_WRITE = 23
_MADV_COLLAPSE = 25
_PROT_NONE = 0x0
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def allocate(fd: int, n_bytes: int) -> None:
    """Give an empty file that many bytes of memory, zero, in huge pages as far as can be.

    Callers check first that there is as much: what the kernel lacks, it takes from some process by
    killing it. OSError: a limit of the file system's.
    """
    os.ftruncate(fd, n_bytes)
    for offset in range(0, n_bytes - HUGE_BYTES + 1, HUGE_BYTES):
        os.posix_fallocate(fd, offset, 1)
    view = map_file(fd, n_bytes, shared=True)
    with suppress(OSError):  # not here, or no memory in one piece: slower, not wrong
        _advise(view, _MADV_COLLAPSE)
    os.posix_fallocate(fd, 0, n_bytes)


def can_collapse() -> bool:
    """Whether `allocate` gets huge pages here."""
    try:
        fd = os.memfd_create("baton-huge-pages")
    except (AttributeError, OSError):  # another system than Linux
        return False
    try:
        os.ftruncate(fd, HUGE_BYTES)
        os.posix_fallocate(fd, 0, 1)
        _advise(map_file(fd, HUGE_BYTES, shared=True), _MADV_COLLAPSE)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def map_file(fd: int, n_bytes: int, *, shared: bool, writable: bool = True) -> memoryview:
    """The whole file at an address that huge pages can be mapped at.

    What is written goes to the file, or where it is not `shared`, to this process's own copy of
    the page; where it is not `writable`, the memory refuses (the view does not know: a crash).
    Unmapped when the last view, array or tensor over it is gone. OSError: it cannot be mapped.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    reserved = _mmap(None, n_bytes + HUGE_BYTES, _PROT_NONE, flags, -1)
    address = -(-reserved // HUGE_BYTES) * HUGE_BYTES
    _mmap(
        address,
        n_bytes,
        mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0),
        (mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE) | _MAP_FIXED,
        fd,
    )
    end = address + -(-n_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    for unused, unused_end in ((reserved, address), (end, reserved + n_bytes + HUGE_BYTES)):
        if unused < unused_end:
            _libc.munmap(unused, unused_end - unused)
    array = (ctypes.c_ubyte * n_bytes).from_address(address)
    # At exit threads may still read it: the kernel unmaps it after them.
    weakref.finalize(array, _libc.munmap, address, n_bytes).atexit = False
    return memoryview(array).cast("B")


def populate(view: memoryview, *, to_write: bool = False) -> None:
    """Map all pages of a `map_file` now, and not in the first pass that reads (or writes) them."""
    with suppress(OSError):  # an older kernel: pages are mapped as they are touched
        _advise(view, _MADV_POPULATE_WRITE if to_write else _MADV_POPULATE_READ)


def _mmap(address: int | None, n_bytes: int, protection: int, flags: int, fd: int) -> int:
    mapped = _libc.mmap(address, n_bytes, protection, flags, fd, 0)
    if mapped == _FAILED:
        raise _error()
    return mapped


def _advise(view: memoryview, advice: int) -> None:
    address = ctypes.addressof(ctypes.c_ubyte.from_buffer(view))
    if _libc.madvise(address, view.nbytes, advice):
        raise _error()


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
