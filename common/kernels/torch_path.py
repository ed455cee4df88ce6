"""The operations in plain torch, on the CPU: the path that always works.

In float32 a row's result has the same bits whatever rows are beside it, however many, and on any
number of threads (law 3). What torch's own operations do to that was measured (torch 2.13, MKL
2024.2): products do keep it where rows and columns come in multiples; `silu`, `sigmoid` and `exp2`
do not, as a vector and the scalars left over at its end differ; `exp` and reductions over the last
axis do.
"""

import torch
from torch import Tensor
from torch.nn import functional

from common.kernels.paged import KVLayer

PRODUCT_ROWS = 4
"""Rows of a float32 product are padded to a multiple: other numbers of few rows are computed by
other kernels, which add in another order."""

PRODUCT_COLUMNS = 16
"""Threads share out columns; in a remainder of fewer, the kernel depends on where they cut."""

ARGMAX_BLOCK = 64


def embed(ids_T: Tensor, table_VH: Tensor) -> Tensor:
    """See `ops.embed`."""
    return table_VH.index_select(0, ids_T)


def linear(x_TI: Tensor, w_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """See `ops.linear`."""
    if x_TI.dtype != torch.float32:
        return functional.linear(x_TI, w_OI, bias_O)
    n_rows, n_columns = len(x_TI), len(w_OI)
    x_TI = _pad_rows(x_TI, PRODUCT_ROWS)
    whole = n_columns // PRODUCT_COLUMNS * PRODUCT_COLUMNS
    if whole == n_columns:
        return functional.linear(x_TI, w_OI, bias_O)[:n_rows]
    rest_OI = _pad_rows(w_OI[whole:], PRODUCT_COLUMNS)
    parts = (
        functional.linear(x_TI, w_OI[:whole]),
        functional.linear(x_TI, rest_OI)[:, : n_columns - whole],
    )
    y_TO = torch.cat(parts, dim=1)[:n_rows]
    return y_TO if bias_O is None else y_TO + bias_O


def rms_norm(x_TH: Tensor, weight_H: Tensor, eps: float) -> Tensor:
    """See `ops.rms_norm`."""
    x32 = x_TH.float()
    scale = x32.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    return (x32 * scale).to(x_TH.dtype).mul_(weight_H)


def add_rms_norm(x_TH: Tensor, residual_TH: Tensor, weight_H: Tensor, eps: float) -> Tensor:
    """See `ops.add_rms_norm`."""
    return rms_norm(residual_TH.add_(x_TH), weight_H, eps)


def swiglu(x_TH: Tensor, gate_up_2IH: Tensor, bias_2I: Tensor | None) -> Tensor:
    """See `ops.swiglu`."""
    return silu_mul(linear(x_TH, gate_up_2IH, bias_2I))


def silu_mul(gate_up_T2I: Tensor) -> Tensor:
    """silu(gate) * up: [T, I], from gate beside up."""
    gate_TI, up_TI = gate_up_T2I.chunk(2, dim=-1)
    if gate_TI.dtype != torch.float32:
        return functional.silu(gate_TI).mul_(up_TI)
    return (gate_TI / gate_TI.neg().exp_().add_(1)).mul_(up_TI)


def argmax(logits_RV: Tensor) -> list[int]:
    """See `ops.argmax`. In blocks: their maxima cost a tenth of the positions."""
    n_rows, n_vocab = logits_RV.shape
    if n_vocab % ARGMAX_BLOCK:
        tokens_R = logits_RV.argmax(-1)
    else:
        blocks = logits_RV.reshape(n_rows, -1, ARGMAX_BLOCK)
        rows_R = torch.arange(n_rows, device=logits_RV.device)
        first_R = blocks.amax(-1).argmax(-1)
        tokens_R = first_R * ARGMAX_BLOCK + blocks[rows_R, first_R].argmax(-1)
    finite_R = logits_RV.gather(1, tokens_R[:, None]).isfinite().squeeze(-1)
    return torch.where(finite_R, tokens_R, -1).tolist()  # a maximum is NaN if any of the row is


def rope_and_write(
    q_TND: Tensor,
    k_TGD: Tensor,
    v_TGD: Tensor,
    cos_sin_LD: Tensor,
    positions_T: Tensor,
    slots_T: Tensor,
    layer: KVLayer,
) -> Tensor:
    """See `ops.rope_and_write`."""
    cos_T1E, sin_T1E = cos_sin_LD.index_select(0, positions_T)[:, None].chunk(2, dim=-1)
    page_tokens = layer.geometry.page_tokens
    where = (slots_T // page_tokens, slots_T % page_tokens)
    layer.k_PSGD.index_put_(where, _rotate(k_TGD, cos_T1E, sin_T1E))
    layer.v_PSGD.index_put_(where, v_TGD)
    return _rotate(q_TND, cos_T1E, sin_T1E)


def _rotate(x_TND: Tensor, cos_T1E: Tensor, sin_T1E: Tensor) -> Tensor:
    """Pairs (x[i], x[i + D / 2]) turned, in float32. E = D / 2."""
    a_TNE, b_TNE = x_TND.chunk(2, dim=-1)
    rotated = torch.cat(
        (a_TNE * cos_T1E - b_TNE * sin_T1E, b_TNE * cos_T1E + a_TNE * sin_T1E), dim=-1
    )
    return rotated.to(x_TND.dtype)


def _pad_rows(x_TI: Tensor, multiple: int) -> Tensor:
    missing = -len(x_TI) % multiple
    return functional.pad(x_TI, (0, 0, 0, missing)) if missing else x_TI
