"""docs/api.md: what each endpoint takes, from the types that decode it.

`python -m launch.gateway.api.reference > docs/api.md` writes it anew. Must say nothing of
parameters that the published document does not say.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from common.text.grammar import MAX_GRAMMAR_CHARS
from launch.gateway.api.admission import MAX_HELD_TOKENS
from launch.gateway.api.amounts import MAX_ENTRIES, MAX_LISTS
from launch.gateway.api.bodies import LEAST_BYTES_PER_S, MAX_BODY_BYTES, PATIENCE_S
from launch.gateway.api.decoding import INSTEAD
from launch.gateway.api.docs import COMMANDS, ERRORS, GETS, MODELS, POSTS, openapi
from launch.gateway.api.other_endpoints import ENDPOINTS
from launch.gateway.api.prompts import MIN_TEXT_CHARS, TEXT_CHARS_PER_TOKEN
from launch.gateway.api.requests import MAX_CHOICES, MAX_INT
from launch.gateway.api.support import SUPPORT
from launch.gateway.protocol import MAX_HEAD_BYTES

_Schema = Mapping[str, Any]
_REF = "#/components/schemas/"
_UNITS = {
    "string": ("character", "characters"),
    "array": ("item", "items"),
    "object": ("entry", "entries"),
}
_HEAD = """# The HTTP API

Made by `python -m launch.gateway.api.reference` from the types that decode requests. A running
server tells the same at `/docs` and, with its own model and limits, at `/openapi.json`.

A parameter that is not here is refused by its name, so that a typing error is no silent default.
What holds if it is left out stands in brackets; but for `[false]` and `[true]`, `null` leaves it
out, too.
"""
_ENVELOPE = (
    'Always `{"error": {"message", "type", "param", "code"}}`; `code` is the status, but for '
    "401; `param` is the field at fault. In a stream that has begun it is an event before `[DONE]`."
)


def reference() -> str:
    """All of docs/api.md."""
    components: dict[str, _Schema] = openapi()["components"]["schemas"]
    lines = [_HEAD]
    for path, (summary, asked, _) in POSTS.items():
        lines += [f"## POST {path}", "", f"{summary}.", ""]
        lines += _parameters(components[asked.__name__])
    lines += ["## Objects", ""]
    for name in _objects(components, [asked.__name__ for _, asked, _ in POSTS.values()]):
        lines += [f"### {name}", "", components[name]["description"], ""]
        lines += _parameters(components[name])
    lines += ["## Other endpoints", ""]
    told = {path: summary for path, (summary, _) in MODELS.items()} | GETS
    lines += _table(
        ("GET", "what it tells"), ((f"`{path}`", summary) for path, summary in told.items())
    )
    lines += _table(("POST", ""), ((f"`{path}`", summary) for path, summary in COMMANDS.items()))
    lines += ["## Limits", "", "Beside those of single parameters.", ""]
    lines += _table(("of", "limit"), _limits())
    lines += ["## Errors", "", _ENVELOPE, ""]
    lines += _table(("status", "when"), ERRORS.items())
    lines += ["## Fields of other servers", "", "Unknown here.", ""]
    lines += _table(("field", "instead"), ((f"`{name}`", why) for name, why in INSTEAD.items()))
    lines += ["## Endpoints of other servers", "", "There is nothing at these.", ""]
    lines += _table(("path", "instead"), ((f"`{p}`", why) for p, why in ENDPOINTS.items()))
    return "\n".join(lines).rstrip() + "\n"


def _parameters(schema: _Schema) -> Iterator[str]:
    """What is supported, what is accepted though it changes nothing, what is refused and why."""
    properties: Mapping[str, _Schema] = schema["properties"]
    required = schema.get("required", ())
    groups: dict[str | None, dict[str, _Schema]] = {None: {}, "ignored": {}, "refused": {}}
    for name, field in properties.items():
        groups[field.get(SUPPORT)][name] = field
    yield from _table(
        ("parameter", "type", "what it does"),
        (
            (f"**`{name}`**" if name in required else f"`{name}`", _kind(field), _meaning(field))
            for name, field in groups[None].items()
        ),
    )
    if groups["ignored"]:
        names = ", ".join(f"`{name}`" for name in groups["ignored"])
        yield from (f"Accepted, though they change nothing: {names}.", "")
    if groups["refused"]:
        rows = (
            (f"`{name}`", _meaning(field).removeprefix("refused: "), _allowed(field))
            for name, field in groups["refused"].items()
        )
        yield from _table(("refused", "why", "but for"), rows)


def _meaning(field: _Schema) -> str:
    default = field.get("default")
    told = field.get("description", "")
    return told if default is None else f"{told} [{json.dumps(default)}]"


def _allowed(field: _Schema) -> str:
    """What a refused field may say."""
    nothing: object = [] if "maxItems" in field else "" if "maxLength" in field else None
    values = field.get("enum", [nothing])
    return ", ".join(f"`{json.dumps(value)}`" for value in values)


def _kind(schema: _Schema) -> str:
    """A type in words."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_REF)
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        kinds = (_kind(one) for one in schema["anyOf"] if one != {"type": "null"})
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    match schema.get("type"):
        case "integer" | "number" as kind:
            return kind + _range(schema)
        case "array":
            return f"list of {_kind(schema['items'])}" + _length(schema)
        case "object" if isinstance(schema.get("additionalProperties"), dict):
            return f"object of {_kind(schema['additionalProperties'])}" + _length(schema)
        case None:
            return "anything"
        case kind:
            return kind + _length(schema)


def _range(schema: _Schema) -> str:
    words = {"exclusiveMinimum": "over", "minimum": "from", "maximum": "to"}
    bounds = {word: schema[key] for key, word in words.items() if key in schema}
    whole = {word: int(n) if n == int(n) else n for word, n in bounds.items()}
    return "".join(f" {word} {n}" for word, n in whole.items() if n != MAX_INT)


def _length(schema: _Schema) -> str:
    kind = schema["type"]
    suffix = {"string": "Length", "array": "Items", "object": "Properties"}.get(kind, "")
    least, most = schema.get(f"min{suffix}"), schema.get(f"max{suffix}")
    said = [f"at least {least}"] if least else []
    said += [] if most is None else [f"at most {most}"]
    if not said:
        return ""
    n_last = least if most is None else most
    return f" ({', '.join(said)} {_UNITS[kind][n_last != 1]})"


def _objects(components: Mapping[str, _Schema], names: Iterable[str]) -> list[str]:
    """Components that those refer to, and so on, each once."""
    found: dict[str, None] = {}
    left = list(names)
    while left:
        inner = list(_references(components[left.pop(0)]))
        left += [name for name in inner if name not in found]
        found |= dict.fromkeys(inner)
    return list(found)


def _references(schema: object) -> Iterator[str]:
    if isinstance(schema, Mapping):
        for key, value in schema.items():
            if key == "$ref":
                yield str(value).removeprefix(_REF)
            else:
                yield from _references(value)
    elif isinstance(schema, list):
        for one in schema:
            yield from _references(one)


def _limits() -> Iterator[tuple[str, str]]:
    yield "a body", f"{MAX_BODY_BYTES} bytes (413)"
    yield (
        "its lists and objects, but for token ids of a prompt",
        f"{MAX_LISTS}, with {MAX_ENTRIES} entries in all (413)",
    )
    yield (
        "the time that a body takes",
        f"{PATIENCE_S:g} s, and 1 s more for every {LEAST_BYTES_PER_S} bytes that have come (408)",
    )
    yield "the request line and the headers", f"{MAX_HEAD_BYTES} bytes (431)"
    yield "choices: prompts times n", f"{MAX_CHOICES}"
    yield "a schema, regular expression, choice or grammar", f"{MAX_GRAMMAR_CHARS} characters"
    yield (
        "a text of /tokenize, or a prompt that is truncated",
        f"{MIN_TEXT_CHARS} characters, or {TEXT_CHARS_PER_TOKEN} for each token of the context",
    )
    yield "prompt and output together", "the model's context (`--max-model-len`)"
    yield "alternatives told of a token", "`--max-logprobs`"
    yield "token ids", "the model's vocabulary"
    yield "prompts of all requests in progress at one gateway", f"{MAX_HELD_TOKENS} tokens (429)"
    yield "requests in progress", "`--max-waiting-requests` (429)"


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield _row(heads)
    yield "|" + "---|" * len(heads)
    yield from map(_row, rows)
    yield ""


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.stdout.write(reference())
