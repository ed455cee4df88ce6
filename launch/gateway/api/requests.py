"""What clients send: the bodies of requests, with their bounds. `decode` refuses with a reason.

Fields of OpenAI's that change nothing here are accepted; those that would change the answer and
are not supported are refused by `launch.gateway.api.prepare`.
"""

import difflib
import re
import reprlib
from collections.abc import Sequence
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import Meta

from common.errors import ClientError
from common.values import MAX_WAIT_S, Milliseconds

MAX_INT = 2**31 - 1  # of what is not bounded more narrowly: it must fit every message
TokenId = Annotated[int, Meta(ge=0, le=MAX_INT)]
TokenCount = Annotated[int, Meta(ge=0, le=MAX_INT)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
MAX_STOPS = 16
MAX_SALT_CHARS = 256
MAX_TOKEN_RULES = 4096  # stop token ids, biased tokens


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Of a streamed answer."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # vLLM's: with every event, of its choice so far
    include_obfuscation: bool | None = None


class SloBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the answer is owed. None: what the server owes everybody (--slo-ttft, --slo-tpot)."""

    ttft_ms: Milliseconds | None = None  # to the first token; refused at once where it cannot be
    tpot_ms: Milliseconds | None = None  # a token after the first, in the mean


class JsonSchemaBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`response_format.json_schema`. `strict` changes nothing: the schema always holds."""

    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | bool | None = None  # of JSON schema
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's name for what an answer must be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaBody | None = None


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's name for the same. One of these."""

    json: dict[str, Any] | bool | str | None = None  # a schema, or its text
    json_object: bool | None = None
    regex: str | None = None  # of the whole answer
    choice: Annotated[list[str], Meta(min_length=1, max_length=MAX_TOKEN_RULES)] | None = None
    grammar: str | None = None  # Lark or GBNF


class Sampling(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What both endpoints share. None: the model's own default, else OpenAI's."""

    model: str | None = None
    max_tokens: TokenCount | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_INT)] | None = None  # 0 and -1: all
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_TOKEN_RULES)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    logit_bias: Annotated[dict[str, Bias], Meta(max_length=MAX_TOKEN_RULES)] | None = None
    min_tokens: TokenCount | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    return_token_ids: bool | None = None
    prompt_logprobs: TokenCount | None = None  # alternatives told of each token of the prompt
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=MAX_INT)] | None = None  # keep the last
    cache_salt: Annotated[str, Meta(min_length=1, max_length=MAX_SALT_CHARS)] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    slo: SloBody | None = None
    timeout_s: Annotated[float, Meta(gt=0, le=MAX_WAIT_S)] | None = None  # for all of the answer
    # Accepted; they change nothing.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class FunctionBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`tools[].function`. `strict` changes nothing: see `tool_choice`."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None  # JSON schema of an object; None: any
    strict: bool | None = None


class ToolBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`tools[]`"""

    type: Literal["function"]
    function: FunctionBody


class FunctionName(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`tool_choice.function`"""

    name: str


class NamedTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`tool_choice`: this one. Its arguments are held to its schema."""

    type: Literal["function"]
    function: FunctionName


class CompletionRequest(Sampling, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/completions"""

    prompt: str | list[str | TokenId | list[TokenId]]
    echo: bool | None = None
    logprobs: TokenCount | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_INT)] | None = None
    suffix: str | None = None


class ChatRequest(Sampling, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/chat/completions"""

    messages: list[dict[str, Any]]
    max_completion_tokens: TokenCount | None = None
    logprobs: bool | None = None
    top_logprobs: TokenCount | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None  # None: unless the final message is continued
    continue_final_message: bool = False  # the answer goes on where the last message ends
    tools: list[ToolBody] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None  # None: auto
    parallel_tool_calls: bool | None = None  # false, and a call is required: no more than one
    # Refused unless they ask for what is done anyway.
    functions: list[Any] | None = None
    function_call: Any = None
    modalities: list[str] | None = None
    audio: Any = None
    web_search_options: Any = None
    # Accepted; they change nothing.
    prediction: Any = None
    reasoning_effort: str | None = None
    verbosity: str | None = None


class TokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /tokenize"""

    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /detokenize"""

    model: str | None = None
    tokens: list[TokenId]


_INSTEAD = {  # of fields that other servers have, or have had
    "guided_json": "use structured_outputs.json",
    "guided_regex": "use structured_outputs.regex",
    "guided_choice": "use structured_outputs.choice",
    "guided_grammar": "use structured_outputs.grammar",
    "priority": "there are no priorities; slo says when an answer is owed",
    "response_format.schema": "give it as response_format.json_schema.schema",
}
_Request = TypeVar("_Request")
_PATH = re.compile(r"^(?P<what>.*) - at `(?:key in )?\$(?P<path>[^`]*)`$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<name>[^`]*)`")
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_GOT = re.compile(r", got `[^`]*`$")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_MAX_SHOWN_CHARS = 60
_BAD_JSON = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


def decode(body: bytes, kind: type[_Request]) -> _Request:
    """The request. Raises ClientError: which field, what it holds, and what it may hold."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _explained(str(error), body, kind) from error
    except _BAD_JSON as error:
        raise _not_json(error, body) from error


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
    match = _PATH.match(text)
    what, path = (match["what"], match["path"].lstrip(".")) if match else (text, "")
    if unknown := _UNKNOWN.match(what):
        return _unknown_field(unknown["name"], path, kind)
    if missing := _MISSING.match(what):
        where = _joined(path, missing["name"])
        return ClientError(f"{where} is required", param=where)
    if not path:
        return ClientError(f"the body must be a JSON object: {what}")
    path = path.removesuffix("[...]")  # of a dict, whose keys are not told
    wanted = _GOT.sub("", what).replace(" | null", "")
    got = _value_at(value, path)
    said = f"{path}: {wanted}" if got is None else f"{path}: {wanted}, got {shown(got)}"
    unit = " (milliseconds)" if path.endswith("_ms") else ""
    choices = ", ".join(shown(one) for one in _choices(_types_at(kind, path)))
    if choices and wanted.startswith("Invalid enum value"):
        said = f"{path} is {shown(got)}; it must be one of {choices}"
    return ClientError(said + unit, param=path)


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
    hint = _INSTEAD.get(where, hint)
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
            value = value[int(index)]
        else:
            return None
    return value
