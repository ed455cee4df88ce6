"""The official client, in each of its ways. Run with its own venv's Python: URL KEY MODEL."""

# pyright: basic, reportMissingImports=false
import asyncio
import sys
from typing import Any, Literal

import openai
from pydantic import BaseModel, Field

URL, KEY, MODEL = sys.argv[1:]
USER: Any = [{"role": "user", "content": "What is a relay race?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
ITEM_TOOL: Any = {"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": True}


class Runner(BaseModel):
    name: str = Field(max_length=8)
    leg: Literal[1, 2, 3, 4]


def texts(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
    whole = client.completions.create(**asked)
    with client.completions.create(**asked, stream=True) as stream:
        parts = "".join(chunk.choices[0].text for chunk in stream)
    assert parts == whole.choices[0].text != "", (parts, whole)
    assert whole.usage and whole.usage.completion_tokens == 8, whole


def chats(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "messages": USER, "max_completion_tokens": 8, "temperature": 0}
    whole = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
    content = whole.choices[0].message.content
    usage: Any = {"include_usage": True}
    with client.chat.completions.create(**asked, stream=True, stream_options=usage) as stream:
        chunks = list(stream)
    told = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(told) == content != "", (told, whole)
    told = chunks[-1].usage
    assert told and told.completion_tokens == 8, chunks[-1]
    with client.chat.completions.stream(**asked) as events:
        deltas = [event.delta for event in events if event.type == "content.delta"]
    assert "".join(deltas) == content, deltas


def tools(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "messages": USER, "tools": [TOOL], "tool_choice": "required"}
    asked |= {"parallel_tool_calls": False, "max_tokens": 60, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    call, *others = whole.choices[0].message.tool_calls or []
    assert not others, whole
    assert call.type == "function" and call.function.name == "weather", whole
    assert whole.choices[0].finish_reason == "tool_calls", whole
    with client.chat.completions.stream(**asked) as events:
        final = events.get_final_completion()
    streamed, *_ = final.choices[0].message.tool_calls or []
    assert streamed.function.arguments == call.function.arguments, final
    answered = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    again: Any = [*USER, whole.choices[0].message, answered]
    client.chat.completions.create(model=MODEL, messages=again, tools=[TOOL], max_tokens=4)


def forms(client: openai.OpenAI) -> None:
    parsed = client.chat.completions.parse(
        model=MODEL, messages=USER, response_format=Runner, temperature=0, max_tokens=60
    )
    assert isinstance(parsed.choices[0].message.parsed, Runner), parsed
    item = client.responses.parse(model=MODEL, input="Who?", text_format=Runner, temperature=0)
    assert isinstance(item.output_parsed, Runner), item


def items(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "input": "What is a relay?", "temperature": 0}
    whole = client.responses.create(**asked, max_output_tokens=8)
    assert whole.output_text and whole.status == "incomplete", whole
    with client.responses.stream(**asked, max_output_tokens=8) as events:
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text, deltas
    asked |= {"tools": [ITEM_TOOL], "tool_choice": "required", "max_output_tokens": 60}
    called = client.responses.create(**asked).output[0]
    assert called.type == "function_call" and called.name == "weather", called


async def at_once() -> None:
    async with openai.AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0) as client:
        asked: Any = {"model": MODEL, "messages": USER, "max_tokens": 8, "temperature": 0}
        whole, stream = await asyncio.gather(
            client.chat.completions.create(**asked),
            client.chat.completions.create(**asked, stream=True),
        )
        told = [choice.delta.content or "" async for chunk in stream for choice in chunk.choices]
        assert "".join(told) == whole.choices[0].message.content, told
        models = [model.id async for model in client.models.list()]
        assert models == [MODEL], models


def refusals(client: openai.OpenAI) -> None:
    ask: Any = client.chat.completions.create
    wrong: list[tuple[type[openai.APIStatusError], dict[str, Any]]] = [
        (openai.NotFoundError, {"model": "other"}),
        (openai.BadRequestError, {"temperature": 3}),
        (openai.BadRequestError, {"max_tokens": 10**6}),
    ]
    for kind, fields in wrong:
        for stream in (False, True):
            try:
                ask(**{"model": MODEL, "messages": USER, "stream": stream, **fields})
            except kind as error:
                assert error.param == next(iter(fields)), error
                continue
            raise AssertionError(f"{fields} raised no {kind}")
    try:
        client.with_options(api_key="wrong").models.list()
    except openai.AuthenticationError as error:
        assert error.code == "invalid_api_key", error
        return
    raise AssertionError("a wrong key is none")


def main() -> None:
    with openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0) as client:
        for check in (texts, chats, tools, forms, items, refusals):
            check(client)
        assert client.models.retrieve(MODEL).id == MODEL
    asyncio.run(at_once())


main()
