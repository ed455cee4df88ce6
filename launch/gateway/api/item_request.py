"""What clients send to /v1/responses: a conversation as items, answered with items.

Nothing is kept from one request to the next: each brings all of its conversation. What OpenAI's
servers do beside that, with what they have stored or with tools of their own, is refused.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from common.errors import ClientError
from launch.gateway.api.decoding import shown
from launch.gateway.api.requests import Alternatives, Drawing, SomeTokens, TokenCount
from launch.gateway.api.support import IGNORED, SUPPORT, refused
from launch.gateway.api.tool_bodies import MAX_TOOLS, FunctionText

LOGPROBS = "message.output_text.logprobs"
MAX_INCLUDED = 32
_REASONS = {
    "store": "no answer is stored here; leave it out, and send the conversation with each request",
    "previous_response_id": "no answer is stored here; send the conversation in input",
    "conversation": "no conversation is stored here; send it in input",
    "background": "answers are given where they are asked for; leave it out, or stream",
    "prompt": "no prompts are stored here; send the text in input",
    "truncation": "nothing is left out of a conversation; shorten input, and leave it out",
    "context_management": "conversations are not compacted here; leave it out",
    "moderation": "nothing is moderated here; leave it out",
}
_MAY_BE: dict[str, object] = {"store": False, "background": False, "truncation": "disabled"}
_ALWAYS_STRICT = Meta(
    description="changes nothing: what is given holds", extra_json_schema={SUPPORT: "ignored"}
)


class ItemStreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Of a streamed answer."""

    include_obfuscation: Annotated[bool | None, IGNORED] = None


class TextFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """`text.format`"""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str | None, IGNORED] = None
    description: Annotated[str | None, IGNORED] = None
    schema: Annotated[
        dict[str, Any] | bool | None, Meta(description="a JSON schema, where the type says so")
    ] = None
    strict: Annotated[bool | None, _ALWAYS_STRICT] = None


class TextOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """`text`"""

    format: Annotated[TextFormat | None, Meta(description="what the answer must be")] = None
    verbosity: Annotated[str | None, IGNORED] = None


class FunctionTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`tools[]`"""

    type: Literal["function"]
    name: Annotated[FunctionText, Meta(description="told apart from the other tools' names")]
    description: Annotated[str | None, Meta(description="told to the model")] = None
    parameters: Annotated[
        dict[str, Any] | None, Meta(description="JSON schema of the arguments' object [any]")
    ] = None
    strict: Annotated[bool | None, _ALWAYS_STRICT] = None


class ChosenFunction(
    msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="function"
):
    """`tool_choice`: this one. Its arguments are held to its schema."""

    name: Annotated[str, Meta(description="one of the tools'")]


class AllowedFunction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`tool_choice.tools[]`"""

    type: Literal["function"]
    name: Annotated[str, Meta(description="one of the tools'")]


class AllowedTools(
    msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="allowed_tools"
):
    """`tool_choice`: as if there were only these."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedFunction], Meta(max_length=MAX_TOOLS)]


class ItemRequest(Drawing, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/responses"""

    input: Annotated[
        str | list[dict[str, Any]],
        Meta(description="what the user says, or all of the conversation, as items of text"),
    ]
    instructions: Annotated[str | None, Meta(description="what the system says first")] = None
    max_output_tokens: Annotated[
        SomeTokens | None,
        Meta(description="tokens of the answer, at most [the model's own, else what fits]"),
    ] = None
    top_logprobs: Annotated[
        Alternatives | None,
        Meta(description=f"alternatives told of each token; needs {LOGPROBS} in include [0]"),
    ] = None
    include: Annotated[
        Annotated[list[str], Meta(max_length=MAX_INCLUDED)] | None,
        Meta(description=f"{LOGPROBS}: tell each token's logprob; others change nothing"),
    ] = None
    text: Annotated[TextOptions | None, Meta(description="how the answer is written")] = None
    tools: Annotated[
        Annotated[list[FunctionTool], Meta(max_length=MAX_TOOLS)] | None,
        Meta(description="functions that the model may call"),
    ] = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | ChosenFunction | AllowedTools | None,
        Meta(description="required, or one by name: calls are held to their schemas [auto]"),
    ] = None
    parallel_tool_calls: Annotated[
        bool | None, Meta(description="false, where a call is required: no more than one [true]")
    ] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, Meta(description="what the model's chat template may ask for")
    ] = None
    stream_options: Annotated[ItemStreamOptions | None, Meta(description="needs stream")] = None
    store: Annotated[bool | None, refused(_REASONS["store"], enum=[None, False])] = None
    previous_response_id: Annotated[
        str | None, refused(_REASONS["previous_response_id"], type="null")
    ] = None
    conversation: Annotated[Any, refused(_REASONS["conversation"], type="null")] = None
    background: Annotated[bool | None, refused(_REASONS["background"], enum=[None, False])] = None
    prompt: Annotated[Any, refused(_REASONS["prompt"], type="null")] = None
    truncation: Annotated[
        Literal["auto", "disabled"] | None,
        refused(_REASONS["truncation"], enum=[None, "disabled"]),
    ] = None
    context_management: Annotated[Any, refused(_REASONS["context_management"], type="null")] = None
    moderation: Annotated[Any, refused(_REASONS["moderation"], type="null")] = None
    reasoning: Annotated[dict[str, Any] | None, IGNORED] = None
    access_programs: Annotated[Any, IGNORED] = None
    background_options: Annotated[Any, IGNORED] = None
    image: Annotated[Any, IGNORED] = None
    max_tool_calls: Annotated[TokenCount | None, IGNORED] = None
    prompt_cache_retention: Annotated[str | None, IGNORED] = None
    prompt_cache_options: Annotated[dict[str, Any] | None, IGNORED] = None


def refuse_unsupported(request: ItemRequest) -> None:
    """Raises ClientError."""
    for name, reason in _REASONS.items():
        value = getattr(request, name)
        if value is not None and (name not in _MAY_BE or value != _MAY_BE[name]):
            raise ClientError(f"{name} is {shown(value)}, but {reason}", param=name)
    if request.top_logprobs and LOGPROBS not in (request.include or ()):
        raise ClientError(f"top_logprobs needs {LOGPROBS} in include", param="top_logprobs")
