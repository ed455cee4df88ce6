"""A load: requests are sent when they are due, by one process or by several.

Imports nothing of the engine.
"""

import asyncio
import os
import time
from collections.abc import Callable, Sequence

from bench.arrivals import Arrivals
from bench.client import Outcome, Request, Target
from bench.processes import Job, run_processes
from bench.sender import Sender, open_session

# Half of what one process takes in with under 1 ms added at p99 (`python -m bench.client_limit`).
EVENTS_PER_PROCESS_S = 16_000


async def run(
    target: Target,
    requests: Sequence[Request],
    arrivals: Arrivals,
    *,
    processes: int = 1,
    on_outcome: Callable[[Outcome], None] = lambda _: None,
    stop: asyncio.Event | None = None,
) -> list[Outcome]:
    """The outcomes, in the requests' order.

    processes   that send; each has its share of the requests and of `max_concurrency`
    on_outcome  called as each request ends
    stop        set it to end the load early: what was not sent is left out, what is in flight is
                given up and counts as cancelled
    """
    times_s = arrivals.times_s(requests)
    due = [(i, r, at_s) for i, (r, at_s) in enumerate(zip(requests, times_s, strict=True))]
    stop = stop or asyncio.Event()
    if processes > 1:
        jobs = split(Job(target, due, arrivals.max_concurrency), processes)
        return await run_processes(jobs, on_outcome, stop)
    async with open_session(target) as session:
        sender = Sender(session, target, began=time.perf_counter(), on_outcome=on_outcome)
        return await sender.run(due, arrivals.max_concurrency, stop)


def split(job: Job, n_processes: int) -> list[Job]:
    """Into that many at most: none without a request or a place."""
    places = job.max_concurrency
    n = min(n_processes, len(job.due), places or n_processes) or 1
    return [
        Job(
            job.target,
            job.due[i::n],
            None if places is None else places // n + (i < places % n),
        )
        for i in range(n)
    ]


def processes_for(requests: Sequence[Request], arrivals: Arrivals) -> int:
    """How many it takes that none is the bottleneck, as far as the load tells beforehand; no more
    than there are CPUs. A load without times is as fast as its server: one, unless it is told."""
    last_s = max(arrivals.times_s(requests), default=0.0)
    if last_s <= 0:
        return 1
    events_per_s = sum(request.max_tokens for request in requests) / last_s
    return max(1, min(-(-int(events_per_s) // EVENTS_PER_PROCESS_S), os.cpu_count() or 1))
