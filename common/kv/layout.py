"""What one token leaves behind, and so what a page is: the only place that knows a page's shape
besides the kernels. Whatever moves pages sees `page_bytes` and nothing else (law 7).
"""

import math

import msgspec

PAGE_ALIGN_BYTES = 4096
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
FP8 = "fp8_e4m3"
SCALE_BYTES = 4
"""Of one float32."""


class KVSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Multi-head and grouped-query attention; one group of layers, one segment a page.

    A page is `[n_layers, 2, n_kv_heads, page_tokens, head_dim]` of `dtype`, contiguous; K first.
    In fp8_e4m3 float32 scales `[n_layers, 2, n_kv_heads, page_tokens]` follow, which the elements
    of that token and head are to be multiplied by. Pages lie `page_bytes` apart: all of that,
    rounded up to 4096.
    """

    n_layers: int
    n_kv_heads: int
    head_dim: int
    page_tokens: int
    dtype: str

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        return (self.n_layers, 2, self.n_kv_heads, self.page_tokens, self.head_dim)

    @property
    def token_bytes(self) -> int:
        """KV of one token, all layers, scales included."""
        if self.is_fp8:
            n_bytes = self.head_dim + SCALE_BYTES
        else:
            n_bytes = self.head_dim * DTYPE_BYTES[self.dtype]
        return self.n_layers * 2 * self.n_kv_heads * n_bytes

    @property
    def is_fp8(self) -> bool:
        return self.dtype == FP8

    @property
    def scales_at(self) -> int | None:
        """Bytes from a page's first to its scales; None: it has none."""
        return math.prod(self.shape) if self.is_fp8 else None

    @property
    def used_bytes(self) -> int:
        """Bytes of a page that hold KV."""
        return self.token_bytes * self.page_tokens

    @property
    def page_bytes(self) -> int:
        """Distance between pages."""
        return -(-self.used_bytes // PAGE_ALIGN_BYTES) * PAGE_ALIGN_BYTES

    def describe(self) -> str:
        """Equal texts mean interchangeable pages. Compared in the hello, shown when it differs."""
        dims = "x".join(str(n) for n in self.shape)
        scales = "" if self.scales_at is None else ",scales=float32"
        return f"layers,kv,heads,tokens,dim={dims}{scales}"


def pages_for(n_tokens: int, page_tokens: int) -> int:
    """Pages that hold `n_tokens` tokens: ceil(n_tokens / page_tokens)."""
    return -(-n_tokens // page_tokens)
