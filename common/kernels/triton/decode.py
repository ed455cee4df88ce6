"""Paged attention of sequences with one row each: the context is split, and the parts merged.

One program reads one run of keys of one KV head, once for all query heads that share it; so a
batch of one sequence fills the chip as well. The merge is by maximum and sum of exponentials, in
ascending order. Flash-Decoding's scheme over paged KV.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from common.kernels.paged import KVLayer
from common.kernels.triton.attention_block import SOME_SEEN, attend_keys, merge
from common.kernels.triton.configs import Tile, decode_split
from common.kernels.triton.launch import Launch, power_of_2
from common.kernels.triton.rows import DeviceRows


def launches(
    q_TND: Tensor, layer: KVLayer, rows: DeviceRows, tile: Tile, out_TND: Tensor
) -> tuple[Launch, Launch]:
    """The parts, then their merge: the rows of `rows.single_I`. q and out are contiguous."""
    n_heads, head_dim = q_TND.shape[1:]
    geometry = layer.geometry
    n_kv_heads, n_items = geometry.n_kv_heads, len(rows.single_I)
    n_rep = n_heads // n_kv_heads
    split = decode_split(q_TND.dtype, n_items * n_kv_heads, n_rep)
    n_splits = triton.cdiv(rows.longest_keys, split)
    parts = torch.empty(
        (n_items, n_splits, n_heads, head_dim), dtype=torch.float32, device=q_TND.device
    )
    max_sum = torch.empty((n_items, n_splits, n_heads, 2), dtype=torch.float32, device=q_TND.device)
    exact = q_TND.dtype is torch.float32
    shared = {
        "parts": parts,
        "max_sum": max_sum,
        "singles": rows.single_I,
        "starts": rows.start_B1,
        "lengths": rows.len_B,
        "n_splits": n_splits,
        "N_HEADS": n_heads,
        "N_REP": n_rep,
        "HEAD_DIM": head_dim,
        "SPLIT": split,
        "BLOCK_M": max(tile.rows, power_of_2(n_rep)),
        "BLOCK_D": max(16, power_of_2(head_dim)),
    }
    attend = Launch(
        kernel=_attend_split,
        grid=(n_items, n_kv_heads, n_splits),
        arguments={
            "q": q_TND,
            "k_pages": layer.k_PSGD,
            "v_pages": layer.v_PSGD,
            "tables": rows.tables_BM,
            "table_width": rows.tables_BM.shape[1],
            "page_stride": geometry.stride,
            "scale": head_dim**-0.5 * math.log2(math.e),
            "PAGE_TOKENS": geometry.page_tokens,
            "BLOCK_N": tile.keys,
            **shared,
        },
        num_warps=tile.warps,
        num_stages=tile.stages,
        exact=exact,
    )
    merging = Launch(
        kernel=_merge_splits,
        grid=(n_items, n_kv_heads),
        arguments={"out": out_TND, **shared},
        num_warps=tile.warps,
        exact=exact,
    )
    return attend, merging


@triton.jit
def _attend_split(
    q,
    k_pages,
    v_pages,
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
    first = split * SPLIT
    if first < n_keys:
        row = tl.load(starts + seq).to(tl.int64)
        rep, dim = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
        there = (rep < N_REP)[:, None] & (dim < HEAD_DIM)[None, :]
        at = (head * N_REP + rep)[:, None] * HEAD_DIM + dim[None, :]
        q_MD = tl.load(q + row * (N_HEADS * HEAD_DIM) + at, mask=there, other=0.0)
        acc_MD, max_M, sum_M = attend_keys(
            q_MD,
            tl.zeros((BLOCK_M, BLOCK_D), tl.float32),
            tl.full((BLOCK_M,), float("-inf"), tl.float32),
            tl.zeros((BLOCK_M,), tl.float32),
            tl.zeros((BLOCK_M,), tl.int32) + (n_keys - 1),
            k_pages,
            v_pages,
            tables + seq * table_width,
            page_stride,
            head,
            first,
            tl.minimum(first + SPLIT, n_keys),
            scale,
            HEAD_DIM,
            PAGE_TOKENS,
            BLOCK_N,
            BLOCK_D,
            SOME_SEEN,
        )
        part = (item.to(tl.int64) * n_splits + split) * N_HEADS
        tl.store(parts + part * HEAD_DIM + at, acc_MD, mask=there)
        stats = max_sum + (part + head * N_REP + rep) * 2
        tl.store(stats, max_M, mask=rep < N_REP)
        tl.store(stats + 1, sum_M, mask=rep < N_REP)


@triton.jit
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
    used = tl.cdiv(tl.load(lengths + seq), SPLIT)
    rep, dim = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    there = (rep < N_REP)[:, None] & (dim < HEAD_DIM)[None, :]
    at = (head * N_REP + rep)[:, None] * HEAD_DIM + dim[None, :]
    acc_MD = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    max_M = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    sum_M = tl.zeros((BLOCK_M,), tl.float32)
    for split in range(used):
        part = (item.to(tl.int64) * n_splits + split) * N_HEADS
        more_MD = tl.load(parts + part * HEAD_DIM + at, mask=there, other=0.0)
        stats = max_sum + (part + head * N_REP + rep) * 2
        more_max_M = tl.load(stats, mask=rep < N_REP, other=0.0)
        more_sum_M = tl.load(stats + 1, mask=rep < N_REP, other=1.0)
        acc_MD, max_M, sum_M = merge(acc_MD, max_M, sum_M, more_MD, more_max_M, more_sum_M)
    mean_MD = acc_MD / sum_M[:, None]
    tl.store(out + row * (N_HEADS * HEAD_DIM) + at, mean_MD.to(out.dtype.element_ty), mask=there)
