"""What an answer must be, in OpenAI's words and vLLM's."""

import json
from typing import Any

import pytest

from common.text.grammar import GrammarTokenizer, of_choice, of_json_schema, of_regex
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


CITY = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
WEATHER = {"begin": "<f=weather>", "schema": CITY, "end": "</f>"}
NOW = {"begin": "<f=now>", "schema": {"type": "null"}, "end": "</f>"}
TAGS: dict[str, Any] = {
    "type": "structural_tag",
    "structures": [WEATHER, NOW],
    "triggers": ["<f=", "<f=n"],
}


def triggered(**more: object) -> dict[str, Any]:
    """The same, as newer clients say it."""
    tags = [
        {
            "type": "tag",
            "begin": one["begin"],
            "content": {"type": "json_schema", "json_schema": one["schema"]},
            "end": one["end"],
        }
        for one in (WEATHER, NOW)
    ]
    told = {"type": "triggered_tags", "triggers": ["<f=", "<f=n"], "tags": tags}
    return {"type": "structural_tag", "format": told | more}


def test_structural_tags_in_all_their_forms(served: Served) -> None:
    made = grammar(served, response_format=TAGS)
    assert made != ""
    assert grammar(served, response_format=triggered(at_least_one=False)) == made
    text = json.dumps(TAGS)
    assert grammar(served, structured_outputs={"structural_tag": text}) == made


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("It is warm.", None),
        ('So <f=weather>{"city": "Rome"}</f>, and <f=now>null</f>.', None),
        ("a < b <f", None),
        ('<f=weather>{"city": "Oslo"}</f>', "Os"),
        ("<f=later>", "later"),
    ],
)
def test_what_a_trigger_begins_is_held_to_its_schema(
    served: Served, grammars: GrammarTokenizer, text: str, says: str | None
) -> None:
    """`says`: the first token that is not allowed."""
    matcher = grammars.matcher(grammar(served, response_format=TAGS))
    outputs: tuple[int, ...] = ()
    refused_token = None
    for token in served.text.tokenizer.encode(text, add_special_tokens=False):
        may_V = matcher.allowed(outputs)
        assert may_V is not None
        if not may_V[token]:
            refused_token = served.text.tokenizer.text_of(token)
            break
        outputs += (token,)
    assert refused_token == says


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
            {"response_format": {**TAGS, "triggers": ["<f=w"]}},
            "response_format",
            'response_format: no trigger begins "<f=now>"',
        ),
        (
            {"response_format": {**TAGS, "triggers": ["<f=", "<g"]}},
            "response_format",
            'response_format: no tag begins with "<g"',
        ),
        (
            {"response_format": {"type": "structural_tag"}},
            "response_format",
            "response_format of type structural_tag needs either structures and triggers, or form",
        ),
        (
            {"response_format": {**TAGS, **triggered()}},
            "response_format",
            "response_format of type structural_tag needs either structures and triggers, or form",
        ),
        (
            {"response_format": {**TAGS, "type": "text"}},
            "response_format.structures",
            "response_format.structures is for type structural_tag, and the type is text",
        ),
        (
            {"response_format": triggered(stop_after_first=True)},
            "response_format.format.stop_after_first",
            "response_format.format.stop_after_first is true, but a text may have any number",
        ),
        (
            {"response_format": {**TAGS, "structures": [NOW, {**WEATHER, "schema": deep(800)}]}},
            "response_format.structures[1].schema",
            "the schema cannot be read: recursion limit exceeded",
        ),
        (
            {
                "response_format": {
                    **TAGS,
                    "structures": [NOW, {**WEATHER, "schema": {"type": "x"}}],
                }
            },
            "response_format",
            "response_format cannot be followed: ",
        ),
        (
            {"response_format": triggered(type="sequence")},
            "response_format.format.type",
            'response_format.format.type is "sequence"; it must be one of "triggered_tags"',
        ),
        (
            {"structured_outputs": {"structural_tag": "<f="}},
            "structured_outputs.structural_tag",
            "structured_outputs.structural_tag is no structural tag: JSON is malformed",
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
