"""How many requests are being answered, and whether another one may come in.

Past the bound a request is refused before any work is done for it. Must not know what they ask.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from common.errors import Overloaded
from common.metrics import GatewayMetrics
from launch.gateway.places import ALL, Places

DRAIN_RETRY_S = 5.0
MAX_HELD_TOKENS = 2**25  # of the prompts of all requests here: 36 bytes each
FULL_RETRY_S = 1.0


class Admission:
    """Used by the event loop's thread."""

    def __init__(
        self,
        limit: int,
        metrics: GatewayMetrics,
        places: Places | None = None,
        *,
        max_held_tokens: int = MAX_HELD_TOKENS,
    ) -> None:
        """`places`: where other gateways are counted, too."""
        self._limit = limit
        self._max_held_tokens = max_held_tokens
        self.held_tokens = 0
        self._metrics = metrics
        self._places = places or Places()
        self._empty = asyncio.Event()
        self._empty.set()
        self._unpromised: set[asyncio.Task[object]] = set()  # what nobody but us works at
        self._given_up: set[asyncio.Task[object]] = set()
        self.in_progress = 0  # here
        self.draining = False  # True: what is here is finished, and nothing more is taken
        self.all_ready: Callable[[], bool] = lambda: True  # other gateways of the server, too

    def enter(self) -> None:
        """Raises Overloaded; otherwise to be answered with `leave`."""
        if self.draining:
            raise _stopping()
        if not self._places.take(ALL, self._limit):
            raise Overloaded(
                f"requests in progress: {self._limit} of {self._limit} (--max-waiting-requests)",
                retry_after_s=FULL_RETRY_S,
            )
        self._count(1)

    def hold(self, n_tokens: int) -> int:
        """Of prompts, until `leave` is told of so many. Raises Overloaded where there are too many,
        unless there are no others."""
        if self.held_tokens and self.held_tokens + n_tokens > self._max_held_tokens:
            raise Overloaded(
                f"{self.held_tokens} tokens of prompts are waiting or being answered; with these "
                f"{n_tokens} they would be more than {self._max_held_tokens}",
                retry_after_s=FULL_RETRY_S,
            )
        self.held_tokens += n_tokens
        return n_tokens

    def leave(self, n_held_tokens: int = 0) -> None:
        self.held_tokens -= n_held_tokens
        self._places.give_back(ALL)
        self._count(-1)

    @contextmanager
    def until_given_up(self) -> Iterator[None]:
        """Of work that the server does not end for: raises Overloaded where it is given up."""
        task = asyncio.current_task()
        assert task is not None
        self._unpromised.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if task not in self._given_up:
                raise
            task.uncancel()
            raise _stopping() from None
        finally:
            self._unpromised.discard(task)
            self._given_up.discard(task)

    def give_up(self) -> None:
        """What no worker has been asked yet is not waited for any longer."""
        for task in self._unpromised - self._given_up:
            self._given_up.add(task)
            task.cancel()

    @property
    def in_progress_anywhere(self) -> int:
        """At other gateways, too."""
        return self._places.taken(ALL)

    async def empty(self) -> None:
        """Until nothing is in progress."""
        await self._empty.wait()

    def _count(self, change: int) -> None:
        self.in_progress += change
        self._metrics.requests_in_progress.set(self.in_progress)
        if self.in_progress:
            self._empty.clear()
        else:
            self._empty.set()


def _stopping() -> Overloaded:
    return Overloaded("the server is stopping", retry_after_s=DRAIN_RETRY_S, status=503)
