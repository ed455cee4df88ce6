"""What clients send: the bodies of requests, with their bounds. `decode` refuses with a reason.

Fields of OpenAI's that change nothing here are accepted; those that would change the answer and
are not supported are refused by `launch.gateway.api.prepare`.
"""

import difflib
import re
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from common.errors import ClientError

TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
MAX_STOPS = 16


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Of a streamed answer."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Sampling(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What both endpoints share. None: the model's own default, else OpenAI's."""

    model: str | None = None
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None  # 0 and -1: all
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    return_token_ids: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # Accepted; they change nothing.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class CompletionRequest(Sampling, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/completions"""

    prompt: str | list[str | TokenId | list[TokenId]]
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0)] | None = None
    best_of: Annotated[int, Meta(ge=1)] | None = None
    suffix: str | None = None


class ChatRequest(Sampling, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/chat/completions"""

    messages: list[dict[str, Any]]
    max_completion_tokens: Annotated[int, Meta(ge=0)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    # Refused unless they ask for what is done anyway.
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    response_format: dict[str, Any] | None = None
    modalities: list[str] | None = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None
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


_Request = TypeVar("_Request")
_PATH = re.compile(r"^(?P<what>.*) - at `(?:key in )?\$(?P<path>[^`]*)`$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<name>[^`]*)`")
_MAX_SHOWN_CHARS = 60


def decode(body: bytes, kind: type[_Request]) -> _Request:
    """The request. Raises ClientError: which field, what it holds, and what it may hold."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _explained(str(error), body, kind) from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ClientError(f"the body is not valid JSON: {error}") from error


def _explained(text: str, body: bytes, kind: type) -> ClientError:
    match = _PATH.match(text)
    what, path = (match["what"], match["path"].lstrip(".")) if match else (text, "")
    param = path or None
    if unknown := _UNKNOWN.match(text):
        name = unknown["name"]
        close = difflib.get_close_matches(name, _names(kind), 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        return ClientError(f"unknown field {_shown(name)}{hint}", param=name[:_MAX_SHOWN_CHARS])
    if missing := _MISSING.match(text):
        name = missing["name"]
        where = f"{path}.{name}" if path else name
        return ClientError(f"{where} is required", param=where)
    if not path:
        return ClientError(f"the body must be a JSON object: {what}")
    return ClientError(f"{path}: {what}, got {_shown(_value_at(body, path))}", param=param)


def _names(kind: type) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(kind)]


def _value_at(body: bytes, path: str) -> object:
    value: Any = msgspec.json.decode(body)
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+|\.\.\.)\]", path):
        if name and isinstance(value, dict):
            value = value.get(name)
        elif index.isdigit() and isinstance(value, list):
            value = value[int(index)]
        else:
            break
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}..."
