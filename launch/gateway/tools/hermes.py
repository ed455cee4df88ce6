"""Hermes', Qwen's and SmolLM's way: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

As in NousResearch/Hermes-Function-Calling; Qwen2.5 and Qwen3 have it in their templates.
"""

from launch.gateway.tools.reader import Calls, Marker, Said, json_of, named

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesReader:
    """Text and calls may follow each other in any order."""

    def __init__(self) -> None:
        self._calls = Calls()
        self._open = Marker(OPEN)
        self._inside: str | None = None  # of a call that is not closed

    def push(self, text: str) -> Said:
        said = Said()
        rest: str | None = text
        while rest is not None:
            step, rest = self._step(rest)
            said += step
        return said

    def _step(self, text: str) -> tuple[Said, str | None]:
        """Up to the next marker; what comes behind it."""
        if self._inside is None:
            before, after = self._open.push(text)
            self._inside = None if after is None else ""
            return Said(before), after
        inside, found, after = (self._inside + text).partition(CLOSE)
        if not found:
            self._inside = inside
            return Said(), None
        self._inside = None
        return self._read(inside, CLOSE), after

    def finish(self) -> Said:
        """A model's end may stand for the last `</tool_call>`."""
        inside, self._inside = self._inside, None
        return Said(self._open.finish()) if inside is None else self._read(inside, "")

    def _read(self, inside: str, close: str) -> Said:
        call = named(json_of(inside), "arguments", "parameters")
        if call is None:
            return Said(OPEN + inside + close)
        return Said(calls=(self._calls.whole(*call),))
