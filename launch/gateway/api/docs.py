"""The API's description, generated from the types that decode and encode it, and a page to read it.

What it says is accepted is accepted, and what it says is refused is refused, as far as JSON schema
can tell. The page's scripts lie in `swagger_ui/`, Swagger UI's own files as they were published
(5.35.0): no internet is needed.
"""

import base64
import hashlib
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from launch.gateway.api.errors import json_response
from launch.gateway.api.item_bodies import ItemAnswer
from launch.gateway.api.item_request import ItemRequest
from launch.gateway.api.requests import (
    SERVED,
    ChatRequest,
    CompletionRequest,
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
from launch.gateway.api.text_requests import DetokenizeRequest, TokenizeRequest
from launch.gateway.api.untyped import FIELDS, OBJECTS
from launch.gateway.auth import OPEN_PATHS

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
_OPEN: dict[str, Any] = {"security": []}  # no key is asked for
TOKENIZER_INFO = "/tokenizer_info"
GETS = {
    "/health": "The process is alive",
    "/ready": "Every pool can serve; 503 names those that cannot",
    "/ping": "The process is alive",
    "/version": "The server's version",
    "/load": "How many requests are in progress",
    TOKENIZER_INFO: "The tokenizer and its chat template; with --enable-tokenizer-info-endpoint",
    "/status": "The pools, the last minute and the last requests, as a document",
    "/metrics": "Prometheus metrics",
}
COMMANDS = {"/reset_prefix_cache": "Forget the prefixes that were computed, everywhere"}
ERRORS = {
    "400": "The request is wrong; `param` names the field",
    "401": "There is no API key, or none of this server's, where it wants one; `code` is "
    "`invalid_api_key`",
    "404": "There is no such model",
    "408": "The body did not come in time",
    "413": "The body is too long",
    "415": "The body is not JSON, or does not say so",
    "429": "Too much is asked at once, or what is owed cannot be kept; `Retry-After` says when to "
    "come again, `x-should-retry: false` that it would be in vain",
    "431": "The request line and the headers are too long",
    "500": "A bug of the server's",
    "503": "No worker can answer now; `Retry-After` says when to come again",
    "504": "The time that the request gave itself has passed",
}
_RETRY_AFTER = {
    "Retry-After": {
        "description": "seconds until it is worth another try",
        "schema": {"type": "integer", "minimum": 1},
    }
}
_HEADERS: dict[str, dict[str, Any]] = {  # of errors
    "401": {
        "WWW-Authenticate": {
            "description": "Bearer",
            "required": True,
            "schema": {"const": "Bearer"},
        }
    },
    "429": _RETRY_AFTER
    | {
        "x-should-retry": {
            "description": "false: the answer will be the same",
            "schema": {"const": "false"},
        }
    },
    "503": _RETRY_AFTER,
}
_BEARER = {
    "type": "http",
    "scheme": "bearer",
    "description": "A key of the server's, where it was started with any "
    "(`--api-key-file`); else nothing is asked for.",
}

SWAGGER_UI = Path(__file__).parent / "swagger_ui"
_SCRIPT = (
    'SwaggerUIBundle({url: "openapi.json", dom_id: "#ui", deepLinking: true, validatorUrl: null});'
)
_PAGE = f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Baton API</title>
<link rel="stylesheet" href="docs/assets/swagger-ui.css">
<link rel="icon" href="docs/assets/favicon-32x32.png"></head>
<body><div id="ui"></div>
<script src="docs/assets/swagger-ui-bundle.js"></script>
<script>{_SCRIPT}</script>
</body></html>"""
_SCRIPT_DIGEST = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
_PAGE_HEADERS = {
    "content-security-policy": (
        f"default-src 'none'; script-src 'self' 'sha256-{_SCRIPT_DIGEST}'; "
        "style-src 'self' 'unsafe-inline'; img-src 'self' data:; "  # Swagger UI wants both
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedLimits:
    """What bounds requests to one server, beside their types."""

    model: str  # its name in the API
    vocab_size: int
    max_logprobs: int
    tells_tokenizer: bool  # at /tokenizer_info

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
    for name, fields in FIELDS.items():
        properties = components[name]["properties"]
        for field, schema in fields.items():
            properties[field] = {"description": properties[field]["description"], **schema}
    for name, schema in OBJECTS.items():
        components[name] |= schema

    def content(kind: type) -> dict[str, Any]:
        return {"application/json": {"schema": by_type[kind]}}

    def errors(*statuses: str) -> dict[str, Any]:
        return {
            status: {
                "description": ERRORS[status],
                **({"headers": _HEADERS[status]} if status in _HEADERS else {}),
                "content": content(ErrorBody),
            }
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
        answers = {"200": found, **errors("401", "404", "431")}
        paths[path] = {"get": {"summary": summary, "responses": answers}}
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    paths["/v1/models/{name}"]["parameters"] = [name]
    for path, summary in _gets(limits).items():
        asked_of = _OPEN if path in OPEN_PATHS else {}
        failures = errors("431") if path in OPEN_PATHS else errors("401", "431")
        answers = _told(path) | failures
        paths[path] = {"get": {"summary": summary, "responses": answers, **asked_of}}
    paths["/ping"]["post"] = paths["/ping"]["get"]
    done = {"200": {"description": "It is done"}} | errors("401", "431", "503")
    paths |= {path: {"post": {"summary": s, "responses": done}} for path, s in COMMANDS.items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Baton", "version": version("baton-serving")},
        "paths": paths,
        "components": {
            "schemas": _bounded(components, limits),
            "securitySchemes": {"bearer": _BEARER},
        },
        "security": [{"bearer": []}, {}],
    }


def _gets(limits: ServedLimits | None) -> dict[str, str]:
    if limits is None or limits.tells_tokenizer:
        return GETS
    return {path: summary for path, summary in GETS.items() if path != TOKENIZER_INFO}


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
        return HTMLResponse(_PAGE, headers=_PAGE_HEADERS)

    return [
        Route("/openapi.json", description),
        Route("/docs", page),
        Mount("/docs/assets", StaticFiles(directory=SWAGGER_UI)),
    ]
