"""From a list of pages to few large copies. Pure: no memory is touched here.

Must not know what carries the bytes, nor what they mean.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from common.messages import RegionKey
from transfer.api import Copy

_GENERATIONS = 2**64


@dataclass(frozen=True, slots=True)
class Run:
    """`n_pages` pages, consecutive on both sides: one copy."""

    remote: int  # first page
    local: int  # first page
    n_pages: int


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


def runs(window: Iterable[Copy]) -> tuple[Run, ...]:
    """Neighbours that are adjacent on both sides, merged; the order stays."""
    merged: list[Run] = []
    for copy in window:
        last = merged[-1] if merged else None
        if last and (copy.remote, copy.local) == (
            last.remote + last.n_pages,
            last.local + last.n_pages,
        ):
            merged[-1] = Run(last.remote, last.local, last.n_pages + 1)
        else:
            merged.append(Run(copy.remote, copy.local, 1))
    return tuple(merged)
