"""How often a pass may be repeated before anything has to be decided: as multi-step scheduling
does it, but no longer than the batch stays as it is.

Whoever can compute a pass again, for the tokens that it has just drawn, need not ask in between.
Nobody ends by its length before the last repetition, nobody gives way for one, and nobody is let
in later for it if the runner stops when the batch changes. Decides nothing else.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from common.ids import InstanceId
from common.kv.layout import pages_for
from common.kv.pages import PagePool
from common.messages import Limits
from decode.passes import Row
from decode.state import Sample


class Repeats:
    """Of one worker's passes."""

    def __init__(self, most: int, limits: Limits, pool: PagePool) -> None:
        """`most`: 1, nothing is repeated."""
        self._most = most
        self._limits = limits
        self._pool = pool

    def plan(self, rows: Sequence[Row], credit: Mapping[InstanceId, int], spare: int) -> int:
        """How often these rows may be computed. Takes the pages for that, `spare` of them beyond
        what is promised to the rows."""
        most = self._most
        if most == 1:
            return 1
        for row in rows:
            if row.end - row.start > 1 or len(row.draws) != 1:  # of a prompt, or its samples'
                return 1
            most = min(most, self._left(row.sample))
        n_of = Counter([row.sample.transfer.gateway for row in rows])
        most = min(most, *(credit[gateway] // n for gateway, n in n_of.items()))
        while most > 1 and not self._take(rows, most - 1, spare):
            most //= 2
        return max(1, most)

    def _left(self, sample: Sample) -> int:
        """Output tokens that it may still say."""
        request = sample.transfer.request
        most = min(request.params.max_tokens, self._limits.max_model_len - len(request.prompt))
        return most - len(sample.outputs)

    def _take(self, rows: Sequence[Row], n_tokens: int, spare: int) -> bool:
        """Pages for so many tokens more of each row. False: there are not enough, none is taken."""
        wants: list[tuple[Row, int, int]] = []  # pages, and how many of them are promised
        page_tokens = self._limits.page_tokens
        for row in rows:
            table = row.table
            n_new = pages_for(row.end + n_tokens, page_tokens) - len(table.pages)
            if n_new > 0:
                wants.append((row, n_new, min(n_new, table.claim)))
        if sum(n_new - promised for _, n_new, promised in wants) > spare:
            return False
        for row, n_new, promised in wants:
            row.ahead = (n_new, promised)
            row.table.pages += self._pool.take(n_new)
            row.table.claim -= promised
        return True

    def done(self, row: Row) -> None:
        """What was taken for it and is not needed yet comes back, and is promised as before."""
        n_taken, promised = row.ahead
        if not n_taken:
            return
        table = row.table
        n_kept = pages_for(table.n_kv, self._limits.page_tokens)
        n_over = len(table.pages) - n_kept
        if not n_over:
            return
        self._pool.give_back(table.pages[n_kept:])
        del table.pages[n_kept:]
        table.n_placed = min(table.n_placed, n_kept)
        table.claim += max(0, promised - n_taken + n_over)
