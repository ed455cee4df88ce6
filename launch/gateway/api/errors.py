"""Errors as clients get them: OpenAI's envelope, the right status, and when to come again."""

import math
from collections.abc import Mapping

from starlette.responses import Response

from common.errors import BatonError, ClientError, Overloaded, PeerError, TimedOut
from launch.gateway.api.responses import ErrorBody, ErrorDetail, encode

MAX_MESSAGE_CHARS = 1000

_TYPES = {
    400: "invalid_request_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    504: "timeout_error",
}


def status_of(error: BatonError) -> int:
    match error:
        case ClientError() | Overloaded():
            return error.status
        case PeerError():
            return 503
        case TimedOut():
            return 504
        case _:  # a bug of ours
            return 500


def error_detail(error: BatonError) -> ErrorDetail:
    return detail(str(error), status_of(error), getattr(error, "param", None))


def detail(message: str, status: int, param: str | None = None) -> ErrorDetail:
    """What libraries say of a client's text may repeat all of it: a message is cut short."""
    if len(message) > MAX_MESSAGE_CHARS:
        message = f"{message[:MAX_MESSAGE_CHARS]}..."
    kind = _TYPES.get(status, "server_error")
    return ErrorDetail(message=message, type=kind, param=param, code=status)


def envelope(message: str, status: int, param: str | None = None) -> bytes:
    return encode(ErrorBody(error=detail(message, status, param)))


def error_response(error: BatonError, headers: Mapping[str, str]) -> Response:
    status = status_of(error)
    wait: dict[str, str] = {}
    if isinstance(error, Overloaded):
        wait = _when(error.retry_after_s)
    elif status == 503:
        wait = {"retry-after": "1"}
    elif status == 408:
        wait = {"connection": "close"}  # the rest of the body may never come
    return json_response(encode(ErrorBody(error=error_detail(error))), status, {**headers, **wait})


def _when(retry_after_s: float | None) -> dict[str, str]:
    if retry_after_s is None:
        return {"x-should-retry": "false"}  # OpenAI's own clients heed it
    return {"retry-after": str(max(1, math.ceil(retry_after_s)))}


def json_response(
    body: bytes, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(body, status, headers, media_type="application/json")
