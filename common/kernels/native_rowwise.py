"""Norms and the most likely tokens by the C++ kernels. Must be called only for dtypes they know."""

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
