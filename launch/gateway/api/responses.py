"""What clients get: the bodies of answers and of errors, as OpenAI's types name them."""

from typing import Any

import msgspec


class PromptTokensDetails(msgspec.Struct, kw_only=True):
    """Part of `usage`."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, kw_only=True):
    """Part of `usage`, where thoughts are told apart."""

    reasoning_tokens: int


class UsageBody(msgspec.Struct, kw_only=True):
    """`usage`"""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None  # None: while it is being streamed
    completion_tokens_details: CompletionTokensDetails | msgspec.UnsetType = msgspec.UNSET


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    """`choices[].logprobs` of completions; one entry a token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(msgspec.Struct, kw_only=True):
    """One of the tokens that could stand at a place of the prompt, as vLLM tells it."""

    logprob: float
    rank: int  # 1: the most likely
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""A token of the prompt each: its own and the likeliest, by token id; None for the first."""


class CompletionChoice(msgspec.Struct, kw_only=True):
    """`choices[]` of completions, whole or streamed."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET  # of a stream: once
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET


class Completion(msgspec.Struct, kw_only=True):
    """POST /v1/completions; each event of a stream has the same form."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageBody | msgspec.UnsetType | None = msgspec.UNSET


class TopLogprob(msgspec.Struct, kw_only=True):
    """An alternative to a token of a chat."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(msgspec.Struct, kw_only=True):
    """A token of a chat."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, kw_only=True):
    """`choices[].logprobs` of chats."""

    content: list[ChatTokenLogprob]
    refusal: list[ChatTokenLogprob] | None = None


class CalledFunction(msgspec.Struct, kw_only=True):
    """`tool_calls[].function`. In a stream only the first of a call's parts has its name."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    arguments: str  # JSON


class ToolCall(msgspec.Struct, kw_only=True):
    """`tool_calls[]`, whole (without `index`) or a part of one that is streamed."""

    index: int | msgspec.UnsetType = msgspec.UNSET
    id: str | msgspec.UnsetType = msgspec.UNSET
    type: str | msgspec.UnsetType = msgspec.UNSET
    function: CalledFunction


class ChatMessage(msgspec.Struct, kw_only=True):
    """`choices[].message`"""

    role: str = "assistant"
    content: str | None
    refusal: str | None = None
    reasoning: str | msgspec.UnsetType | None = msgspec.UNSET  # with --reasoning-parser
    reasoning_content: str | msgspec.UnsetType | None = msgspec.UNSET  # its older name
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET


class ChatDelta(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`choices[].delta` of a streamed chat."""

    role: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    content: str | None = None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(msgspec.Struct, kw_only=True):
    """`choices[]` of a chat."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    """`choices[]` of an event of a streamed chat."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | msgspec.UnsetType | None = msgspec.UNSET
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatCompletion(msgspec.Struct, kw_only=True):
    """POST /v1/chat/completions"""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBody
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET


class ChatChunk(msgspec.Struct, kw_only=True):
    """An event of a streamed chat."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: UsageBody | msgspec.UnsetType | None = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET  # with the first event


class ModelPermission(msgspec.Struct, kw_only=True):
    """`data[].permission[]` of GET /v1/models, the same for every model: as vLLM tells it"""

    id: str
    object: str = "model_permission"
    created: int
    allow_create_engine: bool = False
    allow_sampling: bool = True
    allow_logprobs: bool = True
    allow_search_indices: bool = False
    allow_view: bool = True
    allow_fine_tuning: bool = False
    organization: str = "*"
    group: str | None = None
    is_blocking: bool = False


class ModelCard(msgspec.Struct, kw_only=True):
    """`data[]` of GET /v1/models"""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "baton"
    root: str  # where its files are
    parent: str | None = None
    max_model_len: int | None
    permission: list[ModelPermission]


class ModelList(msgspec.Struct, kw_only=True):
    """GET /v1/models"""

    object: str = "list"
    data: list[ModelCard]


class Tokenized(msgspec.Struct, kw_only=True):
    """POST /tokenize"""

    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenized(msgspec.Struct, kw_only=True):
    """POST /detokenize"""

    prompt: str


class ErrorDetail(msgspec.Struct, kw_only=True):
    """`error`"""

    message: str
    type: str
    param: str | None = None
    code: str | int | None = None


class ErrorBody(msgspec.Struct, kw_only=True):
    """Every error, also within a stream."""

    error: ErrorDetail


def encode(body: Any) -> bytes:  # noqa: ANN401 - any of the above
    return _encoder.encode(body)


_encoder = msgspec.json.Encoder()
