"""Sequences become tokens: passes are composed, and committed when they are final.

Decides who is in a pass and who gives way; how pages are held is `decode.holds`'. Sends nothing
and tells nobody but the request log.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from common.engine.pace import Pace
from common.engine.plan import Drawn, PassResult
from common.engine.reports import HEARTBEAT_BUSY_S
from common.ids import InstanceId, PageId, StepId
from common.kv.layout import pages_for
from common.messages import Limits
from common.params import FinishReason
from common.stopping import token_rules
from decode.first_tokens import FirstTokens
from decode.forecast import Foresight
from decode.holds import Holds
from decode.passes import Pass, Row, build
from decode.repeats import Repeats
from decode.scheduler import (
    Budget,
    Loss,
    Ready,
    apart,
    first_short,
    pages_ahead,
    tightest_s,
    turns,
    victim,
)
from decode.state import Phase, Sample, Table, Transfer, step_fence


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOptions:
    """What the operator set for this worker, beside its limits."""

    fingerprint: str  # of the model: the root of every page's name
    chunk_tokens: int
    enable_prefix_caching: bool = True
    plan_ahead: bool = False  # the next pass, while one is computed; else it may be repeated
    most_repeats: int = 1  # of a pass, where the runner can
    heartbeat_s: float = HEARTBEAT_BUSY_S


@dataclass(slots=True)
class _Draft:
    """A pass being composed."""

    step: StepId
    ahead: bool  # another pass is unanswered
    spare: int  # pages that are available and promised to nobody
    coming: int  # pages that spills in flight give back, and nobody waits for
    rows: list[Row] = field(default_factory=list[Row])
    copies: list[tuple[PageId, PageId]] = field(default_factory=list[tuple[PageId, PageId]])


class Compute:
    """Passes over the sequences of one worker."""

    def __init__(
        self, limits: Limits, holds: Holds, options: DecodeOptions, foresight: Foresight
    ) -> None:
        self.holds = holds
        self.foresight = foresight
        self.n_passes = 0  # composed
        self.n_ended = 0  # sequences, by themselves
        self.short = False  # of pages, in the last pass: somebody may have to give way
        most_repeats = 1 if options.plan_ahead else options.most_repeats
        self._repeats = Repeats(most_repeats, limits, holds.pool)
        self._was_alone = False  # the last pass was of one transfer that shares none
        self._n_changes = 0  # of who is active, as the last pass was composed
        self._pace = Pace()
        self._limits = limits
        self._budget = Budget(
            budget_tokens=limits.max_num_batched_tokens,
            chunk_tokens=options.chunk_tokens,
            max_num_seqs=limits.max_num_seqs,
        )
        self.first_tokens = FirstTokens(
            holds, self._pace, self._budget, page_tokens=limits.page_tokens
        )

    def no_longer_wanted(self, transfer: Transfer) -> None:
        """The gateway saw its stop string, or nobody listens: that is its length."""
        if transfer.phase is Phase.RUNNING:
            for sample in transfer.samples:
                if sample.finish is None:
                    self.foresight.ended(len(sample.outputs), cut=False)

    # --- passes ------------------------------------------------------------------------------

    @property
    def batch_changes(self) -> bool:
        """The next pass will not be over the sequences of the last one."""
        return self.holds.n_changes != self._n_changes

    def compose(
        self, credit: Mapping[InstanceId, int], step: StepId, *, ahead: bool
    ) -> Pass | None:
        """The next pass, its pages taken. None: nothing can run.

        `ahead`: another pass is unanswered, one at most. What it computes and draws is taken for
        granted; nobody gives way, for pages would come back only when it is final.
        """
        self.short = False
        self._look_ahead(ahead=ahead)
        ready = [(s, gap) for s in self.holds.active if (gap := self._ready_gap(s))]
        for sharing in apart(ready, others_next=self._was_alone):
            draft = self._draft(sharing, credit, step, ahead=ahead)
            if draft.rows:
                self._was_alone = sharing[0][0].transfer.request.alone
                return self._pass(draft, credit, len(sharing))
        return None

    def _draft(
        self, ready: Sequence[Ready], credit: Mapping[InstanceId, int], step: StepId, *, ahead: bool
    ) -> _Draft:
        """A pass over as many of them as can go on; its pages are taken."""
        chosen = turns(ready, credit, self._budget_of(ready))
        self.holds.claims.parked = chosen.parked
        room = self.holds.claims.room()
        spare = room.available_pages - room.claimed_pages
        draft = _Draft(step, ahead, spare, self.holds.spills.n_coming)
        for sample, n_tokens in chosen.rows:
            goes_on = sample.table.n_unread or sample.gap == 1
            if not sample.waiting and (goes_on or not self._is_coming(sample)):
                self._enter(draft, sample, n_tokens)
        return draft

    def _pass(self, draft: _Draft, credit: Mapping[InstanceId, int], n_ready: int) -> Pass:
        self.n_passes += 1
        self._n_changes = self.holds.n_changes
        repeats = 1
        if self._is_settled(draft, n_ready):
            repeats = self._repeats.plan(draft.rows, credit, draft.spare)
        tables, page_tokens = self.holds.tables, self._limits.page_tokens
        work = build(draft.step, draft.rows, draft.copies, tables, page_tokens, repeats)
        for row in draft.rows:
            table = row.table
            table.step = draft.step
            table.n_ahead += row.end - row.start
            table.n_unread += bool(row.draws)
        return work

    def _is_settled(self, draft: _Draft, n_ready: int) -> bool:
        """The next pass would be over the same sequences."""
        most = min(n_ready, self._budget.max_num_seqs, self._budget.budget_tokens)
        is_full = n_ready == len(self.holds.active) and len(draft.rows) == most
        return is_full and not draft.copies

    def _budget_of(self, ready: Sequence[Ready]) -> Budget:
        """Prompts leave those who decode the time that these have asked for."""
        limit_s = tightest_s(ready)
        if limit_s is None:
            return self._budget
        context = sum(s.table.n_kv + s.table.n_ahead + 1 for s, _ in ready)
        least = self._limits.page_tokens
        n_tokens = self._pace.prompt_tokens(limit_s, len(ready), context, least=least)
        return replace(self._budget, prompt_tokens=n_tokens)

    def _ready_gap(self, sample: Sample) -> int:
        """Its gap, if the next tokens to compute are known, or will be when the unanswered pass is
        final; else 0."""
        if sample.restoring:
            return 0
        if sample.table.n_unread:
            return 0 if sample.followers or self._says_last(sample) else 1
        gap = sample.gap
        if gap > 1:
            gap = sample.gap if self._catch_up(sample) else 0
        return gap

    def _says_last(self, sample: Sample) -> bool:
        """The token that is not read yet ends it, whatever it is."""
        request = sample.transfer.request
        n_outputs = len(sample.outputs) + sample.table.n_unread
        return (
            n_outputs >= request.params.max_tokens
            or len(request.prompt) + n_outputs >= self._limits.max_model_len
        )

    def _catch_up(self, sample: Sample) -> bool:
        """Share what has turned up of its prefix. False: the next page is on its way."""
        table = sample.table
        page_tokens = self._limits.page_tokens
        reusable = 0 if table.n_ahead else self.holds.reusable(sample)
        while table.n_kv % page_tokens == 0 and len(table.pages) < reusable and table.claim:
            page = self.holds.pool.lookup(sample.hashes[len(table.pages)])
            if page is None:
                break
            self.holds.pool.share(page)
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
        if at >= self.holds.reusable(sample) or n_kv % self._limits.page_tokens:
            return False
        return self.holds.pending.bringer(sample.hashes[at]) not in (None, sample.who)

    def _enter(self, draft: _Draft, sample: Sample, n_tokens: int) -> None:
        """Give the sample a row, if the pages for it can be had."""
        table = sample.table
        page_tokens = self._limits.page_tokens
        start = table.n_kv + table.n_ahead
        end = start + n_tokens
        tail = start // page_tokens
        forked = tail < len(table.pages) and self.holds.pool.refcount(table.pages[tail]) > 1
        n_new = -(-end // page_tokens) - len(table.pages)
        if (n_new or forked) and not self._make_room(draft, sample, n_new + forked):
            return
        if forked:
            self._copy_tail(draft, table)
        if n_new:
            table.pages += self.holds.pool.take(n_new)
        n_known = sample.n_tokens
        if n_tokens > 1 or end < n_known:
            for page_hash in sample.hashes[tail : end // page_tokens]:
                self.holds.pending.claim(page_hash, sample.who)
        draws = (sample, *sample.followers) if end == n_known + table.n_unread else ()
        draft.rows.append(Row(sample, table, start, end, draws, unread=start == n_known))

    def _make_room(self, draft: _Draft, sample: Sample, n_pages: int) -> bool:
        promised = min(n_pages, sample.table.claim)
        while draft.spare < n_pages - promised:
            lacking = n_pages - promised - draft.spare
            if lacking <= draft.coming:  # they are kept for it; it goes on when they are here
                draft.coming -= lacking
                draft.spare = 0
                return False
            loss = victim(self.holds.claims.losses(sample), self.holds.claims.losses_of_parked())
            if loss is None:
                return False
            if draft.ahead:
                self.short = True
                return False
            self._give_way(draft, loss)
        sample.table.claim -= promised
        draft.spare -= n_pages - promised
        return True

    def _give_way(self, draft: _Draft, loss: Loss) -> None:
        had, coming = self.holds.claims.room(), self.holds.spills.n_coming
        self.holds.preempt(loss)
        has = self.holds.claims.room()
        draft.spare += has.available_pages - had.available_pages
        draft.spare += had.claimed_pages - has.claimed_pages
        draft.coming += self.holds.spills.n_coming - coming

    def _look_ahead(self, *, ahead: bool) -> None:
        """A spill takes longer than a pass: it is begun while there are still pages, so that none
        has to wait for it. Between two passes alone: a pass `ahead` is one more to go by."""
        page_tokens = self._limits.page_tokens
        n_passes = self.holds.spills.n_passes(
            max((len(s.table.pages) for s in self.holds.active), default=0)
        )
        n_passes += ahead and n_passes > 0
        while n_passes:
            room = self.holds.claims.room()
            spare = room.available_pages - room.claimed_pages + self.holds.spills.n_coming
            if spare >= len(self.holds.active) * pages_for(n_passes, page_tokens):
                return
            needs = [
                (s, pages_ahead(s, n_passes, page_tokens))
                for s in self.holds.active
                if not s.restoring
            ]
            wants = first_short(needs, spare)
            loss = None if wants is None else victim(self.holds.claims.losses(wants), ())
            if loss is None or not self.holds.spills.pays(
                len(loss.sample.table.pages), loss.recompute_tokens
            ):
                return
            if ahead:
                self.short = True
                return
            self.holds.preempt(loss)

    def _copy_tail(self, draft: _Draft, table: Table) -> None:
        """Siblings share the page it is about to write: it gets its own."""
        shared = table.pages[-1]
        (own,) = self.holds.pool.take(1)
        draft.copies.append((shared, own))
        self.holds.pool.give_back([shared], fence=step_fence(draft.step))
        table.pages[-1] = own
        table.n_placed = min(table.n_placed, len(table.pages) - 1)

    def commit(self, done: Pass, result: PassResult) -> list[Sample]:
        """The pass is final. Returns the live samples that have a new token."""
        plan, rounds = done.plan, result.rounds
        self.n_passes += len(rounds) - 1
        self._pace.learn(plan.n_rows, int(plan.len_B.sum()), result.seconds)
        of_draws = list(zip(*rounds, strict=True))
        at = 0
        scored = iter(result.scores)
        further: list[Sample] = []
        for row in done.rows:
            drawn = of_draws[at : at + len(row.draws)]
            at += len(row.draws)
            scores = next(scored) if row.scores else ()
            if row.is_live:
                row.sample.transfer.scored += scores
                self._advance(done.step, row, drawn)
                further += row.draws
        return further

    def _advance(self, step: StepId, row: Row, drawn: Sequence[Sequence[Drawn]]) -> None:
        """`drawn`: by each of its draws, as often as the pass was computed."""
        sample, table = row.sample, row.table
        n_known = len(sample.outputs)
        for drawing, tokens in zip(row.draws, drawn, strict=True):
            self._append(drawing, tokens)
        table.n_kv = row.end + max(0, len(sample.outputs) - n_known - 1)
        table.n_ahead -= row.end - row.start
        table.n_unread -= bool(row.draws)
        if table.step == step:
            table.step = None
        self._repeats.done(row)
        self.holds.publish(sample)
        if row.draws and sample.transfer.cached is None:
            sample.transfer.cached = sample.cached
        if sample.followers and row.draws:
            self._let_followers_go(sample)
        for drawing in row.draws:
            if drawing.finish is not None:
                self.holds.leave(drawing)

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
        self.holds.fork(table, left - table.claim, going)

    def _append(self, sample: Sample, drawn: Sequence[Drawn]) -> None:
        """One after the other, until one ends it."""
        request, n_outputs = sample.transfer.request, len(sample.outputs)
        params, n_prompt, most = request.params, len(request.prompt), self._limits.max_model_len
        said: list[int] = []
        for one in drawn:
            said.append(one.token)
            if one.logprob is not None:
                sample.logprobs.append(one.logprob)
            sample.finish = token_rules(
                params,
                n_outputs + len(said),
                one.token,
                n_prompt=n_prompt,
                max_model_len=most,
            )
            if sample.finish is not None:
                break
        sample.outputs += tuple(said)
        if sample.finish is not None:
            self.n_ended += 1
            self.foresight.ended(len(sample.outputs), cut=sample.finish is FinishReason.LENGTH)
