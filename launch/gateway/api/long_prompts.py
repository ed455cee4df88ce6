"""Completions of many token ids, decoded a prompt at a time: a batch may have millions of them, and
no prompt more than the context. Must not know how other bodies are decoded.
"""

import re
from typing import Any

import msgspec
import numpy as np

from common.errors import ClientError, ContextOverflow
from launch.gateway.api.amounts import MAX_ENTRIES, MAX_LISTS, Amount, amount, too_much
from launch.gateway.api.decoding import decode, decode_any, decode_part
from launch.gateway.api.prompts import check_choices
from launch.gateway.api.requests import MAX_CHOICES, CompletionRequest, TokenId

_LISTS = re.compile(rb"\s*\[\s*\[")
_TEXTS = re.compile(rb'\s*\[\s*"')


class _Prompt(msgspec.Struct):
    """What is looked at first."""

    prompt: msgspec.Raw = msgspec.Raw(b"")


class _Rest(CompletionRequest, kw_only=True, forbid_unknown_fields=True):
    """What is said beside the prompt, in whose place anything stands."""

    prompt: Any


def decode_completion(body: bytes, max_model_len: int | None) -> CompletionRequest:
    """As `decode` does; also where there is too much for it, if it is in the prompt. Raises
    ClientError. `max_model_len`: None where no worker tells it."""
    told = amount(body)
    if not told.is_too_much:
        return decode(body, CompletionRequest)
    if max_model_len is None or told.lists > MAX_LISTS + MAX_CHOICES:
        raise too_much(told)
    raw = decode_any(body, _Prompt).prompt
    prompt = bytes(raw)
    if not prompt:
        raise too_much(told)
    at = _address(raw) - _address(body)  # it is a view of it
    rest = decode(b"".join((body[:at], b"0", body[at + len(prompt) :])), _Rest)
    fields: dict[str, Any] = {n: getattr(rest, n) for n in CompletionRequest.__struct_fields__}
    fields["prompt"] = _prompt(prompt, rest, max_model_len)
    return CompletionRequest(**fields)


def _address(buffer: bytes | msgspec.Raw) -> int:
    return np.frombuffer(buffer, np.uint8).ctypes.data


def _prompt(raw: bytes, rest: _Rest, max_model_len: int) -> list[int] | list[list[int]]:
    told = amount(raw)
    if _TEXTS.match(raw):
        check_choices(_n_items(told), rest)
    if not _LISTS.match(raw):
        return _ids(raw, "prompt", rest, max_model_len)
    check_choices(told.lists - 1, rest)
    parts = decode_part(raw, list[msgspec.Raw], "prompt")
    return [_ids(bytes(p), f"prompt[{n}]", rest, max_model_len) for n, p in enumerate(parts)]


def _ids(raw: bytes, where: str, rest: _Rest, max_model_len: int) -> list[int]:
    """Counted before they are decoded."""
    n_tokens = raw.count(b",") + 1
    if rest.truncate_prompt_tokens is None and n_tokens > max_model_len:
        raise ContextOverflow(n_tokens, 1, max_model_len, param="prompt")
    if n_tokens > max(MAX_ENTRIES, max_model_len):
        raise ClientError(
            f"{where} has {n_tokens} token ids; at most {MAX_ENTRIES} are taken to be truncated",
            param="prompt",
        )
    return decode_part(raw, list[TokenId], where)


def _n_items(told: Amount) -> int:
    """Of one list."""
    return told.entries - told.lists + 1
