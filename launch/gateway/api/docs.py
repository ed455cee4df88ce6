"""The API's description, generated from the types that decode and encode it, and a page to read it.

The page's scripts come from an installed package: no internet is needed.
"""

from importlib.metadata import version
from typing import Any

import msgspec
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from swagger_ui_bundle import swagger_ui_path

from launch.gateway.api.errors import json_response
from launch.gateway.api.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
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

_POSTS: dict[str, tuple[str, type, type]] = {
    "/v1/completions": ("Continue a prompt", CompletionRequest, Completion),
    "/v1/chat/completions": ("Answer a conversation", ChatRequest, ChatCompletion),
    "/tokenize": ("Token ids of a text", TokenizeRequest, Tokenized),
    "/detokenize": ("Text of token ids", DetokenizeRequest, Detokenized),
}
_MODELS: dict[str, tuple[str, type]] = {
    "/v1/models": ("List models", ModelList),
    "/v1/models/{name}": ("One model", ModelCard),
}
_GETS = {
    "/health": "The process is alive",
    "/ready": "Every pool can serve; 503 names those that cannot",
    "/ping": "The process is alive",
    "/version": "The server's version",
    "/metrics": "Prometheus metrics",
}
_ERRORS = ("400", "404", "413", "415", "429", "500", "503", "504")

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


def openapi() -> dict[str, Any]:
    """OpenAPI 3.1."""
    types: list[type] = [kind for _, *pair in _POSTS.values() for kind in pair]
    types += [kind for _, kind in _MODELS.values()]
    types.append(ErrorBody)
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    by_type = dict(zip(types, schemas, strict=True))

    def content(kind: type) -> dict[str, Any]:
        return {"application/json": {"schema": by_type[kind]}}

    error = {"description": "What is wrong, and what to do", "content": content(ErrorBody)}
    paths: dict[str, Any] = {}
    for path, (summary, asked, given) in _POSTS.items():
        answer = content(given)
        if path.startswith("/v1/"):
            answer["text/event-stream"] = {"schema": {"type": "string"}}
        paths[path] = {
            "post": {
                "summary": summary,
                "requestBody": {"required": True, "content": content(asked)},
                "responses": {
                    "200": {"description": "The answer", "content": answer},
                    **dict.fromkeys(_ERRORS, error),
                },
            }
        }
    for path, (summary, given) in _MODELS.items():
        found = {"description": "What is served", "content": content(given)}
        paths[path] = {"get": {"summary": summary, "responses": {"200": found, "404": error}}}
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    paths["/v1/models/{name}"]["parameters"] = [name]
    for path, summary in _GETS.items():
        paths[path] = {"get": {"summary": summary, "responses": {"200": {"description": "Yes"}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Baton", "version": version("baton-serving")},
        "paths": paths,
        "components": {"schemas": components},
    }


def docs_routes() -> list[BaseRoute]:
    """/docs and /openapi.json"""
    document = encode(openapi())

    async def description(_: object) -> Response:
        return json_response(document)

    async def page(_: object) -> Response:
        return HTMLResponse(_PAGE)

    return [
        Route("/openapi.json", description),
        Route("/docs", page),
        Mount("/docs/assets", StaticFiles(directory=str(swagger_ui_path))),
    ]
