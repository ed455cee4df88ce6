"""The packed weights in a GPU's memory: one copy for all workers on it that compute with the same.

The first of them fills it; it goes to the others as a file descriptor, by the same rendezvous as
a copy in a host's memory, and is there as long as any of them lives. Nobody can write to it any
more. Layout: the tensors, each at a multiple of 64 bytes, and at the very end a header that says
what they are.
"""

import hashlib
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from common.errors import InvariantBroken, SetupError
from common.kernels.matrix import Matrix
from common.model.device_memory import (
    Allocation,
    DeviceMemory,
    Driver,
    Mapping,
    NotShareable,
    nvidia_driver,
)
from common.model.packing import Placed
from common.model.rendezvous import Rendezvous
from common.model.shared_weights import Filler, encoded_header


@dataclass(frozen=True, slots=True)
class Layout:
    """What a copy of the weights looks like."""

    placed: tuple[Placed, ...]
    n_bytes: int
    dtype: torch.dtype

    def views(self, buffer: Tensor) -> dict[str, Matrix]:
        """Every tensor, as plain rows of a buffer of bytes."""
        return {entry.packed.name: self._view(buffer, entry) for entry in self.placed}

    def _view(self, buffer: Tensor, entry: Placed) -> Tensor:
        if entry.is_packed(self.dtype):
            raise InvariantBroken(f"{entry.packed.name} would be packed for a CPU")
        rows = buffer[entry.offset : entry.offset + entry.n_bytes]
        return rows.view(self.dtype).view(entry.shape)


class Cuda:
    """A device, by the few ways in which weights are put on it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def driver(self) -> Driver:
        """Raises NotShareable: there is none."""
        return nvidia_driver()

    def memory(self) -> DeviceMemory:
        """Raises NotShareable."""
        self.synchronize()  # which makes the device's context, where torch has not yet
        return DeviceMemory(self.driver(), self.device.index or 0)

    def tensor(self, mapping: Mapping) -> Tensor:
        """The memory itself, as uint8: valid as long as it is mapped. Raises NotShareable: torch
        does not take it."""
        try:
            buffer = torch.as_tensor(mapping, device=self.device)
        except RuntimeError as error:
            raise NotShareable(f"torch: {error}") from error
        if buffer.data_ptr() != mapping.address:
            raise NotShareable(f"torch copies what is mapped on {self.device}")
        return buffer

    def synchronize(self) -> None:
        """Returns when all that was asked of the device is done."""
        torch.cuda.synchronize(self.device)


class SharedDeviceWeights:
    """A GPU's copy of the weights, and this process's part in handing it on."""

    def __init__(self, cuda: Cuda, run_dir: Path, key: str, layout: Layout) -> None:
        """`key` names the exact bytes: equal keys must mean equal fillings. Raises NotShareable."""
        self._cuda = cuda
        self._layout = layout
        self._memory = cuda.memory()
        key = hashlib.blake2b(f"{key} {self._memory.uuid}".encode(), digest_size=8).hexdigest()
        self._header = encoded_header(key, layout.placed, layout.dtype)
        needed, block = layout.n_bytes + len(self._header), self._memory.block_bytes
        self.n_bytes = -(-needed // block) * block
        self._made: Allocation | None = None
        self._is_there = False
        self._rendezvous = Rendezvous(run_dir, f"weights-{key}")

    @property
    def is_made_here(self) -> bool:
        """Whether this process filled it."""
        return self._made is not None

    @property
    def is_there(self) -> bool:
        """Whether the device has a copy, even if this process could not open it."""
        return self._is_there

    def open(self, fill: Filler, waiting: Callable[[int], None]) -> dict[str, Matrix]:
        """The tensors, filled here or by another process; a kernel that writes to one fails.
        `waiting`: see `Rendezvous.obtain`. They are mapped as long as this process lives.

        Raises NotShareable: then `close`, and have a copy of one's own. Raises SetupError: there
        is too little memory, or another process has handed over something else.
        """
        fd = self._rendezvous.obtain(lambda: self._create(fill), waiting)
        self._is_there = True
        try:
            allocation = self._made or self._memory.take(fd, self.n_bytes)
        finally:
            os.close(fd)
        try:
            mapping = allocation.map(writable=False)
        finally:
            allocation.release()
        try:
            buffer = self._cuda.tensor(mapping)
            self._check(buffer)
        except BaseException:
            mapping.close()
            raise
        return self._layout.views(buffer)

    def close(self) -> None:
        """Hand the copy to nobody any more. Tensors stay good."""
        self._rendezvous.close()

    def _create(self, fill: Filler) -> int:
        allocation = self._memory.create(self.n_bytes)
        try:
            fd = allocation.export()  # first: where it cannot be, nothing is read in vain
            try:
                self._write(allocation, fill)
            except BaseException:
                os.close(fd)
                raise
        except BaseException:
            allocation.release()
            raise
        self._made = allocation
        return fd

    def _write(self, allocation: Allocation, fill: Filler) -> None:
        with closing(allocation.map(writable=True)) as mapping:
            buffer = self._cuda.tensor(mapping)
            fill(self._layout.views(buffer))
            header = torch.frombuffer(bytearray(self._header), dtype=torch.uint8)
            buffer[-len(header) :] = header
            self._cuda.synchronize()  # other processes' kernels come after, without CUDA's help

    def _check(self, buffer: Tensor) -> None:
        there = bytes(buffer[-len(self._header) :].cpu().numpy())
        if there != self._header:
            raise SetupError(
                f"the weights that another process has handed over on {self._cuda.device} are not "
                f"those expected ({self.n_bytes} bytes of {self._layout.dtype}): stop the workers "
                "that were started from other files or another version, or name another --run-dir"
            )
