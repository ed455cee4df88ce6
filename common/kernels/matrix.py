"""A product's matrix [O, I]: a plain tensor, or packed into the blocks that the C++ kernels read.

A gated matrix is gate's rows, then up's. Packed, it can be read row by row, but multiplies only
as a whole (`ops.swiglu`). Must not multiply.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from common.kernels.cpu import native

# O outputs (rows)  I inputs  R rows given or asked for

PACKED_LAYOUT = "blocks-1"
"""Names the bytes of packed matrices: change `cpu/matrix.h`, and this changes."""

_PACKED_DTYPES = (torch.float32, torch.bfloat16)
_STEP_BYTES = 4  # of one output: a float32 or two bfloat16


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedMatrix:
    """Read-only but for `write`, which expects memory that was zero."""

    blocks: Tensor = field(repr=False)
    dtype: torch.dtype
    n_outputs: int
    n_inputs: int
    n_products: int  # columns of a product: of a gated matrix half as many as outputs
    gated: bool
    native: "native.lib.Matrix" = field(repr=False)

    @classmethod
    def over(cls, blocks: Tensor, shape: Sequence[int], *, gated: bool) -> Self:
        """`blocks`: of `blocks_shape`, contiguous."""
        n_outputs, n_inputs = shape
        n_products = n_outputs // 2 if gated else n_outputs
        return cls(
            blocks=blocks,
            dtype=blocks.dtype,
            n_outputs=n_outputs,
            n_inputs=n_inputs,
            n_products=n_products,
            gated=gated,
            native=native.lib.Matrix(
                blocks.data_ptr(),
                n_products,
                n_inputs,
                float32=blocks.dtype == torch.float32,
                gated=gated,
            ),
        )

    def write(self, rows_RI: Tensor, first: int) -> None:
        """Rows of the matrix's dtype, contiguous, to `first` and those after it."""
        self.native.pack(rows_RI.data_ptr(), len(rows_RI), first)

    def read(self, outputs_R: Tensor) -> Tensor:
        """The rows [R, I] that the int64 indices name."""
        rows_RI = torch.empty((len(outputs_R), self.n_inputs), dtype=self.dtype)
        outputs_R = outputs_R.contiguous()
        self.native.unpack(outputs_R.data_ptr(), len(outputs_R), rows_RI.data_ptr())
        return rows_RI


Matrix = Tensor | PackedMatrix


def packs(dtype: torch.dtype) -> bool:
    """Whether matrices of that dtype are packed here."""
    return native.available() and dtype in _PACKED_DTYPES


def blocks_shape(shape: Sequence[int], dtype: torch.dtype, *, gated: bool) -> tuple[int, int, int]:
    """Of a packed [O, I] matrix: blocks, inputs rounded up, outputs of a block."""
    n_outputs, n_inputs = shape
    pair = _STEP_BYTES // dtype.itemsize
    n_parts = 2 if gated else 1
    block = native.lib.BLOCK
    return n_parts * -(-n_outputs // n_parts // block), -(-n_inputs // pair) * pair, block


def prepare(w_OI: Tensor, *, gated: bool = False) -> Matrix:
    """The matrix as it multiplies fastest here: a packed copy, or itself."""
    if not packs(w_OI.dtype):
        return w_OI
    blocks = torch.zeros(blocks_shape(w_OI.shape, w_OI.dtype, gated=gated), dtype=w_OI.dtype)
    packed = PackedMatrix.over(blocks, w_OI.shape, gated=gated)
    packed.write(w_OI.contiguous(), 0)
    return packed


def plain(matrix: Matrix) -> Tensor:
    """[O, I]; of a packed matrix a copy."""
    if isinstance(matrix, Tensor):
        return matrix
    return matrix.read(torch.arange(matrix.n_outputs))
