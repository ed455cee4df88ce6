"""What passes have cost lately, and how long the next may take. Part of the core.

Whoever arrives while a pass runs waits for its end, however short the prompt is. So where requests
state how soon they must have their first token, passes over others are cut to a share of that.
Without such requests passes are as long as the operator allows.
"""

from collections import deque
from dataclasses import dataclass
from math import inf, sqrt

FORGET = 0.8  # what is left of the weight of a pass when another of its kind is measured
DEEP_TOKENS = 1024  # passes whose tokens attend to more, in the mean, tell what attention costs
RECENT_PASSES = 32
FILLED = 2  # a pass that takes 1/2 of its limit, or more, was cut to it: to whole pages
COMPARABLE = 4  # passes of less than 1/4 of the tokens say little of what a longer one takes
HEED_S = 60.0  # a TTFT that was stated is expected to be stated again within that time
AS_TIGHT = 1.1  # times a TTFT that is heeded: one that is stated again, a little later than it came
PASS_SHARE = 4  # of the TTFT: to wait for one pass, and to have half of the next two, is 3/4 of it
ROUNDING = 1e-6  # tokens
SHORTEST_PASS_S = 0.01  # nobody feels less, and shorter ones compute little


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a token, and of each token that it attends to. Not both are 0."""

    token_s: float
    pair_s: float

    def seconds(self, first: int, n_tokens: int) -> float:
        """To compute so many from position `first` on."""
        return n_tokens * self.token_s + pairs(first, n_tokens) * self.pair_s

    def tokens(self, first: int, seconds: float) -> int:
        """As many from position `first` on as can be computed in that time."""
        if seconds <= 0:
            return 0
        next_s = self.token_s + self.pair_s * first
        n_tokens = 2 * seconds / (next_s + sqrt(next_s**2 + 2 * self.pair_s * seconds))
        return int(n_tokens + ROUNDING)


def pairs(first: int, n_tokens: int) -> float:
    """(Token, token attended to) of so many from position `first` on."""
    return n_tokens * (first + n_tokens / 2)


@dataclass(frozen=True, slots=True)
class Limit:
    """On a pass that somebody may have to wait for."""

    pass_s: float
    cost: Cost


@dataclass(slots=True)
class _Measured:
    """Of passes of one kind: sums, the latest weighing most."""

    tokens: float = 0.0
    pairs: float = 0.0
    seconds: float = 0.0

    def add(self, n_tokens: int, n_pairs: float, seconds: float) -> None:
        self.tokens = self.tokens * FORGET + n_tokens
        self.pairs = self.pairs * FORGET + n_pairs
        self.seconds = self.seconds * FORGET + seconds

    @property
    def token_s(self) -> float:
        return self.seconds / self.tokens if self.tokens else 0.0

    @property
    def depth(self) -> float:
        return self.pairs / self.tokens if self.tokens else 0.0


@dataclass(frozen=True, slots=True)
class _Launched:
    """A pass that is not final."""

    n_tokens: int
    n_pairs: float
    is_cut: bool  # it might not be longer


class Pace:
    """Fed with every pass and every TTFT that is stated. Seconds of the core's clock."""

    def __init__(self) -> None:
        self._shallow, self._deep = _Measured(), _Measured()
        self._sizes: deque[tuple[int, bool]] = deque(maxlen=RECENT_PASSES)  # tokens; was it cut?
        self._launched: deque[_Launched] = deque()
        self._began = 0.0  # the first of them
        self._tightest: tuple[float, float] | None = None  # TTFT, and until when it is heeded

    # --- what passes cost --------------------------------------------------------------------

    def begin(self, n_tokens: int, n_pairs: float, now: float) -> None:
        """A pass is launched, and begins when those before it are final."""
        limit = self.limit(now)
        is_cut = limit is not None and (
            n_tokens * limit.cost.token_s + n_pairs * limit.cost.pair_s >= limit.pass_s / FILLED
        )
        if not self._launched:
            self._began = now
        self._launched.append(_Launched(n_tokens, n_pairs, is_cut))

    def end(self, now: float) -> None:
        """The running pass is final, well or badly."""
        if not self._launched:
            return
        run, began, self._began = self._launched.popleft(), self._began, now
        if now > began:
            kind = self._deep if run.n_pairs > DEEP_TOKENS * run.n_tokens else self._shallow
            kind.add(run.n_tokens, run.n_pairs, now - began)
            self._sizes.append((run.n_tokens, run.is_cut))

    @property
    def cost(self) -> Cost | None:
        """None: nothing was measured yet."""
        shallow, deep = self._shallow, self._deep
        if not (shallow.tokens or deep.tokens):
            return None
        apart = deep.depth - shallow.depth
        if not (shallow.tokens and apart > DEEP_TOKENS / 2):  # too much alike to be told apart
            return Cost(max(shallow.token_s, deep.token_s), 0.0)
        pair_s = min(max(0.0, (deep.token_s - shallow.token_s) / apart), deep.token_s / deep.depth)
        return Cost(max(0.0, shallow.token_s - pair_s * shallow.depth), pair_s)

    @property
    def ends_at(self) -> float | None:
        """When the running pass should be final; None: none runs, or it is not known."""
        cost = self.cost
        if not self._launched or cost is None:
            return None
        return self._began + _seconds(self._launched[0], cost)

    def rest_s(self, now: float) -> float:
        """What the passes that are launched should still take; 0: none is, or it is not known."""
        ends_at, cost = self.ends_at, self.cost
        if ends_at is None or cost is None:
            return 0.0
        behind = (_seconds(run, cost) for n, run in enumerate(self._launched) if n)
        return max(0.0, ends_at - now) + sum(behind)

    def is_known(self, n_tokens: int, n_cut: int) -> bool:
        """Passes were measured that tell what so many tokens take, if a limit lets them be of
        `n_cut` only.

        That limit is itself computed from what passes cost. So it counts only where it was kept
        to: few tokens that were slow would else tell of many that these are few at a time.
        """
        return any(
            size * COMPARABLE >= (min(n_tokens, n_cut) if was_cut else n_tokens)
            for size, was_cut in self._sizes
        )

    # --- what passes may cost ----------------------------------------------------------------

    def heed(self, ttft_s: float, now: float) -> None:
        """A request that could be in time states it. Of no effect while a tighter one is heeded."""
        heeded_s = self._heeded_s(now)
        if ttft_s <= heeded_s * AS_TIGHT:
            self._tightest = (min(ttft_s, heeded_s), now + HEED_S)

    def _heeded_s(self, now: float) -> float:
        return self._tightest[0] if self._tightest is not None and now < self._tightest[1] else inf

    def limit(self, now: float, asked_s: float = inf) -> Limit | None:
        """`asked_s`: a TTFT to be heeded, too.

        None: nobody has stated a TTFT lately, or nothing was measured.
        """
        ttft_s, cost = min(self._heeded_s(now), asked_s), self.cost
        if ttft_s == inf or cost is None:
            return None
        return Limit(max(SHORTEST_PASS_S, ttft_s / PASS_SHARE), cost)


def _seconds(run: _Launched, cost: Cost) -> float:
    return run.n_tokens * cost.token_s + run.n_pairs * cost.pair_s
