"""A client that means ill, and what every answer to it must be: an answer, or an error that says
which field is wrong. Never a bug, never silence."""

import json
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

from tests.servers import RunningServer

SERVED_NAME = "smollm2"
JSON = {"content-type": "application/json"}
PATIENCE_S = 20.0  # for any answer
COMPLETIONS, CHATS, ITEMS = "/v1/completions", "/v1/chat/completions", "/v1/responses"
USER = {"role": "user", "content": "a"}
SMALLEST: Mapping[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "a", "max_tokens": 1},
    CHATS: {"messages": [USER], "max_tokens": 1},
    ITEMS: {"input": "a", "max_output_tokens": 1},
    "/tokenize": {"messages": [USER]},
    "/detokenize": {"tokens": [81]},
}
"""Of each endpoint a body that is quickly answered."""
ENDS = ("response.completed", "response.incomplete", "response.failed")
_REFUSALS = frozenset((400, 404, 413, 415))
_MAX_MESSAGE_CHARS = 1003


@dataclass(frozen=True, slots=True)
class Answer:
    """All of it."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    content: bytes

    @property
    def error(self) -> dict[str, Any]:
        """What the envelope holds. Fails where there is none."""
        assert self.headers.get("content-type") == "application/json", self
        (name, detail), *others = json.loads(self.content).items()
        assert (name, others) == ("error", []), self
        assert set(detail) == {"message", "type", "param", "code"}, self
        assert detail["code"] == self.status, self
        assert 0 < len(detail["message"]) <= _MAX_MESSAGE_CHARS, self
        assert isinstance(detail["type"], str), self
        return dict(detail)


def post(
    server: RunningServer,
    path: str,
    content: bytes | Iterable[bytes],
    headers: Mapping[str, str] = JSON,
) -> Answer:
    """`content` in parts: chunked."""
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)) as connection:
        connection.request("POST", path, body=content, headers=dict(headers))
        response = connection.getresponse()
        told = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, told, response.read())


def written(body: object) -> bytes:
    """As JSON, and as what only Python takes for it: NaN, Infinity, lone surrogates."""
    return json.dumps(body).encode()


def check(answer: Answer, content: bytes, may: Iterable[int] = ()) -> None:
    """What holds whatever the body was. `may`: statuses that this one may have, beside."""
    if answer.status == 200:
        _check_whole(answer)
        assert b'{"error":' not in answer.content or b"timeout_s" in content, answer
        return
    allowed = {*_REFUSALS, *may}
    if b"timeout_s" in content:
        allowed.add(504)
    if b"slo" in content:
        allowed.add(429)
    assert answer.status in allowed, (answer, content[:1000])
    detail = answer.error
    if answer.status == 400:
        of_all = detail["message"].startswith("the body ")
        assert of_all == (detail["param"] is None), (answer, content[:1000])


def _check_whole(answer: Answer) -> None:
    if answer.headers["content-type"].startswith("text/event-stream"):
        *events, end = answer.content.split(b"\n\n")
        assert end == b"", answer
        if events[0].startswith(b"event: "):  # of items: each is named, the last by how it ended
            named = [event.split(b"\ndata: ") for event in events]
            kinds = [json.loads(data)["type"] for _, data in named]
            assert kinds == [name.removeprefix(b"event: ").decode() for name, _ in named], answer
            assert kinds[-1] in ENDS, answer
        else:
            assert events.pop() == b"data: [DONE]", answer
            assert events, answer
            for event in events:
                json.loads(event.removeprefix(b"data: "))
    else:
        json.loads(answer.content)


def exchange(server: RunningServer, *sent: bytes, ends: bool = False) -> bytes:
    """All that the server says to one connection, until it closes it. `ends`: the client does."""
    told = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as connection:
        for part in sent:
            connection.sendall(part)
        if ends:
            connection.shutdown(socket.SHUT_WR)
        while part := connection.recv(2**16):
            told += part
    return told


def parsed(told: bytes) -> list[Answer]:
    """Whole answers with a length, as they follow each other."""
    answers: list[Answer] = []
    while told:
        head, _, told = told.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (one.partition(": ") for one in lines)}
        status = int(first.split(" ")[1])
        length = int(headers.get("content-length", "0"))
        if status >= 200:
            answers.append(Answer(status, headers, told[:length]))
        told = told[length:]
    return answers


def request_of(method: str, path: str, *headers: str, body: bytes = b"") -> bytes:
    """The bytes of a request behind which the connection is closed."""
    first = (f"{method} {path} HTTP/1.1", "host: t", "connection: close")
    lines: Sequence[str] = (*first, *headers, "", "")
    return "\r\n".join(lines).encode("latin-1") + body
