"""Tools as chats name them, and which of them a model is to call."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from launch.gateway.api.support import SUPPORT

MAX_TOOLS = 128
FunctionText = Annotated[str, Meta(extra_json_schema={"pattern": "^[a-zA-Z0-9_-]{1,64}$"})]


class FunctionBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`tools[].function`"""

    name: Annotated[FunctionText, Meta(description="told apart from the other tools' names")]
    description: Annotated[str | None, Meta(description="told to the model")] = None
    parameters: Annotated[
        dict[str, Any] | None, Meta(description="JSON schema of the arguments' object [any]")
    ] = None
    strict: Annotated[
        bool | None,
        Meta(
            description="changes nothing: see tool_choice", extra_json_schema={SUPPORT: "ignored"}
        ),
    ] = None


class ToolBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`tools[]`"""

    type: Literal["function"]
    function: FunctionBody


class FunctionName(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`tool_choice.function`"""

    name: Annotated[str, Meta(description="one of the tools'")]


class NamedTool(
    msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="function"
):
    """`tool_choice`: this one. Its arguments are held to its schema."""

    function: FunctionName


class AllowedTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`tool_choice.allowed_tools.tools[]`"""

    type: Literal["function"]
    function: FunctionName


class AllowedToolSet(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`tool_choice.allowed_tools`"""

    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], Meta(min_length=1, max_length=MAX_TOOLS)]


class AllowedToolChoice(
    msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="allowed_tools"
):
    """`tool_choice`: as if there were only these."""

    allowed_tools: AllowedToolSet
