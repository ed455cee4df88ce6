"""Rotate q and k, and write k and v where their tokens' pages say: one program per row.

Every element is read and written once, in float32 between; into pages of fp8 with its scale.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from common.kernels.paged import KVLayer
from common.kernels.triton.configs import elementwise_warps
from common.kernels.triton.fp8 import SCALE_BYTES, quantise
from common.kernels.triton.launch import Launch, power_of_2


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
    out_TND = torch.empty_like(q_TND, memory_format=torch.contiguous_format)
    launch(q_TND, k_TGD, v_TGD, cos_sin_LD, positions_T, slots_T, layer, out_TND).run()
    return out_TND


def launch(
    q_TND: Tensor,
    k_TGD: Tensor,
    v_TGD: Tensor,
    cos_sin_LD: Tensor,
    positions_T: Tensor,
    slots_T: Tensor,
    layer: KVLayer,
    out_TND: Tensor,
) -> Launch:
    """q, k and v: heads lie side by side; rows may lie apart. The others are contiguous.

    Of a row whose slot is negative k and v are written nowhere.
    """
    head_dim = q_TND.shape[-1]
    for x in (q_TND, k_TGD, v_TGD):
        if x.stride(2) != 1 or x.stride(1) != head_dim:
            raise ValueError(f"heads of strides {x.stride()}")
    n_heads, n_kv_heads = q_TND.shape[1], layer.geometry.n_kv_heads
    block_half = power_of_2(head_dim // 2)
    return Launch(
        kernel=_rope_and_write,
        grid=(len(q_TND),),
        arguments={
            "q": q_TND,
            "k": k_TGD,
            "v": v_TGD,
            "cos_sin": cos_sin_LD,
            "positions": positions_T,
            "slots": slots_T,
            "k_pages": layer.k_PSGD,
            "v_pages": layer.v_PSGD,
            "k_scales": layer.k_scales_PSG,
            "v_scales": layer.v_scales_PSG,
            "out": out_TND,
            "q_stride": q_TND.stride(0),
            "k_stride": k_TGD.stride(0),
            "v_stride": v_TGD.stride(0),
            "page_stride": layer.geometry.stride,
            "N_HEADS": n_heads,
            "N_KV_HEADS": n_kv_heads,
            "HALF": head_dim // 2,
            "PAGE_TOKENS": layer.geometry.page_tokens,
            "BLOCK_HEADS": power_of_2(n_heads),
            "BLOCK_KV_HEADS": power_of_2(n_kv_heads),
            "BLOCK_HALF": block_half,
        },
        num_warps=elementwise_warps(power_of_2(n_heads) * block_half),
        exact=q_TND.dtype is torch.float32,
    )


@triton.jit
def _rope_and_write(
    q,
    k,
    v,
    cos_sin,
    positions,
    slots,
    k_pages,
    v_pages,
    k_scales,
    v_scales,
    out,
    q_stride,
    k_stride,
    v_stride,
    page_stride,
    N_HEADS: tl.constexpr,
    N_KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_KV_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, BLOCK_HALF)
    inside = pair < HALF
    angle = cos_sin + tl.load(positions + row) * (2 * HALF) + pair
    cos = tl.load(angle, mask=inside, other=0.0)[None, :]
    sin = tl.load(angle + HALF, mask=inside, other=0.0)[None, :]

    head = tl.arange(0, BLOCK_HEADS)
    there = (head < N_HEADS)[:, None] & inside[None, :]
    at = head[:, None] * (2 * HALF) + pair[None, :]
    first = tl.load(q + row * q_stride + at, mask=there, other=0.0).to(tl.float32)
    second = tl.load(q + row * q_stride + at + HALF, mask=there, other=0.0).to(tl.float32)
    to = out + row * (N_HEADS * 2 * HALF) + at
    tl.store(to, (first * cos - second * sin).to(out.dtype.element_ty), mask=there)
    tl.store(to + HALF, (second * cos + first * sin).to(out.dtype.element_ty), mask=there)

    slot = tl.load(slots + row)
    page, kv_head = slot // PAGE_TOKENS, tl.arange(0, BLOCK_KV_HEADS)
    is_head = kv_head < tl.where(slot >= 0, N_KV_HEADS, 0)
    there = is_head[:, None] & inside[None, :]
    at = kv_head[:, None] * (2 * HALF) + pair[None, :]
    in_page = kv_head * PAGE_TOKENS + slot % PAGE_TOKENS
    to = (page * page_stride + in_page * (2 * HALF))[:, None] + pair[None, :]
    first = tl.load(k + row * k_stride + at, mask=there, other=0.0).to(tl.float32)
    second = tl.load(k + row * k_stride + at + HALF, mask=there, other=0.0).to(tl.float32)
    k_first, k_second = first * cos - second * sin, second * cos + first * sin
    v_first = tl.load(v + row * v_stride + at, mask=there, other=0.0)
    v_second = tl.load(v + row * v_stride + at + HALF, mask=there, other=0.0)
    if k_scales is not None:
        k_first, k_second, k_scale = quantise(k_first, k_second)
        v_first, v_second, v_scale = quantise(v_first.to(tl.float32), v_second.to(tl.float32))
        scale_at = page * (page_stride // SCALE_BYTES) + in_page
        tl.store(k_scales + scale_at, k_scale, mask=is_head)
        tl.store(v_scales + scale_at, v_scale, mask=is_head)
    kv_type = k_pages.dtype.element_ty
    tl.store(k_pages + to, k_first.to(kv_type), mask=there)
    tl.store(k_pages + to + HALF, k_second.to(kv_type), mask=there)
    tl.store(v_pages + to, v_first, mask=there)
    tl.store(v_pages + to + HALF, v_second, mask=there)
