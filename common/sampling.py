# pyright: standard
"""From logits to tokens: penalties, truncation, the draw, and log-probabilities.

A draw is a pure function of (params, prompt, outputs, sample, index) and its row of logits: no
state, no generator. It is bitwise the same alone and in any batch, at any number of threads, and
whether or not a truncation that removes nothing was asked for, because probabilities become
integers before they are summed: integers add up to the same in any order.

Order of operations as in vLLM: min_tokens and logit_bias, penalties, temperature, min_p, top_k,
top_p. Token-level stop rules are `common.stopping`, which needs no tensors.

Axes: B draws, R rows handled together, V vocabulary.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from fractions import Fraction
from hashlib import blake2b
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.engine.plan import Draw, Drawn
from common.kernels import native_rowwise, ops
from common.kernels.draws import EXP2_SERIES, UNIFORM_BITS, WEIGHT_BITS, scale_of, weight_bits
from common.kernels.triton import choice
from common.kernels.triton.logprob_rows import Told
from common.kernels.triton.sampling_rows import SamplingRows
from common.params import SamplingParams, TokenLogprob

BIN_SHIFT = 48  # of a float64's bits: keeps 4 of the mantissa, so 16 bins an octave
BIN_BEFORE_ONE = 0x3FEF  # what the shift leaves of 1.0, less 1
N_BINS = 2 + 16 * WEIGHT_BITS
NO_GRAMMAR: Mapping[int, NDArray[np.bool_]] = MappingProxyType({})
FEW_ALLOWED = 8  # up to one in so many tokens, they are copied one by one: a third of the time
CPU_WEIGHTS = 2**16  # computed at once: what a core's cache holds
DEVICE_WEIGHTS = 2**24


def sample(
    logits_BV: Tensor, draws: Sequence[Draw], allowed: Mapping[int, NDArray[np.bool_]] = NO_GRAMMAR
) -> tuple[Drawn, ...]:
    """One token a draw. `logits_BV` float32, unchanged; row b belongs to draws[b].

    `allowed` [V] by draw: what its grammar lets it draw.

    Raises ArithmeticError for logits that are NaN or have no finite maximum.
    """
    if not draws:
        return ()
    by_triton = choice.computes(logits_BV)
    tokens = (_sample_by_triton if by_triton else _sample)(logits_BV, draws, allowed)
    return _with_logprobs(logits_BV, draws, tokens)


def _sample_by_triton(
    logits_BV: Tensor, draws: Sequence[Draw], allowed: Mapping[int, NDArray[np.bool_]]
) -> list[int]:
    rows = SamplingRows.of(draws, allowed, logits_BV.shape[1], logits_BV.device)
    return all_drawn(ops.sample(logits_BV, rows).tolist())


def _sample(
    logits_BV: Tensor, draws: Sequence[Draw], allowed: Mapping[int, NDArray[np.bool_]]
) -> list[int]:
    rows = list(logits_BV.unbind(0))
    for b, allowed_V in allowed.items():
        rows[b] = _held(rows[b], allowed_V)
    changed = [b for b, draw in enumerate(draws) if _changes_logits(draw)]
    for b in changed:
        rows[b] = _changed_logits(rows[b], draws[b])
    greedy = [b for b, draw in enumerate(draws) if draw.params.temperature == 0]
    tokens = [0] * len(draws)
    if greedy:
        whole = len(greedy) == len(draws) and not changed and not allowed
        greedy_RV = logits_BV if whole else torch.stack([rows[b] for b in greedy])
        for b, token in zip(greedy, _argmax(greedy_RV), strict=True):
            tokens[b] = token
    random = [b for b, draw in enumerate(draws) if draw.params.temperature != 0]
    drawn = _draw_rows([rows[b] for b in random], [draws[b] for b in random])
    for b, token in zip(random, drawn, strict=True):
        tokens[b] = token
    return tokens


def score(logits_RV: Tensor, targets: Sequence[int], n_top: int) -> tuple[TokenLogprob, ...]:
    """Log-probability of targets[r] under row r, with the `n_top` most likely tokens there.

    `logits_RV` float32, raw: before temperature, penalties and masks.
    """
    scores: list[TokenLogprob] = []
    for some in _groups(range(len(targets)), logits_RV):
        rows_RV = logits_RV[some[0] : some[-1] + 1]
        scores += _score(rows_RV, [targets[r] for r in some], n_top)
    return tuple(scores)


def uniform_bits(seed: int, sample: int, index: int) -> int:
    """The draw's randomness: 53 bits of blake2b, uniform in 0 .. 2**53 - 1."""
    digest = blake2b(struct.pack("<QQQ", seed, sample, index), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - UNIFORM_BITS)


def _groups(rows: Sequence[int], logits: Tensor) -> list[Sequence[int]]:
    """Runs of `rows` of a size that the device takes well. It decides nothing but speed."""
    n_weights = CPU_WEIGHTS if logits.device.type == "cpu" else DEVICE_WEIGHTS
    n = max(1, n_weights // logits.shape[-1])
    return [rows[at : at + n] for at in range(0, len(rows), n)]


def _held(logits_V: Tensor, allowed_V: NDArray[np.bool_]) -> Tensor:
    """A copy in which nothing else can be drawn."""
    if FEW_ALLOWED * np.count_nonzero(allowed_V) > len(allowed_V):
        may_V = torch.from_numpy(allowed_V).to(logits_V.device)
        return torch.where(may_V, logits_V, -math.inf)
    ids = torch.from_numpy(np.flatnonzero(allowed_V)).to(logits_V.device)
    return torch.full_like(logits_V, -math.inf).index_copy_(0, ids, logits_V[ids])


# --- before the temperature ------------------------------------------------------------------


def _changes_logits(draw: Draw) -> bool:
    params = draw.params
    return (
        draw.index < params.min_tokens
        or bool(params.logit_bias)
        or params.repetition_penalty != 1
        or _penalises_outputs(params)
    )


def _penalises_outputs(params: SamplingParams) -> bool:
    return params.frequency_penalty != 0 or params.presence_penalty != 0


def _changed_logits(logits_V: Tensor, draw: Draw) -> Tensor:
    """A copy with masks, biases and penalties applied, in float32 as vLLM's."""
    params = draw.params
    logits_V = logits_V.clone()
    if draw.index < params.min_tokens:
        logits_V[list(params.end_token_ids + params.stop_token_ids)] = -math.inf
    if params.logit_bias:
        tokens, biases = zip(*params.logit_bias, strict=True)
        logits_V[list(tokens)] += torch.tensor(biases, dtype=torch.float32, device=logits_V.device)
    if params.repetition_penalty != 1:
        _penalise_repetition(logits_V, draw)
    if draw.outputs and _penalises_outputs(params):
        _penalise_outputs(logits_V, draw)
    return logits_V


def _penalise_repetition(logits_V: Tensor, draw: Draw) -> None:
    """Every token of prompt and outputs once: divided where positive, else multiplied."""
    seen = torch.from_numpy(np.unique(np.array(draw.prompt + draw.outputs, np.int64)))
    seen = seen.to(logits_V.device)
    penalty = draw.params.repetition_penalty
    values = logits_V[seen]
    logits_V[seen] = torch.where(values > 0, values / penalty, values * penalty)


def _penalise_outputs(logits_V: Tensor, draw: Draw) -> None:
    """Tokens of the outputs lose `presence`, and `frequency` for each time they occur."""
    tokens, counts = np.unique(np.array(draw.outputs, np.int64), return_counts=True)
    ids = torch.from_numpy(tokens).to(logits_V.device)
    counts = torch.from_numpy(counts).to(logits_V.device, torch.float32)
    values = logits_V[ids] - draw.params.frequency_penalty * counts
    logits_V[ids] = values - draw.params.presence_penalty


# --- the draw --------------------------------------------------------------------------------


def _argmax(logits_RV: Tensor) -> list[int]:
    return all_drawn(ops.argmax(logits_RV))


def all_drawn(tokens: list[int]) -> list[int]:
    """-1: none could be."""
    if -1 in tokens:
        raise ArithmeticError("the logits have no finite maximum")
    return tokens


def _require_finite(maxima: Tensor) -> None:
    """A maximum is NaN if any logit of the row is."""
    if not bool(maxima.isfinite().all()):
        raise ArithmeticError("the logits have no finite maximum")


def _weights(logits_RV: Tensor, temperatures: Sequence[float]) -> Tensor:
    """Probabilities as int64 [R, V], up to a factor: floor(exp((l - max l) / t) * 2**bits).

    The sum of a row stays below 2**62. A token that is less than 2**-bits times as likely as the
    first (in a vocabulary of 50,000: 32 nats behind) has weight 0. Operations are exact or rounded
    once, in a fixed order, so every device and the C++ kernels come to the same weights; no
    library's `exp` is like another's.
    """
    maxima = logits_RV.amax(-1, keepdim=True)
    _require_finite(maxima)
    scales = torch.tensor([scale_of(t) for t in temperatures], dtype=torch.float64)
    bits = weight_bits(logits_RV.shape[-1])
    x = (logits_RV.double() - maxima).mul_(scales.to(logits_RV.device)[:, None])
    n = x.clamp_(min=-2 - bits).round()
    fraction = x.sub_(n)
    power = torch.full_like(fraction, EXP2_SERIES[0])
    for coefficient in EXP2_SERIES[1:]:
        power.mul_(fraction).add_(coefficient)
    exponent = n.to(torch.int64).add_(1023 + bits).bitwise_left_shift_(52)
    return power.mul_(exponent.view(torch.float64)).to(torch.int64)


def _draw_rows(rows: Sequence[Tensor], draws: Sequence[Draw]) -> list[int]:
    if not rows:
        return []
    if ops.is_native(rows[0]):
        return _draw_natively(rows, draws)
    tokens: list[int] = []
    for some in _groups(range(len(rows)), rows[0]):
        tokens += _draw(torch.stack([rows[r] for r in some]), [draws[r] for r in some])
    return tokens


def _draw_natively(rows: Sequence[Tensor], draws: Sequence[Draw]) -> list[int]:
    """`_draw` by the C++ kernels, which come to the same tokens."""
    params = [draw.params for draw in draws]
    tokens = native_rowwise.draw(
        rows,
        scales=[scale_of(p.temperature) for p in params],
        min_ps=[p.min_p for p in params],
        top_ps=[p.top_p for p in params],
        top_ks=[p.top_k for p in params],
        uniforms=[_uniform(draw) for draw in draws],
        weight_bits=weight_bits(len(rows[0])),
    )
    return all_drawn(tokens)


def _draw(logits_RV: Tensor, draws: Sequence[Draw]) -> list[int]:
    """The inverse of the cumulative distribution, in order of ids, at the draws' uniforms."""
    weights_RV = _weights(logits_RV, [draw.params.temperature for draw in draws])
    for r, draw in enumerate(draws):
        _truncate(weights_RV[r], logits_RV[r], draw.params)
    return _invert(weights_RV, [_uniform(draw) for draw in draws])


def _uniform(draw: Draw) -> int:
    return uniform_bits(draw.params.seed, draw.sample, draw.index)


def _invert(weights_RV: Tensor, uniforms: Sequence[int]) -> list[int]:
    """Of each row the first id whose cumulative weight passes u / 2**53 of the sum."""
    cumulative_RV = weights_RV.cumsum(-1)
    totals = cumulative_RV[:, -1].tolist()
    targets = [[(u * total) >> UNIFORM_BITS] for u, total in zip(uniforms, totals, strict=True)]
    targets_R1 = torch.tensor(targets, device=weights_RV.device)
    return torch.searchsorted(cumulative_RV, targets_R1, right=True).squeeze(-1).tolist()


def _truncate(weights_V: Tensor, logits_V: Tensor, params: SamplingParams) -> None:
    """Set to 0 what min_p, top_k and top_p remove, in place; never the most likely token.

    Each rule keeps a prefix of the order by (logit descending, id); top_p is of what the others
    leave. None needs the order itself.
    """
    if params.min_p > 0:
        least = math.ceil(Fraction(params.min_p) * int(weights_V.amax()))
        weights_V *= weights_V >= least
    if 0 < params.top_k < len(weights_V):
        _keep_top_k(weights_V, logits_V, params.top_k)
    if params.top_p < 1:
        _keep_top_p(weights_V, logits_V, params.top_p)


def _keep_top_k(weights_V: Tensor, logits_V: Tensor, top_k: int) -> None:
    kth = logits_V.topk(top_k).values[-1]
    keep_V = logits_V >= kth
    n_over = int(keep_V.sum()) - top_k
    if n_over:
        ties = (logits_V == kth).nonzero().squeeze(-1)
        keep_V[ties[-n_over:]] = False
    weights_V *= keep_V


def _keep_top_p(weights_V: Tensor, logits_V: Tensor, top_p: float) -> None:
    """Keep the shortest prefix of the order whose weight reaches `top_p` of the sum.

    Weights are summed in bins by their leading bits; only the bin in which the prefix ends is
    sorted. A full sort costs twenty times as much, and gives the same.
    """
    bits_V = weights_V.double().view(torch.int64) >> BIN_SHIFT
    bins_V = bits_V.sub_(BIN_BEFORE_ONE).clamp_(min=0)  # ascending with the weight; 0 for none
    sums = weights_V.new_zeros(N_BINS).scatter_add_(0, bins_V, weights_V)
    cumulative = sums.cumsum(0)
    total = int(cumulative[-1])
    limit = math.ceil(Fraction(top_p) * total)
    above = total - cumulative  # the weight of all higher bins
    last = int((above >= limit).sum())
    ids = (bins_V == last).nonzero().squeeze(-1)
    ids = ids[logits_V[ids].argsort(descending=True, stable=True)]
    weights = weights_V[ids]
    before = above[last] + weights.cumsum(0) - weights
    weights_V *= bins_V >= last
    weights_V[ids[before >= limit]] = 0


# --- log-probabilities -----------------------------------------------------------------------


def _with_logprobs(
    logits_BV: Tensor, draws: Sequence[Draw], tokens: Sequence[int]
) -> tuple[Drawn, ...]:
    drawn: list[Drawn] = []
    for b, (draw, token) in enumerate(zip(draws, tokens, strict=True)):
        n_top = draw.params.logprobs
        logprob = None if n_top is None else score(logits_BV[b : b + 1], [token], n_top)[0]
        drawn.append(Drawn(token=token, logprob=logprob))
    return tuple(drawn)


def _score(logits_RV: Tensor, targets: Sequence[int], n_top: int) -> list[TokenLogprob]:
    n_rows, n_vocab = logits_RV.shape
    targets_R1 = torch.tensor(targets, device=logits_RV.device)[:, None]
    values_R1 = logits_RV.gather(1, targets_R1)
    ahead = (logits_RV > values_R1).sum(-1)
    ids_V = torch.arange(n_vocab, device=logits_RV.device)
    ties = ((logits_RV == values_R1) & (ids_V < targets_R1)).sum(-1)
    totals = _weights(logits_RV, [1.0] * n_rows).sum(-1).tolist()
    maxima = logits_RV.amax(-1).tolist()
    values, ranks = values_R1.squeeze(-1).tolist(), (ahead + ties + 1).tolist()
    return [
        told_logprob(
            target,
            Told(
                rank=ranks[r],
                total=totals[r],
                logit=values[r],
                top_logit=maxima[r],
                top=_top(logits_RV[r], min(n_top, n_vocab)),
            ),
            n_vocab,
        )
        for r, target in enumerate(targets)
    ]


def told_logprob(token: int, told: Told, n_vocab: int) -> TokenLogprob:
    """From what a device tells of it."""
    log_total = told.top_logit + math.log(told.total) - weight_bits(n_vocab) * math.log(2)
    return TokenLogprob(
        token=token,
        logprob=told.logit - log_total,
        rank=told.rank,
        top_tokens=tuple(token for token, _ in told.top),
        top_logprobs=tuple(logit - log_total for _, logit in told.top),
    )


def _top(logits_V: Tensor, n: int) -> list[tuple[int, float]]:
    """The `n` most likely (token, logit), most likely first, ties by id."""
    if n == 0:
        return []
    ids = (logits_V >= logits_V.topk(n).values[-1]).nonzero().squeeze(-1)
    values = logits_V[ids].tolist()
    pairs = zip(ids.tolist(), values, strict=True)
    return sorted(pairs, key=lambda pair: -pair[1])[:n]  # stable: ids ascend already
