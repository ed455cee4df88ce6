"""JSON schemas at random, from a seed: every kind of value, nested, and none without an end."""

import random
from typing import Any

Schema = dict[str, Any]

MAX_LENGTH = 16  # characters of a string
MAX_ITEMS = 3
_DEPTH = 3
_NAMES = (
    *("name", "age", "city", "is_open", "tags", "price", "id", "kind", "note", "size", "unit"),
    *("first name", "naïve", 'with "quotes"', "back\\slash", "a/b", "$id", "日本", "x-y", "_"),
)
_WORDS = ("red", "green", "blue", "tea", "rain", "Monday", "n/a", "", 'say "hi"', "ünï", "a\nb")
_PATTERNS = (
    "^[a-z]{2,8}$",
    "^[A-Z][a-z]{1,7}( [A-Z][a-z]{1,7})?$",
    "^\\d{3}-\\d{4}$",
    "^(yes|no|perhaps)$",
    "^#[0-9a-f]{6}$",
    "^[A-Z]{3}[0-9]{1,3}$",
)
_FORMATS = ("date", "ipv4", "uuid")


def schemas(n: int, seed: int) -> list[Schema]:
    """`n` of them. Most are objects, as whole answers mostly are."""
    source = random.Random(seed)
    return [_whole(source) for _ in range(n)]


def _whole(source: random.Random) -> Schema:
    made = _object(source, _DEPTH) if source.random() < 0.8 else _any(source, _DEPTH)
    if source.random() < 0.2:
        made = {"$defs": {"one": _any(source, 1)}, **_object(source, 1)}
        made["properties"]["by reference"] = {"$ref": "#/$defs/one"}
        made["required"] = [*made["required"], "by reference"]
    return made


def _any(source: random.Random, depth: int) -> Schema:
    if depth > 0 and source.random() < 0.5:
        return source.choice((_object, _object, _array, _tuple, _alternatives))(source, depth)
    return source.choice((_string, _text, _integer, _number, _enum, _constant, _plain))(source)


def _object(source: random.Random, depth: int) -> Schema:
    names = source.sample(_NAMES, source.randint(1, 4))
    made: Schema = {
        "type": "object",
        "properties": {name: _any(source, depth - 1) for name in names},
        "required": [name for name in names if source.random() < 0.7],
    }
    if source.random() < 0.5:  # else closed all the same, as the documents say
        made["additionalProperties"] = False
    return made


def _array(source: random.Random, depth: int) -> Schema:
    least = source.choice((0, 0, 1, 2))
    made: Schema = {"type": "array", "items": _any(source, depth - 1), "maxItems": MAX_ITEMS}
    return made if least == 0 else {**made, "minItems": least}


def _tuple(source: random.Random, depth: int) -> Schema:
    items = [_any(source, depth - 1) for _ in range(source.randint(1, MAX_ITEMS))]
    return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}


def _alternatives(source: random.Random, depth: int) -> Schema:
    return {"anyOf": [_any(source, depth - 1) for _ in range(source.randint(2, 3))]}


def _text(source: random.Random) -> Schema:
    least = source.choice((0, 0, 1, 4))
    made: Schema = {"type": "string", "maxLength": source.randint(least, MAX_LENGTH)}
    return made if least == 0 else {**made, "minLength": least}


def _string(source: random.Random) -> Schema:
    if source.random() < 0.5:
        return {"type": "string", "pattern": source.choice(_PATTERNS)}
    return {"type": "string", "format": source.choice(_FORMATS)}


def _integer(source: random.Random) -> Schema:
    low = source.randint(-200, 200)
    bounds = {"minimum": low, "maximum": low + source.randint(0, 500)}
    return {"type": "integer", **{n: v for n, v in bounds.items() if source.random() < 0.6}}


def _number(source: random.Random) -> Schema:
    low = source.randint(-50, 50) / 4
    names = source.choice((("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")))
    bounds = zip(names, (low, low + source.randint(1, 400) / 8), strict=True)
    return {"type": "number", **{n: v for n, v in bounds if source.random() < 0.6}}


def _enum(source: random.Random) -> Schema:
    values = (*_WORDS, 1, -2.5, None, True, {"a": [1]})
    return {"enum": source.sample(values, source.randint(1, 5))}


def _constant(source: random.Random) -> Schema:
    return {"const": source.choice((*_WORDS, 0, 12, False, None))}


def _plain(source: random.Random) -> Schema:
    return {"type": source.choice(("boolean", "boolean", "null", ["integer", "null"]))}
