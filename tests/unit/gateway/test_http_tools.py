"""Calls of tools through the whole application: offered, written by a model, read by a client."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from common.messages import FinishReason
from common.text.load import TextModel
from common.text.template import ChatTemplate
from tests.unit.gateway.scripted import Served, serving

END = 2  # <|im_end|>
CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "Weather in Paris?"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "now",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
HERMES = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function.arguments.city }}</tool_call>"
    "{% endfor %}\n{% endfor %}"
)
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


@pytest.fixture
def hermes(smollm2: TextModel) -> TextModel:
    return replace(smollm2, template=ChatTemplate({"default": HERMES}, {}))


def run(text: TextModel, says: str, test: Callable[[Served], Coroutine[Any, Any, None]]) -> None:
    ids = [*text.tokenizer.encode(says, add_special_tokens=False), END]

    async def whole() -> None:
        async with serving(text, lambda _expect, _sample: (ids, FinishReason.STOP)) as served:
            await test(served)

    asyncio.run(whole())


def test_a_call_is_told_whole_and_streamed(hermes: TextModel) -> None:
    async def test(served: Served) -> None:
        asked: Any = {"messages": [USER], "tools": [WEATHER], "max_tokens": 90}
        (choice,) = (await served.post(CHAT, **asked)).json()["choices"]
        assert choice["finish_reason"] == "tool_calls"
        message = choice["message"]
        assert message["content"] == "Let me see. "
        (call,) = message["tool_calls"]
        assert (call["type"], call["function"]["name"]) == ("function", "weather")
        assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
        assert call["id"].startswith("call_")
        assert "index" not in call

        events = await served.events(CHAT, **asked)
        deltas = [event["choices"][0]["delta"] for event in events]
        assert "".join(delta.get("content") or "" for delta in deltas) == "Let me see. "
        (told,) = [call for delta in deltas for call in delta.get("tool_calls") or []]
        assert (told["index"], told["function"]) == (0, call["function"])
        assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"

    run(hermes, "Let me see. " + CALL, test)


def test_what_is_no_call_is_said(hermes: TextModel) -> None:
    async def test(served: Served) -> None:
        asked: Any = {"messages": [USER], "tools": [WEATHER], "max_tokens": 90}
        (choice,) = (await served.post(CHAT, **asked)).json()["choices"]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", "It <tool_ca")
        assert "tool_calls" not in choice["message"]
        events = await served.events(CHAT, **asked)
        deltas = [event["choices"][0]["delta"] for event in events]
        assert "".join(delta.get("content") or "" for delta in deltas) == "It <tool_ca"

    run(hermes, "It <tool_ca", test)


def test_with_tool_choice_none_a_call_is_text(hermes: TextModel) -> None:
    async def test(served: Served) -> None:
        response = await served.post(
            CHAT, messages=[USER], tools=[WEATHER], tool_choice="none", max_tokens=90
        )
        assert response.json()["choices"][0]["message"]["content"] == CALL

    run(hermes, CALL, test)


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"tools": [WEATHER]}, "tools", "start the server with --tool-call-parser"),
        ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice.function.name",
            'names "x", which is none of the tools; they are weather',
        ),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name", "as another tool's is"),
        (
            {
                "tools": [WEATHER],
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {
                        "mode": "required",
                        "tools": [{"type": "function", "function": {"name": "x"}}],
                    },
                },
            },
            "tool_choice.allowed_tools.tools[0].function.name",
            'is "x", which is none of the tools; they are weather',
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools[0].function.name",
            "it must be 1 to 64 of letters",
        ),
        (
            {
                "tools": [WEATHER],
                "tool_choice": "required",
                "response_format": {"type": "json_object"},
            },
            "response_format",
            "tools and response_format both say what the answer must be",
        ),
        (
            {
                "messages": [
                    USER,
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [
                            {"id": "1", "function": {"name": "weather", "arguments": "{oops"}}
                        ],
                    },
                ]
            },
            "messages[1].tool_calls[0].function.arguments",
            "is no JSON object",
        ),
        ({"functions": [{}]}, "functions", "use tools"),
    ],
)
def test_what_cannot_be_called(
    smollm2: TextModel, fields: dict[str, Any], param: str, says: str
) -> None:
    async def test(served: Served) -> None:
        response = await served.post(CHAT, **{"messages": [USER], **fields})
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, param)
        assert says in error["message"]

    run(smollm2, "x", test)


def test_calls_that_were_made_reach_the_template_as_objects(hermes: TextModel) -> None:
    made = {"id": "c1", "type": "function"}
    made["function"] = {"name": "weather", "arguments": '{"city": "Paris"}'}  # type: ignore[assignment]
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]

    async def test(served: Served) -> None:
        body = (await served.post(CHAT, messages=messages, return_token_ids=True)).json()
        prompt = hermes.tokenizer.decode(body["prompt_token_ids"], skip_special_tokens=False)
        assert "<tool_call>Paris</tool_call>" in prompt
        assert "tool: rain" in prompt

    run(hermes, "x", test)
