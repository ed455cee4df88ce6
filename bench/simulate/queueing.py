"""A fast model of pools of workers: queues and batches as functions of their costs, no core in it.

DistServe's simulator (Zhong et al., OSDI 2024, arXiv 2401.09670, section 4 and `simdistserve`) is
the source: prompts are computed in batches under a token budget, sequences that decode advance by a
token a step, each pass takes what `Costs` says. Steps of an unchanged batch are one event: their
times are a quadratic in their number. A request goes to the worker with the least before it.

What it leaves out, and the real cores (`bench.simulate.timed`) do not: messages, snapshots that are
old, order by due time, prefixes that are in one worker's cache and not in another's, preemption,
early rejection, links that are shared.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from bench.simulate.costs import Costs


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Workers that are alike."""

    n_workers: int
    budget_tokens: int  # of a pass
    chunk_tokens: int  # of all prompts in a pass in which others decode
    max_num_seqs: int
    room_tokens: int  # of a worker's pages
    costs: Costs


@dataclass(slots=True)
class Job:
    """What a request asks of one pool."""

    at_s: float
    n_cached: int  # tokens that have KV when it comes
    n_prompt: int  # more that are to be computed; 0: that was done elsewhere
    n_steps: int  # tokens that it draws after the first
    drawn_s: float = math.inf  # when the pass ends that completes its prompt
    ended_s: float = math.inf  # when it has drawn the last of its tokens

    @property
    def n_room(self) -> int:
        """Tokens of KV in the mean, once its prompt is computed: a batch is of all ages."""
        return self.n_cached + self.n_prompt + self.n_steps // 2


@dataclass(slots=True, eq=False)
class _Worker:
    """One pass, or several steps of an unchanged batch, is on its way until `ends_s`."""

    waiting: deque[Job] = field(default_factory=deque[Job])
    prompts: deque[Job] = field(default_factory=deque[Job])  # let in; computed in this order
    n_computed: int = 0  # tokens of the first of them
    ends: list[tuple[int, int, Job]] = field(default_factory=list[tuple[int, int, Job]])
    n_context: int = 0  # tokens of KV of those that decode, who are `ends`
    n_steps: int = 0  # so far
    n_room: int = 0  # of those let in
    # What is on its way:
    began_s: float = 0.0
    ends_s: float = math.inf  # inf: it is idle
    steps: int = 0
    n_tokens: int = 0  # of prompts
    completed: list[Job] = field(default_factory=list[Job])

    @property
    def n_in(self) -> int:
        return len(self.prompts) + len(self.ends) + len(self.completed)


class _Run:
    """One pool until all its jobs are done."""

    def __init__(self, pool: Pool, token_s: float, sequence_s: float) -> None:
        self._pool = pool
        self._token_s = token_s
        self._sequence_s = sequence_s
        self._workers = [_Worker() for _ in range(pool.n_workers)]
        self._loads_s = [0.0] * pool.n_workers
        self._events: list[tuple[float, int]] = []  # (end, worker); void if the worker's differs
        self._n_joined = 0  # breaks ties, so that jobs are never compared

    def arrive(self, job: Job) -> None:
        """Ascending in time."""
        self.until(job.at_s)
        loads_s = self._loads_s
        number = loads_s.index(min(loads_s))
        loads_s[number] += job.n_prompt * self._token_s + self._sequence_s
        worker = self._workers[number]
        worker.waiting.append(job)
        if worker.ends_s == math.inf:
            loads_s[number] = job.n_prompt * self._token_s + self._sequence_s  # no rounding errors
            self._start(number, job.at_s)
        elif worker.steps > 1 and len(worker.waiting) == 1 and self._has_room(worker, job):
            self._cut(number, job.at_s)

    def until(self, now_s: float) -> None:
        """Let everything end that ends by then."""
        events, workers = self._events, self._workers
        while events and events[0][0] <= now_s:
            end_s, number = heappop(events)
            if workers[number].ends_s == end_s:
                self._end(number, end_s)

    def _has_room(self, worker: _Worker, job: Job) -> bool:
        """One alone is always let in."""
        n_in = worker.n_in
        fits = worker.n_room + job.n_room <= self._pool.room_tokens
        return n_in == 0 or (n_in < self._pool.max_num_seqs and fits)

    def _start(self, number: int, now_s: float) -> None:
        worker = self._workers[number]
        waiting = worker.waiting
        while waiting and self._has_room(worker, waiting[0]):
            job = waiting.popleft()
            worker.n_room += job.n_room
            if job.n_prompt:
                worker.prompts.append(job)
            else:
                job.drawn_s = now_s
                self._join(worker, job)
        worker.began_s = now_s
        if worker.prompts:
            worker.steps = 1
            worker.ends_s = now_s + self._mixed_s(worker)
        elif worker.ends:
            worker.steps = worker.ends[0][0] - worker.n_steps
            worker.ends_s = now_s + self._steps_s(worker, worker.steps)
        else:
            worker.ends_s = math.inf
            return
        heappush(self._events, (worker.ends_s, number))

    def _mixed_s(self, worker: _Worker) -> float:
        """Take tokens of prompts into a pass; how long it takes, as `Costs.pass_s` has it."""
        pool, costs = self._pool, self._pool.costs
        n_decoding = len(worker.ends)
        left = pool.budget_tokens
        if n_decoding:
            left = max(1, min(left - n_decoding, pool.chunk_tokens))
        n_tokens, n_pairs = 0, 0.0
        prompts = worker.prompts
        while prompts and left:
            job = prompts[0]
            n = min(left, job.n_prompt - worker.n_computed)
            n_pairs += n * (job.n_cached + worker.n_computed) + n * (n + 1) / 2
            n_tokens += n
            left -= n
            worker.n_computed += n
            if worker.n_computed == job.n_prompt:
                worker.completed.append(prompts.popleft())
                worker.n_computed = 0
        worker.n_tokens = n_tokens
        seconds = costs.prefill.seconds(n_tokens, n_pairs)
        if not n_decoding:
            return seconds
        step_s = costs.decode.seconds(worker.n_context + n_decoding, n_decoding)
        return seconds + step_s - min(costs.prefill.fixed_s, costs.decode.fixed_s)

    def _step_terms(self, worker: _Worker) -> tuple[float, float]:
        """The first step of the batch, and how much longer each takes than the one before."""
        seconds, n = self._pool.costs.decode.seconds, len(worker.ends)
        first_s = seconds(worker.n_context + n, n)
        return first_s, seconds(worker.n_context + 2 * n, n) - first_s

    def _steps_s(self, worker: _Worker, n_steps: int) -> float:
        first_s, more_s = self._step_terms(worker)
        return n_steps * first_s + more_s * n_steps * (n_steps - 1) / 2

    def _cut(self, number: int, now_s: float) -> None:
        """Somebody can join at the end of the step that runs: the steps after it are not taken."""
        worker = self._workers[number]
        first_s, more_s = self._step_terms(worker)
        since_s = now_s - worker.began_s
        half = first_s - more_s / 2
        steps = since_s / first_s
        if more_s > 0:
            steps = 2 * since_s / (half + math.sqrt(half * half + 2 * more_s * since_s))
        steps = max(1, math.ceil(steps))
        if steps < worker.steps:
            worker.steps = steps
            worker.ends_s = worker.began_s + self._steps_s(worker, steps)
            heappush(self._events, (worker.ends_s, number))

    def _end(self, number: int, now_s: float) -> None:
        worker = self._workers[number]
        worker.n_steps += worker.steps
        worker.n_context += worker.steps * len(worker.ends)
        ends = worker.ends
        while ends and ends[0][0] <= worker.n_steps:
            _, _, job = heappop(ends)
            worker.n_context -= job.n_cached + job.n_prompt + job.n_steps
            self._leave(number, job, now_s)
        self._loads_s[number] -= worker.n_tokens * self._token_s
        worker.n_tokens = 0
        completed, worker.completed = worker.completed, []
        for job in completed:
            job.drawn_s = now_s
            if job.n_steps:
                self._join(worker, job)
            else:
                self._leave(number, job, now_s)
        self._start(number, now_s)

    def _join(self, worker: _Worker, job: Job) -> None:
        self._n_joined += 1
        heappush(worker.ends, (worker.n_steps + job.n_steps, self._n_joined, job))
        worker.n_context += job.n_cached + job.n_prompt

    def _leave(self, number: int, job: Job, now_s: float) -> None:
        job.ended_s = now_s
        self._workers[number].n_room -= job.n_room
        self._loads_s[number] -= self._sequence_s


def serve(pool: Pool, jobs: Sequence[Job]) -> None:
    """Fills in when each of `jobs` has drawn its first and its last token. They ascend in time; a
    job without prompt has at least one step."""
    costs = pool.costs
    sequence_s = costs.decode.seconds(0, 1) if any(job.n_steps for job in jobs) else 0.0
    run = _Run(pool, costs.prefill.per_token_s, sequence_s)
    for job in jobs:
        run.arrive(job)
    run.until(math.inf)
