"""The client leaves: whatever was done for it ends, at the worker too."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from starlette.types import Message

from common.messages import Expect, FinishReason
from common.text.load import TextModel
from tests.unit.gateway.scripted import Said, Served, serving, until

SCOPE = {
    "type": "http",
    "asgi": {"version": "3.0"},
    "http_version": "1.1",
    "method": "POST",
    "path": "/v1/completions",
    "raw_path": b"/v1/completions",
    "root_path": "",
    "query_string": b"",
    "headers": [(b"content-type", b"application/json")],
}


def says(_expect: Expect, _sample: int) -> Said:
    return [81] * 100, FinishReason.LENGTH


class Client:
    """One that sends a body and may leave, spoken to in ASGI."""

    def __init__(self, **body: object) -> None:
        asked = {"prompt": "a", "max_tokens": 100, **body}
        self._body = json.dumps(asked).encode()
        self._asked = False
        self.left = asyncio.Event()
        self.heard: list[Message] = []
        self.something = asyncio.Event()

    async def receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.heard.append(message)
        if message["type"] == "http.response.body" and message["body"]:
            self.something.set()


def test_a_stream_is_left(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        client = Client(stream=True)
        answering = asyncio.create_task(served.app(SCOPE, client.receive, client.send))
        await asyncio.wait_for(client.something.wait(), 5)
        client.left.set()
        await asyncio.wait_for(answering, 5)
        await asyncio.wait_for(served.worker.ended.wait(), 5)
        assert served.worker.jobs == {}
        assert client.heard[-1]["more_body"]  # it was cut, not ended
        assert 'finished_reason="abort"' in served.metrics.render().decode()

    asyncio.run(_with_worker(smollm2, test, silent=False))


@pytest.mark.parametrize("stream", [False, True])
def test_left_before_the_first_token(smollm2: TextModel, stream: bool) -> None:  # noqa: FBT001
    async def test(served: Served) -> None:
        client = Client(stream=stream)
        answering = asyncio.create_task(served.app(SCOPE, client.receive, client.send))
        await until(lambda: bool(served.worker.jobs))
        client.left.set()
        await asyncio.wait_for(answering, 5)
        await asyncio.wait_for(served.worker.ended.wait(), 5)
        assert served.worker.jobs == {}

    asyncio.run(_with_worker(smollm2, test, silent=True))


def test_left_before_any_worker_has_accepted(smollm2: TextModel) -> None:
    """The worker never answers: it is busy, say."""

    async def test(served: Served) -> None:
        client = Client()
        served.worker.deaf = True
        answering = asyncio.create_task(served.app(SCOPE, client.receive, client.send))
        await until(lambda: bool(served.engine.n_requests))
        client.left.set()
        await asyncio.wait_for(answering, 5)
        assert [message.get("status") for message in client.heard[:1]] == [499]

    asyncio.run(_with_worker(smollm2, test, silent=True))


async def _with_worker(
    text: TextModel, test: Callable[[Served], Coroutine[Any, Any, None]], *, silent: bool
) -> None:
    async with serving(text, says) as served:
        served.worker.silent = silent
        await test(served)
