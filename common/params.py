"""How tokens are drawn and when they end: what sampling is told, and what it answers.

Travels inside messages (see `common.messages`). Must hold no behaviour.
"""

from enum import StrEnum, auto

import msgspec


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How tokens are drawn and when they end, resolved: no field is left to a default elsewhere.

    The draw is a function of (params, prompt, outputs, sample, position) alone.
    """

    max_tokens: int  # of output, >= 1
    seed: int  # 0 .. 2**63 - 1
    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0  # (0, 1]
    top_k: int = 0  # 0: all
    min_p: float = 0.0  # [0, 1]
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0  # 1: none
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0  # end and stop tokens are masked before this many outputs
    end_token_ids: tuple[int, ...] = ()  # the model's own; empty when the client ignores EOS
    stop_token_ids: tuple[int, ...] = ()  # the client's
    logprobs: int | None = None  # alternatives reported per output token; None: no logprobs
    prompt_logprobs: int | None = None  # the same for prompt tokens (none for the first)
    grammar: str = ""  # what the answer must be (`common.text.grammar`), and may be made of
    # (`common.text.token_rules`); "": anything


class FinishReason(StrEnum):
    """Why a sample ended, as far as workers can tell."""

    STOP = auto()  # an end token or a stop token
    LENGTH = auto()  # max_tokens, or the model's context


class TokenLogprob(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True, gc=False
):
    """Log-probability of one token under the raw logits (before temperature and penalties)."""

    token: int
    logprob: float
    rank: int  # 1: the most likely
    top_tokens: tuple[int, ...]  # most likely first, ties by id
    top_logprobs: tuple[float, ...]
