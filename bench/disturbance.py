"""What a burst did to streams that were running: ratios from gaps between tokens. Pure.

A stream slows down by itself, as its context grows: a burst of half a minute lies 2,000 tokens
behind what came before it. The ratio of the same tokens, with the burst to without it, tells the
two apart. Must not measure anything.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from bench.client import Outcome

MAX_ITL_RATIO, MAX_SPREAD, MAX_TTFT_RATIO = 1.2, 1.3, 1.15
MS = 1e3
DECODE = "decode-0"


@dataclass(frozen=True, slots=True)
class Round:
    """What one server did in one round. Seconds; gaps as (end of the gap, from the burst's sending;
    its length)."""

    alone_ttfts: tuple[float, ...]  # of a burst with no streams
    loaded_ttfts: tuple[float, ...]  # of one beside them
    before: tuple[tuple[float, float], ...]
    during: tuple[tuple[float, float], ...]
    control: tuple[tuple[float, float], ...]  # of the same tokens as `during`, with no burst
    burst_s: float
    cpu_before: dict[str, float]  # by process, the part of a core that it used
    cpu: dict[str, float]  # the same during the burst
    noise: (
        float  # p99 / median of the same small computation, over and over, on each core: the worse
    )


def summarise(rounds: Sequence[Round]) -> dict[str, Any]:
    """Medians over rounds; ratios are taken within a round, and told for each."""
    itl = [itl_ratio(r) for r in rounds]
    spread = [_p99(r.before) / median(gap for _, gap in r.before) for r in rounds]
    ttft = [_mean(r.loaded_ttfts) / _mean(r.alone_ttfts) for r in rounds]
    same = [_p99(r.during) / _p99(r.control) for r in rounds if r.control]
    return {
        "itl_ratio": median(itl),
        "itl_ratio_by_round": itl,
        "itl_ratio_of_same_tokens": median(same) if same else None,
        "itl_spread_before": median(spread),
        "itl_spread_before_by_round": spread,
        "ttft_ratio": median(ttft),
        "ttft_ratio_by_round": ttft,
        "median_itl_before_ms": median(median(g for _, g in r.before) for r in rounds) * MS,
        "median_itl_during_ms": median(median(g for _, g in r.during) for r in rounds) * MS,
        "p99_itl_before_ms": median(_p99(r.before) for r in rounds) * MS,
        "p99_itl_during_ms": median(_p99(r.during) for r in rounds) * MS,
        "max_itl_during_ms": median(max(g for _, g in r.during) for r in rounds) * MS,
        "mean_ttft_alone_ms": median(_mean(r.alone_ttfts) for r in rounds) * MS,
        "mean_ttft_ms": median(_mean(r.loaded_ttfts) for r in rounds) * MS,
        "cpu_before": _medians([r.cpu_before for r in rounds]),
        "cpu": _medians([r.cpu for r in rounds]),
        "decode_cpu_per_token_ratio": median(map(_cpu_ratio, rounds)),
        "noise": median(r.noise for r in rounds),
        "noise_by_round": [r.noise for r in rounds],
    }


def itl_ratio(made: Round) -> float:
    """Of the p99s, during the burst to before it."""
    return _p99(made.during) / _p99(made.before)


def _cpu_ratio(made: Round) -> float:
    """CPU time of the decode worker for a token of a stream, during the burst to before it: what
    it would be if nothing else ran on its core. Colocated, prompts are in it."""
    before_s = max(-at for at, _ in made.before)
    during = made.cpu[DECODE] * made.burst_s / len(made.during)
    return during / (made.cpu_before[DECODE] * before_s / len(made.before))


def _medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: median(one[name] for one in rounds) for name in rounds[0]}


def verdict(apart: dict[str, Any], colocated: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The best colocated server is the one whose streams are disturbed least."""
    best = min(colocated, key=lambda name: colocated[name]["itl_ratio"], default=None)
    return {
        "benchmark": "isolation",
        "itl_ratio": apart["itl_ratio"],
        "itl_ratio_of_same_tokens": apart["itl_ratio_of_same_tokens"],
        "itl_spread_before": apart["itl_spread_before"],
        "ttft_ratio": apart["ttft_ratio"],
        "colocated_itl_ratio": None if best is None else colocated[best]["itl_ratio"],
        "colocated_best": best,
        "kept": {
            "itl_ratio": apart["itl_ratio"] <= MAX_ITL_RATIO,
            "itl_spread_before": apart["itl_spread_before"] <= MAX_SPREAD,
            "ttft_ratio": apart["ttft_ratio"] <= MAX_TTFT_RATIO,
        },
        "apart": apart,
        "colocated": colocated,
    }


def gaps(
    streams: Sequence[Outcome], origin: float, begin: float, end: float
) -> tuple[tuple[float, float], ...]:
    """Of all streams, those that end within [begin, end), by time; `origin` is where it is 0."""
    found = [
        (after - origin, after - before)
        for stream in streams
        for before, after in pairwise(stream.chunk_times_s)
        if begin <= after < end
    ]
    return tuple(sorted(found))


def same_tokens(
    streams: Sequence[Outcome], others: Sequence[Outcome], begin: float, end: float
) -> tuple[tuple[float, float], ...]:
    """Gaps of `others` before those tokens that `streams` had within [begin, end); times unchanged.

    A stream slows down as its context grows; this tells that from what a burst does.
    """
    found: list[tuple[float, float]] = []
    for stream, other in zip(streams, others, strict=True):
        first, last = (bisect_left(stream.chunk_times_s, at) for at in (begin, end))
        own = other.chunk_times_s[max(first - 1, 0) : last]
        found += [(after, after - before) for before, after in pairwise(own)]
    return tuple(sorted(found))


def _p99(pairs: Sequence[tuple[float, float]]) -> float:
    return float(np.percentile([gap for _, gap in pairs], 99))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
