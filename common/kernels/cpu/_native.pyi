"""The compiled module (`module.cpp`). Addresses are `Tensor.data_ptr()`; kernels free the GIL."""

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
        self, data: int, n_outputs: int, n_inputs: int, *, float32: bool, gated: bool
    ) -> None:
        """`n_outputs` of one part; otherwise bfloat16."""

    def pack(self, rows: int, n_rows: int, first: int) -> None: ...
    def unpack(self, outputs: int, n: int, rows: int) -> None:
        """`outputs`: int64."""

def multiply(matrix: Matrix, x: int, n_rows: int, bias: int, out: int, out_float32: bool) -> None:
    """Rows x of the matrix's dtype, contiguous; `bias` 0: none; `out` bfloat16 or float32."""
