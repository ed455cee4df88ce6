"""The bodies of requests: read whole, within bounds of length, of time, and of memory for all.

Must not know what they say.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

from common.errors import ClientError, Overloaded
from launch.gateway.api.decoding import shown
from launch.gateway.wording import count

MAX_BODY_BYTES = 2**24
MAX_HELD_BYTES = 8 * MAX_BODY_BYTES
PATIENCE_S = 30.0  # for a body to come,
LEAST_BYTES_PER_S = 2**14  # and more, as long as it comes so fast
RETRY_S = 1.0
_MAX_DIGITS = 18


class Bodies:
    """Those that are read, or held, by one server. Used by the event loop's thread."""

    def __init__(
        self, *, max_held_bytes: int = MAX_HELD_BYTES, patience_s: float = PATIENCE_S
    ) -> None:
        self._max_held_bytes = max_held_bytes
        self._patience_s = patience_s
        self.held_bytes = 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """The whole body, which counts as held until the block is left.

        Raises ClientError where it is none that is taken here, or too long, or late; Overloaded
        where all that is held would be too much; ClientDisconnect.
        """
        _check_headers(request)
        stream = request.stream()
        due_at = asyncio.get_running_loop().time() + self._patience_s
        parts: list[bytes] = []
        n_bytes = 0
        try:
            while part := await self._next(stream, due_at + n_bytes / LEAST_BYTES_PER_S, n_bytes):
                n_bytes += len(part)
                self.held_bytes += len(part)
                self._check(n_bytes)
                parts.append(part)
            yield b"".join(parts)
        finally:
            self.held_bytes -= n_bytes

    async def _next(
        self, stream: AsyncGenerator[bytes, None], due_at: float, n_bytes: int
    ) -> bytes:
        """More of a body of which so much has come; empty: that is all."""
        try:
            async with asyncio.timeout_at(due_at):
                return await anext(stream, b"")
        except TimeoutError as error:
            raise ClientError(
                f"the body has not come within {self._patience_s:g} s; of it have come "
                f"{count(n_bytes, 'byte')}",
                status=408,
            ) from error

    def _check(self, n_bytes: int) -> None:
        if n_bytes > MAX_BODY_BYTES:
            raise _too_long(f"more than {MAX_BODY_BYTES}")
        if self.held_bytes > self._max_held_bytes:
            raise Overloaded(
                f"{self.held_bytes} bytes of requests are being read; at most "
                f"{self._max_held_bytes} at once",
                retry_after_s=RETRY_S,
            )


def _check_headers(request: Request) -> None:
    """JSON must say that it is: a browser lets any page send us other types."""
    headers = request.headers
    told = headers.get("content-type", "")
    kind = told.partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise ClientError(
            f"content-type is {shown(told)}; send application/json"
            if told
            else "there is no content-type; send application/json",
            status=415,
        )
    coding = headers.get("content-encoding", "identity")
    if coding.strip().lower() != "identity":
        raise ClientError(
            f"content-encoding is {shown(coding)}; send the body as it is", status=415
        )
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length[:_MAX_DIGITS]) > MAX_BODY_BYTES:
        raise _too_long(length[:_MAX_DIGITS])


def _too_long(length: str) -> ClientError:
    return ClientError(f"the body has {length} bytes; at most {MAX_BODY_BYTES}", status=413)
