"""Rows as wide as the vocabulary that some draws need, on a device: each is brought once, and kept
until others need its place. Must not know what they mean."""

from collections import OrderedDict
from collections.abc import Hashable, Sequence

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from common.engine.stream import Mark, Stream

MOST_COMING = 8
"""Rows on their way at once. Who has more to bring waits for the first of them."""

# H rows  V vocabulary


class WideRows:
    """rows_HV   where the device reads them"""

    def __init__(self, n_rows: int, n_vocab: int, dtype: DTypeLike, stream: Stream) -> None:
        self._stream = stream
        zeros_V = torch.from_numpy(np.zeros(n_vocab, dtype))
        self.rows_HV = torch.zeros((n_rows, n_vocab), dtype=zeros_V.dtype, device=stream.device)
        self._free = list(range(n_rows))
        self._row_of: OrderedDict[Hashable, int] = OrderedDict()  # last used last
        self._coming = [_Coming(stream.pinned(n_vocab, zeros_V.dtype)) for _ in range(MOST_COMING)]
        self._turn = 0

    def seat(self, keys: Sequence[Hashable]) -> list[Hashable]:
        """Give each a row, of which there are enough. Returns those whose rows have to be brought:
        they may hold anything."""
        for key in keys:
            if key in self._row_of:
                self._row_of.move_to_end(key)
        new = [key for key in keys if key not in self._row_of]
        for key in new:
            row = self._free.pop() if self._free else self._row_of.popitem(last=False)[1]
            self._row_of[key] = row
        return new

    def row(self, key: Hashable) -> int:
        """-1: it has none."""
        return self._row_of.get(key, -1)

    def leave(self, key: Hashable) -> None:
        """What its row holds is wrong."""
        row = self._row_of.pop(key, None)
        if row is not None:
            self._free.append(row)

    def bring(self, key: Hashable, values_V: NDArray[np.generic]) -> None:
        """Ask for its row to become that, after all that was asked for before."""
        self._turn = (self._turn + 1) % MOST_COMING
        coming = self._coming[self._turn]
        if coming.left is not None:
            coming.left.synchronize()
        coming.array[:] = values_V
        self.rows_HV[self._row_of[key]].copy_(coming.pinned, non_blocking=True)
        coming.left = self._stream.mark()


class _Coming:
    """Memory that a row is copied from."""

    def __init__(self, pinned: Tensor) -> None:
        self.pinned = pinned
        self.array: NDArray[np.generic] = pinned.numpy()
        self.left: Mark | None = None  # when it has been
