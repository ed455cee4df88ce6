"""One process's part of a load: sends requests when they are due, and gathers the outcomes.

The loop is open: a request is sent at its time, however late the server is with others; what
`max_concurrency` holds back waits in here and is measured apart (`Outcome.queued_s`).
Imports nothing of the engine.
"""

import asyncio
import gc
import math
import resource
import time
from collections.abc import Awaitable, Callable, Sequence

import aiohttp

from bench.client import Outcome, Request, Target, send
from bench.tls import Trust

WATCH_EVERY_S = 0.02
MAX_FILES = 1 << 16  # open at once, a connection each; the usual soft limit is 1024

Due = tuple[int, Request, float]  # index, request, seconds after the load's begin


def connector(trust: Trust) -> aiohttp.TCPConnector:
    """For any number of connections at once."""
    return aiohttp.TCPConnector(limit=0, ssl=trust.context() or True)


def open_session(target: Target) -> aiohttp.ClientSession:
    """For any number of connections at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    return aiohttp.ClientSession(
        headers=target.headers,
        connector=connector(target.trust),
        timeout=aiohttp.ClientTimeout(total=target.timeout_s),
        read_bufsize=1 << 20,
    )


class Sender:
    """Used for one load."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        target: Target,
        *,
        began: float,
        on_outcome: Callable[[Outcome], None],
    ) -> None:
        self._session = session
        self._target = target
        self._began = began
        self._on_outcome = on_outcome
        self._outcomes: list[Outcome] = []
        self._running: dict[int, Outcome] = {}
        self._awake_at_s = math.inf  # when the watch is to wake

    async def run(
        self,
        due: Sequence[Due],
        max_concurrency: int | None,
        stop: asyncio.Event,
    ) -> list[Outcome]:
        """Until all have ended, or `stop` is set; in the order of their indices.

        due  ascending in time
        """
        places = asyncio.Semaphore(max_concurrency or len(due) or 1)
        gc.freeze()  # no collection looks at thousands of prompts while times are taken
        tasks = [
            asyncio.create_task(self._send_all(due, places)),
            asyncio.create_task(_until(stop)),
            asyncio.create_task(self._watch()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            gc.unfreeze()
        for failure in ended:
            if isinstance(failure, Exception):
                raise failure
        return sorted(self._outcomes, key=lambda outcome: outcome.index)

    async def _watch(self) -> None:
        """How late this process itself is: it is in the times of all requests that run."""
        while True:
            self._awake_at_s = time.perf_counter() + WATCH_EVERY_S
            await asyncio.sleep(WATCH_EVERY_S)
            for outcome in self._running.values():
                self._note_lag(outcome)

    def _note_lag(self, outcome: Outcome) -> None:
        late_s = time.perf_counter() - self._awake_at_s
        outcome.client_lag_s = max(outcome.client_lag_s, late_s)

    async def _send_all(self, due: Sequence[Due], places: asyncio.Semaphore) -> None:
        async with asyncio.TaskGroup() as tasks:
            for index, request, at_s in due:
                wait_s = self._began + at_s - time.perf_counter()
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                tasks.create_task(self._one(index, request, at_s, places))

    async def _one(
        self, index: int, request: Request, at_s: float, places: asyncio.Semaphore
    ) -> None:
        async with places:
            now_s = time.perf_counter() - self._began
            outcome = Outcome(index=index, scheduled_s=at_s, sent_s=now_s)
            self._outcomes.append(outcome)
            self._running[index] = outcome
            sending = send(self._session, self._target, request, outcome, self._began)
            try:
                if request.cancel_after_s is None:
                    await sending
                else:
                    await _hang_up(sending, request.cancel_after_s, outcome)
            except asyncio.CancelledError:
                outcome.cancelled = True
                raise
            finally:
                del self._running[index]
                self._note_lag(outcome)
                self._on_outcome(outcome)


async def _until(stop: asyncio.Event) -> None:
    await stop.wait()


async def _hang_up(sending: Awaitable[None], after_s: float, outcome: Outcome) -> None:
    """As a user does who loses patience."""
    try:
        async with asyncio.timeout(after_s):
            await sending
    except TimeoutError:
        outcome.cancelled = True
