"""One request of more prompts than workers let wait: they wait here, and all are answered."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from common.config import ServeConfig
from common.messages import Expect, FinishReason
from common.text.load import TextModel
from launch.gateway.api.answer import FIRST_PROMPTS
from launch.gateway.api.requests import MAX_CHOICES
from tests.unit.gateway.scripted import FULL, Said, Served, serving

MOST_IN_FLIGHT = 64 + 256 // 2  # what the worker decodes, and half of what may wait there
Test = Callable[[Served], Coroutine[Any, Any, None]]


def echo(expect: Expect, sample: int) -> Said:
    """An answer that tells whose it is."""
    return [*expect.prompt, 100 + sample], FinishReason.LENGTH


def run(text: TextModel, test: Test, config: ServeConfig | None = None) -> None:
    async def whole() -> None:
        async with serving(text, echo, config=config) as served:
            await test(served)

    asyncio.run(whole())


def prompts(n: int) -> list[list[int]]:
    return [[500 + at, 600 + at] for at in range(n)]


async def answers(served: Served, n_prompts: int, **body: object) -> list[list[int]]:
    """Of each choice the tokens, in order."""
    said = await served.complete(prompt=prompts(n_prompts), return_token_ids=True, **body)
    assert said["usage"]["prompt_tokens"] == 2 * n_prompts
    assert [choice["index"] for choice in said["choices"]] == list(range(len(said["choices"])))
    return [choice["token_ids"] for choice in said["choices"]]


def test_as_many_as_may_be_asked_are_answered_and_leave_room_for_others(
    smollm2: TextModel,
) -> None:
    async def test(served: Served) -> None:
        said = await answers(served, MAX_CHOICES)
        assert said == [[*prompt, 100] for prompt in prompts(MAX_CHOICES)]
        assert served.worker.most_seen <= MOST_IN_FLIGHT

    run(smollm2, test)


def test_samples_count_each(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        said = await answers(served, 128, n=8)
        assert said == [[*prompt, 100 + at] for prompt in prompts(128) for at in range(8)]
        assert served.worker.most_seen <= MOST_IN_FLIGHT / 8

    run(smollm2, test)


def test_whoever_finds_no_room_once_the_answer_has_begun_waits_for_it(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        served.worker.most_jobs = FIRST_PROMPTS
        said = await answers(served, FIRST_PROMPTS + 9)
        assert len(said) == FIRST_PROMPTS + 9
        assert len(served.worker.seen) > len(said)  # some were asked for again

    run(smollm2, test)


def test_an_answer_that_cannot_begin_is_refused_as_ever(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        served.worker.most_jobs = FIRST_PROMPTS - 1
        response = await served.post("/v1/completions", prompt=prompts(FIRST_PROMPTS))
        assert response.status_code == 429
        served.worker.refusal = FULL
        response = await served.post("/v1/completions", prompt=prompts(1))
        assert (response.status_code, response.headers["retry-after"]) == (429, "1")

    run(smollm2, test)


def test_the_gateways_own_bound_refuses_no_prompt_of_an_answer_that_has_begun(
    smollm2: TextModel,
) -> None:
    config = ServeConfig(served_model_name="tiny", max_waiting_requests=FIRST_PROMPTS)

    async def test(served: Served) -> None:
        assert len(await answers(served, FIRST_PROMPTS + 9)) == FIRST_PROMPTS + 9

    run(smollm2, test, config)


def test_time_passes_for_those_that_wait(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        served.worker.most_jobs, served.worker.turn_s = FIRST_PROMPTS, 0.2
        body = {"prompt": prompts(200), "timeout_s": 1.5}
        began = asyncio.get_running_loop().time()
        response = await served.post("/v1/completions", **body)
        assert response.status_code == 504
        assert response.json()["error"]["param"] == "timeout_s"
        assert "timeout_s is 1.5" in response.json()["error"]["message"]
        assert asyncio.get_running_loop().time() - began < 5

    run(smollm2, test)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_begins_nothing_more(smollm2: TextModel, *, stream: bool) -> None:
    async def test(served: Served) -> None:
        served.worker.silent = True
        body = {"prompt": prompts(200), "stream": stream}
        asking = asyncio.create_task(served.post("/v1/completions", **body))
        async with asyncio.timeout(10):
            while len(served.worker.seen) < FIRST_PROMPTS:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        asking.cancel()
        async with asyncio.timeout(10):
            while served.engine.n_requests or served.worker.jobs:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    run(smollm2, test)
