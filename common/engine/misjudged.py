"""How much later first tokens come than was predicted, and what a prediction must keep for that.

Where more is asked for than can be done, who is let in is always one that is predicted to be just
in time: then every error of a prediction is a target missed. So the errors are learnt. Must read no
record of a request: numbers in, numbers out.
"""

from collections import deque
from math import ceil

KEPT = 32  # predictions
FEWEST = 8  # before them nothing is known
FORGET_S = 60.0
QUANTILE = 0.95  # of what is let in is in time
MOST = 0.5  # of what is owed: a queue is never closed for good by what was once the case


class Misjudged:
    """Of one worker. Seconds of its core's clock."""

    def __init__(self) -> None:
        self._errors: deque[tuple[float, float]] = deque(maxlen=KEPT)  # when; part of what was owed

    def learn(self, *, predicted_s: float, took_s: float, owed_s: float, now: float) -> None:
        """A first token that was owed in `owed_s` (above 0) has come."""
        self._errors.append((now, (took_s - predicted_s) / owed_s))

    def within(self, owed_s: float, now: float) -> float:
        """What a prediction must keep so that the token comes in `owed_s` in 19 of 20 cases."""
        errors = sorted(error for at, error in self._errors if at > now - FORGET_S)
        if len(errors) < FEWEST:
            return owed_s
        return owed_s * (1 - min(MOST, max(0.0, errors[ceil(QUANTILE * len(errors)) - 1])))
