# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false
"""Tokens from logits on the device: penalties, truncation and the draw, a row by one program.

Comes to the tokens that `common.sampling` comes to, bit by bit: it weighs tokens in integers, whose
sums do not depend on their order, and rounds what it rounds where that does. Nothing is read back.

Truncation takes no sort. What top_k and top_p keep is a prefix of the order by (logit descending,
id): a least logit and, of the tokens that have just that, a last id. The logit is searched for
among all float32 that there are, two bits a pass over the row.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from common.kernels.draws import EXP2_SERIES, weight_bits
from common.kernels.triton import sampling_uniform
from common.kernels.triton.launch import Launch
from common.kernels.triton.sampling_rows import IN_PROMPT, MASK_BITS, SamplingRows

BLOCK = 1024  # tokens of a row looked at together
WIDE = tl.constexpr(2)  # blocks, where little is kept of each token
WARPS = 8

SERIES, N_TERMS = tl.constexpr(EXP2_SERIES), tl.constexpr(len(EXP2_SERIES))
ROUNDER = tl.constexpr(1.5 * 2**52)  # added and taken off again: the nearest integer, ties to even
EXPONENT_BIAS, MANTISSA_BITS = tl.constexpr(1023), tl.constexpr(52)  # of a float64
LOWEST = tl.constexpr(-2139095041)  # the order of -inf, see `order_of`
BELOW_ALL = tl.constexpr(-(2**31))
PROMPT, WORD_BITS = tl.constexpr(IN_PROMPT), tl.constexpr(MASK_BITS)


def sample(logits_RV: Tensor, rows: SamplingRows) -> Tensor:
    """Tokens [R], int64, on the device; -1 where the largest logit is not finite or one is NaN.

    `logits_RV` float32, unchanged; row r is drawn from by row r of `rows`, whose histories count
    what is drawn.
    """
    uniform_R = torch.empty(len(logits_RV), dtype=torch.int64, device=logits_RV.device)
    token_R = torch.empty_like(uniform_R)
    for launch in launches(logits_RV, rows, uniform_R, token_R):
        launch.run()
    return token_R


def launches(
    logits_RV: Tensor, rows: SamplingRows, uniform_R: Tensor, token_R: Tensor
) -> tuple[Launch, Launch]:
    """The randomness, then the draw."""
    n_rows, n_vocab = logits_RV.shape
    if logits_RV.stride(1) != 1 or logits_RV.dtype is not torch.float32:
        raise ValueError(f"logits of {logits_RV.dtype} and strides {logits_RV.stride()}")
    drawing = Launch(
        kernel=_sample,
        grid=(n_rows,),
        arguments={
            "logits": logits_RV,
            "uniforms": uniform_R,
            "scales": rows.scale_R,
            "limits": rows.limits_R4,
            "penalties": rows.penalty_R3,
            "histories": rows.history_HV,
            "history_rows": rows.history_R,
            "biases": rows.bias_SV,
            "bias_rows": rows.bias_R,
            "masks": rows.mask_MW,
            "mask_rows": rows.mask_R,
            "tokens": token_R,
            "logits_stride": logits_RV.stride(0),
            "n_vocab": n_vocab,
            "n_words": rows.mask_MW.shape[1],
            "weight_bits": weight_bits(n_vocab),
            "BLOCK": BLOCK,
        },
        num_warps=WARPS,
        exact=True,
    )
    return sampling_uniform.launch(rows.keys_R3, uniform_R), drawing


@triton.jit
def _sample(
    logits,
    uniforms,
    scales,
    limits,
    penalties,
    histories,
    history_rows,
    biases,
    bias_rows,
    masks,
    mask_rows,
    tokens,
    logits_stride,
    n_vocab,
    n_words,
    weight_bits,
    BLOCK: tl.constexpr,
):
    r = tl.program_id(0).to(tl.int64)
    history_row = tl.load(history_rows + r).to(tl.int64)
    bias_row = tl.load(bias_rows + r).to(tl.int64)
    mask_row = tl.load(mask_rows + r).to(tl.int64)
    history = histories + history_row * n_vocab
    row = (
        n_vocab,
        logits + r * logits_stride,
        (masks + mask_row * n_words, mask_row >= 0),
        (biases + bias_row * n_vocab, bias_row >= 0),
        (history, history_row >= 0),
        (
            tl.load(penalties + 3 * r),
            tl.load(penalties + 3 * r + 1),
            tl.load(penalties + 3 * r + 2),
        ),
    )
    top, token, n_nans = _likeliest(row, WIDE * BLOCK)
    if (n_nans > 0) | (top == float("-inf")) | (top == float("inf")):
        token = tl.full((), -1, tl.int32)
    else:
        scale = tl.load(scales + r)
        if scale != 0:
            draw = (top, scale, weight_bits, tl.load(limits + 4 * r))
            top_k = tl.load(limits + 4 * r + 1)
            top_p = tl.load(limits + 4 * r + 2), tl.load(limits + 4 * r + 3)
            least, last, total = _truncated(row, draw, top_k, top_p, BLOCK)
            cut = (least, last)
            token = _inverse(row, draw, cut, total, tl.load(uniforms + r), BLOCK)
        if history_row >= 0:
            tl.store(history + token, tl.load(history + token) + 1)
    tl.store(tokens + r, token.to(tl.int64))


# --- a row's tokens, block by block --------------------------------------------------------------


@triton.jit
def _logits(row, at, BLOCK: tl.constexpr):
    """Tokens from `at` on, and their logits with masks, biases and penalties; past the end -inf."""
    n_vocab, logits, masks, biases, histories, penalties = row
    mask, has_mask = masks
    bias, has_bias = biases
    history, has_history = histories
    repetition, frequency, presence = penalties
    token = at + tl.arange(0, BLOCK)
    there = token < n_vocab
    x = tl.load(logits + token, mask=there, other=float("-inf"))
    if has_mask:
        word = tl.load(mask + token // WORD_BITS, mask=there, other=0)
        x = tl.where(((word >> (token % WORD_BITS)) & 1) != 0, x, float("-inf"))
    if has_bias:
        change = tl.load(bias + token, mask=there, other=0.0)
        x = tl.where(change == float("-inf"), float("-inf"), x + change)
    if has_history:
        times = tl.load(history + token, mask=there, other=0)
        repeated = tl.where(x > 0, tl.div_rn(x, repetition), x * repetition)
        x = tl.where(times != 0, repeated, x)
        n_outputs = times & (PROMPT - 1)
        said = x - frequency * n_outputs.to(tl.float32) - presence
        x = tl.where(n_outputs != 0, said, x)
    return token, x


@triton.jit
def order_of(x):
    """int32 that are in order as the float32 are; equal where those are equal, 0 and -0 too."""
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _logit(order):
    """Of that order."""
    return (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def weights_of(x, draw):
    """int64, as `common.sampling` weighs them; 0 for those that min_p removes."""
    top, scale, weight_bits, least = draw
    exponent = (x.to(tl.float64) - top.to(tl.float64)) * scale
    exponent = tl.maximum(exponent, (-2 - weight_bits).to(tl.float64))
    whole = exponent + ROUNDER - ROUNDER
    fraction = exponent - whole
    power = fraction * 0 + SERIES[0]
    for i in tl.static_range(1, N_TERMS):
        power = power * fraction + SERIES[i]
    bits = (whole.to(tl.int64) + (EXPONENT_BIAS + weight_bits)) << MANTISSA_BITS
    weights = (power * bits.to(tl.float64, bitcast=True)).to(tl.int64)
    return tl.where(weights >= least, weights, 0)


@triton.jit
def _kept(token, x, draw, cut):
    """Weights, 0 outside the cut: (order, of those that have just that the last token)."""
    least, last = cut
    order = order_of(x)
    inside = (order > least) | ((order == least) & (token <= last))
    return tl.where(inside, weights_of(x, draw), 0)


# --- passes over a row ---------------------------------------------------------------------------


@triton.jit
def _likeliest(row, BLOCK: tl.constexpr):
    """The largest logit, the first token that has it, and how many logits are NaN. Block by block
    each place keeps its own, so that a block waits for nothing but its loads."""
    n_vocab = row[0]
    top_N = tl.full((BLOCK,), float("-inf"), tl.float32)
    first_N = tl.zeros((BLOCK,), tl.int32)
    n_nans_N = tl.zeros((BLOCK,), tl.int32)
    for at in range(0, n_vocab, BLOCK):
        token, x = _logits(row, at, BLOCK)
        first_N = tl.where(x > top_N, token, first_N)
        top_N = tl.where(x > top_N, x, top_N)
        n_nans_N += (x != x).to(tl.int32)
    top = tl.max(top_N)
    return top, tl.min(tl.where(top_N == top, first_N, n_vocab)), tl.sum(n_nans_N)


@triton.jit
def _sums(row, draw, cut, orders, BLOCK: tl.constexpr, WEIGH: tl.constexpr):
    """Of tokens in each of three orders or above: what weight is kept, or how many there are."""
    n_vocab = row[0]
    first, second, third = orders
    first_N = tl.zeros((BLOCK,), tl.int64)
    second_N, third_N = first_N, first_N
    for at in range(0, n_vocab, BLOCK):
        token, x = _logits(row, at, BLOCK)
        order = order_of(x)
        n = (token < n_vocab).to(tl.int64)
        if WEIGH:
            n = _kept(token, x, draw, cut)
        first_N += tl.where(order >= first, n, 0)
        second_N += tl.where(order >= second, n, 0)
        third_N += tl.where(order >= third, n, 0)
    return tl.sum(first_N), tl.sum(second_N), tl.sum(third_N)


@triton.jit
def _search(row, draw, cut, enough, BLOCK: tl.constexpr, WEIGH: tl.constexpr):
    """The highest order from which on there is enough, by `_sums`."""
    low = tl.full((), LOWEST, tl.int64)
    high = order_of(draw[0]).to(tl.int64)
    while low < high:
        step = tl.maximum((high - low + 1) >> 2, 1)
        one, two, three = low + step, low + 2 * step, low + 3 * step
        orders = one.to(tl.int32), two.to(tl.int32), three.to(tl.int32)
        of_one, of_two, of_three = _sums(row, draw, cut, orders, BLOCK, WEIGH)
        has_one, has_two, has_three = of_one >= enough, of_two >= enough, of_three >= enough
        high = tl.where(has_three, high, tl.where(has_two, three, tl.where(has_one, two, one)) - 1)
        low = tl.where(has_three, three, tl.where(has_two, two, tl.where(has_one, one, low)))
    return low.to(tl.int32)


@triton.jit
def _nth(row, order, n, BLOCK: tl.constexpr):
    """Of the tokens of that order the n-th, which there is."""
    n_vocab = row[0]
    n_before = tl.full((), 0, tl.int32)
    found = tl.full((), 0, tl.int32)
    for at in range(0, n_vocab, BLOCK):
        token, x = _logits(row, at, BLOCK)
        is_one = (order_of(x) == order) & (token < n_vocab)
        n_here = tl.sum(is_one.to(tl.int32))
        if (n_before < n) & (n_before + n_here >= n):
            rank = n_before + tl.cumsum(is_one.to(tl.int32), 0)
            found = tl.min(tl.where(is_one & (rank == n), token, n_vocab))
        n_before += n_here
    return found


# --- the draw ------------------------------------------------------------------------------------


@triton.jit
def _truncated(row, draw, top_k, top_p, BLOCK: tl.constexpr):
    """What top_k and top_p leave, top_p of what the other rules leave: the cut, and its weight."""
    least = tl.full((), BELOW_ALL, tl.int32)
    last = tl.full((), 0, tl.int32)
    if top_k > 0:
        least = _search(row, draw, (least, last), top_k, BLOCK, WEIGH=False)
        above = _sums(row, draw, (least, last), (least + 1, least, least), BLOCK, WEIGH=False)[0]
        last = _nth(row, least, top_k - above, BLOCK)
    total = _sums(row, draw, (least, last), (least, least, least), BLOCK, WEIGH=True)[0]
    if top_p[0] > 0:
        enough = _share(top_p, total)
        order = _search(row, draw, (least, last), enough, BLOCK, WEIGH=True)
        above = _sums(row, draw, (least, last), (order + 1, order, order), BLOCK, WEIGH=True)[0]
        weight = weights_of(_logit(order), draw)
        n = (enough - above + weight - 1) // weight
        last = _nth(row, order, n, BLOCK)
        least = order
        total = above + n * weight
    return least, last, total


@triton.jit
def _share(share, total):
    """ceil(mantissa * total / 2**shift), in 128 bits; 53 <= shift < 128."""
    mantissa, shift = share[0].to(tl.uint64), share[1].to(tl.uint64)
    high, low = tl.umulhi(mantissa, total.to(tl.uint64)), mantissa * total.to(tl.uint64)
    one = tl.full((), 1, tl.uint64)
    if shift < 64:
        whole = (high << (64 - shift)) | (low >> shift)
        rest = low & ((one << shift) - 1)
    else:
        whole = high >> (shift - 64)
        rest = (high & ((one << (shift - 64)) - 1)) | low
    return (whole + (rest != 0).to(tl.uint64)).to(tl.int64)


@triton.jit
def _inverse(row, draw, cut, total, uniform, BLOCK: tl.constexpr):
    """The first token whose cumulative weight passes uniform / 2**53 of the total."""
    n_vocab = row[0]
    high = tl.umulhi(uniform.to(tl.uint64), total.to(tl.uint64))
    low = uniform.to(tl.uint64) * total.to(tl.uint64)
    target = ((high << 11) | (low >> 53)).to(tl.int64)
    before = tl.full((), 0, tl.int64)
    found = tl.full((), 0, tl.int32)
    for at in range(0, n_vocab, BLOCK):
        token, x = _logits(row, at, BLOCK)
        weights = _kept(token, x, draw, cut)
        here = tl.sum(weights)
        if (before <= target) & (before + here > target):
            cumulative = before + tl.cumsum(weights, 0)
            found = tl.min(tl.where(cumulative > target, token, n_vocab))
        before += here
    return found
