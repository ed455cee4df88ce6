"""Who has pages, or room set aside, in the pool of one worker; and whether there is room for more.

Must give no page back but one that it pinned itself: holds are `decode.compute`'s and
`decode.intake`'s.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from common.errors import InvariantBroken
from common.ids import PageHash, PageId, TransferId
from common.kv.pages import PagePool
from common.messages import Limits
from decode.forecast import MEDIAN, SAYS_ALL, Foresight, Future, page_passes, peak_pages
from decode.scheduler import Loss, Room, fits, futures, most_outputs, need
from decode.spills import Spills
from decode.state import Sample, Table, Transfer


class Claims:
    """Sequences that were let in."""

    def __init__(
        self, limits: Limits, pool: PagePool, foresight: Foresight, spills: Spills
    ) -> None:
        self.active: list[Sample] = []  # they have pages; oldest first
        self.arriving: dict[TransferId, Transfer] = {}  # room is set aside in their trunks
        self.parked: tuple[Sample, ...] = ()  # of the active, as the last pass was composed
        self._limits = limits
        self._pool = pool
        self._foresight = foresight
        self._spills = spills

    def room(self) -> Room:
        claimed, rest, n_seqs = 0, 0, len(self.active)
        for sample in self.active:
            table = sample.table
            claimed += table.claim
            rest = max(rest, sample.transfer.whole_pages - len(table.pages) - table.claim)
        for transfer in self.arriving.values():
            trunk = transfer.trunk
            claimed += trunk.claim
            n_pages = len(trunk.pages) + transfer.n_arrivals_held
            rest = max(rest, transfer.whole_pages - n_pages - trunk.claim)
            n_seqs += len(transfer.samples)
        return Room(
            available_pages=self._pool.n_available,
            claimed_pages=claimed,
            rest_pages=rest,
            n_seqs=n_seqs,
            max_num_seqs=self._limits.max_num_seqs,
        )

    def check(self) -> None:
        """Raise InvariantBroken unless those who arrive have what they were let in with."""
        for t in self.arriving.values():
            let_in = need(t, t.n_tokens, len(t.samples), shared=0, limits=self._limits)
            n_pages = len(t.trunk.pages) + t.n_arrivals_held + t.trunk.claim
            if n_pages != let_in.claim_pages:
                raise InvariantBroken(f"{t.key} has {n_pages} pages, not {let_in.claim_pages}")

    def claim(
        self, holder: Transfer | Sample, hashes: Sequence[PageHash], samples: Sequence[Sample]
    ) -> Table | None:
        """Pin what is here of `hashes` and set room aside for the rest. None: not yet.

        `holder` has the tokens that the samples share. Shared before it is counted: a cached page
        that is pinned can no longer be had.
        """
        found = self._pool.longest_prefix(hashes)
        transfer, n_tokens = samples[0].transfer, holder.n_tokens
        wanted = need(transfer, n_tokens, len(samples), shared=len(found), limits=self._limits)
        room = self.room()
        if not fits(wanted, room):
            return None
        for page in found:
            self._pool.share(page)
        fits_now = fits(wanted, replace(room, available_pages=self._pool.n_available))
        if not fits_now or (room.n_seqs and not self._will_fit(found, n_tokens, samples)):
            self._pool.give_back(found)
            return None
        n_kv = len(found) * self._limits.page_tokens
        return Table(list(found), n_kv, len(found), wanted.claim_pages)

    def _will_fit(self, found: Sequence[PageId], n_tokens: int, samples: Sequence[Sample]) -> bool:
        """The forecast: whether the pool can hold these, and who is in it, until they have ended.

        Preempted ones are in it by now, or held up: they come before whoever else asks. Whoever
        is parked would give way, and does not count. Pages that several hold come back from none.
        """
        holders = [(s.table.pages, s.n_tokens, (s, *s.followers)) for s in self.active]
        holders += [(t.pages, t.n_tokens, tuple(t.samples)) for t in self.arriving.values()]
        holders.append((list(found), n_tokens, tuple(samples)))
        self._foresight.go_on([len(s.outputs) for s in self.active])
        n_own = 0
        batch: list[tuple[tuple[Sample, ...], int, int]] = []
        for pages, n, of in holders:
            n_shared = self._n_shared(pages)
            n_own += len(pages) - n_shared
            if of[0] not in self.parked:
                batch.append((of, n, n_shared))
        room = self._limits.n_pages - (self._pool.n_held - n_own)
        return self._peak(batch, self._foresight) <= room or self._peak(batch, SAYS_ALL) <= room

    def _peak(
        self, batch: Sequence[tuple[tuple[Sample, ...], int, int]], foresight: Foresight
    ) -> float:
        page_tokens = self._limits.page_tokens
        of = [f for each in batch for f in futures(*each, foresight, page_tokens)]
        return peak_pages(of, page_tokens, deviations=foresight.deviations)

    def volume(self, transfer: Transfer) -> int:
        """Pages x passes that a request is expected to take, the prompt counted once.

        Its rank is nobody's merit: by the median, requests of one size are equal.
        """
        page_tokens, n_tokens = self._limits.page_tokens, transfer.n_tokens
        volume = n_shared = 0
        for sample in transfer.samples:
            n_said = len(sample.outputs)
            n_left = self._foresight.predict(n_said, most_outputs(sample), MEDIAN) - n_said
            volume += page_passes(Future(n_tokens, n_left, n_shared), page_tokens)
            n_shared = (n_tokens - 1) // page_tokens
        return volume

    def losses(self, wants: Sample) -> list[Loss]:
        """Of those younger than `wants` that can give way now, oldest first."""
        younger = [s for s in self.active if s.age > wants.age and not s.restoring]
        return [self._loss(sample) for sample in younger]

    def losses_of_parked(self) -> list[Loss]:
        return [self._loss(s) for s in self.parked if not s.waiting]

    def _loss(self, sample: Sample) -> Loss:
        table, page_tokens = sample.table, self._limits.page_tokens
        n_shared = self._n_shared(table.pages)
        (future,) = futures((sample,), sample.n_tokens, 0, self._foresight, page_tokens)
        recompute_tokens = max(0, table.n_kv - n_shared * page_tokens)
        return Loss(
            sample,
            recompute_tokens=recompute_tokens,
            cost_s=self._spills.loss_s(len(table.pages), recompute_tokens),
            free_pages=len(table.pages) - n_shared + table.claim,
            n_left=future.n_left,
        )

    def _n_shared(self, pages: Sequence[PageId]) -> int:
        """Leading pages that others hold too: whoever holds a page holds what precedes it."""
        return bisect_left(pages, 1, key=lambda page: self._pool.refcount(page) <= 1)
