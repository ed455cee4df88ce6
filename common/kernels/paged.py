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
    scales_at: int | None = None  # bytes from a page's first to its scales; None: it has none

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
    k_scales_PSG, v_scales_PSG  float32, where elements are fp8: what those of one token and head
                      are to be multiplied by
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
    k_scales_PSG: Tensor | None = None
    v_scales_PSG: Tensor | None = None

    @property
    def is_fp8(self) -> bool:
        return self.k_scales_PSG is not None

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
        k_scales_PSG, v_scales_PSG = _scales(elements, geometry, layer)
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
            k_scales_PSG=k_scales_PSG,
            v_scales_PSG=v_scales_PSG,
        )


def _scales(
    elements: Tensor, geometry: PageGeometry, layer: int
) -> tuple[Tensor | None, Tensor | None]:
    """A layer's, of K and of V."""
    if geometry.scales_at is None:
        return None, None
    floats = elements.view(torch.float32)
    stride = geometry.stride * elements.itemsize // floats.itemsize
    n_heads, page_tokens = geometry.n_kv_heads, geometry.page_tokens
    shape = (len(floats) // stride, n_heads, page_tokens)
    first_k = geometry.scales_at // floats.itemsize + 2 * layer * n_heads * page_tokens
    k_PGS, v_PGS = (
        floats.as_strided(shape, (stride, page_tokens, 1), first)
        for first in (first_k, first_k + n_heads * page_tokens)
    )
    return k_PGS.transpose(1, 2), v_PGS.transpose(1, 2)
