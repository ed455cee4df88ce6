"""Prompts that are computed here: whether their first tokens come in time, as far as passes tell.

Judges, and learns from how those fared that it let in. Changes nothing but what it knows.
"""

from collections.abc import Iterable

from common.engine.misjudged import Misjudged
from common.engine.pace import Pace
from common.engine.refusal import Refusal
from common.messages import Expect
from decode.holds import Holds
from decode.lateness import IDLE, Load, prompts_s, too_late
from decode.scheduler import Budget
from decode.state import Key, Transfer

REMEMBERED = 256  # who was let in and whose first token has yet to come; of more, the latest


class FirstTokens:
    """Of one worker. Seconds of its core's clock."""

    def __init__(self, holds: Holds, pace: Pace, budget: Budget, *, page_tokens: int) -> None:
        self._holds = holds
        self._pace = pace
        self._budget = budget
        self._page_tokens = page_tokens
        self._misjudged = Misjudged()
        self._predicted: dict[Key, tuple[float, float]] = {}  # when it came; seconds from then

    def refusal(self, request: Expect, queued: Iterable[Transfer], now: float) -> Refusal | None:
        """Of a prompt that would be computed here, behind those that are queued. Whoever was
        promised an answer is served, however late."""
        deadline_s = request.deadline_s
        if request.prefill is not None or deadline_s is None or not request.refuse_if_late:
            return None
        tokens = (*request.prompt, *request.samples[0].outputs)
        n_cached = 0
        if request.params.prompt_logprobs is None:
            found = self._holds.pool.longest_prefix(self._holds.names(tokens, request.salt))
            n_cached = min(len(found) * self._page_tokens, len(tokens) - 1)
        own, load = (n_cached, len(tokens) - n_cached), self._load(queued)
        room = self._budget
        pass_tokens = room.chunk_tokens if load.n_decoding else room.budget_tokens
        own_s = prompts_s(self._pace, own, IDLE, room.budget_tokens)
        ttft_s = prompts_s(self._pace, own, load, pass_tokens)
        if own_s is None or ttft_s is None:
            return None
        idle = not (load.ahead or load.n_decoding)
        within_s = deadline_s if idle else self._misjudged.within(deadline_s, now)
        refused = too_late(own_s, ttft_s, deadline_s, within_s)
        if refused is None:
            self._remember((request.transfer, request.attempt), now, ttft_s)
        return refused

    def _remember(self, key: Key, now: float, predicted_s: float) -> None:
        self._predicted[key] = (now, predicted_s)
        if len(self._predicted) > REMEMBERED:
            del self._predicted[next(iter(self._predicted))]

    def came(self, transfer: Transfer, now: float) -> None:
        """Its first token is drawn."""
        since, predicted_s = self._predicted.pop(transfer.key, (0.0, 0.0))
        if since and transfer.request.deadline_s:
            self._misjudged.learn(
                predicted_s=predicted_s,
                took_s=now - since,
                owed_s=transfer.request.deadline_s,
                now=now,
            )

    def _load(self, queued: Iterable[Transfer]) -> Load:
        active = self._holds.active
        decoding = [sample for sample in active if sample.gap == 1]
        ahead = [(s.n_tokens - s.gap, s.gap) for s in active if s.gap > 1]
        ahead += [(0, sample.n_tokens) for sample in self._holds.waiting]
        ahead += [(0, one.n_tokens) for one in queued if one.request.prefill is None]
        return Load(ahead, len(decoding), sum(sample.n_tokens for sample in decoding))
