"""Llama 3's way: the whole answer is `{"name": ..., "parameters": {...}}`, or several with `;`.

As Meta's model cards of Llama 3.1 and 3.2 have it, `<|python_tag|>` before it or not.
"""

import json

from launch.gateway.tools.reader import CallPart, Calls, Said, named

TAG = "<|python_tag|>"


class Llama3Reader:
    """An answer that begins otherwise than with a brace is text, and held back no longer."""

    def __init__(self) -> None:
        self._held: str | None = ""  # None: it is text

    def push(self, text: str) -> Said:
        if self._held is None:
            return Said(text)
        self._held += text
        begun = self._held.lstrip()
        if not begun or begun.startswith("{") or _begin_alike(begun, TAG):
            return Said()
        said, self._held = self._held, None
        return Said(said)

    def finish(self) -> Said:
        held, self._held = self._held, None
        calls = _calls_of(held or "")
        return Said(calls=calls) if calls else Said(held or "")


def _begin_alike(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


def _calls_of(text: str) -> tuple[CallPart, ...]:
    """Nothing, unless all of it is calls."""
    rest = text.strip().removeprefix(TAG).strip()
    decoder, calls, parts = json.JSONDecoder(), Calls(), list[CallPart]()
    while rest:
        try:
            value, end = decoder.raw_decode(rest)
        except (ValueError, RecursionError):
            return ()
        call = named(value, "parameters", "arguments")
        if call is None:
            return ()
        parts.append(calls.whole(*call))
        rest = rest[end:].lstrip().removeprefix(";").lstrip()
    return tuple(parts)
