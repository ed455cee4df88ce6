"""The HTTP server's routes: bodies in, answers out. Everything about requests' meaning is in `api`.

Imports neither torch nor the engine's process: the gateway speaks to workers in messages.
"""

import asyncio
import os
import random
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from common.config import ServeConfig
from common.errors import BatonError, ClientError, Overloaded
from common.ids import Role
from common.metrics import CONTENT_TYPE, GatewayMetrics
from launch.gateway.api.answer import Answer
from launch.gateway.api.delivery import (
    CLIENT_GONE_STATUS,
    ClientGone,
    EventStream,
    while_connected,
    whole,
)
from launch.gateway.api.docs import docs_routes
from launch.gateway.api.errors import envelope, error_response, json_response, status_of
from launch.gateway.api.forms import ChatForm, CompletionForm
from launch.gateway.api.prepare import Prepared, Served, prepare_chat, prepare_completion
from launch.gateway.api.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
    decode,
)
from launch.gateway.api.responses import (
    Detokenized,
    ModelCard,
    ModelList,
    Tokenized,
    encode,
)
from launch.gateway.engine import Engine
from launch.gateway.text.load import TextModel
from launch.gateway.text.tokenizer import check_prompt_ids

MAX_BODY_BYTES = 16 * 2**20
DRAIN_RETRY_S = 5.0

_Body = TypeVar("_Body", CompletionRequest, ChatRequest)


def create_app(
    engine: Engine,
    text: TextModel,
    config: ServeConfig,
    metrics: GatewayMetrics,
    *,
    draining: Callable[[], bool],
) -> Starlette:
    """The ASGI application. `draining` tells whether new requests are refused."""
    api = _Api(engine, text, config, metrics, draining)
    routes = [
        Route("/v1/completions", api.completions, methods=["POST"]),
        Route("/v1/chat/completions", api.chat, methods=["POST"]),
        Route("/v1/models", api.models),
        Route("/v1/models/{name:path}", api.model),
        Route("/tokenize", api.tokenize, methods=["POST"]),
        Route("/detokenize", api.detokenize, methods=["POST"]),
        Route("/health", api.health),
        Route("/ping", api.health, methods=["GET", "POST"]),
        Route("/ready", api.ready),
        Route("/version", api.version),
        Route("/metrics", api.metrics_page),
        *docs_routes(),
    ]
    return Starlette(
        routes=routes,
        exception_handlers={HTTPException: _http_error, BatonError: api.baton_error},
    )


class _Api:
    """The handlers, and what they share."""

    def __init__(
        self,
        engine: Engine,
        text: TextModel,
        config: ServeConfig,
        metrics: GatewayMetrics,
        draining: Callable[[], bool],
    ) -> None:
        self._engine = engine
        self._text = text
        self._config = config
        self._metrics = metrics
        self._draining = draining
        self._name = config.served_model_name or text.name
        self._started = int(time.time())
        self._seeds = None if config.seed is None else random.Random(config.seed)
        self._in_progress = 0

    # --- generation --------------------------------------------------------------------------

    async def completions(self, request: Request) -> Response:
        return await self._generate(request, CompletionRequest, prepare_completion, CompletionForm)

    async def chat(self, request: Request) -> Response:
        return await self._generate(request, ChatRequest, prepare_chat, ChatForm)

    async def _generate(
        self,
        request: Request,
        kind: type[_Body],
        prepare: Callable[[_Body, Served], Prepared],
        form_of: type[CompletionForm] | type[ChatForm],
    ) -> Response:
        self._admit()
        answer: Answer | None = None
        handed_on = False
        try:
            body = decode(await _body(request), kind)
            prepared = await asyncio.to_thread(prepare, body, self._served())
            answer = Answer(prepared, self._text, self._metrics)
            form = form_of(
                self._name,
                self._text.tokenizer,
                logprobs=prepared.logprobs,
                include_usage=prepared.include_usage,
                prompts=prepared.returned_prompts,
            )
            await while_connected(request, answer.begin(self._engine))
            if not prepared.stream:
                return await while_connected(request, whole(answer, form))
            handed_on = True
            return EventStream(answer, form, self._metrics, self._leave)
        except (ClientGone, ClientDisconnect):
            return Response(status_code=CLIENT_GONE_STATUS)
        finally:
            if not handed_on:
                if answer is not None:
                    answer.close()
                self._leave()

    def _admit(self) -> None:
        """Past the bound a request is refused before any work is done for it."""
        limit = self._config.max_waiting_requests
        if self._draining():
            raise Overloaded("the server is stopping", retry_after_s=DRAIN_RETRY_S, status=503)
        if self._in_progress >= limit:
            raise Overloaded(f"{limit} requests of {limit} are in progress", retry_after_s=1.0)
        self._in_progress += 1
        self._metrics.requests_in_progress.set(self._in_progress)

    def _leave(self) -> None:
        self._in_progress -= 1
        self._metrics.requests_in_progress.set(self._in_progress)

    def _served(self) -> Served:
        max_model_len = self._engine.max_model_len
        if max_model_len is None:
            raise Overloaded("no worker is ready yet", retry_after_s=1.0, status=503)
        return Served(
            model=self._name,
            text=self._text,
            max_model_len=max_model_len,
            max_logprobs=self._config.max_logprobs,
            draw_seed=self._draw_seed,
        )

    def _draw_seed(self) -> int:
        if self._seeds is not None:
            return self._seeds.getrandbits(63)
        return int.from_bytes(os.urandom(8), "little") >> 1

    # --- text --------------------------------------------------------------------------------

    async def tokenize(self, request: Request) -> Response:
        body = decode(await _body(request), TokenizeRequest)
        ids = await asyncio.to_thread(
            self._text.tokenizer.encode, body.prompt, add_special_tokens=body.add_special_tokens
        )
        strings = [self._text.tokenizer.text_of(i) for i in ids]
        return json_response(
            encode(
                Tokenized(
                    count=len(ids),
                    max_model_len=self._engine.max_model_len,
                    tokens=ids,
                    token_strs=strings if body.return_token_strs else None,
                )
            )
        )

    async def detokenize(self, request: Request) -> Response:
        body = decode(await _body(request), DetokenizeRequest)
        check_prompt_ids(body.tokens, vocab_size=self._text.vocab_size, param="tokens")
        text = self._text.tokenizer.decode(body.tokens, skip_special_tokens=False)
        return json_response(encode(Detokenized(prompt=text)))

    # --- state -------------------------------------------------------------------------------

    def _card(self) -> ModelCard:
        return ModelCard(
            id=self._name,
            created=self._started,
            root=self._name,
            max_model_len=self._engine.max_model_len,
        )

    async def models(self, _: Request) -> Response:
        return json_response(encode(ModelList(data=[self._card()])))

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name != self._name:
            raise ClientError(
                f"The model `{name[:200]}` does not exist; this server has `{self._name}`.",
                param="model",
                status=404,
            )
        return json_response(encode(self._card()))

    async def health(self, _: Request) -> Response:
        return json_response(b"{}")

    async def ready(self, _: Request) -> Response:
        """200: every pool that is configured has a worker. 503 names what is short."""
        up = self._engine.workers()
        wanted = {
            Role.PREFILL: self._config.prefill.workers,
            Role.DECODE: self._config.decode.workers,
        }
        short = [role for role, n in wanted.items() if n and not up[role]]
        state = {
            "ready": not short and not self._draining(),
            "draining": self._draining(),
            **{role: f"{up[role]} of {n} up" for role, n in wanted.items()},
        }
        return json_response(encode(state), 200 if state["ready"] else 503)

    async def version(self, _: Request) -> Response:
        return json_response(encode({"version": version("baton-serving")}))

    async def metrics_page(self, _: Request) -> Response:
        return Response(self._metrics.render(), media_type=CONTENT_TYPE)

    # --- errors ------------------------------------------------------------------------------

    async def baton_error(self, _: Request, error: Exception) -> Response:
        assert isinstance(error, BatonError)
        self._metrics.failure(status_of(error))
        return error_response(error)


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return json_response(
        envelope(error.detail, error.status_code), error.status_code, dict(error.headers or {})
    )


async def _body(request: Request) -> bytes:
    """The whole body. Raises ClientError once it is too long, whatever its header says."""
    parts: list[bytes] = []
    n_bytes = 0
    async for part in request.stream():
        n_bytes += len(part)
        if n_bytes > MAX_BODY_BYTES:
            limit_mib = MAX_BODY_BYTES // 2**20
            raise ClientError(f"the body is over {limit_mib} MiB", status=413)
        parts.append(part)
    return b"".join(parts)
