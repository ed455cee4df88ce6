"""From timings of a server to what its operations cost. Pure: numbers in, numbers out.

Fits are of least relative absolute error, so that what was disturbed counts for no more than other
measurements: iteratively reweighted least squares (Holland and Welsch, 1977), with no coefficient
below 0. Must not measure anything.
"""

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import cast

import msgspec
import numpy as np
from numpy.typing import NDArray

ROUNDS = 30  # of reweighting
_LEAST_ERROR = 1e-3  # relative: smaller ones weigh the same
LEAST_S = 1e-6  # a cost that was fitted as 0, where 0 makes no sense
UNSEEN_BYTES_PER_S = 1e12  # faster than a client can tell


class Alone(msgspec.Struct, frozen=True, kw_only=True):
    """One request, alone at the server."""

    n_tokens: int  # of its prompt
    ttft_s: float
    second_s: float  # from its first token to its second
    step_s: float  # between later tokens, the mean


class Together(msgspec.Struct, frozen=True, kw_only=True):
    """Equal prompts that were sent at once to an idle server."""

    n_prompts: int
    n_tokens: int  # of each
    last_s: float  # from sending to the last first token


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """Streams that ran together, and no prompt beside them."""

    n_sequences: int
    n_context: int  # of all of them together
    step_s: float  # mean time of a token of a stream


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts that came while streams ran; each against the same without the other."""

    n_streams: int
    step_s: float  # of the streams, before
    step_beside_s: float  # while prompts were computed
    last_s: float  # as `Together`, with no stream
    last_beside_s: float


class Probes(msgspec.Struct, frozen=True, kw_only=True):
    """All that was measured at one server."""

    echo_s: float  # a round trip over HTTP that computes nothing
    alone: tuple[Alone, ...]
    together: tuple[Together, ...]
    steps: tuple[Steps, ...]
    beside: tuple[Beside, ...]


def pooled(rounds: Sequence[Probes]) -> Probes:
    """Of several rounds at the same server."""
    return Probes(
        echo_s=median(one.echo_s for one in rounds),
        alone=tuple(probe for one in rounds for probe in one.alone),
        together=tuple(probe for one in rounds for probe in one.together),
        steps=tuple(probe for one in rounds for probe in one.steps),
        beside=tuple(probe for one in rounds for probe in one.beside),
    )


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """What a fit must know of whoever computes prompts, and of its pages."""

    chunk_tokens: int  # of one prompt in a pass that is its own
    budget_tokens: int  # of a pass
    page_tokens: int
    page_bytes: int
    apart: bool  # prompts and answers are computed by different workers


class Error(msgspec.Struct, frozen=True, kw_only=True):
    """Of a fit: relative, absolute values."""

    median: float
    p90: float
    n: int


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, as in `bench.simulate.costs`. `..._slowdown`: times that an operation of one kind
    takes while those of the other kind are computed on the same machine, and its tokens are sent;
    1 where one worker does both, in the same passes."""

    delay_s: float  # of a first token, beside its passes
    token_s: float  # the part of it after the pass
    prefill_fixed_s: float
    prefill_token_s: float
    prefill_pair_s: float
    decode_fixed_s: float
    decode_context_token_s: float
    decode_sequence_s: float
    transfer_latency_s: float
    transfer_bytes_per_s: float
    prefill_slowdown: float
    decode_slowdown: float
    prefill_error: Error
    decode_error: Error


def fit(probes: Probes, worker: Worker) -> Fit:
    """Raises ValueError where a kind of probe is missing."""
    if not (probes.alone and probes.steps):
        raise ValueError("a fit needs prompts alone and streams together")
    terms, seconds = _prefill_terms(probes, worker)
    delay_s, fixed_s, token_s, pair_s = least_relative(terms, seconds)
    step_terms, step_s = _step_terms(probes)
    decode = least_relative(step_terms, step_s)
    latency_s, bytes_per_s = _transfer(probes.alone, worker)
    return Fit(
        delay_s=delay_s,
        token_s=min(delay_s, probes.echo_s / 2),
        prefill_fixed_s=fixed_s,
        prefill_token_s=max(token_s, LEAST_S / worker.budget_tokens),
        prefill_pair_s=pair_s,
        decode_fixed_s=max(decode[0], LEAST_S),
        decode_context_token_s=decode[1],
        decode_sequence_s=decode[2],
        transfer_latency_s=latency_s,
        transfer_bytes_per_s=bytes_per_s,
        prefill_slowdown=_slowdown(probes.beside, worker, lambda b: b.last_beside_s / b.last_s),
        decode_slowdown=_slowdown(probes.beside, worker, lambda b: b.step_beside_s / b.step_s),
        prefill_error=_error(terms, seconds, (delay_s, fixed_s, token_s, pair_s)),
        decode_error=_error(step_terms, step_s, decode),
    )


def least_relative(
    terms: NDArray[np.float64],
    goal: NDArray[np.float64],
    unit: NDArray[np.float64] | None = None,
) -> tuple[float, ...]:
    """The coefficients, none below 0, that leave the least sum of |terms @ x - goal| / unit.

    terms       [N, K]
    goal, unit  [N]; units above 0, and the goal itself where none are given
    """
    unit = goal if unit is None else unit
    rows, goal = terms / unit[:, None], goal / unit
    scales = np.maximum(np.abs(rows).max(axis=0), 1e-300)
    rows = rows / scales
    weights = np.ones(len(rows))
    found = np.zeros(rows.shape[1])
    for _ in range(ROUNDS):
        found = _not_negative(rows * weights[:, None], goal * weights)
        weights = np.sqrt(1 / np.maximum(np.abs(rows @ found - goal), _LEAST_ERROR))
    return tuple((found / scales).tolist())


def _not_negative(rows: NDArray[np.float64], goal: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least squares; what comes out below 0 is left out, the worst first."""
    kept = list(range(rows.shape[1]))
    found = np.zeros(rows.shape[1])
    while kept:
        inverse = cast("NDArray[np.float64]", np.linalg.pinv(rows[:, kept]))
        own: NDArray[np.float64] = inverse @ goal
        if own.min() >= 0:
            found[kept] = own
            break
        kept.pop(int(own.argmin()))
    return found


def _prefill_terms(
    probes: Probes, worker: Worker
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[N, (delay, passes, tokens, pairs)] and seconds [N]."""
    rows: list[tuple[float, float, float, float]] = []
    seconds: list[float] = []
    for one in probes.alone:
        n_passes = -(-one.n_tokens // worker.chunk_tokens)
        rows.append((1, n_passes, one.n_tokens, _pairs(one.n_tokens)))
        seconds.append(one.ttft_s)
    for many in probes.together:  # the first is alone in its pass: the others come while it runs
        first = -(-many.n_tokens // worker.chunk_tokens)
        others = -(-(many.n_prompts - 1) * many.n_tokens // worker.budget_tokens)
        n_tokens = many.n_prompts * many.n_tokens
        rows.append((1, first + others, n_tokens, many.n_prompts * _pairs(many.n_tokens)))
        seconds.append(many.last_s)
    return np.array(rows), np.array(seconds)


def _step_terms(probes: Probes) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[N, (step, context, sequences)] and seconds [N]. A request alone is a stream, too."""
    rows = [(1, one.n_context, one.n_sequences) for one in probes.steps]
    rows += [(1, one.n_tokens, 1) for one in probes.alone]
    seconds = [one.step_s for one in (*probes.steps, *probes.alone)]
    return np.array(rows, float), np.array(seconds)


def _pairs(n_tokens: int) -> float:
    """(Token, token that it attends to) of a prompt."""
    return n_tokens * (n_tokens + 1) / 2


def _transfer(alone: Iterable[Alone], worker: Worker) -> tuple[float, float]:
    """(latency, bytes per second). What the second token waits for beside its step: the pages of
    the last pass; those of earlier ones came while it ran."""
    rows: list[tuple[float, float]] = []
    waits_s: list[float] = []
    steps_s: list[float] = []
    for one in alone:
        n_last = (one.n_tokens - 1) % worker.chunk_tokens + 1
        n_pages = -(-n_last // worker.page_tokens)
        rows.append((1, n_pages * worker.page_bytes))
        waits_s.append(one.second_s - one.step_s)
        steps_s.append(one.step_s)
    latency_s, byte_s = least_relative(np.array(rows), np.array(waits_s), np.array(steps_s))
    return latency_s, 1 / max(byte_s, 1 / UNSEEN_BYTES_PER_S)


def _slowdown(beside: Sequence[Beside], worker: Worker, ratio: Callable[[Beside], float]) -> float:
    if not (worker.apart and beside):
        return 1.0
    return max(1.0, median(ratio(one) for one in beside))


def _error(
    terms: NDArray[np.float64], seconds: NDArray[np.float64], found: Sequence[float]
) -> Error:
    errors = np.abs(terms @ np.array(found) / seconds - 1)
    return Error(
        median=float(np.median(errors)), p90=float(np.percentile(errors, 90)), n=len(errors)
    )
