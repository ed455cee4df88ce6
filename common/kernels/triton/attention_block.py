"""What decode and prefill attention share: one query tile over a run of keys, and the merge.

The online softmax is arXiv 1805.02867's, as in FlashAttention; base 2, as the hardware has it.
In float32 both use the same tiles, so that a row has the same bits whichever computed it (law 3):
keys it does not see have weight 0 exactly, and blocks without any it sees change nothing.

M rows of a tile (tokens times the query heads of one KV head)  N keys of a block  D head dim
"""

import triton
import triton.language as tl

SOME_SEEN, ALL_SEEN = tl.constexpr(0), tl.constexpr(1)


@triton.jit
def attend_keys(
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
    first,
    end,
    scale,
    HEAD_DIM: tl.constexpr,
    PAGE_TOKENS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SEEN: tl.constexpr,
):
    """Keys first .. end of one sequence and KV head; row m sees those up to position_M[m].

    SEEN  ALL_SEEN: every row sees all of them, and they are whole blocks
    """
    dim = tl.arange(0, BLOCK_D)
    for at in range(first, end, BLOCK_N):
        key = at + tl.arange(0, BLOCK_N)
        there = (key < end) | (SEEN == ALL_SEEN)
        page = tl.load(table + key // PAGE_TOKENS, mask=there, other=0).to(tl.int64)
        token = page * page_stride + (head * PAGE_TOKENS + key % PAGE_TOKENS) * HEAD_DIM
        where = token[:, None] + dim[None, :]
        mask = there[:, None] & (dim < HEAD_DIM)[None, :]
        k_ND = tl.load(k_pages + where, mask=mask, other=0.0)
        scores_MN = tl.dot(q_MD, tl.trans(k_ND), input_precision="ieee") * scale
        if SEEN == SOME_SEEN:
            scores_MN = tl.where(key[None, :] <= position_M[:, None], scores_MN, float("-inf"))
        new_M = tl.maximum(max_M, tl.max(scores_MN, 1))
        finite_M = tl.where(new_M == float("-inf"), 0.0, new_M)
        weights_MN = tl.exp2(scores_MN - finite_M[:, None])
        rescale_M = tl.exp2(max_M - finite_M)
        v_ND = tl.load(v_pages + where, mask=mask, other=0.0)
        acc_MD = tl.dot(
            weights_MN.to(v_ND.dtype), v_ND, acc_MD * rescale_M[:, None], input_precision="ieee"
        )
        sum_M = sum_M * rescale_M + tl.sum(weights_MN, 1)
        max_M = new_M
    return acc_MD, max_M, sum_M


@triton.jit
def merge(acc_MD, max_M, sum_M, more_MD, more_max_M, more_sum_M):
    """Two disjoint runs of keys become one; a run that a row sees nothing of changes nothing."""
    new_M = tl.maximum(max_M, more_max_M)
    finite_M = tl.where(new_M == float("-inf"), 0.0, new_M)
    rescale_M = tl.exp2(max_M - finite_M)
    more_rescale_M = tl.exp2(more_max_M - finite_M)
    acc_MD = acc_MD * rescale_M[:, None] + more_MD * more_rescale_M[:, None]
    return acc_MD, new_M, sum_M * rescale_M + more_sum_M * more_rescale_M
