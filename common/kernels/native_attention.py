"""Attention over pages by the C++ kernels, with the rotation and writing that go before it.

Must be called only for dtypes that they know.
"""

import torch
from torch import Tensor

from common.kernels.attention_rows import AttentionRows, HeadNorms, native_turns
from common.kernels.cpu import native
from common.kernels.paged import KVLayer

# T rows  X = (N + 2G) * D  N query heads  G KV heads  D head dim  L positions


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
    q_TND = q_TND.clone(memory_format=torch.contiguous_format)
    k_TGD = k_TGD.clone(memory_format=torch.contiguous_format)
    v_TGD = v_TGD.contiguous()
    n_rows, n_kv_heads = len(positions_T), layer.geometry.n_kv_heads
    _check(q_TND, (n_rows, q_TND.shape[1]), layer)
    _check(k_TGD, (n_rows, n_kv_heads), layer)
    _check(v_TGD, (n_rows, n_kv_heads), layer)
    native.lib.turn_and_write(
        native_turns(positions_T, slots_T, cos_sin_LD, layer),
        q_TND.dtype is torch.float32,
        q_TND.data_ptr(),
        q_TND.shape[1],
        k_TGD.data_ptr(),
        v_TGD.data_ptr(),
        v_TGD.shape[1] * v_TGD.shape[2],
        layer.k_address,
        layer.v_address,
    )
    return q_TND


def attend(q_TND: Tensor, layer: KVLayer, rows: AttentionRows) -> Tensor:
    """See `ops.attend`."""
    q_TND = q_TND.contiguous()
    out_TND = torch.empty_like(q_TND)
    _check(q_TND, (len(rows.positions_T), q_TND.shape[1]), layer)
    native.lib.attend(
        rows.native_plan(layer, q_TND.shape[1] // layer.geometry.n_kv_heads),
        q_TND.dtype is torch.float32,
        q_TND.data_ptr(),
        layer.k_address,
        layer.v_address,
        out_TND.data_ptr(),
    )
    return out_TND


def attention(
    qkv_TX: Tensor,
    norms: HeadNorms | None,
    cos_sin_LD: Tensor,
    rows: AttentionRows,
    layer: KVLayer,
    out_TO: Tensor | None,
) -> Tensor:
    """See `ops.attention`. Overwrites `qkv_TX`."""
    n_rows, n_columns = qkv_TX.shape
    geometry = layer.geometry
    n_heads = n_columns // geometry.head_dim - 2 * geometry.n_kv_heads
    heads_TND = qkv_TX.view(n_rows, -1, geometry.head_dim)
    _check(heads_TND, (len(rows.positions_T), n_heads + 2 * geometry.n_kv_heads), layer)
    n_outputs = n_heads * geometry.head_dim
    if out_TO is None:
        out_TO = torch.empty((n_rows, n_outputs), dtype=qkv_TX.dtype)
    elif out_TO.numel() != n_rows * n_outputs or not out_TO.is_contiguous():
        raise ValueError(f"{tuple(out_TO.shape)} for {n_rows} rows of {n_outputs}")
    elif out_TO.dtype is not qkv_TX.dtype:
        raise ValueError(f"{out_TO.dtype} for rows of {qkv_TX.dtype}")
    native.lib.turn_write_attend(
        rows.native_plan(layer, n_heads // geometry.n_kv_heads),
        rows.native_turns(layer, cos_sin_LD),
        qkv_TX.dtype is torch.float32,
        qkv_TX.data_ptr(),
        0 if norms is None else norms.q_D.data_ptr(),
        0 if norms is None else norms.k_D.data_ptr(),
        0.0 if norms is None else norms.eps,
        layer.k_address,
        layer.v_address,
        out_TO.data_ptr(),
    )
    return out_TO


def _check(heads_TND: Tensor, rows_and_heads: tuple[int, int], layer: KVLayer) -> None:
    """C++ reads what addresses and counts say: they must be those of the tensor."""
    wanted = (*rows_and_heads, layer.geometry.head_dim)
    if heads_TND.dtype is not layer.dtype:
        raise ValueError(f"rows of {heads_TND.dtype}, pages of {layer.dtype}")
    if heads_TND.shape != wanted or not heads_TND.is_contiguous():
        raise ValueError(
            f"heads {tuple(heads_TND.shape)}, strides {heads_TND.stride()}, where {wanted} are"
            " to lie one after another"
        )
