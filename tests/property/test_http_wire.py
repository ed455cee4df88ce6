"""Requests that are HTTP in strange ways, or nearly: to each an answer, and the next is served."""

import json

import pytest

from launch.gateway.protocol import MAX_HEAD_BYTES
from tests.property.hostile import (
    COMPLETIONS,
    JSON,
    SMALLEST,
    Answer,
    exchange,
    parsed,
    post,
    request_of,
    written,
)
from tests.servers import RunningServer

pytestmark = pytest.mark.slow
BODY = written({**SMALLEST[COMPLETIONS], "seed": 1})
TYPE = "content-type: application/json"
LENGTH = f"content-length: {len(BODY)}"
CHUNKED = "transfer-encoding: chunked"
GOOD = request_of("POST", COMPLETIONS, TYPE, LENGTH, body=BODY)
CHUNKS = b"%x;ext=1\r\n%s\r\n0\r\ntrailer: 1\r\n\r\n" % (len(BODY), BODY)


def only(server: RunningServer, *sent: bytes) -> Answer:
    (answer,) = parsed(exchange(server, *sent))
    return answer


@pytest.mark.parametrize(
    "sent",
    [
        [GOOD],
        [GOOD[at : at + 1] for at in range(len(GOOD))],
        [b"\r\n" + GOOD],
        [request_of("POST", COMPLETIONS, TYPE, CHUNKED, body=CHUNKS)],
        [request_of("POST", COMPLETIONS + "?a=%ff&b", TYPE, LENGTH, body=BODY)],
        [request_of("POST", "http://other:1" + COMPLETIONS, TYPE, LENGTH, body=BODY)],
        [request_of("POST", COMPLETIONS, TYPE.upper(), LENGTH, body=BODY)],
        [request_of("POST", COMPLETIONS, TYPE, "expect: 100-continue", LENGTH, body=BODY)],
        [GOOD.replace(b"HTTP/1.1", b"HTTP/1.0")],
        [GOOD.replace(b"host: t\r\n", b"")],
        [GOOD.replace(b"host: t", b"host: [")],
        [GOOD.replace(b"host: t", b"host: \xff:99999999")],
    ],
)
def test_what_is_served(http_server: RunningServer, sent: list[bytes]) -> None:
    answer = only(http_server, *sent)
    assert answer.status == 200, answer
    assert json.loads(answer.content)["usage"]["completion_tokens"] == 1


def test_one_after_the_other(http_server: RunningServer) -> None:
    """Whatever each of them comes to, on one connection."""
    other = request_of("POST", COMPLETIONS, "content-type: text/plain", LENGTH, body=BODY)
    nowhere = request_of("GET", "/nowhere")
    kept = (GOOD + other + nowhere + GOOD).replace(b"connection: close\r\n", b"")
    told = exchange(http_server, kept + b"\x00")
    assert [answer.status for answer in parsed(told)] == [200, 415, 404, 200]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (request_of("GET", COMPLETIONS), 405),
        (request_of("PUT", COMPLETIONS, LENGTH, body=BODY), 405),
        (request_of("OPTIONS", COMPLETIONS), 405),
        (request_of("DELETE", "/v1/models/a"), 405),
        (request_of("POST", "/docs/assets/index.html", "content-length: 0"), 405),
        (request_of("GET", "/nowhere?\xff"), 400),
        (request_of("GET", "/nowhere?%ff"), 404),
        (request_of("GET", "/%00"), 404),
        (request_of("GET", "/%ff%fe"), 404),
        (request_of("GET", "//a/../b"), 404),
        (request_of("GET", "/" + "a" * 60_000), 404),
        (request_of("GET", "/nowhere").replace(b"host: t", b"host: ["), 404),
        (request_of("GET", "/nowhere").replace(b"host: t", b"host: a b"), 404),
        (request_of("POST", COMPLETIONS + "/", TYPE, LENGTH, body=BODY), 404),
        (request_of("GET", "/docs/assets/%00"), 404),
        (request_of("GET", "/docs/assets/..%2f..%2fetc%2fpasswd"), 404),
        (request_of("GET", "/docs/assets/" + "a" * 1000), 404),
        (request_of("GET", "/v1/models/" + "%F0%9F%A4%96" * 1000), 404),
        (request_of("GET", "/\xff"), 400),
        (request_of("GET", "nowhere"), 400),
        (request_of("GEt", "/health"), 400),
        (request_of("GET", "/health", "a b: c"), 400),
        (request_of("GET", "/health", "a: b\x00c"), 400),
        (request_of("GET", "/health").replace(b"HTTP/1.1", b"HTTP/3.0"), 400),
        (request_of("POST", COMPLETIONS, TYPE, LENGTH, CHUNKED, body=BODY), 400),
        (request_of("POST", COMPLETIONS, TYPE, "content-length: -5", body=BODY), 400),
        (request_of("POST", COMPLETIONS, TYPE, LENGTH, "content-length: 5", body=BODY), 400),
        (request_of("POST", COMPLETIONS, TYPE, "content-length: 1e1", body=BODY), 400),
        (request_of("POST", COMPLETIONS, TYPE, CHUNKED, body=b"fffffffffffffffff\r\na"), 400),
        (request_of("POST", COMPLETIONS, TYPE, CHUNKED, body=b"-1\r\na\r\n0\r\n\r\n"), 400),
        (request_of("POST", COMPLETIONS, TYPE, "content-length: 99999999999", body=BODY), 413),
        (request_of("POST", COMPLETIONS, TYPE, "content-length: 0"), 400),
        (request_of("POST", COMPLETIONS, TYPE), 400),
        (b"\x16\x03\x01\x02\x00" + bytes(100), 400),
        (b"\r\n\r\nhello\r\n\r\n", 400),
        (request_of("GET", "/health", "a: " + "b" * MAX_HEAD_BYTES), 431),
        (request_of("GET", "/health", *["a: b"] * MAX_HEAD_BYTES), 431),
    ],
    ids=lambda one: repr(one[:70]) if isinstance(one, bytes) else "",
)
def test_what_is_refused(http_server: RunningServer, sent: bytes, status: int) -> None:
    answer = only(http_server, sent)
    assert answer.status == status, answer
    assert answer.error["type"] in ("invalid_request_error", "not_found_error")


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        GOOD[:20],
        GOOD[:-5],
        request_of("POST", COMPLETIONS, TYPE, CHUNKED, body=b"5\r\n{"),
        request_of("POST", COMPLETIONS, TYPE, CHUNKED, body=CHUNKS[:-4]),
    ],
)
def test_who_breaks_off_is_not_answered(http_server: RunningServer, sent: bytes) -> None:
    assert exchange(http_server, sent, ends=True) == b""


def test_a_head_asks_for_no_body(http_server: RunningServer) -> None:
    for path, status in (("/health", b"200"), ("/nowhere", b"404"), (COMPLETIONS, b"405")):
        told = exchange(http_server, request_of("HEAD", path))
        assert told.startswith(b"HTTP/1.1 " + status)
        assert told.endswith(b"\r\n\r\n")


def test_the_next_is_served(http_server: RunningServer) -> None:
    """By the same processes: see the fixture."""
    assert post(http_server, COMPLETIONS, BODY, JSON).status == 200
