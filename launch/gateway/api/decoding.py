"""From a body's bytes to a request, or to what is wrong with it in words a client can act on.

Which field it is, what it holds, and what it may hold: `msgspec` decodes, and says the last alone.
"""

import difflib
import re
import reprlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from common.errors import ClientError
from launch.gateway.api.amounts import check_amount
from launch.gateway.api.support import refusal
from launch.gateway.wording import count

_ONE_LINE = "leave it out: JSON comes on one line"
_BY_ITSELF = "leave it out: the server hands over by itself"
_NO_BEAMS = "leave it out: sequences are drawn one by one"
_TEXT_ALONE = "leave it out: text alone is served"
INSTEAD = {
    "max_tokens": "use max_output_tokens",
    "response_format": "use text.format",
    "guided_json": "use structured_outputs.json",
    "guided_regex": "use structured_outputs.regex",
    "guided_choice": "use structured_outputs.choice",
    "guided_grammar": "use structured_outputs.grammar",
    "guided_decoding_backend": "leave it out: there is one",
    "guided_whitespace_pattern": _ONE_LINE,
    "structured_outputs.whitespace_pattern": _ONE_LINE,
    "structured_outputs.disable_any_whitespace": _ONE_LINE,
    "structured_outputs.disable_additional_properties": "say so in the schema",
    "response_format.schema": "give it as response_format.json_schema.schema",
    "json_schema": "use response_format",
    "regex": "use structured_outputs.regex",
    "ebnf": "use structured_outputs.grammar",
    "prompt_embeds": "send text, or token ids",
    "input_ids": "use prompt",
    "sampling_params": "put its fields at the top level",
    "early_stopping": _NO_BEAMS,
    "num_beams": _NO_BEAMS,
    "beam_width": _NO_BEAMS,
    "logits_processors": "use logit_bias",
    "custom_logit_processor": "use logit_bias",
    "logprob_token_ids": "use logprobs, or top_logprobs",
    "return_prompt_text": "use /tokenize with return_token_strs",
    "return_hidden_states": "they are not told; leave it out",
    "stop_regex": "use stop, or structured_outputs.regex",
    "no_stop_trim": "use include_stop_str_in_output",
    "separate_reasoning": "use include_reasoning",
    "echo": "use continue_final_message",
    "rid": "use request_id",
    "lora_path": "there are no adapters; leave it out",
    "kv_transfer_params": _BY_ITSELF,
    "bootstrap_host": _BY_ITSELF,
    "bootstrap_port": _BY_ITSELF,
    "bootstrap_room": _BY_ITSELF,
    "ec_transfer_params": _TEXT_ALONE,
    "mm_processor_kwargs": _TEXT_ALONE,
    "media_io_kwargs": _TEXT_ALONE,
    "routed_experts_prompt_start": "no model here has experts; leave it out",
    "stream_interval": "leave it out: each token is told at once",
    "watermarking": "answers bear no watermark; leave it out",
    "vllm_xargs": "leave it out: there are no further arguments",
    "thinking_token_budget": "use max_completion_tokens",
    "repetition_detection": "use repetition_penalty",
    "extra_body": "it is the client's; put its fields at the top level",
    "extra_headers": "it is the client's; send them as headers",
    "extra_query": "it is the client's; leave it out",
}
"""What to do in place of fields that other servers have, or have had: they are unknown here."""

_OWN_WORDS = ("input", "prompt", "messages", "tokens")
"""What a body says in one of these: the first that it has is its own."""
_OTHER_WORDS = frozenset((*_OWN_WORDS, "inputs", "text", "texts", "message", "content"))

_Request = TypeVar("_Request")
_PATH = re.compile(r"^(?P<what>.*) - at `(?:key in )?\$(?P<path>[^`]*)`$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<name>[^`]*)`")
_LENGTH = re.compile(r"^Expected `(?P<kind>\w+)` of length (?P<sign>[<>])= (?P<bound>\d+)$")
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_GOT = re.compile(r", got `[^`]*`$")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_PARTS = {"str": ("character", ""), "array": ("item", ""), "object": ("entry", "entries")}
_MAX_SHOWN_CHARS = 60
_MAX_PATH_CHARS = 200  # ours are shorter; a client's own key may read like one
_BAD_JSON = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


def decode(body: bytes, kind: type[_Request]) -> _Request:
    """The request. Raises ClientError: which field, what it holds, and what it may hold; or that
    there is too much."""
    check_amount(body)
    return decode_any(body, kind)


def decode_any(body: bytes, kind: type[_Request]) -> _Request:
    """The same, however much there is."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _explained(str(error), body, kind) from error
    except _BAD_JSON as error:
        raise _not_json(error, body) from error


def decode_part(part: bytes, kind: type[_Request], where: str) -> _Request:
    """The same of a list within a body, whose path that is; it may be long."""
    try:
        return msgspec.json.decode(part, type=kind)
    except msgspec.ValidationError as error:
        match = _PATH.match(str(error))
        what, path = (match["what"], match["path"]) if match else (str(error), "")
        got: object = None
        with suppress(msgspec.ValidationError):  # a number that no type can hold
            got = _value_at(msgspec.json.decode(part), path)
        raise ClientError(_wrong(where + path, what, got, kind), param=where + path) from error


def shown(value: object) -> str:
    """A client's value as its JSON, cut short."""
    try:
        text = msgspec.json.encode(value).decode()
    except (RecursionError, OverflowError, TypeError, ValueError):
        text = reprlib.repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}..."


def _explained(text: str, body: bytes, kind: type) -> ClientError:
    """Of a body that is not of its kind, unless it is not even JSON."""
    value: Any = None
    try:
        value = msgspec.json.decode(body)
    except msgspec.ValidationError:
        pass  # a number too large for any type: `text` says so, or speaks of what comes before it
    except _BAD_JSON as error:
        return _not_json(error, body)
    if isinstance(value, dict) and (refused := _refused(value, kind)) is not None:
        return refused  # first: what is wrong may have a meaning beside it alone
    unknown = _UNKNOWN.match(text)
    if unknown and isinstance(value, dict) and unknown["name"] in value:
        return _unknown_field(unknown["name"], "", kind)  # whatever it reads like
    match = _PATH.match(text)
    what, path = (match["what"], match["path"].lstrip(".")) if match else (text, "")
    path = path[:_MAX_PATH_CHARS]
    if unknown := _UNKNOWN.match(what):
        return _unknown_field(unknown["name"], path, kind)
    if missing := _MISSING.match(what):
        where = _joined(path, missing["name"])
        return ClientError(f"{where} is required", param=where)
    path = path.removesuffix("[...]")  # of a dict, whose keys are not told
    if not path:
        return ClientError(f"the body must be a JSON object: {what}")
    return ClientError(_wrong(path, what, _value_at(value, path), kind), param=path)


def _refused(body: Mapping[str, Any], kind: type) -> ClientError | None:
    """The first of its fields that asks for what is not here."""
    for name, hint in get_type_hints(kind, include_extras=True).items():
        why = refusal(hint, body[name]) if name in body else None
        if why is not None:
            return ClientError(f"{name} is not supported: {why}", param=name)
    return None


def _wrong(path: str, what: str, got: object, kind: type) -> str:
    """What is said of a value at a path, of which `msgspec` says `what`."""
    length = _LENGTH.match(what)
    if length is not None and isinstance(got, str | list | dict):
        limit = f"at {'most' if length['sign'] == '<' else 'least'} {length['bound']}"
        return f"{path} has {count(len(got), *_PARTS[length['kind']])}; {limit}"
    choices = ", ".join(shown(one) for one in _choices(_types_at(kind, path)))
    wanted = _GOT.sub("", what).replace(" | null", "")
    if choices and wanted.startswith("Invalid enum value"):
        return f"{path} is {shown(got)}; it must be one of {choices}"
    said = f"{path}: {wanted}" if got is None else f"{path}: {wanted}, got {shown(got)}"
    return f"{said} (milliseconds)" if path.endswith("_ms") else said


def _not_json(error: Exception, body: bytes) -> ClientError:
    if isinstance(error, RecursionError):
        return ClientError("the body is nested too deeply")
    text = str(error)
    if "truncated" in text and body.rstrip().endswith(b"}") and _SURROGATE.search(body):
        text = "an escape between \\ud800 and \\udfff stands without its partner"
    return ClientError(f"the body is not valid JSON: {text}")


def _unknown_field(name: str, path: str, kind: type) -> ClientError:
    bodies = [one for one in _types_at(kind, path) if isinstance(one, type)]
    known = [name for one in bodies if issubclass(one, msgspec.Struct) for name in _names(one)]
    close = difflib.get_close_matches(name[:_MAX_SHOWN_CHARS], known, 1)
    where = _joined(path, name[:_MAX_SHOWN_CHARS])
    hint = f"did you mean {close[0]}?" if close else "leave it out"
    own = next((word for word in _OWN_WORDS if word in known), None)
    if own is not None and where in _OTHER_WORDS:
        hint = f"use {own}"
    hint = INSTEAD.get(where, hint)
    return ClientError(f"unknown field {shown(_joined(path, name))}; {hint}", param=where)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _names(kind: type) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(kind)]


def _types_at(kind: type, path: str) -> list[Any]:
    """What may stand at a path within a body of that kind."""
    types: list[Any] = [kind]
    for name, index in _STEP.findall(path):
        inner: list[Any] = []
        for one in types:
            if name and isinstance(one, type) and issubclass(one, msgspec.Struct):
                inner += _members(get_type_hints(one).get(name, Any))
            elif index and get_origin(one) is list:
                inner += _members(get_args(one)[0])
        types = inner
    return types


def _members(wanted: Any) -> list[Any]:  # noqa: ANN401 - a type, as `typing` has it
    """Of a union each."""
    if get_origin(wanted) in (Union, UnionType):
        return [member for one in get_args(wanted) for member in _members(one)]
    return [wanted]


def _choices(types: Sequence[Any]) -> list[str]:
    return [str(value) for one in types if get_origin(one) is Literal for value in get_args(one)]


def _value_at(value: Any, path: str) -> object:  # noqa: ANN401 - any JSON
    """None: it is not there."""
    for name, index in _STEP.findall(path):
        if name and isinstance(value, dict):
            value = value.get(name)
        elif index and isinstance(value, list):
            value = next(iter(value[int(index[:9]) :][:1]), None)
        else:
            return None
    return value
