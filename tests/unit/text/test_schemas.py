"""Objects have no properties but those that are named, unless their schema speaks of others."""

from typing import Any

import pytest

from common.text.schemas import closed, moved

PROPERTIES = {"a": {"type": "integer"}}


def test_objects_are_closed_wherever_they_stand() -> None:
    inner = {"type": "object", "properties": PROPERTIES}
    schema = {
        "properties": {"one": inner, "more": {"type": "array", "items": inner}},
        "$defs": {"two": {"anyOf": [inner, {"type": "null"}]}},
    }
    shut = {**inner, "additionalProperties": False}
    assert closed(schema) == {
        "properties": {"one": shut, "more": {"type": "array", "items": shut}},
        "$defs": {"two": {"anyOf": [shut, {"type": "null"}]}},
        "additionalProperties": False,
    }
    assert "additionalProperties" not in inner  # the client's is left as it was


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": PROPERTIES, "additionalProperties": True},
        {"type": "object", "properties": PROPERTIES, "patternProperties": {"^x": True}},
        {"allOf": [{"properties": PROPERTIES}, {"properties": {"b": {}}}]},
        {"properties": {"x": {"not": {"properties": PROPERTIES}}}},
        {"enum": [{"properties": {}}]},
        {"items": True, "properties": "nonsense"},
    ],
)
def test_what_speaks_of_others_is_left_as_it_is(schema: dict[str, Any]) -> None:
    assert closed(schema) == schema


def test_references_of_a_schema_that_becomes_a_part_lead_to_its_own_parts() -> None:
    tree: dict[str, Any] = {"anyOf": [{"$ref": "#/$defs/leaf"}, {"$ref": "#"}, {"const": "#"}]}
    schema = {"$defs": {"leaf": {"$ref": "https://elsewhere/#/x"}}, "properties": {"$ref": tree}}
    assert moved(schema, "/items/0") == {
        "$defs": {"leaf": {"$ref": "https://elsewhere/#/x"}},
        "properties": {
            "$ref": {
                "anyOf": [
                    {"$ref": "#/items/0/$defs/leaf"},
                    {"$ref": "#/items/0"},
                    {"const": "#"},
                ]
            }
        },
    }
    deep: dict[str, Any] = {}
    for _ in range(3000):
        deep = {"items": deep}
    assert moved(deep, "/items/0") is deep
