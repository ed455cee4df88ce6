"""What the forms of answers share, whichever endpoint promises them: whole, or event by event."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from common.params import TokenLogprob
from common.text.tokenizer import Tokenizer
from launch.gateway.api.answer import Piece, Scored, Usage
from launch.gateway.api.prepare import Prepared
from launch.gateway.api.responses import (
    ChatTokenLogprob,
    ErrorBody,
    ErrorDetail,
    PromptLogprob,
    PromptLogprobs,
    PromptTokensDetails,
    TopLogprob,
    UsageBody,
    encode,
)

_Choice = TypeVar("_Choice")
_BLANK = "(text)"


@dataclass(slots=True)
class Gathered:
    """One choice of an answer that is not streamed."""

    pieces: list[Piece] = field(default_factory=list[Piece])
    tokens: list[int] = field(default_factory=list[int])
    scored: list[Scored] = field(default_factory=list[Scored])
    prompt_scores: tuple[TokenLogprob | None, ...] = ()
    finish: str | None = None
    stop_reason: str | int | None = None

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def mean_logprob(self) -> float:
        """Of its own tokens, without those of an echo."""
        own = [s.logprob.logprob for p in self.pieces if p.n_tokens for s in p.scored if s.logprob]
        return sum(own) / max(1, len(own))

    def add(self, piece: Piece) -> None:
        self.pieces.append(piece)
        self.tokens += piece.tokens
        self.scored += piece.scored
        self.prompt_scores = self.prompt_scores or piece.prompt_scores
        self.finish, self.stop_reason = piece.finish, piece.stop_reason


def chosen(choices: Sequence[Gathered], prepared: Prepared) -> Sequence[Gathered]:
    """Of each prompt's samples those that the client gets: all, or the likeliest a token, the best
    one first."""
    n, n_told = prepared.n, prepared.n_told
    if n == n_told:
        return choices
    likeliest: list[Gathered] = []
    for at in range(0, len(choices), n):
        ranked = sorted(choices[at : at + n], key=lambda one: -one.mean_logprob)  # stable
        likeliest += ranked[:n_told]
    return likeliest


class Form(ABC):
    """How an endpoint says it. One an answer."""

    id_prefix: ClassVar[str]
    done: ClassVar[bytes] = b"data: [DONE]\n\n"  # behind the last event of a stream

    def __init__(
        self, answer_id: str, model: str, tokenizer: Tokenizer, prepared: Prepared
    ) -> None:
        self._id = answer_id
        self._created = int(time.time())
        self._model = model
        self._tokenizer = tokenizer
        self._logprobs = prepared.logprobs
        self._name_of = _numbered if prepared.tokens_as_ids else tokenizer.text_of

    @abstractmethod
    def opening(self, n_choices: int) -> bytes:
        """Events before any text."""

    @abstractmethod
    def event(self, piece: Piece) -> bytes: ...

    @abstractmethod
    def last(self, usage: Usage) -> bytes:
        """Events after all text, if any."""

    @abstractmethod
    def broken(self, error: ErrorDetail) -> bytes:
        """Events that say why there will be no more."""

    @abstractmethod
    def whole(self, choices: Sequence[Gathered], usage: Usage) -> bytes: ...


class Filled:
    """Events that differ in one text alone: encoded once, and filled in."""

    def __init__(self, event_of: Callable[[str], bytes]) -> None:
        """`event_of` a text: an event whose last such string it is."""
        self._before, _, self._after = event_of(_BLANK).rpartition(encode(_BLANK))

    def of(self, text: str) -> bytes:
        """To the byte what `event_of` makes."""
        return self._before + encode(text) + self._after


class ChoicesForm(Form, Generic[_Choice]):
    """Of endpoints whose answers are choices; `_Choice`: of an event."""

    def __init__(
        self, answer_id: str, model: str, tokenizer: Tokenizer, prepared: Prepared
    ) -> None:
        super().__init__(answer_id, model, tokenizer, prepared)
        self._prompt_logprobs = prepared.prompt_logprobs
        self._usages = Usages(prepared)
        self._include_usage = prepared.include_usage
        self._prompts = prepared.returned_prompts
        self._tells_text_alone = not (prepared.continuous_usage or self._prompts)
        self._filled: dict[int, Filled] = {}

    def event(self, piece: Piece) -> bytes:
        if piece.finish is not None or piece.scored or not self._tells_text_alone:
            return self._event(piece)
        filled = self._filled.get(piece.choice)
        if filled is None:
            filled = self._filled[piece.choice] = Filled(
                lambda text: self._event(Piece(piece.choice, text, n_tokens=1))
            )
        return filled.of(piece.text)

    @abstractmethod
    def _event(self, piece: Piece) -> bytes: ...

    def last(self, usage: Usage) -> bytes:
        """One that carries the usage, where it is asked for."""
        if not self._include_usage:
            return b""
        return sse(encode(self._chunk([], self._usage(usage))))

    def broken(self, error: ErrorDetail) -> bytes:
        return sse(encode(ErrorBody(error=error)))

    def _usage(self, usage: Usage) -> UsageBody:
        return usage_body(usage)

    @abstractmethod
    def _chunk(self, choices: list[_Choice], usage: UsageBody | UnsetType | None) -> msgspec.Struct:
        """The body of an event."""


def _numbered(token: int) -> str:
    """As vLLM writes it."""
    return f"token_id:{token}"


def sse(data: bytes) -> bytes:
    """One server-sent event."""
    return b"data: " + data + b"\n\n"


def usage_body(usage: Usage) -> UsageBody:
    return UsageBody(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=usage.cached_tokens),
    )


class Usages:
    """What an event of a stream says of it: nothing; null, where the last one will; or, with
    `continuous_usage_stats`, what its choice has used so far."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared
        self._said: UnsetType | None = None if prepared.include_usage else UNSET

    def after(self, piece: Piece) -> UsageBody | UnsetType | None:
        if not self._prepared.continuous_usage:
            return self._said
        n_prompt = len(self._prepared.prompts[piece.choice // self._prepared.n].ids)
        return UsageBody(
            prompt_tokens=n_prompt,
            completion_tokens=piece.n_tokens,
            total_tokens=n_prompt + piece.n_tokens,
        )


def chat_logprobs(
    scored: Sequence[Scored], tokenizer: Tokenizer, name_of: Callable[[int], str]
) -> list[ChatTokenLogprob]:
    """Of tokens that have one."""
    bytes_of = tokenizer.bytes_of
    return [
        ChatTokenLogprob(
            token=name_of(one.token),
            logprob=one.logprob,
            bytes=list(bytes_of(one.token)),
            top_logprobs=[
                TopLogprob(token=name_of(token), logprob=value, bytes=list(bytes_of(token)))
                for token, value in zip(one.top_tokens, one.top_logprobs, strict=True)
            ],
        )
        for one in (s.logprob for s in scored)
        if one is not None
    ]


def prompt_logprobs(
    choice: Gathered, n: int | None, tokenizer: Tokenizer
) -> PromptLogprobs | UnsetType:
    """Each token of the prompt with its n likeliest alternatives; UNSET: nobody asked."""
    if n is None:
        return UNSET

    def told(scored: TokenLogprob) -> dict[str, PromptLogprob]:
        rows = [(scored.token, scored.logprob, scored.rank)]
        tops = zip(scored.top_tokens[:n], scored.top_logprobs[:n], strict=True)
        rows += [(t, logprob, at) for at, (t, logprob) in enumerate(tops, 1) if t != scored.token]
        return {
            str(token): PromptLogprob(
                logprob=logprob, rank=rank, decoded_token=tokenizer.text_of(token)
            )
            for token, logprob, rank in rows
        }

    return [None if scored is None else told(scored) for scored in choice.prompt_scores]
