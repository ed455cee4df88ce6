"""The HTTP server's routes: bodies in, answers out. Everything about requests' meaning is in `api`.

Imports neither torch nor the engine's process: the gateway speaks to workers in messages.
"""

import asyncio
import logging
import os
import random
import time
import uuid
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from common.config import ServeConfig
from common.errors import BatonError, Overloaded, SloMissed, TimedOut
from common.ids import Role
from common.log import line
from common.metrics import CONTENT_TYPE, GatewayMetrics
from common.text.grammar import Grammars
from common.text.load import TextModel
from launch.gateway.api.admission import Admission
from launch.gateway.api.answer import Answer
from launch.gateway.api.arrivals import Arrivals
from launch.gateway.api.bodies import MAX_HELD_BYTES
from launch.gateway.api.chat_form import ChatForm
from launch.gateway.api.completion_form import CompletionForm
from launch.gateway.api.decoding import shown
from launch.gateway.api.delivery import (
    CLIENT_GONE_STATUS,
    REQUEST_ID,
    ClientGone,
    EventStream,
    internal_error,
    while_connected,
    whole,
)
from launch.gateway.api.docs import ServedLimits, docs_routes
from launch.gateway.api.errors import envelope, error_response, json_response, status_of
from launch.gateway.api.forms import Form
from launch.gateway.api.item_form import ItemForm
from launch.gateway.api.item_prepare import prepare_items
from launch.gateway.api.item_request import ItemRequest
from launch.gateway.api.long_prompts import decode_completion
from launch.gateway.api.other_endpoints import instead
from launch.gateway.api.prepare import Prepared, prepare_chat, prepare_completion
from launch.gateway.api.receiving import LONG_BYTES, Receiver, decoder
from launch.gateway.api.requests import (
    ChatRequest,
    CompletionRequest,
)
from launch.gateway.api.responses import (
    ModelCard,
    ModelList,
    ModelPermission,
    encode,
)
from launch.gateway.api.served import Served, check_model
from launch.gateway.engine import Engine
from launch.gateway.lane import Lane
from launch.gateway.summary import Server
from launch.gateway.texts import Texts
from launch.gateway.traces_endpoint import trace
from launch.gateway.transfers import Slo
from launch.gateway.watching import VERSIONS, watching_routes

_log = logging.getLogger(__name__)
_MAX_LONG = MAX_HELD_BYTES // LONG_BYTES
_Body = TypeVar("_Body", CompletionRequest, ChatRequest, ItemRequest)


def create_app(
    engine: Engine,
    text: TextModel,
    config: ServeConfig,
    metrics: GatewayMetrics,
    admission: Admission,
    grammars: Grammars,
) -> Starlette:
    """The ASGI application."""
    api = _Api(engine, text, config, metrics, admission, grammars)
    routes = [
        Route("/v1/completions", api.completions, methods=["POST"]),
        Route("/v1/chat/completions", api.chat, methods=["POST"]),
        Route("/v1/responses", api.responses, methods=["POST"]),
        Route("/v1/models", api.models),
        Route("/v1/models/{name:path}", api.model),
        *api.texts.routes(),
        Route("/reset_prefix_cache", api.reset_prefix_cache, methods=["POST"]),
        Route("/health", api.health),
        Route("/ping", api.health, methods=["GET", "POST"]),
        Route("/ready", api.ready),
        Route("/version", api.version),
        Route("/load", api.load),
        Route("/metrics", api.metrics_page),
        *watching_routes(engine, api.watched, api.in_progress, with_page=config.ui),
        *docs_routes(api.limits()),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={
            HTTPException: _http_error,
            BatonError: api.baton_error,
            ClientDisconnect: _client_gone,
            Exception: api.bug,
        },
    )
    if config.otlp_traces_endpoint is not None:
        trace(app, engine.watchers, endpoint=config.otlp_traces_endpoint, model=api.limits().model)
    app.router.redirect_slashes = False  # to where the client's own Host header says
    return app


class _Api:
    """The handlers, and what they share."""

    def __init__(
        self,
        engine: Engine,
        text: TextModel,
        config: ServeConfig,
        metrics: GatewayMetrics,
        admission: Admission,
        grammars: Grammars,
    ) -> None:
        self._engine = engine
        self._text = text
        self._config = config
        self._metrics = metrics
        self._admission = admission
        self._receiver = Receiver()
        n_threads = max(1, (os.cpu_count() or 1) // 2)  # of four more than there are CPUs
        self._long = Lane("long prompts", max_pending=_MAX_LONG, n_threads=n_threads)
        self.texts = Texts(engine, text, config, admission, self._receiver)
        self._name = config.served_model_name or text.name
        self._started = int(time.time())
        self._slo = Slo(ttft_s=_seconds(config.slo_ttft), tpot_s=_seconds(config.slo_tpot))
        self._grammars = grammars
        self._arrivals = Arrivals(
            with_text=config.enable_log_requests, max_length=config.max_log_len
        )
        self._seeds = None if config.seed is None else random.Random(config.seed)

    # --- generation --------------------------------------------------------------------------

    async def completions(self, request: Request) -> Response:
        decoded = partial(decode_completion, max_model_len=self._engine.max_model_len)
        return await self._generate(request, decoded, prepare_completion, CompletionForm)

    async def chat(self, request: Request) -> Response:
        return await self._generate(request, decoder(ChatRequest), prepare_chat, ChatForm)

    async def responses(self, request: Request) -> Response:
        return await self._generate(request, decoder(ItemRequest), prepare_items, ItemForm)

    async def _generate(
        self,
        request: Request,
        decoded: Callable[[bytes], _Body],
        prepare: Callable[[_Body, Served], Prepared],
        form_of: type[Form],
    ) -> Response:
        answer_id = request.scope[REQUEST_ID] = f"{form_of.id_prefix}-{uuid.uuid4().hex}"
        self._admission.enter()
        answer: Answer | None = None
        handed_on, n_tokens = False, 0
        try:
            prepared = await self._prepared(request, decoded, prepare)
            n_tokens = self._admission.hold(prepared.n_prompt_tokens)
            self._arrivals.tell(answer_id, prepared, request.headers)
            answer = Answer(answer_id, prepared, self._text, self._metrics)
            form = form_of(answer_id, self._name, self._text.tokenizer, prepared)
            await while_connected(request, answer.begin(self._engine))
            if not prepared.stream:
                return await while_connected(request, whole(answer, form))
            handed_on = True
            leave = partial(self._admission.leave, n_tokens)
            return EventStream(answer, form, self._metrics, leave)
        except (ClientGone, ClientDisconnect):
            self._metrics.success("abort")
            return Response(status_code=CLIENT_GONE_STATUS)
        finally:
            if not handed_on:
                if answer is not None:
                    answer.close()
                self._admission.leave(n_tokens)

    async def _prepared(
        self,
        request: Request,
        decoded: Callable[[bytes], _Body],
        prepare: Callable[[_Body, Served], Prepared],
    ) -> Prepared:
        """Of the body nothing is kept."""
        with self._admission.until_given_up():
            async with self._receiver.received(request, decoded) as (body, is_long):
                work = partial(prepare, body, self._served())
                return await (self._long.run(work) if is_long else asyncio.to_thread(work))

    def limits(self) -> ServedLimits:
        return ServedLimits(
            model=self._name,
            vocab_size=self._text.vocab_size,
            max_logprobs=self._config.max_logprobs,
            tells_tokenizer=self._config.enable_tokenizer_info_endpoint,
        )

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
            slo=self._slo,
            check_grammar=self._check_grammar,
            tool_call_parser=self._config.tool_call_parser,
            reasoning_parser=self._config.reasoning_parser,
            trusts_templates=self._config.trust_request_chat_template,
        )

    def _check_grammar(self, grammar: str, param: str) -> None:
        """In a worker thread."""
        self._grammars.tokenizer().check(grammar, param=param)

    def _draw_seed(self) -> int:
        if self._seeds is not None:
            return self._seeds.getrandbits(63)
        return int.from_bytes(os.urandom(8), "little") >> 1

    # --- state -------------------------------------------------------------------------------

    def _card(self) -> ModelCard:
        return ModelCard(
            id=self._name,
            created=self._started,
            root=self._config.model or self._name,
            max_model_len=self._engine.max_model_len,
            permission=[ModelPermission(id=f"modelperm-{self._name}", created=self._started)],
        )

    async def models(self, _: Request) -> Response:
        return json_response(encode(ModelList(data=[self._card()])))

    async def model(self, request: Request) -> Response:
        check_model(request.path_params["name"], self._name)
        return json_response(encode(self._card()))

    async def health(self, _: Request) -> Response:
        return json_response(b"{}")

    async def ready(self, _: Request) -> Response:
        """200: every pool that is configured has a worker. 503 names what is short."""
        up, wanted, short = self._engine.workers(), self._wanted, self._short()
        draining = self._admission.draining
        ready = not short and not draining and self._admission.all_ready()
        state = {
            "ready": ready,
            "draining": draining,
            "short": short,
            **{
                role: {"up": up[role], "workers": n, "trouble": self._engine.troubles(role)}
                for role, n in wanted.items()
            },
        }
        headers = {} if ready else {"retry-after": "1"}
        return json_response(encode(state), 200 if ready else 503, headers)

    @property
    def _wanted(self) -> dict[Role, int]:
        """Workers that are configured."""
        return {
            Role.PREFILL: self._config.prefill.workers,
            Role.DECODE: max(1, self._config.decode.workers),  # 0: they join by themselves
        }

    def _short(self) -> list[Role]:
        """Pools that should have a worker, and have none."""
        up = self._engine.workers()
        return [role for role, n in self._wanted.items() if n and not up[role]]

    def watched(self) -> Server:
        """What `/status` tells of the server itself."""
        draining = self._admission.draining
        return Server(
            unix_s=time.time(),
            model=self._name,
            ready=not draining and not self._short(),
            draining=draining,
            versions=VERSIONS,
            slo=self._slo,
            gateways=self._config.gateways,
        )

    def in_progress(self) -> int:
        return self._admission.in_progress

    async def reset_prefix_cache(self, _: Request) -> Response:
        await self._engine.reset_prefix_cache()
        return Response()

    async def version(self, _: Request) -> Response:
        return json_response(encode({"version": version("baton-serving")}))

    async def load(self, _: Request) -> Response:
        return json_response(encode({"server_load": self._admission.in_progress_anywhere}))

    async def metrics_page(self, _: Request) -> Response:
        return Response(self._metrics.render(), media_type=CONTENT_TYPE)

    # --- errors ------------------------------------------------------------------------------

    async def baton_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, BatonError)
        status = status_of(error)
        self._metrics.failure(status)
        if isinstance(error, SloMissed):
            self._metrics.request_slo_refused_total.inc()
        if status >= 500 and not isinstance(error, Overloaded | TimedOut):
            fields = {"request": request.scope.get(REQUEST_ID), "detail": str(error)}
            bug = error if status == 500 else None
            _log.error(line("request_failed", status=status, **fields), exc_info=bug)
        return error_response(error, _named(request))

    async def bug(self, request: Request, _: Exception) -> Response:
        """Whatever else was raised; the server logs it."""
        self._metrics.failure(500)
        return json_response(internal_error(), 500, _named(request))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status, headers = error.status_code, dict(error.headers or {})
    detail, path = error.detail, shown(request.scope["path"])
    if status == 404:
        detail = f"there is nothing at {path}; {instead(request.scope['path'])}"
    elif status == 405:
        detail = f"{path} takes {headers.get('Allow')}, not {request.method}"
    return json_response(envelope(detail, status), status, headers)


async def _client_gone(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_GONE_STATUS)


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3


def _named(request: Request) -> dict[str, str]:
    request_id = request.scope.get(REQUEST_ID)
    return {} if request_id is None else {REQUEST_ID: request_id}
