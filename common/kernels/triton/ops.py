"""The operations of `common.kernels.ops` that have a Triton kernel, as that file calls them."""

import torch
from torch import Tensor

from common.kernels import torch_path
from common.kernels.attention_rows import AttentionRows
from common.kernels.paged import KVLayer
from common.kernels.triton import decode, prefill
from common.kernels.triton.activation import silu_mul
from common.kernels.triton.attention_block import tile_rows
from common.kernels.triton.choice import chip_of
from common.kernels.triton.configs import decode_tile, prefill_tile
from common.kernels.triton.norms import add_rms_norm, rms_norm
from common.kernels.triton.rope import rope_and_write
from common.kernels.triton.sampling import sample

__all__ = ["add_rms_norm", "attend", "rms_norm", "rope_and_write", "sample", "swiglu"]


def attend(q_TND: Tensor, layer: KVLayer, rows: AttentionRows) -> Tensor:
    """See `ops.attend`."""
    out_TND = torch.empty_like(q_TND)
    n_rep = q_TND.shape[1] // layer.geometry.n_kv_heads
    chip = chip_of(q_TND.device)
    tile = prefill_tile(q_TND.dtype, chip, q_TND.shape[2])
    on_device = rows.on_device(tile_rows(tile, n_rep) // n_rep, q_TND.device)
    if len(on_device.tile_X2):
        prefill.launch(q_TND, layer, on_device, tile, out_TND).run()
    if len(on_device.single_I):
        tile = decode_tile(q_TND.dtype, chip, q_TND.shape[2])
        for launch in decode.launches(q_TND, layer, on_device, tile, out_TND):
            launch.run()
    return out_TND


def swiglu(x_TH: Tensor, gate_up_2IH: Tensor, bias_2I: Tensor | None, out: Tensor | None) -> Tensor:
    """See `ops.swiglu`."""
    return silu_mul(torch_path.linear(x_TH, gate_up_2IH, bias_2I).contiguous(), out)
