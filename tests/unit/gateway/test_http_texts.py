"""Texts that take long to be made tokens: others are answered meanwhile; the server may stop."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from common.messages import Expect, FinishReason
from common.text.load import TextModel
from launch.gateway.api.admission import DRAIN_RETRY_S
from tests.unit.gateway.scripted import Said, Served, serving, until

LONG = "abcdefgh " * 30_000  # a third of a second


def says(_expect: Expect, _sample: int) -> Said:
    return [81, 81], FinishReason.LENGTH


def run(text: TextModel, test: Callable[[Served], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        async with serving(text, says) as served:
            await test(served)

    asyncio.run(whole())


def test_requests_are_answered_while_texts_wait_in_line(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        ended: list[str] = []

        async def ask(name: str, path: str, **body: object) -> None:
            response = await served.post(path, **body)
            assert response.status_code == 200, response.text
            ended.append(name)

        texts = [asyncio.create_task(ask(f"text {n}", "/tokenize", prompt=LONG)) for n in range(2)]
        await until(lambda: served.admission.in_progress == 2)
        await asyncio.gather(*(ask("answer", "/v1/completions", prompt="a") for _ in range(3)))
        assert ended == ["answer"] * 3
        await asyncio.gather(*texts)
        assert ended[3:] == ["text 0", "text 1"]

    run(smollm2, test)


def test_short_prompts_are_answered_while_long_ones_wait_in_line(smollm2: TextModel) -> None:
    """More of these than there are threads."""

    async def test(served: Served) -> None:
        async def ask(prompt: str) -> None:
            fields = {"truncate_prompt_tokens": 4}
            response = await served.post("/v1/completions", prompt=prompt, **fields)
            assert response.status_code == 200, response.text

        n_threads = (os.cpu_count() or 1) + 4  # that the loop has
        many = [asyncio.create_task(ask(3 * LONG)) for _ in range(4 * n_threads)]
        await until(lambda: served.admission.in_progress == len(many))
        await asyncio.sleep(0.5)  # they are decoded
        await ask("a")
        assert sum(not one.done() for one in many) > n_threads
        for one in many:
            one.cancel()
        await asyncio.gather(*many, return_exceptions=True)

    run(smollm2, test)


@pytest.mark.parametrize("path", ["/tokenize", "/v1/completions"])
def test_what_no_worker_has_when_the_server_stops_is_told_so(smollm2: TextModel, path: str) -> None:
    """In line, and at work: not a bug's 500."""
    fields = {} if path == "/tokenize" else {"truncate_prompt_tokens": 4}

    async def test(served: Served) -> None:
        ask = partial(served.post, path, prompt=3 * LONG, **fields)
        waiting = [asyncio.create_task(ask()) for _ in range(3)]
        await until(lambda: served.admission.in_progress == 3)
        await asyncio.sleep(0.02)
        served.admission.draining = True
        served.admission.give_up()
        for response in await asyncio.gather(*waiting):
            assert response.status_code == 503
            assert response.json()["error"]["message"] == "the server is stopping"
            assert response.headers["retry-after"] == f"{DRAIN_RETRY_S:g}"

    run(smollm2, test)


def test_a_body_that_comes_when_the_server_stops_is_told_so(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        came = asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield b'{"prompt": "a", '
            await came.wait()
            yield json.dumps({"max_tokens": 1}).encode()[1:]

        headers = {"content-type": "application/json"}
        asked = served.client.post("/v1/completions", content=slow(), headers=headers)
        waiting = asyncio.create_task(asked)
        await until(lambda: served.admission.in_progress == 1)
        served.admission.give_up()
        await asyncio.sleep(0)
        came.set()
        assert (await waiting).status_code == 503

    run(smollm2, test)
