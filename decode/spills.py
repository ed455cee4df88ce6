"""Pages of sequences that gave way, in host memory: on their way there, kept, on their way back.

Owns every hold on host pages; those on the pool's are `decode.compute`'s. Decides only whether a
spill pays: who gives way is `decode.scheduler`'s. While a sequence's pages are copied, whoever
gives them back does so behind `fence`.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from common.engine.events import Action, Cancel, Pull, Spill
from common.errors import InvariantBroken
from common.ids import PageId, TicketId
from common.kv.host import HostMemory
from common.kv.pages import PagePool
from common.messages import PageRef
from decode.costs import Costs
from decode.state import Sample, Spilled, SpillPhase, ticket_fence

MOST_PASSES = 8  # that pages are looked for ahead


@dataclass(frozen=True, slots=True)
class _Copying:
    """A ticket that is not final."""

    sample: Sample
    began: float
    n_pages: int  # that are copied
    n_coming: int  # pages of the worker's pool that come back when it is final


class Spills:
    """Without host memory no spill pays, and there is nothing to do."""

    def __init__(
        self, host: HostMemory | None, pool: PagePool, tickets: Iterator[TicketId]
    ) -> None:
        """`tickets`: numbers that nobody else gives to a pull."""
        self.now = 0.0  # set by the core, first of all in a step
        self._host = host
        self._pool = pool
        self._costs = Costs(0 if host is None else host.key.page_bytes)
        self._tickets = tickets
        self._copying: dict[TicketId, _Copying] = {}
        self._actions: list[Action] = []

    @property
    def idle(self) -> bool:
        return not self._copying

    @property
    def n_coming(self) -> int:
        """Pages of the pool that come back when the spills in flight are final."""
        return sum(copying.n_coming for copying in self._copying.values())

    def drain(self) -> list[Action]:
        """What to do, since the last call."""
        actions, self._actions = self._actions, []
        return actions

    def knows(self, ticket: TicketId) -> bool:
        return ticket in self._copying

    # --- what it costs -----------------------------------------------------------------------

    def pays(self, n_pages: int, n_tokens: int) -> bool:
        """Whether copying the pages there and back beats computing the tokens again."""
        return self._has_room(n_pages) and self._costs.spill_pays(n_pages, n_tokens)

    def loss_s(self, n_pages: int, n_tokens: int) -> float:
        """Seconds that it costs to take these pages, in the cheaper way."""
        if self._has_room(n_pages):
            return self._costs.least_s(n_pages, n_tokens)
        return self._costs.compute_s(n_tokens)

    def n_passes(self, n_pages: int) -> int:
        """How many may go by until that many pages are spilled, the next one and the one after
        it included; 0: nothing is."""
        if self._host is None or not n_pages:
            return 0
        return min(2 + math.ceil(self._costs.copies_a_pass(n_pages)), MOST_PASSES)

    def computed(self, n_rows: int, seconds: float) -> None:
        """A pass took so long."""
        self._costs.computed(n_rows, seconds)

    def _has_room(self, n_pages: int) -> bool:
        return self._host is not None and 0 < n_pages <= self._host.pool.n_available

    # --- there and back ----------------------------------------------------------------------

    def spill(self, sample: Sample, n_coming: int) -> None:
        """Copy all its pages to host memory. `n_coming`: those that nobody else holds."""
        host, own = self._host, sample.table.pages
        assert host is not None
        pages = host.pool.take(len(own))
        ticket = self._begin(_Copying(sample, self.now, len(own), n_coming))
        sample.spilled = Spilled(SpillPhase.SPILLING, pages, sample.table.n_kv, ticket)
        self._actions.append(Spill(ticket, _copies(self._pool, own, pages)))

    def restore(self, sample: Sample, n_found: int) -> None:
        """Pull what is beyond the `n_found` leading pages of its table into the pages there."""
        host, spilled = self._host, sample.spilled
        assert host is not None
        assert spilled is not None
        pages, own = spilled.pages[n_found:], sample.table.pages[n_found:]
        ticket = self._begin(_Copying(sample, self.now, len(pages), 0))
        spilled.phase, spilled.ticket = SpillPhase.RESTORING, ticket
        copies = _copies(host.pool, pages, own)
        self._actions.append(Pull(ticket, host.key.owner, host.key, copies))

    def _begin(self, copying: _Copying) -> TicketId:
        ticket = next(self._tickets)
        self._copying[ticket] = copying
        return ticket

    def final(self, ticket: TicketId, *, ok: bool) -> Sample | None:
        """The copy is final, and its fences with it. Returns whose it was; None: it has left.

        A spill that is well makes it SPILLED; whatever else it was is the caller's to end.
        """
        copying = self._copying.pop(ticket)
        fence = ticket_fence(ticket)
        self._pool.fence_final(fence)
        if self._host is not None:
            self._host.pool.fence_final(fence)
        spilled = copying.sample.spilled
        if spilled is None or spilled.ticket != ticket:
            return None
        if ok:
            self._costs.copied(copying.n_pages, self.now - copying.began)
        spilled.ticket = None
        if spilled.phase is SpillPhase.SPILLING and ok:
            spilled.phase = SpillPhase.SPILLED
        return copying.sample

    def fence(self, sample: Sample) -> tuple[str, TicketId] | None:
        """What may still touch its pages, here and there."""
        spilled = sample.spilled
        if spilled is None or spilled.ticket is None:
            return None
        return ticket_fence(spilled.ticket)

    def drop(self, sample: Sample) -> None:
        """The one exit: its host pages come back, whatever it needs no longer. Idempotent."""
        spilled = sample.spilled
        if spilled is None:
            return
        assert self._host is not None
        if spilled.ticket is not None:
            self._actions.append(Cancel(spilled.ticket))
        self._host.pool.give_back(spilled.pages, fence=self.fence(sample))
        sample.spilled = None

    def check(self, samples: Iterable[Sample]) -> None:
        """Raise InvariantBroken unless host pages are conserved and held by those samples."""
        spilled = [s.spilled for s in samples if s.spilled is not None]
        tickets = {s.ticket for s in spilled if s.ticket is not None}
        if not tickets <= self._copying.keys():
            raise InvariantBroken("a sequence waits for a copy that nobody makes")
        if self._host is None:
            return
        self._host.pool.check_holds(page for one in spilled for page in one.pages)


def _copies(
    pool: PagePool, pages: Sequence[PageId], to: Sequence[PageId]
) -> tuple[tuple[PageRef, PageId], ...]:
    refs = [PageRef(page, pool.generation(page)) for page in pages]
    return tuple(zip(refs, to, strict=True))
