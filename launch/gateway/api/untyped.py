"""What types cannot say of bodies, as JSON schema: kinds of parts and items, and what needs what.

Must allow nothing that is refused, as far as a schema can tell.
"""

from collections.abc import Sequence
from typing import Any

from launch.gateway.api.form_bodies import OF_TAGS, StructuredOutputs
from launch.gateway.api.item_conversation import TEXTS
from launch.gateway.api.requests import MAX_CHOICES, MAX_INT, SERVED

_TOKEN_IDS = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": MAX_INT, SERVED: "token_id"},
    "minItems": 1,
}
_PROMPT_TEXT = {"type": "string", "minLength": 1}
_MANY = {"type": "array", "minItems": 1, "maxItems": MAX_CHOICES}
_PROMPT = {
    "anyOf": [
        _PROMPT_TEXT,
        {**_MANY, "items": _PROMPT_TEXT},
        _TOKEN_IDS,
        {**_MANY, "items": _TOKEN_IDS},
    ]
}
_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_OBJECT_TEXT = {
    "type": "string",
    "description": "JSON of an object, or nothing",
    "pattern": r"^(\s*\{[\s\S]*\}\s*)?$",
}
_CALL = {
    "type": "object",
    "properties": {
        "id": {"type": ["string", "null"]},
        "function": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "arguments": {"anyOf": [{"type": "object"}, _OBJECT_TEXT]},
            },
            "required": ["name", "arguments"],
        },
    },
    "required": ["function"],
}
_ROLE = {"type": "string", "minLength": 1}
_CALLS = {"type": "array", "items": _CALL}
_MESSAGE = {
    "anyOf": [
        {
            "type": "object",
            "properties": {
                "role": _ROLE,
                "content": {
                    "anyOf": [
                        {"type": "string"},
                        {"type": "array", "items": {"anyOf": [_PART, {"type": "string"}]}},
                    ]
                },
                "tool_calls": {"anyOf": [_CALLS, {"type": "null"}]},
            },
            "required": ["role", "content"],
        },
        {
            "type": "object",
            "properties": {
                "role": _ROLE,
                "content": {"type": "null"},
                "tool_calls": {**_CALLS, "minItems": 1},
            },
            "required": ["role", "tool_calls"],
        },
        {
            "type": "object",
            "properties": {
                "role": _ROLE,
                "content": {"type": "null"},
                "function_call": {"type": "object", "minProperties": 1},
                "tool_calls": {"anyOf": [_CALLS, {"type": "null"}]},
            },
            "required": ["role", "function_call"],
        },
    ]
}
_MESSAGES = {"type": "array", "minItems": 1, "items": _MESSAGE}
_ITEM_PART = {
    "anyOf": [
        {
            "type": "object",
            "properties": {"type": {"enum": list(TEXTS)}, "text": {"type": "string"}},
            "required": ["type", "text"],
        },
        {
            "type": "object",
            "properties": {"type": {"const": "refusal"}, "refusal": {"type": "string"}},
            "required": ["type", "refusal"],
        },
    ]
}
_ITEM_PARTS = {"type": "array", "items": _ITEM_PART}
_ITEM_TEXT = {"anyOf": [{"type": "string"}, _ITEM_PARTS]}


def _item(kind: str, *required: str, **properties: object) -> dict[str, Any]:
    told = {"type": {"const": kind}, **properties}
    return {"type": "object", "properties": told, "required": list(required)}


_ITEM = {
    "anyOf": [
        _item(
            "message",
            "role",
            "content",
            role={"enum": ["user", "assistant", "system", "developer"]},
            content=_ITEM_TEXT,
        ),
        _item(
            "function_call",
            "type",
            "call_id",
            "name",
            call_id={"type": "string"},
            name={"type": "string"},
            arguments=_OBJECT_TEXT,
        ),
        _item(
            "function_call_output",
            "type",
            "call_id",
            "output",
            call_id={"type": "string"},
            output=_ITEM_TEXT,
        ),
        _item(
            "reasoning",
            "type",
            content={"anyOf": [_ITEM_PARTS, {"type": "null"}]},
            summary={"anyOf": [_ITEM_PARTS, {"type": "null"}]},
        ),
    ]
}
_ITEMS = {"type": "array", "minItems": 1, "items": _ITEM}
FIELDS: dict[str, dict[str, dict[str, Any]]] = {
    "CompletionRequest": {"prompt": _PROMPT},
    "ChatRequest": {"messages": _MESSAGES},
    "ItemRequest": {"input": {"anyOf": [{"type": "string"}, _ITEMS]}},
    "TokenizeRequest": {"messages": {"anyOf": [_MESSAGES, {"type": "null"}]}},
}
"""By type and field: in place of what the type says."""
_SCHEMA = {"anyOf": [{"type": "object"}, {"const": True}]}


def _one_of(names: Sequence[str]) -> dict[str, Any]:
    """Of an object that has one of these fields, and says something by it."""
    said = {"not": {"enum": [None, False]}}
    return {"oneOf": [{"properties": {name: said}, "required": [name]} for name in names]}


def _given(*names: str) -> dict[str, Any]:
    """Of an object that says something by each of these fields."""
    told = {"not": {"const": None}}
    return {"properties": dict.fromkeys(names, told), "required": list(names)}


OBJECTS: dict[str, dict[str, Any]] = {
    "ResponseFormat": {
        "allOf": [
            {
                "if": {"properties": {"type": {"const": "json_schema"}}},
                "then": {
                    "properties": {
                        "json_schema": {
                            "type": "object",
                            "properties": {"schema": _SCHEMA},
                            "required": ["schema"],
                        }
                    },
                    "required": ["json_schema"],
                },
            },
            {
                "if": {"properties": {"type": {"const": "structural_tag"}}},
                "then": {"oneOf": [_given("structures", "triggers"), _given("format")]},
                "else": {"properties": {name: {"type": "null"} for name in OF_TAGS}},
            },
        ]
    },
    "StructuredOutputs": _one_of(StructuredOutputs.__struct_fields__),
    "TokenizeRequest": _one_of(("prompt", "messages")),
}
"""By type: beside it."""
