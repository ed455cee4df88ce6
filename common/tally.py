"""Tokens as they come, counted beside the instruments: these cost more than what they count.

They are told what was counted when an answer ends, when a page is asked for, and now and then.
"""

from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client import Counter, Histogram

FLUSH_EVENTS = 512


class Tally:
    """Of one counter of tokens, and one histogram of the gaps between them. Owned by one thread."""

    def __init__(self, tokens: Counter, gaps: Histogram, buckets: Sequence[float]) -> None:
        """`buckets`: those of `gaps`, ascending, without the one that has no bound."""
        self._tokens = tokens
        self._gaps = gaps
        self._buckets = (*buckets, float("inf"))
        self._n_tokens = 0
        self._n_gaps = [0] * len(self._buckets)
        self._gap_s = 0.0
        self._n_events = 0

    def add(self, n_tokens: int) -> None:
        self._n_tokens += n_tokens
        self._n_events += 1
        if self._n_events == FLUSH_EVENTS:
            self.flush()

    def gap(self, seconds: float) -> None:
        """Between a token and the one before it."""
        self._n_gaps[bisect_left(self._buckets, seconds)] += 1
        self._gap_s += seconds

    def flush(self) -> None:
        """The instruments know all."""
        self._n_events = 0
        self._tokens.inc(self._n_tokens)
        self._n_tokens = 0
        # The histogram takes one observation a call; its parts take any number.
        parts = self._gaps._buckets  # pyright: ignore[reportPrivateUsage]
        for at, n_gaps in enumerate(self._n_gaps):
            if n_gaps:
                parts[at].inc(n_gaps)
        self._gaps._sum.inc(self._gap_s)  # pyright: ignore[reportPrivateUsage]
        self._n_gaps = [0] * len(self._buckets)
        self._gap_s = 0.0
