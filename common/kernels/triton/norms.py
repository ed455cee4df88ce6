"""Root-mean-square norm of rows, with the residual added first where there is one.

One program per few rows, each row whole in registers: x is read once.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from common.kernels.triton.configs import elementwise_warps
from common.kernels.triton.launch import Launch, power_of_2

TILE = 1024  # elements of a program, unless one row has more


def rms_norm(x_TH: Tensor, weight_H: Tensor, eps: float, out: Tensor | None) -> Tensor:
    """See `ops.rms_norm`."""
    out = torch.empty_like(x_TH, memory_format=torch.contiguous_format) if out is None else out
    launch(x_TH, None, weight_H, eps, out).run()
    return out


def add_rms_norm(
    x_TH: Tensor, residual_TH: Tensor, weight_H: Tensor, eps: float, out: Tensor | None
) -> Tensor:
    """See `ops.add_rms_norm`."""
    out = torch.empty_like(x_TH, memory_format=torch.contiguous_format) if out is None else out
    launch(x_TH, residual_TH, weight_H, eps, out).run()
    return out


def launch(
    x_TH: Tensor, residual_TH: Tensor | None, weight_H: Tensor, eps: float, out: Tensor
) -> Launch:
    """x [T, H] or [T, N, H], where heads lie side by side; residual and out contiguous."""
    width = x_TH.shape[-1]
    n_heads = x_TH.shape[1] if x_TH.dim() == 3 else 1
    if x_TH.stride(-1) != 1 or (x_TH.dim() == 3 and x_TH.stride(1) != width):
        raise ValueError(f"rows of strides {x_TH.stride()}")
    if not out.is_contiguous() or (residual_TH is not None and not residual_TH.is_contiguous()):
        raise ValueError("residual and result must be contiguous")
    n_rows = out.numel() // width
    block = power_of_2(width)
    rows = max(1, TILE // block)
    return Launch(
        kernel=_rms_norm,
        grid=(triton.cdiv(n_rows, rows),),
        arguments={
            "x": x_TH,
            "residual": x_TH if residual_TH is None else residual_TH,
            "weight": weight_H,
            "out": out,
            "n_rows": n_rows,
            "x_stride": x_TH.stride(0),
            "eps": eps,
            "N_HEADS": n_heads,
            "WIDTH": width,
            "ADD": residual_TH is not None,
            "ROWS": rows,
            "BLOCK": block,
        },
        num_warps=elementwise_warps(rows * block),
        exact=x_TH.dtype is torch.float32,
    )


@triton.jit(do_not_specialize=["n_rows"])
def _rms_norm(
    x,
    residual,
    weight,
    out,
    n_rows,
    x_stride,
    eps,
    N_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    ADD: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    there = (row < n_rows)[:, None] & (column < WIDTH)[None, :]
    x_at = (row // N_HEADS * x_stride + row % N_HEADS * WIDTH)[:, None] + column[None, :]
    at = (row * WIDTH)[:, None] + column[None, :]
    values = tl.load(x + x_at, mask=there, other=0.0).to(tl.float32)
    if ADD:
        values += tl.load(residual + at, mask=there, other=0.0).to(tl.float32)
        rounded = values.to(out.dtype.element_ty)
        tl.store(residual + at, rounded, mask=there)
        values = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 1) / WIDTH + eps)
    normed = (values * scale[:, None]).to(out.dtype.element_ty).to(tl.float32)
    factor = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    tl.store(out + at, (normed * factor[None, :]).to(out.dtype.element_ty), mask=there)
