"""Products by the C++ kernels. Must be given packed matrices only."""

import time

import torch
from torch import Tensor

from common.kernels.cpu import native
from common.kernels.formats import WeightFormat
from common.kernels.matrix import PackedMatrix

# T rows  I inputs  O outputs

_TUNED_BYTES = 48 << 20  # more than caches hold: less says nothing of memory
_TUNED_ROWS = (4, 5, 6, 8, 10)
_TUNING_ROUNDS = 4
_NEVER = 1 << 30


def multiply(
    x_TI: Tensor, matrix: PackedMatrix, bias_O: Tensor | None, out: Tensor | None
) -> Tensor:
    """x W' + b, or of a gated matrix silu(gate) * up, rounded once, to `out`'s dtype.

    `out`: of the result's size, contiguous, float32 or of x's dtype; None: a new one of x's dtype.
    """
    n_rows, rest = divmod(x_TI.numel(), matrix.n_inputs)
    if rest or x_TI.dtype is not matrix.dtype:
        raise ValueError(f"rows {tuple(x_TI.shape)} of {x_TI.dtype} for {matrix}")
    x_TI = x_TI.contiguous()
    if out is None:
        out = torch.empty((n_rows, matrix.n_products), dtype=matrix.dtype)
    elif out.numel() != n_rows * matrix.n_products or not out.is_contiguous():
        raise ValueError(f"{tuple(out.shape)} for {n_rows} rows of {matrix}")
    elif out.dtype is not matrix.dtype and out.dtype is not torch.float32:
        raise ValueError(f"{out.dtype} for {n_rows} rows of {matrix}")
    native.lib.multiply(
        matrix.native,
        x_TI.data_ptr(),
        n_rows,
        0 if bias_O is None else bias_O.data_ptr(),
        out.data_ptr(),
        out.dtype is torch.float32,
    )
    return out


def tune(matrix: PackedMatrix) -> int | None:
    """Find from how many rows on prefetching pays here, by products with part of a large matrix.

    Takes some tenths of a second and changes no result. On this thread alone, by its own time: the
    border lies where reading and computing take a core as long as each other, and other threads
    and processes only blur it. None: the matrix is too small to tell, or of a format whose
    products never wait for that.
    """
    n_blocks = -(-_TUNED_BYTES // matrix.native.block_bytes)
    if matrix.format is not WeightFormat.PLAIN or matrix.gated or n_blocks > matrix.native.n_blocks:
        return None
    shape = (n_blocks * native.lib.BLOCK, matrix.n_inputs)
    part = PackedMatrix.over(matrix.blocks[:n_blocks], shape, matrix.dtype)
    n_threads = native.lib.n_threads()
    native.lib.set_threads(1)
    border = _TUNED_ROWS[-1] + 1
    for n_rows in reversed(_TUNED_ROWS):
        if not _prefetching_pays(part, n_rows):
            break
        border = n_rows
    native.lib.set_prefetch_rows(border)
    native.lib.set_threads(n_threads)
    return border


def _prefetching_pays(matrix: PackedMatrix, n_rows: int) -> bool:
    x_TI = torch.ones((n_rows, matrix.n_inputs), dtype=matrix.dtype)
    out_TO = torch.empty((n_rows, matrix.n_products), dtype=matrix.dtype)
    best_s = {1: float("inf"), _NEVER: float("inf")}  # by the border set
    for _ in range(_TUNING_ROUNDS):
        for border in best_s:
            native.lib.set_prefetch_rows(border)
            began = time.thread_time()
            multiply(x_TI, matrix, None, out_TO)
            best_s[border] = min(best_s[border], time.thread_time() - began)
    return best_s[1] < best_s[_NEVER]
