"""A pool's memory as tensors: views, never copies, of the bytes that transports read and write.

Must not decide which page is whose (see `common.kv.pages`).
"""

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.errors import InvariantBroken
from common.ids import PageId
from common.kernels.paged import KVLayer, PageGeometry, Scratch
from common.kv.layout import FP8, KVSpec

TORCH_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_ELEMENTS = {**TORCH_DTYPES, FP8: torch.float8_e4m3fn}


class PageMemory(Protocol):
    """A pool's, as `transfer` makes it: an array in memory, or on a device what torch and CuPy take
    for one by its `__cuda_array_interface__`."""

    @property
    def pages(self) -> Any: ...  # noqa: ANN401 - one or the other


def tensor_over(memory: PageMemory, device: torch.device) -> Tensor:
    """[n_pages, page_bytes] of uint8: the memory itself, never a copy."""
    if isinstance(memory.pages, np.ndarray):
        return torch.from_numpy(memory.pages)
    return torch.as_tensor(memory, device=device)


class KVCache:
    """The KV of a pool's pages, layer by layer."""

    def __init__(self, spec: KVSpec, pages: NDArray[np.uint8] | Tensor) -> None:
        """`pages`: [n_pages, page_bytes] of uint8, contiguous and writable, in memory or on a
        device; must outlive the cache."""
        self.pages_PB = torch.from_numpy(pages) if isinstance(pages, np.ndarray) else pages
        if self.pages_PB.shape[1:] != (spec.page_bytes,) or not self.pages_PB.is_contiguous():
            raise InvariantBroken(
                f"pages of shape {tuple(self.pages_PB.shape)} and strides "
                f"{self.pages_PB.stride()} given; [n_pages, {spec.page_bytes}], contiguous, needed"
            )
        self.spec = spec
        self.dtype = _ELEMENTS[spec.dtype]
        self.geometry = PageGeometry(
            page_tokens=spec.page_tokens,
            n_kv_heads=spec.n_kv_heads,
            head_dim=spec.head_dim,
            stride=spec.page_bytes // self.dtype.itemsize,
            scales_at=spec.scales_at,
        )
        elements = self.pages_PB.view(self.dtype).view(-1)
        scratch = Scratch()
        self._layers = [
            KVLayer.of(elements, self.geometry, layer, scratch) for layer in range(spec.n_layers)
        ]

    @property
    def n_pages(self) -> int:
        return len(self.pages_PB)

    def layer(self, layer: int) -> KVLayer:
        return self._layers[layer]

    def copy_page(self, source: PageId, destination: PageId) -> None:
        self.pages_PB[destination].copy_(self.pages_PB[source])
