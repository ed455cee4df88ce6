"""Products by the C++ kernels. Must be given packed matrices only."""

import torch
from torch import Tensor

from common.kernels.cpu import native
from common.kernels.matrix import PackedMatrix

# T rows  I inputs  O outputs


def multiply(
    x_TI: Tensor, matrix: PackedMatrix, bias_O: Tensor | None, out_dtype: torch.dtype
) -> Tensor:
    """x W' + b, or of a gated matrix silu(gate) * up, rounded once, to `out_dtype`."""
    n_rows, rest = divmod(x_TI.numel(), matrix.n_inputs)
    if rest or x_TI.dtype is not matrix.blocks.dtype:
        raise ValueError(f"rows {tuple(x_TI.shape)} of {x_TI.dtype} for {matrix}")
    x_TI = x_TI.contiguous()
    n_outputs = matrix.n_outputs // 2 if matrix.gated else matrix.n_outputs
    out_TO = torch.empty((n_rows, n_outputs), dtype=out_dtype)
    native.lib.multiply(
        matrix.native,
        x_TI.data_ptr(),
        n_rows,
        0 if bias_O is None else bias_O.data_ptr(),
        out_TO.data_ptr(),
        out_dtype is torch.float32,
    )
    return out_TO
