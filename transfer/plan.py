"""From a list of pages to few large copies. Pure: no memory is touched here.

Must not know what carries the bytes, nor what they mean.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from common.messages import RegionKey
from transfer.api import Copy

_GENERATIONS = 2**64


def remote_fault(copies: Iterable[Copy], remote: RegionKey, page_bytes: int) -> str:
    """Why these pages cannot be had from that region; empty if they can. The peer's fault."""
    if remote.page_bytes != page_bytes:
        return f"a page is {remote.page_bytes} bytes there and {page_bytes} here"
    for copy in copies:
        if not 0 <= copy.remote < remote.n_pages:
            return f"page {copy.remote} of {remote.n_pages}"
        if not 0 <= copy.generation < _GENERATIONS:
            return f"generation {copy.generation} of page {copy.remote}"
    return ""


def local_fault(copies: Sequence[Copy], n_pages: int) -> str:
    """Why the pages cannot be written here; empty if they can. Our own fault."""
    for copy in copies:
        if not 0 <= copy.local < n_pages:
            return f"local page {copy.local} of {n_pages}"
    if len({copy.local for copy in copies}) != len(copies):
        return "a local page is named twice"
    return ""


def windows(
    copies: Iterable[Copy], page_bytes: int, window_bytes: int
) -> tuple[tuple[Copy, ...], ...]:
    """The copies, ordered by remote page, in groups of at most `window_bytes`, or of one page
    where a page is larger. Each is moved, then validated, as one."""
    ordered = sorted(copies, key=lambda copy: (copy.remote, copy.local))
    n = max(1, window_bytes // page_bytes)
    return tuple(tuple(ordered[i : i + n]) for i in range(0, len(ordered), n))


def runs(window: Sequence[Copy], page_bytes: int) -> NDArray[np.int64]:
    """[R, 3] (offset there, offset here, length), in bytes: neighbours that are adjacent on both
    sides are one; the order stays."""
    pages_N2 = np.array([(copy.remote, copy.local) for copy in window], np.int64).reshape(-1, 2)
    goes_on_N = np.zeros(len(window), np.bool_)
    goes_on_N[1:] = (np.diff(pages_N2, axis=0) == 1).all(axis=1)
    first_R = np.flatnonzero(~goes_on_N)
    n_pages_R = np.diff(first_R, append=len(window))
    return np.column_stack([pages_N2[first_R], n_pages_R]) * page_bytes
