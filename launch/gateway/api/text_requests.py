"""What clients send to have texts made tokens, and tokens texts; nothing is generated.

Must say nothing of how either is done.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from launch.gateway.api.prompts import MIN_TEXT_CHARS, TEXT_CHARS_PER_TOKEN
from launch.gateway.api.requests import (
    OWN_TEMPLATE,
    TEMPLATE_OPTIONS,
    ModelName,
    TemplateText,
    TokenId,
)
from launch.gateway.api.tool_bodies import MAX_TOOLS, ToolBody

_LENGTH = (
    f"at most {MIN_TEXT_CHARS} characters, or {TEXT_CHARS_PER_TOKEN} for each token of the "
    "model's context"
)


class TokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /tokenize: of a prompt, or of messages as a chat has them."""

    model: Annotated[ModelName | None, Meta(description="the served model's name")] = None
    prompt: Annotated[str | None, Meta(description=f"a text; {_LENGTH}")] = None
    messages: Annotated[
        list[dict[str, Any]] | None,
        Meta(description="a conversation, as chats take it; in place of prompt"),
    ] = None
    add_special_tokens: Annotated[
        bool | None,
        Meta(
            description="those that the model wants around a prompt [true; of messages false: "
            "the chat template has them]"
        ),
    ] = None
    return_token_strs: Annotated[bool | None, Meta(description="each token's text, too")] = None
    add_generation_prompt: Annotated[
        bool | None,
        Meta(description="begin the assistant's turn [unless the final message is continued]"),
    ] = None
    continue_final_message: Annotated[
        bool, Meta(description="nothing comes behind the last message's text")
    ] = False
    chat_template: Annotated[TemplateText | None, OWN_TEMPLATE] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, TEMPLATE_OPTIONS] = None
    tools: Annotated[
        Annotated[list[ToolBody], Meta(max_length=MAX_TOOLS)] | None,
        Meta(description="functions that the chat template tells the model of"),
    ] = None


class DetokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /detokenize"""

    model: Annotated[ModelName | None, Meta(description="the served model's name")] = None
    tokens: list[TokenId]
