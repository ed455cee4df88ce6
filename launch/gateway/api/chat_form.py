"""An answer as /v1/chat/completions promises it."""

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from common.text.tokenizer import Tokenizer
from launch.gateway.api.answer import Piece, Scored, Usage
from launch.gateway.api.forms import (
    ChoicesForm,
    Gathered,
    chat_logprobs,
    prompt_logprobs,
    sse,
    usage_body,
)
from launch.gateway.api.prepare import Prepared
from launch.gateway.api.reading import Reading
from launch.gateway.api.responses import (
    CalledFunction,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    CompletionTokensDetails,
    ToolCall,
    UsageBody,
    encode,
)
from launch.gateway.tools.reader import CallPart, joined


class ChatForm(ChoicesForm[ChatChunkChoice]):
    """/v1/chat/completions"""

    id_prefix = "chatcmpl"

    def __init__(
        self, answer_id: str, model: str, tokenizer: Tokenizer, prepared: Prepared
    ) -> None:
        super().__init__(answer_id, model, tokenizer, prepared)
        self._calling = prepared.calling
        self._tells_thoughts = prepared.thinks is not None and prepared.tells_thoughts
        self._reading = Reading(prepared)
        self._tells_text_alone &= self._reading.is_plain
        self._call_ids: dict[tuple[int, int], str] = {}  # by choice and call

    def opening(self, n_choices: int) -> bytes:
        role = ChatDelta(role="assistant", content="")
        chunks = [
            self._chunk([ChatChunkChoice(index=n, delta=role)], self._usages.after(Piece(n, "")))
            for n in range(n_choices)
        ]
        chunks[0].prompt_token_ids = self._prompt_ids()
        return b"".join(sse(encode(chunk)) for chunk in chunks)

    def _event(self, piece: Piece) -> bytes:
        said = self._reading.read(piece)
        thought = said.reasoning if self._tells_thoughts else ""
        told = said.text or said.calls or thought
        if piece.text and not (told or piece.scored or piece.tokens or piece.finish):
            return b""  # it may become a call
        choice = ChatChunkChoice(
            index=piece.choice,
            delta=ChatDelta(
                reasoning=thought or None,
                reasoning_content=thought or None,
                content=said.text or (None if told or piece.finish else ""),
                tool_calls=[self._call(piece.choice, part) for part in said.calls] or None,
            ),
            logprobs=self._scores(piece.scored) if piece.scored else None,
            finish_reason=self._finish(piece.choice, piece.finish),
            stop_reason=UNSET if piece.finish is None else piece.stop_reason,
            token_ids=list(piece.tokens) if self._prompts else UNSET,
        )
        return sse(encode(self._chunk([choice], self._usages.after(piece))))

    def whole(self, choices: Sequence[Gathered], usage: Usage) -> bytes:
        made = [self._choice(index, choice) for index, choice in enumerate(choices)]
        body = ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=made,
            usage=self._usage(usage),
            prompt_token_ids=self._prompt_ids(),
            prompt_logprobs=prompt_logprobs(choices[0], self._prompt_logprobs, self._tokenizer),
        )
        return encode(body)

    def _choice(self, index: int, choice: Gathered) -> ChatChoice:
        said = self._reading.read_all(choice.pieces)
        message = ChatMessage(content=said.text)
        if self._tells_thoughts:
            message.reasoning = message.reasoning_content = said.reasoning or None
        if said.calls or said.reasoning:
            message.content = said.text or None
        if said.calls:
            message.tool_calls = [self._call(index, part) for part in joined(said.calls)]
            for call in message.tool_calls:
                call.index = UNSET
        return ChatChoice(
            index=index,
            message=message,
            logprobs=None if self._logprobs is None else self._scores(choice.scored),
            finish_reason=self._finish(index, choice.finish),
            stop_reason=choice.stop_reason,
            token_ids=choice.tokens if self._prompts else UNSET,
        )

    # --- calls -------------------------------------------------------------------------------

    def _call(self, choice: int, part: CallPart) -> ToolCall:
        """As an event tells it: its name and id once, its arguments as they come."""
        call = ToolCall(index=part.index, function=CalledFunction(arguments=part.arguments))
        if part.name is not None:
            assert self._calling is not None
            call.id = self._call_ids[choice, part.index] = self._calling.new_id()
            call.type = "function"
            call.function.name = part.name
        return call

    def _finish(self, choice: int, finish: str | None) -> str | None:
        called = any(made == choice for made, _ in self._call_ids)
        ends_as_call = self._calling is not None and self._calling.ends_as_call
        return "tool_calls" if called and ends_as_call and finish == "stop" else finish

    # --- parts -------------------------------------------------------------------------------

    def _usage(self, usage: Usage) -> UsageBody:
        body, n_thought = usage_body(usage), self._reading.reasoning_tokens
        if n_thought is not None:
            body.completion_tokens_details = CompletionTokensDetails(reasoning_tokens=n_thought)
        return body

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
        return ChatLogprobs(content=chat_logprobs(scored, self._tokenizer, self._name_of))
