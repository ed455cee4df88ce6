"""Mistral's way: `[TOOL_CALLS][{"name": ..., "arguments": {...}}]`, and since its tokenizer's
version 11 `[TOOL_CALLS]name[ARGS]{...}`, one after the other.
"""

import re

from launch.gateway.tools.reader import CallPart, Calls, Marker, Said, json_of, named

MARK, ARGS = "[TOOL_CALLS]", "[ARGS]"
_NAMED = re.compile(r"\s*(?P<name>[\w.-]+)\s*(?:\[CALL_ID\]\w+\s*)?" + re.escape(ARGS), re.ASCII)


class MistralReader:
    """Text comes before the calls, if at all."""

    def __init__(self) -> None:
        self._mark = Marker(MARK)
        self._behind: str | None = None  # the mark

    def push(self, text: str) -> Said:
        if self._behind is not None:
            self._behind += text
            return Said()
        before, self._behind = self._mark.push(text)
        return Said(before)

    def finish(self) -> Said:
        behind, self._behind = self._behind, None
        if behind is None:
            return Said(self._mark.finish())
        calls = _listed(behind) or _one_by_one(behind)
        return Said(calls=calls) if calls else Said(MARK + behind)


def _listed(text: str) -> tuple[CallPart, ...]:
    values = json_of(text)
    found = [named(value, "arguments") for value in values] if isinstance(values, list) else []
    calls = Calls()
    return tuple(calls.whole(*one) for one in found if one) if all(found) else ()


def _one_by_one(text: str) -> tuple[CallPart, ...]:
    calls, parts = Calls(), list[CallPart]()
    for one in text.split(MARK):
        match = _NAMED.match(one)
        arguments = None if match is None else json_of(one[match.end() :])
        if match is None or not isinstance(arguments, dict):
            return ()
        parts.append(calls.whole(match["name"], arguments))
    return tuple(parts)
