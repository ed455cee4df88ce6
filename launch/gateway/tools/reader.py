"""What a family's reader of calls is: a model's text in, as it comes; what is said and called out.

Nothing that a model writes is lost: what looks like a call and is none is text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec


@dataclass(frozen=True, slots=True)
class CallPart:
    """Some of one call, which begins where `name` is told."""

    index: int  # of the call among those of its answer
    name: str | None
    arguments: str  # more of their JSON


@dataclass(frozen=True, slots=True)
class Said:
    """What a choice gains."""

    text: str = ""
    calls: tuple[CallPart, ...] = ()
    reasoning: str = ""  # comes before the others

    def __add__(self, other: "Said") -> "Said":
        reasoning = self.reasoning + other.reasoning
        return Said(self.text + other.text, self.calls + other.calls, reasoning)


class Reader(Protocol):
    """Of one choice."""

    def push(self, text: str) -> Said: ...

    def finish(self) -> Said:
        """No more comes: all that was held back."""
        ...


@dataclass(slots=True)
class Calls:
    """Numbers the calls of one answer."""

    n: int = 0

    def whole(self, name: str, arguments: object) -> CallPart:
        """A call that is complete. `arguments` as JSON would be read, or already its text."""
        text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
        self.n += 1
        return CallPart(self.n - 1, name, text)


@dataclass(slots=True)
class Marker:
    """Looks for a spelling that may come in parts."""

    spelling: str
    _held: str = field(default="")  # might be its beginning

    def push(self, text: str) -> tuple[str, str | None]:
        """(what stands before it, what stands behind; None: it has not come)."""
        text, self._held = self._held + text, ""
        before, found, after = text.partition(self.spelling)
        if found:
            return before, after
        n_held = next(
            n
            for n in range(min(len(text), len(self.spelling) - 1), -1, -1)
            if text.endswith(self.spelling[:n])
        )
        cut = len(text) - n_held
        self._held = text[cut:]
        return text[:cut], None

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held


def joined(parts: Sequence[CallPart]) -> list[CallPart]:
    """Whole calls, of parts that follow each other."""
    calls: dict[int, list[CallPart]] = {}
    for part in parts:
        calls.setdefault(part.index, []).append(part)
    return [
        CallPart(index, its[0].name, "".join(part.arguments for part in its))
        for index, its in calls.items()
    ]


def named(value: object, *arguments_keys: str) -> tuple[str, Any] | None:
    """(name, arguments) of an object that has both; None: it is no call."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    for key in arguments_keys:
        if key in value:
            return value["name"], value[key]
    return None


def json_of(text: str) -> object:
    """What a text says in JSON; None: it is none."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
