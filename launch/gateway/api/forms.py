"""An answer in the form that its endpoint promises: whole, or event by event."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from msgspec import UNSET, UnsetType

from common.params import TokenLogprob
from launch.gateway.api.answer import Piece, Scored, Usage
from launch.gateway.api.prepare import Prepared
from launch.gateway.api.responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatTokenLogprob,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    PromptTokensDetails,
    TopLogprob,
    UsageBody,
    encode,
)
from launch.gateway.text.tokenizer import Tokenizer


@dataclass(slots=True)
class Gathered:
    """One choice of an answer that is not streamed."""

    text: list[str] = field(default_factory=list[str])
    tokens: list[int] = field(default_factory=list[int])
    scored: list[Scored] = field(default_factory=list[Scored])
    finish: str | None = None
    stop_reason: str | int | None = None

    def add(self, piece: Piece) -> None:
        self.text.append(piece.text)
        self.tokens += piece.tokens
        self.scored += piece.scored
        self.finish, self.stop_reason = piece.finish, piece.stop_reason


class Form(Protocol):
    """How an endpoint says it. One an answer."""

    id_prefix: str

    def __init__(
        self, answer_id: str, model: str, tokenizer: Tokenizer, prepared: Prepared
    ) -> None: ...

    def opening(self, n_choices: int) -> bytes:
        """Events before any text."""
        ...

    def event(self, piece: Piece) -> bytes: ...

    def last(self, usage: Usage) -> bytes:
        """The event that carries the usage."""
        ...

    def whole(self, choices: Sequence[Gathered], usage: Usage) -> bytes: ...


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


class CompletionForm:
    """/v1/completions"""

    id_prefix = "cmpl"

    def __init__(
        self, answer_id: str, model: str, tokenizer: Tokenizer, prepared: Prepared
    ) -> None:
        self._id = answer_id
        self._created = int(time.time())
        self._model = model
        self._tokenizer = tokenizer
        self._logprobs = prepared.logprobs
        self._no_usage: UnsetType | None = None if prepared.include_usage else UNSET
        self._prompts = prepared.returned_prompts
        self._begun: set[int] = set()

    def opening(self, n_choices: int) -> bytes:  # noqa: ARG002
        return b""

    def event(self, piece: Piece) -> bytes:
        choice = CompletionChoice(
            index=piece.choice,
            text=piece.text,
            logprobs=self._scores(piece.scored),
            finish_reason=piece.finish,
            stop_reason=piece.stop_reason,
            token_ids=list(piece.tokens) if self._prompts else UNSET,
        )
        if self._prompts and piece.choice not in self._begun:
            self._begun.add(piece.choice)
            choice.prompt_token_ids = list(self._prompts[piece.choice])
        return sse(encode(self._body([choice], self._no_usage)))

    def last(self, usage: Usage) -> bytes:
        return sse(encode(self._body([], usage_body(usage))))

    def whole(self, choices: Sequence[Gathered], usage: Usage) -> bytes:
        made = [
            CompletionChoice(
                index=index,
                text="".join(choice.text),
                logprobs=self._scores(choice.scored),
                finish_reason=choice.finish,
                stop_reason=choice.stop_reason,
                token_ids=choice.tokens if self._prompts else UNSET,
                prompt_token_ids=list(self._prompts[index]) if self._prompts else UNSET,
            )
            for index, choice in enumerate(choices)
        ]
        return encode(self._body(made, usage_body(usage)))

    def _body(
        self, choices: list[CompletionChoice], usage: UsageBody | UnsetType | None
    ) -> Completion:
        return Completion(
            id=self._id, created=self._created, model=self._model, choices=choices, usage=usage
        )

    def _scores(self, scored: Sequence[Scored]) -> CompletionLogprobs | None:
        if not self._logprobs:
            return None
        text_of = self._tokenizer.text_of
        return CompletionLogprobs(
            tokens=[text_of(s.token) for s in scored],
            token_logprobs=[None if s.logprob is None else s.logprob.logprob for s in scored],
            top_logprobs=[self._top(s.logprob) for s in scored],
            text_offset=[s.offset for s in scored],
        )

    def _top(self, logprob: TokenLogprob | None) -> dict[str, float] | None:
        """The alternatives, and the token itself, as OpenAI has it."""
        if logprob is None:
            return None
        pairs = [*zip(logprob.top_tokens, logprob.top_logprobs, strict=True)]
        if logprob.token not in logprob.top_tokens:
            pairs.append((logprob.token, logprob.logprob))
        return {self._tokenizer.text_of(token): value for token, value in pairs}


class ChatForm:
    """/v1/chat/completions"""

    id_prefix = "chatcmpl"

    def __init__(
        self, answer_id: str, model: str, tokenizer: Tokenizer, prepared: Prepared
    ) -> None:
        self._id = answer_id
        self._created = int(time.time())
        self._model = model
        self._tokenizer = tokenizer
        self._logprobs = prepared.logprobs
        self._no_usage: UnsetType | None = None if prepared.include_usage else UNSET
        self._prompts = prepared.returned_prompts

    def opening(self, n_choices: int) -> bytes:
        role = ChatDelta(role="assistant", content="")
        chunks = [self._chunk([ChatChunkChoice(index=n, delta=role)]) for n in range(n_choices)]
        chunks[0].prompt_token_ids = self._prompt_ids()
        return b"".join(sse(encode(chunk)) for chunk in chunks)

    def event(self, piece: Piece) -> bytes:
        choice = ChatChunkChoice(
            index=piece.choice,
            delta=ChatDelta(content=piece.text) if piece.text else ChatDelta(),
            logprobs=self._scores(piece.scored) if piece.scored else None,
            finish_reason=piece.finish,
            stop_reason=UNSET if piece.finish is None else piece.stop_reason,
            token_ids=list(piece.tokens) if self._prompts else UNSET,
        )
        return sse(encode(self._chunk([choice])))

    def last(self, usage: Usage) -> bytes:
        chunk = self._chunk([])
        chunk.usage = usage_body(usage)
        return sse(encode(chunk))

    def whole(self, choices: Sequence[Gathered], usage: Usage) -> bytes:
        made = [
            ChatChoice(
                index=index,
                message=ChatMessage(content="".join(choice.text)),
                logprobs=self._scores(choice.scored) if self._logprobs else None,
                finish_reason=choice.finish,
                stop_reason=choice.stop_reason,
                token_ids=choice.tokens if self._prompts else UNSET,
            )
            for index, choice in enumerate(choices)
        ]
        body = ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=made,
            usage=usage_body(usage),
            prompt_token_ids=self._prompt_ids(),
        )
        return encode(body)

    def _chunk(self, choices: list[ChatChunkChoice]) -> ChatChunk:
        return ChatChunk(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=self._no_usage,
        )

    def _prompt_ids(self) -> list[int] | UnsetType:
        return list(self._prompts[0]) if self._prompts else UNSET

    def _scores(self, scored: Sequence[Scored]) -> ChatLogprobs:
        return ChatLogprobs(content=[self._score(s.logprob) for s in scored if s.logprob])

    def _score(self, logprob: TokenLogprob) -> ChatTokenLogprob:
        text_of, bytes_of = self._tokenizer.text_of, self._tokenizer.bytes_of
        return ChatTokenLogprob(
            token=text_of(logprob.token),
            logprob=logprob.logprob,
            bytes=list(bytes_of(logprob.token)),
            top_logprobs=[
                TopLogprob(token=text_of(token), logprob=value, bytes=list(bytes_of(token)))
                for token, value in zip(logprob.top_tokens, logprob.top_logprobs, strict=True)
            ],
        )
