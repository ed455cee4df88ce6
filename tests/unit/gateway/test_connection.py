"""What a client may cost on its connection: a real server, real sockets, small buffers."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from launch.gateway.connection import BODY, Limits, connections

SMALL_BYTES = 4096  # of the system's buffers, on both sides
SLOW_READER_S = 0.3
GET = b"GET / HTTP/1.1\r\nhost: t\r\n\r\n"


class App:
    """Answers with so many bytes, 16 KiB at a time; None: until its client is gone. `directly`:
    past the application's own `send`."""

    def __init__(
        self, n_bytes: int | None, part_bytes: int = 16384, *, directly: bool = False
    ) -> None:
        self._n_bytes = n_bytes
        self._part_bytes = part_bytes
        self._directly = directly
        self.sent_bytes = 0
        self.gone = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        leaving = asyncio.ensure_future(receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        sent = 0
        while not leaving.done() and (self._n_bytes is None or sent < self._n_bytes):
            part = bytes(self._part_bytes)
            if not (self._directly and scope["extensions"][BODY](part)):
                await send({"type": "http.response.body", "body": part, "more_body": True})
            sent += len(part)
            self.sent_bytes += len(part)
            await asyncio.sleep(0)
        if leaving.done():
            self.gone.set()
        leaving.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Running:
    """A server, and how many of its clients were cut off."""

    def __init__(self, app: App, keep_alive_s: int, slow_reader_s: float) -> None:
        self.n_cut = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BYTES)
        limits = Limits(slow_reader_s=slow_reader_s, on_slow_reader=self.count)
        self.server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=connections(limits),
                log_config=None,
                access_log=False,
                ws="none",
                lifespan="off",
                timeout_keep_alive=keep_alive_s,
            )
        )

    def count(self) -> None:
        self.n_cut += 1

    @property
    def n_connections(self) -> int:
        return len(self.server.server_state.connections)

    async def client(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """One that reads when it is asked to, and whose buffers are small until then."""
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BYTES)
        client.settimeout(0)
        await asyncio.get_running_loop().sock_connect(client, self.listener.getsockname())
        return await asyncio.open_connection(sock=client, limit=1024)


@asynccontextmanager
async def running(
    app: App,
    *,
    keep_alive_s: int = 60,
    slow_reader_s: float = SLOW_READER_S,
) -> AsyncIterator[Running]:
    made = Running(app, keep_alive_s, slow_reader_s)
    serving = asyncio.create_task(made.server.serve(sockets=[made.listener]))
    await until(lambda: made.server.started)
    yield made
    made.server.should_exit = made.server.force_exit = True
    await serving


async def until(condition: Callable[[], bool]) -> None:
    """Of what no event tells."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


async def leave(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """All that comes, until the connection ends well or badly."""
    received = bytearray()
    with suppress(ConnectionResetError):
        while data := await reader.read(65536):
            received += data
    return bytes(received)


@pytest.mark.parametrize("directly", [False, True])
def test_a_client_that_stops_reading_is_cut_off_and_costs_little(*, directly: bool) -> None:
    async def test() -> None:
        app = App(None, directly=directly)
        async with running(app) as server:
            reader, writer = await server.client()
            writer.write(GET)
            await reader.read(1000)
            await until(lambda: server.n_cut == 1)
            await asyncio.wait_for(app.gone.wait(), 5)
            await until(lambda: server.n_connections == 0)
            assert app.sent_bytes < 400_000
            await rest_of(reader)
            await leave(writer)

    run(test())


def test_what_is_written_directly_is_what_send_would_write() -> None:
    async def answer(*, directly: bool) -> bytes:
        async with running(App(100_000, 1000, directly=directly)) as server:
            reader, writer = await server.client()
            writer.write(GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
            whole = await asyncio.wait_for(rest_of(reader), 5)
            await leave(writer)
            return whole.partition(b"\r\n\r\n")[2]  # the head has the time

    async def test() -> None:
        sent = await answer(directly=False)
        assert sent.startswith(b"3e8\r\n\0")
        assert await answer(directly=True) == sent

    run(test())


def test_others_go_on_beside_it() -> None:
    async def test() -> None:
        async with running(App(500_000)) as server:
            stopped, stopped_writer = await server.client()
            stopped_writer.write(GET)
            await stopped.read(1000)
            reading, writer = await server.client()
            writer.write(GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
            whole = await asyncio.wait_for(rest_of(reading), 5)
            assert whole.endswith(b"0\r\n\r\n") and len(whole) > 500_000
            await leave(writer)
            await until(lambda: server.n_cut == 1)
            await leave(stopped_writer)

    run(test())


def test_a_client_that_pauses_for_less_gets_it_all() -> None:
    async def test() -> None:
        async with running(App(300_000), slow_reader_s=1.0) as server:
            reader, writer = await server.client()
            writer.write(GET)
            await asyncio.sleep(0.5)
            received = b""
            while not received.endswith(b"0\r\n\r\n"):
                received += await asyncio.wait_for(reader.read(100_000), 5)
            assert len(received) > 300_000
            assert server.n_cut == 0
            await leave(writer)

    run(test())


@pytest.mark.parametrize("last", [b"", b"connection: close\r\n"])
def test_an_answer_that_fits_the_buffer_is_not_kept_for_ever(last: bytes) -> None:
    async def test() -> None:
        app = App(50_000, part_bytes=50_000)  # less than makes anybody wait
        async with running(app, keep_alive_s=1) as server:
            reader, writer = await server.client()
            writer.write(GET.removesuffix(b"\r\n") + last + b"\r\n")
            await until(lambda: app.sent_bytes == 50_000)
            await until(lambda: server.n_connections == 0)
            assert server.n_cut == 1
            await rest_of(reader)
            await leave(writer)

    run(test())
