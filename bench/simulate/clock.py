"""Virtual time: what is to happen, in order."""

import heapq
from collections.abc import Callable


class Clock:
    """`now` moves only in `next`."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0

    def at(self, delay_s: float, what: Callable[[], object]) -> None:
        """Ties go in the order of the calls."""
        self._count += 1
        heapq.heappush(self._heap, (self.now + delay_s, self._count, what))

    @property
    def next_at(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def next(self) -> None:
        """Let the next thing happen."""
        at, _, what = heapq.heappop(self._heap)
        self.now = max(self.now, at)
        what()
