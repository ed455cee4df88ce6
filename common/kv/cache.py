"""A pool's memory as tensors: views, never copies, of the bytes that transports read and write.

Must not decide which page is whose (see `common.kv.pages`).
"""

import numpy as np
import torch
from numpy.typing import NDArray

from common.errors import InvariantBroken
from common.ids import PageId
from common.kernels.paged import KVLayer, PageGeometry, Scratch
from common.kv.layout import KVSpec

TORCH_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class KVCache:
    """The KV of a pool's pages, layer by layer."""

    def __init__(self, spec: KVSpec, pages: NDArray[np.uint8]) -> None:
        """`pages`: [n_pages, page_bytes], contiguous and writable; must outlive the cache."""
        if pages.shape[1:] != (spec.page_bytes,) or not pages.flags.c_contiguous:
            raise InvariantBroken(
                f"pages of shape {pages.shape} and strides {pages.strides} given; "
                f"[n_pages, {spec.page_bytes}], contiguous, needed"
            )
        self.spec = spec
        self.dtype = TORCH_DTYPES[spec.dtype]
        self.pages_PB = torch.from_numpy(pages)
        self.geometry = PageGeometry(
            page_tokens=spec.page_tokens,
            n_kv_heads=spec.n_kv_heads,
            head_dim=spec.head_dim,
            stride=spec.page_bytes // self.dtype.itemsize,
        )
        scratch = Scratch()
        self._layers = [self._view(layer, scratch) for layer in range(spec.n_layers)]

    @property
    def n_pages(self) -> int:
        return len(self.pages_PB)

    def layer(self, layer: int) -> KVLayer:
        return self._layers[layer]

    def copy_page(self, source: PageId, destination: PageId) -> None:
        self.pages_PB[destination].copy_(self.pages_PB[source])

    def _view(self, layer: int, scratch: Scratch) -> KVLayer:
        elements = self.pages_PB.view(self.dtype).view(-1)
        geometry = self.geometry
        half = geometry.n_kv_heads * geometry.page_tokens * geometry.head_dim
        shape = (self.n_pages, geometry.n_kv_heads, geometry.page_tokens, geometry.head_dim)
        strides = (geometry.stride, half // geometry.n_kv_heads, geometry.head_dim, 1)
        units = elements.view(-1, geometry.unit)
        first_k = 2 * layer * half
        first_v = first_k + half
        return KVLayer(
            geometry=geometry,
            k_PSGD=elements.as_strided(shape, strides, first_k).transpose(1, 2),
            v_PSGD=elements.as_strided(shape, strides, first_v).transpose(1, 2),
            k_units=units[first_k // geometry.unit :],
            v_units=units[first_v // geometry.unit :],
            scratch=scratch,
        )
