"""silu(gate) * up, from gate beside up."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from common.kernels.triton.configs import elementwise_warps
from common.kernels.triton.launch import Launch, power_of_2

BLOCK = 1024  # elements of a program


def silu_mul(gate_up_T2I: Tensor, out: Tensor | None) -> Tensor:
    """[T, I] of contiguous [T, 2 I]. In float32 between load and store."""
    n_rows, width = len(gate_up_T2I), gate_up_T2I.shape[1] // 2
    if out is None:
        out = torch.empty((n_rows, width), dtype=gate_up_T2I.dtype, device=gate_up_T2I.device)
    launch(gate_up_T2I, out).run()
    return out


def launch(gate_up_T2I: Tensor, out_TI: Tensor) -> Launch:
    """Both contiguous."""
    if not (gate_up_T2I.is_contiguous() and out_TI.is_contiguous()):
        raise ValueError("gate, up and result must be contiguous")
    n_rows, width = out_TI.shape
    block = min(BLOCK, power_of_2(width))
    return Launch(
        kernel=_silu_mul,
        grid=(n_rows, triton.cdiv(width, block)),
        arguments={"gate_up": gate_up_T2I, "out": out_TI, "WIDTH": width, "BLOCK": block},
        num_warps=elementwise_warps(block),
        exact=out_TI.dtype is torch.float32,
    )


@triton.jit
def _silu_mul(gate_up, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = column < WIDTH
    gate = tl.load(gate_up + row * 2 * WIDTH + column, mask=there, other=0.0).to(tl.float32)
    up = tl.load(gate_up + (row * 2 + 1) * WIDTH + column, mask=there, other=0.0).to(tl.float32)
    product = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * WIDTH + column, product.to(out.dtype.element_ty), mask=there)
