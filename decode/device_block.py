"""Small arrays of a step as one block: written on the host, and copied to where a device keeps them
from memory that it reads while the host goes on. Must not know what they mean."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from common.engine.device_thread import MOST_UNANSWERED
from common.engine.stream import Stream

ALIGNED_BYTES = 16  # of each array: kernels are compiled for that


class DeviceBlock:
    """host, device   the arrays by name; those of the device stay where they are"""

    def __init__(
        self, arrays: Mapping[str, tuple[DTypeLike, tuple[int, ...]]], stream: Stream
    ) -> None:
        """By name dtype and shape; zeros."""
        made = {name: np.zeros(shape, dtype) for name, (dtype, shape) in arrays.items()}
        ends = np.cumsum([-(-a.nbytes // ALIGNED_BYTES) * ALIGNED_BYTES for a in made.values()])
        starts = dict(zip(made, [0, *ends[:-1].tolist()], strict=True))
        self._bytes = np.zeros(int(ends[-1]), np.uint8)
        self._on_device = torch.zeros(len(self._bytes), dtype=torch.uint8, device=stream.device)
        self._outgoing = [_Outgoing(stream, len(self._bytes)) for _ in range(MOST_UNANSWERED)]
        self._turn = 0
        self.host: dict[str, NDArray[np.generic]] = {}
        self.device: dict[str, Tensor] = {}
        for name, array in made.items():
            part = slice(starts[name], starts[name] + array.nbytes)
            self.host[name] = self._bytes[part].view(array.dtype).reshape(array.shape)
            dtype = torch.from_numpy(array).dtype
            self.device[name] = self._on_device[part].view(dtype).view(array.shape)

    def send(self) -> None:
        """Ask for a copy of all of it. While no more than one that it was asked for before is
        unanswered."""
        self._turn = (self._turn + 1) % MOST_UNANSWERED
        outgoing = self._outgoing[self._turn]
        outgoing.array[:] = self._bytes
        self._on_device.copy_(outgoing.pinned, non_blocking=True)


class _Outgoing:
    def __init__(self, stream: Stream, n_bytes: int) -> None:
        self.pinned = stream.pinned(n_bytes, torch.uint8)
        self.array: NDArray[np.uint8] = self.pinned.numpy()
