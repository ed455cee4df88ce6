"""How long before a pass should end the next is planned. Part of the cores.

As late as is safe: whoever arrives before is in it. What planning ahead saves is the device's wait.
"""

LATE_SHARE = 0.1  # of the plans, too late for the device


class Lead:
    """As long as it takes to be late in a share of the cases (a quantile, by its subgradient): what
    is measured is all that planning takes and all that passes end too early."""

    def __init__(
        self, *, first_s: float, step_s: float, least_s: float, most_s: float, most_share: float
    ) -> None:
        """`step_s`: what a plan that is late adds. `most_share`: of a pass."""
        self._seconds = first_s
        self._step_s = step_s
        self._least_s, self._most_s, self._most_share = least_s, most_s, most_share

    def plan_at(self, ends_at: float, now: float) -> float:
        """While the pass is computed that has begun now."""
        return ends_at - min(self._seconds, self._most_share * (ends_at - now))

    def learn(self, *, late: bool) -> None:
        """The device waited for a plan, or there was one that lay there."""
        moved_s = self._seconds + self._step_s * (late - LATE_SHARE)
        self._seconds = min(max(moved_s, self._least_s), self._most_s)
