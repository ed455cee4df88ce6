"""Whether a worker makes progress: health is that, not a live socket. Pure."""

from common.messages import Progress

HUNG_AFTER_S = 20.0  # of one pass, at least: a loaded machine may stand still for long
HUNG_FACTOR = 20  # passes over long contexts take several times what their rows predict
UNKNOWN_FACTOR = 15  # nothing was measured yet, and the first pass may be the slowest


def is_hung(progress: Progress, hung_after_s: float = HUNG_AFTER_S) -> bool:
    """Its pass takes so much longer than predicted that it will not end.

    A pass without a prediction gets `UNKNOWN_FACTOR` times `hung_after_s`.
    """
    if progress.predicted_s:
        limit_s = max(hung_after_s, HUNG_FACTOR * progress.predicted_s)
    else:
        limit_s = UNKNOWN_FACTOR * hung_after_s
    return progress.step_age_s > limit_s
