"""A virtual client: one request, and what has come back of it, judged as it comes (law 2)."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from bench.simulate.laws import require
from bench.simulate.model import (
    Answer,
    drawn_logprob,
    expected_scores,
    finish_at,
    hashed,
    next_token,
)
from common.errors import InvariantBroken
from common.params import FinishReason, TokenLogprob
from launch.gateway.events import Delta
from launch.gateway.transfers import Generate


@dataclass(eq=False)
class Client:
    """Every token is right, in order and once, and the end is where it must be."""

    request: Generate
    asked_at: float
    admitted_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    cached_tokens: int | None = None
    scores: tuple[TokenLogprob | None, ...] | None = None
    answers: dict[int, Answer] = field(default_factory=dict[int, Answer])
    stopped: set[int] = field(default_factory=set[int])  # samples
    error: Exception | None = None
    quitted: bool = False
    cut_off: bool = False  # its gateway has died
    _hashes: dict[int, int] = field(default_factory=dict[int, int])  # of prompt and outputs
    _n_ended: int = 0  # samples, by themselves or stopped

    @property
    def whole(self) -> bool:
        """Each sample has ended, or is wanted no more."""
        return self._n_ended == self.request.n

    @property
    def over(self) -> bool:
        """It has all it will get."""
        return self.whole or self.quitted or self.cut_off or self.error is not None

    def stop(self, sample: int) -> bool:
        """It wants no more of that sample. False: that has ended already."""
        if self.over or sample in self.stopped or self._finish(sample) is not None:
            return False
        self.stopped.add(sample)
        self._n_ended += 1
        return True

    def take(self, delta: Delta, now: float, attempts: Collection[int]) -> None:
        """`attempts`: who may have drawn its tokens."""
        require(not self.quitted, "a delta after the client has left")
        require(self.error is None, "a delta after an error")
        if not self.answers:
            self.first_token_at = now
            self.cached_tokens, self.scores = delta.cached_tokens, delta.prompt_logprobs
            require(self.cached_tokens is not None, "cached tokens are not told")
            require(self.scores == expected_scores(self.request), "other scores of the prompt")
        self.last_token_at = now
        answer = self.answers.setdefault(delta.sample, Answer([], None, []))
        if delta.index != len(answer.tokens) or answer.finish is not None:
            raise InvariantBroken(f"{delta}: {len(answer.tokens)} had, {answer.finish}")
        for token in delta.tokens:
            self._check_next(answer, delta.sample, token, attempts)
            answer.tokens.append(token)
        answer.logprobs.extend(delta.logprobs)
        self._check_end(answer, delta)
        self.answers[delta.sample] = replace(answer, finish=delta.finish)
        self._n_ended += delta.finish is not None

    def _finish(self, sample: int) -> FinishReason | None:
        return self.answers[sample].finish if sample in self.answers else None

    def _check_next(
        self, answer: Answer, sample: int, token: int, attempts: Collection[int]
    ) -> None:
        """It follows from the prompt and the outputs before it."""
        if sample not in self._hashes:
            self._hashes[sample] = hashed(self.request.prompt)
        before = self._hashes[sample]
        if all(token != next_token(before, sample, attempt) for attempt in attempts):
            where = f"{self.request.request}/{sample}[{len(answer.tokens)}]"
            raise InvariantBroken(f"{where}: {token} is the draw of none of {attempts}")
        self._hashes[sample] = hashed((token,), before)

    def _check_end(self, answer: Answer, delta: Delta) -> None:
        name, params = self.request.request, self.request.params
        n_before = len(answer.tokens) - len(delta.tokens)
        finish: FinishReason | None = None
        for n, token in enumerate(delta.tokens, n_before + 1):
            require(finish is None, f"{name}: goes on after its end")
            finish = finish_at(params, n, token)
        require(finish == delta.finish, f"{name}: finish {delta.finish}, not {finish}")
        wanted = [] if params.logprobs is None else list(map(drawn_logprob, answer.tokens))
        require(answer.logprobs == wanted, f"{name}: other log-probabilities")
