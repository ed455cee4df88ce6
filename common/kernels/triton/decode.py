"""Paged attention of sequences with one row each: the context is split, and the parts merged.

One program reads one run of keys of one KV head, once for all query heads that share it; so a
batch of one sequence fills the chip as well. How long runs are each works out of the sequence's
length, so that one grid serves whatever lengths there are when it is launched again. The merge is
by maximum and sum of exponentials, in ascending order. Flash-Decoding's scheme over paged KV.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from common.kernels.paged import KVLayer
from common.kernels.triton.attention_block import (
    SOME_SEEN,
    arguments,
    attend_keys,
    merge,
    nothing_seen,
)
from common.kernels.triton.configs import Tile, decode_split, decode_splits
from common.kernels.triton.launch import Launch
from common.kernels.triton.rows import DeviceRows

MERGE_TAKES = ("starts", "lengths", "N_HEADS", "N_REP", "HEAD_DIM", "BLOCK_M", "BLOCK_D")


def launches(
    q_TND: Tensor, layer: KVLayer, rows: DeviceRows, tile: Tile, out_TND: Tensor
) -> tuple[Launch, Launch]:
    """The parts, then their merge: the rows of `rows.single_I`. q and out are contiguous.

    Of a sequence without tokens the result is 0.
    """
    n_heads, head_dim = q_TND.shape[1:]
    n_items, n_kv_heads = len(rows.single_I), layer.geometry.n_kv_heads
    n_pairs, n_rep = n_items * n_kv_heads, n_heads // n_kv_heads
    split = decode_split(q_TND.dtype, n_pairs, n_rep, fp8=layer.is_fp8)
    n_splits = decode_splits(q_TND.dtype, n_pairs, rows.longest_keys, split)
    exact = q_TND.dtype is torch.float32
    of_both = arguments(q_TND, layer, rows, tile)
    of_parts = {
        "parts": q_TND.new_empty((n_items, n_splits, n_heads, head_dim), dtype=torch.float32),
        "max_sum": q_TND.new_empty((n_items, n_splits, n_heads, 2), dtype=torch.float32),
        "singles": rows.single_I,
        "n_splits": n_splits,
        "SPLIT": split,
    }
    attend = Launch(
        kernel=_attend_split,
        grid=(n_items, n_kv_heads, n_splits),
        arguments={**of_both, **of_parts},
        num_warps=tile.warps,
        num_stages=tile.stages,
        exact=exact,
    )
    merging = Launch(
        kernel=_merge_splits,
        grid=(n_items, n_kv_heads),
        arguments={"out": out_TND, **of_parts, **{name: of_both[name] for name in MERGE_TAKES}},
        num_warps=tile.warps,
        exact=exact,
    )
    return attend, merging


@triton.jit
def _run_keys(n_keys, n_splits, SPLIT: tl.constexpr):
    """Of one program, so that so many read all: SPLIT, or a multiple."""
    return tl.cdiv(tl.cdiv(n_keys, SPLIT), n_splits) * SPLIT


@triton.jit(do_not_specialize=["table_width", "n_splits"])
def _attend_split(
    q,
    k_pages,
    v_pages,
    k_scales,
    v_scales,
    parts,
    max_sum,
    singles,
    starts,
    lengths,
    tables,
    table_width,
    page_stride,
    n_splits,
    scale,
    N_HEADS: tl.constexpr,
    N_REP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    item, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    seq = tl.load(singles + item).to(tl.int64)
    n_keys = tl.load(lengths + seq)
    run = _run_keys(n_keys, n_splits, SPLIT)
    first = split * run
    if first < n_keys:
        row = tl.load(starts + seq).to(tl.int64)
        table = tables + seq * table_width
        rep, dim = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
        there = (rep < N_REP)[:, None] & (dim < HEAD_DIM)[None, :]
        at = (head * N_REP + rep)[:, None] * HEAD_DIM + dim[None, :]
        q_MD = tl.load(q + row * (N_HEADS * HEAD_DIM) + at, mask=there, other=0.0)
        position_M = tl.zeros((BLOCK_M,), tl.int32) + (n_keys - 1)
        acc_MD, max_M, sum_M = attend_keys(
            (q_MD, position_M, scale),
            nothing_seen(BLOCK_M, BLOCK_D),
            (k_pages, v_pages, k_scales, v_scales, table, page_stride, head),
            first,
            tl.minimum(first + run, n_keys),
            HEAD_DIM,
            PAGE_TOKENS,
            BLOCK_N,
            SOME_SEEN,
        )
        part = (item.to(tl.int64) * n_splits + split) * N_HEADS
        tl.store(parts + part * HEAD_DIM + at, acc_MD, mask=there)
        stats = max_sum + (part + head * N_REP + rep) * 2
        tl.store(stats, max_M, mask=rep < N_REP)
        tl.store(stats + 1, sum_M, mask=rep < N_REP)


@triton.jit(do_not_specialize=["n_splits"])
def _merge_splits(
    parts,
    max_sum,
    out,
    singles,
    starts,
    lengths,
    n_splits,
    N_HEADS: tl.constexpr,
    N_REP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    item, head = tl.program_id(0), tl.program_id(1)
    seq = tl.load(singles + item).to(tl.int64)
    row = tl.load(starts + seq).to(tl.int64)
    n_keys = tl.load(lengths + seq)
    used = tl.cdiv(n_keys, tl.maximum(_run_keys(n_keys, n_splits, SPLIT), 1))
    rep, dim = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    there = (rep < N_REP)[:, None] & (dim < HEAD_DIM)[None, :]
    at = (head * N_REP + rep)[:, None] * HEAD_DIM + dim[None, :]
    seen = nothing_seen(BLOCK_M, BLOCK_D)
    for split in range(used):
        part = (item.to(tl.int64) * n_splits + split) * N_HEADS
        more_MD = tl.load(parts + part * HEAD_DIM + at, mask=there, other=0.0)
        stats = max_sum + (part + head * N_REP + rep) * 2
        more_max_M = tl.load(stats, mask=rep < N_REP, other=0.0)
        more_sum_M = tl.load(stats + 1, mask=rep < N_REP, other=1.0)
        seen = merge(seen, (more_MD, more_max_M, more_sum_M))
    acc_MD, _, sum_M = seen
    mean_MD = acc_MD / tl.where(sum_M == 0, 1.0, sum_M)[:, None]
    tl.store(out + row * (N_HEADS * HEAD_DIM) + at, mean_MD.to(out.dtype.element_ty), mask=there)
