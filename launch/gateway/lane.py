"""Work that may take seconds, few pieces at a time, so that threads are left for all the rest.

Must know nothing of what the work is.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from common.errors import Overloaded

_Result = TypeVar("_Result")
RETRY_S = 1.0


class Lane:
    """A line before some of the loop's threads. Used by the event loop's thread."""

    def __init__(self, name: str, *, max_pending: int, n_threads: int = 1) -> None:
        """`max_pending`: at work and in line together."""
        self._name = name
        self._max_pending = max_pending
        self._n_pending = 0
        self._turns = asyncio.Semaphore(n_threads)

    async def run(self, work: Callable[[], _Result]) -> _Result:
        """What `work` gives. Cancelled in line: it is not begun. Raises Overloaded."""
        if self._n_pending >= self._max_pending:
            raise Overloaded(
                f"requests that wait for {self._name}: {self._n_pending} of {self._max_pending}",
                retry_after_s=RETRY_S,
            )
        self._n_pending += 1
        try:
            await self._turns.acquire()
            working = asyncio.ensure_future(asyncio.to_thread(work))
            working.add_done_callback(lambda _: self._turns.release())  # whoever still waits for it
            return await asyncio.shield(working)
        finally:
            self._n_pending -= 1
