"""How long a pass will take, from those that were run; and how many prompt tokens one has room for
where sequences that decode in it state how soon their next token must come.

Stall-free batching as in Sarathi-Serve (Agrawal et al., 2024, arXiv 2403.02310), its fixed chunk
replaced by what the model of costs allows. Must read no record of a request: numbers in, numbers
out.
"""

from collections import deque
from typing import cast

import numpy as np
from numpy.typing import NDArray

KEPT_OF_A_SIZE = 8  # passes: of 1, 2, 3..4, 5..8, ... rows, so that rare sizes are not forgotten
FEWEST_PASSES = 8  # before them nothing is predicted
COMPARABLE = 4  # passes of less than 1/4 of the rows say little of what a larger one takes
ROUNDS = 6  # of reweighting
SHARE = 0.9  # of a stated time: the rest is for what is not computing
_LEAST_ERROR = 1e-3  # relative: smaller ones weigh the same


class Pace:
    """seconds = a + b * rows + c * context, of which none is below 0.

    `context`: tokens that have KV after the pass, over all its sequences. The fit is that of least
    relative absolute error, so that passes that were disturbed do not count for more than others:
    iteratively reweighted least squares (Holland and Welsch, 1977), always as many rounds.
    """

    def __init__(self, kept: int = KEPT_OF_A_SIZE) -> None:
        """`kept`: passes of each size that are remembered."""
        self._kept = kept
        self._passes: dict[int, deque[tuple[int, int, float]]] = {}
        self._fit: tuple[float, float, float] | None = None
        self._is_current = True

    def learn(self, rows: int, context: int, seconds: float) -> None:
        """A pass was run. One that took no time says nothing."""
        if seconds > 0:
            like = self._passes.setdefault(rows.bit_length(), deque(maxlen=self._kept))
            like.append((rows, context, seconds))
            self._is_current = False

    def is_known(self, rows: int) -> bool:
        """Passes were measured that tell what one of so many rows takes."""
        return self.most_rows * COMPARABLE >= rows

    @property
    def most_rows(self) -> int:
        """Of the passes that are remembered; 0: there are none."""
        return max((one[0] for like in self._passes.values() for one in like), default=0)

    @property
    def least_s(self) -> float:
        """Of the passes that are remembered, of whatever size; 0: there are none."""
        return min((one[2] for like in self._passes.values() for one in like), default=0.0)

    def seconds(self, rows: int, context: int) -> float | None:
        """Of a pass; None: not known yet."""
        fit = self.coefficients()
        return None if fit is None else fit[0] + fit[1] * rows + fit[2] * context

    def prompt_tokens(self, limit_s: float, rows: int, context: int, *, least: int) -> int | None:
        """Tokens of prompts beside `rows` that still let the pass end in a share of `limit_s`.

        Never fewer than `least`, so that prompts advance. None: any, for all that is known.
        """
        fit = self.coefficients()
        if fit is None:
            return None
        base, a_row, a_token = fit
        if a_row + a_token <= 0:
            return None
        left_s = SHARE * limit_s - base - a_row * rows - a_token * context
        return max(least, int(left_s / (a_row + a_token)))

    def coefficients(self) -> tuple[float, float, float] | None:
        """(a, b, c); None: not known yet."""
        if not self._is_current:
            passes = [one for like in self._passes.values() for one in like]
            self._fit = _fitted(np.array(passes)) if len(passes) >= FEWEST_PASSES else None
            self._is_current = True
        return self._fit


def _fitted(passes: NDArray[np.float64]) -> tuple[float, float, float]:
    """`passes` [N, 3]: rows, context, seconds. Fitted is 1 = (a + b rows + c context) / seconds."""
    seconds = passes[:, 2]
    terms = np.column_stack([np.ones(len(passes)), passes[:, 0], passes[:, 1]]) / seconds[:, None]
    weights = np.ones(len(passes))
    fit = np.zeros(3)
    for _ in range(ROUNDS):
        fit = _not_negative(terms * weights[:, None], weights)
        weights = np.sqrt(1 / np.maximum(np.abs(terms @ fit - 1), _LEAST_ERROR))
    return float(fit[0]), float(fit[1]), float(fit[2])


def _not_negative(terms: NDArray[np.float64], goal: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least squares; whatever comes out below 0 is left out, the worst first."""
    scales = np.maximum(np.abs(terms).max(axis=0), 1e-300)
    kept = [0, 1, 2]
    fit = np.zeros(3)
    while kept:
        inverse = cast("NDArray[np.float64]", np.linalg.pinv(terms[:, kept] / scales[kept]))
        found: NDArray[np.float64] = inverse @ goal
        if found.min() >= 0:
            fit[kept] = found / scales[kept]
            break
        kept.pop(int(found.argmin()))
    return fit
