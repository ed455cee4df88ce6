"""What the client tells of an answer that is none, and of a connection that its server has had
enough of."""

import asyncio
import time

import pytest

from bench.client import Outcome, Request, Target, said, send
from bench.sender import open_session

ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'24\r\ndata: {"choices": [{"text": "x"}]}\n\n\r\n'
    b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
)


async def one_answer_a_connection(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Reads whatever comes then, and closes."""
    await _request(reader)
    writer.write(ANSWER)
    await reader.read(1)
    writer.close()


async def _request(reader: asyncio.StreamReader) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
    await reader.readexactly(length)


async def outcomes_of(n_requests: int) -> list[Outcome]:
    server = await asyncio.start_server(one_answer_a_connection, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    target = Target(base_url=f"http://127.0.0.1:{port}", model="m")
    made: list[Outcome] = []
    async with server, open_session(target) as session:
        for index in range(n_requests):
            began = time.perf_counter()
            made.append(Outcome(index=index, scheduled_s=0.0, sent_s=0.0))
            await send(session, target, Request(prompt="p", max_tokens=1), made[-1], began)
    return made


def test_a_connection_that_the_server_closes_between_two_requests_fails_neither() -> None:
    made = asyncio.run(outcomes_of(4))
    assert [(outcome.error, outcome.text) for outcome in made] == [("", "x")] * 4


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"error": {"message": "too long", "type": "invalid", "param": "slo"}}', "too long"),
        ('{"error": "too long"}', '{"error": "too long"}'),
        ("<html>502</html>", "<html>502</html>"),
        ("", ""),
        ("x" * 999, "x" * 300),
    ],
)
def test_a_refusal_is_its_message(text: str, told: str) -> None:
    assert said(text) == told
