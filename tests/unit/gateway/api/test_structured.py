"""What an answer must be, in OpenAI's words and vLLM's."""

from typing import Any

import pytest

from common.text.grammar import of_choice, of_json_schema, of_regex
from launch.gateway.api.served import Served
from tests.unit.gateway.api.preparing import USER, chat, completion, refused

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def grammar(served: Served, **fields: object) -> str:
    made = completion(served, **fields).prompts[0].params.grammar
    assert chat(served, **fields).prompts[0].params.grammar == made
    return made


def schema_of(body: object) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": body}}


def test_nothing_said_may_be_anything(served: Served) -> None:
    assert grammar(served) == ""
    assert grammar(served, response_format={"type": "text"}) == ""


def test_both_names_say_the_same(served: Served) -> None:
    expected = of_json_schema(SCHEMA)
    assert grammar(served, response_format=schema_of(SCHEMA)) == expected
    assert grammar(served, structured_outputs={"json": SCHEMA}) == expected
    text = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
    assert grammar(served, structured_outputs={"json": text}) == expected
    any_object = of_json_schema({"type": "object"})
    assert grammar(served, response_format={"type": "json_object"}) == any_object
    assert grammar(served, structured_outputs={"json_object": True}) == any_object


def test_the_other_kinds(served: Served) -> None:
    assert grammar(served, structured_outputs={"regex": "[ab]+"}) == of_regex("[ab]+")
    assert grammar(served, structured_outputs={"choice": ["a", '"b"']}) == of_choice(["a", '"b"'])
    for text in ('start: "a" | "b"', 'root ::= "a" | "b"'):
        assert grammar(served, structured_outputs={"grammar": text}) != ""


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        (
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema",
            "response_format of type json_schema needs json_schema.schema",
        ),
        (
            {"response_format": schema_of({"type": "nonsense"})},
            "response_format.json_schema.schema",
            "response_format.json_schema.schema cannot be followed: Invalid type: nonsense",
        ),
        (
            {"response_format": schema_of(body=False)},
            "response_format.json_schema.schema",
            "response_format.json_schema.schema cannot be followed: Unsatisfiable schema",
        ),
        (
            {"response_format": schema_of(deep(800))},
            "response_format.json_schema.schema",
            "the schema cannot be read: recursion limit exceeded",
        ),
        (
            {"structured_outputs": {"grammar": "\n" * 200_000}},
            "structured_outputs.grammar",
            "structured_outputs.grammar cannot be read: as GBNF it has 200000 characters",
        ),
        (
            {"structured_outputs": {"regex": "a[^\\s\\S]"}},
            "structured_outputs.regex",
            "structured_outputs.regex cannot be followed: it allows nothing",
        ),
        (
            {"structured_outputs": {"regex": "(["}},
            "structured_outputs.regex",
            "structured_outputs.regex cannot be followed",
        ),
        (
            {"structured_outputs": {"grammar": "start: nowhere"}},
            "structured_outputs.grammar",
            "structured_outputs.grammar cannot be followed",
        ),
        (
            {"structured_outputs": {"json": "{"}},
            "structured_outputs.json",
            "structured_outputs.json is a text that is no schema",
        ),
        (
            {"structured_outputs": {"json": {}, "regex": "a"}},
            "structured_outputs",
            "structured_outputs has json, regex; give one of json, json_object, regex, choice, ",
        ),
        (
            {"structured_outputs": {}},
            "structured_outputs",
            "structured_outputs has nothing; give one of",
        ),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs.regex",
            "both say what the answer must be; give one",
        ),
        (
            {"structured_outputs": {"regex": "a"}, "ignore_eos": True},
            "ignore_eos",
            "ignore_eos is true, but an answer to structured_outputs.regex ends where it is",
        ),
        (
            {"structured_outputs": {"regex": "a"}, "min_tokens": 3},
            "min_tokens",
            "min_tokens is 3, but",
        ),
        (
            {"structured_outputs": {"regex": "a" * 300_000}},
            "structured_outputs.regex",
            "characters; at most 131072",
        ),
    ],
)
def test_what_nobody_could_follow(
    served: Served, fields: dict[str, object], param: str, message: str
) -> None:
    for body in (fields, {"messages": [USER], **fields}):
        named, told = refused(served, **body)
        assert named == param
        assert message in told
