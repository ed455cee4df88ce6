"""Who may use the API: keys, how many requests each has in progress, and pages of other origins.

Wraps the application, which knows nothing of it. Must not read a body, nor show or log a key.
"""

import hashlib
import hmac
from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from common.errors import Overloaded
from common.metrics import GatewayMetrics
from common.sections import HttpOptions
from launch.gateway.api.errors import error_response, json_response
from launch.gateway.api.responses import ErrorBody, ErrorDetail, encode
from launch.gateway.places import Places, of_key

OPEN_PATHS = frozenset(
    {"/", "/health", "/ready", "/ping", "/metrics", "/ui", "/docs", "/openapi.json"}
)
"""Probes, monitoring and whoever reads what the API is ask without a key, as in vLLM. Whatever else
there is, or will be, has it asked for."""

OPEN_FOLDERS = ("/ui/", "/docs/assets/")
"""Files of pages that have no more to tell than who asks them has a key for."""

FULL_RETRY_S = 1.0
_NO_KEY = "there is no API key; send one as `Authorization: Bearer KEY`"
_WRONG_KEY = "the API key is none of this server's"
_TYPE, _CODE = "invalid_request_error", "invalid_api_key"  # OpenAI's
_BEARER = {"www-authenticate": "Bearer"}


def guarded(
    app: ASGIApp,
    options: HttpOptions,
    keys: Sequence[str],
    metrics: GatewayMetrics,
    places: Places | None = None,
) -> ASGIApp:
    """`app` for those who bear one of `keys` (none: for everybody), and for pages of the origins
    that `options` allow. `places`: where other gateways are counted, too."""
    if keys:
        limit = options.max_streams_per_key
        app = KeyGuard(app, keys, metrics, max_streams=limit, places=places)
    if options.allowed_origins is not None:
        app = CORSMiddleware(
            app,
            allow_origins=options.allowed_origins,
            allow_methods=options.allowed_methods,
            allow_headers=options.allowed_headers,
            allow_credentials=options.allow_credentials,
        )
    return app


class Keys:
    """Known by digests: how long it takes to tell that a key is none tells nothing of them."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    def number_of(self, key: bytes) -> int | None:
        """Which of them it is. All are looked at, whichever it is."""
        told = _digest(key)
        found = None
        for number, digest in enumerate(self._digests):
            if hmac.compare_digest(told, digest):
                found = number
        return found


class KeyGuard:
    """An ASGI application before another: 401 without a key, 429 past its bound."""

    def __init__(
        self,
        app: ASGIApp,
        keys: Sequence[str],
        metrics: GatewayMetrics,
        *,
        max_streams: int | None,
        places: Places | None = None,
    ) -> None:
        """`max_streams`: requests of one key in progress; None: any number."""
        self._app = app
        self._keys = Keys(keys)
        self._metrics = metrics
        self._max_streams = max_streams
        self._places = places or Places(len(keys))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or _is_open(scope["path"]):
            await self._app(scope, receive, send)
            return
        key = _bearer(scope)
        number = None if key is None else self._keys.number_of(key)
        if number is None:
            await self._refuse_stranger(_NO_KEY if key is None else _WRONG_KEY)(
                scope, receive, send
            )
        elif (
            scope["method"] != "POST" or self._max_streams is None
        ):  # it costs nothing, and is answered at once
            await self._app(scope, receive, send)
        elif not self._places.take(of_key(number), self._max_streams):
            await self._refuse_more(self._max_streams)(scope, receive, send)
        else:
            try:
                await self._app(scope, receive, send)
            finally:
                self._places.give_back(of_key(number))

    def _refuse_stranger(self, why: str) -> Response:
        self._metrics.failure(401)
        error = ErrorDetail(message=why, type=_TYPE, code=_CODE)
        return json_response(encode(ErrorBody(error=error)), 401, _BEARER)

    def _refuse_more(self, limit: int) -> Response:
        error = Overloaded(
            f"requests in progress for this API key: {limit} of {limit} (--max-streams-per-key)",
            retry_after_s=FULL_RETRY_S,
        )
        self._metrics.failure(error.status)
        return error_response(error, {})


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDERS)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _bearer(scope: Scope) -> bytes | None:
    """The key that a request claims to bear."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            if scheme.lower() == b"bearer":
                return key.strip()
    return None
