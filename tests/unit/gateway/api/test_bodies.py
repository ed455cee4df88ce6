"""What is read of a request, and what is not."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request

from common.errors import BatonError, ClientError, Overloaded
from launch.gateway.api.bodies import MAX_BODY_BYTES, Bodies

GONE: dict[str, Any] = {"type": "http.disconnect"}


def request(
    *parts: bytes, headers: Sequence[tuple[bytes, bytes]] = (), then: dict[str, Any] | None = None
) -> Request:
    """One whose body comes in these parts. `then`: what comes instead of its end; {}: nothing."""
    last = {"type": "http.request", "body": b"", "more_body": False} if then is None else then
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages.append(last)

    async def receive() -> dict[str, Any]:
        message = messages.pop(0)
        if not message:
            await asyncio.Event().wait()
        return message

    own = [(b"content-type", b"application/json"), *headers]
    return Request({"type": "http", "method": "POST", "headers": own}, receive)


async def read(bodies: Bodies, asked: Request) -> bytes:
    async with bodies.read(asked) as content:
        return content


def refused(work: Coroutine[Any, Any, bytes]) -> tuple[int, str]:
    with pytest.raises(BatonError) as raised:
        asyncio.run(work)
    assert isinstance(raised.value, ClientError | Overloaded)
    return raised.value.status, str(raised.value)


def test_a_body_in_parts() -> None:
    assert asyncio.run(read(Bodies(), request(b"ab", b"c"))) == b"abc"
    assert asyncio.run(read(Bodies(), request())) == b""


def test_too_long_by_its_header_and_by_what_comes() -> None:
    length = str(MAX_BODY_BYTES + 1).encode()
    declared = request(headers=[(b"content-length", length)])
    assert refused(read(Bodies(), declared)) == (
        413,
        "the body has 16777217 bytes; at most 16777216",
    )
    half = b" " * (MAX_BODY_BYTES // 2)
    bodies = Bodies()
    assert refused(read(bodies, request(half, half, b" "))) == (
        413,
        "the body has more than 16777216 bytes; at most 16777216",
    )
    assert bodies.held_bytes == 0
    for strange in (b"", b"-1", b"1" * 5000, "²".encode()):
        asked = request(b"a", headers=[(b"content-length", strange)])
        if len(strange) > 18:
            assert refused(read(bodies, asked))[0] == 413
        else:
            assert asyncio.run(read(bodies, asked)) == b"a"


def test_what_is_not_taken() -> None:
    gzip = request(headers=[(b"content-encoding", b"gzip")])
    message = 'content-encoding is "gzip"; send the body as it is'
    assert refused(read(Bodies(), gzip)) == (415, message)
    as_it_is = request(b"a", headers=[(b"content-encoding", b"Identity")])
    assert asyncio.run(read(Bodies(), as_it_is)) == b"a"


def test_a_body_that_does_not_end_is_given_up() -> None:
    bodies = Bodies(patience_s=0.02)
    status, message = refused(read(bodies, request(b"{", then={})))
    assert (status, message) == (
        408,
        "the body has not come within 0.02 s; of it have come 1 byte",
    )
    assert bodies.held_bytes == 0


def test_what_comes_fast_may_take_longer() -> None:
    async def slow() -> dict[str, Any]:
        await asyncio.sleep(0.01)
        left.append(0)
        return {"type": "http.request", "body": b"x" * 2**12, "more_body": len(left) < 8}

    left: list[int] = []
    headers = [(b"content-type", b"application/json")]
    asked = Request({"type": "http", "method": "POST", "headers": headers}, slow)
    assert len(asyncio.run(read(Bodies(patience_s=0.05), asked))) == 2**15


def test_who_leaves() -> None:
    with pytest.raises(ClientDisconnect):
        asyncio.run(read(Bodies(), request(b"{", then=GONE)))


def test_all_together_are_held_within_a_bound() -> None:
    bodies = Bodies(max_held_bytes=5)

    async def two() -> None:
        async with bodies.read(request(b"abc")) as first:
            assert (first, bodies.held_bytes) == (b"abc", 3)
            with pytest.raises(Overloaded) as raised:
                await read(bodies, request(b"abc"))
            assert raised.value.status == 429
            assert str(raised.value) == "6 bytes of requests are being read; at most 5 at once"
            assert bodies.held_bytes == 3
            assert await read(bodies, request(b"ab")) == b"ab"
        assert await read(bodies, request(b"abc")) == b"abc"

    asyncio.run(two())
    assert bodies.held_bytes == 0
