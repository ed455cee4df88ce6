"""Counts the bytes that kernels read and write: the masks of every load and store in the
interpreter, each program for itself, as if nothing were cached but what is said to be."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor


@dataclass
class Traffic:
    """cached  small tensors that all programs share; their bytes count once"""

    cached: tuple[Tensor, ...] = ()
    read_bytes: int = 0
    written_bytes: int = 0
    _seen: set[int] = field(default_factory=set[int])

    @property
    def n_bytes(self) -> int:
        return self.read_bytes + self.written_bytes

    def read(self, addresses: NDArray[np.uint64], itemsize: int) -> None:
        for tensor in self.cached:
            if tensor.data_ptr() <= int(addresses[0]) < tensor.data_ptr() + tensor.nbytes:
                new = set(addresses.tolist()) - self._seen
                self._seen |= new
                self.read_bytes += len(new) * itemsize
                return
        self.read_bytes += len(addresses) * itemsize


@contextmanager
def counting(*cached: Tensor) -> Iterator[Traffic]:
    from triton.runtime.interpreter import InterpreterBuilder  # where it is there

    traffic = Traffic(cached)
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def itemsize(pointers: Any) -> int:  # noqa: ANN401 the interpreter's own
        return pointers.get_element_ty().primitive_bitwidth // 8

    def counted_load(self: Any, pointers: Any, mask: Any, *rest: Any, **named: Any) -> Any:  # noqa: ANN401
        addresses = pointers.data[mask.data]
        if len(addresses):
            traffic.read(addresses, itemsize(pointers))
        return load(self, pointers, mask, *rest, **named)

    def counted_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:  # noqa: ANN401
        traffic.written_bytes += int(mask.data.sum()) * itemsize(pointers)
        return store(self, pointers, value, mask, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpreterBuilder, "create_masked_load", counted_load)
        patch.setattr(InterpreterBuilder, "create_masked_store", counted_store)
        yield traffic
