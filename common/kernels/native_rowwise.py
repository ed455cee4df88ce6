"""Norms, and the choice of tokens, by the C++ kernels. Must be called only for dtypes they know."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from common.kernels.cpu import native

# T, R rows  H hidden  V vocabulary


def rms_norm(x_TH: Tensor, weight_H: Tensor, eps: float, out: Tensor | None) -> Tensor:
    """See `ops.rms_norm`."""
    return _norm(x_TH.contiguous(), None, weight_H, eps, out)


def add_rms_norm(
    x_TH: Tensor, residual_TH: Tensor, weight_H: Tensor, eps: float, out: Tensor | None
) -> Tensor:
    """See `ops.add_rms_norm`."""
    return _norm(x_TH.contiguous(), residual_TH, weight_H, eps, out)


def _norm(
    x_TH: Tensor, residual_TH: Tensor | None, weight_H: Tensor, eps: float, out: Tensor | None
) -> Tensor:
    n, n_elements = len(weight_H), x_TH.numel()
    if out is None:
        out = torch.empty_like(x_TH)
    for other in (out, residual_TH):
        if other is not None and (other.numel() != n_elements or not other.is_contiguous()):
            raise ValueError(f"{tuple(other.shape)} beside {tuple(x_TH.shape)}")
    native.lib.norm(
        x_TH.dtype is torch.float32,
        x_TH.data_ptr(),
        0 if residual_TH is None else residual_TH.data_ptr(),
        weight_H.data_ptr(),
        eps,
        n_elements // n,
        n,
        out.data_ptr(),
    )
    return out


def argmax(logits_RV: Tensor) -> list[int]:
    """See `ops.argmax`."""
    logits_RV = logits_RV.contiguous()
    n_rows, n_vocab = logits_RV.shape
    tokens_R = np.empty(n_rows, np.int64)
    native.lib.argmax(logits_RV.data_ptr(), n_rows, n_vocab, tokens_R.ctypes.data)
    return tokens_R.tolist()


def draw(
    rows: Sequence[Tensor],
    *,
    scales: Sequence[float],
    min_ps: Sequence[float],
    top_ps: Sequence[float],
    top_ks: Sequence[int],
    uniforms: Sequence[int],
    weight_bits: int,
) -> list[int]:
    """A token of each row of float32 logits [V]; see `common.sampling` for what is done.

    scales    of a logit's distance to the largest, to an exponent of 2
    uniforms  of 53 bits
    -1 where the largest logit is not finite or one is NaN.
    """
    rows = [row.contiguous() for row in rows]
    lengths = {len(values) for values in (scales, min_ps, top_ps, top_ks, uniforms)}
    if lengths != {len(rows)} or len({len(row) for row in rows}) != 1:
        raise ValueError("rows and parameters of different numbers or lengths")
    addresses = np.array([row.data_ptr() for row in rows], np.uint64)
    rates = np.array((scales, min_ps, top_ps), np.float64)
    counts = np.array((top_ks, uniforms), np.int64)
    tokens = np.empty(len(rows), np.int64)
    native.lib.draw(
        addresses.ctypes.data,
        rates[0].ctypes.data,
        rates[1].ctypes.data,
        rates[2].ctypes.data,
        counts[0].ctypes.data,
        counts[1].ctypes.data,
        len(rows),
        len(rows[0]),
        weight_bits,
        tokens.ctypes.data,
    )
    return tokens.tolist()
