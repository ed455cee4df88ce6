"""Where a text must end: the client's stop strings, found as the text comes in.

The match that is complete first ends the text; of several complete at the same character, the
longest. So the result depends on the text alone, never on how it was cut into tokens. (vLLM goes
by the order of the list among those complete after one token.) Must know nothing of tokens.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from common.errors import ClientError


@dataclass(slots=True, eq=False)
class _State:
    """The text's end is the beginning, `depth` characters long, of some stop string."""

    depth: int = 0
    following: "dict[str, _State]" = field(default_factory=dict)
    shorter: "_State | None" = None  # the next longest beginning that the text ends with
    stop: str | None = None  # the longest stop string that the text ends with


class StopAutomaton:
    """The stop strings of one request (Aho and Corasick, 1975). Immutable: samples share it."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.root = _State()
        for stop in stops:
            if not stop:
                raise ClientError("a stop string is empty", param="stop")
            self._add(stop)
        self._link()

    def _add(self, stop: str) -> None:
        state = self.root
        for char in stop:
            state = state.following.setdefault(char, _State(state.depth + 1))
        state.stop = stop

    def _link(self) -> None:
        queue = deque([self.root])
        while queue:
            state = queue.popleft()
            for char, longer in state.following.items():
                longer.shorter = self.root if state is self.root else self.step(state.shorter, char)
                longer.stop = longer.stop or longer.shorter.stop
                queue.append(longer)

    def step(self, state: _State | None, char: str) -> _State:
        """The state after one more character. Amortised constant time over a text."""
        while state is not None:
            if char in state.following:
                return state.following[char]
            state = state.shorter
        return self.root


class StopStrings:
    """One sample's search. Not to be shared between threads.

    Holds back exactly what may yet turn out to belong to a stop string.
    """

    def __init__(self, automaton: StopAutomaton, *, include_in_output: bool = False) -> None:
        self._automaton = automaton
        self._state = automaton.root
        self._include = include_in_output
        self._held = ""

    def push(self, text: str, *, may_stop: bool = True) -> tuple[str, str | None]:
        """The text that is safe to show, and the stop string that ends it, if one is complete.

        After a stop, push nothing more.
        may_stop  False: stop strings complete within `text` are ordinary text
        """
        if not self._automaton.root.following:
            return text, None
        for n_read, char in enumerate(text, start=1):
            self._state = self._automaton.step(self._state, char)
            stop = self._state.stop
            if stop is not None and may_stop:
                whole = self._held + text[:n_read]
                self._held = ""
                return (whole if self._include else whole[: -len(stop)]), stop
        whole = self._held + text
        n_safe = len(whole) - (0 if self._include else self._state.depth)
        self._held = whole[n_safe:]
        return whole[:n_safe], None

    def flush(self) -> str:
        """The text is over: what was held back after all belongs to it."""
        held, self._held = self._held, ""
        return held
