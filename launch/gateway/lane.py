"""Work that may take seconds, in a thread of its own, so that nothing else waits behind it.

Must know nothing of what the work is.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from common.errors import Overloaded

_Result = TypeVar("_Result")
RETRY_S = 1.0


class Lane:
    """One thread, and a line before it. Used by the event loop's thread."""

    def __init__(self, name: str, *, max_pending: int) -> None:
        """`max_pending`: at work and in line together."""
        self._name = name
        self._max_pending = max_pending
        self._n_pending = 0
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, work: Callable[[], _Result]) -> _Result:
        """What `work` gives. Cancelled: it is not begun, if it has not been. Raises Overloaded."""
        if self._n_pending >= self._max_pending:
            raise Overloaded(
                f"{self._n_pending} requests of {self._max_pending} wait for {self._name}",
                retry_after_s=RETRY_S,
            )
        self._n_pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        finally:
            self._n_pending -= 1
