"""/v1/responses through the whole application, with the official client: what it gets must be of
its own types, and pass through its own reader of streams."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from common.config import ServeConfig
from common.messages import Expect, FinishReason
from common.text.load import TextModel
from common.text.template import ChatTemplate
from tests.unit.gateway.scripted import CACHED_TOKENS, Said, Served, serving, until

END = 2  # <|im_end|>
PATH = "/v1/responses"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TEMPLATE = (
    "{% for tool in tools or [] %}<tool_call>{{ tool | tojson }}\n{% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function.arguments.city }}</tool_call>"
    "{% endfor %}\n{% endfor %}"
)
TOOL: Any = {
    "type": "function",
    "name": "weather",
    "description": None,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
QWEN3 = ServeConfig(served_model_name="tiny", reasoning_parser="qwen3")
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


@pytest.fixture
def text(smollm2: TextModel) -> TextModel:
    return replace(smollm2, template=ChatTemplate({"default": TEMPLATE}, {}))


def run(
    text: TextModel,
    says: str,
    test: Callable[[Served, openai.AsyncOpenAI], Coroutine[Any, Any, None]],
    *,
    config: ServeConfig | None = None,
    finish: FinishReason = FinishReason.STOP,
) -> None:
    ids = text.tokenizer.encode(says, add_special_tokens=False)
    if finish is FinishReason.STOP:
        ids = [*ids, END]

    def said(_expect: Expect, _sample: int) -> Said:
        return ids, finish

    async def whole() -> None:
        async with serving(text, said, config=config) as served:
            client = openai.AsyncOpenAI(
                base_url="http://t/v1", api_key="none", http_client=served.client, max_retries=0
            )
            await test(served, client)

    asyncio.run(whole())


async def streamed(served: Served, **body: object) -> list[dict[str, Any]]:
    """The events as they are on the wire, each of the client's type, numbered and named."""
    response = await served.client.post(PATH, json={"input": "Hi", "stream": True, **body})
    assert response.status_code == 200, response.text
    events: list[dict[str, Any]] = []
    for block in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        EVENTS.validate_python(event)
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == len(events)
        events.append(event)
    return events


def steps(events: list[dict[str, Any]]) -> list[str]:
    """Their names, of those that repeat each other one."""
    names = [event["type"].removeprefix("response.") for event in events]
    return [name for n, name in enumerate(names) if n == 0 or names[n - 1] != name]


MESSAGE = [
    *("created", "in_progress", "output_item.added", "content_part.added", "output_text.delta"),
    *("output_text.done", "content_part.done", "output_item.done"),
]


def test_a_text_is_answered_whole_and_streamed(text: TextModel) -> None:
    async def test(served: Served, client: openai.AsyncOpenAI) -> None:
        asked: Any = {
            "model": "tiny",
            "input": "Hi",
            "instructions": "Be kind.",
            "max_output_tokens": 40,
            "temperature": 0.5,
            "metadata": {"a": "b"},
        }
        whole = await client.responses.create(**asked)
        Response.model_validate(whole.to_dict())
        assert (whole.output_text, whole.status) == ("Hello there", "completed")
        assert (whole.instructions, whole.temperature, whole.top_p) == ("Be kind.", 0.5, 1.0)
        assert (whole.metadata, whole.store, whole.incomplete_details) == ({"a": "b"}, False, None)
        assert whole.usage is not None
        assert whole.usage.output_tokens == 3
        assert whole.usage.input_tokens_details.cached_tokens == CACHED_TOKENS
        assert whole.usage.total_tokens == whole.usage.input_tokens + 3
        assert whole.id.startswith("resp")

        async with client.responses.stream(**asked) as stream:
            texts = [
                event.delta async for event in stream if event.type == "response.output_text.delta"
            ]
            final = await stream.get_final_response()
        assert texts == ["Hello", " there"]
        assert final.output_text == whole.output_text
        assert final.usage == whole.usage

        events = await streamed(served)
        assert steps(events) == [*MESSAGE, "completed"]
        assert events[0]["response"]["status"] == "in_progress"
        assert events[0]["response"]["output"] == []
        assert events[2]["item"]["content"] == []
        assert events[-1]["response"]["output"] == [events[-2]["item"]]

    run(text, "Hello there", test)


def test_an_answer_that_a_length_cuts_off_is_incomplete(text: TextModel) -> None:
    async def test(served: Served, client: openai.AsyncOpenAI) -> None:
        whole = await client.responses.create(model="tiny", input="Hi", max_output_tokens=2)
        assert whole.status == "incomplete"
        assert whole.incomplete_details is not None
        assert whole.incomplete_details.reason == "max_output_tokens"
        assert whole.output[0].type == "message"
        assert whole.output[0].status == "incomplete"
        events = await streamed(served)
        assert steps(events) == [*MESSAGE, "incomplete"]
        assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}

    run(text, "Hello there", test, finish=FinishReason.LENGTH)


def test_an_answer_of_nothing_is_an_empty_message(text: TextModel) -> None:
    async def test(served: Served, client: openai.AsyncOpenAI) -> None:
        whole = await client.responses.create(model="tiny", input="Hi")
        (item,) = whole.output
        assert item.type == "message"
        assert whole.output_text == ""
        assert "output_text.delta" not in steps(await streamed(served))

    run(text, "", test)


def test_what_is_said_before_a_call_and_the_call_are_items(text: TextModel) -> None:
    async def test(served: Served, client: openai.AsyncOpenAI) -> None:
        asked: Any = {"model": "tiny", "input": "Rain?", "tools": [TOOL]}
        whole = await client.responses.create(**asked)
        Response.model_validate(whole.to_dict())
        said, call = whole.output
        assert said.type == "message"
        assert whole.output_text == "Let me see. "
        assert call.type == "function_call"
        assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Paris"})
        assert call.call_id.startswith("call_")
        assert call.status == "completed"

        async with client.responses.stream(**asked) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        assert "response.function_call_arguments.delta" in kinds
        assert [item.type for item in final.output] == ["message", "function_call"]
        events = await streamed(served, tools=[TOOL])
        assert steps(events) == [
            *MESSAGE,
            *("output_item.added", "function_call_arguments.delta"),
            *("function_call_arguments.done", "output_item.done", "completed"),
        ]
        assert events[-2]["item"]["call_id"] == events[-5]["item"]["call_id"]

        output: Any = whole.to_dict()["output"]
        items: Any = [{"role": "user", "content": "Rain?"}, *output]
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": "rain"})
        await client.responses.create(model="tiny", input=items, tools=[TOOL])
        prompt = text.tokenizer.decode(served.worker.seen[-1].prompt, skip_special_tokens=False)
        assert "assistant: Let me see. <tool_call>Paris</tool_call>tool: rain" in prompt

    run(text, "Let me see. " + CALL, test)


def test_space_around_calls_is_no_message(text: TextModel) -> None:
    async def test(_: Served, client: openai.AsyncOpenAI) -> None:
        whole = await client.responses.create(model="tiny", input="Rain?", tools=[TOOL])
        calls = [item for item in whole.output if item.type == "function_call"]
        assert len(whole.output) == len(calls) == 2
        assert calls[0].call_id != calls[1].call_id

    run(text, f"\n{CALL}\n{CALL}\n", test)


def test_thoughts_are_an_item_before_the_message(text: TextModel) -> None:
    async def test(served: Served, client: openai.AsyncOpenAI) -> None:
        whole = await client.responses.create(model="tiny", input="Why?")
        Response.model_validate(whole.to_dict())
        thought, said = whole.output
        assert thought.type == "reasoning"
        assert thought.content is not None
        assert [part.text for part in thought.content] == ["Well."]
        assert (said.type, whole.output_text) == ("message", "\nSo.")
        assert whole.usage is not None
        n_thought = whole.usage.output_tokens_details.reasoning_tokens
        assert 4 < n_thought < whole.usage.output_tokens - 1
        assert steps(await streamed(served)) == [
            *("created", "in_progress", "output_item.added", "content_part.added"),
            *("reasoning_text.delta", "reasoning_text.done", "content_part.done"),
            *("output_item.done", *MESSAGE[2:], "completed"),
        ]

    run(text, "<think>Well.</think>\nSo.", test, config=QWEN3)


def test_logprobs_are_those_of_the_tokens(text: TextModel) -> None:
    include: Any = ["message.output_text.logprobs"]

    async def test(served: Served, client: openai.AsyncOpenAI) -> None:
        whole = await client.responses.create(
            model="tiny", input="Hi", include=include, top_logprobs=2
        )
        (item,) = whole.output
        assert item.type == "message"
        assert item.content[0].type == "output_text"
        scores = item.content[0].logprobs
        assert scores is not None
        assert [score.token for score in scores[:2]] == ["Hello", " there"]
        assert [len(score.top_logprobs) for score in scores] == [2, 2, 2]
        events = await streamed(served, include=include)
        deltas = [event for event in events if event["type"] == "response.output_text.delta"]
        assert [event["logprobs"][0]["token"] for event in deltas] == ["Hello", " there"]
        (done,) = [event for event in events if event["type"] == "response.output_text.done"]
        assert [score["token"] for score in done["logprobs"][:2]] == ["Hello", " there"]

    run(text, "Hello there", test)


def test_what_is_refused_names_its_field(text: TextModel) -> None:
    async def test(served: Served, client: openai.AsyncOpenAI) -> None:
        wrong: Any
        for wrong in ({"store": True}, {"previous_response_id": "resp_1"}):
            with pytest.raises(openai.BadRequestError) as raised:
                await client.responses.create(model="tiny", input="Hi", **wrong)
            assert raised.value.param in wrong
            assert "stored here" in raised.value.message
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve("resp_1")
        assert served.worker.seen == []

    run(text, "Hello", test)


def test_an_answer_that_breaks_is_told_to_have_failed(text: TextModel) -> None:
    async def test(served: Served, client: openai.AsyncOpenAI) -> None:
        served.worker.silent = True
        asked = asyncio.create_task(streamed(served))
        streams = served.engine._streams
        await until(lambda: any(stream.is_admitted for stream in streams.values()))
        served.engine.close()
        events = await asked
        assert steps(events) == ["created", "in_progress", "error", "failed"]
        assert events[2]["message"] == "the server is shutting down"
        assert (events[2]["code"], events[2]["param"]) == ("503", None)
        failed = events[3]["response"]
        assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
        with pytest.raises(openai.InternalServerError):
            await client.responses.create(model="tiny", input="Hi")

    run(text, "Hello", test)
