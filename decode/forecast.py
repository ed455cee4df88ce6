"""How long sequences will go on, and what the pool must hold at most until they have ended.

Must read no record of a request: numbers in, numbers out. This is the "past-future" scheduler of
LightLLM (Gong et al., 2025, arXiv 2507.10150): lengths come from those that ended lately
(`common.engine.lengths`), and memory peaks when one of the batch ends. Two things differ. Nothing
is drawn: each sequence keeps a rank among its like, so that the same events give the same forecast.
And what is kept free for bad luck is not a fixed share of the pool, but what a batch of that size
calls for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from common.kv.layout import pages_for

MEDIAN = 0.5
GOLDEN_RATIO = 0.6180339887498949


def rank(number: int) -> float:
    """In [0, 1): the share of its like that end before it, as far as one can tell.

    Consecutive numbers are spread evenly (a Weyl sequence), so that a batch's ranks are those of
    a fair sample.
    """
    return (number + 1) * GOLDEN_RATIO % 1.0


class Foresight(Protocol):
    """What is expected of sequences, from those that have ended."""

    @property
    def deviations(self) -> float:
        """Standard deviations of the forecast that are to be kept free."""
        ...

    def ended(self, n_said: int, *, cut: bool) -> None:
        """A sequence is over after `n_said` output tokens; `cut`: it would have gone on."""
        ...

    def go_on(self, n_said: Sequence[int]) -> None:
        """Sequences that have said so much, and have not ended."""
        ...

    def predict(self, n_said: int, most: int, rank: float) -> int:
        """Output tokens in all of a sequence that has `n_said`, and is not to exceed `most`.

        In n_said + 1 .. most; `most` must be above `n_said`.
        """
        ...


class SaysAll:
    """The worst that can come: everybody says all it may, and nothing is left to luck."""

    deviations = 0.0

    def ended(self, n_said: int, *, cut: bool) -> None:
        pass

    def go_on(self, n_said: Sequence[int]) -> None:
        pass

    def predict(self, n_said: int, most: int, rank: float) -> int:  # noqa: ARG002  the protocol's
        return most


SAYS_ALL = SaysAll()


@dataclass(frozen=True, slots=True)
class Future:
    """What one sequence is expected to take. It advances by a token a pass."""

    n_tokens: int  # of prompt and outputs; the KV of the last is not written yet
    n_left: int  # tokens that it will still say, at least 1
    n_shared: int = 0  # leading pages that do not come back when it ends


def peak_pages(futures: Sequence[Future], page_tokens: int, *, deviations: float = 0.0) -> float:
    """The most pages that they will hold at once, what is shared left out.

    All grow, so the peak is at one of the passes that are somebody's last. A deviation is that of
    independent sequences which are each as likely to have ended by then as not.
    """
    tokens = np.array([f.n_tokens for f in futures], np.int64)
    shared = np.array([f.n_shared for f in futures], np.int64)
    left = np.array([f.n_left for f in futures], np.int64)
    last = np.unique(left)[:, None]
    pages = -(-(tokens + last - 1) // page_tokens) - shared
    held = np.where(left >= last, pages, 0)
    peaks = held.sum(axis=1) + deviations / 2 * np.sqrt(np.square(held).sum(axis=1))
    return float(peaks.max(initial=0))


def page_passes(future: Future, page_tokens: int) -> int:
    """Its volume of memory: the pages that it holds, summed over its passes."""
    end = future.n_tokens + future.n_left - 1
    pages = _pages_up_to(end, page_tokens) - _pages_up_to(future.n_tokens - 1, page_tokens)
    return pages - future.n_shared * future.n_left


def _pages_up_to(n_tokens: int, page_tokens: int) -> int:
    """pages_for(1) + pages_for(2) + ... + pages_for(n_tokens)."""
    n_full = n_tokens // page_tokens
    whole = page_tokens * n_full * (n_full + 1) // 2
    return whole + n_tokens % page_tokens * pages_for(n_tokens, page_tokens)
