"""A model without weights: a token is a hash of everything before it, so whoever reads a page too
early, too late or of another life draws another one. And what such a model answers, undisturbed.
"""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Flag, auto

import numpy as np

from common.params import FinishReason, SamplingParams, TokenLogprob
from launch.gateway.transfers import Generate, RequestId

VOCABULARY = 1000
END_TOKENS = tuple(range(0, VOCABULARY, 20))  # one draw in 20, where a request has them


def next_token(sequence: Iterable[int], sample: int) -> int:
    """The draw of one sample after `sequence`."""
    data = np.fromiter((*sequence, sample), np.int64).tobytes()
    return zlib.crc32(data) % VOCABULARY


def drawn_logprob(token: int) -> TokenLogprob:
    """Told with a drawn token, where asked for."""
    return TokenLogprob(token, -token / VOCABULARY, 1, (token,), (-token / VOCABULARY,))


def prompt_logprob(before: Iterable[int], token: int) -> TokenLogprob:
    """Of a prompt's token after those before it: also a hash of everything before."""
    return TokenLogprob(token, -next_token(before, -1) / VOCABULARY, 1, (), ())


@dataclass(frozen=True, slots=True)
class Answer:
    """One sample, whole."""

    tokens: list[int]
    finish: FinishReason | None
    logprobs: list[TokenLogprob]


def expected(request: Generate, sample: int) -> Answer:
    """What an undisturbed single process would answer."""
    params = request.params
    sequence = list(request.prompt)
    tokens: list[int] = []
    finish = FinishReason.LENGTH
    while len(tokens) < params.max_tokens:
        tokens.append(next_token(sequence, sample))
        sequence.append(tokens[-1])
        if tokens[-1] in params.end_token_ids:
            finish = FinishReason.STOP
            break
    logprobs = [] if params.logprobs is None else [drawn_logprob(token) for token in tokens]
    return Answer(tokens, finish, logprobs)


def expected_scores(request: Generate) -> tuple[TokenLogprob | None, ...] | None:
    """Of the prompt's tokens, where asked for."""
    if request.params.prompt_logprobs is None:
        return None
    prompt = request.prompt
    scores = [prompt_logprob(prompt[:at], prompt[at]) for at in range(1, len(prompt))]
    return (None, *scores)


class Wants(Flag):
    """What a request may have."""

    ENDS = auto()  # end tokens, beside a length
    LOGPROBS = auto()
    SCORES = auto()  # log-probabilities of the prompt's tokens


PLAIN = Wants(0)


def generate(
    name: str, prompt: Iterable[int], max_tokens: int, *, n: int = 1, wants: Wants = PLAIN
) -> Generate:
    """A request with defaults."""
    params = SamplingParams(
        max_tokens=max_tokens,
        seed=0,
        temperature=0.0,
        end_token_ids=END_TOKENS if Wants.ENDS in wants else (),
        logprobs=0 if Wants.LOGPROBS in wants else None,
        prompt_logprobs=0 if Wants.SCORES in wants else None,
    )
    return Generate(request=RequestId(name), prompt=tuple(prompt), n=n, params=params)
