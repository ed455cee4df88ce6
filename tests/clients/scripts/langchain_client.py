"""LangChain's classes for OpenAI. Run with its own venv's Python: URL KEY MODEL."""

# pyright: basic, reportMissingImports=false
import asyncio
import sys
from typing import Any, Literal

import openai
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, Field

URL, KEY, MODEL = sys.argv[1:]
QUESTION = "What is a relay race?"


class Runner(BaseModel):
    """Who runs which leg."""

    name: str = Field(max_length=8)
    leg: Literal[1, 2, 3, 4]


@tool
def weather(city: Literal["Paris", "Rome"]) -> str:
    """How it is there."""
    return f"sunny in {city}"


def chat(**fields: object) -> ChatOpenAI:
    asked: dict[str, Any] = {"model": MODEL, "base_url": URL, "api_key": KEY, "max_retries": 0}
    return ChatOpenAI(**asked | {"temperature": 0, "max_tokens": 8} | fields)


def texts() -> None:
    model = OpenAI(model=MODEL, base_url=URL, api_key=KEY, max_tokens=8, temperature=0)
    whole = model.invoke("Once upon a time")
    assert "".join(model.stream("Once upon a time")) == whole != ""
    assert model.batch(["Once upon a time", "One, two"])[0] == whole


def chats() -> None:
    whole = chat().invoke(QUESTION)
    parts = list(chat(stream_usage=True).stream(QUESTION))
    assert "".join(str(part.content) for part in parts) == whole.content != "", parts
    assert whole.usage_metadata and whole.usage_metadata["output_tokens"] == 8, whole
    assert any(part.usage_metadata for part in parts), parts
    scored = chat(logprobs=True, top_logprobs=2).invoke(QUESTION)
    assert scored.response_metadata["logprobs"]["content"], scored


def tools() -> None:
    model = chat(max_tokens=60).bind_tools([weather], tool_choice="required")
    called: Any = model.invoke(QUESTION)
    call = called.tool_calls[0]
    assert call["name"] == "weather", called
    whole: Any = None
    for part in model.stream(QUESTION):
        whole = part if whole is None else whole + part
    assert whole.tool_calls[0]["args"] == call["args"], whole
    answer = ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])
    again = chat().bind_tools([weather], tool_choice="none")
    assert again.invoke([HumanMessage(QUESTION), called, answer]).content


def forms() -> None:
    for method in ("json_schema", "function_calling"):
        model = chat(max_tokens=60).with_structured_output(Runner, method=method)
        assert isinstance(model.invoke(QUESTION), Runner), method
    model = chat(max_tokens=200).with_structured_output(method="json_mode", include_raw=True)
    assert "raw" in model.invoke(QUESTION)


def items() -> None:
    model = chat(use_responses_api=True, max_tokens=16)
    whole = model.invoke(QUESTION)
    assert whole.text, whole
    parts = list(model.stream(QUESTION))
    assert "".join(part.text for part in parts) == whole.text, parts


async def at_once() -> None:
    whole = await chat().ainvoke(QUESTION)
    parts = [str(part.content) async for part in chat().astream(QUESTION)]
    assert "".join(parts) == whole.content, parts


def refusals() -> None:
    wrong: list[tuple[type[Exception], dict[str, Any]]] = [
        (openai.NotFoundError, {"model": "other"}),
        (openai.BadRequestError, {"max_tokens": 10**6}),
        (openai.AuthenticationError, {"api_key": "wrong"}),
    ]
    for kind, fields in wrong:
        for ask in (lambda m: m.invoke(QUESTION), lambda m: list(m.stream(QUESTION))):
            try:
                ask(chat(**fields))
            except kind:
                continue
            raise AssertionError(f"{fields} raised no {kind}")


for check in (texts, chats, tools, forms, items, refusals):
    check()
asyncio.run(at_once())
