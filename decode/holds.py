"""Which pages each sequence has: found, taken, forked, published, given away and had back.

Owns every hold that a sample's table has; what is on its way from a prefill worker is
`decode.intake`'s, host pages are `decode.spills`'. Computes nothing, and decides neither who is
let in nor who gives way.
"""

from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

from common.errors import InvariantBroken
from common.ids import PageHash, TicketId
from common.kv.host import HostMemory
from common.kv.pages import Fence, PagePool
from common.kv.prefix import PendingPages, page_hashes
from common.messages import Limits
from decode.claims import Claims
from decode.forecast import Foresight
from decode.scheduler import Loss
from decode.spills import Spills
from decode.state import Sample, Spilled, SpillPhase, Table, Transfer, Who, step_fence
from decode.tables import PageTables


@dataclass(frozen=True, slots=True)
class GaveWay:
    """A sequence lost its pages, to have them back from the host, or to be computed again."""

    sample: Sample
    how: Literal["host", "recompute"]
    n_pages: int


class Holds:
    """The pool as the sequences of one worker hold it."""

    def __init__(
        self,
        limits: Limits,
        pool: PagePool,
        foresight: Foresight,
        host: HostMemory | None,
        fingerprint: str | None,
    ) -> None:
        """`fingerprint`: of the model, the root of every page's name; None: nothing is cached."""
        self.pool = pool
        self.tickets: Iterator[TicketId] = map(TicketId, count())  # of all copies of pages
        self.spills = Spills(host, pool, self.tickets)
        self.claims = Claims(limits, pool, foresight, self.spills)
        self.pending: PendingPages[Who] = PendingPages()
        self.tables = PageTables()
        self.active = self.claims.active
        self.n_changes = 0  # of who is active and can be computed
        self.waiting: list[Sample] = []  # they are to be (re)computed when there is room; the same
        self._preempted: list[GaveWay] = []  # not told yet
        self._page_tokens = limits.page_tokens
        self._fingerprint = fingerprint

    def names(self, tokens: Sequence[int], salt: str) -> tuple[PageHash, ...]:
        """Hashes of the full pages; none where nothing is cached."""
        if self._fingerprint is None:
            return ()
        return page_hashes(tokens, self._page_tokens, fingerprint=self._fingerprint, salt=salt)

    # --- joining and leaving -----------------------------------------------------------------

    def wait(self, sample: Sample) -> None:
        """It is to be computed from its tokens as soon as there is room."""
        sample.waiting = True
        sample.wants = tuple(sample.hashes[: self.reusable(sample)])
        self.pool.want(sample.wants)
        insort(self.waiting, sample, key=_age)

    def _wait_no_more(self, sample: Sample) -> None:
        self.waiting.remove(sample)
        sample.waiting = False
        self.pool.unwant(sample.wants)
        sample.wants = ()

    def start(self, sample: Sample) -> bool:
        """Let a waiting sample in; what is here of its prefix, or in host memory, is not computed.
        False: not yet."""
        if sample.spilled is not None and sample.spilled.phase is SpillPhase.SPILLING:
            return False
        self._name(sample, sample.n_tokens)
        found = sample.hashes[: self.reusable(sample)]
        table = self.claims.claim(sample, found, (sample, *sample.followers))
        if table is None:
            return False
        self._wait_no_more(sample)
        sample.table = table
        if not sample.preempted:
            sample.cached = table.n_kv
        self._activate(sample)
        if sample.spilled is not None:
            self._restore(sample, sample.spilled)
        return True

    def _restore(self, sample: Sample, spilled: Spilled) -> None:
        """Pull what was not found; until that is here it is in no pass."""
        table = sample.table
        if table.n_kv >= spilled.n_kv:
            self.spills.drop(sample)
            return
        n_found = len(table.pages)
        n_new = len(spilled.pages) - n_found
        table.pages += self.pool.take(n_new)
        table.claim -= n_new
        self.spills.restore(sample, n_found)

    def copied(self, ticket: TicketId, *, ok: bool) -> Sample | None:
        """A copy to the host or back is final. Returns whoever goes on by it."""
        sample = self.spills.final(ticket, ok=ok)
        if sample is None or sample.spilled is None:
            return None
        spilled = sample.spilled
        if spilled.phase is SpillPhase.SPILLED:
            return None
        if ok:
            sample.table.n_kv = spilled.n_kv
            self.spills.drop(sample)
            self.publish(sample)
            self.n_changes += 1
            return sample
        if spilled.phase is SpillPhase.RESTORING:
            self._give_back(sample, None)
            self.wait(sample)
        self._compute_again(sample)
        return None

    def join(self, transfer: Transfer) -> None:
        """Every page of the prompt is in the trunk: its samples go on from there."""
        for sample in transfer.samples:
            sample.hashes = list(transfer.hashes)
        trunk, transfer.trunk = transfer.trunk, Table()
        self.fork(trunk, trunk.claim, [s for s in transfer.samples if s.finish is None])
        self.pool.give_back(trunk.pages)

    def fork(self, source: Table, claim: int, samples: Iterable[Sample]) -> None:
        """The samples share the pages; what is left of the claim is for what each says next."""
        for sample in samples:
            for page in source.pages:
                self.pool.share(page)
            own = min(1, claim)
            claim -= own
            sample.table = Table(list(source.pages), source.n_kv, source.n_published, own)
            self._activate(sample)

    def _activate(self, sample: Sample) -> None:
        insort(self.active, sample, key=_age)
        self.n_changes += 1

    def leave(self, sample: Sample) -> None:
        """The one exit: whatever ended or stopped it, its pages come back here."""
        step = sample.table.step
        fence = self.spills.fence(sample) or (None if step is None else step_fence(step))
        self._give_back(sample, fence)
        self.spills.drop(sample)

    def _give_back(self, sample: Sample, fence: Fence | None) -> None:
        if sample.waiting:
            self._wait_no_more(sample)
        elif sample.table.pages or sample.table.claim:
            self.active.remove(sample)
            self.n_changes += 1
        self.pending.failed(sample.who)
        table, sample.table = sample.table, Table()
        self.pool.give_back(table.pages, fence=fence)
        self.tables.drop(table)

    def preempt(self, loss: Loss) -> None:
        """What it published stays findable. No pass may be unanswered."""
        sample, n_pages = loss.sample, len(loss.sample.table.pages)
        spills = self.spills.pays(n_pages, loss.recompute_tokens)
        if spills:
            self.spills.spill(sample, loss.free_pages - sample.table.claim)
        self._give_back(sample, self.spills.fence(sample))
        if not spills:
            self._compute_again(sample)
        sample.preempted = True
        self.wait(sample)
        self._preempted.append(GaveWay(sample, "host" if spills else "recompute", n_pages))

    def _compute_again(self, sample: Sample) -> None:
        """From the first token that is not found."""
        self.spills.drop(sample)
        if sample.scores:
            sample.transfer.scored.clear()

    def take_preempted(self) -> list[GaveWay]:
        """Those that had to give way since the last call."""
        preempted, self._preempted = self._preempted, []
        return preempted

    def reusable(self, sample: Sample) -> int:
        """Leading pages that need not be computed: the last token's logits are always needed."""
        if sample.scores:
            return 0
        return min((sample.n_tokens - 1) // self._page_tokens, len(sample.hashes))

    def publish(self, sample: Sample) -> None:
        """Pages that are full of written KV can be found from now on."""
        table = sample.table
        n_full = table.n_kv // self._page_tokens
        if n_full == table.n_published:
            return
        self._name(sample, table.n_kv)
        for at in range(table.n_published, min(n_full, len(sample.hashes))):
            self.pool.publish(table.pages[at], sample.hashes[at])
            self.pending.done(sample.hashes[at])
        table.n_published = n_full

    def _name(self, sample: Sample, n_tokens: int) -> None:
        """Bring the hashes up to the full pages of the first `n_tokens` tokens."""
        page_tokens = self._page_tokens
        known, n_full = len(sample.hashes), n_tokens // page_tokens
        if n_full <= known or self._fingerprint is None:
            return
        sample.hashes += page_hashes(
            sample.tokens(known * page_tokens, n_full * page_tokens),
            page_tokens,
            fingerprint=self._fingerprint,
            salt=sample.transfer.request.salt,
            parent=sample.hashes[-1] if known else None,
        )

    def check(self) -> None:
        """Raise InvariantBroken unless promises can be kept and the lists are what they say."""
        self.claims.check()
        room = self.claims.room()
        if room.claimed_pages > room.available_pages:
            raise InvariantBroken(
                f"{room.claimed_pages} pages promised, {room.available_pages} available"
            )
        for samples in (self.active, self.waiting):
            if samples != sorted(samples, key=_age):
                raise InvariantBroken("a queue is out of order")
        if any(s.waiting or s.finish for s in self.active) or not all(
            s.waiting and not s.table.pages and not s.restoring for s in self.waiting
        ):
            raise InvariantBroken("a sample is in the wrong queue")


def _age(sample: Sample) -> tuple[int, int]:
    return sample.age
