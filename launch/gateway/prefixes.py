"""Which worker holds which pages, as its snapshots tell. Data, no decisions.

One walk along a prompt's pages answers for all workers.
"""

from collections.abc import Iterable, Sequence
from itertools import count

from common.ids import InstanceId, PageHash


class Prefixes:
    """An index of pages by worker and of workers by page. Every worker has a bit of its own."""

    def __init__(self) -> None:
        self._pages: dict[InstanceId, set[PageHash]] = {}
        self._bits: dict[InstanceId, int] = {}
        self._holders: dict[PageHash, int] = {}
        self._asked: Sequence[PageHash] = ()
        self._found: dict[int, int] | None = {}  # by bit: leading pages of `_asked`

    def store(self, worker: InstanceId, pages: Iterable[PageHash]) -> None:
        """It holds these, too."""
        if worker not in self._bits:
            used = sum(self._bits.values())
            self._bits[worker] = next(bit for n in count() if not used & (bit := 1 << n))
            self._pages[worker] = set()
        self._found = None
        bit, own, holders = self._bits[worker], self._pages[worker], self._holders
        for page in pages:
            own.add(page)
            holders[page] = holders.get(page, 0) | bit

    def remove(self, worker: InstanceId, pages: Iterable[PageHash]) -> None:
        """It holds these no more; those that it never held are passed over."""
        self._found = None
        bit, own = self._bits.get(worker, 0), self._pages.get(worker, set[PageHash]())
        for page in own.intersection(pages):
            own.remove(page)
            self._holders[page] ^= bit
            if not self._holders[page]:
                del self._holders[page]

    def forget(self, worker: InstanceId) -> None:
        """It holds nothing, and may never come again."""
        self.remove(worker, self._pages.get(worker, ()))
        self._pages.pop(worker, None)
        self._bits.pop(worker, None)

    def leading(self, worker: InstanceId, pages: Sequence[PageHash]) -> int:
        """How many of the first of `pages` it holds without a gap. The same sequence again, for
        another worker, costs a look-up."""
        if self._found is None or self._asked is not pages:
            self._asked, self._found = pages, self._walk(pages)
        return self._found.get(self._bits.get(worker, 0), 0)

    def _walk(self, pages: Sequence[PageHash]) -> dict[int, int]:
        found: dict[int, int] = {}
        going_on = sum(self._bits.values())
        for n_pages, page in enumerate(pages):
            holding = going_on & self._holders.get(page, 0)
            if holding != going_on:
                _record(found, going_on ^ holding, n_pages)
                going_on = holding
                if not holding:
                    break
        _record(found, going_on, len(pages))
        return found


def _record(found: dict[int, int], bits: int, n_pages: int) -> None:
    while bits:
        lowest = bits & -bits
        found[lowest] = n_pages
        bits ^= lowest
