"""An answer is not kept without end for a client that reads it slowly."""

import asyncio
import json

import pytest
from starlette.types import Message

from common.messages import Expect, FinishReason
from common.text.load import TextModel
from launch.gateway import engine
from tests.unit.gateway.scripted import Said, serving
from tests.unit.gateway.test_http_disconnect import SCOPE

N_TOKENS = 100


def says(_expect: Expect, _sample: int) -> Said:
    return [81] * N_TOKENS, FinishReason.LENGTH


class Client:
    """One whose connection takes nothing after the first event until it is told to."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.heard: list[Message] = []
        self._asked = False

    async def receive(self) -> Message:
        if self._asked:
            await asyncio.Event().wait()  # it stays
        self._asked = True
        body = json.dumps({"prompt": "a", "max_tokens": N_TOKENS, "stream": True}).encode()
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        self.heard.append(message)
        if message.get("body"):
            await self.reads.wait()


def test_past_the_bound_it_ends_and_so_does_the_work(
    smollm2: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "MAX_UNREAD_TOKENS", 20)

    async def test() -> None:
        async with serving(smollm2, says) as served:
            client = Client()
            answering = asyncio.create_task(served.app(SCOPE, client.receive, client.send))
            await asyncio.wait_for(served.worker.ended.wait(), 10)  # nobody reads, all is given up
            assert served.worker.jobs == {}
            client.reads.set()
            await asyncio.wait_for(answering, 5)
            text = b"".join(message.get("body", b"") for message in client.heard).decode()
            *events, last, done, _ = text.split("\n\n")
            assert done == "data: [DONE]"
            told = [json.loads(event.removeprefix("data: ")) for event in events]
            n_tokens = sum(bool(event["choices"][0]["text"]) for event in told)
            assert 20 < n_tokens < N_TOKENS
            error = json.loads(last.removeprefix("data: "))["error"]
            assert error["code"] == 408
            assert error["message"].startswith("the answer is read too slowly: ")
            assert 'slow_readers_total{model_name="tiny"} 1.0' in served.metrics.render().decode()

    asyncio.run(test())


def test_whoever_keeps_up_gets_it_all(smollm2: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MAX_UNREAD_TOKENS", 20)

    async def test() -> None:
        async with serving(smollm2, says) as served:
            for stream in (True, False):
                body = {"prompt": "a", "max_tokens": N_TOKENS, "stream": stream}
                response = await served.client.post("/v1/completions", json=body)
                assert response.status_code == 200
                assert "error" not in response.text
                assert '"finish_reason":"length"' in response.text

    asyncio.run(test())
