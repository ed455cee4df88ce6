"""Whether a prompt is queued at all: what never fits, a full queue, a first token that comes late.

Pure policy, judged before any work is done.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from common.engine.refusal import RETRY_MIN_S, Refusal, late
from common.kv.layout import pages_for
from common.messages import Limits
from prefill.pace import Cost
from prefill.scheduler import TO_COMPUTE, states
from prefill.state import Prompt


def refusal(
    n_tokens: int, waiting: Sequence[int], limits: Limits, tokens_per_s: float, *, full: bool
) -> Refusal | None:
    """Whether a prompt must be refused before any work is done for it.

    `waiting`: tokens still to compute of each queued prompt. `tokens_per_s`: 0 if not known.
    `full`: they have no place for it (`priority.is_full`).
    """
    if n_tokens + 1 > limits.max_model_len:
        return Refusal(
            f"{n_tokens} tokens of {limits.max_model_len - 1} that fit the context", None
        )
    if pages_for(n_tokens, limits.page_tokens) > limits.n_pages:
        room = limits.n_pages * limits.page_tokens
        return Refusal(f"{n_tokens} tokens of {room} that fit the KV cache", None)
    if full:
        wait_s = sum(waiting) / tokens_per_s if tokens_per_s else 0.0
        return Refusal(
            f"{len(waiting)} prompts of {limits.max_waiting} wait", max(RETRY_MIN_S, wait_s)
        )
    return None


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of a prompt that nobody has begun: its first token, and what of that it can do nothing about.

    Seconds. `ttft` may be below `own` + `ahead`: what is ahead need not all come before it.
    """

    own: float  # to compute it where nothing else is
    ahead: float  # to compute all that is here and due before it
    ttft: float


def predicted(
    prompts: Iterable[Prompt], due: float, n_cached: int, n_tokens: int, cost: Cost
) -> Prediction:
    """Of a prompt with a stated deadline, the running pass apart.

    It is due then, and has so many tokens to compute after those that are cached. What states a
    deadline and is due no later comes before it; other prompts that are due have half of each pass.
    """
    ahead = [p for p in prompts if p.due <= due and p.phase in TO_COMPUTE]
    stating_s, others_s = (
        sum(cost.seconds(p.planned, p.remaining) for p in ahead if states(p) is stating)
        for stating in (True, False)
    )
    own_s = cost.seconds(n_cached, n_tokens)
    half_s = stating_s + own_s
    return Prediction(own_s, stating_s + others_s, half_s + min(others_s, half_s))


def ttft_s(prediction: Prediction, rest_s: float, pass_s: float) -> float:
    """From now. `rest_s`: of the running pass. `pass_s`: of a full one.

    Where something is ahead, the pass that ends the prompt is filled up by what comes after it, and
    its first token waits for that end.
    """
    if not prediction.ahead:
        return rest_s + prediction.ttft
    return rest_s + ceil(prediction.ttft / pass_s) * pass_s


def too_late(
    prediction: Prediction, predicted_s: float, deadline_s: float, within_s: float
) -> Refusal | None:
    """Early rejection: a stated deadline cannot be met, so nothing is computed in vain.

    `within_s`: what `predicted_s` must keep where other prompts are ahead. Whoever comes again
    finds that less is; a prompt that takes too long by itself has nothing to wait for.
    """
    if predicted_s <= (within_s if prediction.ahead else deadline_s):
        return None
    wait_s = predicted_s - prediction.ttft + prediction.ahead + prediction.own - within_s
    return late(own_s=prediction.own, predicted_s=predicted_s, deadline_s=deadline_s, wait_s=wait_s)
