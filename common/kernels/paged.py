"""How kernels see pages: the handle of one layer's KV, and where a token lies in it.

The only place besides `common.kv.layout` that knows a page's shape. Must not know who owns a page.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

# P pages  S tokens of a page  G KV heads  D head dim

KEY_BLOCK = 128
"""Keys are reduced in blocks of as many tokens, aligned to absolute position (law 3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageGeometry:
    """Where a token's key or value of one head lies: element offsets from a layer's first.

    Token `o` of page `p`, head `g`: p * stride + (g * page_tokens + o) * head_dim.
    """

    page_tokens: int
    n_kv_heads: int
    head_dim: int
    stride: int  # elements between pages, all layers and K and V

    @property
    def run_tokens(self) -> int:
        """Tokens of one page and one key block that lie side by side."""
        return math.gcd(self.page_tokens, KEY_BLOCK)

    @property
    def unit(self) -> int:
        """Elements of the longest piece in which runs and pages can both be counted."""
        return math.gcd(self.run_tokens * self.head_dim, self.stride)


class Scratch:
    """Memory that the kernels of one pool write intermediate values to; grows, never shrinks.

    What large tensors cost is the first touch of their pages, so they are kept. One pass at a
    time: a tensor taken is good until the same name is taken again.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A contiguous tensor of arbitrary content."""
        n = math.prod(shape)
        buffer = self._buffers.get((name, dtype))
        if buffer is None or len(buffer) < n:
            buffer = torch.empty(n, dtype=dtype)
            self._buffers[name, dtype] = buffer
        return buffer[:n].view(shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayer:
    """One layer's KV in all pages of a pool: views of the pool's memory.

    k_PSGD, v_PSGD  to write tokens to
    k_units, v_units  [units, unit] to gather runs from; row r starts r * unit elements after the
                      layer's first key (value)
    k_address, v_address  of that first key (value)
    """

    geometry: PageGeometry
    k_PSGD: Tensor
    v_PSGD: Tensor
    k_units: Tensor
    v_units: Tensor
    k_address: int
    v_address: int
    dtype: torch.dtype
    scratch: Scratch = field(repr=False)

    @staticmethod
    def of(elements: Tensor, geometry: PageGeometry, layer: int, scratch: Scratch) -> "KVLayer":
        """A layer of the pool whose elements these are, page by page (see `KVSpec`)."""
        n_heads, page_tokens = geometry.n_kv_heads, geometry.page_tokens
        head_dim = geometry.head_dim
        shape = (len(elements) // geometry.stride, n_heads, page_tokens, head_dim)
        strides = (geometry.stride, page_tokens * head_dim, head_dim, 1)
        half = n_heads * page_tokens * head_dim
        first_k, first_v = 2 * layer * half, (2 * layer + 1) * half
        units = elements.view(-1, geometry.unit)
        return KVLayer(
            geometry=geometry,
            k_PSGD=elements.as_strided(shape, strides, first_k).transpose(1, 2),
            v_PSGD=elements.as_strided(shape, strides, first_v).transpose(1, 2),
            k_units=units[first_k // geometry.unit :],
            v_units=units[first_v // geometry.unit :],
            k_address=elements.data_ptr() + first_k * elements.itemsize,
            v_address=elements.data_ptr() + first_v * elements.itemsize,
            dtype=elements.dtype,
            scratch=scratch,
        )
