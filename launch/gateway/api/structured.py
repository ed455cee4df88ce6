"""What an answer must be, in OpenAI's words or vLLM's, as the grammar that workers follow."""

from typing import Any

import msgspec

from common.errors import ClientError
from common.text.grammar import (
    MAX_GRAMMAR_CHARS,
    Schema,
    of_choice,
    of_ebnf,
    of_json_schema,
    of_regex,
)
from common.text.structural_tags import Tagged, of_structural_tags
from launch.gateway.api.decoding import shown
from launch.gateway.api.form_bodies import ANY_NUMBER, OF_TAGS, ResponseFormat, StructuredOutputs
from launch.gateway.api.requests import Sampling
from launch.gateway.api.served import Served

_ANY_OBJECT: dict[str, Any] = {"type": "object"}


def grammar_of(request: Sampling, served: Served, of_calls: str = "") -> str:
    """ "": the answer may be anything. Raises ClientError where nobody could follow it.

    `of_calls`: of the calls that it must make.
    """
    said = (
        ("tools", of_calls) if of_calls else None,
        _of_format(request.response_format),
        _of_outputs(request.structured_outputs),
    )
    asked = [one for one in said if one is not None]
    if not asked:
        return ""
    if len(asked) > 1:
        (first, _), (second, _), *_ = asked
        raise ClientError(
            f"{first} and {second} both say what the answer must be; give one", param=second
        )
    ((param, grammar),) = asked
    if len(grammar) > MAX_GRAMMAR_CHARS:
        raise ClientError(
            f"{param} has {len(grammar)} characters; at most {MAX_GRAMMAR_CHARS}", param=param
        )
    served.check_grammar(grammar, param)
    _refuse_what_runs_on(request, param)
    return grammar


def _refuse_what_runs_on(request: Sampling, param: str) -> None:
    for name, value in (("ignore_eos", request.ignore_eos), ("min_tokens", request.min_tokens)):
        if value:
            raise ClientError(
                f"{name} is {shown(value)}, but an answer to {param} ends where it is complete; "
                f"leave {name} out",
                param=name,
            )


def _of_format(asked: ResponseFormat | None) -> tuple[str, str] | None:
    if asked is None:
        return None
    _refuse_tags_elsewhere(asked)
    if asked.type == "text":
        return None
    if asked.type == "json_object":
        return "response_format", of_json_schema(_ANY_OBJECT)
    if asked.type == "structural_tag":
        return "response_format", _of_tags(asked, "response_format")
    body = asked.json_schema
    if body is None or body.schema is None:
        raise ClientError(
            "response_format of type json_schema needs json_schema.schema",
            param="response_format.json_schema",
        )
    param = "response_format.json_schema.schema"
    return param, of_json_schema(body.schema, param=param)


def _refuse_tags_elsewhere(asked: ResponseFormat) -> None:
    for name in OF_TAGS:
        if asked.type != "structural_tag" and getattr(asked, name) is not None:
            raise ClientError(
                f"response_format.{name} is for type structural_tag, and the type is {asked.type}",
                param=f"response_format.{name}",
            )


def _of_tags(asked: ResponseFormat, param: str) -> str:
    """In either of its forms."""
    older = bool(asked.structures and asked.triggers)
    if older == (asked.format is not None):
        raise ClientError(
            f"{param} of type structural_tag needs either structures and triggers, or format",
            param=param,
        )
    if asked.format is not None:
        param = f"{param}.format"
        for name in ("at_least_one", "stop_after_first"):
            if getattr(asked.format, name):
                raise ClientError(
                    f"{param}.{name} is true, but {ANY_NUMBER}; leave it out",
                    param=f"{param}.{name}",
                )
        triggers = asked.format.triggers
        told = [
            (one.begin, one.content.json_schema, one.end, f"tags[{n}].content.json_schema")
            for n, one in enumerate(asked.format.tags)
        ]
    else:
        triggers = asked.triggers or []
        told = [
            (one.begin, one.schema, one.end, f"structures[{n}].schema")
            for n, one in enumerate(asked.structures or [])
        ]
    tags = [
        Tagged(begin=begin, schema=schema, end=end, param=f"{param}.{place}")
        for begin, schema, end, place in told
    ]
    return of_structural_tags(tags, triggers, param=param)


def _of_outputs(asked: StructuredOutputs | None) -> tuple[str, str] | None:
    if asked is None:
        return None
    given = {name: getattr(asked, name) for name in StructuredOutputs.__struct_fields__}
    given = {name: value for name, value in given.items() if value not in (None, False)}
    if len(given) != 1:
        names = ", ".join(StructuredOutputs.__struct_fields__)
        raise ClientError(
            f"structured_outputs has {', '.join(given) or 'nothing'}; give one of {names}",
            param="structured_outputs",
        )
    ((name, value),) = given.items()
    return f"structured_outputs.{name}", _of_one(name, value)


def _schema(value: Schema | str, param: str) -> Schema:
    """vLLM takes a schema's text, too."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value, type=Schema)
    except msgspec.DecodeError as error:
        raise ClientError(f"{param} is a text that is no schema: {error}", param=param) from error


def _tag(text: str, param: str) -> ResponseFormat:
    try:
        asked = msgspec.json.decode(text, type=ResponseFormat)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ClientError(f"{param} is no structural tag: {error}", param=param) from error
    if asked.type != "structural_tag":
        raise ClientError(f"{param} is a text of type {asked.type}", param=param)
    return asked


def _of_one(name: str, value: Any) -> str:  # noqa: ANN401 - by name
    param = f"structured_outputs.{name}"
    match name:
        case "json":
            return of_json_schema(_schema(value, param), param=param)
        case "json_object":
            return of_json_schema(_ANY_OBJECT)
        case "regex":
            return of_regex(value)
        case "choice":
            return of_choice(value)
        case "structural_tag":
            return _of_tags(_tag(value, param), param)
        case _:
            try:
                return of_ebnf(value)
            except ValueError as error:
                raise ClientError(f"{param} cannot be read: {error}", param=param) from error
