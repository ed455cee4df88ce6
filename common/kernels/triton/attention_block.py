"""What decode and prefill attention share: one query tile over a run of keys, and the merge.

The online softmax is arXiv 1805.02867's, as in FlashAttention; base 2, as the hardware has it.
In float32 both use the same tiles, so that a row has the same bits whichever computed it (law 3):
keys it does not see have weight 0 exactly, and blocks without any it sees change nothing.

Keys and values in fp8 are widened to the queries' dtype, in which each is exact; their scales,
one a key, multiply scores and weights instead of elements.

M rows of a tile (tokens times the query heads of one KV head)  N keys of a block  D head dim
"""

import math

import triton
import triton.language as tl
from torch import Tensor

from common.kernels.paged import KVLayer
from common.kernels.triton.configs import Tile
from common.kernels.triton.fp8 import SCALE_BYTES
from common.kernels.triton.launch import Argument, power_of_2
from common.kernels.triton.rows import DeviceRows

SOME_SEEN, ALL_SEEN = tl.constexpr(0), tl.constexpr(1)
LIFT = tl.constexpr(256.0)
"""Of weights that are multiplied by scales and rounded to float16, whose small numbers are coarse.
The sum of weights has it, too, so that it is not in their mean."""


def tile_rows(tile: Tile, n_rep: int) -> int:
    """At least the query heads of one KV head."""
    return max(tile.rows, power_of_2(n_rep))


def arguments(q_TND: Tensor, layer: KVLayer, rows: DeviceRows, tile: Tile) -> dict[str, Argument]:
    """Those that both attentions take, by name."""
    n_heads, head_dim = q_TND.shape[1:]
    geometry = layer.geometry
    n_rep = n_heads // geometry.n_kv_heads
    return {
        "q": q_TND,
        "k_pages": layer.k_PSGD,
        "v_pages": layer.v_PSGD,
        "k_scales": layer.k_scales_PSG,
        "v_scales": layer.v_scales_PSG,
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
        "BLOCK_M": tile_rows(tile, n_rep),
        "BLOCK_N": tile.keys,
        "BLOCK_D": max(16, power_of_2(head_dim)),
    }


@triton.jit
def nothing_seen(BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    """What a tile's rows have of the keys they saw, before the first: sum of weighted values,
    maximum of scores, sum of weights."""
    max_M = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    return tl.zeros((BLOCK_M, BLOCK_D), tl.float32), max_M, tl.zeros((BLOCK_M,), tl.float32)


@triton.jit
def attend_keys(
    queries,
    seen,
    keys,
    first,
    end,
    HEAD_DIM: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SEEN: tl.constexpr,
):
    """`seen`, and keys first .. end of one sequence and KV head.

    queries  q_MD, position_M, scale; row m sees keys up to position_M[m]
    keys     k_pages, v_pages, their scales (None: not fp8), the sequence's table, page stride, KV
             head
    SEEN     ALL_SEEN: every row sees all of them, and they are whole blocks
    """
    q_MD, position_M, scale = queries
    k_pages, v_pages, k_scales, v_scales, table, page_stride, head = keys
    acc_MD, max_M, sum_M = seen
    dim = tl.arange(0, q_MD.shape[1])
    for at in range(first, end, BLOCK_N):
        key = at + tl.arange(0, BLOCK_N)
        there = (key < end) | (SEEN == ALL_SEEN)
        page = tl.load(table + key // PAGE_TOKENS, mask=there, other=0).to(tl.int64)
        in_page = head * PAGE_TOKENS + key % PAGE_TOKENS
        where = (page * page_stride + in_page * HEAD_DIM)[:, None] + dim[None, :]
        mask = there[:, None] & (dim < HEAD_DIM)[None, :]
        k_ND = tl.load(k_pages + where, mask=mask, other=0.0).to(q_MD.dtype)
        scores_MN = tl.dot(q_MD, tl.trans(k_ND), input_precision="ieee") * scale
        scale_at = page * (page_stride // SCALE_BYTES) + in_page
        if k_scales is not None:
            scores_MN *= tl.load(k_scales + scale_at, mask=there, other=0.0)[None, :]
        if SEEN == SOME_SEEN:
            scores_MN = tl.where(key[None, :] <= position_M[:, None], scores_MN, float("-inf"))
        new_M = tl.maximum(max_M, tl.max(scores_MN, 1))
        finite_M = tl.where(new_M == float("-inf"), 0.0, new_M)
        weights_MN = tl.exp2(scores_MN - finite_M[:, None])
        rescale_M = tl.exp2(max_M - finite_M)
        if (v_scales is not None) & (q_MD.dtype == tl.float16):
            weights_MN *= LIFT
        sum_M = sum_M * rescale_M + tl.sum(weights_MN, 1)
        v_ND = tl.load(v_pages + where, mask=mask, other=0.0).to(q_MD.dtype)
        if v_scales is not None:
            weights_MN *= tl.load(v_scales + scale_at, mask=there, other=0.0)[None, :]
        acc_MD = tl.dot(
            weights_MN.to(q_MD.dtype), v_ND, acc_MD * rescale_M[:, None], input_precision="ieee"
        )
        max_M = new_M
    return acc_MD, max_M, sum_M


@triton.jit
def merge(seen, more):
    """Two disjoint runs of keys become one; a run that a row sees nothing of changes nothing."""
    acc_MD, max_M, sum_M = seen
    more_MD, more_max_M, more_sum_M = more
    new_M = tl.maximum(max_M, more_max_M)
    finite_M = tl.where(new_M == float("-inf"), 0.0, new_M)
    rescale_M = tl.exp2(max_M - finite_M)
    more_rescale_M = tl.exp2(more_max_M - finite_M)
    acc_MD = acc_MD * rescale_M[:, None] + more_MD * more_rescale_M[:, None]
    return acc_MD, new_M, sum_M * rescale_M + more_sum_M * more_rescale_M
