"""JSON schemas as answers are held to them: an object has the properties that are named, no others.

A schema alone would let a model go on with properties of its own invention until its tokens end;
OpenAI's strict schemas must say that it may not, and vLLM takes them so. Whoever wants more says
`additionalProperties`.
"""

from collections.abc import Mapping
from typing import Any, cast

_OF_ONE = ("items", "contains", "additionalProperties")
_OF_MANY = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "prefixItems")
_OPENERS = frozenset(
    ("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames")
)
_COMBINED = frozenset(("allOf", "not", "if", "dependentSchemas"))


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with every object closed that says nothing of other properties.

    One that combines schemas (`allOf`, `if`, ...) is left as it is: what is closed by itself may
    not be combined any more. So is one that is nested too deeply.
    """
    try:
        return schema if _combines(schema) else _closed(schema)
    except RecursionError:
        return schema


def _combines(value: object) -> bool:
    if isinstance(value, dict):
        some = cast("dict[str, object]", value)
        return not _COMBINED.isdisjoint(some) or any(map(_combines, some.values()))
    return isinstance(value, list) and any(map(_combines, cast("list[object]", value)))


def moved(schema: dict[str, Any], pointer: str) -> dict[str, Any]:
    """The schema as a part of another, where that JSON pointer leads to: its references to its own
    parts lead there, too. One that is nested too deeply is left as it is."""
    try:
        return _moved(schema, pointer)
    except RecursionError:
        return schema


def _moved(schema: Any, pointer: str) -> Any:  # noqa: ANN401 - as below
    if isinstance(schema, list):
        return [_moved(one, pointer) for one in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    made = {key: _moved(one, pointer) for key, one in cast("dict[str, Any]", schema).items()}
    reference = made.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        made["$ref"] = f"#{pointer}{reference[1:]}"
    return made


def _closed(schema: Any) -> Any:  # noqa: ANN401 - a schema, or whatever a client wrote for one
    if not isinstance(schema, dict):
        return schema
    made = dict(cast("dict[str, Any]", schema))
    for key in _OF_ONE:
        if key in made:
            made[key] = _closed(made[key])
    for key in _OF_MANY:
        if isinstance(made.get(key), Mapping):
            made[key] = {name: _closed(one) for name, one in made[key].items()}
    for key in _LISTS:
        if isinstance(made.get(key), list):
            made[key] = list(map(_closed, made[key]))
    if isinstance(made.get("properties"), Mapping) and _OPENERS.isdisjoint(made):
        made["additionalProperties"] = False
    return made
