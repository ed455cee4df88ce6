"""When requests run out of the time that they gave themselves. Part of the gateway's core."""

from bisect import bisect_left, insort
from itertools import takewhile

from launch.gateway.transfers import RequestId


class Timeouts:
    """Who ends when, soonest first. `now` and `at` are of the core's clock."""

    def __init__(self) -> None:
        self._ends: list[tuple[float, RequestId]] = []

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def next_at(self) -> float | None:
        return self._ends[0][0] if self._ends else None

    def add(self, request: RequestId, at: float) -> None:
        insort(self._ends, (at, request))

    def drop(self, request: RequestId, at: float) -> None:
        """It has ended. It must have been added, and with that time."""
        index = bisect_left(self._ends, (at, request))
        assert self._ends[index] == (at, request)
        del self._ends[index]

    def passed(self, now: float) -> list[RequestId]:
        """Whose time is up. They stay until they are dropped."""
        return [request for _, request in takewhile(lambda end: end[0] <= now, self._ends)]
