"""From Expect to the batch: admission, the Accept, pulls, the Handoff, joining.

Owns every hold on pages that are on their way (a transfer's trunk and arrivals) until they join.
Pulls write only into pages of this pool; a page counts when its ticket has validated it.
"""

from collections.abc import Sequence

from common.engine.events import Cancel, Connect, Pull
from common.engine.reports import Peers
from common.errors import InvariantBroken
from common.ids import InstanceId, PageHash, TicketId, TransferId
from common.kv.layout import pages_for
from common.messages import Expect, Handoff, PageRef, PagesReady
from decode.compute import Compute
from decode.outgoing import Outgoing
from decode.scheduler import in_order, turn, whole_pages
from decode.state import ARRIVING, Arrival, Event, Phase, Sample, Table, Transfer, Who, ticket_fence

ACCEPT_FIRST_S = 0.05
ACCEPT_LAST_S = 0.5


class Intake:
    """Transfers that do not run yet."""

    def __init__(
        self, compute: Compute, outgoing: Outgoing, peers: Peers, *, page_tokens: int
    ) -> None:
        self.queued: dict[TransferId, Transfer] = {}
        self._compute = compute
        self._holds = compute.holds
        self._pool = compute.holds.pool
        self._pending = compute.holds.pending
        self._outgoing = outgoing
        self._peers = peers
        self._page_tokens = page_tokens
        self._tickets: dict[TicketId, tuple[Transfer, tuple[int, ...]]] = {}
        self._n_arrived = 0
        self._n_ended = 0

    @property
    def idle(self) -> bool:
        return not self._tickets

    # --- the queue ---------------------------------------------------------------------------

    def queue(self, gateway: InstanceId, request: Expect) -> Transfer:
        transfer = Transfer(
            request, gateway, self._n_arrived, whole_pages(request, self._page_tokens)
        )
        self._n_arrived += 1
        for resume in request.samples:
            n = len(resume.outputs)
            sample = Sample(transfer, resume.sample, n, resume.outputs, sent=n, acked=n)
            sample.logprobs_from = n
            transfer.samples.append(sample)
        transfer.queued_after = self._compute.n_passes
        self._take_number(transfer)
        first = transfer.samples[0]
        if request.prefill is not None or not first.scores:
            tokens = first.tokens(0, transfer.n_tokens)
            transfer.hashes = self._holds.names(tokens, request.salt)
        self.queued[request.transfer] = transfer
        self._pool.want(transfer.hashes)
        return transfer

    def _dequeue(self, transfer: Transfer) -> None:
        if self.queued.pop(transfer.request.transfer, None) is not None:
            self._pool.unwant(transfer.hashes)

    def admit(self, now: float) -> None:
        """Let in whom there is room for: preempted ones, then recovering ones, then new ones.

        The first of them that does not fit holds up those behind it, so that it cannot starve;
        smaller ones may still come before it, until it is its turn.
        """
        for sample in list(self._holds.waiting):
            if self._outgoing.may_talk_to(sample.transfer.gateway):
                if not self._holds.start(sample):
                    return
                if sample.preempted and not sample.restoring:
                    self._outgoing.note(sample.transfer, "resumed", sample=sample.number)
        if self._n_ended != self._compute.n_ended:  # more is known of lengths
            self._n_ended = self._compute.n_ended
            for transfer in self.queued.values():
                self._take_number(transfer)
        may_talk_to = self._outgoing.may_talk_to
        for transfer in in_order([t for t in self.queued.values() if may_talk_to(t.gateway)]):
            if not self._enter(transfer, now):
                return

    def _take_number(self, transfer: Transfer) -> None:
        volume = self._holds.claims.volume(transfer)
        priority = transfer.request.priority
        transfer.turn = turn(transfer.queued_after, volume, self._pool.n_pages, priority)

    def _enter(self, transfer: Transfer, now: float) -> bool:
        if transfer.request.prefill is None:
            return self._enter_local(transfer)
        trunk = self._holds.claims.claim(transfer, transfer.hashes, transfer.samples)
        if trunk is None:
            return False
        transfer.trunk = trunk
        transfer.on(Event.ADMITTED)
        self._dequeue(transfer)
        self._holds.claims.arriving[transfer.request.transfer] = transfer
        transfer.knock_s = ACCEPT_FIRST_S
        if transfer.request.prefill.instance in self._peers:
            self._knock(transfer, now)
        else:
            self._outgoing.act(Connect(transfer.request.prefill))
        return True

    def _enter_local(self, transfer: Transfer) -> bool:
        """One sample computes the prompt for all, unless they come with outputs of their own.

        Then the others stand in line like preempted ones, behind whatever the first publishes.
        """
        first, *others = transfer.samples
        together = all(not sample.outputs for sample in transfer.samples)
        first.followers = others if together else []
        self._holds.wait(first)
        if not self._holds.start(first):
            self._holds.leave(first)
            return False
        transfer.on(Event.STARTED)
        self._outgoing.note(transfer, "context_begin")
        self._dequeue(transfer)
        for sample in () if together else others:
            self._holds.wait(sample)
        return True

    # --- the Accept --------------------------------------------------------------------------

    def peer_up(self, instance: InstanceId, now: float) -> None:
        for transfer in self._expected_from(instance):
            if transfer.phase is Phase.CALLING:
                self._knock(transfer, now)

    def cut_off(self, instance: InstanceId) -> list[Transfer]:
        """Those that cannot arrive without it. One that is handed over can: pulls may still
        finish, from a pool that outlives its owner."""
        return [t for t in self._expected_from(instance) if t.phase is not Phase.HANDED]

    def _expected_from(self, instance: InstanceId) -> list[Transfer]:
        return [t for t in self._holds.claims.arriving.values() if _prefill_of(t) == instance]

    def knock(self, now: float) -> None:
        """Repeat each Accept that is not answered."""
        for transfer in self._holds.claims.arriving.values():
            if transfer.knock_at is not None and transfer.knock_at <= now:
                self._knock(transfer, now)

    @property
    def wake_at(self) -> float | None:
        times = (t.knock_at for t in self._holds.claims.arriving.values())
        return min((at for at in times if at is not None), default=None)

    def _knock(self, transfer: Transfer, now: float) -> None:
        prefill = transfer.request.prefill
        hello = self._peers.get(prefill.instance) if prefill is not None else None
        if hello is None or hello.pool is None:
            transfer.knock_at = None
            return
        transfer.remote = hello.pool
        held = tuple(PageRef(p, self._pool.generation(p)) for p in transfer.trunk.pages)
        self._outgoing.accept(transfer, held)
        transfer.knock_at = now + transfer.knock_s
        transfer.knock_s = min(2 * transfer.knock_s, ACCEPT_LAST_S)

    # --- pages -------------------------------------------------------------------------------

    def pages_ready(self, transfer: Transfer, message: PagesReady) -> None:
        self._answered(transfer)
        self._announced(transfer, message.first, message.pages)
        self._fetch(transfer)

    def handoff(self, transfer: Transfer, message: Handoff) -> str | None:
        """Take the first tokens, and the pages that were not announced yet. Returns what is wrong
        with the message; None: nothing."""
        self._answered(transfer)
        self._announced(transfer, message.first, message.pages)
        n_pages = len(transfer.trunk.pages) + len(transfer.arrivals)
        tokens = {handed.sample: handed for handed in message.tokens}
        if n_pages != pages_for(transfer.n_tokens, self._page_tokens):
            return f"{n_pages} pages handed for {transfer.n_tokens} tokens"
        if message.n_tokens != transfer.n_tokens:
            return f"{message.n_tokens} tokens handed, {transfer.n_tokens} expected"
        if tokens.keys() != {sample.number for sample in transfer.samples}:
            return f"first tokens of samples {sorted(tokens)}"
        transfer.on(Event.HANDED)
        transfer.cached = message.cached_tokens
        for sample in transfer.samples:
            handed = tokens[sample.number]
            sample.outputs = (*sample.outputs, handed.token)
            sample.finish = handed.finish
            if handed.logprob is not None:
                sample.logprobs.append(handed.logprob)
            self._outgoing.deliver(sample)
        if any(sample.finish is None for sample in transfer.samples):
            self._fetch(transfer)
        return None

    def _answered(self, transfer: Transfer) -> None:
        transfer.knock_at = None
        if transfer.phase is Phase.CALLING:
            transfer.on(Event.ANSWERED)

    def _announced(self, transfer: Transfer, first: int, pages: Sequence[PageRef]) -> None:
        """Announcements are cumulative: only what goes beyond the earlier ones is news."""
        known = len(transfer.trunk.pages) + len(transfer.arrivals)
        total = pages_for(transfer.n_tokens, self._page_tokens)
        if first <= known:
            transfer.arrivals += [Arrival(ref) for ref in pages[known - first : total - first]]

    def fetch_waiting(self) -> None:
        """Whatever somebody else was bringing may be here by now, or may never come."""
        for transfer in list(self._holds.claims.arriving.values()):
            if transfer.n_arrivals_held < len(transfer.arrivals):
                self._fetch(transfer)

    def _fetch(self, transfer: Transfer) -> None:
        """Share what is here, leave what another is bringing, pull the rest under one ticket."""
        pulls: list[int] = []
        for at, arrival in enumerate(transfer.arrivals):
            if arrival.page is None and not self._found(transfer, at, arrival):
                pulls.append(at)
        pulls = [at for at in pulls if self._is_ours(transfer, at)]
        if pulls:
            self._pull(transfer, pulls)
        self._join_if_whole(transfer)

    def _found(self, transfer: Transfer, at: int, arrival: Arrival) -> bool:
        page_hash = self._hash(transfer, at)
        page = None if page_hash is None else self._pool.lookup(page_hash)
        if page is None:
            return False
        self._pool.share(page)
        arrival.page, arrival.valid = page, True
        transfer.n_arrivals_held += 1
        transfer.trunk.claim -= 1
        return True

    def _is_ours(self, transfer: Transfer, at: int) -> bool:
        page_hash = self._hash(transfer, at)
        return page_hash is None or self._pending.claim(page_hash, _puller(transfer))

    def _pull(self, transfer: Transfer, pulls: list[int]) -> None:
        prefill = _prefill_of(transfer)
        assert prefill is not None
        assert transfer.remote is not None
        if not transfer.n_pulled:
            self._outgoing.note(transfer, "migration_begin", pages=len(pulls))
        transfer.n_pulled += len(pulls)
        ticket = next(self._holds.tickets)
        transfer.n_arrivals_held += len(pulls)
        transfer.trunk.claim -= len(pulls)
        pages = self._pool.take(len(pulls))
        for at, page in zip(pulls, pages, strict=True):
            transfer.arrivals[at].page, transfer.arrivals[at].ticket = page, ticket
        self._tickets[ticket] = (transfer, tuple(pulls))
        refs = [transfer.arrivals[at].ref for at in pulls]
        self._outgoing.act(
            Pull(ticket, prefill, transfer.remote, tuple(zip(refs, pages, strict=True)))
        )

    def ticket_final(self, ticket: TicketId, *, ok: bool) -> Transfer | None:
        """Returns the transfer that has lost pages by it; None: all is well, or nobody cares."""
        transfer, pulled = self._tickets.pop(ticket)
        self._pool.fence_final(ticket_fence(ticket))
        if transfer.phase not in ARRIVING:
            return None
        for at in pulled:
            transfer.arrivals[at].ticket = None
        if not ok:
            return transfer
        for at in pulled:
            self._validated(transfer, at)
        self._outgoing.note(transfer, "pages_pulled", pages=len(pulled))
        self._join_if_whole(transfer)
        return None

    def _validated(self, transfer: Transfer, at: int) -> None:
        arrival = transfer.arrivals[at]
        assert arrival.page is not None
        arrival.valid = True
        page_hash = self._hash(transfer, at)
        if page_hash is not None:
            self._pool.publish(arrival.page, page_hash)
            self._pending.done(page_hash)

    def _hash(self, transfer: Transfer, at: int) -> PageHash | None:
        """Of an arrival; the last page of a prompt may be partial, and is then nobody else's."""
        at += len(transfer.trunk.pages)
        return transfer.hashes[at] if at < len(transfer.hashes) else None

    # --- the exits ---------------------------------------------------------------------------

    def _join_if_whole(self, transfer: Transfer) -> None:
        if transfer.phase is not Phase.HANDED or not all(a.valid for a in transfer.arrivals):
            return
        trunk = transfer.trunk
        trunk.pages = transfer.pages
        trunk.n_kv = transfer.n_tokens
        trunk.n_published = len(transfer.hashes)
        transfer.arrivals, transfer.n_arrivals_held = [], 0
        del self._holds.claims.arriving[transfer.request.transfer]
        transfer.on(Event.JOINED)
        self._outgoing.release(transfer)
        self._outgoing.note(transfer, "migration_end", pages=transfer.n_pulled)
        self._outgoing.note(transfer, "decoding_begin")
        self._holds.join(transfer)

    def let_go(self, transfer: Transfer) -> None:
        """Whatever ended it: its pages come back here, those being written behind their ticket."""
        self._dequeue(transfer)
        self._holds.claims.arriving.pop(transfer.request.transfer, None)
        transfer.knock_at = None
        self._pending.failed(_puller(transfer))
        kept = [a.page for a in transfer.arrivals if a.page is not None and a.ticket is None]
        by_ticket: dict[TicketId, list[Arrival]] = {}
        for arrival in transfer.arrivals:
            if arrival.ticket is not None:
                by_ticket.setdefault(arrival.ticket, []).append(arrival)
        for ticket, arrivals in by_ticket.items():
            self._outgoing.act(Cancel(ticket))
            pages = [a.page for a in arrivals if a.page is not None]
            self._pool.give_back(pages, fence=ticket_fence(ticket))
        self._pool.give_back([*transfer.trunk.pages, *kept])
        transfer.trunk, transfer.arrivals, transfer.n_arrivals_held = Table(), [], 0

    def check(self) -> None:
        """Raise InvariantBroken unless the pool keeps what those who wait will need, no more."""
        wanted = {page_hash for t in self.queued.values() for page_hash in t.hashes}
        wanted.update(page_hash for s in self._holds.waiting for page_hash in s.wants)
        if len(wanted) != self._pool.n_wants:
            raise InvariantBroken(f"{len(wanted)} pages are wanted, {self._pool.n_wants} kept")


def _prefill_of(transfer: Transfer) -> InstanceId | None:
    prefill = transfer.request.prefill
    return None if prefill is None else prefill.instance


def _puller(transfer: Transfer) -> Who:
    return (*transfer.key, -1)
