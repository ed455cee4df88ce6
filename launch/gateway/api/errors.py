"""Errors as clients get them: OpenAI's envelope, the right status, and when to come again."""

import math

from starlette.responses import Response

from common.errors import BatonError, ClientError, Overloaded
from launch.gateway.api.responses import ErrorBody, ErrorDetail, encode

_TYPES = {
    400: "invalid_request_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}


def status_of(error: BatonError) -> int:
    match error:
        case ClientError() | Overloaded():
            return error.status
        case _:
            return 503


def error_body(error: BatonError) -> bytes:
    return envelope(str(error), status_of(error), getattr(error, "param", None))


def envelope(message: str, status: int, param: str | None = None) -> bytes:
    kind = _TYPES.get(status, "server_error")
    return encode(
        ErrorBody(error=ErrorDetail(message=message, type=kind, param=param, code=status))
    )


def error_response(error: BatonError) -> Response:
    headers: dict[str, str] = {}
    if isinstance(error, Overloaded):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    elif status_of(error) == 503:
        headers["Retry-After"] = "1"
    return json_response(error_body(error), status_of(error), headers)


def json_response(
    body: bytes, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return Response(body, status, headers, media_type="application/json")
