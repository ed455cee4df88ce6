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
from common.kernels.formats import WeightFormat

# O outputs (rows)  I inputs  R rows given or asked for  B bytes of a row as its format stores it

PACKED_LAYOUT = "blocks-3"
"""Names the bytes of packed matrices: change `cpu/matrix.h`, and this changes."""

_PACKED_DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedMatrix:
    """Read-only but for `write`, which expects memory that was zero. `dtype`: of what it
    multiplies and of the rows that it reads out.
    """

    blocks: Tensor = field(repr=False)
    dtype: torch.dtype
    format: WeightFormat
    n_outputs: int
    n_inputs: int
    n_products: int  # columns of a product: of a gated matrix half as many as outputs
    gated: bool
    native: "native.lib.Matrix" = field(repr=False)

    @classmethod
    def over(
        cls,
        blocks: Tensor,
        shape: Sequence[int],
        dtype: torch.dtype,
        weight_format: WeightFormat = WeightFormat.PLAIN,
        *,
        gated: bool = False,
    ) -> Self:
        """`blocks`: of `blocks_shape`, uint8, contiguous."""
        n_outputs, n_inputs = shape
        return cls(
            blocks=blocks,
            dtype=dtype,
            format=weight_format,
            n_outputs=n_outputs,
            n_inputs=n_inputs,
            n_products=n_outputs // 2 if gated else n_outputs,
            gated=gated,
            native=_native(blocks.data_ptr(), shape, dtype, weight_format, gated=gated),
        )

    def write(self, rows: Tensor, first: int) -> None:
        """To row `first` and those after it, contiguous: [R, I] of the matrix's dtype where its
        format is plain, else [R, B] as the format stores them.
        """
        self.native.pack(rows.data_ptr(), len(rows), first)

    def read(self, outputs_R: Tensor) -> Tensor:
        """The rows [R, I] that the int64 indices name."""
        rows_RI = torch.empty((len(outputs_R), self.n_inputs), dtype=self.dtype)
        outputs_R = outputs_R.contiguous()
        self.native.unpack(outputs_R.data_ptr(), len(outputs_R), rows_RI.data_ptr())
        return rows_RI


Matrix = Tensor | PackedMatrix


def _native(
    address: int,
    shape: Sequence[int],
    dtype: torch.dtype,
    weight_format: WeightFormat,
    *,
    gated: bool,
) -> "native.lib.Matrix":
    n_outputs, n_inputs = shape
    return native.lib.Matrix(
        address,
        n_outputs // 2 if gated else n_outputs,
        n_inputs,
        float32=dtype == torch.float32,
        weight_format=weight_format.value,
        gated=gated,
    )


def packs(dtype: torch.dtype) -> bool:
    """Whether matrices that multiply rows of that dtype are packed here."""
    return native.available() and dtype in _PACKED_DTYPES


def blocks_shape(
    shape: Sequence[int],
    dtype: torch.dtype,
    weight_format: WeightFormat = WeightFormat.PLAIN,
    *,
    gated: bool = False,
) -> tuple[int, int]:
    """Of a packed [O, I] matrix: blocks, bytes of a block."""
    matrix = _native(0, shape, dtype, weight_format, gated=gated)
    return matrix.n_blocks, matrix.block_bytes


def pack(
    rows: Tensor,
    shape: Sequence[int],
    dtype: torch.dtype,
    weight_format: WeightFormat,
    *,
    gated: bool = False,
) -> PackedMatrix:
    """A packed copy of a matrix's rows (see `PackedMatrix.write`)."""
    blocks = torch.zeros(blocks_shape(shape, dtype, weight_format, gated=gated), dtype=torch.uint8)
    matrix = PackedMatrix.over(blocks, shape, dtype, weight_format, gated=gated)
    matrix.write(rows.contiguous(), 0)
    return matrix


def prepare(w_OI: Tensor, *, gated: bool = False) -> Matrix:
    """The matrix as it multiplies fastest here: a packed copy, or itself."""
    if not packs(w_OI.dtype):
        return w_OI
    return pack(w_OI, w_OI.shape, w_OI.dtype, WeightFormat.PLAIN, gated=gated)


def plain(matrix: Matrix) -> Tensor:
    """[O, I]; of a packed matrix a copy."""
    if isinstance(matrix, Tensor):
        return matrix
    return matrix.read(torch.arange(matrix.n_outputs))
