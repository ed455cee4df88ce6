"""A model without weights: a token is a hash of everything before it, so whoever reads a page too
early, too late or of another life draws another one. And what such a model answers, undisturbed.

Where attempts round differently (as they may in bf16), the hash takes in the attempt as well: an
answer that mixes two of them is then no answer of either.
"""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Flag, auto

import numpy as np
from numpy.typing import NDArray

from common.params import FinishReason, SamplingParams, TokenLogprob
from launch.gateway.transfers import Generate, RequestId

VOCABULARY = 1000
END_TOKENS = tuple(range(0, VOCABULARY, 20))  # one draw in 20, where a request has them
POISON = VOCABULARY  # no pass survives this token
SLOW_POISON = VOCABULARY + 1  # nor does one that decodes an answer to a prompt with this one
EXACT = 0  # the attempt of those that all round alike


def hashed(tokens: Iterable[int] | NDArray[np.int64], before: int = 0) -> int:
    """Of the tokens before these, whose hash is `before`, and these."""
    ids = tokens if isinstance(tokens, np.ndarray) else np.fromiter(tokens, np.int64)
    return zlib.crc32(ids.tobytes(), before)


def next_token(sequence_hash: int, sample: int, attempt: int = EXACT) -> int:
    """The draw of one sample after that sequence."""
    return hashed((sample, attempt), sequence_hash) % VOCABULARY


def drawn_logprob(token: int) -> TokenLogprob:
    """Told with a drawn token, where asked for."""
    return TokenLogprob(token, -token / VOCABULARY, 1, (token,), (-token / VOCABULARY,))


def prompt_logprob(before_hash: int, token: int) -> TokenLogprob:
    """Of a prompt's token after those before it: also a hash of everything before."""
    return TokenLogprob(token, -next_token(before_hash, -1) / VOCABULARY, 1, (), ())


@dataclass(frozen=True, slots=True)
class Answer:
    """One sample, whole."""

    tokens: list[int]
    finish: FinishReason | None
    logprobs: list[TokenLogprob]


def expected(request: Generate, sample: int) -> Answer:
    """What an undisturbed single process would answer."""
    sequence = hashed(request.prompt)
    tokens: list[int] = []
    finish = None
    while finish is None:
        tokens.append(next_token(sequence, sample))
        sequence = hashed(tokens[-1:], sequence)
        finish = finish_at(request.params, len(tokens), tokens[-1])
    logprobs = [] if request.params.logprobs is None else list(map(drawn_logprob, tokens))
    return Answer(tokens, finish, logprobs)


def finish_at(params: SamplingParams, n_outputs: int, token: int) -> FinishReason | None:
    """Whether the sample ends with this output, its `n_outputs`-th."""
    if token in params.end_token_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if n_outputs >= params.max_tokens else None


def expected_scores(request: Generate) -> tuple[TokenLogprob | None, ...] | None:
    """Of the prompt's tokens, where asked for."""
    if request.params.prompt_logprobs is None:
        return None
    scores: list[TokenLogprob | None] = [None]
    before = 0
    for previous, token in zip(request.prompt, request.prompt[1:], strict=False):
        before = hashed((previous,), before)
        scores.append(prompt_logprob(before, token))
    return tuple(scores)


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
