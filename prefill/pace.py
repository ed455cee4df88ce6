"""How fast passes have been lately, and how many tokens the next may have. Part of the core.

Whoever arrives while a pass runs waits for its end, however short the prompt is. So where requests
state how soon they must have their first token, a pass that computes a long prompt is cut to a
share of that: what follows it comes in time. Without such requests passes are as long as the
operator allows.
"""

from collections import deque
from math import inf

RECENT_PASSES = 4  # the fastest of these tells the rate: small ones and disturbed ones do not
HEED_S = 60.0  # a TTFT that was stated is expected to be stated again within that time
PASS_SHARE = 4  # of the TTFT: to wait for one pass, and to be computed in the next, is half of it
SHORTEST_PASS_S = 0.01  # nobody feels less, and shorter ones compute little


class Pace:
    """Fed with every pass and every TTFT that is stated. Seconds of the core's clock."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=RECENT_PASSES)
        self._running: tuple[int, float] | None = None  # rows, and since when
        self._tightest: tuple[float, float] | None = None  # TTFT, and until when it is heeded

    def begin(self, rows: int, now: float) -> None:
        self._running = (rows, now)

    def end(self, now: float) -> None:
        """The running pass is final, well or badly."""
        if self._running is not None and now > self._running[1]:
            rows, began = self._running
            self._recent.append(rows / (now - began))
        self._running = None

    def heed(self, ttft_s: float, now: float) -> None:
        """A request that was taken in states it. Of no effect while a tighter one is heeded."""
        heeded_s = self._heeded_s(now)
        if heeded_s is None or ttft_s <= heeded_s:
            self._tightest = (ttft_s, now + HEED_S)

    def _heeded_s(self, now: float) -> float | None:
        return self._tightest[0] if self._tightest is not None and now < self._tightest[1] else None

    @property
    def tokens_per_s(self) -> float:
        """0: nothing was measured yet."""
        return max(self._recent, default=0.0)

    def rest_s(self, now: float) -> float:
        """What the running pass should still take; 0: none runs, or it is not known."""
        if self._running is None or not self._recent:
            return 0.0
        rows, began = self._running
        return max(0.0, began + rows / self.tokens_per_s - now)

    def pass_tokens(self, now: float, page_tokens: int, asked_s: float = inf) -> int | None:
        """Tokens of a pass that somebody may have to wait for: whole pages, one at least.

        `asked_s`: a TTFT to be heeded, too. None: no bound is known, since nobody has stated a TTFT
        lately or nothing was measured.
        """
        ttft_s = min(self._heeded_s(now) or inf, asked_s)
        if ttft_s == inf or not self._recent:
            return None
        pass_s = max(SHORTEST_PASS_S, ttft_s / PASS_SHARE)
        return max(1, int(self.tokens_per_s * pass_s) // page_tokens) * page_tokens
