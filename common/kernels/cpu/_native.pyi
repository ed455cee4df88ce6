"""The compiled module (`module.cpp`). Addresses are `Tensor.data_ptr()`; kernels free the GIL."""

SOURCES: str
"""`sources.digest` of what it was compiled from."""

BLOCK: int
"""Outputs of a matrix's block."""

def isa() -> str:
    """The instructions that kernels use: "avx512bf16", "avx512", "avx2"; "": none of these."""

def best_isa() -> str: ...
def set_isa(name: str) -> None:
    """Use lesser instructions than the processor has. ValueError: it has not these."""

def set_threads(n: int) -> None:
    """Compute threads, the caller's included. No kernel may be running."""

def n_threads() -> int: ...

class Matrix:
    """A view of packed weights (`matrix.h`), whose memory must outlive it."""

    def __init__(
        self,
        data: int,
        n_outputs: int,
        n_inputs: int,
        *,
        float32: bool,
        weight_format: str,
        gated: bool,
    ) -> None:
        """`n_outputs` of one part; otherwise bfloat16. ValueError: no such format."""

    @property
    def n_blocks(self) -> int:
        """Of all parts."""

    @property
    def block_bytes(self) -> int: ...
    def pack(self, rows: int, n_rows: int, first: int) -> None:
        """Rows as the format stores them, contiguous."""

    def unpack(self, outputs: int, n: int, rows: int) -> None:
        """`outputs`: int64."""

def multiply(matrix: Matrix, x: int, n_rows: int, bias: int, out: int, out_float32: bool) -> None:
    """Rows x of the matrix's dtype, contiguous; `bias` 0: none; `out` bfloat16 or float32."""

def set_prefetch_rows(n_rows: int) -> None:
    """Products of as many rows ask for weights before they need them (`products.h`)."""

class Pages:
    """Where the pages of a pool hold a layer's keys and values (`paged.PageGeometry`)."""

    def __init__(
        self, n_pages: int, page_tokens: int, n_kv_heads: int, head_dim: int, stride: int
    ) -> None: ...

class AttentionPlan:
    """What a pass attends to, in tasks (`attention.h`); its arrays must outlive it."""

    def __init__(
        self,
        start_B1: int,
        len_B: int,
        tables_BM: int,
        n_sequences: int,
        table_width: int,
        pages: Pages,
        n_rep: int,
    ) -> None:
        """`n_rep`: query heads a KV head. IndexError: rows or pages that are not there."""

class Turns:
    """How far rows are rotated and where they are written; the arrays must outlive it."""

    def __init__(
        self, cos_sin: int, n_positions: int, positions: int, slots: int, n_rows: int, pages: Pages
    ) -> None:
        """IndexError: positions or slots that are not there."""

def turn_and_write(
    turns: Turns, float32: bool, q: int, n_heads: int, k: int, v: int, v_stride: int,
    page_k: int, page_v: int,
) -> None:  # fmt: skip
    """Rotates q and k, contiguous, in place; rows of v are `v_stride` elements apart."""

def attend(plan: AttentionPlan, float32: bool, q: int, page_k: int, page_v: int, out: int) -> None:
    """q and out contiguous [T, N, D]; `page_k` and `page_v`: the layer's first key and value."""

def turn_write_attend(
    plan: AttentionPlan, turns: Turns, float32: bool, qkv: int, q_norm: int, k_norm: int,
    eps: float, page_k: int, page_v: int, out: int,
) -> None:  # fmt: skip
    """Both, from rows of q, k and v side by side, which are overwritten; no norm is 0."""

def norm(
    float32: bool, x: int, residual: int, weight: int, eps: float, n_rows: int, n: int, out: int
) -> None:  # fmt: skip
    """`residual` 0: none; otherwise x is first added to it. All rows contiguous."""

def argmax(logits: int, n_rows: int, n: int, out: int) -> None:
    """Of float32 rows the first largest, int64; -1 where that is not finite or a logit is NaN."""

def draw(
    logits: int, scales: int, min_ps: int, top_ps: int, top_ks: int, uniforms: int, n_draws: int,
    n: int, weight_bits: int, tokens: int,
) -> None:  # fmt: skip
    """`logits`: addresses of the rows; the others arrays, int64 or float64 (`sampling.h`)."""

class Layers:
    """A Llama's layers (`layers.h`). Whatever is given must outlive it. 0: there is none."""

    def __init__(self, *, float32: bool, hidden: int, eps: float, final_norm: int) -> None: ...
    def add(
        self,
        *,
        attn_norm: int,
        mlp_norm: int,
        q_norm: int,
        k_norm: int,
        eps: float,
        qkv: Matrix,
        qkv_bias: int,
        o: Matrix,
        o_bias: int,
        gate_up: Matrix,
        gate_up_bias: int,
        down: Matrix,
        down_bias: int,
    ) -> None: ...
    def run(
        self, plan: AttentionPlan, turns: Turns, pages: list[int], residual: int, out: int
    ) -> None:
        """`pages`: of each layer the address of its first key, then of its first value."""
