"""What is no HTTP, or too much of it, over a real connection."""

import asyncio
import json
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from launch.gateway.protocol import MAX_HEAD_BYTES, HttpProtocol

GET = b"GET / HTTP/1.1\r\nhost: t\r\n"
POST = b"POST / HTTP/1.1\r\nhost: t\r\n"
CLOSE = b"connection: close\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n"
NOT_HTTP = {
    "message": "this is not valid HTTP/1.1",
    "type": "invalid_request_error",
    "param": None,
    "code": 400,
}


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the body, when it is there; "/early" before, "/half" only begins before;
    "/parts" does not say how long it is."""
    content = b""
    more = scope["path"] != "/early"
    if scope["path"] == "/half":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        content += message["body"]
        more = message["more_body"]
    headers = [(b"content-length", str(len(content)).encode())]
    if scope["path"] == "/parts":
        headers = []
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if scope["path"] == "/parts":
        await send({"type": "http.response.body", "body": b"so: ", "more_body": True})
    await send({"type": "http.response.body", "body": content})


async def answers(*sent: bytes, patience_s: float = 5.0) -> bytes:
    """All that one connection says."""
    patience: Any = patience_s
    config = uvicorn.Config(
        echo, lifespan="off", log_config=None, access_log=False, timeout_keep_alive=patience
    )
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: HttpProtocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    async with server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        told = asyncio.create_task(_all(reader))
        with suppress(ConnectionError):
            for part in sent:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.01)
        await told
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        await asyncio.gather(*state.tasks)
    return told.result()


async def _all(reader: asyncio.StreamReader) -> bytes:
    """What comes before the connection ends, in whatever way."""
    told = b""
    with suppress(ConnectionError):
        async with asyncio.timeout(5):
            while part := await reader.read(2**16):
                told += part
    return told


def run(work: Coroutine[Any, Any, bytes]) -> tuple[bytes, bytes]:
    """(the first line, what stands behind the head) of the last answer."""
    *_, last = asyncio.run(work).split(b"HTTP/1.1 ")
    head, _, body = last.partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0], body


def error(work: Coroutine[Any, Any, bytes], status: bytes) -> dict[str, Any]:
    line, body = run(work)
    assert line == status
    return dict(json.loads(body)["error"])


def test_what_is_http() -> None:
    assert run(answers(POST + CLOSE + b"content-length: 2\r\n\r\nab")) == (b"200 OK", b"ab")
    parts = (b"1\r\na\r\n", b"1\r\nb\r\n0\r\n\r\n")
    assert run(answers(CHUNKED + CLOSE + b"\r\n", *parts)) == (b"200 OK", b"ab")
    both = asyncio.run(answers(GET + b"\r\n" + GET + CLOSE + b"\r\n"))
    assert both.count(b"HTTP/1.1 200 OK") == 2


@pytest.mark.parametrize("connection", [b"", b"connection: keep-alive\r\n"])
def test_the_older_protocol_knows_no_chunks(connection: bytes) -> None:
    head = b" HTTP/1.0\r\n" + connection + b"content-length: 2\r\n\r\nab"
    for path, body in ((b"/parts", b"so: ab"), (b"/", b"ab")):
        told = asyncio.run(answers(b"POST " + path + head))
        assert told.endswith(b"\r\n\r\n" + body)
        assert b"transfer-encoding" not in told
        assert b"connection: close" in told
    chunked = asyncio.run(answers(b"POST /parts HTTP/1.1\r\n" + CLOSE + b"\r\n"))
    assert chunked.endswith(b"\r\n\r\n4\r\nso: \r\n0\r\n\r\n")


def test_what_came_whole_is_answered_whatever_follows() -> None:
    told = asyncio.run(answers(GET + b"\r\n" + GET + b"\r\n\x00"))
    assert told.count(b"HTTP/1.1 200 OK") == told.count(b"HTTP/1.1") == 2


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32),  # TLS
        b"NONE / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET\r\n\r\n",
        GET + b"no colon\r\n\r\n",
        GET + b"a\x00b: c\r\n\r\n",
        POST + b"content-length: -1\r\n\r\n",
        POST + b"content-length: 1\r\ncontent-length: 2\r\n\r\n",
        POST + b"content-length: " + b"9" * 99 + b"\r\n\r\n",
        CHUNKED + b"\r\nzz\r\n",
    ],
)
def test_what_is_not(sent: bytes) -> None:
    assert error(answers(sent), b"400 Bad Request") == NOT_HTTP


TOO_LONG = MAX_HEAD_BYTES + 1
PARTS = [b"x" * 2**13] * 10


@pytest.mark.parametrize(
    "sent",
    [
        [GET + b"a: " + b"x" * TOO_LONG + b"\r\n\r\n"],
        [GET + b"a: ", *PARTS],
        [GET + b"a", *PARTS],
        [GET + b"a: b\r\n" * TOO_LONG],
        [b"GET /" + b"x" * TOO_LONG],
        [b"GET /", *PARTS],
        [b"\r\n" * TOO_LONG],
        [CHUNKED + b"\r\n1;", *PARTS],
        [CHUNKED + b"\r\n0\r\na: ", *PARTS],
        [CHUNKED + b"\r\n0\r\n" + b"a: b\r\n" * TOO_LONG],
    ],
)
def test_a_head_that_is_too_long(sent: list[bytes]) -> None:
    detail = error(answers(*sent), b"431 Request Header Fields Too Large")
    message = f"the request line and the headers have more than {MAX_HEAD_BYTES} bytes"
    assert detail == {**NOT_HTTP, "message": message, "code": 431}


def test_a_head_may_be_as_long_as_that() -> None:
    fits = GET + b"a: " + b"x" * (MAX_HEAD_BYTES - 100) + b"\r\n"
    assert asyncio.run(answers(fits + b"\r\n", fits + CLOSE + b"\r\n")).count(b"200 OK") == 2
    long = b"x" * 2**20
    sent = POST + CLOSE + b"content-length: %d\r\n\r\n" % len(long) + long
    assert run(answers(sent))[1] == long


@pytest.mark.parametrize("sent", [[], [b"\r\n"], [GET], [GET + b"\r\n", b"\r\n"]])
def test_who_sends_no_head_is_left(sent: list[bytes]) -> None:
    told = asyncio.run(answers(*sent, patience_s=0.05))
    assert told.count(b"HTTP/1.1 200 OK") == sent.count(GET + b"\r\n")


def test_who_waits_for_an_answer_is_not() -> None:
    begun = POST + CLOSE + b"content-length: 2\r\n\r\na"
    late = answers(begun, *[b""] * 7, b"b", patience_s=0.05)
    assert run(late)[1] == b"ab"


@pytest.mark.parametrize(("path", "n_errors"), [(b"/early", 1), (b"/half", 0)])
def test_a_body_breaks_that_is_being_answered(path: bytes, n_errors: int) -> None:
    """Behind a whole answer an error is the next; nothing stands in the midst of one."""
    told = asyncio.run(answers(CHUNKED.replace(b"/", path, 1) + b"\r\n", b"zz\r\n"))
    assert told.startswith(b"HTTP/1.1 200 OK")
    assert told.count(b"HTTP/1.1 400 Bad Request") == n_errors


H2C = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"


def test_who_would_speak_another_protocol_is_answered_in_this_one() -> None:
    sent = POST + H2C + b"content-length: 2\r\n\r\nab"
    then = POST + CLOSE + b"content-length: 2\r\n\r\ncd"
    told = asyncio.run(answers(sent + then))
    assert told.count(b"HTTP/1.1 200 OK") == told.count(b"HTTP/1.1") == 2
    assert [part[-2:] for part in told.split(b"HTTP/1.1 ")[1:]] == [b"ab", b"cd"]
    parts = (CHUNKED[:30], CHUNKED[30:] + H2C, b"\r\n1\r\na\r\n", b"1\r\nb\r\n0\r\n\r\n")
    assert asyncio.run(answers(*parts, patience_s=0.2)).endswith(b"ab")
    assert asyncio.run(answers(GET + H2C + b"\r\n", then)).count(b"HTTP/1.1 200 OK") == 2


def test_many_of_them_in_one_piece() -> None:
    n = 2000
    sent = (GET + H2C + b"\r\n") * n + GET + CLOSE + b"\r\n"
    assert asyncio.run(answers(sent)).count(b"HTTP/1.1 200 OK") == n + 1
