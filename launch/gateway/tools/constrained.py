"""Calls that a client insists on: a grammar lets the model write nothing else, in any family's
answers.
"""

from collections.abc import Sequence
from typing import Any

from common.text.schemas import moved
from launch.gateway.tools.reader import CallPart, Calls, Said, json_of, named

_PLACE = "/items/anyOf/%d/properties/parameters"

Function = tuple[str, dict[str, Any]]
"""A function's name, and the JSON schema of its arguments."""


def some_call(functions: Sequence[Function], *, most: int | None) -> dict[str, Any]:
    """The JSON schema of a list of calls of these, at least one. Read by `ListReader`."""
    call = {
        "anyOf": [
            {
                "type": "object",
                "properties": {"name": {"const": name}, "parameters": moved(schema, _PLACE % at)},
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
            for at, (name, schema) in enumerate(functions)
        ]
    }
    bounds = {"minItems": 1} if most is None else {"minItems": 1, "maxItems": most}
    return {"type": "array", "items": call, **bounds}


class ListReader:
    """Of what `some_call` allows. One that was cut off is text: its client sees how far it came."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> Said:
        self._held += text
        return Said()

    def finish(self) -> Said:
        values, calls = json_of(self._held), Calls()
        found = [named(value, "parameters") for value in values] if isinstance(values, list) else []
        if not found or not all(found):
            return Said(self._held)
        return Said(calls=tuple(calls.whole(*one) for one in found if one))


class OneCallReader:
    """The answer is the arguments of one function, told as they come."""

    def __init__(self, name: str) -> None:
        self._name: str | None = name

    def push(self, text: str) -> Said:
        if not text:
            return Said()
        name, self._name = self._name, None
        return Said(calls=(CallPart(0, name, text),))

    def finish(self) -> Said:
        return Said()
