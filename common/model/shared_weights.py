"""The packed weights in memory: one read-only copy for all CPU workers of a host, or a private one.

The copy is a memfd, sealed once filled: it has no name, nothing can change it, and it is gone
with the last process that maps it. Layout: 8 bytes of header length (little-endian), the header
(msgpack), zeros up to a page's boundary, then the tensors, each at a multiple of 64 bytes, then
zeros up to the end of a huge page.
"""

import fcntl
import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import torch

from common.errors import SetupError
from common.huge_pages import HUGE_BYTES, allocate, map_file, populate
from common.kernels.matrix import Matrix
from common.model.packing import Placed, views
from common.model.rendezvous import Rendezvous

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE

Filler = Callable[[dict[str, Matrix]], None]
"""Writes every tensor's values. Must not keep a reference to any of them."""


class WeightsHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Describes a copy to whoever finds it open; a receiver checks that it is the expected."""

    key: str
    dtype: str
    tensors: tuple[tuple[str, str, tuple[int, ...], int, int], ...]
    """name, format, shape, offset, bytes"""


def encoded_header(key: str, placed: tuple[Placed, ...], dtype: torch.dtype) -> bytes:
    """Of a copy that `key` names: equal for equal copies alone."""
    rows = tuple((entry.packed.name, entry.format.value, *entry[2:]) for entry in placed)
    name = str(dtype).removeprefix("torch.")
    return msgspec.msgpack.encode(WeightsHeader(key=key, dtype=name, tensors=rows))


def private_weights(
    placed: tuple[Placed, ...], n_bytes: int, dtype: torch.dtype, fill: Filler
) -> dict[str, Matrix]:
    """Weights in this process's own memory, in huge pages where the kernel gives them."""
    _check_available(n_bytes)
    mapping = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages: slower, not wrong
        mapping.madvise(mmap.MADV_HUGEPAGE)
    tensors = views(memoryview(mapping), placed, dtype)
    fill(tensors)
    return tensors


def _check_available(n_bytes: int) -> None:
    """Refuse what the machine cannot hold: asked for regardless, it kills some other process."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, value = line.split(":")
        if name == "MemAvailable" and n_bytes > (available := int(value.split()[0]) * 1024):
            raise SetupError(
                f"the weights take {n_bytes} bytes of memory and {available} are available"
            )


class SharedWeights:
    """The host's copy of the weights, and this process's part in handing it on."""

    def __init__(
        self, run_dir: Path, key: str, placed: tuple[Placed, ...], n_bytes: int, dtype: torch.dtype
    ) -> None:
        """`key` names the exact bytes: equal keys must mean equal fillings."""
        self._rendezvous = Rendezvous(run_dir, f"weights-{key}")
        self._placed = placed
        self._dtype = dtype
        header = encoded_header(key, placed, dtype)
        self._prefix = len(header).to_bytes(8, "little") + header
        self._base = -(-len(self._prefix) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._n_bytes = -(-(self._base + n_bytes) // HUGE_BYTES) * HUGE_BYTES

    def open(self, fill: Filler, waiting: Callable[[int], None]) -> dict[str, Matrix]:
        """The tensors, filled here or by another process. Writing to one is a bug; it would
        change this process's view alone. `waiting`: see `Rendezvous.obtain`.
        """
        fd = self._rendezvous.obtain(lambda: self._create(fill), waiting)
        try:
            self._check(fd)
            return self._map(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Hand the copy to nobody any more. Tensors stay good."""
        self._rendezvous.close()

    def _create(self, fill: Filler) -> int:
        fd = os.memfd_create("baton-weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            self._allocate(fd)
            self._write(fd, fill)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)  # EBUSY while it is mapped
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _allocate(self, fd: int) -> None:
        """Take all memory now: later, a lack of it would be a signal in the middle of a pass."""
        _check_available(self._n_bytes)
        try:
            allocate(fd, self._n_bytes)
        except OSError as error:
            raise SetupError(
                f"no memory for {self._n_bytes} bytes of weights: {error.strerror}"
            ) from error

    def _write(self, fd: int, fill: Filler) -> None:
        view = map_file(fd, self._n_bytes, shared=True)
        view[: len(self._prefix)] = self._prefix
        fill(views(view[self._base :], self._placed, self._dtype))

    def _check(self, fd: int) -> None:
        sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS == _SEALS
        size = os.fstat(fd).st_size
        expected = os.pread(fd, len(self._prefix), 0) == self._prefix
        if not sealed or not expected or size != self._n_bytes:
            raise SetupError(
                f"the weights received from another process are not those expected (sealed: "
                f"{sealed}, header equal: {expected}, bytes: {size} of {self._n_bytes})"
            )

    def _map(self, fd: int) -> dict[str, Matrix]:
        # Writable in name only, since torch warns of a read-only buffer: the seal forbids any
        # write to reach the memfd. MAP_POPULATE would therefore copy every page; this does not.
        view = map_file(fd, self._n_bytes, shared=False)
        populate(view)
        return views(view[self._base :], self._placed, self._dtype)
