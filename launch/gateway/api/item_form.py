"""An answer as /v1/responses promises it."""

import time
from collections.abc import Sequence

from common.text.tokenizer import Tokenizer
from launch.gateway.api.answer import Piece, Usage
from launch.gateway.api.forms import Form, Gathered, chat_logprobs
from launch.gateway.api.item_bodies import (
    Completed,
    Created,
    Error,
    Event,
    Failed,
    Incomplete,
    IncompleteDetails,
    InProgress,
    InputTokensDetails,
    ItemAnswer,
    ItemError,
    ItemUsage,
    OutputTokensDetails,
    Status,
)
from launch.gateway.api.item_output import Output
from launch.gateway.api.item_request import TextFormat, TextOptions
from launch.gateway.api.prepare import Prepared
from launch.gateway.api.reading import Reading
from launch.gateway.api.responses import ErrorDetail, encode


class ItemForm(Form):
    """/v1/responses"""

    id_prefix = "resp"
    done = b""  # the last event says so

    def __init__(
        self, answer_id: str, model: str, tokenizer: Tokenizer, prepared: Prepared
    ) -> None:
        super().__init__(answer_id, model, tokenizer, prepared)
        assert prepared.items is not None
        self._asked = prepared.items
        self._params = prepared.prompts[0].params
        self._reading = Reading(prepared)
        calling = prepared.calling
        self._output = Output(lambda: "" if calling is None else calling.new_id())
        self._complete = False
        self._opening = b""  # that nobody was told yet
        self._n_events = 0

    def opening(self, n_choices: int) -> bytes:  # noqa: ARG002
        answer = self._answer("in_progress")
        self._opening = self._tell([Created(response=answer), InProgress(response=answer)])
        return self._opening

    def event(self, piece: Piece) -> bytes:
        self._opening = b""
        return self._tell(self._take(piece))

    def last(self, usage: Usage) -> bytes:
        answer = self._ended(usage)
        whole = Completed(response=answer) if self._complete else Incomplete(response=answer)
        return self._tell([whole])

    def broken(self, error: ErrorDetail) -> bytes:
        told = Error(code=str(error.code), message=error.message, param=error.param)
        self._output.close("incomplete")
        answer = self._answer("failed")
        code = "rate_limit_exceeded" if error.code == 429 else "server_error"  # as OpenAI has them
        answer.error = ItemError(code=code, message=error.message)
        return self._opening + self._tell([told, Failed(response=answer)])

    def whole(self, choices: Sequence[Gathered], usage: Usage) -> bytes:
        for piece in choices[0].pieces:
            self._take(piece)
        return encode(self._ended(usage))

    # --- parts -------------------------------------------------------------------------------

    def _take(self, piece: Piece) -> list[Event]:
        scores = chat_logprobs(piece.scored, self._tokenizer, self._name_of)
        events = self._output.take(self._reading.read(piece), scores)
        if piece.finish is not None:
            self._complete = piece.finish == "stop"
            events += self._output.end(complete=self._complete)
        return events

    def _tell(self, events: Sequence[Event]) -> bytes:
        return b"".join(map(self._sse, events))

    def _sse(self, event: Event) -> bytes:
        event.sequence_number = self._n_events
        self._n_events += 1
        name = str(event.__struct_config__.tag).encode()
        return b"event: " + name + b"\ndata: " + encode(event) + b"\n\n"

    def _ended(self, usage: Usage) -> ItemAnswer:
        answer = self._answer("completed" if self._complete else "incomplete")
        if self._complete:
            answer.completed_at = int(time.time())
        else:
            answer.incomplete_details = IncompleteDetails(reason="max_output_tokens")
        answer.usage = ItemUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=usage.cached_tokens),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputTokensDetails(
                reasoning_tokens=self._reading.reasoning_tokens or 0
            ),
            total_tokens=usage.prompt_tokens + usage.completion_tokens,
        )
        return answer

    def _answer(self, status: Status) -> ItemAnswer:
        asked = self._asked
        return ItemAnswer(
            id=self._id,
            created_at=self._created,
            status=status,
            model=self._model,
            output=self._output.items,
            instructions=asked.instructions,
            max_output_tokens=asked.max_output_tokens,
            temperature=self._params.temperature,
            top_p=self._params.top_p,
            top_logprobs=asked.top_logprobs or 0,
            text=_text(asked.text),
            tools=asked.tools or [],
            tool_choice=asked.tool_choice or "auto",
            parallel_tool_calls=asked.parallel_tool_calls is not False,
            reasoning=asked.reasoning,
            metadata=asked.metadata or {},
            user=asked.user,
            safety_identifier=asked.safety_identifier,
            prompt_cache_key=asked.prompt_cache_key,
        )


def _text(asked: TextOptions | None) -> TextOptions:
    asked = asked or TextOptions()
    return TextOptions(format=asked.format or TextFormat(type="text"), verbosity=asked.verbosity)
