"""Products by the C++ kernels. Must be given packed matrices only."""

import torch
from torch import Tensor

from common.kernels.cpu import native
from common.kernels.matrix import PackedMatrix

# T rows  I inputs  O outputs


def multiply(
    x_TI: Tensor, matrix: PackedMatrix, bias_O: Tensor | None, out: Tensor | None
) -> Tensor:
    """x W' + b, or of a gated matrix silu(gate) * up, rounded once, to `out`'s dtype.

    `out`: of the result's size, contiguous; None: a new tensor of x's dtype.
    """
    n_rows, rest = divmod(x_TI.numel(), matrix.n_inputs)
    if rest or x_TI.dtype is not matrix.dtype:
        raise ValueError(f"rows {tuple(x_TI.shape)} of {x_TI.dtype} for {matrix}")
    x_TI = x_TI.contiguous()
    if out is None:
        out = torch.empty((n_rows, matrix.n_products), dtype=matrix.dtype)
    elif out.numel() != n_rows * matrix.n_products or not out.is_contiguous():
        raise ValueError(f"{tuple(out.shape)} for {n_rows} rows of {matrix}")
    native.lib.multiply(
        matrix.native,
        x_TI.data_ptr(),
        n_rows,
        0 if bias_O is None else bias_O.data_ptr(),
        out.data_ptr(),
        out.dtype is torch.float32,
    )
    return out
