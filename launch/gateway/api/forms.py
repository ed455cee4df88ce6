"""An answer in the form that its endpoint promises: whole, or event by event."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from msgspec import UNSET, UnsetType

from common.params import TokenLogprob
from common.text.tokenizer import Tokenizer
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
    PromptLogprob,
    PromptLogprobs,
    PromptTokensDetails,
    TopLogprob,
    UsageBody,
    encode,
)


@dataclass(slots=True)
class Gathered:
    """One choice of an answer that is not streamed."""

    text: list[str] = field(default_factory=list[str])
    tokens: list[int] = field(default_factory=list[int])
    scored: list[Scored] = field(default_factory=list[Scored])
    prompt_scores: tuple[TokenLogprob | None, ...] = ()
    finish: str | None = None
    stop_reason: str | int | None = None

    def add(self, piece: Piece) -> None:
        self.text.append(piece.text)
        self.tokens += piece.tokens
        self.scored += piece.scored
        self.prompt_scores = self.prompt_scores or piece.prompt_scores
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


class _Usages:
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


def _prompt_logprobs(
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
        self._prompt_logprobs = prepared.prompt_logprobs
        self._usages = _Usages(prepared)
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
        return sse(encode(self._body([choice], self._usages.after(piece))))

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
                prompt_logprobs=_prompt_logprobs(choice, self._prompt_logprobs, self._tokenizer),
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
        if self._logprobs is None:
            return None
        text_of = self._tokenizer.text_of
        return CompletionLogprobs(
            tokens=[text_of(s.token) for s in scored],
            token_logprobs=[None if s.logprob is None else s.logprob.logprob for s in scored],
            top_logprobs=[self._top(s.logprob, self._logprobs) for s in scored],
            text_offset=[s.offset for s in scored],
        )

    def _top(self, logprob: TokenLogprob | None, n: int) -> dict[str, float] | None:
        """The n alternatives, and the token itself, as OpenAI has it."""
        if logprob is None:
            return None
        pairs = [*zip(logprob.top_tokens, logprob.top_logprobs, strict=True)][:n]
        if logprob.token not in logprob.top_tokens[:n]:
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
        self._prompt_logprobs = prepared.prompt_logprobs
        self._usages = _Usages(prepared)
        self._prompts = prepared.returned_prompts

    def opening(self, n_choices: int) -> bytes:
        role = ChatDelta(role="assistant", content="")
        chunks = [
            self._chunk([ChatChunkChoice(index=n, delta=role)], self._usages.after(Piece(n, "")))
            for n in range(n_choices)
        ]
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
        return sse(encode(self._chunk([choice], self._usages.after(piece))))

    def last(self, usage: Usage) -> bytes:
        return sse(encode(self._chunk([], usage_body(usage))))

    def whole(self, choices: Sequence[Gathered], usage: Usage) -> bytes:
        made = [
            ChatChoice(
                index=index,
                message=ChatMessage(content="".join(choice.text)),
                logprobs=None if self._logprobs is None else self._scores(choice.scored),
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
            prompt_logprobs=_prompt_logprobs(choices[0], self._prompt_logprobs, self._tokenizer),
        )
        return encode(body)

    def _chunk(
        self, choices: list[ChatChunkChoice], usage: UsageBody | UnsetType | None
    ) -> ChatChunk:
        return ChatChunk(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=usage,
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
