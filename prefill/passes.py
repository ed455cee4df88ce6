"""From queued prompts to passes: who starts, who waits for a prefix, what is launched.

Knows nothing of leases or messages: `prefill.core` announces what comes of it.
"""

from collections.abc import Sequence
from functools import partial
from math import inf

from common.engine.events import Action, Launch, Pull, StepDone, StepFailed
from common.engine.reports import Peers, Pulse
from common.ids import TicketId
from common.messages import Limits
from prefill.compute import Compute, step_fence, ticket_fence
from prefill.pace import Pace
from prefill.scheduler import TO_COMPUTE, Chunk, Room, plan, to_set_back
from prefill.state import Event as Moved
from prefill.state import Phase, Prompt
from prefill.steps import Pass, Steps

WAIT_FOR_ACCEPT_S = 0.25  # at most, where the router says that decode holds more of the prefix


class Passes:
    """Up to two are unanswered; pulls of prefixes go on beside them."""

    def __init__(
        self,
        compute: Compute,
        limits: Limits,
        peers: Peers,
        pulse: Pulse,
        *,
        chunk_tokens: int,
        plan_ahead: bool,
    ) -> None:
        self._compute = compute
        self._limits = limits
        self._peers = peers
        self.chunk_tokens = chunk_tokens
        self.pace = Pace()
        self._steps = Steps(pulse, self.pace, plan_ahead=plan_ahead)
        self._tickets: dict[TicketId, Prompt] = {}
        self._next_ticket = 0

    @property
    def idle(self) -> bool:
        return self._steps.idle and not self._tickets

    @property
    def tokens_behind(self) -> int:
        """See `prefill.steps.Steps`."""
        return self._steps.tokens_behind

    def launch(self, queue: Sequence[Prompt], now: float) -> tuple[list[Prompt], list[Action]]:
        """Start what may start and launch what can run, if it is time to.

        `queue`: all prompts, in order. Returns the prompts that were started, and what to do.
        """
        started: list[Prompt] = []
        actions: list[Action] = []
        if not self._steps.may_plan(now):
            return started, actions
        ready: list[Chunk] = []
        for chunk in self._chunks(queue, now):
            prompt = chunk.prompt
            if not chunk.starts:
                ready.append(chunk)
            elif not self._compute.is_coming(prompt):  # by one that has just started
                started.append(prompt)
                actions += self._start(prompt)
                if prompt.phase is Phase.RUNNING:
                    end = min(len(prompt.tokens), prompt.done + chunk.end)
                    ready.append(Chunk(prompt, end, starts=True))
        if ready:
            actions.append(self._launched(ready, now))
        else:
            self._steps.nothing()
        return started, actions

    def _launched(self, chunks: list[Chunk], now: float) -> Launch:
        spans = [(c.prompt.planned, c.end - c.prompt.planned) for c in chunks]
        step = self._steps.next
        work = Pass(step, tuple(chunks), self._compute.build(chunks, step))
        self._steps.launched(work, spans, now)
        return Launch(step, work.plan)

    def _chunks(self, queue: Sequence[Prompt], now: float) -> tuple[Chunk, ...]:
        if not any(p.phase in TO_COMPUTE for p in queue):
            return ()
        chunks = self._plan(queue, now, owed_at=now)
        if chunks or not self._steps.idle:
            return chunks
        # Nobody uses the pages that whoever decode waits for may lack.
        return self._plan(queue, now, owed_at=inf)

    def _plan(self, queue: Sequence[Prompt], now: float, *, owed_at: float) -> tuple[Chunk, ...]:
        may_start = partial(self._may_start, now=now)
        while victims := to_set_back(queue, self._room(queue, now, owed_at), may_start):
            for prompt in victims:
                prompt.on(Moved.SET_BACK)
                self._compute.give_back(prompt)
                self._compute.wait(prompt)
                prompt.scored, prompt.handed = [], ()
        return plan(queue, self._room(queue, now, owed_at), may_start)

    def _may_start(self, prompt: Prompt, now: float) -> bool:
        return not (self._awaits_accept(prompt, now) or self._compute.is_coming(prompt))

    def _awaits_accept(self, prompt: Prompt, now: float) -> bool:
        """A prefix that decode holds costs a copy; worth a short wait for its Accept."""
        elsewhere = self._elsewhere(prompt)
        if not elsewhere or now >= prompt.arrived + WAIT_FOR_ACCEPT_S:
            return False
        return elsewhere > len(self._compute.found(prompt))

    def _elsewhere(self, prompt: Prompt) -> int:
        """Leading pages that decode probably holds, and will name in the Accept that is to come."""
        hint = prompt.request.decode_cached_tokens
        if not hint or prompt.accept is not None or prompt.request.decode not in self._peers:
            return 0
        return min(hint // self._limits.page_tokens, prompt.reusable)

    def wake_at(self, queue: Sequence[Prompt], now: float) -> float | None:
        """When the next pass is to be planned, or a prompt has waited long enough for an Accept."""
        if not self._steps.may_plan(now):
            return self._steps.wake_at
        waiting = (p for p in queue if p.phase is Phase.WAITING and self._elsewhere(p))
        times = (p.arrived + WAIT_FOR_ACCEPT_S for p in waiting)
        return min((at for at in times if at > now), default=None)

    def _room(self, queue: Sequence[Prompt], now: float, owed_at: float) -> Room:
        limits = self._limits
        return Room(
            budget_tokens=limits.max_num_batched_tokens,
            chunk_tokens=self.chunk_tokens,
            limit=self.pace.limit(now),
            max_num_seqs=limits.max_num_seqs,
            page_tokens=limits.page_tokens,
            available_pages=self._compute.pool.n_available,
            unaccepted_pages=sum(len(p.pages) for p in queue if p.pages and p.accept is None),
            n_pages=limits.n_pages,
            owed_at=owed_at,
        )

    def _start(self, prompt: Prompt) -> list[Action]:
        """Reserve the prompt's pages whole; fetch from decode what it holds of the prefix."""
        copies = self._compute.reserve(prompt)
        decode = self._peers.get(prompt.request.decode)
        if not copies or decode is None or decode.pool is None:
            prompt.on(Moved.RESERVED)
            return []
        prompt.on(Moved.FETCH)
        prompt.ticket = TicketId(self._next_ticket)
        self._next_ticket += 1
        self._tickets[prompt.ticket] = prompt
        return [Pull(prompt.ticket, prompt.request.decode, decode.pool, copies)]

    def ticket_final(self, ticket: TicketId, *, ok: bool) -> Prompt | None:
        """The prompt that goes on now; None if it has ended meanwhile."""
        prompt = self._tickets.pop(ticket)
        fetched = prompt.phase is Phase.FETCHING
        if fetched:
            self._compute.fetched(prompt, ok=ok)
            prompt.on(Moved.FETCHED)
        self._compute.pool.fence_final(ticket_fence(ticket))
        return prompt if fetched else None

    def step_final(self, event: StepDone | StepFailed, now: float) -> list[Prompt]:
        """The live prompts that the pass was for; further on, if it was well."""
        work = self._steps.final(event, now)
        for chunk in work.chunks:
            if chunk.prompt.step == event.step:
                chunk.prompt.step = None
        if isinstance(event, StepDone):
            live = self._compute.commit(work.chunks, work.plan, event.result)
        else:
            live = [c.prompt for c in work.chunks if c.prompt.phase is Phase.RUNNING]
            for prompt in live:
                prompt.failed_alone = len(work.chunks) == 1
        self._compute.pool.fence_final(step_fence(event.step))
        return live
