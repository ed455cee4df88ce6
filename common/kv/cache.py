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
