"""Answers that are held to a form, with the official client and a real model."""

import json
import re
from typing import Any

import jsonschema
import openai
import pytest

pytestmark = pytest.mark.slow
MODEL = "smollm2"
USER: Any = [{"role": "user", "content": "Describe a person."}]
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 16},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "likes": {"type": "array", "items": {"enum": ["tea", "cake", "rain"]}, "maxItems": 3},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}


def test_answers_are_of_the_schema_whole_streamed_and_several(client: openai.OpenAI) -> None:
    asked: Any = {
        "model": MODEL,
        "messages": USER,
        "max_tokens": 120,
        "temperature": 1.0,
        "seed": 5,
        "response_format": FORMAT,
    }
    whole = client.chat.completions.create(n=3, **asked)
    texts = [choice.message.content or "" for choice in whole.choices]
    for text, choice in zip(texts, whole.choices, strict=True):
        jsonschema.validate(json.loads(text), PERSON)
        assert choice.finish_reason == "stop"
    assert len(set(texts)) == 3
    with client.chat.completions.create(stream=True, **asked) as stream:
        deltas = [choice.delta.content or "" for chunk in stream for choice in chunk.choices]
    assert "".join(deltas) == texts[0]


def test_choices_regular_expressions_and_what_stands_beside_them(client: openai.OpenAI) -> None:
    def said(**form: Any) -> str:  # noqa: ANN401
        answer = client.completions.create(
            model=MODEL,
            prompt="The sky is",
            max_tokens=40,
            temperature=0.5,
            frequency_penalty=0.5,
            extra_body={"structured_outputs": form},
        )
        assert answer.choices[0].finish_reason == "stop"
        return answer.choices[0].text

    assert said(choice=[" green", " blue"]) in (" green", " blue")
    assert re.fullmatch(r" [a-z]{3,9}\.", said(regex=r" [a-z]{3,9}\."))
    assert said(grammar='root ::= " so" | " very so"') in (" so", " very so")


def test_what_cannot_be_followed_is_refused_with_its_field(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(
            model=MODEL, prompt="x", extra_body={"structured_outputs": {"regex": "(["}}
        )
    assert raised.value.param == "structured_outputs.regex"


def weather_tools() -> Any:  # noqa: ANN401
    parameters = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"enum": [1, 2, 3]}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    return [
        {"type": "function", "function": {"name": "weather", "parameters": parameters}},
        {"type": "function", "function": {"name": "now", "parameters": {**parameters}}},
    ]


def test_a_call_that_is_required_always_parses(client: openai.OpenAI) -> None:
    asked: Any = {
        "model": MODEL,
        "messages": USER,
        "tools": weather_tools(),
        "temperature": 1.0,
        "seed": 3,
        "max_tokens": 120,
        "parallel_tool_calls": False,
    }
    whole = client.chat.completions.create(tool_choice="required", **asked).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert whole.message.content is None
    (call,) = whole.message.tool_calls or []
    assert call.type == "function"
    assert call.function.name in ("weather", "now")
    arguments = json.loads(call.function.arguments)
    assert arguments["city"] in ("Paris", "Rome")

    named: Any = {"type": "function", "function": {"name": "now"}}
    with client.chat.completions.create(tool_choice=named, stream=True, **asked) as stream:
        told = [
            part
            for chunk in stream
            for choice in chunk.choices
            for part in choice.delta.tool_calls or []
        ]
    assert len(told) > 2  # as they come
    assert told[0].function is not None
    assert told[0].function.name == "now"
    text = "".join(part.function.arguments or "" for part in told if part.function)
    assert set(json.loads(text)) == {"city", "days"}
