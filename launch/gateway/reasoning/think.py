"""The way of DeepSeek-R1 and Qwen3: `<think>` thoughts `</think>`, then the answer.

Some models write both marks. Of others the template writes the first one, as the prompt's end.
"""

from enum import Enum, auto

from common.values import ReasoningParser
from launch.gateway.tools.reader import Marker, Reader, Said

OPEN, CLOSE = "<think>", "</think>"


def begins_thinking(parser: ReasoningParser, prompt_tail: str) -> bool | None:
    """Whether what follows the prompt is thought, whatever it begins with; None: nothing is.

    `prompt_tail`: the prompt's last characters, as the template wrote them.
    """
    tail = prompt_tail.rstrip()
    if parser == "none" or tail.endswith(CLOSE):  # the template has thought already: of nothing
        return None
    return tail.endswith(OPEN) or parser == "deepseek_r1"  # which may leave the first mark out


class _Place(Enum):
    BEGINNING = auto()  # nothing but space has come, and perhaps some of `<think>`
    THOUGHT = auto()
    ANSWER = auto()


class ThinkReader:
    """A `Reader` of one choice. The marks are told as neither; what follows them is as it was
    written. `then` reads the answer; None: all of it is text."""

    def __init__(self, *, inside: bool, then: Reader | None) -> None:
        """inside  it is thought from the first character on"""
        self._inside = inside
        self._then = then
        self._place = _Place.BEGINNING
        self._held = ""
        self._close = Marker(CLOSE)

    @property
    def thinks(self) -> bool:
        """What comes next may be thought."""
        return self._place is _Place.THOUGHT or (self._inside and self._place is _Place.BEGINNING)

    def push(self, text: str) -> Said:
        match self._place:
            case _Place.BEGINNING:
                return self._begin(self._held + text)
            case _Place.THOUGHT:
                return self._think(text)
            case _Place.ANSWER:
                return self._answer(text)

    def finish(self) -> Said:
        if self._place is _Place.ANSWER:
            return Said() if self._then is None else self._then.finish()
        rest = self._held + self._close.finish()
        if self.thinks:
            return Said(reasoning=rest)
        return self._answer(rest) + (Said() if self._then is None else self._then.finish())

    def _begin(self, text: str) -> Said:
        begun = text.lstrip()
        if begun != OPEN and OPEN.startswith(begun):  # nothing, or some of it
            self._held = text
            return Said()
        self._held = ""
        if begun.startswith(OPEN):
            self._place = _Place.THOUGHT
            return self._think(begun.removeprefix(OPEN))
        self._place = _Place.THOUGHT if self._inside else _Place.ANSWER
        return self.push(text)

    def _think(self, text: str) -> Said:
        thought, answer = self._close.push(text)
        if answer is None:
            return Said(reasoning=thought)
        self._place = _Place.ANSWER
        return Said(reasoning=thought) + self._answer(answer)

    def _answer(self, text: str) -> Said:
        return Said(text) if self._then is None else self._then.push(text)
