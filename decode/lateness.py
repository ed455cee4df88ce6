"""Early rejection where prompts are computed beside sequences that decode: whether a first token
would come later than is owed. Must read no record of a request: numbers in, numbers out.

Predicted is the least that it can take: what waits for pages, or what others are promised a token,
may make it later. How much later, those that were let in tell (`common.engine.misjudged`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from common.engine.pace import Pace
from common.engine.refusal import Refusal, late

Part = tuple[int, int]
"""Of a prompt: tokens that have KV, and those after them that are to be computed."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a new prompt finds here."""

    ahead: Sequence[Part]
    n_decoding: int
    context: int  # tokens of those that decode


IDLE = Load((), 0, 0)


def prompts_s(pace: Pace, own: Part, load: Load, pass_tokens: int) -> float | None:
    """Until all prompts ahead and `own` are computed, so many tokens of prompts a pass.

    None: no pass of comparable size was measured.
    """
    parts = [*load.ahead, own]
    n_tokens = sum(n for _, n in parts)
    n_passes = -(-n_tokens // pass_tokens)
    attended = sum(
        max(1.0, n / pass_tokens) * (start + (n + min(n, pass_tokens)) / 2) for start, n in parts
    )
    rows = n_tokens // n_passes + load.n_decoding
    if not pace.is_known(rows):
        return None
    seconds = pace.seconds(rows, load.context + int(attended / n_passes))
    return None if seconds is None else n_passes * seconds


def too_late(own_s: float, ttft_s: float, deadline_s: float, within_s: float) -> Refusal | None:
    """`own_s`: where nothing else is. `within_s`: what the prediction `ttft_s` must keep."""
    if ttft_s <= within_s:
        return None
    wait_s = ttft_s - within_s
    return late(own_s=own_s, predicted_s=ttft_s, deadline_s=deadline_s, wait_s=wait_s)
