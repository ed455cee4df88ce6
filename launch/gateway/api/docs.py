"""The API's description, generated from the types that decode and encode it, and a page to read it.

What it says is accepted is accepted, and what it says is refused is refused, as far as JSON schema
can tell. The page's scripts come from an installed package: no internet is needed.
"""

from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import msgspec
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from swagger_ui_bundle import swagger_ui_path

from launch.gateway.api.errors import json_response
from launch.gateway.api.item_bodies import ItemAnswer
from launch.gateway.api.item_request import ItemRequest
from launch.gateway.api.requests import (
    MAX_CHOICES,
    MAX_INT,
    SERVED,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    StructuredOutputs,
    TokenizeRequest,
)
from launch.gateway.api.responses import (
    ChatCompletion,
    Completion,
    Detokenized,
    ErrorBody,
    ModelCard,
    ModelList,
    Tokenized,
    encode,
)

POSTS: dict[str, tuple[str, type, type]] = {
    "/v1/completions": ("Continue a prompt", CompletionRequest, Completion),
    "/v1/chat/completions": ("Answer a conversation", ChatRequest, ChatCompletion),
    "/v1/responses": ("Answer items", ItemRequest, ItemAnswer),
    "/tokenize": ("Token ids of a text", TokenizeRequest, Tokenized),
    "/detokenize": ("Text of token ids", DetokenizeRequest, Detokenized),
}
MODELS: dict[str, tuple[str, type]] = {
    "/v1/models": ("List models", ModelList),
    "/v1/models/{name}": ("One model", ModelCard),
}
GETS = {
    "/health": "The process is alive",
    "/ready": "Every pool can serve; 503 names those that cannot",
    "/ping": "The process is alive",
    "/version": "The server's version",
    "/status": "The pools, the last minute and the last requests, as a document",
    "/metrics": "Prometheus metrics",
}
COMMANDS = {"/reset_prefix_cache": "Forget the prefixes that were computed, everywhere"}
ERRORS = {
    "400": "The request is wrong; `param` names the field",
    "404": "There is no such model",
    "408": "The body did not come in time",
    "413": "The body is too long",
    "415": "The body is not JSON, or does not say so",
    "429": "Too much is asked at once, or what is owed cannot be kept; `retry-after` says when to "
    "come again",
    "431": "The request line and the headers are too long",
    "500": "A bug of the server's",
    "503": "No worker can answer now",
    "504": "The time that the request gave itself has passed",
}

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
_FIELDS: dict[str, dict[str, dict[str, Any]]] = {  # what types cannot say: in place of it
    "CompletionRequest": {"prompt": _PROMPT},
    "ChatRequest": {"messages": {"type": "array", "minItems": 1, "items": _MESSAGE}},
}
_SCHEMA = {"anyOf": [{"type": "object"}, {"const": True}]}
_OBJECTS: dict[str, dict[str, Any]] = {  # beside it
    "ResponseFormat": {
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
    "StructuredOutputs": {
        "oneOf": [
            {"properties": {name: {"not": {"enum": [None, False]}}}, "required": [name]}
            for name in StructuredOutputs.__struct_fields__
        ]
    },
}

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Baton API</title>
<link rel="stylesheet" href="docs/assets/swagger-ui.css">
<link rel="icon" href="docs/assets/favicon-32x32.png"></head>
<body><div id="ui"></div>
<script src="docs/assets/swagger-ui-bundle.js"></script>
<script>
SwaggerUIBundle({url: "openapi.json", dom_id: "#ui", deepLinking: true, validatorUrl: null});
</script>
</body></html>"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedLimits:
    """What bounds requests to one server, beside their types."""

    model: str  # its name in the API
    vocab_size: int
    max_logprobs: int

    def of(self, what: str) -> dict[str, Any]:
        """As JSON schema. `what`: as types name it (`requests.SERVED`)."""
        match what:
            case "model":
                return {"enum": [self.model]}
            case "token_id":
                return {"maximum": self.vocab_size - 1}
            case "logprobs":
                return {"maximum": self.max_logprobs}
            case _:
                raise ValueError(what)


def openapi(limits: ServedLimits | None = None) -> dict[str, Any]:
    """OpenAPI 3.1, of one server; None: of any."""
    types: list[type] = [kind for _, *pair in POSTS.values() for kind in pair]
    types += [kind for _, kind in MODELS.values()]
    types.append(ErrorBody)
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    by_type = dict(zip(types, schemas, strict=True))
    for name, fields in _FIELDS.items():
        properties = components[name]["properties"]
        for field, schema in fields.items():
            properties[field] = {"description": properties[field]["description"], **schema}
    for name, schema in _OBJECTS.items():
        components[name] |= schema

    def content(kind: type) -> dict[str, Any]:
        return {"application/json": {"schema": by_type[kind]}}

    def errors(*statuses: str) -> dict[str, Any]:
        return {
            status: {"description": ERRORS[status], "content": content(ErrorBody)}
            for status in statuses
        }

    paths: dict[str, Any] = {}
    for path, (summary, asked, given) in POSTS.items():
        answer = content(given)
        if path.startswith("/v1/"):
            answer["text/event-stream"] = {"schema": {"type": "string"}}
        paths[path] = {
            "post": {
                "summary": summary,
                "requestBody": {"required": True, "content": content(asked)},
                "responses": {
                    "200": {"description": "The answer", "content": answer},
                    **errors(*ERRORS),
                },
            }
        }
    for path, (summary, given) in MODELS.items():
        found = {"description": "What is served", "content": content(given)}
        answers = {"200": found, **errors("404", "431")}
        paths[path] = {"get": {"summary": summary, "responses": answers}}
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    paths["/v1/models/{name}"]["parameters"] = [name]
    for path, summary in GETS.items():
        paths[path] = {"get": {"summary": summary, "responses": _told(path) | errors("431")}}
    paths["/ping"]["post"] = paths["/ping"]["get"]
    done = {"200": {"description": "It is done"}} | errors("431", "503")
    paths |= {path: {"post": {"summary": s, "responses": done}} for path, s in COMMANDS.items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Baton", "version": version("baton-serving")},
        "paths": paths,
        "components": {"schemas": _bounded(components, limits)},
    }


def _told(path: str) -> dict[str, Any]:
    """What a GET that asks after the server's state answers."""
    if path == "/metrics":
        media = {"text/plain": {"schema": {"type": "string"}}}
    else:
        media = {"application/json": {"schema": {"type": "object"}}}
    told = {"200": {"description": "Yes", "content": media}}
    return told | ({"503": {"description": "No", "content": media}} if path == "/ready" else {})


def _bounded(schema: Any, limits: ServedLimits | None) -> Any:  # noqa: ANN401 - JSON schema
    """With the limits of the server in the place of what names them."""
    if isinstance(schema, list):
        return [_bounded(one, limits) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _bounded(value, limits) for key, value in schema.items() if key != SERVED}
    if limits is not None and SERVED in schema:
        made |= limits.of(schema[SERVED])
    return made


def docs_routes(limits: ServedLimits) -> list[BaseRoute]:
    """/docs and /openapi.json"""
    document = encode(openapi(limits))

    async def description(_: object) -> Response:
        return json_response(document)

    async def page(_: object) -> Response:
        return HTMLResponse(_PAGE)

    return [
        Route("/openapi.json", description),
        Route("/docs", page),
        Mount("/docs/assets", StaticFiles(directory=str(swagger_ui_path))),
    ]
