"""Something has come: an asyncio.Event for one waiter, at a third of its cost, once a token."""

import asyncio
from collections.abc import Awaitable


class Arrival:
    """Used by the event loop's thread, and waited for by one task at a time."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        self._is_set = True
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():  # it may have been cancelled
            waiter.set_result(None)

    def clear(self) -> None:
        self._is_set = False

    def wait(self) -> Awaitable[None]:
        """Until it is set. To be awaited at once."""
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        if self._is_set:
            self.set()
        return waiter
