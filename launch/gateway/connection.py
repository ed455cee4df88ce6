"""A client's connection, with bounds on what a client costs that does not read.

Must not know what is asked and answered on it: it sees bytes, and whether they come and go.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from common.log import line
from launch.gateway.protocol import HttpProtocol

UNREAD_BYTES = 64 * 1024  # of an answer, that wait here before who makes it has to
SEND_BUFFER_BYTES = 128 * 1024
"""For a listening socket (SO_SNDBUF): what the system keeps of an answer that nobody reads."""

BODY = "baton.http.body"
"""An ASGI extension (`scope["extensions"]`): `write(data) -> bool` puts more of a chunked body on
the connection at once, as `send` does by way of all that stands between. False: it is for `send`,
since the client does not read, or has left."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of every connection. Seconds."""

    slow_reader_s: float  # a client that takes nothing for so long is cut off
    on_slow_reader: Callable[[], None]


class Connection(HttpProtocol):
    """Whoever takes nothing of its answer for too long is cut off.

    `transport.close` would wait until a client has read all: only `abort` does not.
    """

    def __init__(self, *args: Any, limits: Limits, **kwargs: Any) -> None:  # noqa: ANN401 uvicorn's
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._unread: asyncio.TimerHandle | None = None  # runs while the client does not read

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(UNREAD_BYTES)  # it is more under TLS, if nobody says so

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        extensions = cast("dict[str, Any]", self.scope).setdefault("extensions", {})
        extensions[BODY] = partial(_write, self.cycle)

    def connection_lost(self, exc: Exception | None) -> None:
        self._reads()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait_for_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._reads()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing() and self._has_unread():
            self._wait_for_reader()

    def timeout_keep_alive_handler(self) -> None:
        if self._has_unread():
            self._cut_off()
        else:
            super().timeout_keep_alive_handler()

    def _has_unread(self) -> bool:
        return self.transport.get_write_buffer_size() > 0

    def _wait_for_reader(self) -> None:
        if self._unread is None:
            self._unread = self.loop.call_later(self._limits.slow_reader_s, self._cut_off)

    def _reads(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _cut_off(self) -> None:
        _log.info(line("slow_reader_cut_off", unread_bytes=self.transport.get_write_buffer_size()))
        self._limits.on_slow_reader()
        self.transport.abort()


def _write(cycle: RequestResponseCycle, data: bytes) -> bool:
    if cycle.flow.write_paused or cycle.disconnected or not cycle.chunked_encoding:
        return False
    cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
    return True


def connections(limits: Limits) -> type[asyncio.Protocol]:
    """What uvicorn calls for each."""
    return cast("type[asyncio.Protocol]", partial(Connection, limits=limits))
