# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false
"""What log-probabilities of drawn tokens are made from, on the device: `common.sampling.score`
comes to the same bits.

Logits are ordered by one integer each, (logit, the lower id first), so there are no ties. Each
block of the vocabulary finds its own likeliest, one program merges them, and weights are integers,
whose sums do not depend on their order: blocks add them up as they come.
"""

import triton
import triton.language as tl
from torch import Tensor

from common.kernels.draws import scale_of, weight_bits
from common.kernels.triton import logprob_rows
from common.kernels.triton.launch import Launch, power_of_2
from common.kernels.triton.logprob_rows import MOST_TOP, LogprobRows
from common.kernels.triton.sampling import order_of, weights_of

WARPS = 4

BLOCK = tl.constexpr(logprob_rows.BLOCK)
MOST = tl.constexpr(MOST_TOP)
N_COLUMNS = tl.constexpr(logprob_rows.N_COLUMNS)
RANK, TOTAL = tl.constexpr(logprob_rows.RANK), tl.constexpr(logprob_rows.TOTAL)
TARGET, TOP = tl.constexpr(logprob_rows.TARGET), tl.constexpr(logprob_rows.TOP)
TOP_TOKENS = tl.constexpr(logprob_rows.TOP_TOKENS)
TOP_LOGITS = tl.constexpr(logprob_rows.TOP_LOGITS)
NOTHING = tl.constexpr(-(2**63))  # below all keys
ID_BITS, LAST_ID = tl.constexpr(32), tl.constexpr(2**31 - 1)
SCALE = tl.constexpr(scale_of(1.0))


def logprobs(logits_RV: Tensor, token_R: Tensor, rows: LogprobRows) -> None:
    """Tells of the tokens [R] int64, under float32 logits, what `rows` want, where they say."""
    for launch in launches(logits_RV, token_R, rows):
        launch.run()


def launches(
    logits_RV: Tensor, token_R: Tensor, rows: LogprobRows
) -> tuple[Launch, Launch, Launch]:
    """Each block's likeliest; the row's; ranks and weights."""
    n_rows, n_vocab = logits_RV.shape
    n_blocks = rows.keys_RKN.shape[1]
    common = {
        "logits": logits_RV,
        "wanted": rows.wanted_R,
        "logits_stride": logits_RV.stride(0),
    }
    finding = Launch(
        kernel=_find,
        grid=(n_rows, n_blocks),
        arguments={**common, "keys": rows.keys_RKN, "n_vocab": n_vocab},
        num_warps=WARPS,
    )
    merging = Launch(
        kernel=_merge,
        grid=(n_rows,),
        arguments={
            **common,
            "keys": rows.keys_RKN,
            "tokens": token_R,
            "told": rows.told_RC,
            "n_blocks": n_blocks,
            "N_KEYS": power_of_2(n_blocks * MOST_TOP),
        },
        num_warps=WARPS,
    )
    weighing = Launch(
        kernel=_weigh,
        grid=(n_rows, n_blocks),
        arguments={
            **common,
            "tokens": token_R,
            "told": rows.told_RC,
            "n_vocab": n_vocab,
            "weight_bits": weight_bits(n_vocab),
        },
        num_warps=WARPS,
        exact=True,
    )
    return finding, merging, weighing


@triton.jit
def _find(logits, wanted, logits_stride, keys, n_vocab):
    r = tl.program_id(0).to(tl.int64)
    n = tl.load(wanted + r)
    if n >= 0:
        token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        there = token < n_vocab
        x = tl.load(logits + r * logits_stride + token, mask=there, other=0.0)
        key = (order_of(x).to(tl.int64) << ID_BITS) | (token ^ LAST_ID).to(tl.int64)
        key = tl.where(there, key, NOTHING)
        to = keys + (r * tl.num_programs(1) + tl.program_id(1)) * MOST
        for i in range(tl.maximum(n, 1)):
            top = tl.max(key)
            tl.store(to + i, top)
            key = tl.where(key == top, NOTHING, key)


@triton.jit
def _merge(logits, wanted, logits_stride, keys, tokens, told, n_blocks, N_KEYS: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    n = tl.load(wanted + r)
    if n >= 0:
        n = tl.maximum(n, 1)
        at = tl.arange(0, N_KEYS)
        found = (at < n_blocks * MOST) & (at % MOST < n)
        key = tl.load(keys + r * n_blocks * MOST + at, mask=found, other=NOTHING)
        row, to = logits + r * logits_stride, told + r * N_COLUMNS
        for i in range(n):
            top = tl.max(key)
            token = (top & LAST_ID) ^ LAST_ID
            bits = _bits(row + token)
            tl.store(to + TOP_TOKENS + i, token)
            tl.store(to + TOP_LOGITS + i, bits)
            if i == 0:
                tl.store(to + TOP, bits)
            key = tl.where(key == top, NOTHING, key)
        target = tl.maximum(tl.load(tokens + r), 0)  # -1: nothing could be drawn
        tl.store(to + TARGET, _bits(row + target))
        tl.store(to + RANK, tl.full((), 1, tl.int64))
        tl.store(to + TOTAL, tl.full((), 0, tl.int64))


@triton.jit
def _weigh(logits, wanted, logits_stride, tokens, told, n_vocab, weight_bits):
    r = tl.program_id(0).to(tl.int64)
    if tl.load(wanted + r) >= 0:
        token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        there = token < n_vocab
        x = tl.load(logits + r * logits_stride + token, mask=there, other=float("-inf"))
        to = told + r * N_COLUMNS
        target, top = _logit(to + TARGET), _logit(to + TOP)
        is_before = token < tl.load(tokens + r)
        is_ahead = (x > target) | ((x == target) & is_before & there)
        draw = (top, SCALE, weight_bits, 0)
        tl.atomic_add(to + RANK, tl.sum(is_ahead.to(tl.int64)), sem="relaxed")
        tl.atomic_add(to + TOTAL, tl.sum(weights_of(x, draw)), sem="relaxed")


@triton.jit
def _bits(at):
    """Of a float32, as an int64."""
    return tl.load(at).to(tl.int32, bitcast=True).to(tl.int64)


@triton.jit
def _logit(at):
    """Of which those are the bits."""
    return tl.load(at).to(tl.int32).to(tl.float32, bitcast=True)
