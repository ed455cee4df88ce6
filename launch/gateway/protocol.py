"""HTTP/1.1 as uvicorn reads it, with bounds that it lacks, and refusals in the API's own form.

Must know nothing of what is served.
"""

import asyncio
from array import array
from http import HTTPStatus

import httptools
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from launch.gateway.api.errors import envelope

MAX_HEAD_BYTES = 2**16  # of a request line and headers; and of trailers behind a body
LINGER_S = 1.0  # of whoever is refused: cut off while it still sends, it may never see why


class _HeadTooLong(Exception):
    """Raised through the parser."""


class _Parser(httptools.HttpRequestParser):
    """One that reads on where it would leave the rest to another protocol."""

    def __init__(self, protocol: "HttpProtocol") -> None:
        super().__init__(protocol)
        self._protocol = protocol

    def feed_data(self, data: "bytes | bytearray | memoryview[int] | array[int]") -> None:
        rest = memoryview(data)
        while True:
            try:
                super().feed_data(rest)
            except httptools.HttpParserUpgrade as error:
                head = self._protocol.head_without_upgrade()
                if head is None:
                    raise
                super().feed_data(head)
                rest = rest[error.args[0] :]
            else:
                return


class _ToTheEnd:
    """`send` of an answer in HTTP/1.0, which knows no chunks: where its length is not told it ends
    with the connection (RFC 9112, 6.3)."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._send = cycle.send
        self._is_told = True  # how long it is

    async def __call__(self, message: ASGISendEvent) -> None:
        cycle = self._cycle
        if message["type"] == "http.response.start":
            names = [name.lower() for name, _ in message.get("headers", ())]
            self._is_told = b"content-length" in names
            if not self._is_told:
                cycle.chunked_encoding = cycle.keep_alive = False
        elif message["type"] == "http.response.body" and not self._is_told:
            cycle.expected_content_length = len(message.get("body", b""))
        await self._send(message)


class HttpProtocol(HttpToolsProtocol):
    """One connection. A head that is too long, or that does not come, ends it.

    A client that would change to another protocol (`Upgrade: h2c`) is answered as if it had not
    said so (RFC 9110, 7.8). The parser would skip its body: it is given the head once more.
    """

    _n_head_bytes = 0
    _n_unread_bytes = 0  # since the parser last made something of what came
    _head_is_too_long = False
    _is_over = False  # nothing that comes is read
    _due: asyncio.TimerHandle | None = None  # when the connection is closed

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.parser = _Parser(self)
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        if self.cycle is None or self.cycle.response_complete:
            self._await_head()
        self._n_unread_bytes += len(data)
        super().data_received(data)
        if self._n_unread_bytes > MAX_HEAD_BYTES and not self._is_over:
            self._head_is_too_long = True
            self.send_400_response("")

    def on_message_begin(self) -> None:
        self._n_head_bytes = self._n_unread_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + len(b": \r\n"))
        super().on_header(name, value)

    def head_without_upgrade(self) -> bytes | None:
        """The last head, but for what asks for another protocol; None: nothing does."""
        if not self._would_upgrade():
            return None
        version = self.parser.get_http_version().encode()
        lines = [
            b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version),
            *(name + b": " + value for name, value in self.headers if name != b"upgrade"),
        ]
        return b"\r\n".join([*lines, b"", b""])

    def _would_upgrade(self) -> bool:
        """CONNECT changes the protocol by itself."""
        return any(name == b"upgrade" for name, _ in self.headers) and (
            self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        )

    def on_headers_complete(self) -> None:
        if self._would_upgrade():
            return
        self._head_came()
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            setattr(self.cycle, "send", _ToTheEnd(self.cycle))  # noqa: B010 - no method is assigned to

    def on_body(self, body: bytes) -> None:
        self._n_unread_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._n_unread_bytes = 0
        if self._would_upgrade():
            return
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's own words
        """Of what is no HTTP, or too long. Nothing more is read; what came before is answered."""
        self._is_over = True
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if not cycle.more_body:  # this one came whole
                cycle.keep_alive = False
                return
            if cycle.response_started or self.pipeline:  # nothing stands in the midst of an answer
                self.transport.close()
                return
            cycle.disconnected = True
            cycle.message_event.set()
        status, why = HTTPStatus.BAD_REQUEST, "this is not valid HTTP/1.1"
        if self._head_is_too_long:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            why = f"the request line and the headers have more than {MAX_HEAD_BYTES} bytes"
        body = envelope(why, status)
        head = [
            f"HTTP/1.1 {status.value} {status.phrase}".encode(),
            *(name + b": " + value for name, value in self.server_state.default_headers),
            b"content-type: application/json",
            b"content-length: %d" % len(body),
            b"connection: close",
        ]
        self.transport.write(b"\r\n".join([*head, b"", body]))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._head_came()
        self._due = self.loop.call_later(LINGER_S, self.transport.close)

    def _count(self, n_bytes: int) -> None:
        self._n_unread_bytes = 0
        self._n_head_bytes += n_bytes
        if self._n_head_bytes > MAX_HEAD_BYTES:
            self._head_is_too_long = True
            raise _HeadTooLong

    def _await_head(self) -> None:
        if self._due is None:
            self._due = self.loop.call_later(self.timeout_keep_alive, self.transport.close)

    def _head_came(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
