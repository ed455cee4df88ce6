"""Percentiles. Pure."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from launch.gateway.status import Percentiles


def percentiles(values: Iterable[float | None]) -> Percentiles:
    """By nearest rank: each is one of the values. None is no value."""
    ordered = sorted(value for value in values if value is not None)
    n = len(ordered)
    if not n:
        return Percentiles(n=0)
    p50, p90, p99 = (ordered[max(0, -(-n * percent // 100) - 1)] for percent in (50, 90, 99))
    return Percentiles(n=n, p50=p50, p90=p90, p99=p99)


def bucket_percentiles(
    first: Sequence[tuple[float, int]], last: Sequence[tuple[float, int]]
) -> Percentiles:
    """Of what came between two readings of a histogram's cumulative buckets (bound, count).

    As Prometheus' histogram_quantile: linear within a bucket, the last finite bound beyond it.
    """
    before = dict(first)
    buckets = [(bound, count - before.get(bound, 0)) for bound, count in last]
    n = buckets[-1][1] if buckets else 0
    if n <= 0:
        return Percentiles(n=0)
    p50, p90, p99 = (_in_buckets(buckets, share * n) for share in (0.5, 0.9, 0.99))
    return Percentiles(n=n, p50=p50, p90=p90, p99=p99)


def _in_buckets(buckets: Sequence[tuple[float, int]], rank: float) -> float:
    for (low, below), (high, upto) in pairwise([(0.0, 0), *buckets]):
        if upto >= rank:
            return low if high == math.inf else low + (high - low) * (rank - below) / (upto - below)
    return buckets[-1][0]
