"""What an answer must be, as OpenAI and vLLM say it, each field with its bounds."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from launch.gateway.api.support import IGNORED, SUPPORT, refused
from launch.gateway.api.tool_bodies import MAX_TOOLS

MAX_STOP_CHARS = 1000
MAX_TOKEN_RULES = 4096  # stop token ids, biased tokens
ANY_NUMBER = "a text may have any number of tags"
TagText = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARS)]


class JsonSchemaBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`response_format.json_schema`"""

    name: Annotated[str | None, IGNORED] = None
    description: Annotated[str | None, IGNORED] = None
    schema: Annotated[
        dict[str, Any] | bool | None, Meta(description="the JSON schema that the answer follows")
    ] = None
    strict: Annotated[
        bool | None,
        Meta(
            description="changes nothing: the schema always holds",
            extra_json_schema={SUPPORT: "ignored"},
        ),
    ] = None


class Structure(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`response_format.structures[]`"""

    begin: Annotated[TagText, Meta(description="begins with one of the triggers")]
    schema: Annotated[
        dict[str, Any] | bool, Meta(description="the JSON schema of what stands between")
    ]
    end: Annotated[str, Meta(max_length=MAX_STOP_CHARS)]


class JsonContent(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`response_format.format.tags[].content`"""

    type: Literal["json_schema"]
    json_schema: Annotated[dict[str, Any] | bool, Meta(description="a JSON schema")]


class Tag(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`response_format.format.tags[]`"""

    type: Literal["tag"] = "tag"
    begin: Annotated[TagText, Meta(description="begins with one of the triggers")]
    content: JsonContent
    end: Annotated[str, Meta(max_length=MAX_STOP_CHARS)]


class TriggeredTags(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`response_format.format`"""

    type: Literal["triggered_tags"]
    triggers: Annotated[list[TagText], Meta(min_length=1, max_length=MAX_TOOLS)]
    tags: Annotated[list[Tag], Meta(min_length=1, max_length=MAX_TOOLS)]
    at_least_one: Annotated[bool, refused(ANY_NUMBER, enum=[False])] = False
    stop_after_first: Annotated[bool, refused(ANY_NUMBER, enum=[False])] = False


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What an answer must be, as OpenAI says it, and vLLM."""

    type: Annotated[
        Literal["text", "json_object", "json_schema", "structural_tag"],
        Meta(
            description="json_schema needs json_schema.schema; structural_tag needs structures and "
            "triggers, or format"
        ),
    ]
    json_schema: JsonSchemaBody | None = None
    structures: Annotated[
        Annotated[list[Structure], Meta(min_length=1, max_length=MAX_TOOLS)] | None,
        Meta(description="of any text: parts that are held to schemas"),
    ] = None
    triggers: Annotated[
        Annotated[list[TagText], Meta(min_length=1, max_length=MAX_TOOLS)] | None,
        Meta(description="texts behind which one of the structures must go on"),
    ] = None
    format: Annotated[
        TriggeredTags | None, Meta(description="the same, as newer clients say it")
    ] = None


OF_TAGS = ("structures", "triggers", "format")
"""Fields of `ResponseFormat` that are for structural tags alone."""


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What an answer must be, as vLLM says it: one of these."""

    json: Annotated[
        dict[str, Any] | bool | str | None, Meta(description="a JSON schema, or its text")
    ] = None
    json_object: Annotated[bool | None, Meta(description="any JSON object")] = None
    regex: Annotated[
        str | None, Meta(description="a regular expression (Rust's) of the whole answer")
    ] = None
    choice: Annotated[
        Annotated[list[str], Meta(min_length=1, max_length=MAX_TOKEN_RULES)] | None,
        Meta(description="the answers that there are"),
    ] = None
    grammar: Annotated[str | None, Meta(description="a grammar in Lark's form, or in GBNF")] = None
    structural_tag: Annotated[
        str | None, Meta(description="a response_format of type structural_tag, as a text")
    ] = None
