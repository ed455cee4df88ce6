"""How long answers are, from those that ended lately. Must read no record of a request.

The distribution is conditional on what a sequence has said already (LightLLM's "past-future"
scheduler, Gong et al., 2025, arXiv 2507.10150). A sequence that `max_tokens` cut off says only that
it was as long as that, so it is the product-limit estimate (Kaplan and Meier, 1958).
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence

WINDOW = 512  # sequences that are remembered


class Lengths:
    """Output lengths of one worker's sequences, learnt as they end.

    One that never ends is always among them: before anything is known, and beyond the longest
    that was seen, a sequence is expected to say all it may.
    """

    deviations = 1.75  # the least at which preemption is rare: `bench.simulate.admission`

    def __init__(self, window: int = WINDOW) -> None:
        self._ends: deque[tuple[int, bool]] = deque(maxlen=window)
        self._curve: tuple[list[int], list[float]] = ([], [])
        self._is_current = True

    def ended(self, n_said: int, *, cut: bool) -> None:
        self._ends.append((n_said, cut))
        self._is_current = False

    def go_on(self, n_said: Sequence[int]) -> None:
        """Without them, those of a batch that ended first would make all look short."""
        if not self._is_current:
            self._curve = _survival([*self._ends, *((n, True) for n in n_said)])
            self._is_current = True

    def predict(self, n_said: int, most: int, rank: float) -> int:
        lengths, over = self._curve
        after = bisect_right(lengths, n_said)
        alive = 1.0 - over[after - 1] if after else 1.0
        at = bisect_left(over, 1.0 - alive * (1.0 - rank), lo=after)
        return min(lengths[at], most) if at < len(lengths) else most


def _survival(ends: Sequence[tuple[int, bool]]) -> tuple[list[int], list[float]]:
    """Lengths at which some ended, ascending, and the share that is over by then."""
    lengths: list[int] = []
    over: list[float] = []
    alive, at_risk = 1.0, len(ends) + 1
    for length, cut in sorted(ends):  # of one length, those that ended come first
        if not cut:
            alive *= 1 - 1 / at_risk
            if lengths and lengths[-1] == length:
                over[-1] = 1.0 - alive
            else:
                lengths.append(length)
                over.append(1.0 - alive)
        at_risk -= 1
    return lengths, over
