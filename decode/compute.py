"""Sequences become tokens: finding a prefix, growing, forking, giving way, passes and their commit.

Owns every hold that a sample's table has; what is on its way from a prefill worker is
`decode.intake`'s. Sends nothing and tells nobody but the request log.
"""

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from common.engine.plan import Drawn, PassResult
from common.errors import InvariantBroken
from common.ids import InstanceId, PageHash, PageId, StepId
from common.kv.pages import PagePool
from common.kv.prefix import PendingPages, page_hashes
from common.messages import Limits
from common.params import FinishReason
from common.stopping import token_rules
from decode.claims import Claims
from decode.forecast import Foresight
from decode.passes import Pass, Row, build
from decode.scheduler import Budget, turns, victim
from decode.state import Phase, Sample, Table, Transfer, Who, step_fence
from decode.tables import PageTables


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOptions:
    """What the operator set for this worker, beside its limits."""

    fingerprint: str  # of the model: the root of every page's name
    chunk_tokens: int
    enable_prefix_caching: bool = True
    plan_ahead: bool = False  # the next pass, while one is computed


@dataclass(slots=True)
class _Draft:
    """A pass being composed."""

    step: StepId
    ahead: bool  # another pass is unanswered
    parked: tuple[Sample, ...]
    spare: int  # pages that are available and promised to nobody
    rows: list[Row] = field(default_factory=list[Row])
    copies: list[tuple[PageId, PageId]] = field(default_factory=list[tuple[PageId, PageId]])


class Compute:
    """The pool as the sequences of one worker use it."""

    def __init__(
        self, limits: Limits, pool: PagePool, options: DecodeOptions, foresight: Foresight
    ) -> None:
        self.pool = pool
        self.claims = Claims(limits, pool, foresight)
        self.foresight = foresight
        self.pending: PendingPages[Who] = PendingPages()
        self.active = self.claims.active
        self.waiting: list[Sample] = []  # they are to be (re)computed when there is room; the same
        self.n_passes = 0  # composed
        self.n_ended = 0  # sequences, by themselves
        self.short = False  # of pages, in the last pass: somebody may have to give way
        self._preempted: list[Sample] = []  # not told yet
        self._tables = PageTables()
        self._limits = limits
        self._options = options
        self._budget = Budget(
            budget_tokens=limits.max_num_batched_tokens,
            chunk_tokens=options.chunk_tokens,
            max_num_seqs=limits.max_num_seqs,
        )

    def names(self, tokens: Sequence[int], salt: str) -> tuple[PageHash, ...]:
        """Hashes of the full pages; none where nothing is cached."""
        if not self._options.enable_prefix_caching:
            return ()
        return page_hashes(
            tokens, self._limits.page_tokens, fingerprint=self._options.fingerprint, salt=salt
        )

    # --- joining and leaving -----------------------------------------------------------------

    def wait(self, sample: Sample) -> None:
        """It is to be computed from its tokens as soon as there is room."""
        sample.waiting = True
        insort(self.waiting, sample, key=_age)

    def start(self, sample: Sample) -> bool:
        """Let a waiting sample in; what is here of its prefix is not computed. False: not yet."""
        self._name(sample, sample.n_tokens)
        found = sample.hashes[: self._reusable(sample)]
        table = self.claims.claim(sample, found, (sample, *sample.followers))
        if table is None:
            return False
        self.waiting.remove(sample)
        sample.waiting = False
        sample.table = table
        if not sample.preempted:
            sample.cached = table.n_kv
        insort(self.active, sample, key=_age)
        return True

    def join(self, transfer: Transfer) -> None:
        """Every page of the prompt is in the trunk: its samples go on from there."""
        for sample in transfer.samples:
            sample.hashes = list(transfer.hashes)
        trunk, transfer.trunk = transfer.trunk, Table()
        self._fork(trunk, trunk.claim, [s for s in transfer.samples if s.finish is None])
        self.pool.give_back(trunk.pages)

    def _fork(self, source: Table, claim: int, samples: Iterable[Sample]) -> None:
        """The samples share the pages; what is left of the claim is for what each says next."""
        for sample in samples:
            for page in source.pages:
                self.pool.share(page)
            own = min(1, claim)
            claim -= own
            sample.table = Table(list(source.pages), source.n_kv, source.n_published, own)
            insort(self.active, sample, key=_age)

    def leave(self, sample: Sample) -> None:
        """The one exit: whatever ended or stopped it, its pages come back here."""
        if sample.waiting:
            self.waiting.remove(sample)
            sample.waiting = False
        elif sample.table.pages or sample.table.claim:
            self.active.remove(sample)
        self.pending.failed(sample.who)
        table, sample.table = sample.table, Table()
        self.pool.give_back(
            table.pages, fence=None if table.step is None else step_fence(table.step)
        )
        self._tables.drop(table)

    def no_longer_wanted(self, transfer: Transfer) -> None:
        """The gateway saw its stop string, or nobody listens: that is its length."""
        if transfer.phase is Phase.RUNNING:
            for sample in transfer.samples:
                if sample.finish is None:
                    self.foresight.ended(len(sample.outputs), cut=False)

    def _preempt(self, sample: Sample) -> None:
        """What it published stays findable; the rest is computed again."""
        self.leave(sample)
        if sample.scores:
            sample.transfer.scored.clear()
        sample.preempted = True
        self.wait(sample)
        self._preempted.append(sample)

    def take_preempted(self) -> list[Sample]:
        """Those that had to give way since the last call."""
        preempted, self._preempted = self._preempted, []
        return preempted

    # --- passes ------------------------------------------------------------------------------

    def compose(
        self, credit: Mapping[InstanceId, int], step: StepId, *, ahead: bool
    ) -> Pass | None:
        """The next pass, its pages taken. None: nothing can run.

        `ahead`: another pass is unanswered, one at most. What it computes and draws is taken for
        granted; nobody gives way, for pages would come back only when it is final.
        """
        self.short = False
        ready = [s for s in self.active if self._may_go_on(s)]
        if not ready:
            return None
        chosen = turns(ready, credit, self._budget)
        self.claims.parked = chosen.parked
        room = self.claims.room()
        draft = _Draft(step, ahead, chosen.parked, room.available_pages - room.claimed_pages)
        for sample, n_tokens in chosen.rows:
            if not sample.waiting and (sample.gap == 1 or not self._is_coming(sample)):
                self._enter(draft, sample, n_tokens)
        if not draft.rows:
            return None
        self.n_passes += 1
        work = build(step, draft.rows, draft.copies, self._tables, self._limits.page_tokens)
        for row in draft.rows:
            table = row.table
            table.step = step
            table.n_ahead += row.end - row.start
            table.n_unread += bool(row.draws)
        return work

    def _may_go_on(self, sample: Sample) -> bool:
        """The next tokens to compute are known, or will be when the unanswered pass is final."""
        table = sample.table
        if table.n_unread and (sample.followers or self._says_last(sample)):
            return False
        return sample.gap == 1 or self._catch_up(sample)

    def _says_last(self, sample: Sample) -> bool:
        """The token that is not read yet ends it, whatever it is."""
        n_unread = sample.table.n_unread
        return (
            len(sample.outputs) + n_unread >= sample.params.max_tokens
            or sample.n_tokens + n_unread >= self._limits.max_model_len
        )

    def _catch_up(self, sample: Sample) -> bool:
        """Share what has turned up of its prefix. False: the next page is on its way."""
        table = sample.table
        page_tokens = self._limits.page_tokens
        reusable = 0 if table.n_ahead else self._reusable(sample)
        while table.n_kv % page_tokens == 0 and len(table.pages) < reusable and table.claim:
            page = self.pool.lookup(sample.hashes[len(table.pages)])
            if page is None:
                break
            self.pool.share(page)
            table.pages.append(page)
            table.claim -= 1
            table.n_kv += page_tokens
            table.n_published = len(table.pages)
            if not sample.preempted:
                sample.cached = table.n_kv
        return not self._is_coming(sample)

    def _is_coming(self, sample: Sample) -> bool:
        """Somebody else is computing or pulling the next page that it could share."""
        table = sample.table
        at = len(table.pages)
        n_kv = table.n_kv + table.n_ahead
        if at >= self._reusable(sample) or n_kv % self._limits.page_tokens:
            return False
        return self.pending.bringer(sample.hashes[at]) not in (None, sample.who)

    def _reusable(self, sample: Sample) -> int:
        """Leading pages that need not be computed: the last token's logits are always needed."""
        if sample.scores:
            return 0
        return min((sample.n_tokens - 1) // self._limits.page_tokens, len(sample.hashes))

    def _enter(self, draft: _Draft, sample: Sample, n_tokens: int) -> None:
        """Give the sample a row, if the pages for it can be had."""
        table = sample.table
        page_tokens = self._limits.page_tokens
        start = table.n_kv + table.n_ahead
        end = start + n_tokens
        tail = start // page_tokens
        forked = tail < len(table.pages) and self.pool.refcount(table.pages[tail]) > 1
        n_new = -(-end // page_tokens) - len(table.pages)
        if (n_new or forked) and not self._make_room(draft, sample, n_new + forked):
            return
        if forked:
            self._copy_tail(draft, table)
        if n_new:
            table.pages += self.pool.take(n_new)
        n_known = sample.n_tokens
        if n_tokens > 1 or end < n_known:
            for page_hash in sample.hashes[tail : end // page_tokens]:
                self.pending.claim(page_hash, sample.who)
        draws = (sample, *sample.followers) if end == n_known + table.n_unread else ()
        draft.rows.append(Row(sample, table, start, end, draws, unread=start == n_known))

    def _make_room(self, draft: _Draft, sample: Sample, n_pages: int) -> bool:
        promised = min(n_pages, sample.table.claim)
        while draft.spare < n_pages - promised:
            if draft.ahead:
                self.short = True
                return False
            loser = victim(self.claims.losses(sample), draft.parked)
            if loser is None:
                return False
            self._preempt(loser)
            room = self.claims.room()
            draft.spare = room.available_pages - room.claimed_pages
        sample.table.claim -= promised
        draft.spare -= n_pages - promised
        return True

    def _copy_tail(self, draft: _Draft, table: Table) -> None:
        """Siblings share the page it is about to write: it gets its own."""
        shared = table.pages[-1]
        (own,) = self.pool.take(1)
        draft.copies.append((shared, own))
        self.pool.give_back([shared], fence=step_fence(draft.step))
        table.pages[-1] = own
        table.n_placed = min(table.n_placed, len(table.pages) - 1)

    def commit(self, done: Pass, result: PassResult) -> list[Sample]:
        """The pass is final. Returns the live samples that have a new token."""
        at = 0
        scored = iter(result.scores)
        further: list[Sample] = []
        for row in done.rows:
            new = result.drawn[at : at + len(row.draws)]
            at += len(new)
            scores = next(scored) if row.scores else ()
            if row.is_live:
                row.sample.transfer.scored += scores
                self._advance(done.step, row, new)
                further += row.draws
        return further

    def _advance(self, step: StepId, row: Row, new: Sequence[Drawn]) -> None:
        sample, table = row.sample, row.table
        table.n_kv = row.end
        table.n_ahead -= row.end - row.start
        table.n_unread -= bool(row.draws)
        if table.step == step:
            table.step = None
        self._publish(sample)
        for drawing, drawn in zip(row.draws, new, strict=True):
            self._append(drawing, drawn)
        if row.draws and sample.transfer.cached is None:
            sample.transfer.cached = sample.cached
        if sample.followers and row.draws:
            self._let_followers_go(sample)
        for drawing in row.draws:
            if drawing.finish is not None:
                self.leave(drawing)

    def _let_followers_go(self, sample: Sample) -> None:
        """The prompt that they share is computed, and each has its first token."""
        table = sample.table
        left, table.claim = table.claim, 0
        if sample.finish is None:
            table.claim = min(1, left)
        following, sample.followers = sample.followers, []
        going = [s for s in following if s.finish is None]
        for other in going:
            other.hashes = list(sample.hashes)
        self._fork(table, left - table.claim, going)

    def _append(self, sample: Sample, drawn: Drawn) -> None:
        sample.outputs = (*sample.outputs, drawn.token)
        if drawn.logprob is not None:
            sample.logprobs.append(drawn.logprob)
        sample.finish = token_rules(
            sample.params,
            len(sample.outputs),
            drawn.token,
            n_prompt=len(sample.prompt),
            max_model_len=self._limits.max_model_len,
        )
        if sample.finish is not None:
            self.n_ended += 1
            self.foresight.ended(len(sample.outputs), cut=sample.finish is FinishReason.LENGTH)

    def _publish(self, sample: Sample) -> None:
        """Pages that are full of written KV can be found from now on."""
        table = sample.table
        n_full = table.n_kv // self._limits.page_tokens
        if n_full == table.n_published:
            return
        self._name(sample, table.n_kv)
        for at in range(table.n_published, min(n_full, len(sample.hashes))):
            self.pool.publish(table.pages[at], sample.hashes[at])
            self.pending.done(sample.hashes[at])
        table.n_published = n_full

    def _name(self, sample: Sample, n_tokens: int) -> None:
        """Bring the hashes up to the full pages of the first `n_tokens` tokens."""
        page_tokens = self._limits.page_tokens
        known, n_full = len(sample.hashes), n_tokens // page_tokens
        if n_full <= known or not self._options.enable_prefix_caching:
            return
        sample.hashes += page_hashes(
            sample.tokens(known * page_tokens, n_full * page_tokens),
            page_tokens,
            fingerprint=self._options.fingerprint,
            salt=sample.transfer.request.salt,
            parent=sample.hashes[-1] if known else None,
        )

    def check(self) -> None:
        """Raise InvariantBroken unless promises can be kept and the lists are what they say."""
        room = self.claims.room()
        if room.claimed_pages > room.available_pages:
            raise InvariantBroken(
                f"{room.claimed_pages} pages promised, {room.available_pages} available"
            )
        for samples in (self.active, self.waiting):
            if samples != sorted(samples, key=_age):
                raise InvariantBroken("a queue is out of order")
        if any(s.waiting or s.finish for s in self.active) or not all(
            s.waiting and not s.table.pages for s in self.waiting
        ):
            raise InvariantBroken("a sample is in the wrong queue")


def _age(sample: Sample) -> tuple[int, int]:
    return sample.age
