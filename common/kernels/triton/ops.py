"""The operations of `common.kernels.ops` on a GPU, as that file calls them: Triton kernels, and
products of matrices, which are the vendor's by way of torch."""

import torch
from torch import Tensor
from torch.nn import functional

from common.kernels.attention_rows import AttentionRows
from common.kernels.paged import KVLayer
from common.kernels.triton import decode, prefill
from common.kernels.triton.activation import silu_mul
from common.kernels.triton.attention_block import tile_rows
from common.kernels.triton.choice import chip_of
from common.kernels.triton.configs import decode_tile, prefill_tile
from common.kernels.triton.logprobs import logprobs
from common.kernels.triton.norms import add_rms_norm, rms_norm
from common.kernels.triton.rope import rope_and_write
from common.kernels.triton.sampling import sample

__all__ = ["add_rms_norm", "attend", "logprobs", "rms_norm", "rope_and_write", "sample"]

EXACT_ROWS = 32
"""Of every float32 product: by their number the vendor's library chooses how to add (law 3)."""


def linear(x_TI: Tensor, w_OI: Tensor, bias_O: Tensor | None, out: Tensor | None) -> Tensor:
    """See `ops.linear`."""
    if x_TI.dtype is not torch.float32:
        return _product(x_TI, w_OI, bias_O, out)
    n_rows = len(x_TI)
    padded_TI = functional.pad(x_TI, (0, 0, 0, -n_rows % EXACT_ROWS))
    y_TO = x_TI.new_empty((len(padded_TI), len(w_OI)))
    for x_RI, y_RO in zip(padded_TI.split(EXACT_ROWS), y_TO.split(EXACT_ROWS), strict=True):
        _product(x_RI, w_OI, bias_O, y_RO)
    return y_TO[:n_rows] if out is None else out.copy_(y_TO[:n_rows])


def logits(x_TI: Tensor, w_OI: Tensor) -> Tensor:
    """See `ops.logits`. What is added up in float32 is not rounded to the weights' dtype."""
    if x_TI.dtype is torch.float32 or x_TI.device.type == "cpu":
        return linear(x_TI, w_OI, None, None).float()
    return torch.mm(x_TI, w_OI.t(), out_dtype=torch.float32)


def _product(x_TI: Tensor, w_OI: Tensor, bias_O: Tensor | None, out: Tensor | None) -> Tensor:
    if bias_O is None:
        return torch.mm(x_TI, w_OI.t(), out=out)
    return torch.addmm(bias_O, x_TI, w_OI.t(), out=out)


def attend(
    q_TND: Tensor, layer: KVLayer, rows: AttentionRows, out_TND: Tensor | None = None
) -> Tensor:
    """See `ops.attend`."""
    out_TND = torch.empty_like(q_TND) if out_TND is None else out_TND
    n_rep = q_TND.shape[1] // layer.geometry.n_kv_heads
    chip = chip_of(q_TND.device)
    tile = prefill_tile(q_TND.dtype, chip, q_TND.shape[2])
    on_device = rows.on_device(tile_rows(tile, n_rep) // n_rep, q_TND.device)
    if len(on_device.tile_X2):
        prefill.launch(q_TND, layer, on_device, tile, out_TND).run()
    if len(on_device.single_I):
        tile = decode_tile(q_TND.dtype, chip, q_TND.shape[2], fp8=layer.is_fp8)
        for launch in decode.launches(q_TND, layer, on_device, tile, out_TND):
            launch.run()
    return out_TND


def swiglu(x_TH: Tensor, gate_up_2IH: Tensor, bias_2I: Tensor | None, out: Tensor | None) -> Tensor:
    """See `ops.swiglu`."""
    return silu_mul(linear(x_TH, gate_up_2IH, bias_2I, None), out)
