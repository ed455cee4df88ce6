"""Page tables as one matrix, so that a pass's are gathered at once.

Lists of pages are the truth: a row is brought up to date with its list when it is asked for. Must
hold no page and decide nothing.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from decode.state import Table

_ROWS = 8  # at first; both grow by doubling
_PAGES = 16


class PageTables:
    """A row for each table that was ever gathered and not dropped since."""

    def __init__(self) -> None:
        self._pages = np.zeros((_ROWS, _PAGES), np.int32)
        self._free = list(reversed(range(_ROWS)))

    def gather(self, tables: Sequence[Table], n_pages: int) -> NDArray[np.int32]:
        """[B, n_pages]: a copy; what follows a table's own pages is arbitrary."""
        if n_pages > self._pages.shape[1]:
            self._grow(1, n_pages)
        places = [self._placed(table) for table in tables]
        return self._pages[places, :n_pages]

    def drop(self, table: Table) -> None:
        """It is not gathered any more."""
        if table.place is not None:
            self._free.append(table.place)
            table.place = None

    def _placed(self, table: Table) -> int:
        place = table.place
        if place is None:
            place = table.place = self._new_place()
            table.n_placed = 0
        n_pages = len(table.pages)
        if table.n_placed < n_pages:
            if n_pages > self._pages.shape[1]:
                self._grow(1, n_pages)
            self._pages[place, table.n_placed : n_pages] = table.pages[table.n_placed :]
            table.n_placed = n_pages
        return place

    def _new_place(self) -> int:
        if not self._free:
            n = len(self._pages)
            self._grow(0, 2 * n)
            self._free = list(reversed(range(n, len(self._pages))))
        return self._free.pop()

    def _grow(self, axis: int, least: int) -> None:
        """Double the axis until it is as long as that."""
        shape = list(self._pages.shape)
        while shape[axis] < least:
            shape[axis] *= 2
        grown = np.zeros(shape, np.int32)
        rows, columns = self._pages.shape
        grown[:rows, :columns] = self._pages
        self._pages = grown
