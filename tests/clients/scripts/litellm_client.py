"""LiteLLM, by its provider for any OpenAI-compatible server and by the one for vLLM. Run with its
own venv's Python: URL KEY MODEL."""

# pyright: basic, reportMissingImports=false
import asyncio
import sys
from typing import Any, Literal

import litellm
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


class Runner(BaseModel):
    name: str = Field(max_length=8)
    leg: Literal[1, 2, 3, 4]


def asked(provider: str, **fields: object) -> dict[str, Any]:
    at: dict[str, Any] = {"model": f"{provider}/{MODEL}", "api_base": URL, "api_key": KEY}
    return at | {"messages": USER, "temperature": 0, "max_tokens": 8, "num_retries": 0} | fields


def chats(provider: str) -> None:
    whole: Any = litellm.completion(**asked(provider))
    content = whole.choices[0].message.content
    stream: Any = litellm.completion(**asked(provider, stream=True))
    told = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert told == content != "", (told, whole)
    assert whole.usage.completion_tokens == 8, whole


def tools(provider: str) -> None:
    fields = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 60}
    whole: Any = litellm.completion(**asked(provider, **fields))
    assert whole.choices[0].message.tool_calls[0].function.name == "weather", whole
    chunks: Any = list(litellm.completion(**asked(provider, stream=True, **fields)))
    built: Any = litellm.stream_chunk_builder(chunks)
    first = built.choices[0].message.tool_calls[0].function
    assert first.arguments == whole.choices[0].message.tool_calls[0].function.arguments, built


def forms(provider: str) -> None:
    whole: Any = litellm.completion(**asked(provider, response_format=Runner, max_tokens=60))
    Runner.model_validate_json(whole.choices[0].message.content)


def refusals(provider: str) -> None:
    wrong: list[tuple[type[Exception], dict[str, Any]]] = [
        (litellm.NotFoundError, {"model": f"{provider}/other"}),
        (litellm.BadRequestError, {"temperature": 3}),
        (
            litellm.ContextWindowExceededError,
            {"messages": [{"role": "user", "content": "a " * 9999}]},
        ),
        (litellm.AuthenticationError, {"api_key": "wrong"}),
    ]
    for kind, fields in wrong:
        try:
            litellm.completion(**asked(provider, **fields))
        except kind:
            continue
        raise AssertionError(f"{list(fields)} raised no {kind}")


async def at_once(provider: str) -> None:
    whole: Any = await litellm.acompletion(**asked(provider))
    stream: Any = await litellm.acompletion(**asked(provider, stream=True))
    told = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert told == whole.choices[0].message.content, told


def main() -> None:
    litellm.telemetry = False
    at: Any = {"api_base": URL, "api_key": KEY, "max_tokens": 8, "temperature": 0}
    text: Any = litellm.text_completion(model=f"text-completion-openai/{MODEL}", prompt="One", **at)
    assert text.choices[0].text, text
    for provider in ("openai", "hosted_vllm"):
        for check in (chats, tools, forms, refusals):
            check(provider)
        asyncio.run(at_once(provider))
    item: Any = litellm.responses(
        model=f"openai/{MODEL}", input="One", api_base=URL, api_key=KEY, max_output_tokens=8
    )
    assert item.output[0].content[0].text, item


main()
