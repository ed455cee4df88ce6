"""Paged, causal attention of prompt chunks of any lengths, packed: FlashAttention over pages.

One program has a tile of one sequence's queries, the heads of one KV head beside each other, and
reads every page up to its last query: earlier chunks and cached prefixes are keys like any other.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from common.kernels.paged import KVLayer
from common.kernels.triton.attention_block import ALL_SEEN, SOME_SEEN, attend_keys, merge
from common.kernels.triton.configs import EXACT_SPLIT, Tile
from common.kernels.triton.launch import Launch, power_of_2
from common.kernels.triton.rows import DeviceRows


def tile_rows(tile: Tile, n_rep: int) -> int:
    return max(tile.rows, power_of_2(n_rep))


def launch(q_TND: Tensor, layer: KVLayer, rows: DeviceRows, tile: Tile, out_TND: Tensor) -> Launch:
    """The rows of `rows.tile_X2`, of `tile_rows(tile, N / G)` // (N / G) tokens each.

    q and out are contiguous.
    """
    n_heads, head_dim = q_TND.shape[1:]
    geometry = layer.geometry
    n_rep = n_heads // geometry.n_kv_heads
    exact = q_TND.dtype is torch.float32
    return Launch(
        kernel=_attend_tile,
        grid=(len(rows.tile_X2), geometry.n_kv_heads),
        arguments={
            "q": q_TND,
            "k_pages": layer.k_PSGD,
            "v_pages": layer.v_PSGD,
            "out": out_TND,
            "tiles": rows.tile_X2,
            "starts": rows.start_B1,
            "lengths": rows.len_B,
            "tables": rows.tables_BM,
            "table_width": rows.tables_BM.shape[1],
            "page_stride": geometry.stride,
            "scale": head_dim**-0.5 * math.log2(math.e),
            "N_HEADS": n_heads,
            "N_REP": n_rep,
            "HEAD_DIM": head_dim,
            "PAGE_TOKENS": geometry.page_tokens,
            "SPLIT": EXACT_SPLIT if exact else 0,
            "BLOCK_M": tile_rows(tile, n_rep),
            "BLOCK_N": tile.keys,
            "BLOCK_D": max(16, power_of_2(head_dim)),
        },
        num_warps=tile.warps,
        num_stages=tile.stages,
        exact=exact,
    )


@triton.jit
def _attend_tile(
    q,
    k_pages,
    v_pages,
    out,
    tiles,
    starts,
    lengths,
    tables,
    table_width,
    page_stride,
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
    """SPLIT: merge runs of as many keys as decode does, so that bits are the same; 0: one run."""
    tile, head = tl.program_id(0), tl.program_id(1)
    seq = tl.load(tiles + 2 * tile).to(tl.int64)
    first_query = tl.load(tiles + 2 * tile + 1)
    start = tl.load(starts + seq)
    n_queries = tl.load(starts + seq + 1) - start
    before = tl.load(lengths + seq) - n_queries
    TOKENS: tl.constexpr = BLOCK_M // N_REP
    m, dim = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    query = first_query + m // N_REP
    is_row = (query < n_queries) & (m < TOKENS * N_REP)
    there = is_row[:, None] & (dim < HEAD_DIM)[None, :]
    row = (start + query).to(tl.int64) * N_HEADS + head * N_REP + m % N_REP
    at = row[:, None] * HEAD_DIM + dim[None, :]
    q_MD = tl.load(q + at, mask=there, other=0.0)
    position_M = before + query
    end = before + tl.minimum(first_query + TOKENS, n_queries)
    table = tables + seq * table_width
    acc_MD = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    max_M = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    sum_M = tl.zeros((BLOCK_M,), tl.float32)
    if SPLIT:
        for first in range(0, end, SPLIT):
            more_MD, more_max_M, more_sum_M = attend_keys(
                q_MD,
                tl.zeros((BLOCK_M, BLOCK_D), tl.float32),
                tl.full((BLOCK_M,), float("-inf"), tl.float32),
                tl.zeros((BLOCK_M,), tl.float32),
                position_M,
                k_pages,
                v_pages,
                table,
                page_stride,
                head,
                first,
                tl.minimum(first + SPLIT, end),
                scale,
                HEAD_DIM,
                PAGE_TOKENS,
                BLOCK_N,
                BLOCK_D,
                SOME_SEEN,
            )
            acc_MD, max_M, sum_M = merge(acc_MD, max_M, sum_M, more_MD, more_max_M, more_sum_M)
    else:
        all_seen = (before + first_query + 1) // BLOCK_N * BLOCK_N
        acc_MD, max_M, sum_M = attend_keys(
            q_MD,
            acc_MD,
            max_M,
            sum_M,
            position_M,
            k_pages,
            v_pages,
            table,
            page_stride,
            head,
            0,
            all_seen,
            scale,
            HEAD_DIM,
            PAGE_TOKENS,
            BLOCK_N,
            BLOCK_D,
            ALL_SEEN,
        )
        acc_MD, max_M, sum_M = attend_keys(
            q_MD,
            acc_MD,
            max_M,
            sum_M,
            position_M,
            k_pages,
            v_pages,
            table,
            page_stride,
            head,
            all_seen,
            end,
            scale,
            HEAD_DIM,
            PAGE_TOKENS,
            BLOCK_N,
            BLOCK_D,
            SOME_SEEN,
        )
    mean_MD = acc_MD / sum_M[:, None]
    tl.store(out + at, mean_MD.to(out.dtype.element_ty), mask=there)
