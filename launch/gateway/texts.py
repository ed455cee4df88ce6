"""Routes for texts and tokens: `/tokenize`, `/detokenize`, and the tokenizer itself.

Must generate nothing.
"""

from collections.abc import Callable
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from common.config import ServeConfig
from common.text.load import TextModel
from launch.gateway.api.admission import Admission
from launch.gateway.api.delivery import CLIENT_GONE_STATUS, ClientGone, while_connected
from launch.gateway.api.errors import json_response
from launch.gateway.api.receiving import Receiver, decoder
from launch.gateway.api.responses import Detokenized, Tokenized, encode
from launch.gateway.api.served import check_model
from launch.gateway.api.text_requests import DetokenizeRequest, TokenizeRequest
from launch.gateway.api.tokenizing import detokenized, tokenized, tokenizer_info
from launch.gateway.engine import Engine
from launch.gateway.lane import Lane

_MAX_TEXTS = 32  # being made tokens, and in line for it: a body of 16 MB each, at worst
_Text = TypeVar("_Text", TokenizeRequest, DetokenizeRequest)


class Texts:
    """Used by the event loop's thread."""

    def __init__(
        self,
        engine: Engine,
        text: TextModel,
        config: ServeConfig,
        admission: Admission,
        receiver: Receiver,
    ) -> None:
        self._engine = engine
        self._text = text
        self._config = config
        self._admission = admission
        self._receiver = receiver
        self._name = config.served_model_name or text.name
        self._lane = Lane("/tokenize and /detokenize", max_pending=_MAX_TEXTS)

    def routes(self) -> list[BaseRoute]:
        routes: list[BaseRoute] = [
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
        ]
        if self._config.enable_tokenizer_info_endpoint:
            routes.append(Route("/tokenizer_info", self.info))
        return routes

    async def info(self, _: Request) -> Response:
        return json_response(encode(tokenizer_info(self._text)))

    async def tokenize(self, request: Request) -> Response:
        return await self._in_line(request, TokenizeRequest, self._tokenize)

    def _tokenize(self, body: TokenizeRequest) -> Tokenized:
        check_model(body.model, self._name)
        return tokenized(
            body,
            self._text,
            max_model_len=self._engine.max_model_len,
            trusts_templates=self._config.trust_request_chat_template,
        )

    async def detokenize(self, request: Request) -> Response:
        return await self._in_line(request, DetokenizeRequest, self._detokenize)

    def _detokenize(self, body: DetokenizeRequest) -> Detokenized:
        check_model(body.model, self._name)
        return detokenized(body, self._text)

    async def _in_line(
        self, request: Request, kind: type[_Text], work: Callable[[_Text], object]
    ) -> Response:
        self._admission.enter()
        try:
            with self._admission.until_given_up():
                async with self._receiver.received(request, decoder(kind)) as (body, _):
                    told = self._lane.run(lambda: encode(work(body)))
                    return json_response(await while_connected(request, told))
        except ClientGone:
            return Response(status_code=CLIENT_GONE_STATUS)
        finally:
            self._admission.leave()
