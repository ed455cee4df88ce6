"""Percentiles, of values from several places too. Pure."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from launch.gateway.status import Percentiles


class Sampled(NamedTuple):
    """Of `n` values all, in order; or, of more than are kept, as many at even distances of rank."""

    n: int
    values: tuple[float, ...]


NO_VALUES = Sampled(0, ())
_ROUNDING = 1e-6  # of ranks, which are sums of weights


def sampled(values: Iterable[float | None], most: int) -> Sampled:
    """None is no value. Beyond `most`, a percentile is off by half a `most`-th of the ranks."""
    ordered = sorted(value for value in values if value is not None)
    n = len(ordered)
    if n > most:
        ordered = [ordered[(2 * i + 1) * n // (2 * most)] for i in range(most)]
    return Sampled(n, tuple(ordered))


def percentiles(samples: Iterable[Sampled]) -> Percentiles:
    """Of all of them together, by nearest rank: each is one of the values."""
    parts = [part for part in samples if part.n]
    n = sum(part.n for part in parts)
    if not n:
        return Percentiles(n=0)
    weighted = sorted((value, part.n / len(part.values)) for part in parts for value in part.values)
    p50, p90, p99 = _at_ranks(weighted, [n * percent / 100 for percent in (50, 90, 99)])
    return Percentiles(n=n, p50=p50, p90=p90, p99=p99)


def _at_ranks(weighted: Sequence[tuple[float, float]], ranks: Sequence[float]) -> Iterator[float]:
    """The first value, of those in order, up to which there are so many. `ranks` ascend."""
    values = iter(weighted)
    value, upto = next(values)
    for rank in ranks:
        while upto < rank - _ROUNDING:
            following = next(values, None)
            if following is None:
                break
            value, upto = following[0], upto + following[1]
        yield value


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
