"""Values around what a JSON schema allows: within it and without, at every bound that it names."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator

Schema = Mapping[str, Any]
STRAYS: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 1.5, 2**63, -(2**63) - 1, 1e308, "", "a", "\x00", "é\U0001f600"),
    *([], [None], [[1]], ["a", 1], {}, {"a": {"b": []}}),
)
_TEXTS = {  # that mean something, by their path
    "structured_outputs.grammar": 'start: "a"',
    "structured_outputs.json": '{"type": "null"}',
}
_KEYS = ("7", "a")


class Values:
    """Of one document: `#/components/schemas/...` are its references."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def allows(self, schema: Schema) -> Callable[[object], bool]:
        """Whether it allows a value."""
        root = {**schema, "components": self._document["components"]}
        validator = Draft202012Validator(root)
        return lambda value: bool(validator.is_valid(value))  # type: ignore[arg-type] - any JSON

    def around(self, schema: Schema, path: str) -> list[Any]:
        """Each once. `path`: of the field whose schema it is."""
        found = [*self._within(schema, path), *STRAYS]
        return list({json.dumps(value): value for value in found}.values())

    def _within(self, schema: Schema, path: str) -> Iterator[Any]:
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            yield from self._within(self._document["components"]["schemas"][name], path)
        for one in schema.get("anyOf", ()):
            yield from self._within(one, path)
        yield from schema.get("enum", ())
        if "const" in schema:
            yield schema["const"]
        match schema.get("type"):
            case "integer" | "number":
                yield from _numbers(schema)
            case "string":
                yield from _texts(schema, path)
            case "array":
                yield from self._lists(schema, path)
            case "object":
                yield from self._objects(schema, path)
            case _:
                pass

    def _lists(self, schema: Schema, path: str) -> Iterator[Any]:
        inner = schema.get("items", {})
        items = self.around(inner, path)
        for item in items:
            yield [item]
        good = self._good(inner, items)
        for n in _around(schema, "Items"):
            yield [good] * n

    def _objects(self, schema: Schema, path: str) -> Iterator[Any]:
        properties: Mapping[str, Schema] = schema.get("properties", {})
        candidates = {name: self.around(one, f"{path}.{name}") for name, one in properties.items()}
        required = {
            name: self._good(properties[name], candidates[name])
            for name in schema.get("required", ())
        }
        yield required
        yield {**required, "other": 1}
        for name in required:
            yield {key: value for key, value in required.items() if key != name}
        for name, values in candidates.items():
            for value in values:
                yield {**required, name: value}
        inner = schema.get("additionalProperties")
        if isinstance(inner, dict):
            items = self.around(inner, path)
            for key in _KEYS:
                yield from ({key: item} for item in items)
            for n in _around(schema, "Properties"):
                yield {str(key): self._good(inner, items) for key in range(n)}

    def _good(self, schema: Schema, values: Iterable[Any]) -> Any:  # noqa: ANN401 - any JSON
        """Something that it allows, and says something."""
        allowed = list(filter(self.allows(schema), values))
        return next((value for value in allowed if value is not None), None)


def _numbers(schema: Schema) -> Iterator[float]:
    step = 1 if schema["type"] == "integer" else 0.0625
    for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        if key in schema:
            yield from (schema[key] - step, schema[key], schema[key] + step)


def _texts(schema: Schema, path: str) -> Iterator[str]:
    if path in _TEXTS:
        yield _TEXTS[path]
    yield from ("a" * n for n in _around(schema, "Length"))


def _around(schema: Schema, what: str) -> Iterator[int]:
    """Numbers of parts around the bounds of how many there may be."""
    yield from (1, 2)
    for key in (f"min{what}", f"max{what}"):
        if key in schema:
            yield from (n for n in range(schema[key] - 1, schema[key] + 2) if n >= 0)
