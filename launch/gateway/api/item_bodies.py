"""What clients of /v1/responses get: answers made of items, and the events of a stream of them, as
OpenAI's types name them.
"""

from typing import Any, Literal

import msgspec

from launch.gateway.api.item_request import (
    AllowedTools,
    ChosenFunction,
    FunctionTool,
    TextOptions,
)
from launch.gateway.api.responses import ChatTokenLogprob

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(msgspec.Struct, kw_only=True, tag_field="type", tag="output_text"):
    """A part of a message."""

    text: str
    annotations: list[Any] = []
    logprobs: list[ChatTokenLogprob] = []


class ReasoningText(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning_text"):
    """A part of what is thought."""

    text: str


class MessageItem(msgspec.Struct, kw_only=True, tag_field="type", tag="message"):
    """What is said."""

    id: str
    status: Status
    role: str = "assistant"
    content: list[OutputText]


class ReasoningItem(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning"):
    """What is thought before it, with --reasoning-parser."""

    id: str
    status: Status
    summary: list[Any] = []
    content: list[ReasoningText]


class CallItem(msgspec.Struct, kw_only=True, tag_field="type", tag="function_call"):
    """A call of one of the client's functions."""

    id: str
    status: Status
    call_id: str  # for its output to name
    name: str
    arguments: str  # JSON


Item = MessageItem | ReasoningItem | CallItem


class InputTokensDetails(msgspec.Struct, kw_only=True):
    """Part of `usage`."""

    cached_tokens: int
    cache_write_tokens: int = 0  # nobody is billed for these


class OutputTokensDetails(msgspec.Struct, kw_only=True):
    """Part of `usage`."""

    reasoning_tokens: int


class ItemUsage(msgspec.Struct, kw_only=True):
    """`usage`"""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(msgspec.Struct, kw_only=True):
    """`incomplete_details`"""

    reason: str


class ItemError(msgspec.Struct, kw_only=True):
    """`error`"""

    code: str
    message: str


class ItemAnswer(msgspec.Struct, kw_only=True):
    """POST /v1/responses"""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: Status
    model: str
    output: list[Item]
    usage: ItemUsage | None = None  # None: it is not complete
    error: ItemError | None = None
    incomplete_details: IncompleteDetails | None = None
    # As they were asked for.
    instructions: str | None
    max_output_tokens: int | None
    temperature: float
    top_p: float
    top_logprobs: int
    text: TextOptions
    tools: list[FunctionTool]
    tool_choice: str | ChosenFunction | AllowedTools
    parallel_tool_calls: bool
    reasoning: dict[str, Any] | None
    metadata: dict[str, Any]
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None
    # Always so.
    background: bool = False
    previous_response_id: str | None = None
    service_tier: str = "default"
    store: bool = False
    truncation: str = "disabled"


# --- events of a stream ----------------------------------------------------------------------


class Event(msgspec.Struct, kw_only=True, tag_field="type"):
    """Base of them all; each is named by its tag."""

    sequence_number: int = 0  # of its stream, ascending by 1


class Created(Event, kw_only=True, tag="response.created"):
    """The first."""

    response: ItemAnswer


class InProgress(Event, kw_only=True, tag="response.in_progress"):
    """The second."""

    response: ItemAnswer


class Completed(Event, kw_only=True, tag="response.completed"):
    """The last of an answer that is whole."""

    response: ItemAnswer


class Incomplete(Event, kw_only=True, tag="response.incomplete"):
    """The last of an answer that was cut off by a length."""

    response: ItemAnswer


class Failed(Event, kw_only=True, tag="response.failed"):
    """The last of an answer that broke; an `Error` comes before it."""

    response: ItemAnswer


class Error(Event, kw_only=True, tag="error"):
    """Why there will be no more."""

    code: str
    message: str
    param: str | None


class ItemAdded(Event, kw_only=True, tag="response.output_item.added"):
    """An item begins, empty."""

    output_index: int
    item: Item


class ItemDone(Event, kw_only=True, tag="response.output_item.done"):
    """It is whole."""

    output_index: int
    item: Item


class Inside(Event, kw_only=True):
    """Base of what happens within an item."""

    output_index: int
    item_id: str


class InsidePart(Inside, kw_only=True):
    """Base of what happens within a part of a message, or of what is thought: it has one."""

    content_index: int = 0


class PartAdded(InsidePart, kw_only=True, tag="response.content_part.added"):
    """A part begins, empty."""

    part: OutputText | ReasoningText


class PartDone(InsidePart, kw_only=True, tag="response.content_part.done"):
    """It is whole."""

    part: OutputText | ReasoningText


class TextDelta(InsidePart, kw_only=True, tag="response.output_text.delta"):
    """More is said."""

    delta: str
    logprobs: list[ChatTokenLogprob] = []


class TextDone(InsidePart, kw_only=True, tag="response.output_text.done"):
    """All that was said."""

    text: str
    logprobs: list[ChatTokenLogprob] = []


class ReasoningDelta(InsidePart, kw_only=True, tag="response.reasoning_text.delta"):
    """More is thought."""

    delta: str


class ReasoningDone(InsidePart, kw_only=True, tag="response.reasoning_text.done"):
    """All that was thought."""

    text: str


class ArgumentsDelta(Inside, kw_only=True, tag="response.function_call_arguments.delta"):
    """More of a call's arguments."""

    delta: str


class ArgumentsDone(Inside, kw_only=True, tag="response.function_call_arguments.done"):
    """All of them."""

    name: str
    arguments: str
