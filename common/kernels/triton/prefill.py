"""Paged, causal attention of prompt chunks of any lengths, packed: FlashAttention over pages.

One program has a tile of one sequence's queries, the heads of one KV head beside each other, and
reads every page up to its last query: earlier chunks and cached prefixes are keys like any other.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from common.kernels.paged import KVLayer
from common.kernels.triton.attention_block import (
    ALL_SEEN,
    SOME_SEEN,
    arguments,
    attend_keys,
    merge,
    nothing_seen,
)
from common.kernels.triton.configs import EXACT_SPLIT, Tile
from common.kernels.triton.launch import Launch
from common.kernels.triton.rows import DeviceRows


def launch(q_TND: Tensor, layer: KVLayer, rows: DeviceRows, tile: Tile, out_TND: Tensor) -> Launch:
    """The rows of `rows.tile_X2`, of `tile_rows(tile, N / G)` // (N / G) tokens each.

    q and out are contiguous.
    """
    exact = q_TND.dtype is torch.float32
    return Launch(
        kernel=_attend_tile,
        grid=(len(rows.tile_X2), layer.geometry.n_kv_heads),
        arguments={
            **arguments(q_TND, layer, rows, tile),
            "out": out_TND,
            "tiles": rows.tile_X2,
            "SPLIT": EXACT_SPLIT if exact else 0,
        },
        num_warps=tile.warps,
        num_stages=tile.stages,
        exact=exact,
    )


@triton.jit(do_not_specialize=["table_width"])
def _attend_tile(
    q,
    k_pages,
    v_pages,
    k_scales,
    v_scales,
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
    end = before + tl.minimum(first_query + TOKENS, n_queries)
    queries = (q_MD, before + query, scale)
    table = tables + seq * table_width
    keys = (k_pages, v_pages, k_scales, v_scales, table, page_stride, head)
    seen = nothing_seen(BLOCK_M, BLOCK_D)
    if SPLIT:
        for first in range(0, end, SPLIT):
            none, until = nothing_seen(BLOCK_M, BLOCK_D), tl.minimum(first + SPLIT, end)
            more = attend_keys(
                queries, none, keys, first, until, HEAD_DIM, PAGE_TOKENS, BLOCK_N, SOME_SEEN
            )
            seen = merge(seen, more)
    else:
        whole = (before + first_query + 1) // BLOCK_N * BLOCK_N
        seen = attend_keys(queries, seen, keys, 0, whole, HEAD_DIM, PAGE_TOKENS, BLOCK_N, ALL_SEEN)
        seen = attend_keys(
            queries, seen, keys, whole, end, HEAD_DIM, PAGE_TOKENS, BLOCK_N, SOME_SEEN
        )
    acc_MD, _, sum_M = seen
    mean_MD = acc_MD / sum_M[:, None]
    tl.store(out + at, mean_MD.to(out.dtype.element_ty), mask=there)
